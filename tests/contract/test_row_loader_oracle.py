"""A pipeline ends like a loader of single rows: the same table, the same rejected records, the same counts."""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive
from tests.oracles.row_loader import DUPLICATE_KEY, MISSING_KEY, Row, RowLoader
from tests.support.stores import NewStore

COLUMNS = ("id", "day", "fee")
COUNTED = ("read", "written", "rejected", "discarded", "duplicates")
KEYS = (("id",), ("id", "day"))
NO_LIMIT = redrive.Gate(abort=1)

# All examples of a property share the fixture on purpose: a store for each would take most of the time.
one_store = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
fewer_examples = settings(one_store, max_examples=one_store.max_examples // 4)


class Warehouse:
    """A table for each key in one SQLite file, and pipelines into it."""

    def __init__(self, store: redrive.Store, path: Path) -> None:
        self._store, self._url = store, f"sqlite:///{path}"
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._runs = itertools.count()
        columns = "id TEXT, day INTEGER, fee REAL CHECK (fee >= 0)"
        for key in KEYS:
            self._connection.execute(f"CREATE TABLE {_table(key)} ({columns}, PRIMARY KEY ({', '.join(key)}))")

    def fill(self, loader: RowLoader) -> None:
        """Give the table the rows that the loader's table holds, and no others."""
        self._connection.execute(f"DELETE FROM {_table(loader.key)}")
        rows = [tuple(row[name] for name in COLUMNS) for row in loader.table.values()]
        self._connection.executemany(f"INSERT INTO {_table(loader.key)} VALUES (?, ?, ?)", rows)

    def run(self, records: list[Any], loader: RowLoader, **options: Any) -> Any:
        """Run a pipeline under a name of its own, so that none of its letters is of an earlier run."""
        sink = redrive.rows.table(self._url, _table(loader.key), key=loader.key)
        options |= {"batch": loader.batch, "on_duplicate": loader.on_duplicate, "gate": NO_LIMIT, "store": self._store}
        name = f"loader-{next(self._runs)}"
        return redrive.Pipeline(name, source=redrive.rows.records(records), sink=sink, **options).run()

    def check(self, loader: RowLoader, report: Any) -> None:
        """Compare the counts, the table and the letters of a run with those of the loader."""
        assert {name: getattr(report, name) for name in COUNTED} == {name: loader.counts[name] for name in COUNTED}
        rows = self._connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {_table(loader.key)}").fetchall()
        table = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        assert {tuple(row[name] for name in loader.key): row for row in table} == loader.table
        assert len(table) == len(loader.table)

        letters = sorted(self._store.dlq.each(pipeline=report.pipeline), key=lambda letter: int(letter.position[4:]))
        assert [(letter.position, letter.record, letter.error_type, letter.seen) for letter in letters] == [
            (f"row {rejected.number}", rejected.record, rejected.step, 1) for rejected in loader.rejected
        ]
        causes = defaultdict(set)
        for letter, rejected in zip(letters, loader.rejected, strict=True):
            kind, _, key = rejected.reason.partition(": ")
            expected = key if kind in (MISSING_KEY, DUPLICATE_KEY) else rejected.reason
            assert expected in letter.error_message
            causes[rejected.step, rejected.reason].add(letter.fingerprint)
        assert {reason: len(found) for reason, found in causes.items()} == dict.fromkeys(causes, 1)

    def close(self) -> None:
        self._connection.close()


def _table(key: Any) -> str:
    return "_".join(("by", *key))


@pytest.fixture
def warehouse(new_store: NewStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Warehouse]:
    caplog.set_level(logging.CRITICAL, "redrive")  # hundreds of runs with rejected rows
    with new_store("sqlite") as url, redrive.connect(url) as store:
        store.listeners = ()  # alerts take half the time of such small runs, and are not compared
        warehouse = Warehouse(store, tmp_path / "warehouse.db")
        yield warehouse
        warehouse.close()


# ── records that go wrong at every step ───────────────────────────────────────────────────────────────────────────────


def parse_fee(record: Row) -> Row:
    fee = float(record["fee"])
    if fee == 13:
        raise redrive.Discard("a test order")
    record["fee"] = fee
    return record


def apply_tariff(row: Row) -> Row | None:
    if row["fee"] == 66:
        raise ValueError("no tariff for this fee")
    return None if row["fee"] == 99 else {**row, "fee": row["fee"] * 2}


def object_to_fee(row: Row) -> str | None:
    return "CHECK constraint failed: fee >= 0" if row["fee"] < 0 else None


fields = {
    "id": st.sampled_from(["a", "b", "c", "", None]),
    "day": st.sampled_from([1, 2, None]),
    "fee": st.sampled_from([1, 2.5, "3", 4]) | st.sampled_from([-6, "-7", 13, 66, 99, "N/A", None, []]),
}
whole_records = st.fixed_dictionaries(fields)
any_records = whole_records | st.fixed_dictionaries({}, optional=fields) | st.sampled_from([7, None, "a,1"])
record_lists = st.lists(whole_records, max_size=10) | st.lists(any_records, max_size=10)
batches = st.integers(1, 7)
held_tables = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([None, 1, 2]), max_size=3)


