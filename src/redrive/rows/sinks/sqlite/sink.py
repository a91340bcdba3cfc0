"""SQLite: an upsert that runs row by row inside the library, so that the row it stops at is the bad one."""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from operator import length_hint
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from redrive.errors import SinkMismatch
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.batch_log import NAME as LOG_NAME
from redrive.rows.sinks.batch_log import BatchLog
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.keys import Ask, KeyKind
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.sql_table import (
    RowFaults,
    SqlTable,
    TransactionGone,
    evenly,
    execute_with,
    is_row_fault,
    refusals,
)
from redrive.rows.sinks.sqlite.catalog import SqliteSchema, ends_transactions, loses_rows, other_tables, read_shape
from redrive.rows.sinks.sqlite.values import (
    affinity,
    ask,
    column_type,
    fit_numbers,
    holds_numbers,
    kind_of,
    number_text,
)
from redrive.rows.sinks.table_schema import TableName, TableSchema, fold_name, listed, quoted
from redrive.rows.sinks.values import NESTED, Rules, adapt_columns, json_text
from redrive.store.database import Database
from redrive.store.dialects.sqlite import SqliteDialect


def _number(number: float) -> float:
    if math.isnan(number):
        raise ValueError("NaN would become NULL")
    return number


def _decimal(number: Decimal) -> str:
    if number.is_nan():
        raise ValueError("NaN is not kept as a number")
    return f"{number:f}"


# SQLite has five types; what is none of them is kept as text that sorts and compares as the value does.
VALUES: Rules = {
    **NESTED,
    dt.datetime: lambda moment: moment.isoformat(" "),
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: str,
    Decimal: _decimal,
    float: _number,
    UUID: str,
}
_IN_NUMBERS: Rules = {**VALUES, Decimal: number_text}
# A text has room for more than 64 bits, and SQLite itself would write 15 digits of a float.
_IN_TEXT: Rules = {**VALUES, bool: json_text, int: str, float: lambda number: repr(_number(number))}
_TYPES = {
    ColumnType.BOOLEAN: "INTEGER",
    ColumnType.INTEGER: "INTEGER",
    ColumnType.FLOAT: "REAL",
    ColumnType.BYTES: "BLOB",
}
_UNSENDABLE = (OverflowError, UnicodeEncodeError)


class _File(SqliteDialect):
    """A file that is somebody else's: its journal and its pages stay as they are, and it is not made unasked."""

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
            raise SinkMismatch(f"there is no database {self.where}; name another file, or say create=True")
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={'rwc' if self._create else 'rw'}",
            uri=True,
            timeout=self.busy_timeout,
            isolation_level=None,  # transactions are begun by `_begin` and by nobody else
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


def _begin(connection: Connection) -> None:
    # A writer takes its turn before it reads: one that has read first is refused without waiting when others wrote.
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
                f"{self._table} is defined with ON CONFLICT IGNORE or REPLACE, by which SQLite leaves out rows and "
                "says nothing; make the table without it"
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
            return _Load(cursor, self._table, self.key, shape, rows, mode=self.mode).run()

    def _key_columns(self, shape: TableSchema | None, rows: Outgoing) -> tuple[dict[str, KeyKind], Ask]:
        if shape is None:
            made = types_of(rows)
            types, collations = {name: _type(name, made[name], rows) for name in self.key}, dict[str, str]()
        else:
            assert isinstance(shape, SqliteSchema)
            types = dict(zip(self.key, shape.types(self.key, fold_name), strict=True))
            collations = shape.collations.get(frozenset(map(fold_name, self.key)), {})

        def ask_sqlite(some: Outgoing) -> Sequence[Sequence[Any]]:
            kinds = [types[name] for name in some.columns]
            return ask(some, kinds, [rules_of(kind) for kind in kinds], collations)

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
        found: dict[int, Any] = {}
        with closing(driver.cursor()) as cursor:
            for place, values in enumerate(zip(*columns, strict=True)):
                with suppress(*_UNSENDABLE):  # the table will not take it either
                    if place not in bad and (row := cursor.execute(query, values).fetchone()) is not None:
                        found[place] = row[0]
        return found

    def _delete(self, connection: Connection, shape: TableSchema, rows: Outgoing) -> RowFaults:
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        with closing(driver.cursor()) as cursor:
            return _delete_rows(cursor, self._table, self.key, shape, rows, newer=self.mode.newer)


def rules_of(kind: str) -> Rules:
    """Return what becomes of values in a column of this declared type."""
    match affinity(kind):
        case "TEXT":
            return _IN_TEXT
        case "BLOB":
            return VALUES
    return _IN_NUMBERS


