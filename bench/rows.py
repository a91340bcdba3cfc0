"""What the row runtime costs: redrive, the loop that most teams have, dlt and the bare bulk load.

The vendor's weekly file: 180,000 deliveries of which 5,400 have `N/A` for the fee, into a table with a primary key, a
CHECK and a numeric fee, in PostgreSQL, SQLite and DuckDB. Every contender loads the same file, each time in a process
of its own and into a database of its own, round after round in turn; first into an empty table, then again into the
table that has every row already. The rows in the table are counted and summed each time: a load that is not exact stops
the benchmark. A file ten times as large, with --large one a hundred times as large, shows how speed and memory scale.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import postgres
import row_report
import vendor
from plain import Postgres
from record import spread

DATABASES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "duckdb": "DuckDB"}
PACKAGES = ("redrive", "polars", "pyarrow", "dataframely", "pydantic", "sqlalchemy", "psycopg", "dlt")
WARM_UP = 200


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rows: int
    repeat: int
    multiples: tuple[int, ...]
    apart: bool = True
    """Whether each load has a process of its own and a disk at rest; a quick look does without."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to load the file."""

    name: str
    contains: str
    module: str
    how: Mapping[str, Any] = field(default_factory=dict, hash=False)
    databases: tuple[str, ...] = tuple(DATABASES.values())
    any_size: bool = False
    """Whether it loads the larger files as well."""
    again: bool = True
    """Whether it can load rows that are there already."""

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]


PEERS = (
    Peer(
        "redrive-dataframely",
        "every row checked by a dataframely schema, every rejected one a letter, a checkpoint with every batch; "
        "letters and checkpoint stand in the same database, beside DuckDB in an SQLite file. Into PostgreSQL it copies "
        "straight into the table while every row is new, and by way of a temporary table, like the floor, after that",
        "row_redrive",
        {"check": "dataframely"},
        any_size=True,
    ),
    Peer(
        "redrive-pydantic",
        "the same with the pydantic model of the loop",
        "row_redrive",
        {"check": "pydantic"},
        any_size=True,
    ),
    Peer(
        "loop",
        "csv.DictReader, a pydantic model for each row, INSERT and COMMIT for each reject, executemany of 5,000 with "
        "ON CONFLICT DO UPDATE and a COMMIT; into DuckDB as Arrow tables, where executemany would take minutes",
        "row_loop",
    ),
    Peer(
        "dlt-pydantic",
        "dlt, merge on the key, rows validated by the same model; what fails is discarded, not kept. Its fastest file "
        "format, uncompressed",
        "row_dlt",
        {"validated": True, "compressed": False},
    ),
    Peer(
        "dlt-arrow",
        "dlt, merge on the key, typed Arrow tables; rows without a fee dropped by a filter, nothing else checked or "
        "kept; a table of its own making, without CHECK and, but for SQLite, without primary key",
        "row_dlt",
        {"validated": False, "compressed": True},
    ),
    Peer(
        "dlt-arrow-plain",
        "the same without compression of the files between its steps, which matters on PostgreSQL only",
        "row_dlt",
        {"validated": False, "compressed": False},
        databases=("PostgreSQL",),
    ),
    Peer(
        "floor",
        "polars, rows without a fee dropped by a filter, COPY into a temporary table, one INSERT … ON CONFLICT; "
        "SQLite: one executemany; DuckDB: one INSERT from its own CSV reader. One transaction, nothing else checked or "
        "kept; the whole file in memory",
        "row_floor",
        {"straight": False},
        any_size=True,
    ),
    Peer(
        "floor-straight",
        "COPY straight into the table: less than the floor, and no upsert; it fails at the first row that is there",
        "row_floor",
        {"straight": True},
        databases=("PostgreSQL",),
        again=False,
    ),
)


# ── one load ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Load:
    """What one load took, or why there was none."""

    seconds: float = math.inf
    peak_mb: float = 0
    again: float = math.inf
    """Seconds of the same file once more, every row of it an update."""
    unavailable: str | None = None


