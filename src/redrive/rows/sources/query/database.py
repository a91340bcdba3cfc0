"""A database that is only read: one short statement at a time, retried after transient errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import URL, CursorResult, Executable, create_engine, event
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError, NoSuchModuleError
from sqlalchemy.sql import ClauseElement

from redrive._internal.database_url import parse_url
from redrive._internal.masking import mask
from redrive._internal.optional import require_extra
from redrive._internal.shutdown import Cancellation, cancel_statement
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.errors import SourceError, Transient
from redrive.model.calls import Kind
from redrive.policy import backoff
from redrive.rows.sinks.locks import OUTPUT_SETTINGS, limit_lock_waits
from redrive.rows.sources.ndjson.numbers import loads
from redrive.rows.sources.query.duckdb_exact import ExactColumns, is_timedelta

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which a database that restarts, or that another process keeps busy, is waited for."""

Found = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""The columns of a SELECT, and its rows."""

_HEALS = {Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED}
# A statement timeout: another session's lock is often the cause.
_TIMED_OUT = "57014"
_LOCK_WAIT = 5.0
"""Seconds for which one statement waits for a lock; it is retried until `PATIENCE` has passed."""
_FILES = {"sqlite", "duckdb"}
NUMBERED = "ENUM or SET"
"""The type of a column of MySQL that is sorted by number and compared by text."""
_NUMBERED = 256 | 2048  # the flags of both in its protocol
_classifier = Classifier()


class QueryDatabase(Protocol):
    """Where statements are sent."""

    def run(self, statement: Executable) -> Found:
        """Run a SELECT in a transaction of its own."""

    def describe(self, statement: Executable) -> Sequence[tuple[str, Any]]:
        """Return the columns of a SELECT that gives no row, with their types as the driver names them."""

    def close(self) -> None:
        """Let go of the connections; may be called twice."""


def parsed(url: str | URL) -> URL:
    """Return the URL of a database that can be read from; ValueError where it is none."""
    address = parse_url(url, "the database's URL", "postgresql://… or sqlite:///orders.db")
    if address.drivername in {"postgres", "postgresql"}:
        return address.set(drivername="postgresql+psycopg")
    if address.get_backend_name() != "duckdb":
        try:
            address.get_dialect()
        except NoSuchModuleError:
            raise ValueError(f"SQLAlchemy knows no database {address.drivername!r}: install its dialect") from None
    return address


def place_of(url: URL) -> str:
    """Return the database as a checkpoint knows it: without user, password and options."""
    backend = url.get_backend_name()
    if backend in _FILES and not _is_no_file(url):
        return f"{backend}:{Path(url.database or '').resolve()}"
    port = f":{url.port}" if url.port else ""
    return f"{backend}://{url.host or ''}{port}/{url.database or ''}"


def is_file(url: URL, path: Path) -> bool:
    """Return whether a database is this file of DuckDB."""
    return place_of(url) == f"duckdb:{path.resolve()}"


def open_database(url: URL, *, is_shared: bool = False) -> QueryDatabase:
    """Make ready to send statements; nothing is sent yet.

    Args:
        url: the database.
        is_shared: whether this process also writes to it, if it is a file of DuckDB.
    """
    backend = url.get_backend_name()
    if backend in _FILES and not _is_no_file(url) and not Path(url.database or "").is_file():
        raise SourceError(f"there is no database {url.database}")  # opening it would make an empty one
    return _DuckdbDatabase(url, is_shared=is_shared) if backend == "duckdb" else _SqlalchemyDatabase(url)


def with_retries(work: Callable[[], T]) -> T:
    """Run `work`, and retry after transient errors until the time has passed. Raise its last error as it is."""
    ends, repeat = time.monotonic() + PATIENCE, 0
    cancellation = Cancellation.current()
    while True:
        try:
            return work()
        except Exception as error:
            if cancellation.requested or is_interrupt(error) or not is_transient(error) or time.monotonic() >= ends:
                raise
        repeat += 1
        cancellation.wait(random.uniform(0, backoff.ceiling(repeat, base=0.01, multiplier=2, cap=1)))


def kind_of(error: BaseException) -> Kind:
    """Return what a database's error is."""
    return _classifier.classify(error, scope="call").kind


