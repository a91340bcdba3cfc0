"""Load one batch into a table of SQLite, and delete rows by their keys.

The upsert runs row by row within the library, so that the row at which it stops is the rejected one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import length_hint
from typing import Any

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sql_table import RowFaults, TransactionGone, is_row_fault, sample_evenly
from redrive.rows.sinks.sqlite.catalog import SqliteSchema
from redrive.rows.sinks.sqlite.values import (
    UNSENDABLE,
    fit_numbers,
    rules_of,
)
from redrive.rows.sinks.table_schema import TableName, TableSchema, fold_name, listed, quoted
from redrive.rows.sinks.values import adapt_columns


def delete_rows(
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
        except (sqlite3.Error, *UNSENDABLE) as error:
            if not isinstance(error, UNSENDABLE) and not is_row_fault(error):
                raise
            bad[place] = str(error)
            if not cursor.connection.in_transaction:
                raise TransactionGone(place, str(error)) from error
    return bad


class SqliteLoad:
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
        """Return how many of the rows just written are not in the table, because a trigger left them out."""
        own = {name.lower(): at for at, name in enumerate(self._columns)}
        parts = [own[name.lower()] for name in self._key]
        lookup = f"SELECT 1 FROM {self._table.sql} WHERE " + " AND ".join(f"{quoted(name)} = ?" for name in self._key)
        keys = ([self._tuples[place][part] for part in parts] for place in places)
        return sum(self._cursor.execute(lookup, key).fetchone() is None for key in keys)

    def _write(self, places: Sequence[int]) -> dict[int, str]:
        """Write from fault to fault: what came before a rejected row is kept, and the next attempt begins after it."""
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
            except (sqlite3.Error, *UNSENDABLE) as error:
                if not isinstance(error, UNSENDABLE) and not is_row_fault(error) and not self._is_rows(error, rows):
                    raise
                at = len(rows) - length_hint(left) - 1  # the last one that was taken
                refused[places[at]] = self._describe_error(error, places[at])
                if not self._cursor.connection.in_transaction:
                    raise TransactionGone(places[at], refused[places[at]]) from error
                if exactly:  # undo everything, and write what came before the rejected row again
                    self._cursor.execute("ROLLBACK TO redrive_part")
                    self._cursor.executemany(self._upsert, rows[start:at])
                    self._changed += max(self._cursor.rowcount, 0)
                start = at + 1
            if exactly:
                self._cursor.execute("RELEASE redrive_part")
        return refused

    def _is_rows(self, error: sqlite3.Error, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Return whether an error is of a row, for example of a trigger's function: the table accepts other rows."""
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR or not self._cursor.connection.in_transaction:
            return False
        return any(map(self._takes, sample_evenly(rows)))

    def _takes(self, row: tuple[Any, ...]) -> bool:
        """Return whether the table takes a row by itself; it is not kept."""
        self._cursor.execute("SAVEPOINT redrive_try")
        try:
            self._cursor.execute(self._upsert, row)
        except (sqlite3.Error, *UNSENDABLE):
            is_taken = False
        else:
            is_taken = True
        if self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK TO redrive_try")
            self._cursor.execute("RELEASE redrive_try")
        return is_taken

    def _describe_error(self, error: Exception, place: int) -> str:
        message = str(error)
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            return message
        return self._orphaned(place) or message  # SQLite does not name it

    def _orphaned(self, place: int) -> str | None:
        """Return what a row refers to that is not there."""
        row = dict(zip(map(fold_name, self._columns), self._tuples[place], strict=True))
        for key in self._shape.foreign_keys:
            values = [row.get(name.lower()) for name in key.columns]
            if None not in values and not self._cursor.execute(key.lookup, values).fetchone():
                return key.message(values)
        return None

    # ── foreign keys that are looked at when all rows are in ──────────────────────────────────────────────────────────

    def _enforces(self) -> bool:
        return bool(self._cursor.execute("PRAGMA foreign_keys").fetchone()[0])

    def _orphans(self, places: Sequence[int]) -> dict[int, str]:
        """Return the rows, of those just written, that refer to something which is not there."""
        if not self._key:
            return {place: message for place in places if (message := self._orphaned(place))}
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
        result: dict[int, str] = {}
        for key in self._shape.foreign_keys:
            self._cursor.execute(key.orphans(f"{written} w JOIN {self._table.sql} t ON {same}", "w.place", "t"))
            result.update({place: key.message(values) for place, *values in self._cursor})
        return result
