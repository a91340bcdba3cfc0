"""Databases known only to SQLAlchemy: their statements, and the error for a missing driver."""

import datetime as dt

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, oracle

from redrive.errors import StoreError
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.sqlalchemy.sink import GenericTable, upsert
from redrive.rows.sinks.table import table
from redrive.rows.sinks.table_schema import TableName

TABLE = sa.table("odd table", sa.column("id"), sa.column("Shop"), sa.column("a"), schema="silver")


def compiled(statements, dialect):
    return [" ".join(str(one.compile(dialect=dialect)).split()) for one in statements]


def test_mysql_has_an_upsert_of_its_own():
    (statement,) = compiled(upsert("mysql", TABLE, ["id", "Shop"], key_alone=True), mysql.dialect())
    assert statement == (
        "INSERT INTO silver.`odd table` (id, `Shop`, a) VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE a = VALUES(a)"
    )


def test_mysql_upsert_is_not_used_for_another_unique_key():
    statements = compiled(upsert("mysql", TABLE, ["id"], key_alone=False), mysql.dialect())
    assert [one.split()[0] for one in statements] == ["UPDATE", "INSERT"]
    assert not any("DUPLICATE" in one for one in statements)


def test_other_databases_get_an_update_and_an_insert():
    update, insert = compiled(upsert("oracle", TABLE, ["id"], key_alone=True), oracle.dialect())
    assert update.startswith('UPDATE silver."odd table" SET ')
    assert "FROM DUAL WHERE NOT (EXISTS (SELECT" in insert


@pytest.mark.parametrize("columns", [("id", "a"), ("id",)])
def test_update_and_insert_are_an_upsert(columns):
    """Any database will do to run them."""
    rows = sa.table("t", *map(sa.column, columns))
    statements = upsert("another", rows, ["id"], key_alone=True)
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id integer PRIMARY KEY, a text DEFAULT 'kept')")
        connection.exec_driver_sql("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
        for _ in range(2):
            for statement in statements:
                connection.execute(statement, [{"p0": n, "p1": "new"} for n in (2, 3)])
        found = connection.exec_driver_sql("SELECT * FROM t ORDER BY id").all()
    engine.dispose()
    new = ("new", "new") if "a" in columns else ("old", "kept")
    assert [tuple(row) for row in found] == [(1, "old"), (2, new[0]), (3, new[1])]


def test_unknown_database_is_one_sentence():
    with pytest.raises(ValueError, match="no database is known as nosuch; write postgresql://"):
        table("nosuch://user:secret@host/x", "t", key="id")


def test_missing_driver_is_named():
    with pytest.raises(ImportError, match="the driver of oracle is not installed"):
        table("oracle://user:secret@host/x", "t", key="id")


def test_asynchronous_driver_is_rejected():
    with pytest.raises(ValueError, match=r"postgresql\+asyncpg names an asynchronous driver"):
        table("postgresql+asyncpg://user:secret@host/x", "t", key="id")


def test_unreachable_server_is_one_sentence_without_password():
    target = table("mysql+pymysql://user:correct-horse@127.0.0.1:1/x", "t", key="id", patience=0.1)
    with pytest.raises(StoreError) as told:
        target.check(("id",))
    assert "\n" not in str(told.value)
    assert "correct-horse" not in str(told.value) + target.name


def test_wrong_type_rejects_its_row_unless_all_rows_have_it(postgres_url):
    url = postgres_url.replace("postgresql://", "postgresql+psycopg2://")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE generic_values (id integer PRIMARY KEY, n integer)")
    target = table(url, "generic_values", key="id", patience=1)
    rows = [(0, 1), (1, True), (2, 2), (3, dt.date(2026, 7, 1))]
    refused = target.write(Outgoing(("id", "n"), range(4), tuples=rows), label="a")
    assert [one.place for one in refused] == [1, 3]
    with pytest.raises(StoreError, match="boolean"):
        target.write(Outgoing(("id", "n"), range(2), tuples=[(5, True), (6, False)]), label="b")
    target.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert connection.execute("SELECT * FROM generic_values ORDER BY id").fetchall() == [(0, 1), (2, 2)]
        connection.execute("DROP TABLE generic_values")


class TestRowErrors:
    """Errors whose code does not show whether a row is at fault or the statement."""

    @pytest.fixture
    def write(self, tmp_path):
        """Write rows to a table that such a statement makes."""

        def write(values, *statements):
            url = sa.make_url(f"sqlite:///{tmp_path}/data.db")
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement)
            engine.dispose()
            sink = GenericTable(url, TableName("t"), key=("id",), create=False, patience=1)
            rows = [{"id": number, "v": value} for number, value in enumerate(values)]
            try:
                return sink.write(Outgoing.of_records(rows, range(len(rows))), label="run/0")
            finally:
                sink.close()

        return write

    def test_row_with_a_failing_function_is_rejected(self, write):
        checked = "CREATE TABLE t (id integer PRIMARY KEY, v text CHECK (json_extract(v, '$.a') > 0))"
        [refused] = write([*['{"a": 1}'] * 7, "{", *['{"a": 1}'] * 12], checked)
        assert (refused.place, str(refused.error)) == (7, "malformed JSON")

    def test_error_of_every_row_ends_the_write(self, write):
        trigger = "CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT json_extract('{', '$.a'); END"
        with pytest.raises(StoreError, match="malformed JSON"):
            write(["a", "b"], "CREATE TABLE t (id integer PRIMARY KEY, v text)", trigger)
