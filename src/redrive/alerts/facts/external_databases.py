"""Queries of other databases than the store: row counts, newest rows, numbers of conditions, replication slots."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    ColumnClause,
    Connection,
    NullPool,
    column,
    create_engine,
    func,
    select,
    table,
    text,
)
from sqlalchemy.sql import quoted_name

from redrive._internal.database_url import parse_url
from redrive._internal.optional import require_extra
from redrive.alerts.config.sections import ONE_QUERY, is_one_query
from redrive.alerts.facts.snapshot import Slot

_POSTGRES = ("postgresql", "postgres")
_CONNECT_TIMEOUT = 10  # seconds
_QUERY_TIMEOUT = 60  # seconds for the query of a condition
_COUNT_TIMEOUT = 600  # seconds after which the server cancels other queries
_SLOTS = text(
    """SELECT slot_name AS name, active, pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                ELSE pg_current_wal_lsn() END, restart_lsn
       ) AS lag
       FROM pg_replication_slots WHERE restart_lsn IS NOT NULL ORDER BY slot_name"""
)


def count_rows(url: str, name: str) -> int:
    """Return the number of rows of a table: `table` or `schema.table`, with the case of its letters."""
    schema, _, bare = name.rpartition(".")
    parsed = _parsed(url)
    if parsed.get_backend_name() == "duckdb":
        return _count_in_duckdb(parsed, schema, bare)
    counted = table(quoted_name(bare, True), schema=quoted_name(schema, True) if schema else None)
    with _connected(parsed) as connection:
        return int(connection.execute(select(func.count()).select_from(counted)).scalar_one())


def read_newest(url: str, name: str, column_name: str) -> Any:
    """Return the largest value of a column, in the type of its database; None if the table is empty."""
    schema, _, bare = name.rpartition(".")
    parsed = _parsed(url)
    if parsed.get_backend_name() == "duckdb":
        row = _query_duckdb(parsed, f"SELECT max({_quoted(column_name)}) FROM {_path(schema, bare)}")
        return None if row is None else row[0]
    newest: ColumnClause[Any] = column(quoted_name(column_name, True))
    of_table = table(quoted_name(bare, True), newest, schema=quoted_name(schema, True) if schema else None)
    with _connected(parsed) as connection:
        return connection.execute(select(func.max(newest)).select_from(of_table)).scalar()


def read_number(url: str, query: str) -> float | None:
    """Return the number that a query returns; None for no row. The query must be one statement, and cannot write.

    Raises:
        ValueError: It is not one query, it returns more than one value, or the value is not a finite number.
    """
    if not is_one_query(query):
        raise ValueError(f"the query {ONE_QUERY}")
    parsed = _parsed(url)
    if parsed.get_backend_name() == "duckdb":
        return _number(_select_from_duckdb(parsed, query))
    with _connected(parsed, limit=_QUERY_TIMEOUT) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET TRANSACTION READ ONLY"))
        if connection.dialect.driver == "psycopg":
            # The extended protocol takes one statement: `COMMIT; DROP …` would leave the read-only transaction.
            cursor = connection.connection.cursor()
            cursor.execute(query, binary=True)  # type: ignore[call-arg]
            return _number(cursor.fetchmany(2))
        if connection.dialect.name == "sqlite":
            _confine(connection.connection.driver_connection)
        # The query is passed unchanged: a colon or a percent sign is no placeholder.
        return _number(connection.execution_options(no_parameters=True).exec_driver_sql(query).fetchmany(2))


def _confine(connection: Any) -> None:
    """Prevent a query from reading other files, and stop it after a timeout."""
    forbidden, until = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH), time.monotonic() + _QUERY_TIMEOUT
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in forbidden else sqlite3.SQLITE_OK)
    connection.set_progress_handler(lambda: time.monotonic() > until, 100_000)


def _number(rows: Sequence[Any]) -> float | None:
    if not rows:
        return None
    if len(rows) > 1 or len(rows[0]) != 1 or isinstance(rows[0][0], str | bytes):
        raise ValueError("the query must return one number, in one row and one column")
    return finite(rows[0][0], "the query")


def finite(value: Any, source: str) -> float:
    """Return a number as a float; raise `ValueError` if it cannot be compared with a limit."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        shown = "NULL" if value is None else type(value).__name__ if not isinstance(value, float) else str(value)
        raise ValueError(f"{source} must return a finite number, not {shown}")
    return number


def slots_of(url: str) -> list[Slot]:
    """Return the replication slots of a PostgreSQL server, with their lag."""
    with _connected(_parsed(url)) as connection:
        return read_slots(connection)


def read_slots(connection: Connection) -> list[Slot]:
    """Return the replication slots of the server of a connection."""
    return [
        Slot(name=row.name, lag_bytes=max(0, int(row.lag)), active=bool(row.active))
        for row in connection.execute(_SLOTS)
        if row.lag is not None
    ]


def server_of(url: str) -> str:
    """Return host and port of a URL, which distinguish slots of several servers."""
    parsed = _parsed(url)
    return f"{parsed.host or 'localhost'}:{parsed.port or 5432}"


def _parsed(url: str) -> URL:
    return parse_url(url, "its URL", "postgresql://user@host/database")


@contextmanager
def _connected(url: URL, *, limit: int = _COUNT_TIMEOUT) -> Iterator[Connection]:
    options: dict[str, Any] = {"poolclass": NullPool, "hide_parameters": True}
    if url.drivername in _POSTGRES:
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        # The driver would create an empty file if the name is mistyped.
        options["creator"] = lambda: sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    elif url.drivername == "postgresql+psycopg" and "connect_timeout" not in url.query:
        options["connect_args"] = {"connect_timeout": _CONNECT_TIMEOUT}
    engine = create_engine(url, **options)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text(f"SET statement_timeout = '{limit}s'"))
            yield connection
    finally:
        engine.dispose()


def _count_in_duckdb(url: URL, schema: str, name: str) -> int:
    row = _query_duckdb(url, f"SELECT count(*) FROM {_path(schema, name)}")
    return int(row[0]) if row else 0


def _path(schema: str, name: str) -> str:
    return ".".join(_quoted(part) for part in (schema, name) if part)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _query_duckdb(url: URL, query: str) -> Any:
    with _duckdb(url) as connection:
        return connection.execute(query).fetchone()


def _select_from_duckdb(url: URL, query: str) -> list[Any]:
    """Run one SELECT: the file is opened read-only, but other statements could write other files."""
    with _duckdb(url) as connection:
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type.name != "SELECT":
            raise ValueError("the query must be one SELECT")
        rows: list[Any] = connection.execute(statements[0]).fetchmany(2)
        return rows


@contextmanager
def _duckdb(url: URL) -> Iterator[Any]:
    with require_extra("rows"):
        import duckdb

    with duckdb.connect(url.database or "", read_only=True) as connection:
        yield connection
