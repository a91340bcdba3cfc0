"""Making of a column what a schema wants, without bending a value: what does not fit becomes null.

Text is read as pydantic reads it: blanks around a number or a date do not count, dates and times are ISO 8601. A guess
at the day and the month, half a number or an invented time zone would be worse than a row in quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from functools import partial
from typing import Any, Literal

from redrive._internal.optional import require_extra
from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family
from redrive.rows.sinks.exact.columns import find_changes
from redrive.rows.sinks.exact.values import change_of
from redrive.rows.to_polars import REFUSALS, values_of

with require_extra("rows"):
    import polars as pl

_TRUTHS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
# Those without a fraction come first: polars reads them seven times as fast.
_MOMENTS = (
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d",
)
_ZONED_MOMENTS = ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%SZ", "%+", "%Y-%m-%dT%H:%M%#z", "%Y-%m-%d %H:%M%#z")
_TIMES = ("%H:%M:%S", "%H:%M:%S%.f", "%H:%M")
_PLACES = {"ms": 3, "us": 6, "ns": 9}  # of a second
_LONGEST_SPAN = timedelta(microseconds=2**63 - 1)  # of polars; Python has longer ones
_LEAP_SECOND = ":60"  # polars makes of it the first second of the next minute

_Reading = Callable[[pl.Series], pl.Series]


def fitted(column: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """Return the column in another type, null if a value has no place in it; None if no value of the one has."""
    have = column.dtype
    if have == pl.Null:
        return pl.Series(column.name, [None] * len(column), dtype=dtype)
    if have in (pl.String, pl.Categorical, pl.Enum):
        return _of_text(column.cast(pl.String), dtype)
    if have.is_nested() or dtype.is_nested():
        return _nested(column, dtype) if have.is_nested() and dtype.is_nested() else None
    if dtype == pl.String and have not in (pl.Binary, pl.Object):
        return column.dt.to_string("iso") if have == pl.Duration else column.cast(pl.String)
    if have.is_temporal():
        return _of_temporal(column, dtype)
    if have.is_numeric() or have == pl.Boolean:
        return _of_number(column, dtype)
    return None


def of_values(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return a column of lists, structs or whatever Python has, null if a value is none of the type."""
    if dtype == pl.Object:
        # polars takes the values of enums where the first value is a member of one.
        return pl.Series(name, [object(), *values], dtype=pl.Object).slice(1)
    # Of a text polars would make a list.
    container = dict if isinstance(dtype, pl.Struct) else list | tuple
    values = [value if isinstance(value, container) else None for value in values]
    values = [None if _is_changed_within(value, dtype) else value for value in values]
    return _in_pieces(
        values, lambda some: pl.Series(name, some, dtype=dtype, strict=True), pl.Series(name, [None], dtype)
    )


def type_name(dtype: pl.DataType) -> str:
    """Return a type as it stands in a sentence."""
    match dtype:
        case pl.Decimal():
            return f"Decimal({dtype.precision},{dtype.scale})"
        case pl.Datetime():
            return f"Datetime in {dtype.time_zone}" if dtype.time_zone else "Datetime without a time zone"
        case pl.Duration():
            return "Duration"
        case pl.Enum():
            return f"member of {', '.join(dtype.categories.head(12))}"
    return str(dtype)


