"""The sink for a table of PostgreSQL: reads the schema of the table, creates it, and starts a load for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from sqlalchemy import URL, Connection, make_url

from redrive._internal.optional import require_extra
from redrive.errors import SinkMismatch
from redrive.model.calls import Kind
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.batch_log import NAME as LOG_NAME
from redrive.rows.sinks.batch_log import BatchLog
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.keys import KeyKind, KeyQuery
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.postgres.catalog import (
    LOG_SCHEMA,
    PostgresSchema,
    has_schema,
    other_tables,
    read_shape,
)
from redrive.rows.sinks.postgres.keys import KeyType, query_keys, stored_values
from redrive.rows.sinks.postgres.load import PostgresLoad, delete_rows
from redrive.rows.sinks.sql_table import RowFaults, SqlTable, execute_with
from redrive.rows.sinks.table_schema import TableName, TableSchema, listed, quoted
from redrive.store.database import Database
from redrive.store.dialects.postgres import PostgresDialect

with require_extra("postgres"):
    import psycopg

_TYPES = {
    ColumnType.BOOLEAN: "boolean",
    ColumnType.INTEGER: "bigint",
    ColumnType.HUGE: "numeric",
    ColumnType.FLOAT: "double precision",
    ColumnType.DECIMAL: "numeric",
    ColumnType.TEXT: "text",
    ColumnType.BYTES: "bytea",
    ColumnType.DATE: "date",
    ColumnType.TIME: "time",
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.INSTANT: "timestamptz",
    ColumnType.NANOSECONDS: "text",
    ColumnType.DURATION: "interval",
    ColumnType.UUID: "uuid",
    ColumnType.JSON: "jsonb",
}
_TEXTS = ("text", "varchar", "bpchar", "citext")
_NAME_BYTES = 63  # unless the server was compiled otherwise
_UNSORTED = ("json", "jsonb", "xml")  # or not by what they mean


class _Server(PostgresDialect):
    """PostgreSQL as the user's database: it has no schema of redrive."""

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        if kind is Kind.AUTH:
            return "check the user and the password of the table's URL"
        return super().advice(error, kind)


