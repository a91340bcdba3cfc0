"""Database errors by code: SQLSTATE, SQLite, MySQL; DuckDB by class; all of them through SQLAlchemy."""

from __future__ import annotations

import sqlite3
import threading

import asyncpg
import duckdb
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from psycopg import errors as pg

from redrive import classify
from redrive.model.calls import Kind

SQLSTATES = {
    "retry_now": ["40P01", "40001"],
    "transient": ["08000", "08006", "08P01", "57P01", "57P02", "57P03", "53300", "55P03"],
    "permanent": ["53100", "42601", "42P01", "42501", "42703", "3D000", "3F000", "25006", "25P02", "0A000"],
    "auth": ["28000", "28P01"],
    "resource": ["53200"],
    "row": ["22001", "22003", "22P02", "23505", "23503", "23502", "23514", "54000", "P0001"],
    "ambiguous": ["57014", "XX000"],
}


@pytest.mark.parametrize(("code", "kind"), [(code, kind) for kind, codes in SQLSTATES.items() for code in codes])
def test_sqlstate_decides_for_every_driver(code, kind):
    of_psycopg = pg.lookup(code)("refused")
    of_asyncpg = asyncpg.PostgresError.new({"S": "ERROR", "C": code, "M": "refused"})
    for error in (of_psycopg, of_asyncpg, sa.exc.DBAPIError("SELECT 1", {}, of_psycopg)):
        for scope in ("call", "row", "task"):
            verdict = classify(error, scope)
            assert verdict.kind == kind
        assert f"SQLSTATE {code}" in verdict.reason
        assert verdict.detail == "refused"


def test_rule_names_the_code_or_its_class():
    assert classify(pg.DeadlockDetected()).rule == "sqlstate.40P01"
    assert classify(pg.DeadlockDetected()).reason == "deadlock detected (SQLSTATE 40P01)"
    assert classify(pg.UniqueViolation()).rule == "sqlstate.23*"
    assert classify(pg.UniqueViolation()).reason == "duplicate key (SQLSTATE 23505)"


def test_unlisted_sqlstate_leaves_the_type_to_decide():
    verdict = classify(pg.InvalidCursorState("24000 is in no table"))
    assert verdict.rule.startswith("type.psycopg.")


class OldDriverError(Exception):
    pgcode = "23505"


class StrangeError(Exception):
    sqlstate = 23505


def test_pgcode_of_psycopg2_is_read_and_invalid_code_ignored():
    assert classify(OldDriverError()).rule == "sqlstate.23*"
    assert classify(StrangeError()).rule == "unknown"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('FATAL:  password authentication failed for user "etl"', "auth"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "etl"', "auth"),
        ('FATAL:  role "etl" does not exist', "auth"),
        ("fe_sendauth: no password supplied", "auth"),
        ('FATAL:  database "lake" does not exist', "permanent"),
        ("SSL error: certificate verify failed", "permanent"),
        ("FATAL:  the database system is starting up", "transient"),
        ("FATAL:  the database system is shutting down", "transient"),
        ("FATAL:  sorry, too many clients already", "transient"),
        ("Connection refused\n\tIs the server running on that host", "transient"),
        ("server closed the connection unexpectedly", "transient"),
        ("the connection is closed", "transient"),
    ],
)
def test_message_decides_for_connection_errors_without_a_code(text, kind):
    assert classify(psycopg.OperationalError(f"connection failed: {text}")).kind == kind


def test_message_is_ignored_where_a_code_exists():
    assert classify(pg.LockNotAvailable("password authentication failed")).kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.DataError("text fields cannot contain NUL"), "row"),
        (psycopg.ProgrammingError("cannot adapt type 'object' using placeholder '%s'"), "row"),
        (psycopg.ProgrammingError("the query has 1 placeholder but 2 parameters"), "permanent"),
        (psycopg.InterfaceError("the cursor is closed"), "permanent"),
        (psycopg.errors.ConnectionTimeout("connection timeout expired"), "transient"),
        (asyncpg.InterfaceError("connection is closed"), "transient"),
        (asyncpg.InterfaceError("another operation is in progress"), "permanent"),
        (asyncpg.DataError("invalid input for query argument $1"), "row"),
    ],
    ids=repr,
)
def test_error_raised_by_the_driver_is_judged_by_its_type(error, kind):
    assert classify(error).kind == kind


@pytest.fixture
def sqlite(tmp_path):
    path = tmp_path / "a.db"
    first, second = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
    first.execute("PRAGMA journal_mode=WAL")
    first.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
    yield first, second
    first.close()
    second.close()


def sqlite_error(connection, *statements, parameters=()):
    """What the last statement raises."""
    *before, last = statements
    for statement in before:
        connection.execute(statement)
    with pytest.raises(sqlite3.Error) as caught:
        connection.execute(last, parameters)
    return caught.value