def hold(loader: RowLoader, days: dict[str, int | None]) -> None:
    """Put rows into the loader's table, as many as its key allows."""
    for name, day in days.items():
        if day is not None or "day" not in loader.key:
            row = {"id": name, "day": day, "fee": 1_000.0}
            loader.table[tuple(row[part] for part in loader.key)] = row


@one_store
@given(record_lists, st.sampled_from(KEYS), batches, st.sampled_from(["last", "first", "quarantine"]), held_tables)
def test_pipeline_ends_as_row_by_row_loader_does(warehouse, records, key, batch, rule, held):
    """Compare over records with duplicate and missing keys, bad values, and batches of every size.

    A record may lack a column that no batch so far had, and the table may hold a row of its key: the column keeps its
    value then. So the rows that the table holds have no day where a record may lack it.
    """
    if any("day" not in record for record in records if isinstance(record, dict)):
        held = dict.fromkeys(held)
    loader = RowLoader(key, COLUMNS, batch, rule, parse_fee, apply_tariff, object_to_fee, (redrive.Discard,))
    hold(loader, held)
    warehouse.fill(loader)
    loader.load(records)
    report = warehouse.run(records, loader, validate=parse_fee, transform=apply_tariff)
    warehouse.check(loader, report)


# ── records that become several rows ──────────────────────────────────────────────────────────────────────────────────


def split(row: Row) -> list[Row]:
    return [
        {"id": f"{row['id']}-{part // 2}", "day": row["day"], "fee": row["fee"] + part} for part in range(row["parts"])
    ]


def split_frame(frame: pl.DataFrame) -> pl.DataFrame:
    rows = frame.filter(pl.col("parts") > 0).with_columns(part=pl.int_ranges("parts")).explode("part")
    rows = rows.with_columns(id=pl.format("{}-{}", "id", pl.col("part") // 2), fee=pl.col("fee") + pl.col("part"))
    return rows.drop("parts", "part")


divided = st.fixed_dictionaries(
    {
        "id": st.sampled_from("ab"),
        "day": st.integers(1, 2),
        "fee": st.sampled_from(["1", "-1", "20", "N/A"]),
        "parts": st.integers(0, 3),
    }
)


@fewer_examples
@given(st.lists(divided, max_size=8), st.sampled_from(KEYS), batches, st.sampled_from(["last", "first", "quarantine"]))
def test_split_records_equal_a_row_by_row_loader(warehouse, records, key, batch, rule):
    """Compare over a transform that drops and multiplies rows, and a table that rejects some of them."""
    loader = RowLoader(key, COLUMNS, batch, rule, parse_fee, split, object_to_fee)
    warehouse.fill(loader)
    loader.load(records)
    transform = redrive.rows.per_frame(split_frame, row="number")
    warehouse.check(loader, warehouse.run(records, loader, validate=parse_fee, transform=transform))
