"""A table of a database with transactions and savepoints: what such sinks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection

from redrive.classify.classifier import Classifier
from redrive.classify.detail import shown
from redrive.errors import SinkMismatch
from redrive.model.calls import Kind
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.batch_log import BatchLog, Execute, digest_of
from redrive.rows.sinks.keys import KeyKind, KeyQuery, TextOrder, compared
from redrive.rows.sinks.locks import limit_lock_waits
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.table_schema import TableName, TableSchema, compare, no_table, quoted
from redrive.store.database import Database

_classifier = Classifier()
_TRIED = 16

T = TypeVar("T")


def is_row_fault(error: BaseException) -> bool:
    """Return whether an error is the fault of one row only."""
    return isinstance(error, Exception) and _classifier.classify(error, scope="row").kind is Kind.ROW


def sample_evenly(rows: Sequence[T]) -> Sequence[T]:
    """Return a few among many, which are tried for an error that may be a row's fault or everybody's."""
    return rows[:: -(-len(rows) // _TRIED) or 1]


class RowFaults(dict[int, str]):
    """The rows of a write that are bad, by place, and why; and how many others the database left out."""

    suppressed: int = 0
    ignored: int = 0
    deleted: int = 0
    """Rows of the table that were deleted."""


def refusals(bad: Mapping[int, str]) -> WriteResult:
    """Return rows that are rejected, in their order, each with its fault as it may be shown."""
    applied = WriteResult(Refused(place, shown(bad[place]) or "refused", ErrorType.SINK) for place in sorted(bad))
    if isinstance(bad, RowFaults):
        applied.suppressed, applied.ignored = bad.suppressed, bad.ignored
    return applied


def execute_with(connection: Connection) -> Execute:
    """Statements of a `BatchLog`, in the transaction of a connection."""

    def execute(statement: str, values: Sequence[Any]) -> Sequence[Any]:
        result = connection.exec_driver_sql(statement, tuple(values))
        return result.fetchall() if result.returns_rows else ()

    return execute


class TransactionGone(Exception):
    """A row made the database roll everything back, as a trigger of SQLite can."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


@contextmanager
def _placed(places: Sequence[int]) -> Iterator[None]:
    """Name the row that ended the transaction by its place in the batch, of which these rows are a part."""
    try:
        yield
    except TransactionGone as gone:
        raise TransactionGone(places[gone.place], gone.reason) from gone


class _RollBack(Exception):
    """Ends a dry run, and with it its transaction."""

    def __init__(self, refused: Sequence[Refused]) -> None:
        super().__init__("rehearsed")
        self.refused = refused


