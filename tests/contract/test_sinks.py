"""What every table does with rows, in each database."""

import contextlib
import datetime as dt
import json
import math
import sqlite3
import uuid
from decimal import Context, Decimal
from enum import Enum
from typing import Annotated

import dataframely as dy
import duckdb
import numpy
import polars as pl
import psycopg
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

import redrive
from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.exact.capacity import ColumnCapacity
from redrive.rows.sinks.exact.columns import find_changes
from redrive.rows.sinks.parquet.sink import parquet_dataset
from redrive.rows.sinks.sink import SharesTransactions
from redrive.rows.sinks.sqlalchemy.sink import GenericTable
from redrive.rows.sinks.table import table
from redrive.rows.sinks.table_schema import TableName
from tests.support.examples import examples

UTC = dt.UTC
_WIDE = Context(prec=200)


class Place:
    """A database of the test's own: its sinks, and SQL of the test's own beside them."""

    def __init__(self, kind, url, run):
        self.kind, self.url, self.sql = kind, url, run
        self.is_postgres, self.is_sqlite = kind.endswith("postgresql"), kind.endswith("sqlite")
        self._sinks = []

    def sink(self, name="t", *, key="id", create=False, patience=5.0):
        if self.kind == "parquet":
            made = parquet_dataset(self.url / name, key=key)
        elif self.kind.startswith("generic"):
            key = (key,) if isinstance(key, str) else tuple(key)
            made = GenericTable(make_url(self.url), TableName.parse(name), key=key, create=create, patience=patience)
        else:
            made = table(self.url, name, key=key, create=create, patience=patience)
        self._sinks.append(made)
        return made

    def close(self):
        for sink in self._sinks:
            sink.close()


