"""Deletes rows of a table of DuckDB by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from redrive.extras import needs
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.duckdb_catalog import DuckdbShape, type_of
from redrive.rows.sinks.duckdb_values import framed
from redrive.rows.sinks.isolate import isolate
from redrive.rows.sinks.mode import Mode
from redrive.rows.sinks.shape import TableName, fold_name, quoted
from redrive.rows.sinks.transacted import is_row_fault

with needs("rows"):
    import duckdb


def delete_rows(
    connection: duckdb.DuckDBPyConnection,
    table: TableName,
    key: Sequence[str],
    shape: DuckdbShape,
    rows: Outgoing,
    *,
    mode: Mode,
    keep: bool,
) -> dict[int, str]:
    """Delete by key, with `newer` only what is older; the rows for which that fails by place, and why.

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
    places = [place for place in range(len(rows)) if place not in bad]

    def attempt(start: int, stop: int) -> Exception | None:
        connection.execute("BEGIN")
        try:
            connection.register("redrive_rows", frame[places[start:stop]])
            connection.execute(statement)
            connection.execute("COMMIT" if keep else "ROLLBACK")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            connection.execute("ROLLBACK")
            return error
        return None

    try:
        if places and attempt(0, len(places)) is not None:
            found = isolate(len(places), attempt)
            bad |= {places[at]: str(error).partition("\n")[0] for at, error in found}
    finally:
        connection.unregister("redrive_rows")
    return bad
