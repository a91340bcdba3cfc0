"""What must be true of a pipeline's store and target, after a kill and at the end.

What is expected is worked out row by row from the rules, and owes nothing to the runtime.
"""

import contextlib
import functools
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars
import psycopg
from sqlalchemy import func, select

import redrive
from redrive.model.letters import Status
from redrive.store.schema import checkpoints, run_keys
from tests.oracles.letters import check_audit, check_counts, come_to_rest
from tests.support import rows_worker
from tests.support.rows_worker import BATCH, COUNT

TABLE = """CREATE TABLE deliveries (
    id VARCHAR(20) PRIMARY KEY, fee NUMERIC(8, 2) NOT NULL, weight INTEGER CHECK (weight >= 0), city VARCHAR NOT NULL
)"""
# What the table holds before: rows that the file has, too, and others.
OLD = {f"D-{n:05}": (1.5, 1, "old") for n in range(3, COUNT, 7)} | {f"OLD-{n}": (2.5, 2, "older") for n in range(50)}
COUNTED = ("read", "written", "rejected", "discarded", "duplicates", "batches")


# ── what is expected ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Expected:
    """What there must be behind so many rows."""

    table: dict = field(default_factory=lambda: dict(OLD))
    letters: dict = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)
    keys: set = field(default_factory=set)
    written: set = field(default_factory=set)
    passing: set = field(default_factory=set)
    """Rows that the table has for a moment while the batch is written, where the rows of a key are sent in turn."""

    def copy(self):
        return Expected(dict(self.table), dict(self.letters), Counter(self.counts), set(self.keys), set(self.written))


def form(variant):
    """The form of the rows; a rule for duplicates may follow it."""
    return variant.partition(" ")[0]


def position(variant, n):
    return {"csv": f"line {n + 2}", "ndjson": f"line {n + 1}", "records": f"row {n + 1}"}[form(variant)]


def raw(variant, n):
    made = {"csv": rows_worker.csv_line, "ndjson": rows_worker.json_line, "records": rows_worker.no_row}[form(variant)](
        n
    )
    return made.rstrip(b"\n") if isinstance(made, bytes) else made


@functools.cache
def expected(variant, refuses, batch=BATCH):
    """What there must be behind each batch, from none to all; `refuses`: whether the target has constraints."""
    stages = [Expected()]
    for start in range(0, COUNT, batch):
        stages.append(stages[-1].copy())
        _add_batch(stages[-1], variant, range(start, start + batch), refuses)
    return stages


def _add_batch(so_far, variant, numbers, refuses):
    records = {n: rows_worker.record(n) for n in numbers}

    def reject(n, error_type):
        record = raw(variant, n) if records[n] is None else records[n]
        so_far.letters[position(variant, n)] = (record, error_type)
        so_far.counts["rejected"] += 1

    good, keeps_first, appends = {}, variant in {"ndjson first", "csv ignore"}, variant == "csv append"
    sends_all = appends or variant == "csv newer"
    for n, record in records.items():
        if record is None:
            reject(n, "parse")
        elif record["fee"] == "N/A":
            reject(n, "validation")
        elif record["city"] == "nowhere" and form(variant) != "csv" and variant != "ndjson delete":
            so_far.counts["discarded"] += 1
        elif variant == "records" and record["id"] in so_far.keys:
            reject(n, "validation")
        elif keeps_first and (record["id"] in good or record["id"] in so_far.written):
            so_far.counts["duplicates"] += 1
        else:
            so_far.keys.add(record["id"])
            so_far.counts["duplicates"] += record["id"] in good and not sends_all
            good[n if sends_all else record["id"]] = n
    for n in good.values():
        record = records[n]
        if variant == "ndjson delete" and rows_worker.marked({"weight": int(record["weight"])})["gone"]:
            _delete(so_far, record["id"])
        elif refuses and (record["city"] is None or record["weight"] == "-5"):
            reject(n, "sink")
        elif appends and record["id"] in so_far.table:
            reject(n, "sink")  # nothing is updated, and the key is unique
        elif _stays(so_far, variant, record):
            so_far.counts["duplicates"] += 1
        else:
            # The row of an earlier batch gives way: the table has one of them.
            so_far.counts["duplicates" if record["id"] in so_far.written else "written"] += 1
            so_far.written.add(record["id"])
            row = so_far.table[record["id"]] = (float(record["fee"]), int(record["weight"]), record["city"])
            so_far.passing.add((record["id"], row))
    so_far.counts["read"] += len(numbers)
    so_far.counts["batches"] += 1