def is_transient(error: BaseException) -> bool:
    """Return whether the same may work later."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return kind_of(error) in _HEALS or getattr(cause, "sqlstate", None) == _TIMED_OUT


def is_not_of_a_row(error: BaseException) -> bool:
    """Return whether an error is of the database as a whole, so that no row can be the reason."""
    return is_interrupt(error) or is_transient(error) or kind_of(error) in {Kind.AUTH, Kind.RESOURCE}


def first_line(error: BaseException) -> str:
    """Return the message of the database, without secrets."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    lines = mask(str(cause)).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def _is_no_file(url: URL) -> bool:
    return url.database in {None, "", ":memory:"} or str(url.database).startswith("file:")


class _SqlalchemyDatabase:
    """Any database that SQLAlchemy has a dialect for."""

    def __init__(self, url: URL) -> None:
        options: dict[str, Any] = {}
        if url.get_backend_name() == "postgresql":
            options["execution_options"] = {"postgresql_readonly": True}
        if issubclass(url.get_dialect(), PGDialect):
            # The drivers decode json and jsonb, fractions as floats; those of other databases give JSON as text.
            options["json_deserializer"] = loads
        if url.get_driver_name() == "psycopg":
            # A pooler may hand the next page to another server process, which knows no statement of ours.
            options["connect_args"] = {"connect_timeout": 10, "prepare_threshold": None}
            with require_extra("postgres"):
                import_module("psycopg")
        try:
            # A traceback is no place for records.
            self._engine = create_engine(url, hide_parameters=True, **options)
        except ModuleNotFoundError as missing:
            raise SourceError(f"the driver of this database is not installed: pip install {missing.name}") from None
        if url.get_driver_name() == "psycopg":
            event.listen(self._engine, "connect", _keep_intervals)
            event.listen(self._engine, "connect", _keep_bounds)

    def run(self, statement: Executable) -> Found:
        return self._executed(statement, lambda result: (list(result.keys()), result.fetchall()))

    def describe(self, statement: Executable) -> Sequence[tuple[str, Any]]:
        def columns(result: CursorResult[Any]) -> Sequence[tuple[str, Any]]:
            described = () if result.cursor is None else result.cursor.description or ()
            kinds = [kind for _, kind, *_ in described]
            if self._engine.dialect.name in {"mysql", "mariadb"}:
                kinds = [
                    NUMBERED if is_numbered else kind
                    for kind, is_numbered in zip(kinds, numbered(result.cursor), strict=True)
                ]
            return list(zip(result.keys(), kinds, strict=True))

        return self._executed(statement, columns)

    def _executed(self, statement: Executable, taken: Callable[[CursorResult[Any]], T]) -> T:
        with self._engine.connect() as connection:
            driver = connection.connection.driver_connection
            with Cancellation.current().during(lambda: cancel_statement(driver)), connection.begin():
                limit_lock_waits(connection, _LOCK_WAIT)
                if connection.dialect.name == "postgresql":
                    # A value that is read as its text must be the same in any session that reads it.
                    connection.exec_driver_sql(OUTPUT_SETTINGS)
                return taken(connection.execute(statement))

    def close(self) -> None:
        self._engine.dispose()


def numbered(cursor: Any) -> list[bool]:
    """Return which columns of a MySQL cursor are an ENUM or a SET; the drivers report it differently."""
    if hasattr(cursor, "description_flags"):  # mysqlclient
        flags = list(cursor.description_flags)
    elif (fields := getattr(getattr(cursor, "_result", None), "fields", None)) is not None:  # PyMySQL
        flags = [field.flags for field in fields]
    else:  # MySQL Connector and MariaDB Connector have one more value in their description than others
        flags = [column[7] if len(column) > 7 else 0 for column in cursor.description]
    return [bool(flag & _NUMBERED) for flag in flags]


