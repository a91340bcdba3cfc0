"""Frames of records, without losing or bending a value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Record
from redrive.rows.sinks.values import json_text

with require_extra("rows"):
    import polars as pl

# polars takes a second over a value of 150 levels, and one that contains itself would end the process.
_DEEPEST = 64
_LARGEST = 127  # bits of an integer, beside its sign
_EXACT_IN_FLOAT = 53
_CONTAINERS = (dict, list, tuple)
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, RuntimeError, pl.exceptions.PolarsError)
_KINDS: dict[type, str] = {
    bool: "a boolean",
    **dict.fromkeys((int, float, Decimal), "a number"),
    str: "a text",
    **dict.fromkeys((bytes, bytearray), "bytes"),
    date: "a date",
    time: "a time of day",
    timedelta: "a duration",
    **dict.fromkeys((list, tuple), "a list"),
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class UnframeableValue:
    """A value that no frame can hold, not even as a text.

    place, column  where it stands
    why            what is wrong with it, in words that name the column
    """

    place: int
    column: str
    why: str


def of_records(records: Sequence[Record]) -> pl.DataFrame:
    """A frame of records; values of several types in one column become text, as a CSV file would have them."""
    frame, misfits = framed(records)
    if misfits:
        raise ValueError(misfits[0].why)
    return frame


def framed(
    records: Sequence[Record], columns: Iterable[str] | None = None, *, one_kind: bool = False
) -> tuple[pl.DataFrame, list[UnframeableValue]]:
    """A frame of records, or of some columns of them, and the values that have no place in it: they are null there.

    one_kind  values of another kind than most of their column have no place; otherwise all become text
    """
    names = dict.fromkeys(name for record in records for name in record) if columns is None else columns
    misfits: list[UnframeableValue] = []
    series = []
    for name in names:
        values = [record.get(name) for record in records]
        _remove_deep(name, values, misfits)
        if one_kind:
            _remove_other_kinds(name, values, misfits)
        series.append(_series(name, values, misfits))
    return pl.DataFrame(series), misfits


def records_of(frame: pl.DataFrame) -> list[Record]:
    """The rows of a frame as records; a time with nanoseconds, which Python does not have, is a text."""
    fine = [name for name, dtype in frame.schema.items() if has_nanoseconds(dtype)]
    records = frame.to_dicts()
    for name in fine:
        for record, value in zip(records, values_of(frame.get_column(name)), strict=True):
            record[name] = value
    return records


def iter_records(frame: pl.DataFrame) -> Iterator[Record]:
    """The rows of a frame as records, made when their turn comes."""
    if not any(map(has_nanoseconds, frame.dtypes)):
        return frame.iter_rows(named=True)
    return (record for piece in frame.iter_slices() for record in records_of(piece))


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a frame as tuples, of the values that records have."""
    if not any(map(has_nanoseconds, frame.dtypes)):
        return frame.rows()
    return list(zip(*map(values_of, frame.iter_columns()), strict=True))


def values_of(series: pl.Series) -> list[Any]:
    """The values of a column as Python has them; a time with nanoseconds, which Python does not have, is a text."""
    kind = series.dtype
    if not has_nanoseconds(kind):
        return series.to_list()
    if isinstance(kind, pl.Struct):
        fields = [values_of(series.struct.field(field.name)) for field in kind.fields]
        names = [field.name for field in kind.fields]
        given = series.is_not_null().to_list()
        rows = zip(*fields, strict=True)
        return [dict(zip(names, row, strict=True)) if there else None for there, row in zip(given, rows, strict=True)]
    if isinstance(kind, pl.Map):
        entries = values_of(series.map.entries())
        return [None if some is None else {one["key"]: one["value"] for one in some} for some in entries]
    if isinstance(kind, pl.List | pl.Array):
        return [None if inner is None else values_of(inner) for inner in series]
    values = series.to_list()
    for place in (series.to_physical() % 1_000 != 0).arg_true():
        values[place] = _fine_text(series.slice(place, 1))
    return values


def _fine_text(moment: pl.Series) -> str:
    """A time with nanoseconds; in UTC where the offset has seconds, as in the past, which the text would leave out."""
    if isinstance(moment.dtype, pl.Datetime) and moment.dtype.time_zone is not None:
        offset = moment.dt.base_utc_offset() + moment.dt.dst_offset()
        if offset.item().seconds % 60:
            moment = moment.dt.convert_time_zone("UTC")
    text: str = moment.dt.to_string("iso").item()
    return text


def has_nanoseconds(kind: Any) -> bool:
    """Whether values of a type may have more than microseconds."""
    if isinstance(kind, pl.Struct):
        return any(has_nanoseconds(field.dtype) for field in kind.fields)
    if isinstance(kind, pl.List | pl.Array):
        return has_nanoseconds(kind.inner)
    if isinstance(kind, pl.Map):
        return has_nanoseconds(kind.key) or has_nanoseconds(kind.value)
    return kind == pl.Time or (isinstance(kind, pl.Datetime | pl.Duration) and kind.time_unit == "ns")


