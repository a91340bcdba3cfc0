"""Values and types of a Parquet dataset: the type of values, values that do not fit it, and the merge of two types.

Arrow would accept more values and change them: the day of a datetime for a date, the bytes of a text for bytes, True
for 1.0, an object without unexpected fields.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.rows.sinks.values import is_fine, is_foreign, native, plain_moment

with require_extra("rows"):
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import types

_DIGITS, _PLACES = 38, 9  # as many digits as there can be, and places enough for the batches to come
_DEEPEST = 64
_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "float",
    Decimal: "decimal",
    str: "text",
    bytes: "bytes",
    bytearray: "bytes",
    memoryview: "bytes",
    dt.date: "date",
    dt.time: "time",
    dt.timedelta: "duration",
    list: "list",
    tuple: "list",
    dict: "object",
}
_FITS: dict[str, Callable[[Any], bool]] = {
    "boolean": types.is_boolean,
    "integer": lambda kind: types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind),
    "float": types.is_float64,
    "decimal": types.is_decimal,
    "text": types.is_string,
    "bytes": lambda kind: types.is_binary(kind) or types.is_fixed_size_binary(kind),
    "date": types.is_date,
    "time": types.is_time,
    "timestamp": lambda kind: types.is_timestamp(kind) and kind.tz is None,
    "instant": lambda kind: types.is_timestamp(kind) and kind.tz is not None,
    "duration": types.is_duration,
    "list": types.is_list,
    "object": lambda kind: types.is_struct(kind) or types.is_map(kind),
}
_TYPES = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "duration": pa.duration("us"),
}
_STEPS = {"s": 1_000_000, "ms": 1_000}  # microseconds of the units that are coarser
_NESTED = {"list", "object"}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema by which batches and files are compared."""
    return pa.schema([(field.name, plain(field.type)) for field in schema])


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without what does not count: how values are packed, and the zone that an instant is shown in."""
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, None if kind.tz is None else "UTC")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, plain(field.type)) for field in kind])
    return kind


def merged(has: pa.DataType, brings: pa.DataType) -> pa.DataType | None:
    """Return the type of a column that has one type when rows of another come; None if they do not go together.

    It stays what it is, except what was only null so far.
    """
    if has == brings or types.is_null(brings):
        return has
    if types.is_null(has):
        return brings
    if types.is_list(has) and types.is_list(brings):
        item = merged(has.value_type, brings.value_type)
        return None if item is None else pa.list_(item)
    if types.is_struct(has) and types.is_struct(brings):
        return _merged_fields(has, brings)
    return has if _may_become(brings, has) else None


def has_nulls(kind: pa.DataType) -> bool:
    """Return whether some part of the type is not known yet."""
    if types.is_list(kind):
        return has_nulls(kind.value_type)
    if types.is_struct(kind):
        return any(has_nulls(field.type) for field in kind)
    return bool(types.is_null(kind))


def is_writable(kind: pa.DataType) -> bool:
    """Return whether Parquet has such a type; it has no object without a field."""
    if types.is_list(kind):
        return is_writable(kind.value_type)
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(is_writable(field.type) for field in kind)
    return not types.is_interval(kind) and not types.is_union(kind)


def _merged_fields(has: pa.DataType, brings: pa.DataType) -> pa.DataType | None:
    known = {field.name: field.type for field in has}
    for field in brings:
        kind = merged(known[field.name], field.type) if field.name in known else None
        if kind is None:
            return None
        known[field.name] = kind
    return pa.struct(list(known.items()))


def _may_become(brings: pa.DataType, has: pa.DataType) -> bool:
    """Return whether values of one type can be of the other as they are; a single one may still be too large for it."""
    if types.is_integer(brings):
        return bool(types.is_integer(has) or types.is_floating(has) or types.is_decimal(has))
    if types.is_timestamp(brings):
        return bool(types.is_timestamp(has)) and (brings.tz is None) == (has.tz is None)
    if types.is_floating(brings):
        return bool(types.is_floating(has)) and has.bit_width >= brings.bit_width
    return any(same(brings) and same(has) for same in (types.is_decimal, types.is_time, types.is_duration))


def kind_of(value: Any) -> str:
    """Return what a value is, in a word; a type that has no place in Parquet is called by its name."""
    if isinstance(value, dt.datetime):
        return "timestamp" if value.tzinfo is None else "instant"
    if isinstance(value, dt.time) and value.tzinfo is not None:
        return "a time of day with an offset"
    return next((_KINDS[base] for base in type(value).__mro__ if base in _KINDS), f"<{type(value).__name__}>")


def kinds_of(values: Sequence[Any]) -> Counter[str]:
    """Return what the values are that are not None, and how many of each."""
    counts = Counter(map(type, values))
    counts.pop(type(None), None)
    if any(issubclass(entry, dt.datetime | dt.time) for entry in counts):
        return Counter(kind_of(value) for value in values if value is not None)
    kinds: Counter[str] = Counter()
    for item, count in counts.items():
        kinds[kind_of(next(value for value in values if type(value) is item))] += count
    return kinds


def plain_values(values: Sequence[Any]) -> tuple[Sequence[Any], dict[int, str]]:
    """UUIDs as texts, which every reader of Parquet knows, and numpy's values as Python's, however deep they stand.

    What is nested too deep is None, and named by its place.
    """
    if not any(
        kind in (UUID, list, tuple, dict) or is_foreign(kind) or is_fine(kind) for kind in set(map(type, values))
    ):
        return values, {}
    deep = {
        place: f"it is nested more than {_DEEPEST} deep"
        for place, value in enumerate(values)
        if _is_deeper(value, _DEEPEST)
    }
    return [None if place in deep else _plain(value) for place, value in enumerate(values)], deep


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, list | tuple | dict):
        return False
    return not depth or any(
        _is_deeper(item, depth - 1) for item in (value.values() if isinstance(value, dict) else value)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    with suppress(TypeError, ValueError):
        if is_foreign(type(value)):
            return native(value)
        if is_fine(type(value)):
            return plain_moment(value)
    return value


def type_of_most(values: Sequence[Any], kinds: Counter[str]) -> pa.DataType:
    """Return the type of all the values together; where they do not go together, that of most of them."""
    kind = type_of(values)
    if kind is not None:
        return kind
    main = kinds.most_common(1)[0][0]
    alike = [value for value in values if value is not None and kind_of(value) == main]
    if main == "object":  # those of most have the same fields
        names = Counter(map(frozenset, alike)).most_common(1)[0][0]
        alike = [value for value in alike if value.keys() == names]
    kind = type_of(alike)
    if kind is not None:
        return kind
    counts = Counter(item for item in (type_of([value]) for value in alike) if item is not None)
    return counts.most_common(1)[0][0] if counts else pa.null()


def type_of(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of all the values together; None if there is none."""
    kinds = set(kinds_of(values))
    if not kinds:
        return pa.null()
    for wider in ("float", "decimal"):
        if kinds == {"integer", wider}:
            kinds = {wider}
    if len(kinds) > 1:
        return None
    kind = kinds.pop()
    present = [value for value in values if value is not None]
    if kind == "list":
        item = type_of([part for value in present for part in value])
        return None if item is None else pa.list_(item)
    if kind == "object":
        return _type_of_objects(present)
    return _decimal(present) if kind == "decimal" else _TYPES.get(kind)


