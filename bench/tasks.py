"""What a durable task costs: redrive, DBOS, Luigi, a fork per task, and pebble, which stores nothing.

Tasks that do nothing, each with a timeout of 60 s where the peer has one, its outcome kept in SQLite and in PostgreSQL:
flat (independent of each other), in a chain (each after the one before) and in a diamond (one, then all but two, then
one that waits for all of them); 1,000 of them and 100,000. Every contender runs in a process of its own with a database
of its own, with two workers if it has workers. Each task writes the time of its first line into a shared file: rates,
latencies, and whether every task has run are read from there, for all contenders. The peer's own state must show all of
them as done: a run that is not exact stops the benchmark.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import multiprocessing
import os
import signal
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import measure
import postgres
import task_marks
import task_report
from plain import Database, Postgres, Sqlite
from record import spread
from task_marks import Marks, Work

SHAPES = ("flat", "chain", "diamond")
PACKAGES = ("redrive", "dbos", "luigi", "pebble", "sqlalchemy", "psycopg")
FAMILIES = ("dbos", "luigi", "fork", "pebble")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    sizes: tuple[int, ...]
    repeat: int
    """Of the smallest size; the others run once."""
    limit: float
    """Seconds after which a peer is stopped, and counts by what it has done."""
    apart: bool = True
    """Whether each run has a fresh interpreter and a disk at rest; a quick look does without."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run the tasks."""

    name: str
    timeout: str
    contains: str
    module: str
    how: Mapping[str, Any] = field(default_factory=dict, hash=False)
    shapes: tuple[str, ...] = SHAPES
    durable: bool = True
    to_the_end: bool = False
    """Whether it runs as long as it takes: its growth is what is asked for."""

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]


PEERS = (
    Peer(
        "redrive-process",
        "kills",
        "two warm worker processes; a task past its timeout gets SIGTERM, then SIGKILL with its whole group",
        "task_redrive",
        {"in_thread": False},
        to_the_end=True,
    ),
    Peer(
        "redrive-thread",
        "none",
        "in_thread=True, for what is short and can be trusted: as durable, but nothing can end a thread",
        "task_redrive",
        {"in_thread": True},
        to_the_end=True,
    ),
    Peer(
        "dbos-steps",
        "none",
        "steps of one workflow, called one after another in its thread: on SQLite the fastest of its ways. A plain "
        "function can have no timeout. SQLite with a write-ahead log, which is not its default and favours it",
        "task_dbos",
        {"way": "steps"},
    ),
    Peer(
        "dbos-async",
        "cancels",
        "steps that are coroutines, gathered two by two, the fastest of what was tried; past its timeout one is "
        "cancelled, unless it never awaits",
        "task_dbos",
        {"way": "async"},
    ),
    Peer(
        "dbos-queue",
        "cancels",
        "a workflow per task, by way of a queue that is looked at every 10 ms; a timeout is noticed between its steps. "
        "Not in a chain, where the looks would be all that is measured",
        "task_dbos",
        {"way": "queue"},
        shapes=("flat", "diamond"),
    ),
    Peer(
        "luigi",
        "none",
        "local scheduler, one worker in the process itself; the target of a task is a row",
        "task_luigi",
        {"forks": False},
    ),
    Peer(
        "luigi-timeout",
        "kills",
        "the same with a timeout and two workers: it forks a process for each task",
        "task_luigi",
        {"forks": True},
    ),
    Peer(
        "fork",
        "kills",
        "by hand: a process forked for each task, two at a time, its row updated before and after",
        "task_fork",
    ),
    Peer(
        "pebble",
        "kills",
        "NOT DURABLE, the floor: a pool of two processes that keeps nothing at all",
        "task_pebble",
        durable=False,
        to_the_end=True,
    ),
)


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took, or why there was none."""

    seconds: float = math.inf
    done: int = 0
    cut: bool = False
    """Stopped at the limit."""
    first: float = math.inf
    """Seconds until the first line of the first task."""
    gaps: tuple[float, ...] = ()
    """Seconds from the first line of each task to that of the next; in a chain, from ready to started."""
    peak_mb: float | None = None
    unavailable: str | None = None
    others: tuple[float, ...] = ()
    """Seconds per task of all its repeats, this one among them."""

    @property
    def each(self) -> float:
        """Seconds per task, all included."""
        return self.seconds / self.done if self.done else math.inf

    @property
    def each_going(self) -> float:
        """Seconds per task, from the first one's first line on."""
        return (self.seconds - self.first) / self.done if self.done else math.inf


