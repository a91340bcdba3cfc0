"""Load one batch into a table of PostgreSQL, and delete rows by their keys.

Rows are copied into a staging table and upserted by one statement. Rejected rows are found by what the server reports
about them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.postgres.catalog import (
    PostgresSchema,
    absent,
    foreign_key,
    orphans,
    staging,
    upsert,
)
from redrive.rows.sinks.postgres.copy import CopyText, UnsendableRow, faulty_line
from redrive.rows.sinks.postgres.faults import UniqueFaults, can_sift, is_rows, may_be_rows, sift
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.sql_table import RowFaults, sample_evenly
from redrive.rows.sinks.table_schema import TableName, TableSchema, listed, quoted

with require_extra("postgres"):
    import psycopg

_SMALLEST_WINDOW = 64
_MANY_FAULTS = 20
# A type or a check that does not answer by yes or no, a character that no text can hold.
_NOT_ASKED = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError)
# The whole row again: the letter has it.
_DETAIL_REPEATS_THE_ROW = (psycopg.errors.NotNullViolation, psycopg.errors.CheckViolation)
_SAME_ROW_TWICE = psycopg.errors.CardinalityViolation


def _is_row_error(error: Exception) -> bool:
    """Return whether an error is a row's fault, whatever becomes of the other rows."""
    return not isinstance(error, psycopg.Error) or isinstance(error, _SAME_ROW_TWICE) or is_rows(error)


