"""Rows of a query behind a watermark, on SQLite, PostgreSQL and DuckDB."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import sys
import threading
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import duckdb
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy import text as sql_text

import redrive
from redrive.errors import SourceError
from redrive.rows import query
from redrive.rows.sources.query import database as databases
from redrive.rows.sources.query.keyset import Keyset
from redrive.rows.sources.query.order import from_json, stepped_back, to_json
from redrive.rows.write import thread

_serial = itertools.count()


class Source:
    """A database to fill: `run` executes one statement and commits."""

    def __init__(self, kind, url, connect):
        self.kind, self.url, self._connect = kind, url, connect

    def run(self, *statements):
        with contextlib.closing(self._connect()) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()


@pytest.fixture(params=["sqlite", "postgresql", "duckdb"])
def source(request, tmp_path):
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_url")
        name = f"query_{next(_serial)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = server.rpartition("/")[0] + f"/{name}"
        return Source("postgresql", url, lambda: psycopg.connect(url))
    path = tmp_path / "source.db"
    if request.param == "sqlite":
        return Source("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path))
    return Source("duckdb", f"duckdb:///{path}", lambda: duckdb.connect(str(path)))


@pytest.fixture
def lite(tmp_path):
    path = tmp_path / "lite.db"
    return Source("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path))


@pytest.fixture
def server(postgres_url):
    """PostgreSQL, with a schema of the test's own."""
    name = f"schema_{next(_serial)}"
    url = f"{postgres_url}?options=-csearch_path%3D{name}"
    made = Source("postgresql", url, lambda: psycopg.connect(url))
    made.run(f"CREATE SCHEMA {name}")
    return made


def fill(source, count=25, *, same=5):
    """Orders with ids from 0, several with each timestamp."""
    source.run("CREATE TABLE orders (id integer, updated_at timestamp, fee varchar)")
    source.run(
        "INSERT INTO orders VALUES "
        + ", ".join(f"({n}, '2026-07-01 12:{n // same:02}:00', 'fee {n}')" for n in range(count))
    )


def orders(source, **options):
    options = {"watermark": "updated_at", "key": "id", **options}
    return query(source.url, options.pop("sql", "SELECT * FROM orders"), **options)


def read_all(one, most=10, position=None):
    # A checkpoint goes through JSON.
    reading = one.open(json.loads(json.dumps(position)), one.identity())
    try:
        return list(iter(lambda: reading.read(most), None))
    finally:
        reading.close()


def ids(batches):
    return [record["id"] for batch in batches for record in batch.rows.records]


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pages_are_complete_for_any_number_of_equal_watermarks(source):
    fill(source, 40, same=17)
    batches = read_all(orders(source), most=7)
    assert ids(batches) == list(range(40))
    assert [len(batch.rows) for batch in batches] == [7, 7, 7, 7, 7, 5]


def test_row_has_its_position(source):
    fill(source, 3)
    [batch] = read_all(orders(source))
    assert batch.position_of(2) == "updated_at 2026-07-01 12:00:00, id 2"
    assert batch.source == "orders"


def test_columns_are_known_before_the_first_row(source):
    fill(source, 1)
    reading = orders(source).open(None, {})
    assert reading.columns == ("id", "updated_at", "fee")
    reading.close()
    reading.close()


def test_next_run_reads_the_new_rows(source):
    fill(source, 12)
    one = orders(source)
    last = read_all(one)[-1].next
    assert read_all(one, position=one.start_of_next_run(last)) == []
    source.run(
        "INSERT INTO orders VALUES (100, '2026-07-01 12:02:00', 'same moment'), (101, '2026-07-02 00:00:00', 'later')",
        "UPDATE orders SET updated_at = '2026-07-03 00:00:00' WHERE id = 5",
    )
    assert ids(read_all(one, position=one.start_of_next_run(last))) == [100, 101, 5]


def test_lag_moves_a_new_run_back_and_rereads_the_boundary(source):
    fill(source, 20, same=1)
    one = orders(source, lag=timedelta(minutes=3))
    last = read_all(one)[-1].next
    source.run("INSERT INTO orders VALUES (100, '2026-07-01 12:17:30', 'committed late')")
    assert ids(read_all(one, position=one.start_of_next_run(last))) == [16, 17, 100, 18, 19]
    # A resumed run is not moved back.
    assert ids(read_all(one, position=last)) == []


def test_table_without_rows_has_no_batch_and_no_position(source):
    source.run("CREATE TABLE orders (id integer, updated_at timestamp, fee varchar)")
    one = orders(source)
    assert read_all(one) == []
    assert one.start_of_next_run(None) is None