def ran(peer: Peer, shape: str, tasks: int, database: Database, effort: Effort) -> Run:
    """Run the tasks by a process of its own, and look at what it left."""
    with tempfile.TemporaryDirectory(prefix="redrive-marks-") as scratch, database.fresh() as url:
        path = Path(scratch) / "marks"
        marks = Marks.made(path, tasks)
        if effort.apart:
            settle(database, url)
        mine, its = multiprocessing.Pipe()
        work = Work(shape, tasks, database.name, url)
        fresh = multiprocessing.get_context("spawn" if effort.apart else "fork")
        child = fresh.Process(target=in_the_child, args=(peer, work, path, its))
        child.start()
        its.close()
        answer = None
        try:
            if mine.poll(None if peer.to_the_end else effort.limit):
                answer = mine.recv()
        except EOFError:
            child.join()
            answer = f"it died: exit code {child.exitcode}"
        finally:
            if answer is None:
                marks.end()
                os.killpg(child.pid, signal.SIGKILL)
            child.join()
    if isinstance(answer, str):
        if peer.family == "redrive":
            raise RuntimeError(f"{database.name}, {shape}, {tasks:,} tasks, {peer.name}: {answer}")
        return Run(unavailable=answer)
    run = seen(marks, cut=answer is None)
    if answer is None:
        return run
    kept, peak = answer
    if run.done != tasks or kept not in (None, tasks):
        raise AssertionError(f"{database.name}, {shape}, {peer.name}: of {tasks:,} tasks {run.done:,} ran, {kept} kept")
    return replace(run, peak_mb=peak)


def in_the_child(peer: Peer, work: Work, path: Path, answer: Connection) -> None:
    """Say how many tasks the peer's own state has as done and the memory it took, or what went wrong."""
    os.setsid()  # so that it is stopped together with its children
    multiprocessing.set_start_method("fork", force=True)  # as in a program that was not spawned itself
    os.environ[task_marks.PLACE] = str(path)
    try:
        kept = importlib.import_module(peer.module).run(work, task_marks.here(), **peer.how)
        answer.send((kept, measure.peak_memory()))
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")
        if peer.family == "redrive":
            raise


def settle(database: Database, url: str) -> None:
    """Have written out what earlier runs left in memory: this one shall not wait for it."""
    if isinstance(database, Postgres):
        with closing(database.connect(url, autocommit=True)) as connection:
            connection.execute("CHECKPOINT")
    os.sync()


def seen(marks: Marks, *, cut: bool) -> Run:
    """What the file of moments tells."""
    starts = marks.starts
    gaps = tuple((after - before) / 1e9 for before, after in itertools.pairwise(starts))
    first = (starts[0] - marks.began) / 1e9 if starts else math.inf
    seconds = (marks.ended - marks.began) / 1e9 if marks.began else math.inf
    return Run(seconds, len(starts), cut, first, gaps)


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────

Runs = dict[tuple[str, str, str, int], Run]
"""The best of each database, shape, peer and size."""


def measured(peers: Sequence[Peer], shapes: Sequence[str], databases: Sequence[Database], effort: Effort) -> Runs:
    """Size after size, everybody in turn."""
    runs: Runs = {}
    for size in effort.sizes:
        for _ in range(effort.repeat if size == effort.sizes[0] else 1):
            for database in databases:
                for shape in shapes:
                    for peer in peers:
                        if shape in peer.shapes:
                            run = ran(peer, shape, size, database, effort)
                            key = (database.name, shape, peer.name, size)
                            measure.tell(
                                f"{database.name}, {shape}, {size:,} tasks, {peer.name}: {format_duration(run)}"
                            )
                            before = runs.get(key)
                            best = min(run, before or run, key=lambda one: one.each)
                            runs[key] = replace(best, others=(*(before.others if before else ()), run.each))
    return runs


def format_duration(run: Run) -> str:
    return run.unavailable or f"{1 / run.each:,.0f} tasks/s" + (f", stopped at {run.done:,}" if run.cut else "")


