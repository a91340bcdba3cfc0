"""What a store has room for: the time of a look of the watch and of a scrape, and the size of letters and runs.

A pipeline has a deadline, 30 daily runs that were complete, and ten open letters. The watch that is measured has looked
once before, as one that keeps running. Sizes are those of the store with its indexes, without what an empty one takes.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import measure
import postgres
from rejects import given, new_letters
from sqlalchemy import Table, insert, make_url

import redrive
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.watch import Watch
from redrive.observe.prometheus import render
from redrive.store.schema import pipelines, runs

DAYS = 30
OPEN_LETTERS = 10
BATCH = 5_000


@contextmanager
def stores(database: str, scratch: Path) -> Iterator[Callable[[], redrive.Store]]:
    """Lend a function that makes an empty store."""
    if database == "sqlite":
        yield lambda: redrive.connect(scratch / f"{uuid.uuid4().hex}.db")
        return
    import psycopg

    with postgres.running() as url:

        def make() -> redrive.Store:
            name = f"store_{uuid.uuid4().hex}"
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(f"CREATE DATABASE {name}")
            own = make_url(url).set(database=name)
            return redrive.connect(own.render_as_string(hide_password=False), migrate=True)

        yield make


def put(store: redrive.Store, table: Table, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        store.database.write(lambda connection, some=some: connection.execute(insert(table), some))


def put_history(store: redrive.Store, count: int, days: int = DAYS) -> None:
    """Give this many pipelines a deadline in two hours, and a run on each of the last days."""
    now = datetime.now(UTC)
    known = {"kind": "pipeline", "sla": f"{now + timedelta(hours=2):%H:%M} UTC"}
    known |= {"first_seen": now - timedelta(days=days), "last_started": now - timedelta(hours=1)}
    names = [f"pipeline_{number:04d}" for number in range(count)]
    put(store, pipelines, [{"name": name, **known} for name in names])
    put(store, runs, [run(name, now - timedelta(days=ago, hours=1)) for name in names for ago in range(days)])


def run(name: str, started: datetime) -> dict[str, Any]:
    ended = started + timedelta(minutes=30)
    return {
        **{"run_id": uuid.uuid4(), "pipeline_name": name, "status": "complete"},
        **{"source": "deliveries.csv", "sink": "silver.deliveries in warehouse"},
        **{"started_at": started, "updated_at": ended, "ended_at": ended, "judged_at": ended, "seconds": 1_800.0},
        **{"rows_read": 40_000, "rows_written": 39_990, "rows_rejected": 10, "batches": 4},
    }


def put_letters(store: redrive.Store, name: str | None, start: int, stop: int) -> None:
    """Put letters into one pipeline, or into the three of the letters themselves."""
    for first in range(start, stop, BATCH):
        ready = [given(number) for number in range(first, min(first + BATCH, stop))]
        store.dlq.put_many(new_letters([(*one[:3], name or one[3]) for one in ready]))


def milliseconds(work: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(1_000 * (time.perf_counter() - began))
    return statistics.median(times)


def time_looks(store: redrive.Store, count: int, repeat: int) -> dict[str, float]:
    put_history(store, count)
    for number in range(count):
        start = OPEN_LETTERS * number
        put_letters(store, f"pipeline_{number:04d}", start, start + OPEN_LETTERS)
    watch = Watch(store.database, store.alerts, LevelCollector(store.database, store.alerts.settings))
    first = milliseconds(watch.check, 1)
    if watch.failed:
        raise RuntimeError(f"the watch cannot {', '.join(map(str, watch.failed))}")
    look = milliseconds(watch.check, repeat)
    watch.leave()
    return {"first look": first, "look": look, "scrape": milliseconds(lambda: render(store), repeat)}


def size(store: redrive.Store) -> int:
    if not store.database.dialect.is_remote:
        store.close()
        with sqlite3.connect(store.database.name) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file.close()
    return store.database.read(store.database.dialect.size)


def grown(store: redrive.Store, work: Callable[[redrive.Store], None]) -> float:
    """Return by how many megabytes the store grows."""
    before = size(store)
    work(store)
    return (size(store) - before) / 1e6


def measured(options: Namespace) -> dict[str, Any]:
    counts, letters, history = ((3,), 100, 100) if options.quick else ((10, 100, 1_000), 100_000, 10_000)
    found: dict[str, Any] = {"times": {}, "sizes": {}, "letters": letters, "runs": history}
    with tempfile.TemporaryDirectory(prefix="redrive-capacity-") as scratch:
        for database in options.only or ("sqlite", "postgresql"):
            with stores(database, Path(scratch)) as make:
                for count in counts:
                    with make() as store:
                        found["times"].setdefault(count, {})[database] = time_looks(store, count, options.repeat)
                    measure.tell(f"{database}, {count} pipelines: {found['times'][count][database]}")
                with make() as store:
                    of_letters = grown(store, lambda store: put_letters(store, None, 0, letters))
                with make() as store:
                    of_runs = grown(store, lambda store: put_history(store, 10, history // 10))
            found["sizes"][database] = {"letters": of_letters, "runs": of_runs}
    return found


def report(found: dict[str, Any]) -> str:
    """Return the tables of `docs/operations.md`."""
    databases = list(found["sizes"])
    parts = ("first look", "look", "scrape")
    lines = [
        "| pipelines | " + " | ".join(f"{part}, {database}" for database in databases for part in parts) + " |",
        "|---" * (1 + len(databases) * len(parts)) + "|",
    ]
    for count, by_database in found["times"].items():
        cells = [f"{by_database[database][part]:,.0f} ms" for database in databases for part in parts]
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    lines += ["", f"| | {' | '.join(databases)} |", "|---" * (1 + len(databases)) + "|"]
    for name in ("letters", "runs"):
        cells = [f"{found['sizes'][database][name]:,.1f} MB" for database in databases]
        lines.append(f"| {found[name]:,} {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = measure.options(__doc__, repeat=5)
    parser.add_argument("--only", nargs="+", choices=("sqlite", "postgresql"), help="these databases")
    options = measure.asked(parser)
    measure.publish(options, measured(options), report)


if __name__ == "__main__":
    main()