def test_composite_key_and_watermark_as_key_are_read(source):
    source.run(
        "CREATE TABLE lines (ordered integer, line integer)",
        "INSERT INTO lines VALUES " + ", ".join(f"({n // 4}, {n % 4})" for n in range(30)),
    )
    for key in (["ordered", "line"], ["line"]):
        one = query(source.url, "SELECT * FROM lines", watermark="ordered", key=key)
        batches = read_all(one, most=3)
        assert [(row["ordered"], row["line"]) for batch in batches for row in batch.rows.records] == [
            (n // 4, n % 4) for n in range(30)
        ]


@pytest.mark.parametrize("end", ["", " ; \n", "\n-- the end"])
def test_sql_may_have_parameters_percents_and_colons(source, end):
    fill(source, 10)
    sql = f"""WITH late AS (SELECT * FROM orders WHERE id > :least AND fee LIKE 'fee%')
              SELECT late.*, CAST(id AS varchar) || ' :x' AS label FROM late{end}"""
    [batch] = read_all(orders(source, sql=sql, parameters={"least": 6}))
    assert [row["label"] for row in batch.rows.records] == ["7 :x", "8 :x", "9 :x"]


def test_time_may_be_a_parameter(source):
    fill(source, 20)
    sql = "SELECT * FROM orders WHERE updated_at >= :since"
    since = {"since": datetime(2026, 7, 1, 12, 3)}
    assert ids(read_all(orders(source, sql=sql, parameters=since))) == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("name", ["Updated At", "order", "select"])
def test_columns_may_have_any_name(source, name):
    source.run(f'CREATE TABLE t ("{name}" integer, id integer)', "INSERT INTO t VALUES (1, 1), (2, 2)")
    assert ids(read_all(query(source.url, "SELECT * FROM t", watermark=name, key="id"), most=1)) == [1, 2]


@pytest.mark.parametrize(
    ("of", "values"),
    [
        ("timestamptz", ["2026-03-29 00:30:00+00", "2026-03-29 01:30:00+00", "2026-03-29 01:30:00.000001+00"]),
        ("timestamp", ["2026-01-01", "2026-01-01 00:00:00.000001"]),
        ("date", ["2025-12-31", "2026-01-01"]),
        ("numeric(30, 5)", ["-1.5", "0", "12345678901234567890.00001", "12345678901234567890.00002"]),
        ("bigint", ["-1", "9007199254740993", "9223372036854775807"]),
        ("double precision", ["-0.1", "0.1", "0.30000000000000004", "1e300"]),
        ("text", ["", "a", "ä", "😀"]),
        ("uuid", ["00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000001"]),
        ("bytea", [r"\x00", r"\x00ff"]),
    ],
)
def test_watermark_of_any_type_comes_back_from_the_checkpoint(server, of, values):
    server.run(f"CREATE TABLE marks (mark {of}, id integer)")
    server.run("SET timezone = 'Europe/Berlin'")
    for number, value in enumerate(values):
        server.run(f"INSERT INTO marks VALUES ('{value}', {number})")
    one = query(server.url, "SELECT * FROM marks", watermark="mark", key="id")
    batches = read_all(one, most=1)
    assert ids(batches) == list(range(len(values)))
    for number, batch in enumerate(batches):
        assert ids(read_all(one, most=1, position=batch.next)) == list(range(number + 1, len(values)))


def test_row_updated_while_reading_is_read_later(lite):
    fill(lite, 20)
    reading = orders(lite).open(None, {})
    first = reading.read(10)
    lite.run(
        "UPDATE orders SET updated_at = '2026-08-01' WHERE id IN (3, 15)",
        "DELETE FROM orders WHERE id = 9",
    )
    assert ids([first, reading.read(100)]) == [*range(15), 16, 17, 18, 19, 3, 15]
    assert reading.read(100) is None  # although rows may have come: they are the next run's
    reading.close()


# ── rows that have no place, rows that cannot be read ─────────────────────────────────────────────────────────────────


class TestRowsWithoutWatermark:
    """They have no place in the order: every run reads them."""

    def test_rows_are_read_in_every_run(self, source):
        fill(source, 3)
        source.run("INSERT INTO orders VALUES (50, NULL, 'x')")
        one = orders(source)
        nulls, rest = read_all(one)
        assert (ids([nulls]), ids([rest])) == ([50], [0, 1, 2])
        assert nulls.position_of(0) == "updated_at null, id 50"
        assert ids(read_all(one, position=nulls.next)) == [0, 1, 2]
        source.run("INSERT INTO orders VALUES (51, NULL, 'inserted between two runs')")
        again = read_all(one, position=one.start_of_next_run(rest.next))
        assert ids(again) == [50, 51]
        # The next run begins behind the same row as if there had been none of them.
        assert again[-1].next == rest.next

    def test_rows_without_a_key_are_letters_in_every_run(self, source):
        fill(source, 3)
        source.run("INSERT INTO orders VALUES (NULL, '2026-01-01 00:00:00', 'y'), (NULL, NULL, 'z')")
        one = orders(source)
        for position in (None, one.start_of_next_run(read_all(one)[-1].next)):
            [nulls, *_] = read_all(one, position=position)
            found = sorted((bad.error, bad.raw["fee"], str(bad.error_type)) for bad in nulls.unreadable)
            assert found == [("key id is null", "y", "validation"), ("key id is null", "z", "validation")]

    @pytest.mark.parametrize("most", [1, 2, 3, 100])
    def test_reading_resumes_among_them(self, source, most):
        fill(source, 4)
        source.run("INSERT INTO orders VALUES " + ", ".join(f"({n}, NULL, 'x')" for n in range(50, 57)))
        one = orders(source)
        whole = read_all(one, most=most)
        assert ids(whole) == [*range(50, 57), 0, 1, 2, 3]
        assert max(len(batch.rows) for batch in whole) <= most
        for place, batch in enumerate(whole):
            assert ids(read_all(one, 2, batch.next)) == ids(whole[place + 1 :])

    def test_row_that_the_driver_cannot_represent_is_a_letter(self, server):
        server.run(
            "CREATE TABLE orders (id integer, updated_at timestamp, due date)",
            "INSERT INTO orders VALUES (1, NULL, '2026-01-01'), (2, NULL, 'infinity'), (3, NULL, '2026-01-03')",
        )
        batches = read_all(orders(server), most=2)
        assert ids(batches) == [1, 3]
        [bad] = [one for batch in batches for one in batch.unreadable]
        assert bad.raw == {"id": 2, "updated_at": None, "due": "infinity"}

    def test_table_of_such_rows_only_has_a_start_position(self, lite):
        lite.run("CREATE TABLE orders (id integer, updated_at text)", "INSERT INTO orders VALUES (1, NULL)")
        one = orders(lite, lag=60)
        [nulls] = read_all(one)
        lite.run("INSERT INTO orders VALUES (2, '2026-01-01 00:00:00')")
        assert ids(read_all(one, position=one.start_of_next_run(nulls.next))) == [1, 2]

    @pytest.mark.parametrize("most", [100, 40_000])
    def test_too_many_such_rows_are_an_error_with_advice(self, lite, most):
        lite.run(
            "CREATE TABLE orders (id integer, updated_at text)",
            """WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n LIMIT 10001)
               INSERT INTO orders SELECT id, NULL FROM n""",
        )
        with pytest.raises(SourceError, match=r"more than 10,000 rows of orders have no updated_at,.*filter them out"):
            read_all(orders(lite), most=most)


def test_value_unrepresentable_in_the_driver_rejects_its_row(server):
    server.run(
        "CREATE TABLE orders (id integer, updated_at timestamp, due date)",
        """INSERT INTO orders SELECT n, '2026-01-01', CASE WHEN n IN (3, 400) THEN 'infinity' ELSE date '2026-01-01' END
           FROM generate_series(0, 999) AS n""",
    )
    batches = read_all(orders(server), most=500)
    assert ids(batches) == [n for n in range(1000) if n not in {3, 400}]
    [three, four_hundred] = batches[0].unreadable
    assert three.raw == {"id": 3, "updated_at": datetime(2026, 1, 1), "due": "infinity"}
    assert three.context == {"as_text": ["due"], "missing": []}
    assert three.position == "updated_at 2026-01-01 00:00:00, id 3"
    assert "infinity" in three.error
    assert four_hundred.raw["id"] == 400
    assert batches[0].position_of(3) == "updated_at 2026-01-01 00:00:00, id 4"


def test_failing_expression_rejects_only_its_row(source):
    cast = "json(fee)" if source.kind == "sqlite" else "CAST(fee AS integer)"
    source.run(
        "CREATE TABLE orders (id integer, updated_at timestamp, fee varchar)",
        "INSERT INTO orders VALUES " + ", ".join(f"({n}, '2026-01-01', '{n}')" for n in range(99)),
        "UPDATE orders SET fee = 'N/A' WHERE id = 77",
    )
    sql = f"SELECT id, updated_at, {cast} AS fee FROM orders"
    batches = read_all(orders(source, sql=sql), most=50)
    assert ids(batches) == [n for n in range(99) if n != 77]
    [bad] = batches[1].unreadable
    assert (bad.raw["id"], bad.context) == (77, {"as_text": [], "missing": ["fee"]})
    assert "N/A" in bad.error or "malformed JSON" in bad.error


def test_text_that_is_no_utf8_rejects_only_its_row(lite):
    fill(lite, 10)
    lite.run("UPDATE orders SET fee = CAST(x'ff41' AS text) WHERE id = 4")
    [batch] = read_all(orders(lite), most=50)
    assert ids([batch]) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    [bad] = batch.unreadable
    assert "UTF-8" in bad.error
    assert (bad.raw["fee"], bad.raw["id"]) == (b"\xffA", 4)


class TestUnrepresentableRowReplay:
    """A letter holds the whole row; one that does not is fetched again, or refused."""

    KINDS = "id integer PRIMARY KEY, at timestamp, valid_to timestamptz, day date, opens time, name text"
    ROWS = """(1, '2026-01-01', '2026-01-01', '2026-01-01', '10:00', 'one'),
              (2, '2026-01-02', 'infinity', '2026-01-01', '10:00', 'dos'),
              (3, '2026-01-03', '2026-01-01', '0044-03-15 BC', '24:00', 'tres'),
              (4, '2026-01-04', '-infinity', '2026-01-01', '10:00', 'cuatro')"""

    def pipeline(self, server, tmp_path, sql="SELECT * FROM orders"):
        return redrive.Pipeline(
            "copy",
            source=query(server.url, sql, watermark="at", key="id"),
            sink=redrive.rows.table(server.url, "copied", key="id"),
            store=tmp_path / "store.db",
            gate=redrive.Gate(abort=1.0),
        )

    def made(self, server):
        server.run(
            f"CREATE TABLE orders ({self.KINDS})",
            f"CREATE TABLE copied ({self.KINDS})",
            f"INSERT INTO orders VALUES {self.ROWS}",
            "INSERT INTO copied VALUES (2, '2026-01-01', '2026-01-01', NULL, NULL, 'two')",
        )

    def rows(self, server, table):
        with psycopg.connect(server.url) as connection:
            texts = ", ".join(f"{column.split()[0]}::text" for column in self.KINDS.split(", "))
            return connection.execute(f"SELECT {texts} FROM {table} ORDER BY id").fetchall()

    def test_target_gets_the_original_row(self, server, tmp_path):
        self.made(server)
        pipeline = self.pipeline(server, tmp_path)
        report = pipeline.run()
        assert (report.written, report.rejected) == (1, 3)
        server.run("ALTER TABLE orders RENAME TO archived")  # a letter is all that is left
        result = pipeline.store.dlq.replay(pipeline, dry_run=False)
        assert (result.selected, result.reprocessed) == (3, 3)
        assert self.rows(server, "copied") == self.rows(server, "archived")

    def test_letter_of_key_and_watermark_only_is_fetched_again(self, server):
        self.made(server)
        one = query(server.url, "SELECT * FROM orders", watermark="at", key="id")
        again = one.again({"id": 2, "at": datetime(2026, 1, 2)})
        assert (again["valid_to"], again["name"]) == ("infinity", "dos")
        assert one.again({"id": 1, "at": datetime(2026, 1, 1)})["name"] == "one"

    def test_letter_without_its_row_is_rejected(self, server):
        self.made(server)
        one = query(server.url, "SELECT * FROM orders", watermark="at", key="id")
        with pytest.raises(ValueError, match="no whole row of orders, which has none with id 9 any more"):
            one.again({"id": 9, "at": datetime(2026, 1, 2)})

    def test_row_with_a_failing_expression_is_rejected_until_fixed(self, server):
        self.made(server)
        one = query(server.url, "SELECT id, at, 1 / (id - 2) AS share FROM orders", watermark="at", key="id")
        [batch] = read_all(one)
        [bad] = batch.unreadable
        with pytest.raises(ValueError, match="share of the row of orders with id 2 cannot be read"):
            one.again(bad.raw, bad.context)
        assert one.again({**bad.raw, "share": 7}, bad.context)["share"] == 7
        mended = query(server.url, "SELECT id, at, 1 / id AS share FROM orders", watermark="at", key="id")
        assert mended.again(bad.raw, bad.context)["share"] == 0


def test_repaired_row_is_returned(lite):
    fill(lite, 1)
    assert orders(lite).again({"id": 1}) == {"id": 1}
    with pytest.raises(TypeError, match="a row of orders is a mapping, not a list"):
        orders(lite).again([1])


# ── errors for the operator ───────────────────────────────────────────────────────────────────────────────────────────


def test_missing_table_is_reported_with_the_database_message(source):
    source.run("CREATE TABLE other (id integer)")
    with pytest.raises(SourceError, match=r"^orders: .*orders.*$") as told:
        orders(source).open(None, {})
    assert "\n" not in str(told.value)


def test_missing_column_is_reported_with_the_existing_ones(source):
    fill(source, 1)
    with pytest.raises(SourceError) as told:
        orders(source, watermark="changed_at").open(None, {})
    assert "changed_at" in str(told.value)


def test_duplicate_column_name_is_reported(server):
    fill(server, 1)
    with pytest.raises(SourceError, match="gives fee twice"):
        orders(server, sql="SELECT id, updated_at, fee, fee FROM orders").open(None, {})


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_missing_file_is_not_created(tmp_path, scheme):
    path = tmp_path / "no.db"
    with pytest.raises(SourceError, match=r"there is no database .*no\.db"):
        query(f"{scheme}:///{path}", "SELECT 1", watermark="a", key="b").open(None, {})
    assert not path.exists()


def test_wrong_password_is_reported_without_showing_it(postgres_url):
    url = postgres_url.replace("correct-horse", "wrong-battery")
    with pytest.raises(SourceError, match="password authentication failed") as told:
        query(url, "SELECT 1 AS a", watermark="a", key="a").open(None, {})
    assert "wrong-battery" not in str(told.value)


def test_ambiguous_key_is_reported_before_a_row_is_skipped(source):
    fill(source, 12)
    source.run("UPDATE orders SET id = 4 WHERE id = 3")
    assert ids(read_all(orders(source), most=6)) == [0, 1, 2, 4, 4, *range(5, 12)]
    with pytest.raises(SourceError, match=r"several rows of orders have updated_at .*, id 4.*: name a key"):
        read_all(orders(source), most=4)


class TestCollationEqualKeys:
    """To the database `a` and `A` are one place of the order, and a page that begins behind `a` would not have `A`."""

    ROWS = "INSERT INTO words VALUES ('a', {mark}), ('A', {mark}), ('B', {mark}), ('b', {mark}), ('c', {mark})"

    @pytest.mark.parametrize("mark", ["1", "NULL"])
    @pytest.mark.parametrize(("collation", "again"), [("NOCASE", "A"), ("RTRIM", "a ")])
    def test_row_is_not_skipped(self, lite, mark, collation, again):
        lite.run(
            f"CREATE TABLE words (word TEXT COLLATE {collation}, mark INTEGER)",
            self.ROWS.format(mark=mark).replace("'A'", f"'{again}'").replace("'b'", "'d'"),
        )
        words = query(lite.url, "SELECT * FROM words", watermark="mark", key="word")
        found = [row["word"] for batch in read_all(words, most=5) for row in batch.rows.records]
        assert sorted(found) == sorted(["a", again, "B", "d", "c"])
        with pytest.raises(SourceError, match=r"several rows of words have .*: name a key that distinguishes them"):
            read_all(words, most=1)

    def test_collation_is_in_the_order_of_duckdb(self, tmp_path):
        path = tmp_path / "words.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE words (word VARCHAR COLLATE NOCASE, mark INTEGER)")
            connection.execute(self.ROWS.format(mark="1"))
        words = query(f"duckdb:///{path}", "SELECT * FROM words", watermark="mark", key="word")
        assert sum(len(batch.rows) for batch in read_all(words, most=2)) == 5
        with pytest.raises(SourceError, match="several rows of words have"):
            read_all(words, most=1)


