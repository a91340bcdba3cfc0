"""PostgreSQL: COPY into a staging table, one upsert, and the bad rows found by what the server says about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from redrive.rows.sinks.keys import Ask, KeyKind
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.postgres.catalog import (
    LOG_SCHEMA,
    PostgresSchema,
    absent,
    foreign_key,
    has_schema,
    orphans,
    other_tables,
    read_shape,
    staging,
    upsert,
)
from redrive.rows.sinks.postgres.copy import CopyText, UnsendableRow, faulty_line
from redrive.rows.sinks.postgres.delete import delete_rows
from redrive.rows.sinks.postgres.faults import UniqueFaults, can_sift, is_rows, may_be_rows, sift
from redrive.rows.sinks.postgres.keys import KeyType, ask, stored_values
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.sql_table import RowFaults, SqlTable, evenly, execute_with
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
_SMALLEST_WINDOW = 64
_MANY_FAULTS = 20
# A type or a check that does not answer by yes or no, a character that no text can hold.
_NOT_ASKED = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError)
# The whole row again: the letter has it.
_DETAIL_REPEATS_THE_ROW = (psycopg.errors.NotNullViolation, psycopg.errors.CheckViolation)
_SAME_ROW_TWICE = psycopg.errors.CardinalityViolation


class _Server(PostgresDialect):
    """PostgreSQL as somebody else's database: no schema of ours is in it."""

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        if kind is Kind.AUTH:
            return "check the user and the password of the table's URL"
        return super().advice(error, kind)


class PostgresTable(SqlTable):
    """See `Sink` and `SharesTransactions`.

    Rows are copied straight into the table as long as all of them are new, which is twice as fast; after the first one
    that is not, and for good, by way of a staging table.
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
                "texts are one key, and only the server can tell which; give it a deterministic one, or the type citext"
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

    def _key_columns(self, shape: TableSchema | None, rows: Outgoing) -> tuple[dict[str, KeyKind], Ask]:
        if shape is None:
            made = types_of(rows)
            types = {name: KeyType.made(_TYPES[made[name]]) for name in self.key}
        else:
            types = self._key_types(shape)

        def ask_server(some: Outgoing) -> Sequence[Sequence[Any]]:
            def work(connection: Connection) -> Sequence[Sequence[Any]]:
                cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]
                with closing(cursor):
                    return ask(cursor, some, types)

            return self._database.write(work)

        return {name: one.kind for name, one in types.items()}, ask_server

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
                load = _Load(cursor, self._table, self.key, shape, rows, mode=self.mode, in_order=self._in_order)
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


def _is_sure(error: Exception) -> bool:
    """Whether an error is a row's fault, whatever becomes of the other rows."""
    return not isinstance(error, psycopg.Error) or isinstance(error, _SAME_ROW_TWICE) or is_rows(error)


def _place(database: Database) -> tuple[object, ...]:
    """What makes two URLs one database and one user; the password is not among it."""
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


