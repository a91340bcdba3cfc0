"""Keys as a table of DuckDB compares them: cast by DuckDB, and folded by the collation of their column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.duckdb.catalog import type_of
from redrive.rows.sinks.duckdb.values import framed
from redrive.rows.sinks.keys import KeyKind
from redrive.rows.sinks.table_schema import TableName, quoted

with require_extra("rows"):
    import duckdb

_INTEGER = re.compile("U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?")
_FOLDS = {"nocase": "lower({})", "noaccent": "strip_accents({})", "nfc": "nfc_normalize({})"}
_TABLE = "redrive_key_values"


def kind_of(kind: str, collation: str) -> KeyKind:
    """Return the kind of a key column."""
    if kind == "VARCHAR":
        return KeyKind.OTHER if collation else KeyKind.TEXT
    if _INTEGER.fullmatch(kind):
        return KeyKind.INTEGER
    return {"UUID": KeyKind.UUID, "DATE": KeyKind.DATE}.get(kind, KeyKind.OTHER)


def ask(
    connection: duckdb.DuckDBPyConnection, rows: Outgoing, types: Mapping[str, str], collations: Mapping[str, str]
) -> list[list[Any]]:
    """See `keys.Ask`."""
    kinds = [types[name] for name in rows.columns]
    frame, bad, sources = framed(rows, kinds, partial(type_of, connection))
    number = "redrive_row"
    while number in rows.columns:
        number += "_"
    chosen = ", ".join(
        _compared(sources[name], kind, collations.get(name.lower(), ""))
        for name, kind in zip(rows.columns, kinds, strict=True)
    )
    connection.register(_TABLE, frame.with_row_index(number))
    try:
        answers = connection.execute(f"SELECT {quoted(number)}, {chosen} FROM {_TABLE}").fetchall()
    finally:
        with suppress(duckdb.Error):
            connection.unregister(_TABLE)
    found = {place: key for place, *key in answers if place not in bad}
    return [
        [
            own if place in found and (own := found[place][at]) is not None else value
            for place, value in enumerate(rows.values(name))
        ]
        for at, name in enumerate(rows.columns)
    ]


def stored_values(
    connection: duckdb.DuckDBPyConnection, table: TableName, keys: Outgoing, types: Sequence[str], column: str
) -> dict[int, Any]:
    """Return the values of a column that a table has for keys, by place; a key that it cannot have has none."""
    frame, bad, sources = framed(keys, types, partial(type_of, connection))
    number = "redrive_row"
    while number in keys.columns:
        number += "_"
    read = ", ".join(
        f"TRY_CAST({sources[name]} AS {kind}) AS {quoted(name)}" for name, kind in zip(keys.columns, types, strict=True)
    )
    same = " AND ".join(f"redrive_own.{quoted(name)} = redrive_keys.{quoted(name)}" for name in keys.columns)
    connection.register(_TABLE, frame.with_row_index(number))
    try:
        found = connection.execute(
            f"SELECT redrive_keys.{quoted(number)}, redrive_own.{quoted(column)} "
            f"FROM (SELECT {quoted(number)}, {read} FROM {_TABLE}) AS redrive_keys "
            f"JOIN {table.sql} AS redrive_own ON {same}"
        ).fetchall()
    finally:
        with suppress(duckdb.Error):
            connection.unregister(_TABLE)
    return {place: value for place, value in found if place not in bad}


def _compared(source: str, kind: str, collation: str) -> str:
    """The expression for a value that equals another where DuckDB says so; NULL where the column does not take it."""
    value = f"TRY_CAST({source} AS {kind})"
    if _INTEGER.fullmatch(kind):
        return value
    if kind in ("FLOAT", "DOUBLE"):
        value = f"({value} + 0)"
    text = f"CAST({value} AS VARCHAR)"
    for part in collation.lower().split("."):
        if part and part != "binary":
            text = _FOLDS.get(part, f"icu_sort_key({{}}, '{part}')").format(text)
    return text