def test_reading_stopped_by_an_error_has_not_ended(server):
    server.run("CREATE TABLE marks (mark inet, id integer)", "INSERT INTO marks VALUES ('10.0.0.1', 1)")
    reading = query(server.url, "SELECT * FROM marks", watermark="mark", key="id").open(None, {})
    for _ in range(2):
        with pytest.raises(SourceError, match="no position can hold"):
            reading.read(10)
    reading.close()


def test_watermark_that_no_checkpoint_can_store_is_reported(server):
    server.run("CREATE TABLE marks (mark inet, id integer)", "INSERT INTO marks VALUES ('10.0.0.1', 1)")
    with pytest.raises(
        SourceError, match="mark is of the type IPv4Address, which no position can hold: cast it to text"
    ):
        read_all(query(server.url, "SELECT * FROM marks", watermark="mark", key="id"))


def test_invalid_lag_is_reported_in_the_first_run(lite):
    lite.run("CREATE TABLE orders (id integer, updated_at text)", "INSERT INTO orders VALUES (1, 'last week')")
    with pytest.raises(SourceError, match="lag needs a watermark that is a time or a number of seconds"):
        read_all(orders(lite, lag=60))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": "no url"}, "URL cannot be read"),
        ({"url": "nosuch://host/db"}, "knows no database 'nosuch'"),
        ({"sql": " ; "}, "needs an SQL query"),
        ({"key": []}, "names of its watermark and key"),
        ({"watermark": ""}, "names of its watermark and key"),
        ({"lag": -1}, "not negative"),
        ({"parameters": {"since": 1}}, "has no :since"),
    ],
)
def test_impossible_options_are_rejected_at_once(arguments, says):
    given_ones = {"url": "sqlite:///x.db", "sql": "SELECT * FROM t", "watermark": "w", "key": "k", **arguments}
    with pytest.raises(ValueError, match=says):
        query(given_ones.pop("url"), given_ones.pop("sql"), **given_ones)


