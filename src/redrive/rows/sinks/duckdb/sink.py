"""The sink for a table of DuckDB: polars frames are read in place, and rejected rows are found by one query."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from redrive._internal.optional import require_extra
from redrive._internal.shutdown import Cancellation
from redrive.classify.classifier import Classifier
from redrive.errors import SinkMismatch, StoreError
from redrive.model.calls import Kind
from redrive.policy import backoff
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.batch_log import NAME as LOG_NAME
from redrive.rows.sinks.batch_log import BatchLog, digest_of
from redrive.rows.sinks.duckdb.catalog import (
    DuckdbSchema,
    has_schema,
    is_nested,
    other_tables,
    read_shape,
)
from redrive.rows.sinks.duckdb.load import DuckdbLoad, delete_rows, first_line
from redrive.rows.sinks.duckdb.values import kind_of, query_keys, stored_values
from redrive.rows.sinks.exact.capacity import column_digits
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.keys import TextOrder
from redrive.rows.sinks.keys import compared as compare_keys
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.sql_table import refusals
from redrive.rows.sinks.table_schema import (
    TableName,
    compare,
    fold_name,
    listed,
    no_table,
    quoted,
)

with require_extra("rows"):
    import duckdb

T = TypeVar("T")

_TYPES = {
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.INTEGER: "BIGINT",
    ColumnType.HUGE: "HUGEINT",
    ColumnType.FLOAT: "DOUBLE",
    ColumnType.TEXT: "VARCHAR",
    ColumnType.BYTES: "BLOB",
    ColumnType.DATE: "DATE",
    ColumnType.TIME: "TIME",
    ColumnType.TIMESTAMP: "TIMESTAMP",
    ColumnType.INSTANT: "TIMESTAMPTZ",
    ColumnType.NANOSECONDS: "TIMESTAMP_NS",
    ColumnType.DURATION: "INTERVAL",
    ColumnType.UUID: "UUID",
    ColumnType.JSON: "JSON",
}
_UNSORTED = ("JSON",)  # it sorts as a text: "10" before "9"
_HEALS = (Kind.RETRY_NOW, Kind.TRANSIENT)
_classifier = Classifier()


class DuckdbTable:
    """See `Sink`. The file belongs to this process from the first use until `close`."""

    fold = staticmethod(fold_name)
    """Makes names of columns equal that DuckDB takes for the same."""

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
        self.mode = mode or WriteMode()
        self.name = f"{table} in {path}"
        self.key = key
        self._path, self._table = path, table
        self.duckdb_file = path
        self._create, self._patience = create, patience
        self.repeats = 0
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._removed_old = False
        self._order = TextOrder(table, self.mode.newer or "")

    def __repr__(self) -> str:
        return f"<table {self.name}>"

    def exists(self) -> bool:
        """See `Sink`."""
        if not self._path.exists():
            return False
        return self._with_retries(lambda connection: read_shape(connection, self._table)) is not None

    def check(self, columns: Sequence[str]) -> None:
        """See `Sink`."""
        self.mode.check(self._table, columns, fold_name)
        compare(self._table, self._with_retries(self._read_schema), self.mode.written(columns), self.key, fold_name)

    def compared_keys(self, rows: Outgoing) -> Outgoing | None:
        """See `ComparesKeys`."""
        if not self.key or not len(rows):
            return None
        return self._with_retries(lambda connection: self._keys(connection, rows))

    def _keys(self, connection: duckdb.DuckDBPyConnection, rows: Outgoing) -> Outgoing | None:
        shape = self._read_schema(connection)
        if shape is None:
            made = types_of(rows)
            types, collations = {name: _type(name, made[name], rows) for name in self.key}, dict[str, str]()
        else:
            types = dict(zip(self.key, shape.types(self.key, fold_name), strict=True))
            collations = shape.collations
        kinds = {name: kind_of(kind, collations.get(name.lower(), "")) for name, kind in types.items()}
        return compare_keys(rows, kinds, lambda some: query_keys(connection, some, types, collations))

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Sink`."""
        if not len(rows):
            return ()
        if self.key:
            return self._with_retries(lambda connection: self._load(connection, rows, keep=True))
        return self.append(rows, label=label)

    def append(self, rows: Outgoing, *, label: str, digest: str = "") -> Sequence[Refused]:
        """See `Appends`."""
        if not len(rows):
            return ()
        whole = digest_of(rows, digest)
        return self._with_retries(lambda connection: self._append(connection, rows, label, whole))

    def append_all(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Appends`."""
        if not len(rows):
            return ()
        digest = digest_of(rows)
        return self._with_retries(lambda connection: self._append(connection, rows, label, digest, all_or_none=True))

    def has_appended(self, run_id: str) -> bool:
        """See `Appends`."""

        def read(connection: duckdb.DuckDBPyConnection) -> bool:
            if read_shape(connection, TableName(LOG_NAME, self._table.schema)) is None:
                return False
            return _log(connection, self._table).has_run(run_id)

        return self._with_retries(read)

    def is_empty(self) -> bool:
        """See `Appends`."""
        if not self._path.exists():
            return True

        def read(connection: duckdb.DuckDBPyConnection) -> bool:
            query = f"SELECT 1 FROM {self._table.sql} LIMIT 1"
            return read_shape(connection, self._table) is None or not connection.execute(query).fetchall()

        return self._with_retries(read)

    def rehearse(self, rows: Outgoing) -> Sequence[Refused]:
        """See `Sink`."""
        return self._with_retries(lambda connection: self._load(connection, rows, keep=False)) if len(rows) else ()

    def close(self) -> None:
        """See `Sink`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_schema(self, connection: duckdb.DuckDBPyConnection) -> DuckdbSchema | None:
        schema, shape = self._table.schema, read_shape(connection, self._table)
        if shape is None and schema is not None and not has_schema(connection, schema):
            raise SinkMismatch(f"{self._path} has no schema {schema}; make it: CREATE SCHEMA {quoted(schema)}")
        if shape is None and not self._create:
            raise no_table(str(self._path), self._table, other_tables(connection))
        return shape

    def _load(self, connection: duckdb.DuckDBPyConnection, rows: Outgoing, *, keep: bool) -> Sequence[Refused]:
        shape = self._read_schema(connection)  # for every batch: it is fast, and the table may have been altered
        unsortable = self._unsortable(connection, shape, rows) if self.mode.newer else {}
        if self.mode.delete_when is None and not unsortable:
            return self._upsert(connection, shape, rows, keep=keep)
        split = self.mode.split(rows, unsortable)
        bad, kept = dict(split.bad), 0
        if shape is not None and len(split.deleted):
            gone = split.deleted
            faults, kept = delete_rows(connection, self._table, self.key, shape, gone, mode=self.mode, keep=keep)
            bad |= {split.deleted_places[place]: fault for place, fault in faults.items()}
        deleted = len(split.deleted) - (len(bad) - len(split.bad))
        written = self._upsert(connection, shape, split.kept, keep=keep) if len(split.kept) else WriteResult()
        bad |= {split.kept_places[row.place]: str(row.error) for row in written}
        applied = refusals(bad)
        applied.ignored, applied.deleted = written.ignored, deleted
        self.mode.keep(applied, kept)
        return applied

    def _unsortable(
        self, connection: duckdb.DuckDBPyConnection, shape: DuckdbSchema | None, rows: Outgoing
    ) -> dict[int, str]:
        """Return the rows that cannot be compared by `newer`, because the column is a text, by place, and why."""
        newer = self.mode.newer or ""
        name = next((name for name in rows.columns if fold_name(name) == fold_name(newer)), None)
        if name is None:
            return {}
        kind = _type(name, types_of(rows)[name], rows) if shape is None else shape.type_of(name, fold_name)
        if kind is not None and (kind in _UNSORTED or is_nested(kind)):
            self._order.refuse_type(kind)
        if kind != "VARCHAR":
            return {}

        def stored(most: int) -> Sequence[Any]:
            column = quoted(newer)
            query = f"SELECT {column} FROM {self._table.sql} WHERE {column} IS NOT NULL LIMIT {most}"
            return () if shape is None else [value for (value,) in connection.execute(query).fetchall()]

        def replaced(places: Sequence[int]) -> Mapping[int, Any]:
            if shape is None or not places:
                return {}
            keys = rows.take(places).onto(self.key)
            values = stored_values(connection, self._table, keys, shape.types(self.key, fold_name), newer)
            return {places[at]: value for at, value in values.items()}

        return self._order.faults(rows.values(name), stored, replaced, takes_numbers=False)

    def _append(
        self,
        connection: duckdb.DuckDBPyConnection,
        rows: Outgoing,
        label: str,
        digest: str,
        *,
        all_or_none: bool = False,
    ) -> WriteResult:
        """Append rows, unless rows of this label are in the table."""
        shape, log = self._read_schema(connection), _log(connection, self._table)
        connection.execute(log.create)
        if not self._removed_old:
            log.remove_old(label)
            self._removed_old = True
        if all_or_none and log.has_run(label):
            return WriteResult()
        if (result := log.find(label, digest)) is not None:
            return result

        def note(bad: Mapping[int, str]) -> None:
            log.claim(label, digest)
            log.complete(label, refusals(bad))

        return self._upsert(connection, shape, rows, keep=True, note=note, all_or_none=all_or_none)

    def _upsert(
        self,
        connection: duckdb.DuckDBPyConnection,
        shape: DuckdbSchema | None,
        rows: Outgoing,
        *,
        keep: bool,
        note: Callable[[Mapping[int, str]], None] | None = None,
        all_or_none: bool = False,
    ) -> WriteResult:
        self.mode.check(self._table, rows.columns, fold_name)
        compare(self._table, shape, rows.columns, self.key, fold_name)
        make = None
        if shape is None:
            make = self._create_statement(rows)
            shape = _rolled_back(connection, make, lambda: read_shape(connection, self._table))
            assert shape is not None
        load = DuckdbLoad(connection, self._table, self.key, shape, rows, make=make, keep=keep, mode=self.mode)
        try:
            applied = refusals(load.run() if note is None else load.append(note, all_or_none=all_or_none))
            applied.ignored = load.ignored(len(rows) - len(applied))
            return applied
        finally:
            with suppress(duckdb.Error):
                connection.unregister("redrive_rows")

    def _create_statement(self, rows: Outgoing) -> str:
        columns = [f"{quoted(name)} {_type(name, kind, rows)}" for name, kind in types_of(rows).items()]
        primary = [f"PRIMARY KEY ({listed(self.key)})"] if self.key else []
        return f"CREATE TABLE IF NOT EXISTS {self._table.sql} ({', '.join([*columns, *primary])})"

    # ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _connected(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            if self._path.is_dir():
                raise SinkMismatch(f"{self._path} is a directory, and a database of DuckDB is a file; name that")
            if not self._path.parent.is_dir():
                raise SinkMismatch(f"the directory {self._path.parent} does not exist; make it, or name another path")
            if not self._create and not self._path.exists():
                raise SinkMismatch(f"there is no database {self._path}; name another file, or pass create=True")
            self._connection = duckdb.connect(str(self._path))
            with suppress(duckdb.Error):  # a build without time zones has no use for it
                self._connection.execute("SET TimeZone = 'UTC'")  # a naive time is the same on every machine
        return self._connection

    def _with_retries(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run it again as a whole while another process has the file, or changes the same rows."""
        ends, repeat = time.monotonic() + self._patience, 0
        cancellation = Cancellation.current()
        while True:
            try:
                connection = self._connected()
                with cancellation.during(connection.interrupt):
                    return work(connection)
            except duckdb.Error as error:
                self.close()  # and with it whatever was begun
                kind = _kind(error)
                if cancellation.requested or kind not in _HEALS or time.monotonic() >= ends:
                    raise StoreError(f"{self._path}: {first_line(error)}", kind=kind) from error
            repeat += 1
            self.repeats += 1
            cancellation.wait(random.uniform(0, backoff.ceiling(repeat, base=0.01, multiplier=2, cap=1)))


def _type(name: str, kind: ColumnType, rows: Outgoing) -> str:
    """Return the type of a new column."""
    if kind is not ColumnType.DECIMAL:
        return _TYPES[kind]
    digits = column_digits(name, rows)
    return "DECIMAL({}, {})".format(*digits) if digits else "VARCHAR"


def _kind(error: duckdb.Error) -> Kind:
    if isinstance(error, duckdb.IOException):  # only their text distinguishes them
        if "set lock" in str(error):
            return Kind.TRANSIENT
        if "not a valid DuckDB database" in str(error):
            return Kind.PERMANENT
    return _classifier.classify(error, scope="call").kind


def _rolled_back(connection: duckdb.DuckDBPyConnection, statement: str, look: Callable[[], T]) -> T:
    """Return what things look like when a statement has been run; it is undone."""
    connection.execute("BEGIN")
    connection.execute(statement)
    result = look()
    connection.execute("ROLLBACK")
    return result


def _log(connection: duckdb.DuckDBPyConnection, table: TableName) -> BatchLog:
    return BatchLog(table.schema, lambda statement, values: connection.execute(statement, list(values)).fetchall())