@pytest.fixture(scope="module")
def postgres_database(postgres_url):
    """A database of this module's own."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE sinks")
    yield postgres_url.rpartition("/")[0] + "/sinks"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP DATABASE sinks WITH (FORCE)")


@contextlib.contextmanager
def postgres(kind, url):
    with psycopg.connect(url, autocommit=True) as connection:

        def run(statement):
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

        # Another driver of the same database, so that SQLAlchemy has to know what to do with it.
        generic = url.replace("postgresql://", "postgresql+psycopg2://")
        yield Place(kind, generic if kind.startswith("generic") else url, run)
        run("DROP SCHEMA IF EXISTS silver CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@contextlib.contextmanager
def sqlite(kind, directory):
    path = directory / "sink.db"
    connection = sqlite3.connect(path, isolation_level=None)
    yield Place(kind, f"sqlite:///{path}", lambda statement: connection.execute(statement).fetchall())
    connection.close()


@contextlib.contextmanager
def duck(kind, directory):
    path = directory / "sink.duckdb"
    connection = duckdb.connect(str(path))
    connection.execute("SET TimeZone = 'UTC'")
    yield Place(kind, f"duckdb:///{path}", lambda statement: connection.execute(statement).fetchall())
    connection.close()


@contextlib.contextmanager
def parquet(kind, directory):
    def run(statement):
        with duckdb.connect() as connection:
            connection.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet('{directory}/t/*.parquet')")
            return connection.execute(statement).fetchall()

    yield Place(kind, directory, run)


TABLES = ["postgresql", "sqlite", "duckdb", "generic-sqlite", "generic-postgresql"]


@contextlib.contextmanager
def opened(request, directory):
    if request.param.endswith("postgresql"):
        made = postgres(request.param, request.getfixturevalue("postgres_database"))
    else:
        made = {"duckdb": duck, "parquet": parquet}.get(request.param, sqlite)(request.param, directory)
    with made as place:
        yield place
        place.close()


@pytest.fixture(params=TABLES)
def place(request, tmp_path):
    """A database with tables."""
    with opened(request, tmp_path) as made:
        yield made


@pytest.fixture(params=[*TABLES, "parquet"])
def anywhere(request, tmp_path):
    """Where rows can go without anything being there before."""
    with opened(request, tmp_path) as made:
        yield made


@pytest.fixture(params=["a frame", "tuples"])
def outgoing(request):
    """Makes rows of records, in the form a pipeline would have them: of a vectorised check, or of a function."""

    def make(records, **dtypes):
        if request.param == "tuples":
            return Outgoing.of_records(records, range(len(records)))
        return Outgoing.of_frame(
            pl.DataFrame(records, schema_overrides=dtypes, infer_schema_length=None), range(len(records))
        )

    return make


def places(refused):
    assert all(one.error_type is ErrorType.SINK for one in refused)
    assert all("\n" not in str(one.error) and "redrive" not in str(one.error) for one in refused)
    return [one.place for one in refused]


def deliveries(place, *, more=""):
    """A table with everything that a row can break."""
    place.sql("CREATE TABLE city (id integer PRIMARY KEY)")
    place.sql("INSERT INTO city VALUES (1), (2), (3)")
    place.sql(
        f"""CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city (id), vendor text NOT NULL,
            fee numeric(8, 2) CHECK (fee >= 0), note text DEFAULT 'none'{more})"""
    )
    return place.sink()


def good(count, start=0):
    return [
        {"id": n, "city": n % 3 + 1, "vendor": f"vendor {n}", "fee": n % 90 + 0.5} for n in range(start, start + count)
    ]


FAULTS = [{"city": 99}, {"vendor": None}, {"fee": -1.0}]
"""What every database refuses."""


def with_faults(count, bad):
    """Rows of which those at `bad` break one rule or another."""
    return [{**row, **(FAULTS[row["id"] % 3] if at in bad else {})} for at, row in enumerate(good(count))]


# ── good rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_written_and_missing_columns_get_defaults(place, outgoing):
    sink = deliveries(place)
    rows = outgoing(good(5))
    sink.check(rows.columns)
    assert list(sink.write(rows, label="run-1/0")) == []
    assert place.sql("SELECT id, city, vendor, note FROM t ORDER BY id") == [
        (n, n % 3 + 1, f"vendor {n}", "none") for n in range(5)
    ]
    assert [float(fee) for (fee,) in place.sql("SELECT fee FROM t ORDER BY id")] == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_row_of_an_existing_key_updates_only_its_columns(place, outgoing):
    sink = deliveries(place)
    sink.write(outgoing([{**row, "note": "kept"} for row in good(4)]), label="a")
    assert list(sink.write(outgoing([{"id": 1, "vendor": "new"}, {"id": 9, "vendor": "added"}]), label="b")) == []
    assert place.sql("SELECT id, city, vendor, note FROM t WHERE id IN (0, 1, 9) ORDER BY id") == [
        (0, 1, "vendor 0", "kept"),
        (1, 2, "new", "kept"),
        (9, None, "added", "none"),
    ]


def test_writing_twice_equals_writing_once(anywhere, outgoing):
    sink = anywhere.sink(create=True)
    sink.check(("id", "city", "vendor", "fee"))
    for label in ("run-1/0", "run-1/0", "run-2/0"):
        assert list(sink.write(outgoing(good(50)), label=label)) == []
    once = anywhere.sql("SELECT * FROM t ORDER BY id")
    assert list(anywhere.sink().write(outgoing(good(50)), label="run-1/0")) == []  # another process
    assert anywhere.sql("SELECT * FROM t ORDER BY id") == once
    assert len(once) == 50


def test_row_of_an_existing_key_replaces_it(anywhere, outgoing):
    sink = anywhere.sink(create=True)
    sink.write(outgoing(good(6)), label="a")
    assert list(sink.write(outgoing([{**row, "vendor": "new"} for row in good(4, start=4)]), label="b")) == []
    assert anywhere.sql("SELECT id, vendor FROM t ORDER BY id") == [
        (n, f"vendor {n}" if n < 4 else "new") for n in range(8)
    ]


def test_empty_write_runs_no_statement(anywhere):
    sink, none = anywhere.sink(create=True), Outgoing(("id", "vendor"), (), tuples=[])
    assert list(sink.write(none, label="a")) == []
    assert list(sink.rehearse(none)) == []


def test_closed_sink_can_be_used_again(anywhere, outgoing):
    sink = anywhere.sink(create=True)
    sink.write(outgoing(good(2)), label="a")
    sink.close()
    sink.close()
    sink.write(outgoing(good(2, start=2)), label="b")
    assert anywhere.sql("SELECT count(*) FROM t") == [(4,)]


def test_key_of_several_columns(anywhere, outgoing):
    sink = anywhere.sink(key=["shop", "n"], create=True)
    rows = [{"n": n, "total": n, "shop": shop} for shop in "ab" for n in (1, 2)]
    sink.write(outgoing(rows), label="a")
    sink.write(outgoing([{**rows[0], "total": 70}]), label="b")
    assert anywhere.sql("SELECT shop, total FROM t ORDER BY shop, total") == [("a", 2), ("a", 70), ("b", 1), ("b", 2)]


def test_key_is_found_in_any_column_order(place, outgoing):
    place.sql("CREATE TABLE t (shop text, day date, total integer, PRIMARY KEY (day, shop))")
    sink = place.sink(key=["shop", "day"])
    for total in (1, 2):
        sink.write(outgoing([{"shop": "a", "day": dt.date(2026, 7, 1), "total": total}]), label="a")
    assert place.sql("SELECT shop, total FROM t") == [("a", 2)]


def test_table_that_is_only_its_key(anywhere, outgoing):
    sink = anywhere.sink(key=["a", "b"], create=True)
    for label in "ab":
        assert list(sink.write(outgoing([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]), label=label)) == []
    assert anywhere.sql("SELECT a, b FROM t ORDER BY b") == [(1, "x"), (1, "y")]


def test_names_may_be_reserved_capitalized_spaced_or_quoted(place, outgoing):
    names = ["select", "Order", "two words", "größe", 'a"b', "100%", "redrive_row", "p0", "it's"]
    columns = ", ".join('"' + name.replace('"', '""') + '" text' for name in names)
    place.sql(f'CREATE TABLE "Group By. Ünï" ({columns}, PRIMARY KEY ("select", "Order"))')
    sink = place.sink('"Group By. Ünï"', key=["select", "Order"])
    row = {name: f"value of {name}" for name in names}
    sink.check(names)
    for _ in range(2):
        assert list(sink.write(outgoing([row]), label="a")) == []
    assert place.sql('SELECT * FROM "Group By. Ünï"') == [tuple(row.values())]


def test_table_in_another_schema(place, outgoing):
    if place.is_sqlite:
        pytest.skip("a file has no schemas")
    place.sql("CREATE SCHEMA silver")
    place.sql("CREATE TABLE silver.t (id integer PRIMARY KEY, a text)")
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, a text)")
    assert list(place.sink("silver.t").write(outgoing([{"id": 1, "a": "x"}]), label="a")) == []
    assert place.sql("SELECT * FROM silver.t") == [(1, "x")]
    assert place.sql("SELECT * FROM t") == []


def test_keys_equal_in_the_table_are_one_row(place, outgoing):
    # Which of them it is, the run decides before it writes: see test_key_spellings.
    sink = deliveries(place)
    rows = [{"id": "1", "vendor": "first"}, {"id": "01", "vendor": "second"}, {"id": "2", "vendor": "other"}]
    assert list(sink.write(outgoing(rows), label="a")) == []
    (one, other) = place.sql("SELECT id, vendor FROM t ORDER BY id")
    assert one in [(1, "first"), (1, "second")]
    assert other == (2, "other")


# ── bad rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "bad",
    [{0}, {59}, {0, 59}, {20, 21, 22, 23}, {7, 8, 30, 58, 59}, set(range(60)), set(range(59))],
    ids=["first", "last", "both ends", "adjacent", "several", "all", "all but one"],
)
def test_only_invalid_rows_are_rejected(place, outgoing, bad):
    sink = deliveries(place)
    rows = outgoing(with_faults(60, bad))
    assert places(sink.write(rows, label="a")) == sorted(bad)
    assert {n for (n,) in place.sql("SELECT id FROM t")} == set(range(60)) - bad
    assert places(sink.write(rows, label="a")) == sorted(bad)
    assert {n for (n,) in place.sql("SELECT id FROM t")} == set(range(60)) - bad


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bad=st.sets(st.integers(0, 39)), there=st.sets(st.integers(0, 39)))
def test_invalid_rows_are_rejected_over_any_existing_rows(place, outgoing, bad, there):
    for statement in ("DROP TABLE IF EXISTS t", "DROP TABLE IF EXISTS city"):
        place.sql(statement)
    sink = deliveries(place)
    before = [{**row, "vendor": "before"} for row in good(40) if row["id"] in there]
    if before:
        sink.write(outgoing(before), label="a")
    assert places(sink.write(outgoing(with_faults(40, bad)), label="b")) == sorted(bad)
    after = {n: f"vendor {n}" for n in range(40) if n not in bad}
    assert dict(place.sql("SELECT id, vendor FROM t")) == dict.fromkeys(there, "before") | after
    sink.close()


def test_error_is_one_line_that_names_the_fault(place, outgoing):
    sink = deliveries(place)
    rows = [{**row, **fault} for row, fault in zip(good(3), FAULTS, strict=True)]
    city, vendor, fee = (str(one.error) for one in sink.write(outgoing(rows), label="a"))
    assert "foreign key" in city.lower()
    assert "vendor" in vendor
    assert "fee" in fee
    if place.kind != "generic-sqlite":
        assert "99" in city


def test_non_numeric_text_is_rejected_with_its_column(place, outgoing):
    sink = deliveries(place)
    rows = [{**row, "fee": "N/A" if n == 1 else str(row["fee"])} for n, row in enumerate(good(3))]
    (refused,) = sink.write(outgoing(rows), label="a")
    assert refused.place == 1
    assert "N/A" in refused.error
    assert place.kind.startswith("generic") or "fee" in refused.error


def test_number_out_of_range_is_rejected(place, outgoing):
    if place.is_sqlite:
        pytest.skip("SQLite's numbers have no limit but 64 bits")
    sink = deliveries(place)
    rows = [{**row, "fee": 1e9 if n in (0, 2) else row["fee"]} for n, row in enumerate(good(4))]
    assert places(sink.write(outgoing(rows), label="a")) == [0, 2]


def test_row_that_breaks_another_unique_index_is_rejected(place, outgoing):
    sink = deliveries(place, more=", email text UNIQUE")
    sink.write(outgoing([{"id": 100, "vendor": "v", "email": "taken"}]), label="a")
    emails = ["a", "b", "taken", "c", "a", None, None]
    rows = [{"id": n, "vendor": "v", "email": email} for n, email in enumerate(emails)]
    assert places(sink.rehearse(outgoing(rows))) == [2, 4]
    refused = sink.write(outgoing(rows), label="b")
    assert places(refused) == [2, 4]
    assert place.sql("SELECT id FROM t ORDER BY id") == [(0,), (1,), (3,), (5,), (6,), (100,)]


def test_row_may_reference_a_later_row_but_no_rejected_one(place, outgoing):
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, boss integer REFERENCES t (id), name text NOT NULL)")
    bosses = {1: 2, 2: 3, 3: None, 4: 5, 5: 6, 6: 77, 7: 7, 8: 3}
    if place.kind == "duckdb":
        bosses[7] = None  # it wants the row there before another names it, and so no row can name itself
    rows = [{"id": n, "boss": boss, "name": "x"} for n, boss in bosses.items()]
    sink = place.sink()
    assert places(sink.rehearse(outgoing(rows))) == [3, 4, 5]
    for _ in range(2):
        assert places(sink.write(outgoing(rows), label="a")) == [3, 4, 5]
    assert place.sql("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,), (7,), (8,)]


def test_referenced_row_can_be_updated(place, outgoing):
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, code text UNIQUE, name text, tag text)")
    place.sql("CREATE INDEX by_tag ON t (tag)")
    place.sql("CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES t (id))")
    sink = place.sink()
    rows = [{"id": n, "code": f"c{n}", "name": "old", "tag": "x"} for n in range(3)]
    sink.write(outgoing(rows), label="a")
    place.sql("INSERT INTO child VALUES (1, 0), (2, 1)")
    assert list(sink.write(outgoing(rows), label="a")) == []
    assert list(sink.write(outgoing([{**row, "name": "new"} for row in rows]), label="b")) == []
    assert {name for (name,) in place.sql("SELECT name FROM t")} == {"new"}
    assert place.sql("SELECT count(*) FROM child") == [(2,)]


def test_values_the_driver_cannot_send_reject_their_rows(place):
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, a text, n bigint)")
    strange = [
        ("fine", 1),
        ("a\0b", 2),
        ("\ud800", 3),
        ("fine", 2**200),
        (object(), 5),
        ({1: {b"x": 2}}, 6),
        ("last", 7),
    ]
    rows = Outgoing(("id", "a", "n"), range(7), tuples=[(n, *values) for n, values in enumerate(strange)])
    refused = places(place.sink().write(rows, label="a"))
    written = {n for (n,) in place.sql("SELECT id FROM t")}
    assert written == set(range(7)) - set(refused)
    assert {0, 6} <= written
    assert {2, 3} <= set(refused)
    assert (1 in refused) is place.is_postgres  # which cannot hold it


# ── rehearsals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dry_run_rejects_like_a_write_and_changes_nothing(place, outgoing):
    sink = deliveries(place)
    sink.write(outgoing(good(3)), label="a")
    before = place.sql("SELECT * FROM t ORDER BY id")
    rows = outgoing([{**row, "vendor": row["vendor"] and "changed"} for row in with_faults(40, {0, 17, 39})])
    assert places(sink.rehearse(rows)) == [0, 17, 39]
    assert list(sink.rehearse(outgoing(good(3, start=200)))) == []
    assert place.sql("SELECT * FROM t ORDER BY id") == before
    assert places(sink.write(rows, label="b")) == [0, 17, 39]
    assert place.sql("SELECT count(*) FROM t") == [(38,)]


def test_dry_run_of_valid_rows_changes_nothing(anywhere, outgoing):
    sink = anywhere.sink(create=True)
    sink.write(outgoing(good(3)), label="a")
    before = anywhere.sql("SELECT * FROM t ORDER BY id")
    assert list(sink.rehearse(outgoing([{**row, "vendor": "other"} for row in good(5)]))) == []
    assert anywhere.sql("SELECT * FROM t ORDER BY id") == before


def test_dry_run_creates_no_table(place, outgoing):
    sink = place.sink(create=True)
    assert list(sink.rehearse(outgoing(good(3)))) == []
    with pytest.raises(SinkMismatch, match="has no table t"):
        place.sink().check(("id",))


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "columns", "key", "sentence"),
    [
        ("citys", ("id",), "id", r"has no table citys; did you mean city\?"),
        ("quite_another", ("id",), "id", r"has no table quite_another; create it, or pass create=True"),
        ("t", ("id", "vendor", "fe"), "id", r"t has no column 'fe', which the rows have; did you mean 'fee'\?"),
        ("t", ("id", "vendor", "x", "y"), "id", r"t has no columns 'x', 'y', .* add it to the table, or leave it out"),
        ("t", ("vendor",), "id", r"t is written by its key, and the rows lack column 'id' of it; they have vendor"),
        ("t", ("id", "vendor", "sku"), "sku", r"t has no column 'sku'"),
        ("t", ("id", "vendor"), "vendor", r'make one: CREATE UNIQUE INDEX "t_vendor" ON "t" \("vendor"\)'),
        ("t", ("id", "vendor"), ("id", "vendor"), r"no unique index of t is on columns 'id', 'vendor' alone"),
        ("t", ("id", "fee"), "id", r"t needs a value for column 'vendor' \(NOT NULL without a default\)"),
    ],
)
def test_rows_that_do_not_fit_are_found_before_any_write(place, table, columns, key, sentence):
    deliveries(place)
    sink = place.sink(table, key=key)
    with pytest.raises(SinkMismatch, match=sentence) as told:
        sink.check(columns)
    assert "\n" not in str(told.value)
    rows = Outgoing(columns, [0], tuples=[tuple("1" for _ in columns)])
    with pytest.raises(SinkMismatch):
        sink.write(rows, label="a")
    assert place.sql("SELECT count(*) FROM t") == [(0,)]


def test_unique_index_serves_as_key(place, outgoing):
    place.sql('CREATE TABLE t (id integer PRIMARY KEY, "Sku no" text, b text)')
    place.sql('CREATE UNIQUE INDEX by_sku ON t ("Sku no", b)')
    sink = place.sink(key=["b", "Sku no"])
    sink.check(("id", "Sku no", "b"))
    sink.write(outgoing([{"id": 1, "Sku no": "x", "b": "y"}]), label="a")
    sink.write(outgoing([{"id": 2, "Sku no": "x", "b": "y"}]), label="b")
    assert place.sql("SELECT id FROM t") == [(2,)]


def test_computed_column_takes_no_value(place, outgoing):
    # DuckDB has none that are stored.
    stored = "STORED" if place.is_postgres else ""
    place.sql(f"CREATE TABLE t (id integer PRIMARY KEY, a integer, twice integer GENERATED ALWAYS AS (a * 2) {stored})")
    sink = place.sink()
    with pytest.raises(SinkMismatch, match="t computes column 'twice' itself"):
        sink.check(("id", "a", "twice"))
    assert list(sink.write(outgoing([{"id": 1, "a": 4}]), label="a")) == []
    assert place.sql("SELECT twice FROM t") == [(8,)]


def test_missing_table_is_created_with_its_key(place, outgoing):
    sink = place.sink("Made Here", key=["id", "b"], create=True)
    row = {
        **{"id": 1, "b": "x", "f": 1.5, "n": Decimal("12.25"), "yes": True, "day": dt.date(2026, 7, 1)},
        **{"at": dt.datetime(2026, 7, 1, 10, tzinfo=UTC), "raw": b"\x00\xff", "tree": {"a": [1]}, "none": None},
        "100% sure": "yes",
    }
    sink.check(tuple(row))
    with pytest.raises(SinkMismatch, match="lack column 'b'"):
        sink.check(("id",))
    for _ in range(3):
        assert list(sink.write(outgoing([row, {**row, "id": 2}]), label="a")) == []
    assert len(place.sql('SELECT * FROM "Made Here"')) == 2
    ((found, tree),) = place.sql('SELECT n, tree FROM "Made Here" WHERE id = 1')
    assert Decimal(str(found)) == Decimal("12.25")
    assert (tree if isinstance(tree, dict) else json.loads(tree)) == {"a": [1]}
    place.sink("Made Here", key=["b", "id"]).check(tuple(row))


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = [
    None,
    "",
    " ",
    "NULL",
    "\\N",
    "\\.",
    "\\",
    "a\tb",
    "a\nb\r\nc",
    '"',
    "'",
    ",",
    "\\n",
    "naïve 北京 🚚",
    "\u2028",
    "x" * 9,
]


def test_texts_are_unchanged_and_null_differs_from_empty(anywhere, outgoing):
    rows = [{"id": n, "a": text, "b": "b"} for n, text in enumerate(TEXTS)]
    sink = anywhere.sink(create=True)
    for label in "ab":  # by each of the ways in
        assert list(sink.write(outgoing(rows), label=label)) == []
        assert [text for (text,) in anywhere.sql("SELECT a FROM t ORDER BY id")] == TEXTS


def test_text_of_five_megabytes(anywhere, outgoing):
    rows = outgoing([{"id": 1, "a": "line\n" * 1_000_000}, {"id": 2, "a": "short"}])
    assert list(anywhere.sink(create=True).write(rows, label="a")) == []
    assert anywhere.sql("SELECT length(a) FROM t ORDER BY id") == [(5_000_000,), (5,)]


def test_decimals_are_exact(place, outgoing):
    kind = "text" if place.is_sqlite else "numeric(38, 10)"
    place.sql(f"CREATE TABLE t (id integer PRIMARY KEY, n {kind})")
    numbers = [Decimal("0.1"), Decimal("1234567890123456789012345.0123456789"), Decimal("-99.9900000001"), None]
    rows = outgoing([{"id": n, "n": number} for n, number in enumerate(numbers)], n=pl.Decimal(38, 10))
    assert list(place.sink().write(rows, label="a")) == []
    found = [None if n is None else Decimal(n) for (n,) in place.sql("SELECT n FROM t ORDER BY id")]
    assert found == numbers


class FeeModel(pydantic.BaseModel):
    id: int
    fee: Decimal = pydantic.Field(max_digits=8, decimal_places=2)
    tip: Annotated[Decimal, pydantic.Field(max_digits=5, decimal_places=1)] | None = None


class FeeSchema(dy.Schema):
    id = dy.Int64(primary_key=True)
    fee = dy.Decimal(8, 2)
    tip = dy.Decimal(5, 1, nullable=True)


class TestExactNumbers:
    """A value is stored exactly, or its row is rejected."""

    @pytest.mark.parametrize("exact", [Decimal, str])
    def test_value_that_a_column_would_round_is_rejected(self, place, outgoing, exact):
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, n numeric(10, 2))")
        numbers = [exact(number) for number in ("1.25", "1.005", "-7.5", "12", "0.001", "3.1400")]
        rows = outgoing([{"id": n, "n": number} for n, number in enumerate(numbers)])
        refused = place.sink().write(rows, label="a")
        if place.is_sqlite:  # which has no fixed number of decimal places
            assert places(refused) == []
        else:
            assert places(refused) == [1, 4]
            assert "would be rounded" in str(refused[0].error)
            assert "2 decimal places" in str(refused[0].error)
        kept = [n for n in range(len(numbers)) if n not in places(refused)]
        found = [Decimal(str(n)) for (n,) in place.sql("SELECT n FROM t ORDER BY id")]
        assert found == [Decimal(numbers[n]) for n in kept]

    def test_exponents_are_read(self, place, outgoing):
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, n numeric(10, 2))")
        texts = ["1.2345e3", "12345e-2", "1e-3", "5E1"]
        refused = place.sink().write(outgoing([{"id": n, "n": text} for n, text in enumerate(texts)]), label="a")
        assert places(refused) == ([] if place.is_sqlite else [2])

    def test_float_is_stored_as_its_shortest_decimal(self, place, outgoing):
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, n numeric(20, 2))")
        numbers = [27.500000000000004, 27.5, 1234567.89, 0.1, 0.125]
        refused = place.sink().write(outgoing([{"id": n, "n": f} for n, f in enumerate(numbers)]), label="a")
        if place.is_sqlite:  # which has no fixed number of decimal places
            assert places(refused) == []
        else:
            assert places(refused) == [0, 4]
        found = [Decimal(str(n)) for (n,) in place.sql("SELECT n FROM t WHERE id IN (1, 2, 3) ORDER BY id")]
        assert found == [Decimal("27.5"), Decimal("1234567.89"), Decimal("0.1")]

    def test_created_column_keeps_the_digits_of_the_first_rows(self, anywhere, outgoing):
        numbers = [Decimal("1.23456789012345"), Decimal("0.5"), Decimal("-12345678901234567.89")]
        rows = outgoing([{"id": n, "n": number} for n, number in enumerate(numbers)], n=pl.Decimal(38, 14))
        assert list(anywhere.sink(create=True).write(rows, label="a")) == []
        found = [Decimal(str(n)) for (n,) in anywhere.sql("SELECT n FROM t ORDER BY id")]
        assert found == numbers

    def test_later_value_with_more_digits_is_kept_or_rejected(self, anywhere, outgoing):
        sink = anywhere.sink(create=True)
        sink.write(outgoing([{"id": 1, "n": Decimal("1.5")}]), label="a")
        long = Decimal("0.12345678901234567890123")
        refused = sink.write(outgoing([{"id": 2, "n": long}], n=pl.Decimal(38, 23)), label="b")
        found = anywhere.sql("SELECT n FROM t WHERE id = 2")
        assert [Decimal(str(n)) for (n,) in found] == ([] if refused else [long])

    def test_created_column_compares_as_a_number(self, place, outgoing):
        sink = place.sink(create=True)
        sink.write(outgoing([{"id": n, "fee": Decimal(fee)} for n, fee in enumerate(["5", "9.99", "10.5"])]), label="a")
        assert place.sql("SELECT id FROM t WHERE fee > 10") == [(2,)]

    @pytest.mark.parametrize("validator", [FeeModel, FeeSchema], ids=["pydantic", "dataframely"])
    def test_digits_of_the_validator_become_the_column(self, tmp_path, validator):
        redrive.Pipeline(
            "fees",
            source=redrive.rows.records([{"id": 1, "fee": "12.5", "tip": "1"}], name="fees"),
            sink=table(f"duckdb:///{tmp_path}/fees.duckdb", "fees", key="id", create=True),
            validate=validator,
            store=tmp_path / "store.db",
        ).run()
        with duckdb.connect(f"{tmp_path}/fees.duckdb") as connection:
            described = connection.execute("DESCRIBE fees").fetchall()
            stored = connection.execute("FROM fees").fetchall()
        assert {name: kind for name, kind, *_ in described} == {
            **{"id": "BIGINT", "fee": "DECIMAL(8,2)", "tip": "DECIMAL(5,1)"},
        }
        assert stored == [(1, Decimal("12.50"), Decimal(1))]

    @given(
        st.lists(st.decimals(-(10**6), 10**6, allow_nan=False, places=None), min_size=1, max_size=8), st.integers(0, 6)
    )
    def test_rounding_is_detected_wherever_quantize_changes_a_value(self, numbers, scale):
        unit = Decimal(1).scaleb(-scale)
        changed = [at for at, number in enumerate(numbers) if number != number.quantize(unit, context=_WIDE)]
        column = ColumnCapacity.of(f"numeric(20, {scale})")
        assert [at for at, _ in find_changes(pl.Series([str(one) for one in numbers]), column)] == changed
        assert [at for at, _ in find_changes(numbers, column)] == changed


class TestSqliteNumbers:
    @pytest.mark.parametrize("kind", ["NUMERIC", "DECIMAL(30, 2)", "INTEGER", "REAL", "DOUBLE PRECISION"])
    @pytest.mark.parametrize("text", ["N/A", "nan", "inf", "1_000", "12,5"])
    def test_text_in_a_column_of_numbers_is_rejected(self, tmp_path, outgoing, kind, text):
        with sqlite("sqlite", tmp_path) as place:
            place.sql(f"CREATE TABLE t (id integer PRIMARY KEY, n {kind})")
            rows = outgoing([{"id": 1, "n": "7"}, {"id": 2, "n": text}])
            (refused,) = place.sink().write(rows, label="a")
            assert (refused.place, f"n: {text!r} is not a number" in refused.error) == (1, True)
            place.close()

    @pytest.mark.parametrize("kind", ["DATE", "STRING", "BLOB", "TEXT", "VARCHAR(9)", ""])
    def test_other_columns_take_any_text(self, tmp_path, outgoing, kind):
        with sqlite("sqlite", tmp_path) as place:
            place.sql(f"CREATE TABLE t (id integer PRIMARY KEY, n {kind})")
            assert list(place.sink().write(outgoing([{"id": 1, "n": "N/A"}]), label="a")) == []
            place.close()

    @pytest.mark.parametrize("exact", [Decimal, str])
    def test_long_decimal_is_rejected_instead_of_cut(self, tmp_path, outgoing, exact):
        numbers = ["1234567890123456789.5", "9223372036854775807", "0.123456789012345", "1.5"]
        with sqlite("sqlite", tmp_path) as place:
            place.sql("CREATE TABLE t (id integer PRIMARY KEY, n NUMERIC)")
            rows = outgoing([{"id": n, "n": exact(number)} for n, number in enumerate(numbers)])
            (refused,) = place.sink().write(rows, label="a")
            assert (refused.place, "more digits" in refused.error) == (0, True)
            found = [Decimal(str(n)) for (n,) in place.sql("SELECT n FROM t ORDER BY id")]
            assert found == [*map(Decimal, numbers[1:])]
            place.close()


def test_times_keep_their_moment(place, outgoing):
    zoned, naive = ("text", "text") if place.is_sqlite else ("timestamptz", "timestamp")
    place.sql(f'CREATE TABLE t (id integer PRIMARY KEY, z {zoned}, "at" {naive}, day date)')
    india = dt.timezone(dt.timedelta(hours=5, minutes=30))
    moments = [dt.datetime(2026, 7, 1, 23, 30, 0, 123456, tzinfo=india), dt.datetime(1900, 1, 1, tzinfo=UTC), None]
    rows = [
        {"id": n, "z": moment, "at": moment and moment.replace(tzinfo=None), "day": moment and moment.date()}
        for n, moment in enumerate(moments)
    ]
    assert list(place.sink().write(outgoing(rows), label="a")) == []
    read = dt.datetime.fromisoformat if place.is_sqlite else lambda found: found
    found = place.sql('SELECT z, "at", day FROM t ORDER BY id')
    assert [z and read(z).astimezone(UTC) for z, _, _ in found] == [m and m.astimezone(UTC) for m in moments]
    assert [at and read(at) for _, at, _ in found] == [row["at"] for row in rows]
    assert [day and dt.date.fromisoformat(str(day)) for _, _, day in found] == [row["day"] for row in rows]


def test_json_columns_take_lists_and_objects_and_their_text(place, outgoing):
    kind = {"duckdb": "json"}.get(place.kind, "text" if place.is_sqlite else "jsonb")
    place.sql(f"CREATE TABLE t (id integer PRIMARY KEY, a {kind}, b text, c {kind})")
    trees = [{"x": 'naïve \\ \n " 🚚', "n": [1.0, 2.5, None]}, {"x": None, "n": []}, None]
    rows = [{"id": n, "a": tree, "b": tree, "c": '{"as": "text"}'} for n, tree in enumerate(trees)]
    assert list(place.sink().write(outgoing(rows), label="a")) == []

    def read(value):
        return json.loads(value) if isinstance(value, str) else value

    for a, b, c in place.sql("SELECT a, b, c FROM t ORDER BY id"):
        assert read(a) == read(b)
        assert read(c) == {"as": "text"}
    assert [read(a) for (a,) in place.sql("SELECT a FROM t ORDER BY id")] == trees


class TestJsonStrings:
    """A str of a record is a JSON string; the cells of a CSV file are JSON text."""

    STRINGS = ("plain text", "5", "true", "null", "", '"quoted"', "{not json", 'naïve "\\ \n')

    @pytest.fixture
    def place(self, request, tmp_path):
        with opened(request, tmp_path) as made:
            made.sql(f"CREATE TABLE t (id integer PRIMARY KEY, a {'json' if made.kind == 'duckdb' else 'jsonb'})")
            yield made

    def read(self, place):
        found = [value for (value,) in place.sql("SELECT a FROM t ORDER BY id")]
        return [json.loads(value) for value in found] if place.kind == "duckdb" else found

    @pytest.mark.parametrize("place", ["postgresql", "duckdb", "generic-postgresql"], indirect=True)
    def test_str_of_a_record_is_a_json_string(self, place, outgoing):
        rows = outgoing([{"id": n, "a": text} for n, text in enumerate(self.STRINGS)])
        assert list(place.sink().write(rows, label="a")) == []
        assert self.read(place) == list(self.STRINGS)

    @pytest.mark.parametrize("place", ["postgresql", "duckdb", "generic-postgresql"], indirect=True)
    def test_text_of_an_object_or_array_is_that(self, place, outgoing):
        rows = outgoing([{"id": 1, "a": '{"b": 1}'}, {"id": 2, "a": " [1, 2]"}])
        assert list(place.sink().write(rows, label="a")) == []
        assert self.read(place) == [{"b": 1}, [1, 2]]

    @pytest.mark.parametrize("validate", [None, lambda record: record], ids=["unchecked", "a function"])
    @pytest.mark.parametrize("place", ["postgresql", "duckdb", "generic-postgresql"], indirect=True)
    def test_csv_cell_is_json_text_in_a_run_and_in_a_replay(self, place, tmp_path, validate):
        (tmp_path / "in.csv").write_text(
            'id,a\n1,5\n2,true\n3,"{""b"": 1}"\n4,plain text\n' + "".join(f"{n},0\n" for n in range(9, 99))
        )
        pipeline = redrive.Pipeline(
            "cells",
            source=redrive.rows.csv(tmp_path / "in.csv"),
            sink=place.sink(),
            validate=validate,
            store=tmp_path / "store.db",
        )
        assert pipeline.run().rejected == 1
        assert self.read(place)[:4] == [5, True, {"b": 1}, 0]
        (letter,) = pipeline.store.dlq.find()
        assert pipeline.store.dlq.replay(pipeline, dry_run=False).reprocessed == 0
        pipeline.store.dlq.edit(letter.id, {"id": "4", "a": "[7]"}, note="fixed")
        pipeline.store.dlq.replay(pipeline, dry_run=False)
        assert self.read(place)[:4] == [5, True, {"b": 1}, [7]]


class Colour(Enum):
    RED = "red"


def test_values_of_every_common_type(place):
    types = {
        **{
            "yes": "boolean",
            "f": "double precision",
            "raw": "bytea",
            "u": "uuid",
            "t": "time",
            "e": "text",
            "i": "bigint",
        },
        "took": "interval",
    }
    if place.kind == "duckdb":
        types |= {"f": "double", "raw": "blob"}
    if place.is_sqlite:
        types |= {"yes": "integer", "f": "real", "raw": "blob", "u": "text", "t": "text", "took": "text"}
    place.sql(f"CREATE TABLE t (id integer PRIMARY KEY, {', '.join(f'{n} {kind}' for n, kind in types.items())})")
    known = uuid.UUID(int=7)
    row = {
        **{"id": 1, "yes": True, "f": 0.1, "raw": b"\x00\\\xff", "u": known, "t": dt.time(1, 2, 3, 4), "e": Colour.RED},
        **{"i": -(2**63), "took": dt.timedelta(days=-1, seconds=3)},
    }
    rows = Outgoing.of_records([row, dict.fromkeys(row) | {"id": 2}], range(2))
    assert list(place.sink().write(rows, label="a")) == []
    found = dict(zip(types, place.sql(f"SELECT {', '.join(types)} FROM t ORDER BY id")[0], strict=True))
    assert (bool(found["yes"]), found["f"], bytes(found["raw"]), found["i"]) == (True, 0.1, b"\x00\\\xff", -(2**63))
    assert (str(found["u"]), str(found["t"]), found["e"]) == (str(known), "01:02:03.000004", "red")
    assert place.is_sqlite or found["took"] == row["took"]


def test_non_finite_numbers_are_kept_where_possible(place, outgoing):
    place.sql(
        f"CREATE TABLE t (id integer PRIMARY KEY, f {'double' if place.kind == 'duckdb' else 'double precision'})"
    )
    numbers = [math.inf, -math.inf, 1e300, 5e-324, math.nan]
    refused = place.sink().write(outgoing([{"id": n, "f": f} for n, f in enumerate(numbers)]), label="a")
    found = [f for (f,) in place.sql("SELECT f FROM t ORDER BY id")]
    assert found[:4] == numbers[:4]
    if place.is_sqlite:  # it would keep NULL
        assert places(refused) == [4]
        assert "NaN" in str(refused[0].error)
    else:
        assert places(refused) == []
        assert math.isnan(found[4])


def test_fraction_is_not_rounded_for_an_integer_column(place, outgoing):
    if place.is_sqlite:
        pytest.skip("SQLite keeps it as it is")
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, n integer)")
    rows = [{"id": n, "n": number} for n, number in enumerate([1.0, 1.5, 2.5, None])]
    assert places(place.sink().write(outgoing(rows), label="a")) == [1, 2]
    assert place.sql("SELECT * FROM t ORDER BY id") == [(0, 1), (3, None)]


def test_numbers_of_numpy_are_numbers(anywhere):
    records = [{"id": numpy.int64(n), "f": numpy.float64(n / 2), "s": numpy.str_("a")} for n in range(3)]
    for label in "ab":
        rows = Outgoing.of_records(records, range(3))
        assert list(anywhere.sink(create=True).write(rows, label=label)) == []
    assert anywhere.sql("SELECT id, f, s FROM t ORDER BY id") == [(0, 0.0, "a"), (1, 0.5, "a"), (2, 1.0, "a")]


class Stranger:
    def __repr__(self):
        return "stranger"


@pytest.mark.parametrize(
    "value",
    [Stranger(), 1j, Decimal("sNaN"), Decimal("1E+40"), [Decimal("NaN")], {"n": math.nan}, [Stranger()], "\ud800"],
    ids=str,
)
def test_value_unknown_to_a_numeric_column_rejects_its_row(place, value):
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, n decimal(20, 5))")
    if place.is_sqlite and str(value) == "1E+40":
        pytest.skip("SQLite's columns have room for it")
    rows = Outgoing(("id", "n"), range(3), tuples=[(0, Decimal(1)), (1, value), (2, Decimal(2))])
    refused = place.sink().write(rows, label="a")
    stored = place.sql("SELECT id FROM t WHERE n IN (1, 2) ORDER BY id")
    assert stored == [(0,), (2,)]
    assert [one.place for one in refused] == [1]


class Amount(Enum):
    UNKNOWN = Decimal("sNaN")


class TestSignalingNaN:
    """Drivers disagree on sNaN: some write NaN, some its own name. It is rejected before any of them sees it."""

    @pytest.mark.parametrize("beside", [Decimal(1), 1], ids=["decimals", "mixed"])
    @pytest.mark.parametrize("value", [Decimal("sNaN"), Decimal("-sNaN7"), Amount.UNKNOWN], ids=str)
    def test_row_is_rejected_with_the_reason(self, place, value, beside):
        for name, kind in (("numbers", "decimal(20, 5)"), ("floats", "double precision"), ("texts", "text")):
            place.sql(f"CREATE TABLE {name} (id integer PRIMARY KEY, n {kind})")
            rows = Outgoing(("id", "n"), range(3), tuples=[(0, beside), (1, value), (2, Decimal(2))])
            sink = place.sink(name)
            (refused,) = sink.write(rows, label="a")
            assert refused.place == 1
            assert "sNaN" in str(refused.error)
            assert "is a signaling NaN, which no database has" in str(refused.error)
            if place.kind == "duckdb":
                sink.close()
            assert place.sql(f"SELECT id FROM {name} ORDER BY id") == [(0,), (2,)]

    def test_table_is_made_of_the_other_rows(self, anywhere):
        rows = Outgoing(("id", "n"), range(3), tuples=[(0, Decimal(1)), (1, Decimal("sNaN")), (2, Decimal(2))])
        assert places(anywhere.sink(create=True).write(rows, label="a")) == [1]
        assert anywhere.sql("SELECT id FROM t ORDER BY id") == [(0,), (2,)]

    def test_element_of_an_array_rejects_its_row(self, place):
        if place.kind != "postgresql":
            pytest.skip("an array of PostgreSQL")
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, n numeric[])")
        rows = Outgoing(("id", "n"), range(2), tuples=[(0, [Decimal("sNaN")]), (1, [Decimal("NaN")])])
        assert places(place.sink().write(rows, label="a")) == [0]


class TestViews:
    """A view as the target: a key needs a unique index, which no view can be given."""

    def test_view_is_named_in_the_error(self, place):
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, v text)")
        place.sql('CREATE VIEW "Recent" AS SELECT * FROM t')
        with pytest.raises(SinkMismatch, match=r"^Recent is a view, and rows are written .* name the table behind it$"):
            place.sink("Recent").check(("id", "v"))

    def test_materialized_view_is_named_in_the_error(self, place):
        if place.kind != "postgresql":
            pytest.skip("only PostgreSQL has them")
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, v text)")
        place.sql("CREATE MATERIALIZED VIEW m AS SELECT * FROM t; CREATE UNIQUE INDEX ON m (id)")
        with pytest.raises(SinkMismatch, match=r"^m is a materialized view"):
            place.sink("m").check(("id", "v"))


def test_altered_table_is_read_again(place, outgoing):
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, a text CHECK (a <> 'bad'))")
    sink = place.sink()
    rows = [{"id": 1, "a": "good"}, {"id": 2, "a": "bad"}]
    sink.check(("id", "a"))
    assert places(sink.write(outgoing(rows), label="a")) == [1]
    if place.kind == "duckdb":
        sink.close()  # the file is one process's and one table at a time
    place.sql("DROP TABLE t")
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, a text, b text)")
    rows = [{"id": 1, "a": "good"}, {"id": 2, "a": "bad"}]
    assert places(sink.write(outgoing(rows), label="b")) == []
    assert places(sink.write(outgoing([{**row, "b": "new"} for row in rows]), label="c")) == []
    sink.check(("id", "a", "b"))
    assert place.sql("SELECT * FROM t ORDER BY id") == [(1, "good", "new"), (2, "bad", "new")]


# ── the rest of the contract ──────────────────────────────────────────────────────────────────────────────────────────


def test_only_sinks_with_shared_transactions_report_them(place):
    assert isinstance(place.sink(create=True), SharesTransactions) is (place.kind in ("postgresql", "sqlite"))


def test_name_has_table_and_location_without_password(place):
    sink = place.sink("silver.t", create=True)
    assert sink.name.startswith("silver.t in ")
    assert sink.key == ("id",)
    assert "correct-horse" not in sink.name + repr(sink)


class TestRowsOmittedByTriggers:
    """A row that a trigger omits is not counted as written."""

    @pytest.fixture
    def place(self, request, tmp_path):
        with opened(request, tmp_path) as made:
            if made.is_sqlite:
                made.sql("CREATE TABLE t (id integer PRIMARY KEY, v text)")
                made.sql("CREATE TRIGGER no_odd BEFORE INSERT ON t WHEN new.id % 2 = 1 BEGIN SELECT RAISE(IGNORE); END")
            else:
                made.sql(
                    """CREATE TABLE t (id integer PRIMARY KEY, v text CHECK (v <> 'bad'));
                    CREATE FUNCTION no_odd() RETURNS trigger LANGUAGE plpgsql AS
                        $$BEGIN IF new.id % 2 = 1 THEN RETURN NULL; END IF; RETURN new; END$$;
                    CREATE TRIGGER no_odd BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no_odd()"""
                )
            yield made

    @pytest.mark.parametrize("place", ["postgresql", "sqlite"], indirect=True)
    def test_omitted_rows_are_counted_as_discarded(self, place, tmp_path):
        def load():
            return redrive.Pipeline(
                "numbers",
                source=redrive.rows.records([{"id": n, "v": "a"} for n in range(9)], name="numbers"),
                sink=place.sink(),
                store=tmp_path / "store.db",
                batch=4,
            ).run()

        for _ in range(2):
            report = load()
            assert (report.read, report.written, report.discarded, report.rejected) == (9, 5, 4, 0)
            assert len(place.sql("SELECT * FROM t")) == report.written

    @pytest.mark.parametrize("place", ["postgresql"], indirect=True)
    def test_invalid_rows_beside_omitted_ones_are_letters(self, place, outgoing):
        applied = place.sink().write(outgoing([{"id": n, "v": "bad" if n == 4 else "a"} for n in range(6)]), label="a")
        assert (places(applied), applied.suppressed) == ([4], 3)
        assert place.sql("SELECT id FROM t ORDER BY id") == [(0,), (2,)]

    @pytest.mark.parametrize("place", ["postgresql"], indirect=True)
    def test_update_that_changes_nothing_is_written(self, place, outgoing):
        place.sql(
            "CREATE TRIGGER same BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )
        for _ in range(2):
            applied = place.sink().write(outgoing([{"id": 2, "v": "a"}, {"id": 4, "v": "b"}]), label="a")
            assert (list(applied), applied.suppressed) == ([], 0)


def test_read_only_default_of_a_role_is_respected(postgres_database, outgoing):
    with postgres("postgresql", postgres_database) as place:
        place.sql("CREATE TABLE t (id integer PRIMARY KEY)")
        url = postgres_database + "?options=-c%20default_transaction_read_only%3Don"
        sink = table(url, "t", key="id", patience=1)
        sink.check(("id",))
        with pytest.raises(redrive.StoreError, match="default_transaction_read_only=on") as error:
            sink.write(outgoing([{"id": 1}]), label="a")
        assert "\n" not in str(error.value)
        sink.close()
        assert place.sql("SELECT * FROM t") == []


class TestSecondUniqueIndex:
    """Rows that break a unique index beside the key, against a loader that writes row by row."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
    @given(data=st.data())
    @pytest.mark.parametrize("place", ["postgresql", "duckdb"], indirect=True)
    def test_rejects_the_rows_that_a_row_by_row_loader_rejects(self, place, data):
        place.sql("DROP TABLE IF EXISTS t")
        place.sql(
            "CREATE TABLE t (id integer PRIMARY KEY, a text UNIQUE, b integer, c integer CHECK (c < 9), UNIQUE (b, c))"
        )
        row = st.fixed_dictionaries(
            {
                "a": st.sampled_from([None, "x", "y", "z"]),
                "b": st.integers(0, 2),
                "c": st.sampled_from([1, 2, 9]),
            }
        )
        there = data.draw(st.dictionaries(st.integers(0, 3), row.filter(lambda one: one["c"] < 9), max_size=3))
        rows = data.draw(st.dictionaries(st.integers(2, 14), row, min_size=1, max_size=12))
        loader = RowByRow()
        for key, values in there.items():
            if loader.takes(key, values):
                a = "NULL" if values["a"] is None else f"'{values['a']}'"
                place.sql(f"INSERT INTO t VALUES ({key}, {a}, {values['b']}, {values['c']})")
        refused = [at for at, (key, values) in enumerate(rows.items()) if not loader.takes(key, values)]
        sent = Outgoing.of_records([{"id": key, **values} for key, values in rows.items()], range(len(rows)))
        sink = place.sink()
        assert places(sink.rehearse(sent)) == refused
        assert places(sink.write(sent, label="a")) == refused
        found = {key: {"a": a, "b": b, "c": c} for key, a, b, c in place.sql("SELECT id, a, b, c FROM t")}
        assert found == loader.table

    @pytest.mark.parametrize("place", ["postgresql", "duckdb"], indirect=True)
    def test_many_rejected_rows_take_few_statements(self, place, outgoing):
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, a text UNIQUE)")
        place.sql("INSERT INTO t VALUES (-1, 'taken')")
        rows = [
            {"id": n, "a": "taken" if n % 9 == 1 else f"a{n - n % 9}" if n % 9 == 2 else f"a{n}"} for n in range(999)
        ]
        refused = place.sink().write(outgoing(rows), label="a")
        assert places(refused) == [n for n in range(999) if n % 9 in (1, 2)]
        assert "taken" in str(refused[0].error)


class RowByRow:
    """A table that takes one row after the other."""

    def __init__(self):
        self.table = {}

    def takes(self, key, values):
        others = [row for other, row in self.table.items() if other != key]
        same_a = values["a"] is not None and any(row["a"] == values["a"] for row in others)
        same_bc = any((row["b"], row["c"]) == (values["b"], values["c"]) for row in others)
        if same_a or same_bc or values["c"] >= 9:
            return False
        self.table[key] = values
        return True


def test_texts_with_nul_are_rejected_and_the_rest_written(postgres_database, outgoing):
    with postgres("postgresql", postgres_database) as place:
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, a text, n integer)")
        rows = [{"id": n, "a": "x\x00y" if n % 3 == 1 else "x", "n": "N/A" if n % 7 == 3 else "1"} for n in range(60)]
        refused = place.sink().write(outgoing(rows), label="a")
        assert places(refused) == [n for n in range(60) if n % 3 == 1 or n % 7 == 3]
        assert "NUL" in str(refused[0].error)
        assert len(place.sql("SELECT * FROM t")) == 60 - len(refused)
        place.close()
