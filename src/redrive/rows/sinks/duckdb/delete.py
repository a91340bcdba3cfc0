"""Deletes rows of a table of DuckDB by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.duckdb.catalog import DuckdbSchema, type_of
from redrive.rows.sinks.duckdb.keys import stored_values
from redrive.rows.sinks.duckdb.values import framed
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.sql_table import is_row_fault
from redrive.rows.sinks.table_schema import TableName, fold_name, quoted

with require_extra("rows"):
    import duckdb


def delete_rows(
    connection: duckdb.DuckDBPyConnection,
    table: TableName,
    key: Sequence[str],
    shape: DuckdbSchema,
    rows: Outgoing,
    *,
    mode: WriteMode,
    keep: bool,
) -> tuple[dict[int, str], int]:
    """Delete by key, with `newer` only what is older.

    Returns the rows for which that fails by place, and why; and how many others left the row of their key in the table.

    Every attempt is a transaction of its own, which is undone unless it is to be kept.
    """
    names = [*key, *([mode.newer] if mode.newer else [])]
    types = shape.types(names, fold_name)
    frame, bad, sources = framed(rows.onto(names), types, partial(type_of, connection))
    read = ", ".join(
        f"CAST({sources[name]} AS {kind}) AS {quoted(name)}" for name, kind in zip(names, types, strict=True)
    )
    own = quoted(table.table)
    same = [f"{own}.{quoted(name)} = redrive_gone.{quoted(name)}" for name in key]
    if mode.newer:
        column = quoted(mode.newer)
        same.append(f"({own}.{column} IS NULL OR {own}.{column} < redrive_gone.{column})")
    statement = (
        f"DELETE FROM {table.sql} USING (SELECT {read} FROM redrive_rows) AS redrive_gone WHERE {' AND '.join(same)}"
    )
    kept = 0
    places = [place for place in range(len(rows)) if place not in bad]

    def attempt(start: int, stop: int) -> Exception | None:
        nonlocal kept
        connection.execute("BEGIN")
        try:
            connection.register("redrive_rows", frame[places[start:stop]])
            deleted = connection.execute(statement).fetchone()
            there = 0
            if deleted != (stop - start,):
                keys = rows.take(places[start:stop]).onto(key)
                there = len(stored_values(connection, table, keys, shape.types(key, fold_name), key[0]))
            connection.execute("COMMIT" if keep else "ROLLBACK")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            connection.execute("ROLLBACK")
            return error
        kept += there
        return None

    try:
        if places and attempt(0, len(places)) is not None:
            found = isolate(len(places), attempt)
            bad |= {places[at]: str(error).partition("\n")[0] for at, error in found}
    finally:
        connection.unregister("redrive_rows")
    return bad, kept