def test_sqlite_code_decides(sqlite):
    first, second = sqlite
    insert = "INSERT INTO t VALUES (1, 1)"
    assert classify(sqlite_error(first, insert, insert)).rule == "sqlite.CONSTRAINT"
    assert classify(sqlite_error(first, insert)).kind is Kind.ROW
    assert classify(sqlite_error(first, "INSERT INTO t VALUES (2, NULL)")).kind is Kind.ROW
    assert classify(sqlite_error(first, "INSERT INTO t VALUES ('x', 1)")).rule == "sqlite.MISMATCH"
    assert classify(sqlite_error(first, "INSERT INTO nowhere VALUES (1)")).kind is Kind.PERMANENT
    assert classify(sqlite_error(first, "INSERT INTO t VALUES (3, ?)", parameters=([],))).kind is Kind.ROW
    first.execute("BEGIN IMMEDIATE")
    busy = classify(sqlite_error(second, "BEGIN IMMEDIATE"))
    assert (busy.kind, busy.rule) == (Kind.TRANSIENT, "sqlite.BUSY")
    assert busy.detail == "database is locked"


def test_outdated_snapshot_is_retried_at_once(sqlite):
    first, second = sqlite
    second.execute("BEGIN")
    second.execute("SELECT * FROM t").fetchall()
    first.execute("INSERT INTO t VALUES (1, 1)")
    verdict = classify(sqlite_error(second, "INSERT INTO t VALUES (2, 2)"))
    assert (verdict.kind, verdict.rule) == (Kind.RETRY_NOW, "sqlite.BUSY_SNAPSHOT")


def test_invalid_or_unopenable_database_file_is_permanent(tmp_path):
    (tmp_path / "text").write_text("not a database at all, " * 50)
    connection = sqlite3.connect(tmp_path / "text")
    assert classify(sqlite_error(connection, "SELECT * FROM t")).rule == "sqlite.NOTADB"
    connection.close()
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path / "no" / "such" / "place")
    assert classify(caught.value).rule == "sqlite.CANTOPEN"


def test_full_database_is_permanent(sqlite):
    first, _ = sqlite
    first.execute("PRAGMA max_page_count=3")
    assert classify(sqlite_error(first, "INSERT INTO t VALUES (1, zeroblob(50000))")).rule == "sqlite.FULL"


@pytest.mark.parametrize(
    ("code", "kind", "rule"),
    [
        (sqlite3.SQLITE_NOMEM, "resource", "sqlite.NOMEM"),
        (sqlite3.SQLITE_IOERR_READ, "ambiguous", "sqlite.IOERR"),
        (3082, "resource", "sqlite.IOERR_NOMEM"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "permanent", "sqlite.READONLY"),
        (sqlite3.SQLITE_LOCKED, "transient", "sqlite.LOCKED"),
        (sqlite3.SQLITE_PROTOCOL, "transient", "sqlite.PROTOCOL"),
        (sqlite3.SQLITE_TOOBIG, "row", "sqlite.TOOBIG"),
        (sqlite3.SQLITE_CORRUPT, "permanent", "sqlite.CORRUPT"),
        (255, "permanent", "type.sqlite3.OperationalError"),
    ],
)
def test_extended_code_has_its_own_entry_or_the_primary_one(code, kind, rule):
    error = sqlite3.OperationalError("provoking this one would take a broken disk")
    error.sqlite_errorcode = code
    assert (classify(error).kind, classify(error).rule) == (kind, rule)


MYSQL_CODES = {
    "retry_now": [1213],
    "transient": [1205, 1040, 1053, 2002, 2003, 2006, 2013],
    "auth": [1045, 1044, 1698],
    "row": [1062, 1048, 1451, 1452, 3819, 1264, 1406, 1366, 1292],
    "permanent": [1021, 1114, 1049, 1064, 1146],
    "resource": [1037, 1038, 1041],
}


@pytest.mark.parametrize(("code", "kind"), [(code, kind) for kind, codes in MYSQL_CODES.items() for code in codes])
def test_mysql_number_decides(code, kind):
    with pytest.raises(pymysql.MySQLError) as caught:
        pymysql.err.raise_mysql_exception(b"\xff" + code.to_bytes(2, "little") + b"#HY000it says so")
    for error in (caught.value, sa.exc.DBAPIError("SELECT 1", {}, caught.value)):
        verdict = classify(error)
        assert (verdict.kind, verdict.rule, verdict.detail) == (kind, f"mysql.{code}", "it says so")


def test_unreachable_mysql_is_transient(refused_port):
    with pytest.raises(pymysql.OperationalError) as caught:
        pymysql.connect(host="127.0.0.1", port=refused_port, user="etl")
    assert (classify(caught.value).kind, classify(caught.value).rule) == (Kind.TRANSIENT, "mysql.2003")