def loaded(
    peer: Peer, database: str, server: Postgres | None, files: tuple[vendor.File, vendor.File], effort: Effort
) -> Load:
    """Load the file by a process of its own, and look at what it left; a tiny one goes before."""
    tiny, file = files
    with a_child(effort) as child, fresh(peer, database, server) as url:
        if effort.apart:  # a few rows elsewhere first, which imports all that is imported late
            with fresh(peer, database, server) as elsewhere:
                child.submit(in_the_child, peer, database, elsewhere, tiny.path).result()
        settle(database, url, effort)
        load = child.submit(in_the_child, peer, database, url, file.path).result()
        if load.unavailable:
            return load
        verify(peer, database, url, file, times=1)
        if peer.again and file.rows == effort.rows:
            settle(database, url, effort)
            load = replace(load, again=child.submit(in_the_child, peer, database, url, file.path).result().seconds)
            verify(peer, database, url, file, times=2)
    return load


@contextmanager
def a_child(effort: Effort) -> Iterator[ProcessPoolExecutor]:
    """A process to load in, which has loaded nothing yet where that matters."""
    if not effort.apart:
        yield shared_child()
        return
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
        yield child


@functools.cache
def shared_child() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def in_the_child(peer: Peer, database: str, url: str, path: Path) -> Load:
    try:
        seconds = importlib.import_module(peer.module).load(database, url, path, **peer.how)
    except Exception as error:
        if peer.family != "dlt":
            raise
        return Load(unavailable=f"{type(error).__name__}: {error}")
    return Load(seconds, measure.peak_memory())


@contextmanager
def fresh(peer: Peer, database: str, server: Postgres | None) -> Iterator[str]:
    """The URL of a database of its own, with the tables made; removed afterwards."""
    with ExitStack() as stack:
        if server and database == "PostgreSQL":
            url = stack.enter_context(server.fresh())
        else:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-"))
            url = f"{database.lower()}:///{scratch}/vendor.db"
        if peer.family != "dlt":  # which makes its own
            with closing(vendor.connected(database, url)) as connection:
                connection.execute(vendor.CREATE[database])
                connection.execute(vendor.CREATE_REJECTS)
                connection.commit()
        yield url


def settle(database: str, url: str, effort: Effort) -> None:
    """Have written out what earlier loads left in memory: this one shall not wait for it."""
    if not effort.apart:
        return
    if database == "PostgreSQL":
        with closing(vendor.connected(database, url)) as connection:
            connection.execute("CHECKPOINT")
    os.sync()


def verify(peer: Peer, database: str, url: str, file: vendor.File, *, times: int) -> None:
    """Every good row must be there once, with its fee, and every bad one where this peer keeps them."""
    with closing(vendor.connected(database, url)) as connection:
        rows, fees = connection.execute(f"SELECT count(*), sum(fee) FROM {vendor.TABLE}").fetchone()
        found = {"rows": rows, "cents": round((fees or 0) * 100)}
        if peer.family == "loop":
            [found["rejects"]] = connection.execute(f"SELECT count(*) FROM {vendor.REJECTS}").fetchone()
    if peer.family == "redrive":
        from row_redrive import letters

        found["rejects"] = letters(database, url)
    # The loop keeps a reject each time; to redrive it is the same letter, seen again.
    rejects = file.bad * times if peer.family == "loop" else file.bad
    wanted = {"rows": file.good, "cents": file.cents, "rejects": rejects}
    if found != {name: wanted[name] for name in found}:
        raise AssertionError(f"{database}, {peer.name}: left {found} instead of {wanted}")


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────

Loads = dict[tuple[str, Peer], list[Load]]


def measured(
    peers: Sequence[Peer], databases: Sequence[str], server: Postgres | None, effort: Effort
) -> Iterator[dict[str, Any]]:
    """Size after size, everybody in turn; a row for each."""
    with tempfile.TemporaryDirectory(prefix="redrive-vendor-") as directory:
        tiny = vendor.generated(Path(directory) / "tiny.csv", WARM_UP)
        for multiple in effort.multiples:
            file = vendor.generated(Path(directory) / "vendor.csv", effort.rows * multiple)
            taking_part = [peer for peer in peers if multiple == 1 or peer.any_size]
            turns = [(name, peer) for name in databases for peer in taking_part if name in peer.databases]
            loads: Loads = {turn: [] for turn in turns}
            for _ in range(effort.repeat if multiple == 1 else 1):
                for database, peer in turns:
                    load = loaded(peer, database, server, (tiny, file), effort)
                    loads[database, peer].append(load)
                    measure.tell(
                        f"{database}, {file.rows:,} rows, {peer.name}: {load.seconds:.2f} s, {load.peak_mb:.0f} MB"
                    )
            for turn in turns:
                yield {"multiple": multiple, **compared(*turn, loads, file.rows)}


