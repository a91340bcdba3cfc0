"""Conversion between records and polars frames that neither loses nor changes a value; used by all of `rows`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Record
from redrive.rows.sinks.values import json_text

with require_extra("rows"):
    import polars as pl

# polars needs a second for a value of 150 levels, and a value that contains itself would crash the process.
_DEEPEST = 64
_LARGEST = 127  # bits of an integer, beside its sign
_EXACT_IN_FLOAT = 53
_CONTAINERS = (dict, list, tuple)
REFUSALS = (
    *(TypeError, ValueError, AttributeError, OverflowError, RecursionError, RuntimeError),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""What polars raises for values that it does not take."""
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
    """A value that no frame can hold, not even as text.

    place, column  the row and the column of the value
    why            what is wrong with it, including the name of the column
    """

    place: int
    column: str
    why: str


def of_records(records: Sequence[Record]) -> pl.DataFrame:
    """Return a frame of records. Values of several types in one column become text, as in a CSV file."""
    frame, misfits = framed(records)
    if misfits:
        raise ValueError(misfits[0].why)
    return frame


def framed(
    records: Sequence[Record], columns: Iterable[str] | None = None, *, one_kind: bool = False
) -> tuple[pl.DataFrame, list[UnframeableValue]]:
    """Return a frame of records, or of some of their columns, and the values that do not fit: they are null in it.

    one_kind  whether a value of another kind than most of its column does not fit; otherwise all become text
    """
    names = dict.fromkeys(name for record in records for name in record) if columns is None else columns
    misfits: list[UnframeableValue] = []
    series = []
    for name in names:
        values = _without_enums([record.get(name) for record in records])
        _remove_deep(name, values, misfits)
        if one_kind:
            _remove_other_kinds(name, values, misfits)
        series.append(_series(name, values, misfits))
    return pl.DataFrame(series), misfits


def records_of(frame: pl.DataFrame) -> list[Record]:
    """Return the rows of a frame as records. Times with nanoseconds, which Python does not support, become text."""
    nanosecond_names = [name for name, dtype in frame.schema.items() if has_nanoseconds(dtype)]
    records = frame.to_dicts()
    for name in nanosecond_names:
        for record, value in zip(records, values_of(frame.get_column(name)), strict=True):
            record[name] = value
    return records


