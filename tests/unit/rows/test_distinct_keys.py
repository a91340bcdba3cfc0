"""The keys of a run are counted as the sink compares them, whatever batch they are in."""

import sqlite3
from contextlib import closing
from decimal import Decimal
from itertools import combinations
from uuid import uuid4

import polars as pl
import pyarrow.parquet as pq
import pytest

import redrive
from redrive.rows.batch import Outgoing
from redrive.rows.write.written_keys import DistinctKeys

NUMBERS = [
    *(0, 1, 7, 100, 2**53 + 1, 0.0, -0.0, 1.0, 0.5, 100.0, float("inf")),
    *map(Decimal, ("0", "0.00", "1", "1.0", "1.00", "0.5", "0.50", "100", "1E+2", "9.10", "9.1", "1E+20", "1E+21")),
]


def test_equal_numbers_have_one_hash_in_all_batches():
    keys = DistinctKeys(None, uuid4(), ("id",), resumed=False)
    hashes = [int(keys.hashes(Outgoing(("id",), range(1), tuples=[(number,)]))[0]) for number in NUMBERS]
    for first, second in combinations(range(len(NUMBERS)), 2):
        assert (hashes[first] == hashes[second]) == (NUMBERS[first] == NUMBERS[second])


def test_hash_does_not_depend_on_the_batch():
    keys = DistinctKeys(None, uuid4(), ("id", "part"), resumed=False)
    both = keys.hashes(Outgoing.of_frame(pl.DataFrame({"id": [1.0, 2.5], "part": ["a", "b"]}), range(2)))
    alone = keys.hashes(Outgoing.of_frame(pl.DataFrame({"id": [1], "part": ["a"]}), range(1)))
    assert both[0] == alone[0] != both[1]


@pytest.mark.parametrize("batch", [1, 10])
def test_decimals_of_two_spellings_are_one_row(tmp_path, batch):
    report = redrive.Pipeline(
        "fees",
        source=redrive.rows.records([{"id": Decimal("1.0"), "v": 1}, {"id": Decimal("1.00"), "v": 2}]),
        sink=redrive.rows.parquet_dataset(tmp_path / "fees", key="id"),
        store=tmp_path / "store.db",
        batch=batch,
    ).run()
    assert (report.written, report.duplicates) == (1, 1)
    assert pq.read_table(tmp_path / "fees").num_rows == 1


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_keys_of_several_types_are_counted_once(tmp_path, batch):
    with closing(sqlite3.connect(tmp_path / "sink.db")) as sink:
        sink.execute("CREATE TABLE t (k REAL PRIMARY KEY, v)")
    rows = [{"k": "1", "v": 1}, {"k": "2.5", "v": 2}, {"k": "1", "v": 3}]
    with redrive.connect(tmp_path / "store.db") as store:
        table = redrive.rows.table(f"sqlite:///{tmp_path}/sink.db", "t", key="k")
        report = redrive.Pipeline(
            "p", source=redrive.rows.records(rows), sink=table, key="k", batch=batch, store=store
        ).run()
    assert (report.written, report.duplicates) == (2, 1)
