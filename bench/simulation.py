"""The effect of waits on services: contention for one row, and a herd that returns, by `redrive simulate`.

Contention: clients that each must commit one version-checked write, and retry when another was faster; hops of
|normal(10, 2)| ms, waits from 5 ms to 2 s. Herd: 5,000 clients, a service that is down for two minutes, and what
reaches it once it is back, under redrive's default policy and under others. Both are discrete events in virtual time,
seeded: the same figures on every machine. How long the simulation itself takes is shown as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import measure
from record import Figure, Table, Target, record

NORMAL, FIXED = 3.0, 0.1  # what the herd's peak is held against: the normal rate, and the peak of a fixed retry
HALF = 0.5
JITTERED, UNJITTERED, DEFAULT = ("full", "decorrelated"), "exponential", "full"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated."""

    contending: tuple[int, ...] = (10, 50, 100)
    repetitions: int = 100
    herd: int = 5_000
    outage: int = 120
    fast: int = 100_000
    """Clients of the herd that only shows how fast it is simulated."""


def simulated(*arguments: str) -> tuple[list[dict[str, Any]], float]:
    """The rows of a command, and the seconds it took."""
    command = [sys.executable, "-m", "redrive.cli", "simulate", *arguments, "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    measure.tell(f"redrive simulate {' '.join(arguments)}: {seconds:.1f} s")
    return [
        {name: value for name, value in row.items() if name != "series"} for row in json.loads(done.stdout)
    ], seconds


def measured(effort: Effort) -> dict[str, Any]:
    clients = ",".join(map(str, effort.contending))
    contention, contending = simulated("contention", "--clients", clients, "--repetitions", str(effort.repetitions))
    contention = [beside_unjittered(row, contention) for row in contention]
    herd, returning = simulated("herd", "--clients", str(effort.herd), "--outage", str(effort.outage))
    _, large = simulated("herd", "--clients", str(effort.fast), "--outage", str(effort.outage))
    seconds = {
        f"contention, {clients} clients, {effort.repetitions:,} repetitions": round(contending, 2),
        f"herd, {effort.herd:,} clients": round(returning, 2),
        f"herd, {effort.fast:,} clients": round(large, 2),
    }
    return {"contention": contention, "herd": herd, "seconds": seconds}


def beside_unjittered(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """With its time and its writes as multiples of those of the backoff without jitter."""
    [plain] = [one for one in rows if (one["clients"], one["strategy"]) == (row["clients"], UNJITTERED)]
    ratios = {f"{name}_of_unjittered": round(row[name] / plain[name], 3) for name in ("time_ms", "writes")}
    return {**row, **ratios}


# ── in words, and for the record ──────────────────────────────────────────────────────────────────────────────────────


def recorded(found: dict[str, Any], effort: Effort) -> dict[str, Any]:
    contention, herd = found["contention"], found["herd"]
    contended = [
        Table(
            f"{clients:,} clients that contend for one row, means of {effort.repetitions:,} repetitions",
            [figure for row in contention if row["clients"] == clients for figure in contention_figures(row)],
        )
        for clients in effort.contending
    ]
    title = f"{effort.herd:,} clients, a service that is away for {effort.outage:,} s"
    returned = Table(title, [figure for row in herd for figure in herd_figures(row)])
    taken = Table("How long the simulation takes", [Figure(*pair) for pair in seconds_of(found)])
    targets = [*contention_targets(contention, max(effort.contending)), *herd_targets(herd)]
    notes = [
        "÷ exponential: as a multiple of the backoff without jitter. Peak: the most requests in a second once the "
        "service is back. Recovered: when, since then, no client was left whose last request had failed. Lost: answers "
        "that were not given, of those that would have been without the outage. Probes: the most in a second that "
        "half-open circuits let through, while the service was down or after.",
    ]
    return record(__doc__, [*contended, returned, taken], targets=targets, notes=notes)


def seconds_of(found: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    for what, seconds in found["seconds"].items():
        yield what, "time", "s", seconds


def contention_figures(row: dict[str, Any]) -> Iterator[Figure]:
    time, writes = row["time_ms_of_unjittered"], row["writes_of_unjittered"]
    yield Figure(row["strategy"], "time", "ms", row["time_ms"], ratios={"time ÷ exponential": time})
    yield Figure(row["strategy"], "writes", "in all", row["writes"], ratios={"writes ÷ exponential": writes})


def herd_figures(row: dict[str, Any]) -> Iterator[Figure]:
    who = row["strategy"]
    yield Figure(who, "normal", "requests/s", row["normal_per_s"])
    yield Figure(who, "peak", "requests/s", row["peak_per_s"], ratios={"peak ÷ normal": row["peak_ratio"]})
    yield Figure(who, "recovered", "s", row["recovered_after_s"])
    yield Figure(who, "lost", "calls", row["lost"])
    yield Figure(who, "probes", "per s", row["probes_per_s"])


def contention_targets(rows: Sequence[dict[str, Any]], most: int) -> Iterator[Target]:
    for row in rows:
        if row["clients"] == most and row["strategy"] in JITTERED:
            who = f"{most:,} clients that contend, {row['strategy']} jitter"
            if row["strategy"] == DEFAULT:
                plain = "of those without jitter"
                yield Target(f"{who}: writes", row["writes_of_unjittered"], "at most", HALF, plain)
            yield Target(f"{who}: time", row["time_ms_of_unjittered"], "at most", HALF, "of that without jitter")


def herd_targets(rows: Sequence[dict[str, Any]]) -> Iterator[Target]:
    ours, *_, fixed = rows
    who = "a herd by the default policy, after an outage: peak"
    yield Target(who, ours["peak_ratio"], "at most", NORMAL, "× the normal rate")
    share = round(ours["peak_per_s"] / fixed["peak_per_s"], 4)
    yield Target(who, share, "at most", FIXED, f"of that of {fixed['strategy']}")


def report(document: dict[str, Any]) -> str:
    """Its tables as the record has them."""
    return "\n\n".join([measure.heading(document["environment"]), *map(in_text, document["record"]["tables"])])


def in_text(table: dict[str, Any]) -> str:
    rows: dict[str, list[str]] = {}
    columns: dict[str, None] = {}
    for figure in table["figures"]:
        cells = {f"{figure['name']}, {figure['unit']}": figure["value"], **figure.get("ratios", {})}
        columns |= dict.fromkeys(cells)
        rows.setdefault(figure["row"], []).extend(measure.number(value, 2) for value in cells.values())
    return measure.table(table["title"], ("", *columns), [(name, *cells) for name, cells in rows.items()])


def main() -> None:
    asked = measure.asked(measure.options(__doc__))
    effort = Effort((5,), 2, herd=50, outage=10, fast=100) if asked.quick else Effort()
    found = measured(effort)
    document = {
        "benchmark": "simulation",
        "quick": asked.quick,
        "environment": measure.environment("redrive"),
        "effort": asdict(effort),
        **found,
        "record": recorded(found, effort),
    }
    measure.publish(asked, document, report)


if __name__ == "__main__":
    main()