def _type_of_objects(values: Sequence[dict[Any, Any]]) -> pa.DataType | None:
    names = dict.fromkeys(name for value in values for name in value)
    if not all(isinstance(name, str) for name in names) or any(len(value) < len(names) for value in values):
        return None  # a field that an object lacks would be one that is null
    fields = [(name, type_of([value.get(name) for value in values])) for name in names]
    if any(kind is None for _, kind in fields):
        return None
    result = pa.struct(fields)
    return result if is_writable(result) else None


def _decimal(values: Iterable[Any]) -> pa.DataType:
    exponents = [value.as_tuple().exponent for value in values if isinstance(value, Decimal)]
    places = max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)
    return pa.decimal128(_DIGITS, min(_DIGITS, max(_PLACES, places)))


def misfits(values: Sequence[Any], kinds: Counter[str], kind: pa.DataType) -> dict[int, str]:
    """Return the places of values that are of another type, and what is wrong with each."""
    if all(item not in _NESTED and _fits(item, kind) for item in kinds) and not _is_coarse(kind):
        return {}
    faults = ((place, _fault(value, kind)) for place, value in enumerate(values))
    return {place: fault for place, fault in faults if fault is not None}


def _fits(value_kind: str, kind: pa.DataType) -> bool:
    return value_kind in _FITS and bool(_FITS[value_kind](kind))


def _fault(value: Any, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    value_kind = kind_of(value)
    if value_kind not in _FITS:
        return f"{value_kind} is nothing that Parquet holds"
    if not _fits(value_kind, kind):
        return f"{value_kind} where the column holds {kind}"
    if value_kind == "list":
        return next((fault for item in value if (fault := _fault(item, kind.value_type))), None)
    if value_kind == "object":
        return _fault_of_object(value, kind)
    if _is_coarse(kind) and _microseconds(value) % _STEPS[kind.unit]:
        return f"{value} is finer than {kind}"
    return None


def _is_coarse(kind: pa.DataType) -> bool:
    """Return whether Arrow would truncate microseconds for a type of times."""
    return getattr(kind, "unit", None) in _STEPS


def _microseconds(value: dt.datetime | dt.time | dt.timedelta) -> int:
    return value.microseconds if isinstance(value, dt.timedelta) else value.microsecond


def with_pairs(value: Any, kind: pa.DataType) -> Any:
    """Return the value with pairs for its maps, as Arrow takes them."""
    if value is None:
        return None
    if types.is_map(kind):
        return [(with_pairs(key, kind.key_type), with_pairs(item, kind.item_type)) for key, item in value.items()]
    if types.is_list(kind):
        return [with_pairs(item, kind.value_type) for item in value]
    if types.is_struct(kind):
        return {field.name: with_pairs(value[field.name], field.type) for field in kind}
    return value


def _fault_of_object(value: dict[Any, Any], kind: pa.DataType) -> str | None:
    if types.is_map(kind):
        if None in value:
            return "a map has no key that is null"
        own_types = (kind.key_type, kind.item_type)
        parts = ((part, own) for pair in value.items() for part, own in zip(pair, own_types, strict=True))
        return next((fault for part, own in parts if (fault := _fault(part, own))), None)
    known = {field.name: field.type for field in kind}
    for name, item in value.items():
        if name not in known:
            return f"{name!r} is no field of the column, which holds {kind}"
        if fault := _fault(item, known[name]):
            return f"{name}: {fault}"
    lacking = next((name for name in known if name not in value), None)
    if lacking is None:
        return None
    return (
        f"the object has no {lacking!r}, which would be null in the column, which holds {kind}: "
        "set it to None where that is meant, or write objects of several shapes as JSON text"
    )