class SqlTable(ABC):
    """See `Sink`."""

    fold: Callable[[str], str] = staticmethod(str)
    """Makes names of columns equal that the database takes for the same."""

    def __init__(
        self, database: Database, table: TableName, *, key: tuple[str, ...], create: bool, mode: WriteMode | None = None
    ) -> None:
        self.mode = mode or WriteMode()
        self.name = f"{table} in {database.name}"
        self.key = key
        self.patience = database.patience
        self._database = database
        self._table = table
        self._create = create
        self._shape: TableSchema | None = None
        self._checked: set[tuple[str, ...]] = set()
        self._removed_old = False
        self._order = TextOrder(table, self.mode.newer or "")

    def __repr__(self) -> str:
        return f"<table {self.name}>"

    @property
    def repeats(self) -> int:
        """See `Sink`."""
        return self._database.retries

    def exists(self) -> bool:
        """See `Sink`."""
        return self._database.read(self._look) is not None

    def check(self, columns: Sequence[str]) -> None:
        """See `Sink`."""
        self._forget()
        self._shape = self._database.read(self._look)
        if self._shape is None and not self._create:
            raise no_table(self._database.name, self._table, self._database.read(self._other_tables))
        self.mode.check(self._table, columns, self.fold)
        compare(self._table, self._shape, self.mode.written(columns), self.key, self.fold)

    def compared_keys(self, rows: Outgoing) -> Outgoing | None:
        """See `ComparesKeys`."""
        if not self.key or not len(rows):
            return None
        shape = self._shape or self._database.read(self._look)
        return compared(rows, *self._key_columns(shape, rows))

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Sink`."""
        if not len(rows):
            return ()
        if self.key:
            return self._database.write(lambda connection: self.write_within(connection, rows))
        return self.append(rows, label=label)

    def append(self, rows: Outgoing, *, label: str, digest: str = "") -> Sequence[Refused]:
        """See `Appends`."""
        if not len(rows):
            return ()
        whole = digest_of(rows, digest)
        return self._database.write(lambda connection: self._append(connection, rows, label, whole))

    def append_all(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Appends`."""

        def work(connection: Connection) -> None:
            limit_lock_waits(connection, self.patience)
            if self._open_log(connection).claim(label, digest_of(rows)):
                applied = self._write(connection, rows, rehearsing=False)
                if applied or applied.suppressed:
                    raise _RollBack(applied)

        try:
            if len(rows):
                self._database.write(work)
        except _RollBack as refused:
            return refused.refused
        return ()

    def has_appended(self, run_id: str) -> bool:
        """See `Appends`."""

        def read(connection: Connection) -> bool:
            log = self._batch_log(connection)
            return log is not None and log.has_run(run_id)

        return self._database.read(read)

    def is_empty(self) -> bool:
        """See `Appends`."""

        def read(connection: Connection) -> bool:
            if self._read_shape(connection) is None:
                return True
            with closing(connection.connection.cursor()) as cursor:  # the driver's own: a name may have a % in it
                cursor.execute(f"SELECT 1 FROM {self._table.sql} LIMIT 1")
                return cursor.fetchone() is None

        return self._database.read(read)

    def rehearse(self, rows: Outgoing) -> Sequence[Refused]:
        """See `Sink`."""
        return self.rehearse_after((), rows)

    def rehearse_after(self, earlier: Sequence[Outgoing], rows: Outgoing) -> Sequence[Refused]:
        """See `RehearsesInOrder`."""

        def work(connection: Connection) -> None:
            for before in earlier:
                self._write(connection, before, rehearsing=True)
            raise _RollBack(self._write(connection, rows, rehearsing=True))

        try:
            if len(rows):
                self._database.write(work)
        except _RollBack as rehearsed:
            return rehearsed.refused
        return ()

    def write_within(self, connection: Connection, rows: Outgoing) -> Sequence[Refused]:
        """See `SharesTransactions`."""
        return self._write(connection, rows, rehearsing=False) if len(rows) else ()

    def close(self) -> None:
        """See `Sink`."""
        self._forget()
        self._database.close()

    def _append(self, connection: Connection, rows: Outgoing, label: str, digest: str) -> Sequence[Refused]:
        """Append the rows of a batch, unless they are in the table."""
        limit_lock_waits(connection, self.patience)
        log = self._open_log(connection)
        if not self._removed_old:
            log.remove_old(label)
            self._removed_old = True
        if not log.claim(label, digest):
            outcome = log.find(label, digest)
            assert outcome is not None
            return outcome
        applied = self._write(connection, rows, rehearsing=False)
        log.complete(label, applied)
        return applied

    def _open_log(self, connection: Connection) -> BatchLog:
        """Return the labels of the batches, in the schema of the table; created where there are none yet."""
        log = self._batch_log(connection)
        if log is None:
            log = self._make_log(connection)
        return log

    def _write(self, connection: Connection, rows: Outgoing, *, rehearsing: bool) -> WriteResult:
        """Write the rows; whatever speaks against them by what was known is looked at again by what is."""
        known = self._shape
        limit_lock_waits(connection, self.patience)
        try:
            refused = self._attempt(connection, rows, rehearsing=rehearsing)
        except SinkMismatch:
            if not self._is_old(connection, known):
                raise
            return self._attempt(connection, rows, rehearsing=rehearsing)
        except BaseException:
            self._forget()  # what was known may be why; the next write looks again
            raise
        if not refused or not self._is_old(connection, known):
            return refused
        places = [row.place for row in refused]
        with _placed(places):
            again = self._attempt(connection, rows.take(places), rehearsing=rehearsing)
        applied = WriteResult(replace(item, place=places[item.place]) for item in again)
        applied.suppressed = refused.suppressed + again.suppressed
        applied.ignored, applied.deleted = refused.ignored + again.ignored, refused.deleted + again.deleted
        return applied

    def _attempt(self, connection: Connection, rows: Outgoing, *, rehearsing: bool) -> WriteResult:
        unsortable = self._unsortable(connection, rows) if self.mode.newer else {}
        if self.mode.delete_when is None and not unsortable:
            return self._upsert(connection, rows, rehearsing=rehearsing)
        split = self.mode.split(rows, unsortable)
        bad = dict(split.bad)
        shape = self._shape or self._read_shape(connection)
        kept = 0
        if shape is not None and len(split.deleted):
            with _placed(split.deleted_places):
                faults = self._delete(connection, shape, split.deleted)
            bad |= {split.deleted_places[place]: fault for place, fault in faults.items()}
            kept = self._count_kept(connection, shape, split.deleted, faults)
        deleted = len(split.deleted) - (len(bad) - len(split.bad))
        written = WriteResult()
        if len(split.kept):
            with _placed(split.kept_places):
                written = self._upsert(connection, split.kept, rehearsing=rehearsing)
        bad |= {split.kept_places[row.place]: str(row.error) for row in written}
        applied = refusals(bad)
        applied.suppressed, applied.ignored, applied.deleted = written.suppressed, written.ignored, deleted
        self.mode.keep(applied, kept)
        return applied

    def _count_kept(self, connection: Connection, shape: TableSchema, rows: Outgoing, faults: RowFaults) -> int:
        """Return how many of the deletions left the row of their key in the table."""
        places = [place for place in range(len(rows)) if place not in faults]
        if faults.deleted == len(places):
            return 0
        return len(self._stored_values(connection, shape, rows.take(places).onto(self.key), self.key[0]))

    def _unsortable(self, connection: Connection, rows: Outgoing) -> dict[int, str]:
        """Return the rows that cannot be compared by `newer`, because the column is a text, by place, and why."""
        name = next((name for name in rows.columns if self.fold(name) == self.fold(self.mode.newer or "")), None)
        shape = self._shape or self._read_shape(connection)
        order = None if name is None else self._text_order(shape, rows, name)
        if name is None or order is None:
            return {}
        column = quoted(self.mode.newer or "")

        def stored(most: int) -> Sequence[Any]:
            if shape is None:
                return ()
            with closing(connection.connection.cursor()) as cursor:  # the driver's own: a name may have a % in it
                cursor.execute(f"SELECT {column} FROM {self._table.sql} WHERE {column} IS NOT NULL LIMIT {most}")
                return [value for (value,) in cursor.fetchall()]

        def replaced(places: Sequence[int]) -> Mapping[int, Any]:
            if shape is None or not places:
                return {}
            values = self._stored_values(connection, shape, rows.take(places).onto(self.key), self.mode.newer or "")
            return {places[at]: value for at, value in values.items()}

        return self._order.faults(rows.values(name), stored, replaced, takes_numbers=order == "numbers")

    def _stored_values(
        self, connection: Connection, shape: TableSchema, keys: Outgoing, column: str
    ) -> Mapping[int, Any]:
        """Return the values of a column that the table has for these keys, by place."""
        raise NotImplementedError

    def _text_order(self, shape: TableSchema | None, rows: Outgoing, name: str) -> Literal["texts", "numbers"] | None:
        """Return whether a column has texts, or numbers and texts; None if it has neither."""
        return None

    def _upsert(self, connection: Connection, rows: Outgoing, *, rehearsing: bool) -> WriteResult:
        shape = self._shape or self._read_shape(connection)
        if shape is None:
            shape = self._create_table(connection, rows)
        else:
            self._shape = shape
        if rows.columns not in self._checked:
            self.mode.check(self._table, rows.columns, self.fold)
            compare(self._table, shape, rows.columns, self.key, self.fold)
            self._checked.add(rows.columns)
        return refusals(self._load(connection, shape, rows, rehearsing=rehearsing))

    def _look(self, connection: Connection) -> TableSchema | None:
        limit_lock_waits(connection, self.patience)
        return self._read_shape(connection)

    def _is_old(self, connection: Connection, known: TableSchema | None) -> bool:
        """Return whether the table is another than was known; then that is forgotten."""
        if known is None or self._read_shape(connection) == known:
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        self._shape = None
        self._checked.clear()

    def _create_table(self, connection: Connection, rows: Outgoing) -> TableSchema:
        """Return the table, made for these rows. It is not remembered: the transaction may yet be undone."""
        if not self._create:
            raise no_table(self._database.name, self._table)
        compare(self._table, None, rows.columns, self.key, self.fold)
        self._make(connection, rows)
        shape = self._read_shape(connection)
        assert shape is not None
        return shape

    @abstractmethod
    def _read_shape(self, connection: Connection) -> TableSchema | None:
        """Return the table as it is; None if there is none."""

    @abstractmethod
    def _other_tables(self, connection: Connection) -> list[str]:
        """Return the other tables, by the names that users know."""

    @abstractmethod
    def _make(self, connection: Connection, rows: Outgoing) -> None:
        """Make the table for such rows."""

    @abstractmethod
    def _key_columns(self, shape: TableSchema | None, rows: Outgoing) -> tuple[dict[str, KeyKind], KeyQuery]:
        """Return the kinds of the key's columns, and the query for their values; without a shape, those of `_make`."""

    def _delete(self, connection: Connection, shape: TableSchema, rows: Outgoing) -> RowFaults:
        """Delete the rows of the table that have the keys of these; those that cannot be deleted by place, and why."""
        raise NotImplementedError

    def _batch_log(self, connection: Connection) -> BatchLog | None:
        """Return the labels of the batches that were appended; None if there is no table of them."""
        raise NotImplementedError

    def _make_log(self, connection: Connection) -> BatchLog:
        """Create the table of labels."""
        raise NotImplementedError

    @abstractmethod
    def _load(
        self, connection: Connection, shape: TableSchema, rows: Outgoing, *, rehearsing: bool
    ) -> Mapping[int, str]:
        """Write the rows that the table takes; the others by place, and why."""
