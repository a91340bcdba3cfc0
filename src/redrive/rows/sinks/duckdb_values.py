"""Rows as a frame that DuckDB reads, without bending a value: polars and DuckDB would round, cut off and lose some."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from redrive.extras import needs
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.decimals import rounded, rounding_fault, scale_of
from redrive.rows.sinks.duckdb_catalog import is_nested
from redrive.rows.sinks.shape import quoted
from redrive.rows.sinks.values import NESTED, Convert, Rules, adapt_columns, json_of_str, json_text

with needs("rows"):
    import polars as pl

_TOO_WIDE = (pl.Int128, pl.UInt128)
_SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_INTEGERS = (*_SIGNED, *(f"U{name}" for name in _SIGNED))
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


class Framed(NamedTuple):
    """Rows on their way."""

    frame: pl.DataFrame
    bad: dict[int, str]
    """The rows that have a value which cannot go in as it is, by place, and why."""
    sources: dict[str, str]
    """The expression that reads each column."""


def framed(rows: Outgoing, types: Sequence[str], type_of: TypeOf) -> Framed:
    """Rows for columns of these types."""
    frame, bad, json = rows.as_frame, {}, set()
    if frame is not None and not rows.of_text:
        texts = [
            pl.Series(name, [None if text is None else json_of_str(text) for text in frame.get_column(name)])
            for name, kind in zip(frame.columns, types, strict=True)
            if kind == "JSON" and frame.schema[name] == pl.String
        ]
        frame = frame.with_columns(texts)
    if frame is None or any(kind == pl.Object for kind in frame.dtypes):
        columns: list[Sequence[Any]] = list(zip(*rows.tuples, strict=True))
        json = {
            name
            for name, values, kind in zip(rows.columns, columns, types, strict=True)
            if is_nested(kind) and any(isinstance(value, tuple(NESTED)) for value in values)
        }
        bad = adapt_columns(columns, [_rules(kind, type_of, of_text=rows.of_text) for kind in types])
        frame = pl.DataFrame(
            [_series(*column, bad) for column in zip(rows.columns, columns, types, strict=True)],
        )
    frame = frame.with_columns(pl.col(*_TOO_WIDE).cast(pl.String))
    for series, kind in zip(frame.get_columns(), types, strict=True):
        if kind in _INTEGERS:
            for place in _broken(series):
                bad.setdefault(place, f"{series.name}: could not convert {str(series[place])!r} to {kind}")
        elif (scale := scale_of(kind)) is not None:
            for place in rounded(series, scale):
                bad.setdefault(place, rounding_fault(series.name, series[place], scale))
    sources = {name: _source(name, frame, kind, json) for name, kind in zip(frame.columns, types, strict=True)}
    return Framed(frame, bad, sources)


def _source(name: str, frame: pl.DataFrame, kind: str, json: set[str]) -> str:
    if name in json:
        return f"CAST({quoted(name)} AS JSON)"
    return f"to_json({quoted(name)})" if kind == "VARCHAR" and frame.schema[name].is_nested() else quoted(name)


def _rules(kind: str, type_of: TypeOf, *, of_text: bool) -> Rules:
    if kind == "JSON":
        return {object: json_text, str: None if of_text else json_of_str, type(None): None}
    rules: dict[type, Convert | None] = {object: _unknown, **dict.fromkeys(_KNOWN), **NESTED}
    rules |= {UUID: str, bytearray: bytes, memoryview: bytes}
    if is_nested(kind):
        made_of = type_of(kind)
        rules |= dict.fromkeys(NESTED, lambda value: json_text(_fitted(value, made_of)))
    return rules


def _unknown(value: Any) -> Any:
    raise TypeError("DuckDB has no such type")


def _fitted(value: Any, kind: Any) -> Any:
    """A value with every field that its type has, as JSON is to have them. It raises where something would be lost."""
    if isinstance(value, Mapping) and kind.id == "struct":
        fields = dict(kind.children)
        if unknown := [name for name in value if name not in fields]:
            raise ValueError(f"{unknown[0]!r} is no field of {kind}")
        return {name: _fitted(value.get(name), field) for name, field in fields.items()}
    if isinstance(value, Mapping) and kind.id == "map":
        return {name: _fitted(one, kind.children[1][1]) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and kind.id in ("list", "array"):
        return [_fitted(one, kind.children[0][1]) for one in value]
    if isinstance(value, float | Decimal) and str(kind) in _INTEGERS and value % 1:
        raise ValueError(f"{value} is no {kind}")
    return value


def _series(name: str, values: Sequence[Any], kind: str, bad: dict[int, str]) -> pl.Series:
    """A column of one type as it is, any other in words."""
    types = set(map(type, values)) - {type(None)}
    only = types.pop() if len(types) == 1 else None
    if only in _AS_THEY_ARE and (kind != "VARCHAR" or only in (str, bytes)):
        try:
            return pl.Series(name, values, dtype=_AS_THEY_ARE[only], strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            pass  # an integer of more than 64 bits, half a character
    words = [_in_words(value, kind, place, bad) for place, value in enumerate(values)]
    return pl.Series(name, words, dtype=pl.String)


def _in_words(value: Any, kind: str, place: int, bad: dict[int, str]) -> str | None:
    """A value as DuckDB reads it, whichever type the column has."""
    if value is None:
        return None
    try:
        if isinstance(value, bytes):
            return "".join(f"\\x{byte:02X}" for byte in value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, dt.timedelta):
            return str(value).replace(",", "")
        if isinstance(value, dt.datetime) and value.tzinfo is not None and kind != "VARCHAR":
            value = value.astimezone(dt.UTC)  # a column without a zone drops it
        return str(value).encode().decode()
    except (ValueError, OverflowError) as error:
        bad.setdefault(place, f"{type(value).__name__} cannot be stored: {error}")
        return None


def _broken(series: pl.Series) -> Sequence[int]:
    """The places of numbers that are not whole, which DuckDB would round."""
    if not (series.dtype.is_float() or series.dtype.is_decimal() or series.dtype == pl.String):
        return ()
    numbers = series.cast(pl.Float64, strict=False)
    return (numbers.is_finite() & (numbers != numbers.floor())).fill_null(False).arg_true().to_list()