def _stays(so_far, variant, record):
    """Whether the row of that key stays as it is in the table."""
    there = so_far.table.get(record["id"])
    if there is None or variant not in {"csv ignore", "csv newer"}:
        return False
    return variant == "csv ignore" or int(record["weight"]) <= there[1]


def _delete(so_far, key):
    """A deletion is discarded; the row of the run that it deletes is not in the table any more."""
    so_far.counts["discarded"] += 1
    so_far.table.pop(key, None)
    if key in so_far.written:
        so_far.written.remove(key)
        so_far.counts["written"] -= 1
        so_far.counts["duplicates"] += 1


# ── targets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Target:
    """A table with old rows in it, of which the file brings some anew."""

    refuses = True
    shares_deletions = True
    """Whether rows are deleted in the transaction of the store, where that is in the same database."""

    def __init__(self, url, *, shared):
        self.url, self.shared = url, shared
        self.prepare()

    def prepare(self):
        with self.connected() as connection:
            connection.execute(TABLE)
            connection.cursor().executemany(
                f"INSERT INTO deliveries VALUES ({', '.join([self.mark] * 4)})",
                [(key, *values) for key, values in OLD.items()],
            )
            connection.commit()

    def rows(self):
        """Every row there is; a key that is there twice is an error."""
        with self.connected() as connection:
            found = connection.execute("SELECT id, fee, weight, city FROM deliveries").fetchall()
        return by_key(found)

    def check(self, stages, *, in_parts=False):
        """It is at one of these stages; between them where a batch is sent in parts, each a transaction."""
        rows = self.rows()
        if in_parts:
            missing = set().union(*(one.table.keys() for one in stages)) - rows.keys()
            assert not missing & set.intersection(*(set(one.table) for one in stages))
            assert rows.items() <= set().union(*(one.table.items() for one in stages), stages[-1].passing)
            return
        assert any(rows == one.table for one in stages), difference(rows, stages[0].table)


def by_key(found):
    assert len({row[0] for row in found}) == len(found), "a row is there twice"
    return {key: (float(fee), weight, city) for key, fee, weight, city in found}


class PostgresTarget(Target):
    mark = "%s"

    def connected(self):
        return psycopg.connect(self.url)

    def rows(self):
        come_to_rest(self.url)
        return super().rows()


class SqliteTarget(Target):
    shares_deletions = False
    mark = "?"

    def connected(self):
        return contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30))

    def rows(self):
        with self.connected() as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return super().rows()


class DuckdbTarget(Target):
    def connected(self):
        return duckdb.connect(self.url.removeprefix("duckdb:///"))

    def prepare(self):
        old = polars.DataFrame([(key, *values) for key, values in OLD.items()], orient="row")  # noqa: F841 - it is read
        with self.connected() as connection:
            connection.execute(TABLE)
            connection.execute("INSERT INTO deliveries FROM old")


class ParquetTarget(Target):
    refuses = False

    def prepare(self):
        """Parquet has no other way in: the old rows come by a pipeline, too."""
        path = Path(self.url.removeprefix("parquet:"))
        sink, old = rows_worker.a_sink(self.url, "csv"), path.with_name("old.db")
        records = [dict(zip(rows_worker.COLUMNS, (key, *values), strict=True)) for key, values in OLD.items()]
        with redrive.connect(old) as store:
            redrive.Pipeline("old", source=redrive.rows.records(records), sink=sink, store=store).run()
        for left in path.parent.glob("old.db*"):
            left.unlink()

    def found(self):
        files = sorted(Path(self.url.removeprefix("parquet:")).rglob("*.parquet"))
        return polars.read_parquet(files).select(rows_worker.COLUMNS).rows() if files else []

    def rows(self):
        assert not list(Path(self.url.removeprefix("parquet:")).rglob(".*")), "something was left behind"
        return by_key(self.found())

    def check(self, stages, *, in_parts=False):
        """Every row of the first stage is there, or that of the second in its place; for a moment, both."""
        found = {(key, tuple(values)) for key, *values in self.found()}
        assert found <= set().union(*(one.table.items() for one in stages))
        assert {key for key, _ in found} >= stages[0].table.keys()