def _keep_intervals(connection: Any, _: Any) -> None:
    """Have psycopg give an interval that a timedelta cannot hold as its text.

    A timedelta has no months, of which psycopg makes 30 days each, and no days apart from 24 hours.
    """
    from psycopg.types.datetime import IntervalLoader

    class Interval(IntervalLoader):
        def load(self, data: Any) -> Any:
            text = bytes(data).decode()
            return super().load(data) if is_timedelta(text) else text

    connection.adapters.register_loader("interval", Interval)


def _keep_bounds(connection: Any, _: Any) -> None:
    """Have psycopg give an array whose indexes do not begin at 1 as its text: a list has no bounds."""
    from psycopg.pq import Format

    for oid in {info.array_oid for info in connection.adapters.types if info.array_oid}:
        loader = connection.adapters.get_loader(oid, Format.TEXT)
        if loader is not None:
            connection.adapters.register_loader(oid, _with_bounds(loader))


@cache
def _with_bounds(loader: Any) -> Any:
    from psycopg.adapt import Loader

    class Bounded(Loader):  # not a subclass of the loader: of one in C the driver would not call this method
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._inner = loader(oid, context)

        def load(self, data: Any) -> Any:
            text = bytes(data)
            return text.decode() if text.startswith(b"[") else self._inner.load(text)

    return Bounded


class _DuckdbDatabase:
    """DuckDB, by its own connection: it has no dialect that comes with SQLAlchemy."""

    def __init__(self, url: URL, *, is_shared: bool) -> None:
        with require_extra("rows"):
            import duckdb
        self._is_shared = is_shared
        self._duckdb = duckdb
        self._file = ":memory:" if _is_no_file(url) else str(url.database)
        self._connection: Any = None
        self._dialect = DefaultDialect(paramstyle="numeric_dollar")
        self._exact: dict[str, ExactColumns] = {}

    def run(self, statement: Executable) -> Found:
        query, parameters = self._compiled(statement)
        with Cancellation.current().during(self._connection.interrupt):
            exact = self._columns(query, parameters)
            result = self._connection.execute(exact.select(query), parameters)
            return exact.names, exact.rows(result.fetchall())

    def describe(self, statement: Executable) -> Sequence[tuple[str, Any]]:
        query, parameters = self._compiled(statement)
        with Cancellation.current().during(self._connection.interrupt):
            return list(self._columns(query, parameters).types.items())

    def _compiled(self, statement: Executable) -> tuple[str, list[Any]]:
        assert isinstance(statement, ClauseElement)
        compiled: Any = statement.compile(dialect=self._dialect)
        if self._connection is None:
            self._connection = self._connect()
        return compiled.string, [compiled.params[name] for name in compiled.positiontup]

    def _columns(self, query: str, parameters: list[Any]) -> ExactColumns:
        if query not in self._exact:
            types = self._connection.execute(f"DESCRIBE {query}", parameters).fetchall()
            (zone,) = self._connection.execute("SELECT current_setting('TimeZone')").fetchone()
            self._exact[query] = ExactColumns({name: kind for name, kind, *_ in types}, zone)
        return self._exact[query]

    def _connect(self) -> Any:
        if self._file == ":memory:":
            return self._duckdb.connect()
        try:
            # DuckDB shares a file one way only: all connections of a process write to it, or none.
            return self._duckdb.connect(self._file, read_only=not self._is_shared)
        except self._duckdb.ConnectionException:
            return self._duckdb.connect(self._file, read_only=self._is_shared)
        except self._duckdb.IOException as error:
            if "lock" not in str(error):  # it has no code for this
                raise
            raise Transient(first_line(error)) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