def test_query_can_only_read(server):
    fill(server, 1)
    server.run("CREATE FUNCTION touch() RETURNS integer LANGUAGE sql AS 'DELETE FROM orders RETURNING 1'")
    with pytest.raises(SourceError, match="read-only transaction"):
        read_all(orders(server, sql="SELECT *, touch() AS touched FROM orders"))


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoint_is_valid_for_the_same_query_only():
    def made(url="postgresql://me:secret@db.example/shop", sql="SELECT * FROM orders", **options):
        return query(url, sql, **{"watermark": "updated_at", "key": "id", **options})

    taken = made().identity()
    assert "secret" not in json.dumps(taken)
    assert made("postgresql+psycopg2://other:pass@db.example/shop").difference(taken) is None
    assert made(sql="SELECT id, updated_at FROM orders WHERE id > 0").difference(taken) is None
    assert made("postgresql://me:secret@test.example/shop").difference(taken) == (
        "its database was postgresql://db.example/shop, and here it is postgresql://test.example/shop"
    )
    assert made(sql='SELECT * FROM "sales".refunds').difference(taken) == (
        "its name was orders, and here it is sales.refunds"
    )
    assert made(watermark="id").difference(taken) == "its watermark was updated_at, and here it is id"
    assert made(key=["id", "line"]).difference(taken) == "its key was id, and here it is id, line"


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("select * from orders", "orders"),
        ('SELECT a FROM "Sales" . "Orders" o', "Sales.Orders"),
        ("SELECT * FROM (SELECT * FROM inner_table) x", "inner_table"),
        ("VALUES (1, 2)", "VALUES (1, 2)"),
    ],
)
def test_query_is_named_after_its_table(sql, name):
    assert query("sqlite:///x.db", sql, watermark="w", key="k").name == name


values = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.decimals(allow_nan=False),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.uuids(),
    st.booleans(),
)


@given(st.lists(values, min_size=1, max_size=3))
def test_every_value_of_a_position_comes_back_from_json(position):
    stored = json.dumps(to_json(position, [""] * len(position)))
    found = from_json(json.loads(stored))
    assert found == position
    assert list(map(type, found)) == list(map(type, position))


@given(st.timezones(), st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2090, 1, 1)))
def test_datetime_of_any_zone_comes_back_as_the_same_time(zone, moment):
    [found] = from_json(to_json([moment.replace(tzinfo=zone)], ["w"]))
    assert found == moment.replace(tzinfo=zone).astimezone(UTC)


# ── stepping back ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "lag", "back"),
    [
        (datetime(2026, 1, 1), 1, datetime(2025, 12, 31, 23, 59, 59)),
        (date(2026, 1, 1), 3600, date(2025, 12, 31)),
        (date(2026, 1, 3), 86400, date(2026, 1, 2)),
        (1_000, 0.5, 999),
        (1_000.0, 0.5, 999.5),
        (Decimal("1000.25"), 0.5, Decimal("999.75")),
        ("2026-01-01 00:00:00", 1, "2025-12-31 23:59:59"),
        ("2026-01-01 00:00:00", 0.25, "2025-12-31 23:59:59"),
        ("2026-01-01T00:00:00Z", 60, "2025-12-31T23:59:00Z"),
        ("2026-01-01T00:00:00.500+02:00", 0.25, "2026-01-01T00:00:00.250+02:00"),
        ("2026-01-01 00:00:00.123456789", 1, "2025-12-31 23:59:59.123456000"),
        ("2026-01-01 00:00", 61, "2025-12-31 23:58"),
        ("2026-01-02", 60, "2026-01-01"),
    ],
)
def test_watermark_moves_back_and_has_the_same_form(value, lag, back):
    assert stepped_back(value, timedelta(seconds=lag), "w") == back


@pytest.mark.parametrize("value", ["soon", "20260101", UUID(int=1), b"x", datetime(1, 1, 1)])
def test_watermark_that_cannot_move_back_is_an_error(value):
    with pytest.raises(SourceError, match="lag needs a watermark"):
        stepped_back(value, timedelta(days=1), "w")


@given(
    st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2090, 1, 1)),
    st.timedeltas(min_value=timedelta(), max_value=timedelta(days=900)),
    st.sampled_from(["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%SZ"]),
)
def test_text_moves_back_at_least_as_far_as_its_time(moment, lag, form):
    back = stepped_back(moment.strftime(form), lag, "w")
    assert back <= (moment - lag).strftime(form)
    assert len(back) == len(moment.strftime(form))


# ── databases that cannot compare rows ────────────────────────────────────────────────────────────────────────────────

_few = st.integers(0, 3)


@given(st.lists(st.tuples(_few, _few, _few)), st.tuples(_few, _few, _few))
def test_column_wise_comparison_selects_the_larger_rows(rows, behind):
    keyset = Keyset("SELECT a, b, c FROM t", {}, ("a", "b", "c"), backend="mssql")
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        connection.execute(sql_text("CREATE TABLE t (a, b, c)"))
        for row in rows:
            connection.execute(sql_text("INSERT INTO t VALUES (:a, :b, :c)"), dict(zip("abc", row, strict=True)))
        found = connection.execute(keyset.page(None, behind, 1_000)).fetchall()
        upto = connection.execute(keyset.between(None, None, behind)).fetchall()
    engine.dispose()
    assert found == sorted(row for row in rows if row > behind)
    assert upto == sorted(row for row in rows if row <= behind)


