"""Frames of rows for DuckDB, and keys as a table of DuckDB compares them.

Every value is checked against the type of its column. Keys are cast by DuckDB, and folded by the collation of their
column.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.duckdb.catalog import is_nested, type_of
from redrive.rows.sinks.duckdb.types import (
    capacity_of,
    changes_in_texts,
    fitted,
    has_members,
    is_own,
    is_same,
    own_rules,
    text_rules,
    variant_rules,
)
from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family
from redrive.rows.sinks.exact.columns import find_changes
from redrive.rows.sinks.keys import KeyKind
from redrive.rows.sinks.table_schema import TableName, quoted
from redrive.rows.sinks.values import NESTED, Convert, Rules, adapt_columns, json_of_str, json_text
from redrive.rows.to_polars import has_nanoseconds, values_of

with require_extra("rows"):
    import duckdb
    import polars as pl

_TOO_WIDE = (pl.Int128, pl.UInt128)


_NUMBERS = (Family.INTEGER, Family.DECIMAL, Family.FLOAT)


_AS_THEY_ARE: dict[type, pl.DataType] = {
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bytes: pl.Binary(),
    dt.date: pl.Date(),
    dt.timedelta: pl.Duration("us"),
}


_KNOWN = (type(None), bool, int, float, str, bytes, Decimal, dt.date, dt.datetime, dt.time, dt.timedelta)


TypeOf = Callable[[str], Any]
"""A type of DuckDB, by its name: it has an `id`, and `children` where it is made of others."""


class RowFrame(NamedTuple):
    """Rows on their way."""

    frame: pl.DataFrame
    bad: dict[int, str]
    """The rows that have a value which cannot go in as it is, by place, and why."""
    sources: dict[str, str]
    """The expression that reads each column."""


def framed(rows: Outgoing, types: Sequence[str], type_of: TypeOf) -> RowFrame:
    """Return rows for columns of these types."""
    framing = _Framing(rows.of_text, type_of)
    if rows.as_frame is not None:
        made = [framing.of_series(*column) for column in zip(rows.as_frame.get_columns(), types, strict=True)]
    else:
        columns = zip(*rows.tuples, strict=True)
        made = [framing.of_values(*column) for column in zip(rows.columns, columns, types, strict=True)]
    frame = pl.DataFrame(made)
    sources = {name: _source(name, frame, kind, framing) for name, kind in zip(frame.columns, types, strict=True)}
    return RowFrame(frame, framing.bad, sources)


class _Framing:
    """Columns as DuckDB is to read them."""

    def __init__(self, of_text: bool, type_of: TypeOf) -> None:
        self._of_text, self._type_of = of_text, type_of
        self.bad: dict[int, str] = {}
        self.json: set[str] = set()
        """Columns of a nested type whose values are JSON."""
        self.mixed: set[str] = set()
        """Columns of a nested type whose values are JSON after the letter "j", or a text of DuckDB after a "t"."""

    def of_series(self, series: pl.Series, kind: str) -> pl.Series:
        """Return a column of a frame."""
        dtype, capacity = series.dtype, capacity_of(kind)
        if self._is_for_python(series, kind):
            return self.of_values(series.name, values_of(series), kind)
        self._note(series.name, find_changes(series, capacity))
        if dtype == pl.String and is_nested(kind):
            self._note(series.name, changes_in_texts(series, self._type_of(kind)))
        if dtype in _TOO_WIDE:
            return series.cast(pl.String)
        if dtype in (pl.Float16, pl.Float32):
            series = series.cast(pl.Float64)
        # DuckDB would invent digits, or get the last one wrong.
        if capacity is not None and (
            (dtype.is_float() and capacity.family is Family.DECIMAL)
            or (dtype.is_decimal() and capacity.family is Family.FLOAT)
        ):
            return series.cast(pl.String)
        return series

    def _is_for_python(self, series: pl.Series, kind: str) -> bool:
        """Return whether values must be looked at one by one, as those of tuples are."""
        dtype = series.dtype
        if kind == "VARIANT" or _is_union(kind):
            return True
        if dtype == pl.Object or (dtype == pl.String and kind == "JSON" and not self._of_text):
            return True
        if dtype.is_nested():
            if "Float16" in repr(dtype):
                return True  # which DuckDB does not read
            if kind in ("VARCHAR", "JSON") and (has_nanoseconds(dtype) or "Binary" in repr(dtype)):
                return True  # DuckDB would cut and decode them
            return is_nested(kind) and not is_same(dtype, self._type_of(kind))
        if not is_own(dtype, kind):
            return True
        return kind == "VARCHAR" and has_nanoseconds(dtype) and bool((series.to_physical() % 1_000 != 0).any())

    def of_values(self, name: str, values: Sequence[Any], kind: str) -> pl.Series:
        """Return a column of values of whatever type."""
        if is_nested(kind):
            values = self._encodable(name, values)
            made_of = self._type_of(kind)
            is_apart = any(_is_apart(value) for value in values)
            if (is_apart or _is_union(kind)) and not has_members(made_of, ("variant",)):
                self.json.add(name)
            texts = [value if type(value) is str else None for value in values]
            if not _is_union(kind) and any(text is not None for text in texts):
                self._note(name, changes_in_texts(pl.Series(texts, dtype=pl.String), made_of))
            is_mixed = any(value is not None and not _is_apart(value) for value in values)
            if is_mixed and name in self.json and not _is_union(kind):
                self.mixed.add(name)
        column = [values]
        for place, fault in adapt_columns(column, [_rules(kind, self._type_of, of_text=self._of_text)]).items():
            self.bad.setdefault(place, f"{name}: {fault}")
        capacity = capacity_of(kind)
        self._note(name, find_changes(column[0], capacity))
        series = _series(name, column[0], kind, capacity, self.bad)
        if name in self.mixed:
            marks = ["j" if _is_apart(value) else "t" for value in values]
            return pl.Series(name, marks, dtype=pl.String) + series
        return series

    def _encodable(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values without texts that hold half a character, which polars does not take."""
        made = list(values)
        for place, value in enumerate(values):
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    self._note(name, [(place, f"{type(value).__name__} cannot be stored: {error}")])
                    made[place] = None
        return made

    def _note(self, name: str, changes: Iterable[tuple[int, str]]) -> None:
        for place, change in changes:
            self.bad.setdefault(place, f"{name}: {change}")