def iter_records(frame: pl.DataFrame) -> Iterator[Record]:
    """Yield the rows of a frame as records."""
    if not any(map(has_nanoseconds, frame.dtypes)):
        return frame.iter_rows(named=True)
    return (record for piece in frame.iter_slices() for record in records_of(piece))


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a frame as tuples, with the values that records have."""
    if not any(map(has_nanoseconds, frame.dtypes)):
        return frame.rows()
    return list(zip(*map(values_of, frame.iter_columns()), strict=True))


def values_of(series: pl.Series) -> list[Any]:
    """Return the values of a column as Python values. Times with nanoseconds become text."""
    kind = series.dtype
    if not has_nanoseconds(kind):
        return series.to_list()
    if isinstance(kind, pl.Struct):
        fields = [values_of(series.struct.field(field.name)) for field in kind.fields]
        names = [field.name for field in kind.fields]
        is_present = series.is_not_null().to_list()
        rows = zip(*fields, strict=True)
        return [
            dict(zip(names, row, strict=True)) if is_given else None
            for is_given, row in zip(is_present, rows, strict=True)
        ]
    if isinstance(kind, pl.Map):
        entries = values_of(series.map.entries())
        return [None if some is None else {entry["key"]: entry["value"] for entry in some} for some in entries]
    if isinstance(kind, pl.List | pl.Array):
        return [None if inner is None else values_of(inner) for inner in series]
    values = series.to_list()
    for place in (series.to_physical() % 1_000 != 0).arg_true():
        values[place] = _nanosecond_text(series.slice(place, 1))
    return values


def _nanosecond_text(moment: pl.Series) -> str:
    """Return a time with nanoseconds as text; in UTC if its offset has seconds, which the text would omit."""
    if isinstance(moment.dtype, pl.Datetime) and moment.dtype.time_zone is not None:
        offset = moment.dt.base_utc_offset() + moment.dt.dst_offset()
        if offset.item().seconds % 60:
            moment = moment.dt.convert_time_zone("UTC")
    text: str = moment.dt.to_string("iso").item()
    return text


def has_nanoseconds(kind: Any) -> bool:
    """Return whether values of a type may have nanoseconds."""
    if isinstance(kind, pl.Struct):
        return any(has_nanoseconds(field.dtype) for field in kind.fields)
    if isinstance(kind, pl.List | pl.Array):
        return has_nanoseconds(kind.inner)
    if isinstance(kind, pl.Map):
        return has_nanoseconds(kind.key) or has_nanoseconds(kind.value)
    return kind == pl.Time or (isinstance(kind, pl.Datetime | pl.Duration) and kind.time_unit == "ns")


def _without_enums(values: list[object]) -> list[object]:
    """Return the values of members of enums in place of these; polars does so only where the first is a member."""
    if not any(issubclass(kind, Enum) for kind in set(map(type, values))):
        return values
    return [value.value if isinstance(value, Enum) else value for value in values]


def _remove_other_kinds(name: str, values: list[object], misfits: list[UnframeableValue]) -> None:
    """Set values to None whose kind is not the most frequent one; if there is a tie, not that of the first value."""
    types = set(map(type, values)) - {type(None)}
    kinds = {kind: _kind(next(value for value in values if type(value) is kind)) for kind in types}
    has_times = any(issubclass(kind, datetime) for kind in types)
    if not has_times and len(set(kinds.values())) < 2:
        return
    value_kinds = [None if value is None else _kind(value) if has_times else kinds[type(value)] for value in values]
    counts = Counter(kind for kind in value_kinds if kind is not None)
    main_kind = counts.most_common(1)[0][0]
    if len(counts) < 2:
        return
    for place, kind in enumerate(value_kinds):
        if kind is not None and kind != main_kind:
            misfits.append(
                UnframeableValue(place, name, f"{name}: {kind}, where most rows of the batch have {main_kind}")
            )
            values[place] = None


def _kind(value: object) -> str:
    """Return the kind of a value. Values of one kind fit into one column; numbers of several types may become text."""
    if isinstance(value, datetime):
        return "a time without a zone" if value.tzinfo is None else "a time with a zone"
    kind = next((_KINDS[base] for base in type(value).__mro__ if base in _KINDS), None)
    if kind is not None:
        return kind
    try:
        dtype = pl.Series([value]).dtype  # numpy's values are those of Python
    except REFUSALS:
        return "a text"
    if dtype.is_numeric():
        return "a number"
    misfit_count = ((pl.Boolean, bool), (pl.Binary, bytes), (pl.Date, date), (pl.Time, time), (pl.Duration, timedelta))
    plain = next((_KINDS[python] for polars, python in misfit_count if dtype == polars), None)
    return plain or ("a time without a zone" if dtype == pl.Datetime else "a text")


def _remove_deep(name: str, values: list[object], misfits: list[UnframeableValue]) -> None:
    """Set values to None that are nested too deep for polars."""
    if any(issubclass(kind, _CONTAINERS) for kind in set(map(type, values))):
        for place, value in enumerate(values):
            if isinstance(value, _CONTAINERS) and _is_deep(value):
                misfits.append(UnframeableValue(place, name, f"{name}: nested too deep, or within itself"))
                values[place] = None


def _series(name: str, values: list[object], misfits: list[UnframeableValue]) -> pl.Series:
    typed = _typed(name, values)
    if typed is not None:
        return typed
    misfit_count = len(misfits)
    texts: list[str | None] = []
    for place, value in enumerate(values):
        try:
            texts.append(_text(value))
        except (TypeError, ValueError, RecursionError) as error:
            misfits.append(UnframeableValue(place, name, f"{name}: {_explain(value, error)}"))
            texts.append(None)
            values[place] = None
    # Without the values that have no text, the others may fit into a type.
    typed = _typed(name, values) if len(misfits) > misfit_count else None
    return pl.Series(name, texts, dtype=pl.String) if typed is None else typed


def _typed(name: str, values: list[object]) -> pl.Series | None:
    """Return the values as a series that keeps each of them as it is; None if no type does."""
    types = set(map(type, values)) - {type(None)}
    if len(types) > 1 and bool in types:  # polars takes True for 1
        return None
    if len(types) > 1 and Decimal in types:  # polars takes a Decimal for a float beside floats
        return None
    if any(map(_is_changed_by_polars, values)):
        return None
    if has_two_clocks(values, types):  # polars takes the zone of the first value for that of all
        return None
    if bytearray in types:  # polars takes it for a text beside bytes
        values = [bytes(value) if isinstance(value, bytearray) else value for value in values]
    largest = _EXACT_IN_FLOAT if float in types else _LARGEST
    if int in types and any(type(value) is int and value.bit_length() > largest for value in values):
        return None
    try:
        # Whether polars accepts integers and floats in one column depends on which come first.
        series = pl.Series(name, values, dtype=pl.Float64 if types == {int, float} else None, strict=True)
        if series.dtype == pl.Object:  # polars cannot compute with objects
            return None
        # Structs would lose fields that the first one lacks, and Decimals with many digits would become null.
        may_lose = series.dtype.is_nested() or series.dtype.is_decimal()
        return series if not may_lose or series.to_list() == values else None
    except REFUSALS:
        return None


def has_two_clocks(values: Iterable[object], types: Iterable[type]) -> bool:
    """Return whether some of the values are times with a zone, and others times without one.

    types  the types of the values
    """
    if not any(issubclass(kind, datetime) for kind in types):
        return False
    return len({value.tzinfo is None for value in values if isinstance(value, datetime)}) > 1


def _is_changed_by_polars(value: object) -> bool:
    """Return whether polars would change the value or fail: a time of day with an offset, a Decimal NaN."""
    if isinstance(value, time):
        return value.tzinfo is not None
    if isinstance(value, datetime):
        return value.tzinfo is not None and value.year in (MINYEAR, MAXYEAR) and not _has_utc(value)
    return isinstance(value, Decimal) and not value.is_finite()


def _has_utc(value: datetime) -> bool:
    """Return whether a time of a zone is within the years of Python in UTC, too."""
    try:
        value.astimezone(UTC)
    except OverflowError:
        return False
    return True


def _is_deep(value: Any) -> bool:
    """Return whether containers are nested too deep. Those of a value that contains itself are."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [
            value
            for container in level
            for value in (container.values() if isinstance(container, dict) else container)
            if isinstance(value, _CONTAINERS)
        ]
        if not inner:
            return False
        level = list({id(value): value for value in inner}.values())  # a shared value is checked once
    return True


def _text(value: object) -> str | None:
    """Return the value as text. Raise `TypeError` or `ValueError` if it has none."""
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
    """Return a container as JSON with exact numbers. Values that JSON does not have are text in it."""
    try:
        return json_text(value)
    except (TypeError, ValueError):
        return json.dumps(value, ensure_ascii=False, default=_text)


def _explain(value: object, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half a character, which is no Unicode"
    if isinstance(value, int):
        return "a number of thousands of digits"
    return f"a value of the type {type(value).__name__}, which cannot be written as text"