def compared(database: str, peer: Peer, loads: Loads, rows: int) -> dict[str, Any]:
    """What one peer took, and how it stands to the others on the same database."""
    done = loads[database, peer]
    first = {who.name: min(one.seconds for one in all_) for (where, who), all_ in loads.items() if where == database}
    again = {who.name: min(one.again for one in all_) for (where, who), all_ in loads.items() if where == database}
    typical = statistics.median(load.seconds for load in done)
    return {
        **{"database": database, "peer": peer.name, "rows": rows, "unavailable": done[0].unavailable},
        **beside(peer.name, first, rows),
        **{"median_s": rounded(typical, 3), "median_rows_per_s": rounded(rows / typical)},
        "spread": spread([rows / load.seconds for load in done if load.unavailable is None], 0),
        "peak_mb": rounded(max(load.peak_mb for load in done)),
        "again": beside(peer.name, again, rows),
    }


def beside(name: str, best: Mapping[str, float], rows: int) -> dict[str, Any]:
    """The best seconds of one peer, and what they are to those of the others."""
    seconds = best[name]
    dlt = min((other for peer, other in best.items() if peer.startswith("dlt")), default=math.inf)
    loop, floor, validating = (best.get(peer, math.inf) for peer in ("loop", "floor", "dlt-pydantic"))
    return {
        **{"best_s": rounded(seconds, 3), "rows_per_s": rounded(rows / seconds)},
        **{"to_loop": rounded(loop / seconds, 2), "floor_time": rounded(seconds / floor, 2)},
        **{"to_dlt": rounded(dlt / seconds, 2), "to_dlt_pydantic": rounded(validating / seconds, 2)},
    }


def rounded(value: float, digits: int | None = None) -> float | None:
    """A figure; none where a part of it was not measured."""
    return round(value, digits) if value and math.isfinite(value) else None


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def options() -> argparse.Namespace:
    parser = measure.options(__doc__, repeat=3)
    names = list(dict.fromkeys(name for peer in PEERS for name in (peer.family, peer.name)))
    parser.add_argument("--only", choices=DATABASES, help="one of the three databases")
    parser.add_argument("--rows", type=measure.positive, default=vendor.ROWS, help="rows of the file (%(default)s)")
    parser.add_argument("--large", action="store_true", help="a file a hundred times as large as well")
    parser.add_argument("--peers", nargs="+", choices=names, metavar="PEER", help=f"some of {', '.join(names)}")
    return measure.asked(parser)


def main() -> None:
    asked = options()
    effort = Effort(asked.rows, asked.repeat, (1, 10, 100) if asked.large else (1, 10))
    if asked.quick:
        effort = replace(effort, rows=1_000, repeat=1, apart=False)
    peers = [peer for peer in PEERS if not asked.peers or {peer.name, peer.family} & set(asked.peers)]
    databases = [DATABASES[asked.only]] if asked.only else list(DATABASES.values())
    versions = {"SQLite": sqlite3.sqlite_version, "DuckDB": version("duckdb")}
    with ExitStack() as stack:
        server = None
        if "PostgreSQL" in databases:
            server = Postgres(stack.enter_context(postgres.running()))
            versions["PostgreSQL"] = server.version
        rows = list(measured(peers, databases, server, effort))
    contains = {peer.name: peer.contains for peer in peers}
    document = {
        "benchmark": "rows",
        "environment": measure.environment(*PACKAGES),
        "databases": {name: versions[name] for name in databases},
        "effort": asdict(effort),
        "quick": asked.quick,
        "peers": contains,
        "rows": rows,
        "targets": row_report.TARGETS,
        "headline": row_report.headline(rows),
        "record": row_report.recorded(__doc__, rows, contains),
    }
    measure.publish(asked, document, row_report.report)


if __name__ == "__main__":
    main()