def _remove_other_kinds(name: str, values: list[object], misfits: list[UnframeableValue]) -> None:
    """Set values to None that are of another kind than most, or than the first where no kind has most."""
    types = set(map(type, values)) - {type(None)}
    kinds = {one: _kind(next(value for value in values if type(value) is one)) for one in types}
    has_times = any(issubclass(one, datetime) for one in types)
    if not has_times and len(set(kinds.values())) < 2:
        return
    own = [None if value is None else _kind(value) if has_times else kinds[type(value)] for value in values]
    counts = Counter(kind for kind in own if kind is not None)
    main = counts.most_common(1)[0][0]
    if len(counts) < 2:
        return
    for place, kind in enumerate(own):
        if kind is not None and kind != main:
            misfits.append(UnframeableValue(place, name, f"{name}: {kind}, where most rows of the batch have {main}"))
            values[place] = None


def _kind(value: object) -> str:
    """What values of a column must have in common to be kept as they are; numbers are kept, as text if need be."""
    if isinstance(value, datetime):
        return "a time without a zone" if value.tzinfo is None else "a time with a zone"
    kind = next((_KINDS[base] for base in type(value).__mro__ if base in _KINDS), None)
    if kind is not None:
        return kind
    try:
        dtype = pl.Series([value]).dtype  # numpy's values are those of Python
    except _REFUSALS:
        return "a text"
    if dtype.is_numeric():
        return "a number"
    known = ((pl.Boolean, bool), (pl.Binary, bytes), (pl.Date, date), (pl.Time, time), (pl.Duration, timedelta))
    plain = next((_KINDS[python] for polars, python in known if dtype == polars), None)
    return plain or ("a time without a zone" if dtype == pl.Datetime else "a text")


def _remove_deep(name: str, values: list[object], misfits: list[UnframeableValue]) -> None:
    """Set values to None that polars cannot nest."""
    if any(issubclass(kind, _CONTAINERS) for kind in set(map(type, values))):
        for place, value in enumerate(values):
            if isinstance(value, _CONTAINERS) and _is_deep(value):
                misfits.append(UnframeableValue(place, name, f"{name}: nested too deep, or within itself"))
                values[place] = None


def _series(name: str, values: list[object], misfits: list[UnframeableValue]) -> pl.Series:
    typed = _typed(name, values)
    if typed is not None:
        return typed
    known = len(misfits)
    texts: list[str | None] = []
    for place, value in enumerate(values):
        try:
            texts.append(_text(value))
        except (TypeError, ValueError, RecursionError) as error:
            misfits.append(UnframeableValue(place, name, f"{name}: {_why(value, error)}"))
            texts.append(None)
            values[place] = None
    # The other values need not become text for those that cannot be any.
    typed = _typed(name, values) if len(misfits) > known else None
    return pl.Series(name, texts, dtype=pl.String) if typed is None else typed


def _typed(name: str, values: list[object]) -> pl.Series | None:
    """The values in a type that holds each of them as it is; None where there is no such type."""
    types = set(map(type, values)) - {type(None)}
    if len(types) > 1 and bool in types:  # polars takes True for 1
        return None
    if len(types) > 1 and Decimal in types:  # polars takes a Decimal for a float beside floats
        return None
    if any(map(_is_bent, values)):
        return None
    if bytearray in types:  # polars takes it for a text beside bytes
        values = [bytes(value) if isinstance(value, bytearray) else value for value in values]
    largest = _EXACT_IN_FLOAT if float in types else _LARGEST
    if int in types and any(type(value) is int and value.bit_length() > largest for value in values):
        return None
    try:
        # Whether polars takes integers beside floats hangs on which come first.
        series = pl.Series(name, values, dtype=pl.Float64 if types == {int, float} else None, strict=True)
    except (*_REFUSALS, pl.exceptions.PanicException):
        return None
    if series.dtype == pl.Object:  # with which polars can do nothing
        return None
    # Objects of several shapes would lose the fields that the first one lacks, Decimals of many digits be null.
    may_lose = series.dtype.is_nested() or series.dtype.is_decimal()
    return series if not may_lose or series.to_list() == values else None


def _is_bent(value: object) -> bool:
    """Whether polars would change the value, or end the run: a time of day with an offset, a Decimal NaN."""
    if isinstance(value, time):
        return value.tzinfo is not None
    return isinstance(value, Decimal) and not value.is_finite()


def _is_deep(value: Any) -> bool:
    """Whether containers within containers go too deep; those of a value within itself never end."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [
            one
            for container in level
            for one in (container.values() if isinstance(container, dict) else container)
            if isinstance(one, _CONTAINERS)
        ]
        if not inner:
            return False
        level = list({id(one): one for one in inner}.values())  # one that is there twice is looked at once
    return True


def _text(value: object) -> str | None:
    """The value as a text; raises where there is none."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, _CONTAINERS):
        text = _json(value)
    else:
        kind = type(value)
        if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
            raise TypeError(f"{kind.__name__} has no text of its own")  # but that of its address
        text = str(value)
    text.encode()
    return text


def _json(value: object) -> str:
    """A container as JSON, its numbers exactly; what has no place in JSON is a text in it."""
    try:
        return json_text(value)
    except (TypeError, ValueError):
        return json.dumps(value, ensure_ascii=False, default=_text)


def _why(value: object, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half a character, which is no Unicode"
    if isinstance(value, int):
        return "a number of thousands of digits"
    return f"a value of the type {type(value).__name__}, which cannot be written as text"