def rows(runs: Runs) -> Iterator[dict[str, Any]]:
    """A row for each run, with how it stands to the fastest way of each other library in the same place."""
    for (database, shape, peer, size), run in runs.items():
        beside = {key[2]: one.each for key, one in runs.items() if (key[0], key[1], key[3]) == (database, shape, size)}
        fastest = {
            name: min((beside[key] for key in beside if key.partition("-")[0] == name), default=math.inf)
            for name in FAMILIES
        }
        yield {
            **{"database": database, "shape": shape, "peer": peer, "tasks": size, "unavailable": run.unavailable},
            **{"done": run.done, "cut": run.cut, "seconds": rounded(run.seconds, 3)},
            **{"tasks_per_s": speed(run.each), "going_tasks_per_s": speed(run.each_going)},
            "spread": spread([1 / each for each in run.others], 1),
            **{"first_ms": rounded(run.first * 1e3, 1), "latency_ms": latency(run) if shape == "chain" else None},
            **{f"to_{name}": rounded(each / run.each, 2) for name, each in fastest.items()},
            "peak_mb": rounded(run.peak_mb or 0, 1),
        }


def latency(run: Run) -> dict[str, float] | None:
    """From ready to started, in milliseconds: in a chain a task is ready when the one before has done nothing."""
    if len(run.gaps) < 2:
        return None
    hundredths = statistics.quantiles(run.gaps, n=100, method="inclusive")
    figures = {"p50": hundredths[49], "p99": hundredths[98], "max": max(run.gaps)}
    return {name: round(seconds * 1e3, 3) for name, seconds in figures.items()}


def growth(runs: Runs, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """What the largest size costs each task beside the smallest one, in time and in memory."""
    small, large = sizes[0], sizes[-1]
    made = []
    for (database, shape, peer, size), little in runs.items():
        much = runs.get((database, shape, peer, large))
        if size == small != large and much and not (little.cut or much.cut or little.unavailable or much.unavailable):
            # Starting up hides growth in the one, putting the tasks down before the first begins in the other.
            ratio = max(much.each / little.each, much.each_going / little.each_going)
            memory = (much.peak_mb - little.peak_mb) * (1 << 20) / (large - small)
            row = {"database": database, "shape": shape, "peer": peer, "cost_ratio": round(ratio, 2)}
            made.append({**row, "bytes_per_task": round(memory)})
    return made


def speed(each: float) -> float:
    """Tasks per second; a digit more where there is less than ten."""
    rate = 1 / each
    return round(rate, 1) if rate < 10 else round(rate)


def rounded(value: float, digits: int | None = None) -> float | None:
    """A figure; none where a part of it was not measured."""
    return round(value, digits) if value and math.isfinite(value) else None


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def options() -> argparse.Namespace:
    parser = measure.options(__doc__, repeat=3)
    names = list(dict.fromkeys(name for peer in PEERS for name in (peer.family, peer.name)))
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the two databases")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES, help="some of the shapes")
    parser.add_argument("--peers", nargs="+", choices=names, metavar="PEER", help=f"some of {', '.join(names)}")
    parser.add_argument("--sizes", nargs="+", type=measure.positive, help="how many tasks (1000 100000)")
    limit = "seconds after which DBOS, Luigi and fork are stopped, and count by what they have done (%(default)s)"
    parser.add_argument("--limit", type=measure.positive, default=60, help=limit)
    asked = measure.asked(parser)
    asked.sizes = asked.sizes or ([10, 30] if asked.quick else [1_000, 100_000])
    if min(asked.sizes) < 4:
        parser.error("--sizes: a diamond has 4 tasks or more")
    return asked


def main() -> None:
    asked = options()
    effort = Effort(tuple(sorted(set(asked.sizes))), asked.repeat, asked.limit)
    if asked.quick:
        effort = replace(effort, repeat=1, apart=False)
    peers = [peer for peer in PEERS if not asked.peers or {peer.name, peer.family} & set(asked.peers)]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-tasks-"))
        databases: list[Database] = [] if asked.only == "postgres" else [Sqlite(Path(scratch))]
        if asked.only != "sqlite":
            databases.append(Postgres(stack.enter_context(postgres.running())))
        versions = {database.name: database.version for database in databases}
        runs = measured(peers, asked.shapes, databases, effort)
    grown = growth(runs, effort.sizes)
    found = list(rows(runs))
    document = {
        "benchmark": "tasks",
        "environment": measure.environment(*PACKAGES),
        "databases": versions,
        "effort": asdict(effort),
        "quick": asked.quick,
        "peers": {
            peer.name: {"timeout": peer.timeout, "durable": peer.durable, "contains": peer.contains} for peer in peers
        },
        "rows": found,
        "growth": grown,
        "targets": task_report.TARGETS,
        "headline": task_report.headline(found, grown, effort.sizes),
    }
    document["record"] = task_report.recorded(__doc__, document)
    measure.publish(asked, document, task_report.report)


if __name__ == "__main__":
    main()
