"""The order of a query and its comparisons agree for every type, or the run is rejected."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from types import SimpleNamespace

import duckdb
import psycopg
import pytest

from redrive.errors import SourceError
from redrive.rows import query
from redrive.rows.sources.query import database as databases

_serial = itertools.count()


def read_ids(made, most):
    """The ids of a query's rows, every other page read behind a checkpoint."""
    found, position = [], None
    while True:
        with contextlib.closing(made.open(json.loads(json.dumps(position)), made.identity())) as reading:
            for _ in range(2):
                batch = reading.read(most)
                if batch is None:
                    return found
                found += [record["id"] for record in batch.rows.records]
                position = batch.next


@pytest.fixture
def duck(tmp_path):
    """A function that fills a table of DuckDB with rows (id, mark, day), two of each mark, and returns its URL."""

    def make(kind, marks):
        with duckdb.connect(str(tmp_path / "marks.duckdb")) as connection:
            connection.execute(f"CREATE TABLE marks (id INTEGER, mark {kind}, day INTEGER)")
            for number, mark in enumerate([*marks, *marks]):
                connection.execute("INSERT INTO marks VALUES (?, ?, 1)", [number, mark])
        return f"duckdb:///{tmp_path / 'marks.duckdb'}"

    return make


@pytest.fixture
def postgres(postgres_url):
    """The same of PostgreSQL."""

    def make(kind, marks, *before, options=""):
        schema = f"order_{next(_serial)}"
        url = f"{postgres_url}?options=-csearch_path%3D{schema}%20{options}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
            for statement in before:
                connection.execute(statement)
            connection.execute(f"CREATE TABLE marks (id integer, mark {kind}, day integer)")
            for number, mark in enumerate([*marks, *marks]):
                connection.execute("INSERT INTO marks VALUES (%s, %s, 1)", [number, mark])
        return url

    return make


ORDERS = [("mark", ["id"]), ("day", ["mark", "id"])]
DUCKDB = {
    "ENUM('S', 'M', 'L', 'XL', 'it''s, \"1\"')": ["S", "M", "L", "XL", 'it\'s, "1"'],
    "ENUM('S', 'M', 'L', 'XL')": ["S", "M", "L", "XL"],
    "BIT": ["1", "01", "10", "0111"],
    "UHUGEINT": ["9", "10", str(2**127 + 1)],
    "BIGNUM": ["9", "10", str(10**40)],
    "DECIMAL(38, 10)": ["1.5", "1234567890123456789012345678.0000000001", "-3"],
    "FLOAT": ["0.1", "0.7", "1e38"],
    "UUID": ["80000000-0000-0000-0000-000000000005", "00000000-0000-0000-0000-000000000005"],
    "BLOB": ["\\xff", "a", "b"],
    "JSON": ['{"a": 1}', "[10]", "[9]", '{"a":1}'],
    "TIME_NS": ["10:00:00.000000001", "10:00:00.000000002", "09:00:00"],
    "INTERVAL": ["2 months", "29 days", "1 month"],
    "UNION(a INTEGER, b VARCHAR)": ["9", "10", "x"],
    "TIMESTAMP_NS": ["2026-01-01 00:00:00.000000001", "2026-01-01 00:00:00.000000002"],
}


@pytest.mark.parametrize(("watermark", "key"), ORDERS)
@pytest.mark.parametrize("kind", DUCKDB)
def test_no_row_of_duckdb_is_skipped(duck, kind, watermark, key):
    marks = DUCKDB[kind]
    made = query(duck(kind, marks), "SELECT * FROM marks", watermark=watermark, key=key)
    for most in (1, 2, 3):
        assert sorted(read_ids(made, most)) == list(range(2 * len(marks)))


POSTGRESQL = {
    "size": ["S", "M", "L", "XL"],
    "real": ["0.1", "0.7", "0.3", "1e30"],
    "double precision": ["0.1", "0.7", "0.30000000000000004"],
    "numeric": ["1.10", "9", "10"],
    "char(8)": ["b", "a", "c "],
    '"char"': ["b", "a"],
    "name": ["b", "B", "a"],
    "money": ["9.50", "10.50"],
    "bit(4)": ["1000", "0111"],
    "interval": ["2 months", "29 days", "1 month"],
    "size_text": ["S", "M", "L"],
    "timetz": ["10:00:00+01", "09:30:00+00"],
    "macaddr": ["08:00:2b:01:02:03", "08:00:2b:01:02:04"],
}
TYPES = ["CREATE TYPE size AS ENUM ('S', 'M', 'L', 'XL')", "CREATE DOMAIN size_text AS text"]