def _is_apart(value: Any) -> bool:
    """Return whether a value is a list, a struct or a map, not the text of one."""
    return isinstance(value, tuple(NESTED))


def _is_union(kind: str) -> bool:
    return kind.startswith("UNION") and not kind.endswith("]")


def _source(name: str, frame: pl.DataFrame, kind: str, framing: _Framing) -> str:
    if kind == "VARIANT":
        return f"CAST(CAST({quoted(name)} AS JSON) AS VARIANT)"
    if name in framing.mixed:
        # JSON and DuckDB read the same text differently: one takes "null" for no value, and the other rejects it.
        mark, text = f"{quoted(name)}[1]", f"{quoted(name)}[2:]"
        return f"CASE {mark} WHEN 'j' THEN CAST(CAST({text} AS JSON) AS {kind}) ELSE CAST({text} AS {kind}) END"
    if name in framing.json:
        return f"CAST({quoted(name)} AS JSON)"
    return f"to_json({quoted(name)})" if kind == "VARCHAR" and frame.schema[name].is_nested() else quoted(name)


def _rules(kind: str, type_of: TypeOf, *, of_text: bool) -> Rules:
    if kind == "VARIANT":
        return variant_rules()
    if _is_union(kind):
        union = type_of(kind)
        return {object: lambda value: json_text(fitted(value, union)), type(None): None}
    if kind == "JSON":
        return {object: json_text, str: None if of_text else json_of_str, type(None): None}
    if (own := own_rules(kind)) is not None:
        return own
    rules: dict[type, Convert | None] = {object: _unknown, **dict.fromkeys(_KNOWN), **NESTED}
    rules |= {UUID: str, bytearray: bytes, memoryview: bytes, **text_rules(kind)}
    if is_nested(kind):
        made_of = type_of(kind)
        if has_members(made_of, ("variant",)):
            return {object: _no_variant, type(None): None}
        rules |= dict.fromkeys(NESTED, lambda value: json_text(fitted(value, made_of)))
    return rules


def _no_variant(value: Any) -> Any:
    raise TypeError("DuckDB reads no VARIANT within a list, struct or map")


def _unknown(value: Any) -> Any:
    raise TypeError("DuckDB has no such type")


def _series(
    name: str, values: Sequence[Any], kind: str, capacity: ColumnCapacity | None, bad: dict[int, str]
) -> pl.Series:
    """Return a column of one type as it is, any other in words."""
    types = set(map(type, values)) - {type(None)}
    only = types.pop() if len(types) == 1 else None
    family = None if capacity is None else capacity.family
    as_it_is = kind not in ("VARCHAR", "BIGNUM") or only is str
    if only in _AS_THEY_ARE and as_it_is and not (only is float and family is Family.DECIMAL):
        try:
            return pl.Series(name, values, dtype=_AS_THEY_ARE[only], strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            pass  # an integer of more than 64 bits, half a character
    words = [_as_text(value, kind, family, place, bad) for place, value in enumerate(values)]
    return pl.Series(name, words, dtype=pl.String)


def _as_text(value: Any, kind: str, family: Family | None, place: int, bad: dict[int, str]) -> str | None:
    """Return a value as DuckDB reads it, whichever type the column has."""
    if value is None:
        return None
    try:
        if isinstance(value, bytes):
            return "".join(f"\\x{byte:02X}" for byte in value)
        if isinstance(value, bool):
            return str(int(value)) if family in _NUMBERS else str(value).lower()
        if isinstance(value, float) and family is Family.INTEGER and value.is_integer():
            return str(int(value))  # an unsigned integer takes no "-0.0"
        if isinstance(value, dt.timedelta):
            return str(value).replace(",", "")
        if isinstance(value, dt.datetime) and value.tzinfo is not None and kind != "VARCHAR":
            value = value.astimezone(dt.UTC)  # a column without a zone drops it
        return str(value).encode().decode()
    except (ValueError, OverflowError) as error:
        bad.setdefault(place, f"{type(value).__name__} cannot be stored: {error}")
        return None


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


def query_keys(
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
    keys = {place: key for place, *key in answers if place not in bad}
    return [
        [
            own if place in keys and (own := keys[place][at]) is not None else value
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
        rows = connection.execute(
            f"SELECT redrive_keys.{quoted(number)}, redrive_own.{quoted(column)} "
            f"FROM (SELECT {quoted(number)}, {read} FROM {_TABLE}) AS redrive_keys "
            f"JOIN {table.sql} AS redrive_own ON {same}"
        ).fetchall()
    finally:
        with suppress(duckdb.Error):
            connection.unregister(_TABLE)
    return {place: value for place, value in rows if place not in bad}


def _compared(source: str, kind: str, collation: str) -> str:
    """Return the expression for a value as DuckDB compares it; NULL if the column rejects it."""
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
