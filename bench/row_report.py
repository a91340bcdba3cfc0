"""The benchmark of rows in words: its tables, what they mean, and how redrive stands to its targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import measure
from record import Figure, Table, Target, record

TARGETS = {
    "redrive-dataframely": {"to_loop": 6, "floor_time": 1.5, "growth": 0.2},
    "redrive-pydantic": {"to_loop": 4, "growth": 0.2},
}
AIMED_AT = "PostgreSQL"  # whose speed the targets are about; memory is to stay the same everywhere

Column = tuple[str, str, int]
"""A heading, the figure under it, and its digits."""
SPEED: tuple[Column, ...] = (
    *(("best s", "best_s", 2), ("rows/s", "rows_per_s", 0), ("median", "median_rows_per_s", 0)),
    *(("× loop", "to_loop", 1), ("× dlt", "to_dlt", 1), ("× dlt-pydantic", "to_dlt_pydantic", 1)),
    *(("time / floor", "floor_time", 2), ("peak MB", "peak_mb", 0)),
)
AGAIN: tuple[Column, ...] = (
    *(("best s", "best_s", 2), ("rows/s", "rows_per_s", 0)),
    *(("× loop", "to_loop", 1), ("× dlt", "to_dlt", 1), ("× dlt-pydantic", "to_dlt_pydantic", 1)),
    ("time / floor", "floor_time", 2),
)
SIZE: tuple[Column, ...] = (
    *(("rows", "rows", 0), ("s", "best_s", 1), ("rows/s", "rows_per_s", 0)),
    *(("time / floor", "floor_time", 2), ("peak MB", "peak_mb", 0)),
)
FOOTNOTES = (
    "× loop, × dlt, × dlt-pydantic: speed as a multiple of the other's, of dlt its fastest way. Time / floor: how "
    "many times as long as the floor it takes. Ratios are of the best rounds. Rows are those of the file, including "
    "the rejected. Larger files are loaded once.",
    "Timed from opening the connection to closing it. Not timed: imports, a first load of 200 rows elsewhere, making "
    "the table and redrive's own tables (dlt makes its tables while it runs). Peak memory is that of the loading "
    "process, DuckDB's own included, the PostgreSQL server's not.",
    "All databases are durable and otherwise as they come: PostgreSQL with fsync and synchronous_commit on, SQLite "
    "with synchronous=FULL and, but for dlt, a write-ahead log. They and the file stand in the temporary directory: "
    "TMPDIR chooses the disk.",
)


def report(document: dict[str, Any]) -> str:
    rows = document["rows"]
    missing = {f"{row['database']}, {row['peer']}": row["unavailable"] for row in rows if row["unavailable"]}
    return "\n\n".join(
        [
            measure.heading(document["environment"]),
            ", ".join(f"{name} {number}" for name, number in document["databases"].items()),
            *(one for name in document["databases"] for one in tables(name, rows)),
            *([measure.glossary("Not available:", missing)] if missing else []),
            measure.glossary("Rows:", document["peers"]),
            *map(measure.paragraph, FOOTNOTES),
            *(measure.paragraph(verdict(one)) for one in document["headline"]),
        ]
    )


def tables(database: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The tables of one database."""
    here = [row for row in rows if row["database"] == database]
    first = [row for row in here if row["multiple"] == 1]
    again = [row | row["again"] for row in first if row["again"]["best_s"]]
    growing = {row["peer"] for row in here if row["multiple"] > 1}
    yield table(f"{database}, {first[0]['rows']:,} rows into an empty table", SPEED, first)
    if again:
        yield table(f"{database}, the same rows again: each is an update", AGAIN, again)
    if growing:
        yield table(f"{database}, larger files", SIZE, [row for row in here if row["peer"] in growing])