def _type(name: str, kind: ColumnType, rows: Outgoing) -> str:
    """The type of a new column."""
    if kind is ColumnType.DECIMAL:
        return column_type(rows.values(name))
    return _TYPES.get(kind, "TEXT")


def _without_breakers(rows: Outgoing, attempt: Callable[[Outgoing], Sequence[Refused]]) -> Sequence[Refused]:
    """Begin again without a row that ended the transaction, as often as one does."""
    broke: dict[int, str] = {}
    while True:
        places = [place for place in range(len(rows)) if place not in broke]
        try:
            refused = attempt(rows.take(places) if broke else rows)
        except TransactionGone as gone:
            broke[places[gone.place]] = gone.reason
        else:
            bad = RowFaults({**broke, **{places[one.place]: str(one.error) for one in refused}})
            applied = refusals(bad)
            if isinstance(refused, WriteResult):
                applied.suppressed, applied.ignored = refused.suppressed, refused.ignored
                applied.deleted = refused.deleted
            return applied


def _delete_rows(
    cursor: sqlite3.Cursor,
    table: TableName,
    key: Sequence[str],
    shape: TableSchema,
    rows: Outgoing,
    *,
    newer: str | None,
) -> RowFaults:
    """Delete by key, where `newer` is given only what is older; the rows for which that fails by place, and why."""
    names = [*key, *([newer] if newer else [])]
    columns: list[Sequence[Any]] = [rows.values(name) for name in names]
    bad = RowFaults(adapt_columns(columns, [rules_of(kind) for kind in shape.types(names, fold_name)]))
    conditions = [f"{quoted(name)} = ?" for name in key]
    if newer:
        conditions.append(f"({quoted(newer)} IS NULL OR {quoted(newer)} < ?)")
    statement = f"DELETE FROM {table.sql} WHERE {' AND '.join(conditions)}"
    for place, values in enumerate(zip(*columns, strict=True)):
        try:
            if place not in bad:
                bad.deleted += cursor.execute(statement, values).rowcount
        except (sqlite3.Error, *_UNSENDABLE) as error:
            if not isinstance(error, _UNSENDABLE) and not is_row_fault(error):
                raise
            bad[place] = str(error)
            if not cursor.connection.in_transaction:
                raise TransactionGone(place, str(error)) from error
    return bad


