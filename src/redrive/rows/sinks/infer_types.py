"""The types of rows' columns, in words that each database translates into its own, to make a table of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.exact.values import is_held
from redrive.rows.sinks.values import is_fine, is_foreign, native, plain_moment

if TYPE_CHECKING:
    import polars as pl


class ColumnType(StrEnum):
    """What a column holds; text where that is not sure."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    HUGE = "huge"
    """An integer of more than 64 bits."""
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"
    """A timestamp with its zone."""
    NANOSECONDS = "nanoseconds"
    """A timestamp without a zone, with nanoseconds."""
    DURATION = "duration"
    UUID = "uuid"
    JSON = "json"


_BY_PYTHON: dict[type, ColumnType] = {
    bool: ColumnType.BOOLEAN,
    int: ColumnType.INTEGER,
    float: ColumnType.FLOAT,
    Decimal: ColumnType.DECIMAL,
    bytes: ColumnType.BYTES,
    dt.date: ColumnType.DATE,
    dt.time: ColumnType.TIME,
    dt.timedelta: ColumnType.DURATION,
    UUID: ColumnType.UUID,
    dict: ColumnType.JSON,
    list: ColumnType.JSON,
    tuple: ColumnType.JSON,
}
_NUMBERS = (ColumnType.INTEGER, ColumnType.HUGE, ColumnType.FLOAT, ColumnType.DECIMAL)


def types_of(rows: Outgoing) -> dict[str, ColumnType]:
    """Return the type of each column of these rows."""
    frame = rows.as_frame
    if frame is not None:
        return {series.name: _of_series(series) for series in frame.iter_columns()}
    return {name: _of_values(rows.values(name)) for name in rows.columns}


def _of_values(values: Sequence[Any]) -> ColumnType:
    types = {_of_value(value) for value in values if value is not None}
    if len(types) == 1:
        return types.pop()
    if types and types <= {*_NUMBERS}:
        if ColumnType.FLOAT in types and any(type(value) is int and not is_held(Decimal(value)) for value in values):
            return ColumnType.DECIMAL  # a float would change the integer
        return next(kind for kind in reversed(_NUMBERS) if kind in types)  # the one that holds all the others
    return ColumnType.TEXT


def _of_value(value: Any) -> ColumnType:
    with suppress(TypeError, ValueError):
        if is_foreign(type(value)):
            value = native(value)
        elif is_fine(type(value)):
            value = plain_moment(value)
    if isinstance(value, dt.datetime):
        return ColumnType.TIMESTAMP if value.tzinfo is None else ColumnType.INSTANT
    if type(value) is int and not -(2**63) <= value < 2**63:
        return ColumnType.HUGE
    return next((_BY_PYTHON[base] for base in type(value).__mro__ if base in _BY_PYTHON), ColumnType.TEXT)


def _of_series(series: pl.Series) -> ColumnType:
    from redrive.rows.to_polars import has_nanoseconds

    kind = _of_dtype(series.dtype)
    if kind is ColumnType.JSON or not has_nanoseconds(series.dtype) or not (series.to_physical() % 1_000 != 0).any():
        return kind
    return ColumnType.NANOSECONDS if kind is ColumnType.TIMESTAMP else ColumnType.TEXT


def _of_dtype(dtype: pl.DataType) -> ColumnType:
    import polars as pl

    if dtype.is_integer():
        return ColumnType.HUGE if dtype in (pl.UInt64, pl.Int128, pl.UInt128) else ColumnType.INTEGER
    if isinstance(dtype, pl.Datetime):
        return ColumnType.TIMESTAMP if dtype.time_zone is None else ColumnType.INSTANT
    for kind, known in (
        (pl.Boolean, ColumnType.BOOLEAN),
        (pl.Decimal, ColumnType.DECIMAL),
        (pl.Date, ColumnType.DATE),
        (pl.Time, ColumnType.TIME),
        (pl.Duration, ColumnType.DURATION),
        (pl.Binary, ColumnType.BYTES),
    ):
        if dtype == kind:
            return known
    if dtype.is_float():
        return ColumnType.FLOAT
    return ColumnType.JSON if dtype.is_nested() else ColumnType.TEXT