def _of_text(texts: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    if dtype in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
        return texts.cast(dtype, strict=False)
    texts = texts.str.strip_chars()
    match dtype:
        case pl.Boolean():
            return texts.str.to_lowercase().replace_strict(_TRUTHS, default=None, return_dtype=pl.Boolean)
        case pl.Decimal():
            return _unchanged(texts, dtype)
        case pl.Date():
            return _of_this_calendar(texts.str.to_date("%Y-%m-%d", strict=False, cache=False))
        case pl.Time():
            converted = _read(texts, [partial(_time, form=form) for form in _TIMES])
            return _without(converted, texts.str.contains(_LEAP_SECOND, literal=True))
        case pl.Datetime():
            return _moments(texts, dtype)
        case pl.Duration():
            return _durations(texts, dtype)
    if dtype.is_float():
        return _floats(texts, dtype)
    return texts.cast(dtype, strict=False) if dtype.is_numeric() else None


def _floats(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Numbers that the float holds as written; one with an exponent beyond Python's is never infinite or zero."""
    converted = _unchanged(texts, dtype)
    converted = _without(converted, converted.is_infinite() & texts.str.contains(r"\d"))
    return _without(converted, (converted == 0) & texts.str.contains(r"^[^eE]*[1-9]"))


def _unchanged(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Return the column in another type of numbers, by the rule of the sinks: null if a number would be another one."""
    changed = [place for place, _ in find_changes(column, _capacity(dtype))]
    converted = column.cast(dtype, strict=False)
    return _blanked(converted, changed)


def _blanked(column: pl.Series, places: Sequence[int]) -> pl.Series:
    """Return the column with nulls at these places; `Series.scatter` cannot do that for decimals and lists."""
    if not places:
        return column
    kept = pl.repeat(True, len(column), eager=True).scatter(places, False)
    return column.zip_with(kept, pl.Series([None], dtype=column.dtype))


def _capacity(dtype: pl.DataType) -> ColumnCapacity | None:
    """Return what a type of polars can hold exactly; None if it changes no value silently."""
    name = str(dtype)
    match dtype:
        case pl.Decimal():
            return ColumnCapacity(name, Family.DECIMAL, dtype.scale)
        case pl.Datetime():
            return ColumnCapacity(
                name, Family.INSTANT if dtype.time_zone else Family.TIMESTAMP, _PLACES[dtype.time_unit]
            )
        case pl.Duration():
            return ColumnCapacity(name, Family.INTERVAL, _PLACES[dtype.time_unit])
        case pl.Date():
            return ColumnCapacity(name, Family.DATE)
        case pl.Time():
            return ColumnCapacity(name, Family.TIME, _PLACES["ns"])
    if dtype.is_float():
        return ColumnCapacity(name, Family.FLOAT, bits=32 if dtype == pl.Float32 else 64)
    return ColumnCapacity(name, Family.INTEGER) if dtype.is_integer() else None


def _is_changed_within(value: Any, dtype: Any) -> bool:
    """Return whether a list or struct holds a value that its type would change, or a field that it would drop."""
    if isinstance(dtype, type):  # as in pl.List(pl.Date)
        dtype = dtype()
    if isinstance(dtype, pl.Struct):
        fields = {field.name: field.dtype for field in dtype.fields}
        return isinstance(value, dict) and any(
            name not in fields or _is_changed_within(own, fields[name]) for name, own in value.items()
        )
    if isinstance(dtype, pl.List | pl.Array):
        return isinstance(value, list | tuple) and any(_is_changed_within(own, dtype.inner) for own in value)
    if dtype == pl.Date and isinstance(value, datetime):  # polars panics
        return True
    capacity = _capacity(dtype)
    return capacity is not None and change_of(value, capacity) is not None


def _moments(texts: pl.Series, dtype: pl.Datetime) -> pl.Series:
    unit, zone = dtype.time_unit, dtype.time_zone

    def on_the_wall(form: str) -> _Reading:
        return lambda left: _in_zone(_moment(left, form, unit, None), zone)

    def with_offset(form: str, zone: str) -> _Reading:
        if form.endswith("Z"):
            return lambda left: _in_zone(_moment(left, form, unit, None), "UTC").dt.convert_time_zone(zone)
        return lambda left: _moment(left, form, unit, "UTC").dt.convert_time_zone(zone)

    readings = [on_the_wall(form) for form in _MOMENTS]
    if zone is not None:
        readings += [with_offset(form, zone) for form in _ZONED_MOMENTS]
    converted = _without(_read(texts, readings), texts.str.contains(_LEAP_SECOND, literal=True))
    places = _PLACES[unit]
    if texts.str.contains(".", literal=True).any():
        converted = _without(converted, texts.str.contains(rf"\.\d{{{places}}}\d*[1-9]"))
    return _of_this_calendar(converted)


def _moment(texts: pl.Series, form: str, unit: Literal["ns", "us", "ms"], zone: str | None) -> pl.Series:
    converted = texts.str.to_datetime(form, time_unit=unit, time_zone=zone, strict=False, cache=False)
    if unit == "ns":
        # Nanoseconds range from 1677 to 2262, and overflow beyond that in polars.
        coarse = texts.str.to_datetime(form, time_unit="us", time_zone=zone, strict=False, cache=False)
        return _without(converted, coarse.cast(pl.Datetime("ns", zone), strict=False).is_null())
    return converted


def _time(texts: pl.Series, form: str) -> pl.Series:
    return texts.str.to_time(form, strict=False, cache=False)


def _durations(texts: pl.Series, dtype: pl.Duration) -> pl.Series:
    """As pydantic reads them, `1:30:00` or `PT90M`; polars reads none."""
    from pydantic import TypeAdapter, ValidationError

    read = TypeAdapter(timedelta).validate_python
    known: dict[str, timedelta] = {}
    for text in texts.unique().drop_nulls():
        try:
            span = read(text)
        except ValidationError:
            continue
        if abs(span) <= _LONGEST_SPAN:
            known[text] = span
    values = [None if text is None else known.get(text) for text in texts]
    return _coarser(pl.Series(texts.name, values, dtype=pl.Duration("us")), dtype)


def _read(texts: pl.Series, readings: Sequence[_Reading]) -> pl.Series:
    """Return each text by a reading that can; the one that can read the first text is asked first."""
    sample = texts.drop_nulls().head(1)
    likely = next((reading for reading in readings if not reading(sample).null_count()), readings[0])
    converted = likely(texts)
    for reading in readings:
        left = converted.is_null() & texts.is_not_null()
        if not left.any():
            break
        converted = converted.zip_with(~left, reading(texts.set(~left, None)))
    return converted


def _of_temporal(column: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    have = column.dtype
    match dtype:
        case pl.Datetime() if have == pl.Date:
            return _in_zone(column.cast(pl.Datetime(dtype.time_unit), strict=False), dtype.time_zone)
        case pl.Datetime() if isinstance(have, pl.Datetime):
            if have.time_zone is None:
                return _in_zone(_coarser(column, pl.Datetime(dtype.time_unit)), dtype.time_zone)
            # The time zone that was meant cannot be known.
            return None if dtype.time_zone is None else _coarser(column, dtype)
        case pl.Date() if isinstance(have, pl.Datetime):
            return _without(column.dt.date(), column.dt.time() != time())
        case pl.Duration() if isinstance(have, pl.Duration):
            return _coarser(column, dtype)
    return None


def _coarser(column: pl.Series, dtype: pl.Datetime | pl.Duration) -> pl.Series:
    """In another unit of time; milliseconds have no place for microseconds, nor these for nanoseconds."""
    converted = column.cast(dtype, strict=False)
    return _without(converted, converted.cast(column.dtype, strict=False) != column)


def _of_number(column: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    have = column.dtype
    if dtype == pl.Boolean:
        return _without(column.cast(pl.Boolean), (column != 0) & (column != 1))
    if not dtype.is_numeric() or (dtype.is_decimal() and have == pl.Boolean):
        return None  # pydantic takes no boolean for a Decimal, and polars raises
    if dtype.is_decimal() and have.is_float():
        # The number that the float is written as: of its own digits polars would make others.
        converted = column.cast(pl.String).cast(dtype, strict=False)
        return _without(converted, converted.cast(pl.String).cast(have) != column)
    converted = _unchanged(column, dtype) if have.is_float() else column.cast(dtype, strict=False)
    if dtype.is_integer() or dtype.is_decimal():
        return _without(converted, converted.cast(have, strict=False) != column)
    if have.is_integer():
        return _without(converted, converted.cast(have, strict=False).ne_missing(column))
    return converted if have == pl.Boolean else _unchanged(column, dtype)


def _nested(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    converted = _in_pieces(column, lambda some: some.cast(dtype, strict=True), pl.Series(column.name, [None], dtype))
    changed = [place for place, value in enumerate(values_of(column)) if _is_changed_within(value, dtype)]
    return _blanked(converted, changed)


def _in_pieces(values: Any, made: Callable[[Any], pl.Series], nothing: pl.Series) -> pl.Series:
    """Convert all values at once; if that fails, smaller and smaller pieces. A value that fails is `nothing`."""
    try:
        return made(values)
    except REFUSALS:
        middle = len(values) // 2
        if not middle:
            return nothing
        return pl.concat([_in_pieces(some, made, nothing) for some in (values[:middle], values[middle:])])


def _in_zone(moments: pl.Series, zone: str | None) -> pl.Series:
    """Times of a wall clock, on that of a zone; an hour that it shows twice or never is no moment."""
    if zone is None:
        return moments
    return moments.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")


def _of_this_calendar(moments: pl.Series) -> pl.Series:
    """Years of four digits: `26-07-01` is no day of the year 26, and Python ends with 9999."""
    return _without(moments, ~moments.dt.year().is_between(1000, 9999))


def _without(column: pl.Series, bad: pl.Series) -> pl.Series:
    return column.set(bad, None) if bad.any() else column
