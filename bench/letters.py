"""What the dead-letter queue costs: redrive, the naive way and the bare driver, on both databases.

Four questions, at each number of letters: how fast letters are put, how fast their causes are found, how fast a page of
them is, and how fast they are replayed, discarded, purged, exported and imported. A letter is a record of about 500
bytes of JSON in one of three pipelines, with a key of its own and one of 50 causes, the first of them 50 times as
frequent as the last; half of the messages hold a value that differs from record to record. Half of the letters are put
now, as by a pipeline, and half are dated back over the seven days before today.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import letter_report
import measure
import postgres
from plain import BATCH, Database, Postgres, Sqlite, one_by_one, seconds, stored
from record import spread
from rejects import given, new_letters, run_of

import redrive

PACKAGES = ("redrive", "sqlalchemy", "psycopg", "orjson")
BULK = 20_000
PAGE = 50


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    sizes: tuple[int, ...]
    repeat: int
    block: int = 50_000
    """Letters put in one turn; the floor has the next."""
    sample: int = 2_000
    """Letters of the naive way: its price per letter is the same for the next million."""
    history: int = 1_000_000
    """Letters of the past, at most; as many as are put where that is fewer."""
    again: int = 100_000
    """Letters put a second time, at most."""
    seconds: float = 0.2
    """What is asked is repeated for so long, at least."""
    settled: bool = True
    """Whether the disk is at rest before each letter has a COMMIT of its own."""


# ── timing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_turn(effort: Effort, *contenders: Callable[[], Any]) -> list[list[float]]:
    """Seconds of each, round by round; quick ones are repeated more often. The first round warms up only."""
    taken: list[list[float]] = [[seconds(one)] for one in contenders]
    rounds = min(50, max(effort.repeat, round(effort.seconds / sum(first[0] for first in taken))))
    for _ in range(rounds):
        for one, times in zip(contenders, taken, strict=True):
            times.append(seconds(one))
    return [times[1:] for times in taken]


@contextmanager
def set_apart() -> Iterator[None]:
    """What is ready-made is the benchmark's own: the garbage collector shall not look through it in a timed part."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# ── putting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_and_time(database: Database, url: str, store: redrive.Store, count: int, effort: Effort) -> dict[str, float]:
    """Seconds per letter of each contender, block by block in turn, into tables that grow alike."""
    total = {"redrive": 0.0, "making": 0.0, "floor": 0.0}
    with closing(database.beside(url, indexed=False)) as bare:
        for start in range(0, count, effort.block):
            ready = [given(number) for number in range(start, min(start + effort.block, count))]
            run = run_of(start)
            with set_apart():
                total["making"] += seconds(lambda ready=ready: deque(new_letters(ready), maxlen=0))
                total["redrive"] += seconds(lambda ready=ready, run=run: put(store, new_letters(ready), run))
            rows = stored(database, url, run, [record for record, *_ in ready])
            prepared = [database.ready(rows[first : first + BATCH]) for first in range(0, len(rows), BATCH)]
            with set_apart():
                total["floor"] += sum(seconds(lambda part=part: database.add(bare, part)) for part in prepared)
    again = [given(number) for number in range(min(count, effort.again))]
    with set_apart():
        repeated = seconds(lambda: put(store, new_letters(again), run_of(-1), new=0))
    return {**{name: taken / count for name, taken in total.items()}, "again": repeated / len(again)}


def naive_times(database: Database, effort: Effort) -> list[dict[str, float]]:
    """Seconds per letter of the naive way, in several fresh databases."""
    ready, times = [given(number) for number in range(effort.sample)], []
    if effort.settled:
        os.sync()  # or each COMMIT would wait for letters of another measurement, still on their way to the disk
    for _ in range(effort.repeat):
        with database.fresh() as url, redrive.connect(url, migrate=True) as store:
            put(store, new_letters(ready), run_of(0))
            rows = stored(database, url, run_of(0), [record for record, *_ in ready])
            times.append(one_by_one(database, url, rows, accept))
    return times