class PostgresTable(SqlTable):
    """See `Sink` and `SharesTransactions`.

    Rows are copied straight into the table as long as all of them are new, which is twice as fast; after the first one
    that is not, and for good, through a staging table.
    """

    def __init__(
        self,
        url: URL,
        table: TableName,
        *,
        key: tuple[str, ...],
        create: bool,
        patience: float,
        mode: WriteMode | None = None,
    ) -> None:
        super().__init__(Database(_Server(url), patience=patience), table, key=key, create=create, mode=mode)
        self._straight = True
        self._in_order = False

    def lives_in(self, database: Database) -> bool:
        """See `SharesTransactions`."""
        # Rows that are appended go by the label of their batch, also those of a piece that moves no checkpoint.
        is_same = isinstance(database.dialect, PostgresDialect) and _place(database) == _place(self._database)
        return is_same and bool(self.key)

    def check(self, columns: Sequence[str]) -> None:
        """See `Sink`."""
        schema = self._table.schema
        if schema and not self._database.read(lambda found: has_schema(found, schema)):
            raise SinkMismatch(f"{self._database.name} has no schema {schema}; make it: CREATE SCHEMA {quoted(schema)}")
        super().check(columns)

    def _read_shape(self, connection: Connection) -> PostgresSchema | None:
        shape = read_shape(connection, self._table)
        if shape is not None and (folded := [name for name in self.key if name in shape.nondeterministic]):
            raise SinkMismatch(
                f"the key column {folded[0]!r} of {self._table} has a nondeterministic collation, by which different "
                "texts are one key, and only the server knows which; give it a deterministic one, or the type citext"
            )
        return shape

    def _other_tables(self, connection: Connection) -> list[str]:
        return other_tables(connection)

    def _make(self, connection: Connection, rows: Outgoing) -> None:
        _check_names(self._table, rows.columns)
        columns = [f"{quoted(name)} {_TYPES[kind]}" for name, kind in types_of(rows).items()]
        # Two that make the same table at once would fail; the second one finds it made.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._table.sql,))
        primary = [f"PRIMARY KEY ({listed(self.key)})"] if self.key else []
        with closing(connection.connection.cursor()) as cursor:  # the driver's own: a name may have a % in it
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {self._table.sql} ({', '.join([*columns, *primary])})")

    def _batch_log(self, connection: Connection) -> BatchLog | None:
        schema, exists = connection.exec_driver_sql(
            LOG_SCHEMA, {"table": self._table.sql, "schema": self._table.schema, "log": LOG_NAME}
        ).one()
        return BatchLog(schema, execute_with(connection), mark="%s") if exists else None

    def _make_log(self, connection: Connection) -> BatchLog:
        # Two that create the same table at once would fail; the second one finds it created.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (LOG_NAME,))
        schema, _ = connection.exec_driver_sql(
            LOG_SCHEMA, {"table": self._table.sql, "schema": self._table.schema, "log": LOG_NAME}
        ).one()
        log = BatchLog(schema, execute_with(connection), mark="%s")
        cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]  # the driver's own
        with closing(cursor):
            try:
                cursor.execute(log.create)
            except psycopg.errors.InsufficientPrivilege as error:
                raise SinkMismatch(
                    f"appending to {self._table} needs a table {LOG_NAME} beside it, which this user may not create "
                    f"({error.diag.message_primary}); create it, and let this user read and write it: {log.create}"
                ) from error
        return log

    def _key_columns(self, shape: TableSchema | None, rows: Outgoing) -> tuple[dict[str, KeyKind], KeyQuery]:
        if shape is None:
            made = types_of(rows)
            types = {name: KeyType.made(_TYPES[made[name]]) for name in self.key}
        else:
            types = self._key_types(shape)

        def ask_server(some: Outgoing) -> Sequence[Sequence[Any]]:
            def work(connection: Connection) -> Sequence[Sequence[Any]]:
                cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]
                with closing(cursor):
                    return query_keys(cursor, some, types)

            return self._database.write(work)

        return {name: type_.kind for name, type_ in types.items()}, ask_server

    def _key_types(self, shape: TableSchema) -> dict[str, KeyType]:
        assert isinstance(shape, PostgresSchema)
        named = zip(self.key, shape.types(self.key), strict=True)
        return {name: KeyType(kind, shape.base_types[name], shape.stored_types[name].type) for name, kind in named}

    def _text_order(self, shape: TableSchema | None, rows: Outgoing, name: str) -> Literal["texts"] | None:
        base = shape.base_types.get(name) if isinstance(shape, PostgresSchema) else _TYPES[types_of(rows)[name]]
        if base in _UNSORTED:
            self._order.refuse_type(base)
        return "texts" if base in _TEXTS else None

    def _stored_values(
        self, connection: Connection, shape: TableSchema, keys: Outgoing, column: str
    ) -> Mapping[int, Any]:
        cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]  # the driver's own
        with closing(cursor):
            return stored_values(cursor, self._table, keys, self._key_types(shape), column)

    def _delete(self, connection: Connection, shape: TableSchema, rows: Outgoing) -> RowFaults:
        cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]  # the driver's own
        with closing(cursor):
            return delete_rows(cursor, self._table, self.key, shape, rows, newer=self.mode.newer)

    def _load(
        self, connection: Connection, shape: TableSchema, rows: Outgoing, *, rehearsing: bool
    ) -> Mapping[int, str]:
        assert isinstance(shape, PostgresSchema)
        cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]  # the driver's own
        try:
            with closing(cursor):
                load = PostgresLoad(cursor, self._table, self.key, shape, rows, mode=self.mode, in_order=self._in_order)
                if shape.acts_later:
                    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
                if self._straight and shape.plain and not rehearsing:
                    if load.straight():
                        return {}
                    self._straight = False
                return load.staged()
        except psycopg.errors.DeadlockDetected:
            # Another writer has the same keys: from now on each takes its turn, in the order of the key.
            self._straight, self._in_order = False, True
            raise


def _place(database: Database) -> tuple[object, ...]:
    """Return what makes two URLs one database and one user; the password is not among it."""
    url = make_url(database.name)
    return url.host, url.port or 5432, url.database or url.username, url.username, url.query


def _check_names(table: TableName, columns: Sequence[str]) -> None:
    """Raise SinkMismatch for columns that the server would give the same name."""
    kept: dict[str, str] = {}
    for name in columns:
        other = kept.setdefault(name.encode(errors="replace")[:_NAME_BYTES].decode(errors="ignore"), name)
        if other is not name:
            raise SinkMismatch(
                f"{table} cannot be created: PostgreSQL keeps {_NAME_BYTES} bytes of a column's name, and {other!r} "
                f"and {name!r} are the same in these; rename one of them in a transform"
            )
