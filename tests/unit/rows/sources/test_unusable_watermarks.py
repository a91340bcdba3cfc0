"""Watermarks that cannot be a checkpoint: NaN, infinity, and times that Python cannot represent."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from datetime import date

import duckdb
import psycopg
import pytest

import redrive
from redrive.errors import SourceError
from redrive.rows import query

pytestmark = pytest.mark.process  # most need a PostgreSQL

_serial = itertools.count()
# A database, the type of a watermark, and a value without a place.
NUMBERS = [
    ("sqlite", "REAL", "9e999"),
    ("sqlite", "REAL", "-9e999"),
    *(
        (database, kind, f"'{value}'")
        for database, kind in [
            ("postgresql", "double precision"),
            ("postgresql", "real"),
            ("postgresql", "numeric"),
            ("duckdb", "DOUBLE"),
            ("duckdb", "FLOAT"),
        ]
        for value in ("NaN", "Infinity", "-Infinity")
    ),
]
TIMES = [
    (database, kind, f"'{value}'")
    for database, kind, before_christ in [
        ("postgresql", "timestamptz", "0044-03-15 BC"),
        ("postgresql", "timestamp", "0044-03-15 BC"),
        ("postgresql", "date", "0044-03-15 BC"),
        ("duckdb", "TIMESTAMPTZ", "0044-03-15 (BC) 00:00:00+00"),
        ("duckdb", "TIMESTAMP", "0044-03-15 (BC) 00:00:00"),
        ("duckdb", "DATE", "0044-03-15 (BC)"),
    ]
    for value in ("infinity", "-infinity", "12000-01-01", before_christ)
]
TIMES += [("duckdb", "TIMESTAMP_NS", "'infinity'")]


class Place:
    """A database with a table of a watermark."""

    def __init__(self, url, connect):
        self.url, self._connect = url, connect

    def run(self, *statements):
        with contextlib.closing(self._connect()) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()


@pytest.fixture
def place(request, tmp_path):
    def made(database):
        path = tmp_path / "in.db"
        if database == "sqlite":
            return Place(f"sqlite:///{path}", lambda: sqlite3.connect(path))
        if database == "duckdb":
            return Place(f"duckdb:///{path}", lambda: duckdb.connect(str(path)))
        server = request.getfixturevalue("postgres_url")
        name = f"placeless_{next(_serial)}"
        url = f"{server}?options=-csearch_path%3D{name}"
        schema = Place(url, lambda: psycopg.connect(url))
        schema.run(f"CREATE SCHEMA {name}")
        return schema

    return made


def filled(place, kind, *values):
    place.run(f"CREATE TABLE s (id integer, mark {kind})")
    add(place, 1, *values)
    return place


def add(place, first, *values):
    place.run("INSERT INTO s VALUES " + ", ".join(f"({n}, {value})" for n, value in enumerate(values, first)))


def source_of(place, **options):
    return query(place.url, "SELECT * FROM s", **{"watermark": "mark", "key": "id", **options})


def read_all(source, position=None):
    reading = source.open(json.loads(json.dumps(position)), source.identity())
    with contextlib.closing(reading):
        return list(iter(lambda: reading.read(2), None))


def ids(batches):
    """Return the ids of rows and letters, in order."""
    rows = [record["id"] for batch in batches for record in batch.rows.records]
    return sorted([*rows, *(bad.raw["id"] for batch in batches for bad in batch.unreadable)])


class TestUnorderableNumber:
    @pytest.mark.parametrize(("database", "kind", "value"), NUMBERS)
    def test_is_read_in_every_run_and_is_no_checkpoint(self, place, database, kind, value):
        s = filled(place(database), kind, 1, value, 2)
        source = source_of(s)
        first = read_all(source)
        assert ids(first) == [1, 2, 3]
        assert not any(batch.unreadable for batch in first)
        add(s, 4, 3, 4, value)
        second = read_all(source, source.start_of_next_run(first[-1].next))
        assert ids(second) == [2, 4, 5, 6]
        assert ids(read_all(source, source.start_of_next_run(second[-1].next))) == [2, 6]

    def test_among_many_is_read_once_in_a_run(self, place):
        s = filled(place("postgresql"), "double precision", *["'NaN'", "'Infinity'", "NULL", "7"] * 5)
        assert ids(read_all(source_of(s))) == list(range(1, 21))

    def test_has_a_place_as_a_text(self, place):
        s = filled(place("postgresql"), "text", "'Infinity'", "'NaN'", "'infinity'")
        source = source_of(s)
        batches = read_all(source)
        assert ids(batches) == [1, 2, 3]
        assert read_all(source, source.start_of_next_run(batches[-1].next)) == []


class TestUnrepresentableTime:
    @pytest.mark.parametrize(("database", "kind", "value"), TIMES)
    def test_stops_no_run_and_is_no_checkpoint(self, place, database, kind, value):
        s = filled(place(database), kind, "'2026-01-01'", value, "'2026-01-02'")
        source = source_of(s, lag=86_400)
        first = read_all(source)
        assert ids(first) == [1, 2, 3]
        add(s, 4, "'2026-02-01'")
        second = read_all(source, source.start_of_next_run(first[-1].next))
        assert ids(second) == [1, 2, 3, 4]
        assert ids(read_all(source, source.start_of_next_run(second[-1].next))) == [2, 4]

    def test_is_one_letter_for_any_number_of_runs(self, place, tmp_path):
        s = filled(place("postgresql"), "timestamptz", "'2026-01-01'", "'infinity'", "'2026-01-02'")
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "t", key="id", create=True)
        pipeline = redrive.Pipeline("p", source=source_of(s), sink=sink, store=tmp_path / "store.db")
        assert [(run.read, run.written, run.rejected) for run in (pipeline.run(), pipeline.run())] == [
            (3, 2, 1),
            (1, 0, 1),
        ]
        [letter] = pipeline.store.dlq.find(pipeline="p")
        assert letter.record["mark"] == "infinity"

    @pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
    def test_is_a_letter_with_the_whole_row(self, place, kind):
        s = filled(place("postgresql"), kind, "'2026-01-01'", "'infinity'", "NULL", "'-infinity'")
        batches = read_all(source_of(s))
        bad = [one for batch in batches for one in batch.unreadable]
        assert [one.raw for one in bad] == [{"id": 2, "mark": "infinity"}, {"id": 4, "mark": "-infinity"}]
        assert [one.position for one in bad] == ["mark infinity, id 2", "mark -infinity, id 4"]
        assert bad[0].context == {"as_text": ["mark"], "missing": []}
        assert [record["id"] for batch in batches for record in batch.rows.records] == [3, 1]

    @pytest.mark.parametrize("zone", ["America/New_York", "UTC", "Asia/Kolkata"])
    @pytest.mark.parametrize("value", ["9999-12-31 23:59:59+00", "0001-01-01 00:00:00+00"])
    def test_at_the_end_of_the_calendar_stops_no_run(self, place, zone, value):
        s = filled(place("postgresql"), "timestamptz", "'2026-01-01'", f"'{value}'")
        source = query(f"{s.url}%20-cTimeZone%3D{zone}", "SELECT * FROM s", watermark="mark", key="id")
        batches = read_all(source)
        assert sum(len(batch.rows) + len(batch.unreadable) for batch in batches) == 2


class TestUnreadableKey:
    @pytest.mark.parametrize("at", ["'2026-01-01'", "NULL", "'infinity'"])
    def test_is_a_letter(self, place, at):
        s = place("postgresql")
        s.run(
            "CREATE TABLE s (id integer, until date, mark timestamp)",
            f"INSERT INTO s VALUES (1, '2026-01-01', '2026-01-01'), (2, 'infinity', {at}), (NULL, 'infinity', {at})",
        )
        batches = read_all(source_of(s, key=["id", "until"]))
        assert next(record for batch in batches for record in batch.rows.records)["until"] == date(2026, 1, 1)
        bad = sorted((one for batch in batches for one in batch.unreadable), key=lambda one: one.error)
        assert [(one.raw["id"], one.raw["until"], one.error) for one in bad] == [
            (None, "infinity", "key id is null"),
            (2, "infinity", "key id, until cannot be read"),
        ]


@pytest.mark.parametrize(
    ("database", "kind", "watermark"),
    [
        ("sqlite", "REAL", {"$float": "inf"}),
        ("postgresql", "double precision", {"$float": "nan"}),
        ("duckdb", "DATE", "infinity"),
    ],
)
def test_checkpoint_of_an_earlier_version_is_rejected(place, database, kind, watermark):
    s = filled(place(database), kind, "NULL")
    source = source_of(s)
    with pytest.raises(SourceError, match=r"the checkpoint of s is at mark .*restart"):
        read_all(source, source.start_of_next_run({"watermark": watermark, "key": [2]}))


def test_null_watermark_of_a_stopped_run_is_read_by_the_next(tmp_path):
    url = f"sqlite:///{tmp_path}/orders.db"
    pipeline = redrive.Pipeline(
        "orders",
        source=query(url, "SELECT * FROM orders", watermark="at", key="id"),
        sink=redrive.rows.table(f"sqlite:///{tmp_path}/sink.db", "t", key="id", create=True),
        batch=2,
        store=tmp_path / "store.db",
    )
    with contextlib.closing(sqlite3.connect(tmp_path / "orders.db", isolation_level=None)) as orders:
        orders.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER)")
        orders.executemany("INSERT INTO orders VALUES (?, ?)", [(1, None), *((n, n) for n in range(2, 20))])
        with pytest.raises(redrive.RunStopped):
            pipeline.run(watch=lambda progress: progress.counts.read > 1 and pipeline.stop())
        orders.execute("INSERT INTO orders VALUES (20, NULL)")
    assert pipeline.run().read == 19
    assert pipeline.run().read == 2