class PostgresLoad:
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
        """Copy everything into the table itself. False if a row is bad, or not new: then nothing was done."""
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
        """Return how many of the good rows are not in the table, because a trigger left them out."""
        if not self._key:
            return left_out
        if left_out <= 0 or not {*self._columns} - {*self._key}:  # of a key alone, one that is there is left alone
            return 0
        try:
            self._cursor.execute(absent(self._table, self._staging, self._key, self._bad))
        except psycopg.errors.InsufficientPrivilege:  # to write to a table is not to read it
            self._cursor.execute("ROLLBACK TO redrive_load")
            return left_out
        row = self._cursor.fetchone()
        return min(left_out, row[0]) if row else 0

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
        """Copy from fault to fault: COPY names the line, rows before it are good, and rows after it come next."""
        start, stop, window, result = 0, self._count, self._count, len(self._bad)
        asked_nul = False
        while start < self._count:
            if len(self._bad) - result >= _MANY_FAULTS:
                if self._sift(start):
                    return
                result = self._count  # never again
            error = self._stage(start, stop)
            place = None if error is None else self._place(error, start, stop)
            if error is None:
                start, window = stop, 2 * window
            elif not asked_nul and (found_nul := self._text.with_nul()):
                # One such row ends a COPY without a word about its line, so all of them are taken out at once.
                asked_nul = True
                self._bad.update({place: fault for place, fault in found_nul.items() if place not in self._bad})
            elif not _is_row_error(error) and not self._names_value(error):
                raise error
            elif place is None:
                self._bad.update(self._bisect(range(start, stop), lambda some: self._stage(some[0], some[-1] + 1)))
                start = stop
            else:
                self._bad[place] = self._describe_error(error)
                window = max(window // 2, _SMALLEST_WINDOW)  # what is sent after a fault is sent again
                if place > start:
                    stop = place
                    continue
                start = place + 1
            stop = min(start + window, self._count)

    def _sift(self, start: int) -> bool:
        """Stage the rest, with one query for all rejected rows; return False if that is impossible."""
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
        """Return whether COPY named the column: then the type rejects the value, whatever the error is."""
        assert isinstance(error, psycopg.Error)
        located = faulty_line(error.diag.context, self._staging.name, self._columns)
        return located is not None and located[1] is not None

    def _place(self, error: Exception, start: int, stop: int) -> int | None:
        """Return the row at which COPY failed, if it is named."""
        if isinstance(error, UnsendableRow):
            return error.place
        assert isinstance(error, psycopg.Error)
        located, sent = (
            faulty_line(error.diag.context, self._staging.name, self._columns),
            self._text.places(start, stop),
        )
        return sent[located[0] - 1] if located and 0 < located[0] <= len(sent) else None

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
        """Return the condition for rows at these places; without parameters, for which a name might be taken."""
        row = quoted(self._staging.row)
        if isinstance(places, range):
            return f"{row} BETWEEN {places[0]} AND {places[-1]}"
        return f"{row} = ANY ('{{{','.join(map(str, places))}}}'::integer[])"

    def _insert_all(self) -> None:
        """Insert what was staged. What breaks a foreign key or a unique index is asked for, the rest searched for."""
        while (error := self._insert()) is not None:
            if not _is_row_error(error) and not self._takes_another():
                raise error
            result = self._orphans(error) or self._losers(error)
            if not result:
                self._isolate()
                return
            self._bad.update(result)
            self._cursor.execute(f"DELETE FROM {self._staging.table} WHERE {self._among(list(result))}")
            self._cursor.execute("RELEASE redrive_load; SAVEPOINT redrive_load")

    def _takes_another(self) -> bool:
        """Return whether the table takes one of the staged rows by itself; a few are tried, and nothing is kept."""
        staged = [place for place in range(self._count) if place not in self._bad]
        for place in sample_evenly(staged):
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
            refused = self._bisect(places, self._insert, staged=self._count - len(self._bad))
            # A row may refer to one after it: once that is in, it may be, too.
            if not self._shape.refers_to_itself or len(refused) in (0, len(places)):
                break
            places = sorted(refused)
        self._bad.update(refused)

    def _bisect(
        self, places: Sequence[int], attempt: Callable[[Sequence[int]], Exception | None], *, staged: int | None = None
    ) -> dict[int, str]:
        """Find the rejected rows; where all that were staged are, an error that need not be a row's is raised."""
        failures = isolate(len(places), lambda start, stop: attempt(places[start:stop]))
        if len(failures) == staged and (others := [error for _, error in failures if not _is_row_error(error)]):
            raise others[0]
        return {places[at]: self._describe_error(error) for at, error in failures}

    def _orphans(self, error: Exception) -> dict[int, str]:
        """Return the rows whose foreign key refers to nothing, if that is the error."""
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
        message = error.diag.message_primary
        return {place: f"{message}; {key.orphan(values)}" for place, *values in self._cursor}

    def _losers(self, error: Exception) -> dict[int, str]:
        """Return the rows that break a unique index beside the key, if that is the error."""
        if not isinstance(error, psycopg.errors.UniqueViolation) or not self._mode.is_plain:
            return {}
        try:
            return UniqueFaults(self._cursor, self._table, self._key, self._shape, self._staging).find(self._columns)
        except psycopg.errors.InsufficientPrivilege:
            self._cursor.execute("ROLLBACK TO redrive_load")
            return {}

    def _describe_error(self, error: Exception) -> str:
        """Return the fault in one line, by the names that users know."""
        if isinstance(error, UnsendableRow):
            return str(error)
        assert isinstance(error, psycopg.Error)
        message = (error.diag.message_primary or str(error)).replace(self._staging.name, self._table.table)
        located = faulty_line(error.diag.context, self._staging.name, self._columns)
        if located and located[1]:
            message = f"{located[1]}: {message}"
        if error.diag.message_detail and not isinstance(error, _DETAIL_REPEATS_THE_ROW):
            message = f"{message}; {error.diag.message_detail}"
        return message


_UNSENDABLE = (psycopg.DataError, psycopg.ProgrammingError, TypeError, ValueError, OverflowError)


def delete_rows(
    cursor: psycopg.Cursor[Any],
    table: TableName,
    key: Sequence[str],
    shape: TableSchema,
    rows: Outgoing,
    *,
    newer: str | None,
) -> RowFaults:
    """Delete by key, where `newer` is given only what is older; the rows for which that fails by place, and why."""
    names = [*key, *([newer] if newer else [])]
    types = dict(zip(names, shape.types(names), strict=True))
    conditions = [f"{quoted(name)} = CAST(?? AS {types[name]})" for name in key]
    if newer:
        conditions.append(f"({quoted(newer)} IS NULL OR {quoted(newer)} < CAST(?? AS {types[newer]}))")
    statement = f"DELETE FROM {table.sql} WHERE {' AND '.join(conditions)}".replace("%", "%%").replace("??", "%s")
    faults = RowFaults()
    values = list(zip(*(rows.values(name) for name in names), strict=True))

    def attempt(start: int, stop: int) -> Exception | None:
        cursor.execute("SAVEPOINT redrive_delete")
        try:
            cursor.executemany(statement, values[start:stop])
        except (psycopg.Error, *_UNSENDABLE) as error:
            if isinstance(error, psycopg.Error) and error.sqlstate is not None and not may_be_rows(error):
                raise
            cursor.execute("ROLLBACK TO redrive_delete; RELEASE redrive_delete")
            return error
        faults.deleted += cursor.rowcount
        cursor.execute("RELEASE redrive_delete")
        return None

    error = attempt(0, len(values))
    if error is None:
        return faults
    if _is_delete_error(error) or any(
        _is_taken(cursor, statement, values[place]) for place in sample_evenly(range(len(values)))
    ):
        failures = isolate(len(values), attempt)
        others = [error for _, error in failures if not _is_delete_error(error)]
        if not others or len(failures) < len(values):
            faults.update({place: _describe(error) for place, error in failures})
            return faults
        error = others[0]
    raise error


def _is_delete_error(error: Exception) -> bool:
    """Return whether an error is a row's fault, whatever becomes of the other rows."""
    return not isinstance(error, psycopg.Error) or error.sqlstate is None or is_rows(error)


def _is_taken(cursor: psycopg.Cursor[Any], statement: str, values: Sequence[Any]) -> bool:
    """Return whether a row can be deleted by itself; it is not."""
    cursor.execute("SAVEPOINT redrive_delete")
    try:
        cursor.execute(statement, values)
    except (psycopg.Error, *_UNSENDABLE) as error:
        if isinstance(error, psycopg.Error) and error.sqlstate is not None and not may_be_rows(error):
            raise
        is_taken = False
    else:
        is_taken = True
    cursor.execute("ROLLBACK TO redrive_delete; RELEASE redrive_delete")
    return is_taken


def _describe(error: Exception) -> str:
    diagnosis = getattr(error, "diag", None)
    message = (getattr(diagnosis, "message_primary", None) or str(error)).strip()
    detail = getattr(diagnosis, "message_detail", None)
    return f"{message}; {detail}" if detail else message