# ── transient faults ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_server_restart_between_two_pages_is_waited_for(mortal_postgres):
    mortal_postgres.start()
    source = Source("postgresql", mortal_postgres.url, lambda: psycopg.connect(mortal_postgres.url))
    fill(source, 25)
    reading = orders(source).open(None, {})
    batches = [reading.read(10)]
    mortal_postgres.kill()
    starting = threading.Thread(target=mortal_postgres.start)
    starting.start()
    batches += [reading.read(10), reading.read(10)]
    starting.join()
    reading.close()
    assert ids(batches) == list(range(25))


def test_server_that_stays_away_is_a_transient_error(postgres_url, monkeypatch):
    monkeypatch.setattr(databases, "PATIENCE", 0.1)
    url = postgres_url.rpartition(":")[0] + ":1/none"
    with pytest.raises(Exception, match="refused") as told:
        query(url, "SELECT 1 AS a", watermark="a", key="a").open(None, {})
    assert redrive.classify(told.value).kind == "transient"


def test_database_locked_by_another_connection_is_waited_for(lite):
    fill(lite, 3)
    holder = sqlite3.connect(lite.url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, lambda: holder.execute("COMMIT"))
    release.start()
    impatient = Source("sqlite", f"{lite.url}?timeout=0.05", None)
    assert ids(read_all(orders(impatient))) == [0, 1, 2]
    release.join()
    holder.close()