class _Load:
    """One batch on its way into the table."""

    def __init__(
        self,
        cursor: sqlite3.Cursor,
        table: TableName,
        key: Sequence[str],
        shape: SqliteSchema,
        rows: Outgoing,
        *,
        mode: WriteMode,
    ) -> None:
        self._mode = mode
        self._cursor, self._table, self._key, self._shape = cursor, table, key, shape
        self._columns = rows.columns
        types = shape.types(rows.columns, fold_name)
        columns: list[Sequence[Any]] = list(zip(*rows.tuples, strict=True))
        self._bad = adapt_columns(columns, [rules_of(kind) for kind in types])
        columns = [fit_numbers(*column, self._bad) for column in zip(rows.columns, types, columns, strict=True)]
        self._tuples = list(zip(*columns, strict=True))
        others = [name for name in rows.columns if name.lower() not in {part.lower() for part in key}]
        self._upsert = (
            f"INSERT INTO {table.sql} AS redrive_own ({listed(rows.columns)}) "
            f"VALUES ({', '.join('?' * len(rows.columns))})"
        )
        if key:
            self._upsert += f" ON CONFLICT ({listed(key)}) DO {mode.action('redrive_own', others)}"
        self._changed = 0

    def run(self) -> RowFaults:
        """Write the rows that the table takes; the others by place, and why."""
        late = bool(self._shape.foreign_keys) and (self._shape.checks_late or not self._enforces())
        if late:
            self._cursor.execute("PRAGMA defer_foreign_keys = ON")
        self._cursor.execute("SAVEPOINT redrive_load")
        while True:
            places = [place for place in range(len(self._tuples)) if place not in self._bad]
            refused = self._write(places)
            orphans = self._orphans([place for place in places if place not in refused]) if late else {}
            if not orphans:
                break
            self._bad.update(orphans)  # and what is wrong with the others is seen when these are out of the way
            self._cursor.execute("ROLLBACK TO redrive_load")
        self._cursor.execute("RELEASE redrive_load")
        bad = RowFaults({**self._bad, **refused})
        good = [place for place in places if place not in refused]
        if self._shape.suppresses:
            bad.suppressed = self._absent(good) if self._key else len(good) - self._changed
        if not self._mode.is_plain:
            bad.ignored = len(good) - bad.suppressed - self._changed
        return bad

    def _absent(self, places: Sequence[int]) -> int:
        """How many of the rows just written are not in the table, because a trigger left them out."""
        own = {name.lower(): at for at, name in enumerate(self._columns)}
        parts = [own[name.lower()] for name in self._key]
        lookup = f"SELECT 1 FROM {self._table.sql} WHERE " + " AND ".join(f"{quoted(name)} = ?" for name in self._key)
        keys = ([self._tuples[place][part] for part in parts] for place in places)
        return sum(self._cursor.execute(lookup, key).fetchone() is None for key in keys)

    def _write(self, places: Sequence[int]) -> dict[int, str]:
        """Write from fault to fault: what came before a bad row is kept, and the next attempt begins behind it."""
        rows = [self._tuples[place] for place in places]
        left, start, done = iter(rows), 0, False
        refused: dict[int, str] = {}
        # How many rows a statement has changed is only known when it has run to its end.
        exactly = self._shape.leaves_traces or not self._mode.is_plain or (self._shape.suppresses and not self._key)
        self._changed = 0
        while not done:
            if exactly:
                self._cursor.execute("SAVEPOINT redrive_part")
            try:
                self._cursor.executemany(self._upsert, left)
                done = True
                self._changed += max(self._cursor.rowcount, 0)
            except (sqlite3.Error, *_UNSENDABLE) as error:
                if not isinstance(error, _UNSENDABLE) and not is_row_fault(error) and not self._is_rows(error, rows):
                    raise
                at = len(rows) - length_hint(left) - 1  # the last one that was taken
                refused[places[at]] = self._told(error, places[at])
                if not self._cursor.connection.in_transaction:
                    raise TransactionGone(places[at], refused[places[at]]) from error
                if exactly:  # undo everything, and write what came before the bad row again
                    self._cursor.execute("ROLLBACK TO redrive_part")
                    self._cursor.executemany(self._upsert, rows[start:at])
                    self._changed += max(self._cursor.rowcount, 0)
                start = at + 1
            if exactly:
                self._cursor.execute("RELEASE redrive_part")
        return refused

    def _is_rows(self, error: sqlite3.Error, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Whether an error is a row's, such as of a function that a trigger calls: the table takes other rows."""
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR or not self._cursor.connection.in_transaction:
            return False
        return any(map(self._takes, evenly(rows)))

    def _takes(self, row: tuple[Any, ...]) -> bool:
        """Whether the table takes a row by itself; it is not kept."""
        self._cursor.execute("SAVEPOINT redrive_try")
        try:
            self._cursor.execute(self._upsert, row)
        except (sqlite3.Error, *_UNSENDABLE):
            is_taken = False
        else:
            is_taken = True
        if self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK TO redrive_try")
            self._cursor.execute("RELEASE redrive_try")
        return is_taken

    def _told(self, error: Exception, place: int) -> str:
        said = str(error)
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            return said
        return self._orphaned(place) or said  # SQLite does not say which one

    def _orphaned(self, place: int) -> str | None:
        """What a row refers to that is not there."""
        row = dict(zip(map(fold_name, self._columns), self._tuples[place], strict=True))
        for key in self._shape.foreign_keys:
            values = [row.get(name.lower()) for name in key.columns]
            if None not in values and not self._cursor.execute(key.lookup, values).fetchone():
                return key.told(values)
        return None

    # ── foreign keys that are looked at when all rows are in ──────────────────────────────────────────────────────────

    def _enforces(self) -> bool:
        return bool(self._cursor.execute("PRAGMA foreign_keys").fetchone()[0])

    def _orphans(self, places: Sequence[int]) -> dict[int, str]:
        """The rows, of those just written, that refer to something which is not there."""
        if not self._key:
            return {place: said for place in places if (said := self._orphaned(place))}
        own = {name.lower(): at for at, name in enumerate(self._columns)}
        keys = [tuple(self._tuples[place][own[name.lower()]] for name in self._key) for place in places]
        parts = [f"k{number}" for number in range(len(self._key))]
        written = f"temp.redrive_keys_{len(parts)}"
        self._cursor.execute(f"CREATE TABLE IF NOT EXISTS {written} (place INTEGER PRIMARY KEY, {', '.join(parts)})")
        self._cursor.execute(f"DELETE FROM {written}")
        marks = ", ".join("?" * (len(parts) + 1))
        self._cursor.executemany(
            f"INSERT INTO {written} VALUES ({marks})", [(place, *key) for place, key in zip(places, keys, strict=True)]
        )
        same = " AND ".join(f"t.{quoted(name)} = w.{part}" for name, part in zip(self._key, parts, strict=True))
        found: dict[int, str] = {}
        for key in self._shape.foreign_keys:
            self._cursor.execute(key.orphans(f"{written} w JOIN {self._table.sql} t ON {same}", "w.place", "t"))
            found.update({place: key.told(values) for place, *values in self._cursor})
        return found