# ── the books ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def newest_run(store_url):
    with redrive.connect(store_url) as store:
        return next(iter(store.runs.find(pipeline=rows_worker.PIPELINE, limit=1)), None)


def is_complete(store_url):
    """Whether the run is over; one that would be started then is another."""
    run = newest_run(store_url)
    if run is not None and run.read == COUNT and run.status != "complete":
        come_to_rest(store_url)  # that it is complete may be the last thing that was sent
        run = newest_run(store_url)
    return run is not None and run.status == "complete"


def check(store_url, target, variant, batch=BATCH):
    """Compare store and target with what is expected behind the checkpoint; tell how many batches that is."""
    come_to_rest(store_url)
    with redrive.connect(store_url) as store:
        found = store.runs.find(pipeline=rows_worker.PIPELINE, limit=1_000)
        begun = [run for run in found if run.status != "abandoned"]
        assert len(begun) <= 1, "a run was begun anew that had come further"
        assert all(run.read == 0 for run in found if run.status == "abandoned")
        batches = begun[0].read // batch if begun else 0
        there = expected(variant, target.refuses, batch)[batches]
        if begun:
            counts = {name: getattr(begun[0], name) for name in COUNTED}
            wanted = {name: there.counts[name] for name in COUNTED}
            if variant == "csv newer" or (variant == "csv ignore" and not target.shared):
                # A batch that was written twice finds its own rows, and they count as duplicates. With `newer`, the
                # first row of a key decides how all of them count.
                for one in (counts, wanted):
                    one["duplicates"] += one.pop("written")
            assert counts == wanted
            check_position(begun[0].checkpoint, variant, begun[0].read)
        check_letters(store, there, begun[0].run_id if begun else None)
    deletes = variant == "ndjson delete"
    # Apart from the store, a batch may be in the target of which the checkpoint does not know yet.
    one_transaction = target.shared and variant != "csv append" and (target.shares_deletions or not deletes)
    stages = expected(variant, target.refuses, batch)[batches : batches + (1 if one_transaction else 2)]
    target.check(stages, in_parts=(deletes or variant == "csv newer") and not one_transaction)
    return batches


def check_position(position, variant, read):
    if read == 0:
        assert position is None
    elif form(variant) == "records":
        assert position["row"] == read
    else:
        assert position["line"] == read + (2 if form(variant) == "csv" else 1)


def check_letters(store, there, run_id):
    letters = list(store.dlq.each())
    assert len(letters) == len({letter.position for letter in letters}), "a letter is there twice"
    assert {letter.position: (letter.record, letter.error_type) for letter in letters} == there.letters
    assert all(letter.seen == 1 for letter in letters), "a letter was counted twice"
    assert {letter.status for letter in letters} <= {Status.PENDING}
    assert {letter.run_id for letter in letters} <= {run_id}
    check_counts(store.dlq, letters, purged=False)
    check_audit(store, letters)


def check_end(store_url, target, variant, batch=BATCH):
    """The run is complete, its target exactly the result, and nothing is held any more."""
    assert check(store_url, target, variant, batch) == COUNT // batch
    whole = expected(variant, target.refuses, batch)[-1]
    assert target.rows() == whole.table
    with redrive.connect(store_url) as store:
        (run,) = (run for run in store.runs.find(pipeline=rows_worker.PIPELINE) if run.status != "abandoned")
        assert (run.status, run.reason) == ("complete", None)
        assert run.read == run.written + run.rejected + run.discarded + run.duplicates == COUNT
        owners, keys = store.database.read(
            lambda connection: (
                connection.execute(select(checkpoints.c.owner)).scalars().all(),
                connection.execute(select(func.count()).select_from(run_keys)).scalar(),
            )
        )
        assert (owners, keys) == ([None], 0)


def difference(found, wanted):
    """What is wrong with a table, in a few words."""
    lost = sorted(wanted.keys() - found.keys())
    added = sorted(found.keys() - wanted.keys())
    other = sorted(key for key in found.keys() & wanted.keys() if found[key] != wanted[key])
    return f"{len(lost)} rows are missing {lost[:5]}, {len(added)} too many {added[:5]}, {len(other)} other {other[:5]}"