def test_duckdb_values_that_python_lacks_are_texts(tmp_path):
    path = tmp_path / "fine.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            """CREATE TABLE t AS SELECT * FROM (VALUES
                (1, INTERVAL '1 month', TIMESTAMP 'infinity', DATE '-infinity', TIMESTAMPTZ 'infinity',
                 TIMESTAMP_NS '2026-07-01 12:00:00.123456789', [TIMESTAMP_NS '2026-07-01 12:00:00.123456789'],
                 {'a "INTERVAL"': INTERVAL '1 month'}, [TIMESTAMP 'infinity']),
                (2, INTERVAL '30 hours', TIMESTAMP '9999-12-31 23:59:59.999999', DATE '9999-12-31', NULL,
                 TIMESTAMP_NS '2026-07-01 12:00:00.123456', [], NULL, [TIMESTAMP '2026-07-01'])
            ) rows (id, length, moment, day, instant, fine, list, nested, moments)"""
        )
    reading = query(f"duckdb:///{path}", "SELECT * FROM t", watermark="fine", key="id")
    with contextlib.closing(reading.open(None, reading.identity())) as opened:
        records = [record for batch in iter(lambda: opened.read(1), None) for record in batch.rows.records]
    fine = "2026-07-01 12:00:00.123456789"
    second, first = ([record[name] for name in list(record)[1:]] for record in records)
    assert first == [
        "1 month",
        "infinity",
        "-infinity",
        "infinity",
        fine,
        [fine],
        {'a "INTERVAL"': "1 month"},
        ["infinity"],
    ]
    moment = datetime(2026, 7, 1, 12, 0, 0, 123456)
    assert second == ["30:00:00", datetime.max, date.max, None, moment, [], None, [datetime(2026, 7, 1)]]


class TestDuckdbDatetimes:
    @pytest.fixture(autouse=True)
    def without_pytz(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pytz", None)

    def test_datetimes_with_a_zone_are_read(self, tmp_path):
        path = tmp_path / "moments.duckdb"
        moments = ["2026-01-01 00:00:00.000001+00", "1969-12-31 23:59:59.999999+00", "0001-01-02 00:00:00+00", None]
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE t (id INTEGER, moment TIMESTAMPTZ)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate([*moments, "infinity"])))
        read = read_all(query(f"duckdb:///{path}", "SELECT * FROM t", watermark="id", key="id"))
        expected = [text and datetime.fromisoformat(text) for text in moments]
        assert [record["moment"] for batch in read for record in batch.rows.records] == [*expected, "infinity"]
        later = query(f"duckdb:///{path}", "SELECT * FROM t WHERE id < 3", watermark="moment", key="id")
        assert ids(read_all(later, most=1)) == [2, 1, 0]

    def test_datetimes_within_lists_need_pytz(self):
        source = query("duckdb://", "SELECT 1 AS id, [now()] AS list", watermark="id", key="id")
        with pytest.raises(SourceError, match="needs the package pytz to read list"):
            source.open(None, source.identity())


def test_duckdb_reads_a_file_that_this_process_writes_to(tmp_path):
    path = tmp_path / "busy.duckdb"
    with duckdb.connect(str(path)) as writer:
        writer.execute("CREATE TABLE t AS SELECT 1 AS id")
        assert ids(read_all(query(f"duckdb:///{path}", "SELECT * FROM t", watermark="id", key="id"))) == [1]


@pytest.mark.parametrize("written", ["source.db", "../{}/source.db"])
def test_duckdb_query_writes_to_its_own_file(tmp_path, written):
    path = tmp_path / "source.db"
    place = Source("duckdb", f"duckdb:///{path}", lambda: duckdb.connect(str(path)))
    fill(place, 25)
    sink = redrive.rows.table(
        f"duckdb:///{tmp_path / written.format(tmp_path.name)}", "copy", key="id", create=True, patience=0.1
    )
    pipeline = redrive.Pipeline("copy", source=orders(place), sink=sink, store=tmp_path / "store.db", batch=10)
    assert pipeline.run().written == 25
    place.run("INSERT INTO orders VALUES (100, '2026-08-01', 'new')")  # the file is free after the run
    assert pipeline.run().written == 1


def test_duckdb_reads_files_without_a_database(tmp_path):
    (tmp_path / "t.csv").write_text("id\n1\n2\n")
    one = query("duckdb://", f"SELECT * FROM '{tmp_path}/t.csv'", watermark="id", key="id")
    assert ids(read_all(one, most=1)) == [1, 2]


TYPES = {
    "ip inet": "10.0.0.1/24",
    "net cidr": "10.0.0.0/8",
    "six inet": "2001:db8::1",
    "mac macaddr": "08:00:2b:01:02:03",
    "span int4range": "[1,5)",
    "days daterange": "(,2026-02-01)",
    "times tstzrange": '["2026-01-01 00:00:00+00",)',
    "amounts numrange": "[1.50,2.50]",
    "nothing int8range": "empty",
    "spans int4multirange": "{[1,3),[7,9)}",
    "months interval": "1 mon 2 days",
    "years interval": "-1 years -3 mons",
    "hours interval": "49:30:00.5",
    "days_and_hours interval": "2 days 01:30:00.5",
    "signs interval": "1 day -01:00:00",
    "behind interval": "-1 days -04:05:06",
    "before interval": "-04:05:06",
    "mixed interval": "-2 days +19:54:54",
    "spot point": "(1.5,2.5)",
    "area box": "(2,2),(1,1)",
    "ring circle": "<(1,1),2>",
    "flags bit(4)": "1010",
    "mask varbit": "10101",
    "doc jsonb": '{"a": [1, "x"]}',
    "list inet[]": "{10.0.0.1,10.0.0.2}",
    "tags text[]": '{a,NULL,"b c"}',
    "shifted integer[]": "[0:1]={5,6}",
    "grid numeric(10,2)[]": "[-1:0][2:3]={{1.50,2},{3,4}}",
    "moments timestamptz[]": '[0:0]={"2026-01-01 00:00:00+00"}',
    "price money": "$1.50",
    "word tsvector": "'a' 'b'",
    "open timestamptz": "infinity",
    "raw bytea": r"\xff00",
    "who uuid": "9f0c6b0a-0000-4000-8000-000000000001",
    "big numeric": "12345678901234567890.123456789",
}


@pytest.mark.parametrize(
    ("interval", "held"),
    [
        ("00:00:00", True),
        ("23:59:59.999999", True),
        ("-3 days", True),
        ("1 day 00:30:00", True),
        ("-1 days +00:30:00", True),
        ("-3 days -04:00:00", False),
        ("-04:05:06", False),
        ("24:00:00", False),
        ("1 day -00:30:00", False),
        ("1 mon", False),
        ("-2 years -1 mons +3 days", False),
        ("P1M", False),
    ],
)
def test_interval_beyond_timedelta_is_detected(interval, held):
    assert databases.is_timedelta(interval) is held


@pytest.mark.parametrize("checked", [True, False], ids=["rejected by validate", "rejected by the sink"])
def test_database_types_come_back_from_letters_unchanged(server, tmp_path, checked):
    columns = ", ".join(["id integer PRIMARY KEY, at timestamp", *TYPES])
    server.run(f"CREATE TABLE orders ({columns})", f"CREATE TABLE copied ({columns}, CHECK (id > 9) NOT VALID)")
    with psycopg.connect(server.url) as connection:
        places = ", ".join(["%s"] * len(TYPES))
        for number in (1, 2):
            values = list(TYPES.values())
            if number == 2:  # one that the driver can hold
                values[list(TYPES).index("open timestamptz")] = "2026-01-01"
            connection.execute(f"INSERT INTO orders VALUES ({number}, '2026-01-01', {places})", values)

    def pipeline(validate=None):
        return redrive.Pipeline(
            "copy",
            source=query(server.url, "SELECT * FROM orders", watermark="at", key="id"),
            sink=redrive.rows.table(server.url, "copied", key="id"),
            validate=validate,
            store=tmp_path / "store.db",
            gate=redrive.Gate(abort=1.0),
        )

    def rejecting(record):
        raise ValueError("not today")

    assert pipeline(rejecting if checked else None).run().rejected == 2
    server.run("ALTER TABLE copied DROP CONSTRAINT copied_id_check")
    assert pipeline().store.dlq.replay(pipeline(), dry_run=False).reprocessed == 2
    with psycopg.connect(server.url) as connection:
        texts = ", ".join(f"{column.split()[0]}::text" for column in TYPES)
        [was, now] = (
            connection.execute(f"SELECT {texts} FROM {name} ORDER BY id").fetchall() for name in ("orders", "copied")
        )
    assert now == was


@pytest.mark.parametrize("style", ["SQL,DMY", "German", "Postgres,DMY", "ISO,DMY"])
def test_date_style_of_the_source_session_changes_no_value(server, tmp_path, style):
    columns = "id integer PRIMARY KEY, at timestamptz, days date[], spans tstzrange, lasted interval"
    server.run(f"CREATE TABLE orders ({columns})", f"CREATE TABLE copied ({columns})")
    server.run(
        "INSERT INTO orders VALUES (1, '2026-03-02 10:00+00', NULL, NULL, '-1 days -04:05:06'),"
        " (2, NULL, '[0:1]={2026-03-02,2026-04-05}', '[2026-03-02 00:00+00,)', '36:00:00'),"
        " (3, '0044-03-02 10:00+00 BC', NULL, NULL, NULL)"
    )
    styled = f"{server.url}%20-c%20DateStyle%3D{style}"
    pipeline = redrive.Pipeline(
        "styles",
        source=query(styled, "SELECT * FROM orders", watermark="id", key="id"),
        sink=redrive.rows.table(server.url, "copied", key="id"),
        store=tmp_path / "store.db",
    )
    report = pipeline.run()
    assert (report.written, report.rejected) == (2, 1)  # Python has no year before Christ
    assert pipeline.store.dlq.replay(pipeline, dry_run=False).reprocessed == 1
    with psycopg.connect(server.url) as connection:
        was, now = (
            connection.execute(
                f"SELECT id, at::text, days::text, spans::text, lasted::text FROM {name} ORDER BY id"
            ).fetchall()
            for name in ("orders", "copied")
        )
    assert now == was


def test_intervals_of_duckdb_are_copied_exactly(tmp_path):
    texts = ["-1 day -04:00:00", "36:00:00", "-36:00:00", "1 day -01:00:00", "-2 days", "1 day 02:00:00", "-00:00:01"]
    url = f"duckdb:///{tmp_path / 'a.duckdb'}"
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        for name in ("orders", "copied"):
            connection.execute(f"CREATE TABLE {name} (id integer PRIMARY KEY, lasted interval)")
        connection.executemany("INSERT INTO orders VALUES (?, CAST(? AS interval))", list(enumerate(texts)))
    pipeline = redrive.Pipeline(
        "intervals",
        source=query(url, "SELECT * FROM orders", watermark="id", key="id"),
        sink=redrive.rows.table(url, "copied", key="id"),
        store=tmp_path / "store.db",
    )
    assert pipeline.run().written == len(texts)
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        was, now = (
            connection.execute(f"SELECT id, lasted::varchar FROM {name} ORDER BY id").fetchall()
            for name in ("orders", "copied")
        )
    assert now == was


class TestJsonColumns:
    """json and jsonb of PostgreSQL, whose numbers have any number of digits."""

    @pytest.mark.parametrize(("kind", "wrapped"), [("json", "%s"), ("jsonb", "%s"), ("json[]", "ARRAY[%s::json]")])
    def test_numbers_are_exact(self, server, kind, wrapped):
        text = '{"amount": 12345678901234567.89, "wei": 0.123456789012345678, "count": 123456789012345678901, "x": 0.1}'
        server.run(f"CREATE TABLE orders (id integer PRIMARY KEY, doc {kind})")
        with psycopg.connect(server.url) as connection:
            connection.execute(f"INSERT INTO orders VALUES (1, {wrapped})", (text,))
        [batch] = read_all(query(server.url, "SELECT * FROM orders", watermark="id", key="id"))
        [record] = batch.rows.records
        exact = {
            "amount": Decimal("12345678901234567.89"),
            "wei": Decimal("0.123456789012345678"),
            "count": 123456789012345678901,
            "x": 0.1,
        }
        assert record["doc"] == ([exact] if kind == "json[]" else exact)

    def test_number_beyond_a_float_is_a_letter_with_the_text(self, server):
        server.run("CREATE TABLE orders (id integer PRIMARY KEY, doc json)")
        server.run("""INSERT INTO orders VALUES (1, '{"x": 1e400}'), (2, '{"x": 1}')""")
        [batch] = read_all(query(server.url, "SELECT * FROM orders", watermark="id", key="id"))
        assert batch.rows.records == [{"id": 2, "doc": {"x": 1}}]
        assert [lost.raw for lost in batch.unreadable] == [{"id": 1, "doc": '{"x": 1e400}'}]


class TestBlockedSource:
    """A lock on the table that is read: waited for, but not for ever."""

    @pytest.fixture
    def copy(self, server, tmp_path, request):
        fill(server, 25)
        return redrive.Pipeline(
            "copy",
            source=query(
                server.url + getattr(request, "param", ""), "SELECT * FROM orders", watermark="updated_at", key="id"
            ),
            sink=redrive.rows.table(f"sqlite:///{tmp_path}/sink.db", "orders", key="id", create=True),
            store=tmp_path / "store.db",
        )

    @contextlib.contextmanager
    def locked(self, server):
        with psycopg.connect(server.url) as connection:
            connection.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            yield connection

    def test_patience_ends_the_wait_with_a_transient_error(self, server, copy, monkeypatch):
        monkeypatch.setattr(databases, "PATIENCE", 0.5)
        monkeypatch.setattr(databases, "_LOCK_WAIT", 0.1)
        with self.locked(server), pytest.raises(redrive.RunStopped, match="lock timeout") as stopped:
            copy.run()
        assert stopped.value.kind == "transient"
        assert copy.run().written == 25

    @pytest.mark.parametrize("copy", ["", "%20-cstatement_timeout%3D200"], indirect=True)
    def test_lock_released_in_time_causes_no_error(self, server, copy):
        with self.locked(server) as connection:
            release = threading.Timer(1.0, connection.rollback)
            release.start()
            assert copy.run().written == 25
            release.join()

    def test_deadline_cancels_the_statement(self, server, copy, monkeypatch):
        monkeypatch.setattr(thread, "GRACE", 0.2)
        with self.locked(server), pytest.raises(redrive.RunStopped, match="deadline") as stopped:
            copy.run(deadline=0.5)
        assert stopped.value.report.status == "stopped"
        assert copy.run().written == 25

    @staticmethod
    def stop_when_blocked(server, copy):
        """Before, there may be no run yet that could be asked to stop."""
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%orders%'"
        with psycopg.connect(server.url, autocommit=True) as connection:
            until = time.monotonic() + 60
            while not connection.execute(waits).fetchone()[0] and time.monotonic() < until:
                time.sleep(0.02)
        copy.stop()

    def test_stop_request_cancels_the_statement(self, server, copy, monkeypatch):
        monkeypatch.setattr(thread, "GRACE", 0.2)
        stop = threading.Thread(target=self.stop_when_blocked, args=(server, copy))
        with self.locked(server):
            stop.start()
            with pytest.raises(redrive.RunStopped, match="it was asked to"):
                copy.run()
            stop.join()