def table(title: str, columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    cells = [(row["peer"], *(measure.number(row[figure], digits) for _, figure, digits in columns)) for row in rows]
    return measure.table(title, ("", *(heading for heading, *_ in columns)), cells)


def verdict(end: dict[str, Any]) -> str:
    targets = TARGETS[end["peer"]] if end["database"] == AIMED_AT else {}
    others = {
        "to_loop": "× the loop",
        "floor_time": "× the floor's time",
        "to_dlt": "× dlt",
        "to_dlt_pydantic": "× dlt-pydantic",
    }

    def told(figures: dict[str, Any]) -> str:
        ratios = [
            f"{figures[name]:.2f} {words}" + (f" (target {targets[name]})" if name in targets else "")
            for name, words in others.items()
            if figures[name]
        ]
        return ", ".join([f"{figures['rows_per_s']:,} rows/s", *ratios])

    *_, (rows, peak) = end["peak_mb"].items()
    memory = f"{peak:,} MB at {rows:,} rows"
    if end["growth"] is not None:
        memory += f", {end['growth']:+.0%} on the size before (target ±{TARGETS[end['peer']]['growth']:.0%})"
    return f"{end['database']}, {end['peer']}: {told(end)}; again: {told(end['again'])}; {memory}"


# ── for the record ────────────────────────────────────────────────────────────────────────────────────────────────────


def headline(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the targets are about: speed with the vendor's own file, memory with the two largest ones."""
    figures = ("database", "peer", "rows_per_s", "to_loop", "floor_time", "to_dlt", "to_dlt_pydantic", "again")
    ends = []
    for row in rows:
        if row["multiple"] == 1 and row["peer"] in TARGETS:
            same = [one for one in rows if (one["database"], one["peer"]) == (row["database"], row["peer"])]
            peaks = {one["rows"]: one["peak_mb"] for one in same}
            *_, smaller, larger = (None, *peaks.values())
            growth = round(larger / smaller - 1, 3) if smaller else None
            ends.append(
                {**{name: row[name] for name in figures}, "again": row["again"], "peak_mb": peaks, "growth": growth}
            )
    return ends


def recorded(about: str, rows: Sequence[dict[str, Any]], peers: dict[str, str]) -> dict[str, Any]:
    tables = []
    for database in dict.fromkeys(row["database"] for row in rows):
        here = [row for row in rows if row["database"] == database]
        first = [row for row in here if row["multiple"] == 1]
        growing = {row["peer"] for row in here if row["multiple"] > 1}
        size = f"{first[0]['rows']:,} rows"
        tables.append(Table(f"{database}, {size} into an empty table", list(load_figures(first))))
        again = [row | row["again"] for row in first if row["again"]["best_s"]]
        tables.append(Table(f"{database}, the same rows again: each is an update", list(rate_figures(again))))
        larger = [row for row in here if row["peer"] in growing]
        tables.append(Table(f"{database}, larger files", list(size_figures(larger))))
    targets = [target for end in headline(rows) for target in targets_of(end)]
    made = [table for table in tables if table.figures]
    return record(about, made, targets=targets, rows=peers, notes=FOOTNOTES)


def ratios(row: dict[str, Any]) -> dict[str, float | None]:
    others = {"× dlt": row["to_dlt"], "× dlt-pydantic": row["to_dlt_pydantic"]}
    return {"× loop": row["to_loop"], **others, "time / floor": row["floor_time"]}


def load_figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        note = row["unavailable"] or ""
        yield Figure(row["peer"], "rate", "rows/s", row["rows_per_s"], row["spread"], ratios(row), note)
        yield Figure(row["peer"], "peak memory", "MB", row["peak_mb"])


def rate_figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        yield Figure(row["peer"], "rate", "rows/s", row["rows_per_s"], ratios=ratios(row))


def size_figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    for row in sorted(rows, key=lambda row: row["peer"]):
        name = f"{row['peer']}, {row['rows']:,} rows"
        yield Figure(name, "rate", "rows/s", row["rows_per_s"], ratios={"time / floor": row["floor_time"]})
        yield Figure(name, "peak memory", "MB", row["peak_mb"])


def targets_of(end: dict[str, Any]) -> Iterator[Target]:
    place, aims = f"{end['database']}: {end['peer']}", TARGETS[end["peer"]]
    if end["database"] == AIMED_AT:
        yield Target(place, end["to_loop"], "at least", aims["to_loop"], "× the row loop's speed")
        if "floor_time" in aims:
            yield Target(place, end["floor_time"], "at most", aims["floor_time"], "× the floor's time")
    growth = None if end["growth"] is None else 1 + end["growth"]
    yield Target(f"{place}: peak memory", growth, "at most", 1 + aims["growth"], "× that of a tenth of the rows")
