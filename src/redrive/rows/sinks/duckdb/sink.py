"""DuckDB: frames are read where they are, and the rows it will refuse are asked for in one query."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from redrive._internal.optional import require_extra
from redrive._internal.shutdown import Cancellation
from redrive.classify.classifier import Classifier
from redrive.classify.detail import shown
from redrive.errors import SinkMismatch, StoreError
from redrive.model.calls import Kind
from redrive.policy import backoff
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.batch_log import NAME as LOG_NAME
from redrive.rows.sinks.batch_log import BatchLog, digest_of
from redrive.rows.sinks.duckdb.catalog import (
    DuckdbSchema,
    contested,
    faults,
    has_schema,
    is_nested,
    other_tables,
    read_shape,
    secondary,
    taken,
    type_of,
    upserts,
)
from redrive.rows.sinks.duckdb.delete import delete_rows
from redrive.rows.sinks.duckdb.keys import ask, kind_of, stored_values
from redrive.rows.sinks.duckdb.values import framed
from redrive.rows.sinks.exact.capacity import column_digits
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.keys import TextOrder
from redrive.rows.sinks.keys import compared as compare_keys
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import WriteResult, isolate
from redrive.rows.sinks.sql_table import is_row_fault, refusals
from redrive.rows.sinks.table_schema import (
    IndexClaim,
    TableName,
    compare,
    fold_name,
    listed,
    losers,
    no_table,
    quoted,
    shown_values,
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
        return self._steadily(lambda connection: read_shape(connection, self._table)) is not None

    def check(self, columns: Sequence[str]) -> None:
        """See `Sink`."""
        self.mode.check(self._table, columns, fold_name)
        compare(self._table, self._steadily(self._look), self.mode.written(columns), self.key, fold_name)

    def compared_keys(self, rows: Outgoing) -> Outgoing | None:
        """See `ComparesKeys`."""
        if not self.key or not len(rows):
            return None
        return self._steadily(lambda connection: self._keys(connection, rows))

    def _keys(self, connection: duckdb.DuckDBPyConnection, rows: Outgoing) -> Outgoing | None:
        shape = self._look(connection)
        if shape is None:
            made = types_of(rows)
            types, collations = {name: _type(name, made[name], rows) for name in self.key}, dict[str, str]()
        else:
            types = dict(zip(self.key, shape.types(self.key, fold_name), strict=True))
            collations = shape.collations
        kinds = {name: kind_of(kind, collations.get(name.lower(), "")) for name, kind in types.items()}
        return compare_keys(rows, kinds, lambda some: ask(connection, some, types, collations))

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Sink`."""
        if not len(rows):
            return ()
        if self.key:
            return self._steadily(lambda connection: self._load(connection, rows, keep=True))
        return self.append(rows, label=label)

    def append(self, rows: Outgoing, *, label: str, digest: str = "") -> Sequence[Refused]:
        """See `Appends`."""
        if not len(rows):
            return ()
        whole = digest_of(rows, digest)
        return self._steadily(lambda connection: self._append(connection, rows, label, whole))

    def append_all(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """See `Appends`."""
        if not len(rows):
            return ()
        digest = digest_of(rows)
        return self._steadily(lambda connection: self._append(connection, rows, label, digest, all_or_none=True))

    def has_appended(self, run_id: str) -> bool:
        """See `Appends`."""

        def read(connection: duckdb.DuckDBPyConnection) -> bool:
            if read_shape(connection, TableName(LOG_NAME, self._table.schema)) is None:
                return False
            return _log(connection, self._table).has_run(run_id)

        return self._steadily(read)

    def is_empty(self) -> bool:
        """See `Appends`."""
        if not self._path.exists():
            return True

        def read(connection: duckdb.DuckDBPyConnection) -> bool:
            query = f"SELECT 1 FROM {self._table.sql} LIMIT 1"
            return read_shape(connection, self._table) is None or not connection.execute(query).fetchall()

        return self._steadily(read)

    def rehearse(self, rows: Outgoing) -> Sequence[Refused]:
        """See `Sink`."""
        return self._steadily(lambda connection: self._load(connection, rows, keep=False)) if len(rows) else ()

    def close(self) -> None:
        """See `Sink`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _look(self, connection: duckdb.DuckDBPyConnection) -> DuckdbSchema | None:
        schema, shape = self._table.schema, read_shape(connection, self._table)
        if shape is None and schema is not None and not has_schema(connection, schema):
            raise SinkMismatch(f"{self._path} has no schema {schema}; make it: CREATE SCHEMA {quoted(schema)}")
        if shape is None and not self._create:
            raise no_table(str(self._path), self._table, other_tables(connection))
        return shape

    def _load(self, connection: duckdb.DuckDBPyConnection, rows: Outgoing, *, keep: bool) -> Sequence[Refused]:
        shape = self._look(connection)  # anew for every batch: it takes a moment, and the table may have been altered
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
        bad |= {split.kept_places[one.place]: str(one.error) for one in written}
        applied = refusals(bad)
        applied.ignored, applied.deleted = written.ignored, deleted
        self.mode.keep(applied, kept)
        return applied

    def _unsortable(
        self, connection: duckdb.DuckDBPyConnection, shape: DuckdbSchema | None, rows: Outgoing
    ) -> dict[int, str]:
        """The rows that cannot be compared by `newer`, because the column is a text, by place, and why."""
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
            found = stored_values(connection, self._table, keys, shape.types(self.key, fold_name), newer)
            return {places[at]: value for at, value in found.items()}

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
        shape, log = self._look(connection), _log(connection, self._table)
        connection.execute(log.create)
        if not self._removed_old:
            log.remove_old(label)
            self._removed_old = True
        if all_or_none and log.has_run(label):
            return WriteResult()
        if (found := log.find(label, digest)) is not None:
            return found

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
            make = self._made_of(rows)
            shape = _rolled_back(connection, make, lambda: read_shape(connection, self._table))
            assert shape is not None
        load = _Load(connection, self._table, self.key, shape, rows, make=make, keep=keep, mode=self.mode)
        try:
            applied = refusals(load.run() if note is None else load.append(note, all_or_none=all_or_none))
            applied.ignored = load.ignored(len(rows) - len(applied))
            return applied
        finally:
            with suppress(duckdb.Error):
                connection.unregister("redrive_rows")

    def _made_of(self, rows: Outgoing) -> str:
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
                raise SinkMismatch(f"there is no database {self._path}; name another file, or say create=True")
            self._connection = duckdb.connect(str(self._path))
            with suppress(duckdb.Error):  # a build without time zones has no use for it
                self._connection.execute("SET TimeZone = 'UTC'")  # a naive time is the same on every machine
        return self._connection

    def _steadily(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
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
                    raise StoreError(f"{self._path}: {_first_line(error)}", kind=kind) from error
            repeat += 1
            self.repeats += 1
            cancellation.wait(random.uniform(0, backoff.ceiling(repeat, base=0.01, multiplier=2, cap=1)))


def _type(name: str, kind: ColumnType, rows: Outgoing) -> str:
    """The type of a new column."""
    if kind is not ColumnType.DECIMAL:
        return _TYPES[kind]
    digits = column_digits(name, rows)
    return "DECIMAL({}, {})".format(*digits) if digits else "VARCHAR"


def _kind(error: duckdb.Error) -> Kind:
    if isinstance(error, duckdb.IOException):  # only the words tell them apart
        if "set lock" in str(error):
            return Kind.TRANSIENT
        if "not a valid DuckDB database" in str(error):
            return Kind.PERMANENT
    return _classifier.classify(error, scope="call").kind


def _rolled_back(connection: duckdb.DuckDBPyConnection, statement: str, look: Callable[[], T]) -> T:
    """What things look like when a statement has been run; it is undone."""
    connection.execute("BEGIN")
    connection.execute(statement)
    found = look()
    connection.execute("ROLLBACK")
    return found


def _log(connection: duckdb.DuckDBPyConnection, table: TableName) -> BatchLog:
    return BatchLog(table.schema, lambda statement, values: connection.execute(statement, list(values)).fetchall())


def _first_line(error: Exception) -> str:
    return shown(str(error).partition("\n")[0]) or type(error).__name__


class _Load:
    """One batch on its way into the table. DuckDB has no savepoints: every attempt is a transaction of its own."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: TableName,
        key: Sequence[str],
        shape: DuckdbSchema,
        rows: Outgoing,
        *,
        make: str | None,
        keep: bool,
        mode: WriteMode,
    ) -> None:
        self._mode, self._changed = mode, 0
        self._connection, self._shape, self._make, self._keep = connection, shape, make, keep
        self._table, self._key = table, key
        self._asked_rules = False
        types = shape.types(rows.columns, fold_name)
        self._frame, self._bad, self._columns = framed(rows, types, partial(type_of, connection))
        self._upserts = upserts(table, shape, self._columns, key, mode)
        self._rehearsed: list[list[int]] = [[]]  # what a rehearsal has found to be good, pass by pass

    def run(self) -> dict[int, str]:
        """Write the rows that the table takes; the others by place, and why."""
        places = [place for place in range(self._frame.height) if place not in self._bad]
        while places:
            refused = self._pass(places)
            # A row may refer to one that was written with it: once that is in, it may be, too.
            if not self._shape.refers_to_itself or len(refused) in (0, len(places)):
                return {**self._bad, **refused}
            places = sorted(refused)
            self._rehearsed.append([])
        return self._bad

    def append(self, note: Callable[[Mapping[int, str]], None], *, all_or_none: bool) -> dict[int, str]:
        """Write the rows that the table takes, and `note` those that it does not, in one transaction.

        all_or_none  where some are refused, write nothing
        """
        places = [place for place in range(self._frame.height) if place not in self._bad]
        if places and not (self._bad and all_or_none) and self._commit([places], note, self._bad) is None:
            return self._bad
        self._keep = False  # find the good rows first, since every attempt is a transaction of its own
        bad = self.run()
        good = [sorted(group) for group in self._rehearsed if group]
        if good and not (bad and all_or_none) and (error := self._commit(good, note, bad)) is not None:
            raise error
        return bad

    def _commit(
        self, groups: Sequence[Sequence[int]], note: Callable[[Mapping[int, str]], None], bad: Mapping[int, str]
    ) -> Exception | None:
        try:
            self._begin(groups)
            note(bad)
            self._connection.execute("COMMIT")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            self._connection.execute("ROLLBACK")
            return error
        return None

    def _pass(self, places: Sequence[int]) -> dict[int, str]:
        # DuckDB does not check the values of a row that leaves the table as it is: without the question, it would be
        # rejected only where another row of the batch is at fault.
        is_asked = self._mode.compares
        if not is_asked and self._attempt(places) is None:
            return {}
        refused = self._faults(places)
        rest = [place for place in places if place not in refused] if refused else places
        if not rest or ((refused or is_asked) and self._attempt(rest) is None):
            return refused
        if lost := self._losers(rest):
            refused |= lost
            rest = [place for place in rest if place not in lost]
            if not rest or self._attempt(rest) is None:
                return refused
        found = isolate(len(rest), lambda start, stop: self._attempt(rest[start:stop]))
        return {**refused, **{rest[at]: _first_line(error) for at, error in found}}

    def _attempt(self, places: Sequence[int]) -> Exception | None:
        """Write rows as a whole, and keep them; or none of them, and give the fault of the row that is why."""
        groups: list[Sequence[int]] = [places]
        if not self._keep:  # rows that a write would have kept by now are there for those that come behind them
            groups = [*self._rehearsed[:-1], sorted([*self._rehearsed[-1], *places])]
        try:
            changed = self._begin(groups)
            self._connection.execute("COMMIT" if self._keep else "ROLLBACK")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            self._connection.execute("ROLLBACK")
            return error
        self._rehearsed[-1] += places
        # A rehearsal writes anew what it has found to be good so far.
        self._changed = self._changed + changed if self._keep else changed
        return None

    def ignored(self, good: int) -> int:
        """How many of the rows that are not bad did not change the table, where that is counted."""
        return max(0, good - self._changed) if self._mode.compares else 0

    def _begin(self, groups: Sequence[Sequence[int]]) -> int:
        """Begin a transaction and write rows; how many of them have changed the table."""
        changed = 0
        self._connection.execute("BEGIN")
        if self._make:
            self._connection.execute(self._make)
        for places in groups:
            some = self._frame if len(places) == self._frame.height else self._frame[list(places)]
            self._connection.register("redrive_rows", some)
            counts = [(self._connection.execute(statement).fetchone() or (0,))[0] for statement in self._upserts]
            changed += max(counts)
        return changed

    def _faults(self, places: Sequence[int]) -> dict[int, str]:
        """The rows that break a rule which a query can look at; none where it cannot be asked."""
        query, words = faults(self._shape, self._columns, self._number())
        found = self._asked(places, [query])
        self._asked_rules = found is not None
        (faulty,) = found or [[]]
        return {place: words[at].replace("{}", repr(value), 1) for place, at, value in faulty}

    def _losers(self, places: Sequence[int]) -> dict[int, str]:
        """The rows that are refused for certain because of a unique index beside the key."""
        if not self._mode.is_plain:  # then a row whose key is there may be left as it is
            return {}
        indexes = secondary(self._shape, self._columns, self._key)
        types = dict(zip(self._columns, self._shape.types(list(self._columns), fold_name), strict=True))
        wanted = dict.fromkeys([*(name for index in indexes for name in index.columns), *self._own_key()])
        typed = f"SELECT {quoted(self._number())} AS redrive_at, " + ", ".join(
            f"TRY_CAST({self._columns[name]} AS {types[name]}) AS {quoted(name)}" for name in wanted
        )
        typed += " FROM redrive_rows"
        queries = [taken(self._table, typed, self._key, index) for index in indexes]
        found = self._asked(places, [*queries, *(contested(typed, index) for index in indexes)])
        if not indexes or found is None:
            return {}
        others, in_ids = found[: len(indexes)], found[len(indexes) :]
        lost = losers(
            [
                (IndexClaim(row, index, tuple(values)), bool(may_change))
                for index, rows in zip(indexes, others, strict=True)
                for row, may_change, *values in rows
            ],
            [
                IndexClaim(row, index, tuple(values))
                for index, rows in zip(indexes, in_ids, strict=True)
                for row, *values in rows
            ],
            in_order=self._asked_rules and not self._shape.refers_to_itself and self._knows_rules(),
        )
        return {
            row: f"Duplicate key: {index.name} = {shown_values(values)} violates unique constraint"
            for row, (index, values) in lost.items()
        }

    def _asked(self, places: Sequence[int], queries: Sequence[str]) -> list[list[Any]] | None:
        """The answers of queries about rows; None where they cannot be asked."""
        try:
            self._begin(() if self._keep else self._rehearsed)
            self._connection.register("redrive_rows", self._frame.with_row_index(self._number())[list(places)])
            found = [self._connection.execute(query).fetchall() for query in queries]
        except duckdb.Error:
            found = None
        self._connection.execute("ROLLBACK")
        return found

    def _number(self) -> str:
        """A name for the column that holds the numbers of the rows."""
        number = "redrive_row"
        while number in self._frame.columns:
            number += "_"
        return number

    def _own_key(self) -> list[str]:
        """The key by the names that the rows have."""
        names = {name.lower(): name for name in self._columns}
        return [names[name.lower()] for name in self._key]

    def _knows_rules(self) -> bool:
        """Whether every rule of the table is about columns that the rows have, so that it was asked about."""
        at_hand = {name.lower() for name in self._columns}
        return all({name.lower() for name in rule.columns} <= at_hand for rule in self._shape.rules)
