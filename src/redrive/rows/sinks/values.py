"""Values as a driver takes them, column by column, so that only those that need it are touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import orjson

_NAT = -(2**63)  # numpy's number for a moment that is none
# Moments are written by Python: orjson crashes where their zone raises.
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
Convert = Callable[[Any], Any]
Rules = Mapping[type, Convert | None]
"""What becomes of values of a type and of those derived from it; one that is not named, or has None, stays as it is."""


def json_text(value: Any) -> str:
    """Return a value as JSON, its numbers exact."""
    try:
        text = orjson.dumps(value, _beyond_json, _OPTIONS).decode()
    except TypeError:  # an integer of more than 64 bits, or something JSON has no word for
        return orjson.dumps(_exact(value), _beyond_json, _OPTIONS).decode()
    if "null" in text:  # which is written for NaN, too
        _exact(value)
    return text


def json_of_str(text: str) -> str:
    """Return a str as JSON: the text of an object or array as it is, anything else as a JSON string."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
        else:
            return text
    return json_text(text)


def _beyond_json(value: Any) -> Any:
    """Return what a value is in JSON that is none of JSON's own."""
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value))
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, date) or (isinstance(value, time) and value.tzinfo is None):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if is_foreign(type(value)):
        return native(value)
    name = "bytes" if isinstance(value, bytes | bytearray | memoryview) else type(value).__name__
    raise TypeError(f"{value if isinstance(value, Decimal) else name} cannot stand in JSON")


def _exact(value: Any) -> Any:
    """Return a value with nothing in it that JSON would bend or only Python can write; it raises where there is."""
    if isinstance(value, dict):
        return {str(name) if type(name) is int else name: _exact(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_exact(item) for item in value]
    if isinstance(value, Enum):
        return _exact(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot stand in JSON")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(value))
    if isinstance(value, Decimal | timedelta | bytes | bytearray | memoryview) or is_foreign(type(value)):
        made = _beyond_json(value)
        return _exact(made) if is_foreign(type(value)) else made
    return value


def is_foreign(kind: type) -> bool:
    """Return whether values of a type are numpy's, which drivers take for something else or not at all."""
    return kind.__module__ == "numpy" and hasattr(kind, "tolist")


def native(value: Any) -> Any:
    """Return a value of numpy as Python has it; a moment with nanoseconds, which Python does not have, is a text."""
    if value.dtype.kind in "mM":
        micro = value.astype(f"{value.dtype.kind}8[us]")
        nothing = value.astype("i8") == _NAT
        if ((micro != value) & ~nothing).any():
            return _fine(value)
        value = micro  # of nanoseconds Python has only the number
    made = value.tolist()
    if is_foreign(type(made)):
        raise TypeError("Python has no such number")
    return made


def _fine(value: Any) -> Any:
    """Moments of numpy with nanoseconds, or finer."""
    if value.dtype.kind == "m":
        raise ValueError(f"{value} is finer than microseconds")
    texts = value.astype(str).tolist()
    return texts.replace("T", " ") if isinstance(texts, str) else texts


def is_fine(kind: type) -> bool:
    """Return whether moments of a type have nanoseconds, as those of pandas."""
    return issubclass(kind, datetime) and hasattr(kind, "nanosecond")


def plain_moment(value: datetime) -> datetime | str:
    """Return a moment of a class that knows nanoseconds, as pandas': a text where it has some."""
    if str(value) == "NaT":
        raise ValueError("NaT is not a moment")
    if value.nanosecond:  # type: ignore[attr-defined]
        return value.isoformat(" ")
    return datetime.combine(value.date(), value.timetz().replace(fold=value.fold))


NESTED: Rules = dict.fromkeys((dict, list, tuple, set, frozenset), json_text)


def adapt_columns(columns: list[Sequence[Any]], rules: Sequence[Rules]) -> dict[int, str]:
    """Put what a driver takes in the place of each column that needs it; the faults by row."""
    bad: dict[int, str] = {}
    for number, (values, rule) in enumerate(zip(columns, rules, strict=False)):
        kinds = set(map(type, values))
        if any(issubclass(kind, Decimal) for kind in kinds):
            columns[number] = _without_signaling(values, bad)
        needed = {kind: convert for kind in kinds if (convert := _rule(kind, rule)) is not None}
        if needed:
            columns[number] = list(_converted(columns[number], needed, bad))
    return bad


def not_signaling(value: Any) -> Any:
    """Return the value; raise where it is a signaling NaN, which some drivers write as NaN and others not at all."""
    if isinstance(value, Decimal) and value.is_snan():
        raise ValueError(f"{value} is a signaling NaN, which no database has")
    return value


def _without_signaling(values: Sequence[Any], bad: dict[int, str]) -> Sequence[Any]:
    if not any(isinstance(value, Decimal) and value.is_snan() for value in values):
        return values
    return list(_converted(values, dict.fromkeys(set(map(type, values)), not_signaling), bad))


def _converted(values: Iterable[Any], needed: Mapping[type, Convert], bad: dict[int, str]) -> Iterable[Any]:
    for place, value in enumerate(values):
        convert = needed.get(type(value))
        try:
            yield value if convert is None else convert(value)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            bad.setdefault(place, f"{type(value).__name__} cannot be stored: {error}")
            yield None


def _rule(kind: type, rules: Rules) -> Convert | None:
    if is_foreign(kind):
        return lambda value: _followed(native(value), rules)
    if is_fine(kind):
        return lambda moment: _followed(plain_moment(moment), rules)
    if issubclass(kind, Enum):
        return lambda member: _followed(member.value, rules)
    return next((rules[base] for base in kind.__mro__ if base in rules), None)


def _followed(value: Any, rules: Rules) -> Any:
    convert = _rule(type(not_signaling(value)), rules)
    return value if convert is None else convert(value)