def test_mysql_error_with_unknown_number_is_judged_by_type():
    assert classify(pymysql.IntegrityError(9999, "new in MySQL 12")).rule == "type.pymysql.IntegrityError"
    assert classify(pymysql.InterfaceError(0, "")).kind is Kind.AMBIGUOUS


def duckdb_error(*statements, connection=None):
    """What the last statement raises."""
    connection = connection or duckdb.connect()
    *before, last = statements
    for statement in before:
        connection.execute(statement)
    with pytest.raises(duckdb.Error) as caught:
        connection.execute(last)
    return caught.value


@pytest.mark.parametrize(
    ("statements", "kind", "rule"),
    [
        (["CREATE TABLE t (i INT PRIMARY KEY)", *["INSERT INTO t VALUES (1)"] * 2], "row", "ConstraintException"),
        (["SELECT CAST('N/A' AS INTEGER)"], "row", "ConversionException"),
        (["SELECT 9223372036854775807::BIGINT + 1::BIGINT"], "row", "OutOfRangeException"),
        (["SELEC 1"], "permanent", "ParserException"),
        (["SELECT * FROM nowhere"], "permanent", "CatalogException"),
        (["CREATE TABLE t (i INT)", "SELECT j FROM t"], "permanent", "BinderException"),
        (["SELECT * FROM '/no/such/file.parquet'"], "ambiguous", "IOException"),
        (["SET memory_limit='1MB'", "SELECT count(*) FROM range(9999999) a GROUP BY a.range"], "resource", None),
    ],
)
def test_duckdb_class_decides(statements, kind, rule):
    verdict = classify(duckdb_error(*statements))
    assert verdict.kind == kind
    assert verdict.rule == f"type.duckdb.{rule or 'OutOfMemoryException'}"
    assert verdict.detail


def test_duckdb_conflict_is_retried_at_once_and_misuse_is_a_bug():
    first = duckdb.connect()
    second = first.cursor()
    first.execute("CREATE TABLE t AS SELECT 1 AS i")
    first.execute("BEGIN")
    second.execute("BEGIN")
    first.execute("UPDATE t SET i = 2")
    conflict = duckdb_error("UPDATE t SET i = 3", connection=second)
    assert isinstance(conflict, duckdb.TransactionException)
    assert classify(conflict).kind is Kind.RETRY_NOW
    assert classify(duckdb_error("BEGIN", connection=first)).kind is Kind.PERMANENT


def test_driver_error_below_sqlalchemy_decides(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/a.db")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (i INTEGER PRIMARY KEY)"))
        connection.execute(sa.text("INSERT INTO t VALUES (1)"))
        with pytest.raises(sa.exc.IntegrityError) as caught:
            connection.execute(sa.text("INSERT INTO t VALUES (1)"))
    engine.dispose()
    verdict = classify(caught.value)
    assert (verdict.kind, verdict.rule) == (Kind.ROW, "sqlite.CONSTRAINT")
    assert verdict.detail == "UNIQUE constraint failed: t.i"


@pytest.mark.parametrize(
    ("error", "kind", "rule"),
    [
        (sa.exc.StatementError("bind", "INSERT", {}, ValueError("N/A")), "permanent", "type.ValueError"),
        (
            sa.exc.OperationalError("S", {}, duckdb.TransactionException("x")),
            "retry_now",
            "type.duckdb.TransactionException",
        ),
        (sa.exc.OperationalError("S", {}, RuntimeError("odd")), "transient", "type.sqlalchemy.OperationalError"),
        (
            sa.exc.DBAPIError("S", {}, RuntimeError("odd"), connection_invalidated=True),
            "transient",
            "sqlalchemy.connection_invalidated",
        ),
        (sa.exc.TimeoutError("QueuePool limit"), "transient", "type.sqlalchemy.TimeoutError"),
        (sa.exc.NoSuchTableError("t"), "permanent", "type.sqlalchemy.SQLAlchemyError"),
        (sa.exc.NoResultFound(), "permanent", "type.sqlalchemy.NoResultFound"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_sqlalchemys_own_errors_are_judged_by_type(error, kind, rule):
    verdict = classify(error)
    assert (verdict.kind, verdict.rule) == (kind, rule)


def test_value_that_sqlalchemy_cannot_bind_rejects_a_row():
    assert classify(sa.exc.StatementError("bind", "INSERT", {}, ValueError("N/A")), "row").kind is Kind.ROW


def test_pool_timeout_is_transient():
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    held, release, errors = threading.Event(), threading.Event(), []

    def hold():
        with engine.connect():
            held.set()
            release.wait()
        engine.dispose()  # in the thread that made the connection, as sqlite3 wants it

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        engine.connect()
    except sa.exc.TimeoutError as error:
        errors.append(error)
    release.set()
    thread.join()
    assert [classify(error).kind for error in errors] == [Kind.TRANSIENT]
