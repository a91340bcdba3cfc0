"""Values as a driver takes them, column by column, so that only those that need it are touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any

import orjson

Convert = Callable[[Any], Any]
Rules = Mapping[type, Convert]
"""What becomes of values of a type and of those derived from it; a type that is not named stays as it is."""


def json_text(value: Any) -> str:
    """A value as JSON, its decimals exact."""
    try:
        return orjson.dumps(value, _beyond_json, orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # an integer of more than 64 bits, or something JSON has no word for
        return json.dumps(value, default=_as_text, allow_nan=False, ensure_ascii=False)


def _beyond_json(value: Any) -> Any:
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value))
    return _as_text(value)


def _as_text(value: Any) -> Any:
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError("bytes cannot stand in JSON")
    return str(value)


NESTED: Rules = dict.fromkeys((dict, list, tuple, set, frozenset), json_text)


def adapt(rows: Sequence[tuple[Any, ...]], rules: Sequence[Rules]) -> tuple[Sequence[tuple[Any, ...]], dict[int, str]]:
    """Rows as a driver takes them, and the faults of those that have a value it cannot be given, by place.

    `rules` holds those of each column.
    """
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    before = list(columns)
    bad = adapt_columns(columns, rules)
    unchanged = all(one is other for one, other in zip(columns, before, strict=True))
    return (rows, bad) if unchanged else (list(zip(*columns, strict=True)), bad)


def adapt_columns(columns: list[Sequence[Any]], rules: Sequence[Rules]) -> dict[int, str]:
    """Put what a driver takes in the place of each column that needs it; the faults by row."""
    bad: dict[int, str] = {}
    for number, (values, rule) in enumerate(zip(columns, rules, strict=False)):
        needed = {kind: convert for kind in set(map(type, values)) if (convert := _rule(kind, rule)) is not None}
        if needed:
            columns[number] = list(_converted(values, needed, bad))
    return bad


def _converted(values: Iterable[Any], needed: Mapping[type, Convert], bad: dict[int, str]) -> Iterable[Any]:
    for place, value in enumerate(values):
        convert = needed.get(type(value))
        try:
            yield value if convert is None else convert(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            bad.setdefault(place, f"{type(value).__name__} cannot be stored: {error}")
            yield None


def _rule(kind: type, rules: Rules) -> Convert | None:
    if issubclass(kind, Enum):
        return lambda member: _followed(member.value, rules)
    return next((rules[base] for base in kind.__mro__ if base in rules), None)


def _followed(value: Any, rules: Rules) -> Any:
    convert = _rule(type(value), rules)
    return value if convert is None else convert(value)
