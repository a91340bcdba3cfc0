"""The benchmark of tasks in words: its tables, and how redrive stands to what it is to reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import measure
from record import Figure, Table, Target, record

TARGETS = {"tasks_per_s": 2_000, "cost_ratio": 1.5, "bytes_per_task": 1_024}
SPEED_TARGET = ("SQLite", "redrive-process", ("flat", "diamond"))  # in a chain, every task waits for a commit
ELSEWHERE = {"DBOS": 309, "Luigi": 229, "fork per task": 152, "pebble": 6_800}
TITLES = {
    "flat": "independent of each other",
    "chain": "each after the one before",
    "diamond": "one, then all but two, then one",
}
MEANINGS = (
    "Timeout: what becomes of a task that runs past it. Kills: it is ended from outside, whatever it does. Cancels: it "
    "is asked to end. The rate is that of whole runs, from the first statement to the last task's recorded end: "
    "workers started, the flow defined, tasks put down. Not timed: imports, making the tables, DBOS.launch, which "
    "starts its threads. Going: the rate from the first line of the first task on.",
    "× dbos, × luigi, × fork, × pebble: the rate of whole runs as a multiple of theirs, of each the fastest way in the "
    "table. Latency: from the first line of a task to that of the next one in a chain; that is from ready to started, "
    "the commit of the one before included.",
    "All databases are durable and otherwise as they come: PostgreSQL with fsync and synchronous_commit on, SQLite "
    "with synchronous=FULL and a write-ahead log. They stand in the temporary directory: TMPDIR chooses the disk.",
)
FOOTNOTES = (
    *MEANINGS,
    "Going and all multiples are those of {small:,} tasks. * stopped after {limit:,} s, and counted by what it had "
    "done. Cost: what one of {large:,} tasks takes as a multiple of one of {small:,}, counted from the beginning of "
    "the run or from that of its first task, whichever is worse. B/task: by how much more memory {large:,} tasks take "
    "at the peak than {small:,}, in the process that runs them, per task. First: from the beginning of a flat run to "
    "the first line of its first task.",
    "Seen elsewhere, on two cores, in tasks per second: {elsewhere}.",
)


def report(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    missing = {
        f"{row['database']}, {row['shape']}, {row['peer']}": row["unavailable"] for row in rows if row["unavailable"]
    }
    names = {name: f"{peer['contains']} (timeout: {peer['timeout']})" for name, peer in document["peers"].items()}
    return "\n\n".join(
        [
            measure.heading(document["environment"]),
            ", ".join(f"{name} {number}" for name, number in document["databases"].items()),
            *tables(document),
            *([measure.glossary("Not available:", missing)] if missing else []),
            measure.glossary("Rows:", names),
            *(measure.paragraph(text.format(**figures(document))) for text in FOOTNOTES),
            *(measure.paragraph(verdict(one)) for one in document["headline"]),
        ]
    )


def figures(document: Mapping[str, Any]) -> dict[str, Any]:
    sizes = document["effort"]["sizes"]
    elsewhere = ", ".join(f"{name} {rate:,}" for name, rate in ELSEWHERE.items())
    return {"limit": document["effort"]["limit"], "small": sizes[0], "large": sizes[-1], "elsewhere": elsewhere}


def tables(document: Mapping[str, Any]) -> Iterator[str]:
    """For each database one table a shape, and one of latencies."""
    for database in document["databases"]:
        here = [row for row in document["rows"] if row["database"] == database and not row["unavailable"]]
        for shape in dict.fromkeys(row["shape"] for row in here):
            yield speed_table(document, database, shape, [row for row in here if row["shape"] == shape])
        chains = [row for row in here if row["latency_ms"]]
        if chains:
            yield latency_table(database, chains, [row for row in here if row["shape"] == "flat"])


def speed_table(document: Mapping[str, Any], database: str, shape: str, rows: Sequence[dict[str, Any]]) -> str:
    sizes = document["effort"]["sizes"]
    found = {(row["peer"], row["tasks"]): row for row in rows}
    grown = {row["peer"]: row for row in document["growth"] if (row["database"], row["shape"]) == (database, shape)}
    ratios = ("dbos", "luigi", "fork", "pebble")
    lines = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        beside = found.get((peer, sizes[0]), {})
        more = grown.get(peer, {})
        lines.append(
            (
                peer + ("" if document["peers"][peer]["durable"] else " (no state)"),
                document["peers"][peer]["timeout"],
                rate_of(beside),
                measure.number(beside.get("going_tasks_per_s")),
                *(rate_of(found.get((peer, size))) for size in sizes[1:]),
                measure.number(more.get("cost_ratio"), 2),
                measure.number(more.get("bytes_per_task")),
                *(measure.number(beside.get(f"to_{name}"), 2) for name in ratios),
            )
        )
    rates = [f"{short(size)} /s" for size in sizes]
    head = ("", "timeout", rates[0], "going", *rates[1:], "cost", "B/task", *(f"×{name}" for name in ratios))
    return measure.table(f"{database}, {shape}: {TITLES[shape]}", head, lines)


def short(size: int) -> str:
    return f"{size // 1_000}k" if size >= 1_000 and size % 1_000 == 0 else f"{size:,}"


def rate_of(row: Mapping[str, Any] | None) -> str:
    if not row:
        return measure.number(None)
    rate = row["tasks_per_s"]
    return measure.number(rate, 1 if 0 < rate < 10 else 0) + "*" * row["cut"]


def latency_table(database: str, chains: Sequence[dict[str, Any]], flat: Sequence[dict[str, Any]]) -> str:
    first = {(row["peer"], row["tasks"]): row["first_ms"] for row in flat}
    lines = [
        (
            f"{row['peer']}, {row['tasks']:,}",
            *(measure.number(row["latency_ms"][name], 2) for name in ("p50", "p99", "max")),
            measure.number(first.get((row["peer"], row["tasks"])), 0),
        )
        for row in chains
    ]
    head = ("ms", "p50", "p99", "max", "first")
    return measure.table(f"{database}: latency from ready to started", head, lines)


# ── what the targets are about ───────────────────────────────────────────────────────────────────────────────────────


def headline(
    rows: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """redrive in each place: its rates, its ratios to the others, its growth."""
    ends = []
    for row in rows:
        if row["peer"].startswith("redrive") and row["tasks"] == sizes[0]:
            place = {name: row[name] for name in ("database", "shape", "peer")}
            same = [one for one in rows if place.items() <= one.items()]
            more = [one for one in growth if place.items() <= one.items()]
            ratios = {name: value for name, value in row.items() if name.startswith("to_")}
            going = {"going_tasks_per_s": {one["tasks"]: one["going_tasks_per_s"] for one in same}}
            grown = {name: more[0][name] if more else None for name in ("cost_ratio", "bytes_per_task")}
            ends.append(
                {**place, "tasks_per_s": {one["tasks"]: one["tasks_per_s"] for one in same}, **going, **ratios, **grown}
            )
    return ends


def verdict(end: Mapping[str, Any]) -> str:
    database, peer, shapes = SPEED_TARGET
    aimed = (end["database"], end["peer"]) == (database, peer) and end["shape"] in shapes
    rates = ", ".join(
        f"{value:,} tasks/s of {size:,} ({end['going_tasks_per_s'][size]:,} once going)"
        for size, value in end["tasks_per_s"].items()
    )
    told = [rates + (f", target {TARGETS['tasks_per_s']:,}" if aimed else "")]
    told += [f"{end[name]:.1f} × {name[3:]}" for name in end if name.startswith("to_") and end[name]]
    if end["cost_ratio"] is not None:
        told.append(f"cost × {end['cost_ratio']:.2f} (target {TARGETS['cost_ratio']})")
        told.append(f"{end['bytes_per_task']:,} B a task (target {TARGETS['bytes_per_task']:,})")
    return f"{end['database']}, {end['shape']}, {end['peer']}: {'; '.join(told)}"


# ── for the record ────────────────────────────────────────────────────────────────────────────────────────────────────


def recorded(about: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """A table for each database, shape and size."""
    rows, tables = document["rows"], []
    for place in dict.fromkeys((row["database"], row["shape"], row["tasks"]) for row in rows):
        database, shape, size = place
        here = [row for row in rows if (row["database"], row["shape"], row["tasks"]) == place]
        title = f"{database}, {size:,} tasks, {shape}: {TITLES[shape]}"
        tables.append(Table(title, [figure for row in here for figure in figures_of(row, document)]))
    targets = [target for end in document["headline"] for target in targets_of(end)]
    contains = {name: f"{peer['contains']} (timeout: {peer['timeout']})" for name, peer in document["peers"].items()}
    return record(about, tables, targets=targets, rows=contains, notes=MEANINGS)


def figures_of(row: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Figure]:
    peer, durable = row["peer"], document["peers"][row["peer"]]["durable"]
    name = peer if durable else f"{peer} (no state)"
    note = row["unavailable"] or (f"stopped after {document['effort']['limit']} s" if row["cut"] else "")
    ratios = {f"× {family}": row[f"to_{family}"] for family in ("dbos", "luigi", "fork", "pebble")}
    yield Figure(name, "rate", "tasks/s", row["tasks_per_s"], row["spread"], ratios, note)
    yield Figure(name, "once going", "tasks/s", row["going_tasks_per_s"])
    if row["latency_ms"]:
        yield Figure(name, "latency p50", "ms", row["latency_ms"]["p50"])
        yield Figure(name, "latency p99", "ms", row["latency_ms"]["p99"])


def targets_of(end: Mapping[str, Any]) -> Iterator[Target]:
    place = f"{end['database']}, {end['shape']}, {end['peer']}"
    database, peer, shapes = SPEED_TARGET
    if (end["database"], end["peer"]) == (database, peer) and end["shape"] in shapes:
        for size, rate in end["tasks_per_s"].items():
            yield Target(f"{place}, {size:,} tasks", rate, "at least", TARGETS["tasks_per_s"], "tasks/s")
    if end["peer"] == peer:
        yield Target(place, end["to_dbos"], "at least", 1, "× the speed of DBOS's fastest way")
        large = max(end["tasks_per_s"])
        cost, memory = TARGETS["cost_ratio"], TARGETS["bytes_per_task"]
        yield Target(f"{place}, one of {large:,}", end["cost_ratio"], "at most", cost, "× the time of one of few")
        yield Target(f"{place}, one of {large:,}", end["bytes_per_task"], "at most", memory, "bytes of memory")
