"""Deletes rows of a table of PostgreSQL by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.postgres.faults import is_rows, may_be_rows
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.sql_table import RowFaults, evenly
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
    if _is_sure(error) or any(_is_taken(cursor, statement, values[place]) for place in evenly(range(len(values)))):
        found = isolate(len(values), attempt)
        others = [error for _, error in found if not _is_sure(error)]
        if not others or len(found) < len(values):
            faults.update({place: _told(error) for place, error in found})
            return faults
        error = others[0]
    raise error


def _is_sure(error: Exception) -> bool:
    """Whether an error is a row's fault, whatever becomes of the other rows."""
    return not isinstance(error, psycopg.Error) or error.sqlstate is None or is_rows(error)


def _is_taken(cursor: psycopg.Cursor[Any], statement: str, values: Sequence[Any]) -> bool:
    """Whether a row can be deleted by itself; it is not."""
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


def _told(error: Exception) -> str:
    diagnosis = getattr(error, "diag", None)
    said = (getattr(diagnosis, "message_primary", None) or str(error)).strip()
    detail = getattr(diagnosis, "message_detail", None)
    return f"{said}; {detail}" if detail else said
