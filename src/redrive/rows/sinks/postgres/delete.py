"""Deletes rows of a table of PostgreSQL by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.bisection import isolate
from redrive.rows.sinks.sql_table import RowFaults, is_row_fault
from redrive.rows.sinks.table_schema import TableName, TableSchema, quoted

with require_extra("postgres"):
    import psycopg

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
            if isinstance(error, psycopg.Error) and error.sqlstate is not None and not is_row_fault(error):
                raise
            cursor.execute("ROLLBACK TO redrive_delete; RELEASE redrive_delete")
            return error
        faults.deleted += cursor.rowcount
        cursor.execute("RELEASE redrive_delete")
        return None

    if attempt(0, len(values)) is not None:
        faults.update({place: _told(error) for place, error in isolate(len(values), attempt)})
    return faults


def _told(error: Exception) -> str:
    diagnosis = getattr(error, "diag", None)
    said = (getattr(diagnosis, "message_primary", None) or str(error)).strip()
    detail = getattr(diagnosis, "message_detail", None)
    return f"{said}; {detail}" if detail else said