class _Load:
    """One batch on its way into the table."""

    def __init__(
        self,
        cursor: psycopg.Cursor[Any],
        table: TableName,
        key: Sequence[str],
        shape: PostgresSchema,
        rows: Outgoing,
        *,
        mode: WriteMode,
        in_order: bool,
    ) -> None:
        self._mode = mode
        self._cursor, self._table, self._key, self._shape = cursor, table, key, shape
        self._count, self._columns = len(rows), rows.columns
        types = shape.stored_types
        stored = [types[name].as_key if name in key else types[name] for name in rows.columns]
        self._text = CopyText(rows, [shape.base_types[name] for name in rows.columns], stored)
        self._bad = self._text.bad
        self._changed = 0
        self._staging = staging(shape, rows.columns)
        self._order = f" ORDER BY {listed(key)}" if in_order and key else ""

    def straight(self) -> bool:
        """Copy everything into the table itself. False where a row is bad, or not new: then nothing was done."""
        if self._bad:
            return False
        self._cursor.execute("SAVEPOINT redrive_load")
        fault = self._attempt(lambda: self._send(self._table.sql, 0, self._count))
        self._cursor.execute("RELEASE redrive_load")
        return fault is None

    def staged(self) -> RowFaults:
        """Copy what can be copied, insert what can be inserted; the others by place, and why."""
        # The caller's transaction may have loaded something before.
        self._cursor.execute(f"{self._staging.create}; DELETE FROM {self._staging.table}; SAVEPOINT redrive_load")
        self._copy_all()
        self._insert_all()
        bad = RowFaults(self._bad)
        left_out = self._count - len(self._bad) - self._changed
        if self._mode.is_plain or not self._shape.plain:
            bad.suppressed = self._suppressed(left_out)
        if not self._mode.is_plain:
            bad.ignored = left_out - bad.suppressed
        self._cursor.execute("RELEASE redrive_load")
        return bad

    def _suppressed(self, left_out: int) -> int:
        """How many of the good rows are not in the table, because a trigger left them out."""
        if not self._key:
            return left_out
        if left_out <= 0 or not {*self._columns} - {*self._key}:  # of a key alone, one that is there is left alone
            return 0
        try:
            self._cursor.execute(absent(self._table, self._staging, self._key, self._bad))
        except psycopg.errors.InsufficientPrivilege:  # to write to a table is not to read it
            self._cursor.execute("ROLLBACK TO redrive_load")
            return left_out
        found = self._cursor.fetchone()
        return min(left_out, found[0]) if found else 0

    def _attempt(self, work: Callable[[], object]) -> Exception | None:
        """Do something as a whole, and keep it; or not at all, and give the error, which may be a row's fault."""
        try:
            work()
        except (psycopg.Error, UnsendableRow) as error:
            if not isinstance(error, UnsendableRow) and not may_be_rows(error):
                raise
            self._cursor.execute("ROLLBACK TO redrive_load")
            return error
        self._cursor.execute("RELEASE redrive_load; SAVEPOINT redrive_load")
        return None

    # ── copying ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, into: str, start: int, stop: int, number: str | None = None) -> None:
        self._text.send(self._cursor, into, start, stop, number)

    def _stage(self, start: int, stop: int) -> Exception | None:
        return self._attempt(lambda: self._send(self._staging.table, start, stop, self._staging.row))

    def _copy_all(self) -> None:
        """Go from fault to fault: COPY tells the line, what is before it is good, and what is behind it comes next."""
        start, stop, window, found = 0, self._count, self._count, len(self._bad)
        asked_nul = False
        while start < self._count:
            if len(self._bad) - found >= _MANY_FAULTS:
                if self._sift(start):
                    return
                found = self._count  # never again
            error = self._stage(start, stop)
            place = None if error is None else self._place(error, start, stop)
            if error is None:
                start, window = stop, 2 * window
            elif not asked_nul and (found_nul := self._text.with_nul()):
                # One such row ends a COPY without a word about its line, so all of them are taken out at once.
                asked_nul = True
                self._bad.update({place: fault for place, fault in found_nul.items() if place not in self._bad})
            elif not _is_sure(error) and not self._names_value(error):
                raise error
            elif place is None:
                self._bad.update(self._found(range(start, stop), lambda some: self._stage(some[0], some[-1] + 1)))
                start = stop
            else:
                self._bad[place] = self._told(error)
                window = max(window // 2, _SMALLEST_WINDOW)  # what is sent behind a fault is sent again
                if place > start:
                    stop = place
                    continue
                start = place + 1
            stop = min(start + window, self._count)

    def _sift(self, start: int) -> bool:
        """Stage the rest by asking for all bad rows at once; False where that cannot be done, and then nothing was."""
        if not can_sift(self._cursor):
            return False
        try:
            bad = sift(
                self._cursor,
                self._shape,
                self._staging,
                self._columns,
                relation=self._table.table,
                send=lambda into: self._send(into, start, self._count, self._staging.row),
            )
        except (*_NOT_ASKED, UnsendableRow):
            self._cursor.execute("ROLLBACK TO redrive_load")
            return False
        self._cursor.execute("RELEASE redrive_load; SAVEPOINT redrive_load")
        self._bad.update(bad)
        return True

    def _names_value(self, error: Exception) -> bool:
        """Whether COPY told the column: then the type does not take the value, whatever its error is called."""
        assert isinstance(error, psycopg.Error)
        told = faulty_line(error.diag.context, self._staging.name, self._columns)
        return told is not None and told[1] is not None

    def _place(self, error: Exception, start: int, stop: int) -> int | None:
        """The row that COPY stumbled over, where it told."""
        if isinstance(error, UnsendableRow):
            return error.place
        assert isinstance(error, psycopg.Error)
        told, sent = faulty_line(error.diag.context, self._staging.name, self._columns), self._text.places(start, stop)
        return sent[told[0] - 1] if told and 0 < told[0] <= len(sent) else None

    # ── inserting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _insert(self, places: Sequence[int] | None = None) -> Exception | None:
        chosen = "" if places is None else f" WHERE {self._among(places)}"
        source = f"{self._staging.table}{chosen}{self._order}"
        changed = []

        def insert() -> None:
            self._cursor.execute(upsert(self._table, self._columns, self._key, source, self._mode))
            changed.append(self._cursor.rowcount)

        error = self._attempt(insert)
        self._changed += 0 if error else changed[0]
        return error

    def _among(self, places: Sequence[int]) -> str:
        """The condition for rows at these places; without parameters, for which a name might be taken."""
        row = quoted(self._staging.row)
        if isinstance(places, range):
            return f"{row} BETWEEN {places[0]} AND {places[-1]}"
        return f"{row} = ANY ('{{{','.join(map(str, places))}}}'::integer[])"

    def _insert_all(self) -> None:
        """Insert what was staged. What breaks a foreign key or a unique index is asked for, the rest searched for."""
        while (error := self._insert()) is not None:
            if not _is_sure(error) and not self._takes_another():
                raise error
            found = self._orphans(error) or self._losers(error)
            if not found:
                self._isolate()
                return
            self._bad.update(found)
            self._cursor.execute(f"DELETE FROM {self._staging.table} WHERE {self._among(list(found))}")
            self._cursor.execute("RELEASE redrive_load; SAVEPOINT redrive_load")

    def _takes_another(self) -> bool:
        """Whether the table takes one of the staged rows by itself; a few are tried, and nothing is kept."""
        staged = [place for place in range(self._count) if place not in self._bad]
        for place in evenly(staged):
            source = f"{self._staging.table} WHERE {self._among([place])}"
            try:
                self._cursor.execute(upsert(self._table, self._columns, self._key, source, self._mode))
            except psycopg.Error as error:
                if not may_be_rows(error):
                    raise
                is_taken = False
            else:
                is_taken = True
            self._cursor.execute("ROLLBACK TO redrive_load")
            if is_taken:
                return True
        return False

    def _isolate(self) -> None:
        places: Sequence[int] = range(self._count)
        while True:
            refused = self._found(places, self._insert, staged=self._count - len(self._bad))
            # A row may refer to one behind it: once that is in, it may be, too.
            if not self._shape.refers_to_itself or len(refused) in (0, len(places)):
                break
            places = sorted(refused)
        self._bad.update(refused)

    def _found(
        self, places: Sequence[int], attempt: Callable[[Sequence[int]], Exception | None], *, staged: int | None = None
    ) -> dict[int, str]:
        """Find the bad rows; where all that were staged are, an error that need not be a row's is raised."""
        found = isolate(len(places), lambda start, stop: attempt(places[start:stop]))
        if len(found) == staged and (others := [error for _, error in found if not _is_sure(error)]):
            raise others[0]
        return {places[at]: self._told(error) for at, error in found}

    def _orphans(self, error: Exception) -> dict[int, str]:
        """The rows that refer to something which is not there, where that is what was said."""
        if not isinstance(error, psycopg.errors.ForeignKeyViolation) or not error.diag.constraint_name:
            return {}
        key = foreign_key(self._cursor, self._shape, error.diag.constraint_name)
        if key is None or not {*key.columns, *(key.found_as if key.itself else ())} <= {*self._columns}:
            return {}
        try:
            self._cursor.execute(orphans(self._staging, key))
        except psycopg.errors.InsufficientPrivilege:  # to write to a table is not to read those it refers to
            self._cursor.execute("ROLLBACK TO redrive_load")
            return {}
        said = error.diag.message_primary
        return {place: f"{said}; {key.orphan(values)}" for place, *values in self._cursor}

    def _losers(self, error: Exception) -> dict[int, str]:
        """The rows that break a unique index beside the key, where that is what was said."""
        if not isinstance(error, psycopg.errors.UniqueViolation) or not self._mode.is_plain:
            return {}
        try:
            return UniqueFaults(self._cursor, self._table, self._key, self._shape, self._staging).find(self._columns)
        except psycopg.errors.InsufficientPrivilege:
            self._cursor.execute("ROLLBACK TO redrive_load")
            return {}

    def _told(self, error: Exception) -> str:
        """The fault in one line, by the names that a person knows."""
        if isinstance(error, UnsendableRow):
            return str(error)
        assert isinstance(error, psycopg.Error)
        said = (error.diag.message_primary or str(error)).replace(self._staging.name, self._table.table)
        located = faulty_line(error.diag.context, self._staging.name, self._columns)
        if located and located[1]:
            said = f"{located[1]}: {said}"
        if error.diag.message_detail and not isinstance(error, _DETAIL_REPEATS_THE_ROW):
            said = f"{said}; {error.diag.message_detail}"
        return said
