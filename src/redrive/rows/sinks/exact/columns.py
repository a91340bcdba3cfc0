"""Finds the values of a column that would not be the same in the table, so that their rows are rejected.

Whole columns are sifted for values that might be changed; only those are looked at one by one (`exact_values`). So a
value gets the same verdict whatever stands beside it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family
from redrive.rows.sinks.exact.values import NOT_TIMES, TIMES, change_of, unchecked
from redrive.rows.to_polars import values_of

with require_extra("rows"):
    import polars as pl

_TEMPORAL = (Family.TIMESTAMP, Family.INSTANT, Family.DATE, Family.TIME)
_CLOCKED = (Family.TIMESTAMP, Family.INSTANT, Family.TIME)
_NOT_TIMES: dict[Family, tuple[Any, ...]] = {
    **dict.fromkeys((Family.TIMESTAMP, Family.INSTANT, Family.DATE), (pl.Duration, pl.Time, pl.Boolean)),
    Family.TIME: (pl.Duration, pl.Date, pl.Boolean),
    Family.INTERVAL: (pl.Time, pl.Boolean),
}
_NUMERIC = (Family.INTEGER, Family.DECIMAL, Family.FLOAT, Family.BOOLEAN)
_DIGITS = {32: 6, 64: 15}  # that a float always keeps
_WHOLE = {32: 2**24, 64: 2**53}  # up to which a float holds every integer
_UNITS = {"ms": 3, "us": 6, "ns": 9}
_DAY = r"^\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d(?::[0-5]\d(?:\.\d{1,%d})?)?"
_UTC = r"(?:Z|\+00(?::?00)?)?$"
# Values of these types are never changed by a column of the family, or the database rejects them.
_SAFE: dict[Family, set[type]] = {
    Family.INTEGER: {int, bool},
    Family.DECIMAL: {int, bool},
    Family.FLOAT: {bool},
    Family.BOOLEAN: {bool, str},
    Family.TIMESTAMP: {dt.date},
    Family.INSTANT: {dt.date},
    Family.DATE: {dt.date},
    Family.TIME: set(),
    Family.INTERVAL: {dt.timedelta},
}


def find_changes(values: pl.Series | Sequence[Any], capacity: ColumnCapacity | None) -> Iterator[tuple[int, str]]:
    """Yield the place of each value that the column would change, and why its row is rejected."""
    if capacity is None:
        return
    if not isinstance(values, pl.Series):
        if not _may_change(values, capacity):
            return
        series = _texts(values)
        if series is None:
            yield from _changes(range(len(values)), values, capacity)
            return
        values = series
    suspects = _suspects(values, capacity)
    if suspects is not None and suspects.any():
        places = suspects.fill_null(False).arg_true()
        yield from _changes(places.to_list(), values_of(values.gather(places)), capacity)


def is_no_time(values: pl.Series | Sequence[Any], capacity: ColumnCapacity | None) -> bool:
    """Return whether a column of times is to get values whose text would be read as a time that they are not."""
    if capacity is None or capacity.family not in TIMES:
        return False
    if isinstance(values, pl.Series):
        kind = values.dtype
        return kind.is_numeric() or kind in (pl.Duration, pl.Time, pl.Boolean)
    return any(issubclass(kind, NOT_TIMES) for kind in set(map(type, values)))


def _changes(places: Sequence[int], values: Sequence[Any], capacity: ColumnCapacity) -> Iterator[tuple[int, str]]:
    for place, value in zip(places, values, strict=True):
        try:
            change = change_of(value, capacity)
            reason = None if change is None else f"{str(value)!r} {change}"
        except Exception as error:  # of a zone that is not one, of an integer that has no text: the fault of this row
            reason = unchecked(value, capacity.type, error)
        if reason is not None:
            yield place, reason


def _may_change(values: Sequence[Any], capacity: ColumnCapacity) -> bool:
    types = set(map(type, values)) - {type(None)}
    if capacity.places >= (_UNITS["us"] if capacity.family is Family.INTERVAL else 0):
        types -= _SAFE[capacity.family]
    own = dt.time if capacity.family is Family.TIME else dt.datetime
    if types == {own} and capacity.family in _CLOCKED and capacity.places >= _UNITS["us"]:
        # All but an offset is kept, and the common case is that there is none.
        return capacity.family is not Family.INSTANT and any(getattr(value, "tzinfo", None) for value in values)
    if capacity.family is Family.FLOAT:
        if capacity.bits == 64:
            types.discard(float)
        if types == {int}:
            whole = [value for value in values if type(value) is int]
            return max(whole) > _WHOLE[capacity.bits] or min(whole) < -_WHOLE[capacity.bits]
    return bool(types)


def _texts(values: Sequence[Any]) -> pl.Series | None:
    """Return the values as a series where all of them are texts."""
    if set(map(type, values)) - {type(None)} != {str}:
        return None
    try:
        return pl.Series(values, dtype=pl.String)
    except UnicodeEncodeError:  # half a character
        return None


def _suspects(series: pl.Series, capacity: ColumnCapacity) -> pl.Series | None:
    """Return which values may be changed; None if no value is."""
    kind, family = series.dtype, capacity.family
    if kind in (pl.String, pl.Categorical, pl.Enum):
        return _suspect_texts(series.cast(pl.String), capacity)
    if family in _NUMERIC and kind.is_numeric():
        return _suspect_numbers(series, capacity)
    if isinstance(kind, pl.Datetime) and family in _TEMPORAL:
        return _suspect_moments(series, kind, capacity)
    if family in TIMES and (kind.is_numeric() or kind in _NOT_TIMES.get(family, ())):
        return series.is_not_null()
    if kind == pl.Time and family is Family.TIME:
        return _finer(series, _UNITS["ns"], capacity)
    if isinstance(kind, pl.Duration) and family is Family.INTERVAL:
        return _finer(series, _UNITS[kind.time_unit], capacity)
    return None


def _suspect_numbers(series: pl.Series, capacity: ColumnCapacity) -> pl.Series | None:
    kind = series.dtype
    if capacity.family is Family.BOOLEAN:
        return (series != 0) & (series != 1)
    if kind.is_integer():
        if capacity.family is Family.FLOAT:
            large = series > _WHOLE[capacity.bits]
            return large if kind.is_unsigned_integer() else large | (series < -_WHOLE[capacity.bits])
        return series != 0 if capacity.places < 0 else None
    if isinstance(kind, pl.Decimal):
        if capacity.family is Family.DECIMAL and kind.scale <= capacity.places:
            return None
        return _suspect_texts(series.cast(pl.String), capacity)
    if capacity.family is Family.INTEGER:
        return series.is_finite() & ((series != series.floor()) | (series.abs() > _WHOLE[64]))
    if capacity.family is Family.FLOAT:
        return None if capacity.bits == 64 else series.cast(pl.Float32).cast(pl.Float64).ne_missing(series)
    return _suspect_texts(series.cast(pl.Float64).cast(pl.String), capacity)


def _suspect_texts(texts: pl.Series, capacity: ColumnCapacity) -> pl.Series | None:
    match capacity.family:
        case Family.INTEGER:
            return texts.str.contains(r"[.eE]")
        case Family.DECIMAL:
            # A digit that is not 0 after those that are kept, or an exponent.
            if capacity.places < 0:
                return texts.is_not_null()
            return texts.str.contains(rf"\.\d{{{capacity.places}}}\d*[1-9]|[0-9.][eE]|_")
        case Family.FLOAT:
            long = (texts.str.len_bytes() > _DIGITS[capacity.bits]) | texts.str.contains(r"[eE]")
            if not long.any():
                return long
            nearest = texts.cast(pl.Float64, strict=False)
            if capacity.bits == 32:
                nearest = nearest.cast(pl.Float32)
            return long & nearest.cast(pl.String).ne_missing(texts)
        case Family.TIMESTAMP | Family.INSTANT:
            # An offset is kept by a column with a zone, but the rest of such a text must be looked at.
            clock = _CLOCK % max(capacity.places, 1)
            return ~texts.str.contains(f"{_DAY}(?:[ T]{clock}{_UTC}|$)") if capacity.places else texts.is_not_null()
        case Family.DATE:
            return ~texts.str.contains(f"{_DAY}$")
        case Family.TIME:
            return ~texts.str.contains(f"^{_CLOCK % capacity.places}$") if capacity.places else texts.is_not_null()
        case Family.INTERVAL:
            if capacity.lowest or capacity.is_minutes:
                return texts.is_not_null()
            fraction = rf"(?:\.\d{{1,{capacity.places}}})?" if capacity.places else ""
            return ~texts.str.contains(rf"^(?:\d{{1,6}} days? )?\d{{1,3}}:[0-5]\d:[0-5]\d{fraction}$")
    return None


def _suspect_moments(series: pl.Series, kind: pl.Datetime, capacity: ColumnCapacity) -> pl.Series | None:
    if capacity.family is Family.TIME:
        return series.is_not_null()
    shifted = None
    if kind.time_zone is not None and capacity.family is not Family.INSTANT:
        on_the_wall = series.dt.replace_time_zone(None)
        shifted = on_the_wall != series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        series = on_the_wall
    unit = _UNITS[kind.time_unit]
    if capacity.family is Family.DATE:
        finer: pl.Series = series.to_physical() % (86_400 * 10**unit) != 0
    else:
        result = _finer(series, unit, capacity)
        if result is None:
            return shifted
        finer = result
    return finer if shifted is None else finer | shifted


def _finer(series: pl.Series, unit: int, capacity: ColumnCapacity) -> pl.Series | None:
    """Return which values have more decimal places of a second than the column."""
    if unit <= capacity.places:
        return None
    finer: pl.Series = series.to_physical() % 10 ** (unit - capacity.places) != 0
    return finer
