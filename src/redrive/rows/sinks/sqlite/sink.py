"""The sink for a table of SQLite: opens the file, reads and creates the table, and starts a load for each batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from redrive.errors import SinkMismatch
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.batch_log import NAME as LOG_NAME
from redrive.rows.sinks.batch_log import BatchLog
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.keys import KeyKind, KeyQuery
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.sql_table import (
    RowFaults,
    SqlTable,
    TransactionGone,
    execute_with,
    refusals,
)
from redrive.rows.sinks.sqlite.catalog import SqliteSchema, ends_transactions, loses_rows, other_tables, read_shape
from redrive.rows.sinks.sqlite.load import SqliteLoad, delete_rows
from redrive.rows.sinks.sqlite.values import (
    UNSENDABLE,
    affinity,
    column_type,
    holds_numbers,
    kind_of,
    query_keys,
    rules_of,
)
from redrive.rows.sinks.table_schema import TableName, TableSchema, fold_name, listed, quoted
from redrive.rows.sinks.values import adapt_columns
from redrive.store.database import Database
from redrive.store.dialects.sqlite import SqliteDialect

_TYPES = {
    ColumnType.BOOLEAN: "INTEGER",
    ColumnType.INTEGER: "INTEGER",
    ColumnType.FLOAT: "REAL",
    ColumnType.BYTES: "BLOB",
}


class _File(SqliteDialect):
    """A file of the user: its journal and pages stay as they are, and it is not created unless requested."""

    def __init__(self, path: Path, *, create: bool, patience: float) -> None:
        super().__init__(path, patience=patience)
        self._create = create

    def engine(self) -> Engine:
        engine = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool, hide_parameters=True)
        event.listen(engine, "begin", _begin)
        return engine

    def _connect(self) -> sqlite3.Connection:
        if not self._path.parent.is_dir():
            raise SinkMismatch(f"the directory {Path(self.where).parent} does not exist; make it, or name another path")
        if not self._create and not self._path.exists():
            raise SinkMismatch(f"there is no database {self.where}; name another file, or pass create=True")
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={'rwc' if self._create else 'rw'}",
            uri=True,
            timeout=self.busy_timeout,
            isolation_level=None,  # only `_begin` begins transactions
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


def _begin(connection: Connection) -> None:
    # A writer takes its turn before it reads: one that has read first fails without waiting if others wrote.
    writing = connection.get_execution_options().get("redrive_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


class SqliteTable(SqlTable):
    """See `Sink` and `SharesTransactions`."""

    fold = staticmethod(fold_name)

    def __init__(
        self,
        path: Path,
        table: TableName,
        *,
        key: tuple[str, ...],
        create: bool,
        patience: float,
        mode: WriteMode | None = None,
    ) -> None:
        database = Database(_File(path, create=create, patience=patience), patience=patience)
        super().__init__(database, table, key=key, create=create, mode=mode)
        self._path = path

    def lives_in(self, database: Database) -> bool:
        """See `SharesTransactions`. A table that may end a transaction on its own never shares one, nor does one from
        which rows are deleted: the store's connections do not enforce the foreign keys of the rows that refer to it."""
        other = Path(database.name)
        if self.mode.delete_when is not None or not self.key:  # what is appended goes by the label of its batch
            return False
        if not isinstance(database.dialect, SqliteDialect) or not self._path.exists() or not other.exists():
            return False
        return other.samefile(self._path) and not self._database.read(
            lambda connection: ends_transactions(connection, self._table)
        )

    def exists(self) -> bool:
        """See `Sink`."""
        return self._path.exists() and super().exists()

    def is_empty(self) -> bool:
        """See `Appends`."""
        return not self._path.exists() or super().is_empty()

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Sink`."""
        write = super().write
        if not self.key:  # then no row ends the transaction
            return write(rows, label=label)
        return _without_breakers(rows, lambda some: write(some, label=label))

    def rehearse_after(self, earlier: Sequence[Outgoing], rows: Outgoing) -> Sequence[Refused]:
        """See `RehearsesInOrder`."""
        rehearse = super().rehearse_after
        return _without_breakers(rows, lambda some: rehearse(earlier, some))

    def _read_shape(self, connection: Connection) -> SqliteSchema | None:
        if loses_rows(connection, self._table):
            raise SinkMismatch(
                f"{self._table} is defined with ON CONFLICT IGNORE or REPLACE, by which SQLite leaves out rows "
                "without an error; create the table without it"
            )
        if not self.key and ends_transactions(connection, self._table):
            raise SinkMismatch(
                f"{self._table} answers a bad row with ROLLBACK, so a batch cannot be appended in one transaction; "
                "define it with ABORT instead of ROLLBACK, or write to it by a key"
            )
        return read_shape(connection, self._table)

    def _other_tables(self, connection: Connection) -> list[str]:
        return other_tables(connection)

    def _make(self, connection: Connection, rows: Outgoing) -> None:
        columns = [f"{quoted(name)} {_type(name, kind, rows)}" for name, kind in types_of(rows).items()]
        primary = [f"PRIMARY KEY ({listed(self.key)})"] if self.key else []
        connection.exec_driver_sql(f"CREATE TABLE {self._table.sql} ({', '.join([*columns, *primary])})")

    def _batch_log(self, connection: Connection) -> BatchLog | None:
        exists = connection.exec_driver_sql(
            f"SELECT 1 FROM {quoted(self._table.schema or 'main')}.sqlite_master WHERE name = ?", (LOG_NAME,)
        ).first()
        return None if exists is None else BatchLog(self._table.schema, execute_with(connection))

    def _make_log(self, connection: Connection) -> BatchLog:
        log = BatchLog(self._table.schema, execute_with(connection))
        connection.exec_driver_sql(log.create)
        return log

    def _load(
        self, connection: Connection, shape: TableSchema, rows: Outgoing, *, rehearsing: bool
    ) -> Mapping[int, str]:
        assert isinstance(shape, SqliteSchema)
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        with closing(driver.cursor()) as cursor:
            return SqliteLoad(cursor, self._table, self.key, shape, rows, mode=self.mode).run()

    def _key_columns(self, shape: TableSchema | None, rows: Outgoing) -> tuple[dict[str, KeyKind], KeyQuery]:
        if shape is None:
            made = types_of(rows)
            types, collations = {name: _type(name, made[name], rows) for name in self.key}, dict[str, str]()
        else:
            assert isinstance(shape, SqliteSchema)
            types = dict(zip(self.key, shape.types(self.key, fold_name), strict=True))
            collations = shape.collations.get(frozenset(map(fold_name, self.key)), {})

        def ask_sqlite(some: Outgoing) -> Sequence[Sequence[Any]]:
            kinds = [types[name] for name in some.columns]
            return query_keys(some, kinds, [rules_of(kind) for kind in kinds], collations)

        return {name: kind_of(kind, collations.get(name.lower(), "BINARY")) for name, kind in types.items()}, ask_sqlite

    def _text_order(self, shape: TableSchema | None, rows: Outgoing, name: str) -> Literal["texts", "numbers"] | None:
        made = _type(name, types_of(rows)[name], rows) if shape is None else shape.type_of(name, fold_name)
        if made is not None and affinity(made) == "TEXT":
            return "texts"
        return (
            None if made is None or holds_numbers(made) else "numbers"
        )  # a DATE of SQLite holds texts, and numbers as such

    def _stored_values(
        self, connection: Connection, shape: TableSchema, keys: Outgoing, column: str
    ) -> Mapping[int, Any]:
        columns: list[Sequence[Any]] = [keys.values(name) for name in keys.columns]
        bad = adapt_columns(columns, [rules_of(kind) for kind in shape.types(keys.columns, fold_name)])
        same = " AND ".join(f"{quoted(name)} = ?" for name in keys.columns)
        query = f"SELECT {quoted(column)} FROM {self._table.sql} WHERE {same}"
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        result: dict[int, Any] = {}
        with closing(driver.cursor()) as cursor:
            for place, values in enumerate(zip(*columns, strict=True)):
                with suppress(*UNSENDABLE):  # the table will not take it either
                    if place not in bad and (row := cursor.execute(query, values).fetchone()) is not None:
                        result[place] = row[0]
        return result

    def _delete(self, connection: Connection, shape: TableSchema, rows: Outgoing) -> RowFaults:
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        with closing(driver.cursor()) as cursor:
            return delete_rows(cursor, self._table, self.key, shape, rows, newer=self.mode.newer)


def _type(name: str, kind: ColumnType, rows: Outgoing) -> str:
    """Return the type of a new column."""
    if kind is ColumnType.DECIMAL:
        return column_type(rows.values(name))
    return _TYPES.get(kind, "TEXT")


def _without_breakers(rows: Outgoing, attempt: Callable[[Outgoing], Sequence[Refused]]) -> Sequence[Refused]:
    """Retry without each row that ended the transaction."""
    broke: dict[int, str] = {}
    while True:
        places = [place for place in range(len(rows)) if place not in broke]
        try:
            refused = attempt(rows.take(places) if broke else rows)
        except TransactionGone as gone:
            broke[places[gone.place]] = gone.reason
        else:
            bad = RowFaults({**broke, **{places[row.place]: str(row.error) for row in refused}})
            applied = refusals(bad)
            if isinstance(refused, WriteResult):
                applied.suppressed, applied.ignored = refused.suppressed, refused.ignored
                applied.deleted = refused.deleted
            return applied