@pytest.mark.process
@pytest.mark.parametrize(("watermark", "key"), ORDERS)
@pytest.mark.parametrize("kind", POSTGRESQL)
def test_no_row_of_postgresql_is_skipped(postgres, kind, watermark, key):
    marks = POSTGRESQL[kind]
    made = query(postgres(kind, marks, *TYPES), "SELECT * FROM marks", watermark=watermark, key=key)
    for most in (1, 2, 3):
        assert sorted(read_ids(made, most)) == list(range(2 * len(marks)))


@pytest.mark.process
@pytest.mark.parametrize("kind", ["size_domain", "pair", "regtype"])
@pytest.mark.parametrize(("watermark", "key"), ORDERS)
def test_unsupported_type_asks_for_a_cast(postgres, kind, watermark, key):
    marks = {"size_domain": ["S", "M"], "pair": ["(1,x)", "(2,y)"], "regtype": ["int4", "text"]}[kind]
    types = [*TYPES, "CREATE DOMAIN size_domain AS size", "CREATE TYPE pair AS (a integer, b text)"]
    made = query(postgres(kind, marks, *types), "SELECT * FROM marks", watermark=watermark, key=key)
    with pytest.raises(SourceError, match=r"cast .* to text in the SQL"):
        read_ids(made, 1)


@pytest.mark.process
@pytest.mark.parametrize("mark", ["0.30000000000000004", "0.7999999999999999"])
def test_float_digits_of_the_session_skip_no_row(postgres, mark):
    url = postgres("double precision", [mark], options="-cextra_float_digits%3D0")
    made = query(url, "SELECT * FROM marks", watermark="mark", key="id")
    assert len(read_ids(made, 5)) == 2
    assert read_ids(made, 1) == read_ids(made, 5)


def test_union_columns_that_compare_differently_are_rejected(tmp_path):
    path = tmp_path / "marks.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (id INTEGER, mark INTEGER)")
        connection.execute("CREATE TABLE texts (id INTEGER, mark TEXT)")
        connection.execute("INSERT INTO numbers VALUES (1, 9)")
        connection.execute("INSERT INTO texts VALUES (2, '05'), (3, '95')")
        connection.commit()
    sql = "SELECT * FROM numbers UNION ALL SELECT * FROM texts"
    made = query(f"sqlite:///{path}", sql, watermark="mark", key="id")
    assert read_ids(made, 5) == [1, 2, 3]
    with pytest.raises(SourceError, match="would be passed over"):
        read_ids(made, 1)


ENUM, SET, TEXT = 256 | 128, 2048, 4096
FLAGS = {
    "mysqlclient": SimpleNamespace(description_flags=(ENUM, SET, TEXT)),
    "PyMySQL": SimpleNamespace(_result=SimpleNamespace(fields=[SimpleNamespace(flags=f) for f in (ENUM, SET, TEXT)])),
    "MySQL Connector": SimpleNamespace(description=[("size", 254, *[None] * 5, f, 255) for f in (ENUM, SET, TEXT)]),
    "another": SimpleNamespace(description=[("size", 254, *[None] * 5)] * 3),
}


@pytest.mark.parametrize("driver", FLAGS)
def test_enum_of_mysql_is_detected_by_its_flags(driver):
    assert databases.numbered(FLAGS[driver]) == ([False] * 3 if driver == "another" else [True, True, False])


def test_enum_of_mysql_asks_for_a_cast(tmp_path, monkeypatch):
    path = tmp_path / "marks.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE marks (id INTEGER, size TEXT)")
    opened = databases.open_database

    def open_database(url, **options):
        database = opened(url, **options)
        describe = database.describe
        monkeypatch.setattr(
            database,
            "describe",
            lambda made: [(name, databases.NUMBERED if name == "size" else kind) for name, kind in describe(made)],
        )
        return database

    monkeypatch.setattr(databases, "open_database", open_database)
    made = query(f"sqlite:///{path}", "SELECT * FROM marks", watermark="id", key="size")
    with pytest.raises(SourceError, match=r"size of marks is an ENUM or SET of MySQL.*: cast it to text in the SQL"):
        made.open(None, made.identity())