def best_of(times: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each contender the least, whichever of the measurements have it."""
    names = dict.fromkeys(name for one in times for name in one)
    return {name: min(one[name] for one in times if name in one) for name in names}


def put(store: redrive.Store, letters: Iterator[redrive.NewLetter], run: uuid.UUID, new: int | None = None) -> None:
    done = store.dlq.put_many(letters, run_id=run, source="orders.csv")
    if done.new != (done.total if new is None else new):
        raise AssertionError(f"the letters were not put as they should have been: {done}")


def accept(records: Sequence[Any]) -> None:
    """A target that does nothing: what is left is the price of sending back."""


def stream_history(url: str, count: int, today: datetime) -> tuple[float, float | None, float]:
    """Put letters of the seven days before today, made as they are asked for, in one call, in a process of its own.

    Seconds, and the process's peak memory after a tenth of them and at the end.
    """
    week = timedelta(days=7)
    mark = max(count // 10, 2 * BATCH)  # by then, every buffer has been filled and emptied
    early: list[float] = []

    def streamed() -> Iterator[redrive.NewLetter]:
        for number in range(count):
            if number == mark:
                early.append(measure.peak_memory())
            record, error, key, pipeline = given(number)
            at = today - week + number * week / count
            yield redrive.NewLetter(record, error, key=f"past {key}", pipeline=pipeline, rejected_at=at)

    with redrive.connect(url) as store:
        taken = seconds(lambda: put(store, streamed(), run_of(-2)))
    return taken, early[0] if early else None, measure.peak_memory()


def put_rows(about: dict[str, Any], times: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    each = best_of(times)

    def row(shown: str, name: str) -> dict[str, Any]:
        taken = each[name]
        return {
            **{"section": "put", **about, "name": shown},
            "spread": spread([one[name] * 1e6 for one in times if name in one], 2),
            **{"us_per_letter": round(taken * 1e6, 2), "letters_per_s": round(1 / taken)},
            **{"to_floor": round(each["floor"] / taken, 3), "to_naive": round(each["naive"] / taken, 2)},
        }

    names = {"redrive": "put_many", "again": "put_many, all stored before", "floor": "floor", "naive": "naive"}
    made = row("making NewLetters", "making") | {"to_floor": None, "to_naive": None, "letters_per_s": None}
    first, *others = [row(shown, name) for name, shown in names.items()]
    return [first, made, *others]


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def cause_rows(
    about: dict[str, Any], database: Database, by_hand: Any, dlq: Any, effort: Effort, today: datetime
) -> Iterator[dict[str, Any]]:
    """Causes from the counts that redrive keeps, and from the letters; they must agree."""
    day = timedelta(days=1)
    spans: dict[str, dict[str, datetime]] = {
        "today": {"since": today},
        "yesterday": {"since": today - day, "until": today},
        "since 12:34 the day before": {"since": today - day + timedelta(hours=12, minutes=34)},
        "all time": {},
    }
    limits = {"since": "rejected_at >= ?", "until": "rejected_at < ?"}
    for name, span in spans.items():
        where = " AND ".join(limits[end] for end in span) or "true"
        group = f"""SELECT fingerprint, count(*), min(rejected_at), max(last_seen)
                    FROM {database.table} WHERE {where} GROUP BY fingerprint"""
        answers: dict[str, dict[str, int]] = {}

        def ours(answers: dict = answers, span: dict = span) -> None:
            answers["redrive"] = {cause.fingerprint: cause.count for cause in dlq.causes(**span)}

        def grouped(answers: dict = answers, span: dict = span, group: str = group) -> None:
            found = by_hand.execute(database.sql(group), [database.moment(at) for at in span.values()]).fetchall()
            answers["GROUP BY"] = {fingerprint: count for fingerprint, count, *_ in found}

        quick, slow = in_turn(effort, ours, grouped)
        if answers["redrive"] != answers["GROUP BY"] or not answers["redrive"]:
            raise AssertionError(f"{database.name}, causes of {name}: the counts do not agree: {answers}")
        counted = {"causes": len(answers["redrive"]), "counted": sum(answers["redrive"].values())}
        yield {"section": "causes", **about, "name": name, **counted, **compared(quick, slow)}


def compared(ours: Sequence[float], by_hand: Sequence[float]) -> dict[str, Any]:
    """By the medians."""
    quick, slow = statistics.median(ours) * 1e3, statistics.median(by_hand) * 1e3
    figures = {"ms": round(quick, 3), "by_hand_ms": round(slow, 3), "ratio": round(slow / quick, 2)}
    return {**figures, "spread": spread([taken * 1e3 for taken in ours], 3)}


def find_rows(
    about: dict[str, Any], database: Database, by_hand: Any, dlq: Any, effort: Effort
) -> Iterator[dict[str, Any]]:
    """Pages and counts; by hand: the SELECT that gives the same letters, its rows as the driver has them."""
    causes = dlq.causes()
    common, rare = causes[0].fingerprint, causes[-1].fingerprint
    pages = min(1_000, about["in_table"] // (2 * PAGE))
    newest = "ORDER BY id DESC LIMIT 50"
    deep = f"status = 'pending' {newest} OFFSET {PAGE * (pages - 1)}"

    def rows(condition: str, *values: Any, what: str = "*") -> list[Any]:
        return by_hand.execute(
            database.sql(f"SELECT {what} FROM {database.table} WHERE {condition}"), values
        ).fetchall()

    turned = rows(deep, what="id")[0][0] + 1
    one_cause = "status = 'pending' AND fingerprint = ?"
    pending, counted = {"status": "pending"}, "pipeline_name = 'orders' AND status = 'pending'"
    asked: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "50 of the commonest cause": (
            lambda: dlq.find(limit=PAGE, cause=common, **pending),
            lambda: rows(f"{one_cause} {newest}", common),
        ),
        "50 of the rarest cause": (
            lambda: dlq.find(limit=PAGE, cause=rare, **pending),
            lambda: rows(f"{one_cause} {newest}", rare),
        ),
        "one key's history": (
            lambda: dlq.history("ORD-000000007"),
            lambda: rows("source_key = ? ORDER BY id", "ORD-000000007"),
        ),
        "50 of one run": (
            lambda: dlq.find(limit=PAGE, run_id=run_of(0)),
            lambda: rows(f"run_id = ? {newest}", str(run_of(0))),
        ),
        f"page {pages:,}, by hand with OFFSET": (
            lambda: dlq.find(limit=PAGE, after=turned, **pending),
            lambda: rows(deep),
        ),
        "count, pending of a pipeline": (
            lambda: dlq.count(pipeline="orders", **pending),
            lambda: rows(counted, what="count(*)"),
        ),
        "count, all": (dlq.count, lambda: rows("true", what="count(*)")),
    }
    for name, (ours, plain) in asked.items():
        yield {"section": "find", **about, "name": name, **compared(*in_turn(effort, ours, plain))}


# ── sending back and keeping ─────────────────────────────────────────────────────────────────────────────────────────


def work_rows(
    about: dict[str, Any], database: Database, store: redrive.Store, naive: float
) -> Iterator[dict[str, Any]]:
    """What changes many letters: each on the letters of a cause that has some 20,000."""
    dlq = store.dlq
    causes = sorted(dlq.causes(status="pending"), key=lambda cause: abs(cause.count - BULK))
    sent, tried, discarded, moved = [cause.fingerprint for cause in causes[:4]]

    def row(name: str, work: Callable[[], int], beside: float | None = None) -> dict[str, Any]:
        began = time.perf_counter()
        touched = work()
        each = (time.perf_counter() - began) / touched
        return {
            **{"section": "work", **about, "name": name, "touched": touched},
            **{"us_per_letter": round(each * 1e6, 2), "letters_per_s": round(1 / each)},
            **{"naive_us_per_letter": None if beside is None else round(beside * 1e6, 2)},
            **{"ratio": None if beside is None else round(beside / each, 2)},
        }

    lines: list[str] = []
    yield row(
        "replay", lambda: dlq.replay(accept, dry_run=False, canary=0, any_pipeline=True, cause=sent).reprocessed, naive
    )
    yield row(
        "replay, all fail again",
        lambda: dlq.replay(refuse, dry_run=False, canary=0, any_pipeline=True, cause=tried).failed_again,
    )
    yield row("discard", lambda: dlq.discard(note="not worth it", cause=discarded).changed)
    yield row("purge", lambda: dlq.purge(older_than=timedelta(0)).letters)
    yield row("export", lambda: lines.extend(dlq.export(cause=moved)) or len(lines))
    with database.fresh() as other, redrive.connect(other, migrate=True) as empty:
        yield row("import", lambda: empty.dlq.import_(lines).new)


def refuse(records: Sequence[Any]) -> list[str]:
    return ["fee: still not a number"] * len(records)


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def measured(database: Database, count: int, effort: Effort) -> list[dict[str, Any]]:
    """All questions at one size; a small one is put several times, and the best counts."""
    # Once: what was put before a midnight that comes meanwhile is not to be yesterday's.
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    naive, put_times = naive_times(database, effort), []
    for _ in range(effort.repeat - 1 if count <= effort.block else 0):
        with database.fresh() as url, redrive.connect(url, migrate=True) as store:
            put_times.append(put_and_time(database, url, store, count, effort))
    past = min(count, effort.history)
    about = {"database": database.name, "letters": count, "in_table": count}
    with database.fresh() as url, redrive.connect(url, migrate=True) as store:
        put_times.append(put_and_time(database, url, store, count, effort))
        rows = put_rows(about, [*put_times, *naive])
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            taken, early, late = child.submit(stream_history, url, past, today).result()
        growth = None if early is None else round(late - early, 1)
        peak = {"peak_mb": round(late, 1), "growth_mb": growth, "us_per_letter": round(taken / past * 1e6, 2)}
        about["in_table"] += past
        rows.append({"section": "stream", **about, "streamed": past, **peak})
        database.settle(url)
        with closing(database.connect(url, autocommit=True)) as by_hand:
            rows += cause_rows(about, database, by_hand, store.dlq, effort, today)
            rows += find_rows(about, database, by_hand, store.dlq, effort)
        rows += work_rows(about, database, store, best_of(naive)["naive replay"])
    return rows


def main() -> None:
    parser = measure.options(__doc__, repeat=3)
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one of the two databases")
    parser.add_argument("--letters", type=measure.positive, help="this many instead of 10,000 and 1,000,000")
    parser.add_argument("--large", action="store_true", help="5,000,000 letters as well")
    asked = measure.asked(parser)
    sizes = (asked.letters,) if asked.letters else (10_000, 1_000_000)
    effort = Effort(sizes + (5_000_000,) * asked.large, asked.repeat)
    if asked.quick:
        effort = replace(effort, sizes=(2_000,), repeat=1, block=1_000, sample=100, seconds=0.0, settled=False)
    with ExitStack() as stack:
        databases: list[Database] = []
        if asked.only != "postgresql":
            databases.append(Sqlite(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-")))))
        if asked.only != "sqlite":
            databases.append(Postgres(stack.enter_context(postgres.running())))
        rows = [row for size in effort.sizes for database in databases for row in measured(database, size, effort)]
    document = {
        "benchmark": "letters",
        "environment": measure.environment(*PACKAGES),
        "databases": {database.name: database.version for database in databases},
        "effort": asdict(effort),
        "quick": asked.quick,
        "rows": rows,
        "targets": letter_report.TARGETS,
        "headline": letter_report.headline(rows),
        "record": letter_report.recorded(__doc__, rows),
    }
    measure.publish(asked, document, letter_report.report)


if __name__ == "__main__":
    main()
