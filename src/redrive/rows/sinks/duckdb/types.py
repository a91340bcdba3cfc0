"""Types of DuckDB that take values of their own Python type only.

DuckDB would rewrite others, such as the bytes `ü` to the text `\\xC3\\xBC`, some of them only beside certain rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.rows.sinks.exact.capacity import Capacity, Family
from redrive.rows.sinks.values import Convert, Rules, json_text

with require_extra("rows"):
    import polars as pl

_BYTES = (bytes, bytearray, memoryview)
_OF_JSON = "what JSON has: texts, booleans, floats, integers of 64 bits, lists and objects"
_TIMES = (Family.DATE, Family.TIME, Family.TIMESTAMP, Family.INSTANT)
_OF_TEXT = ("UUID", "BIT", "ENUM", "GEOMETRY")


def capacity_of(kind: str) -> Capacity | None:
    """See `Capacity.of`. DuckDB reads `07/04/26` as a day of the year 7, and leaves out the PM of `05:30 PM`."""
    capacity = Capacity.of(kind)
    if capacity is None or capacity.family not in _TIMES:
        return capacity
    return replace(capacity, iso_only=True)


def own_rules(kind: str) -> Rules | None:
    """Return what becomes of values in a column that takes those of its own type only; None for other columns."""
    if kind == "BLOB":
        return {object: _refusal(kind, "bytes"), **dict.fromkeys(_BYTES, bytes), str: _ascii, type(None): None}
    if kind.startswith(_OF_TEXT):
        bits: Convert | None = _bits if kind == "BIT" else None
        return {object: _refusal(kind, "text"), str: bits, UUID: str, type(None): None}
    return None


def text_rules(kind: str) -> Rules:
    """Return what becomes of bytes in a column of text: they are rejected, since nobody knows their encoding."""
    return dict.fromkeys(_BYTES, _refusal(kind, "text; decode bytes in a transform")) if kind == "VARCHAR" else {}


def is_own(dtype: pl.DataType, kind: str) -> bool:
    """Return whether a column of a frame goes into a column of this type without a look at each value."""
    if kind == "BIGNUM":  # DuckDB casts neither decimals nor booleans to it
        return dtype == pl.String or dtype.is_integer()
    if kind == "VARCHAR":
        return dtype != pl.Binary
    if kind == "BLOB":
        return dtype == pl.Binary
    return not kind.startswith(_OF_TEXT) or (dtype == pl.String and kind != "BIT")


def change_within(value: Any, kind: str) -> str | None:
    """Return why a value within a list, struct or map would not be the same; None where it is."""
    rules = own_rules(kind) or {}
    convert = next((rules[base] for base in type(value).__mro__ if base in rules), None)
    if convert is not None:
        try:
            convert(value)
        except (TypeError, ValueError) as error:
            return f"cannot be stored: {error}"
    return None


def variant_rules() -> Rules:
    """Return what becomes of values in a column of the type VARIANT: JSON, of which DuckDB keeps the types.

    It would make a text of a number that stands beside a text.
    """
    plain = dict.fromkeys((dict, list, tuple, str, bool, int, float), _variant)
    return {object: _refusal("VARIANT", _OF_JSON), **plain, type(None): None}


def _variant(value: Any) -> str:
    _see_that_it_is_json(value)
    return json_text(value)


def _see_that_it_is_json(value: Any) -> None:
    if isinstance(value, dict):
        for name, one in value.items():
            _see_that_it_is_json(one)
            if not isinstance(name, str):
                raise TypeError(f"VARIANT takes {_OF_JSON}, not the key {name!r}")
    elif isinstance(value, list | tuple):
        for one in value:
            _see_that_it_is_json(one)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} would be a float")
    elif not (value is None or isinstance(value, str | int | float)) or isinstance(value, Enum):
        raise TypeError(f"VARIANT takes {_OF_JSON}, not {type(value).__name__}")


def _refusal(kind: str, own: str) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise TypeError(f"{kind.partition('(')[0]} takes {own}")

    return refuse


def _ascii(text: str) -> str:
    """A text whose characters are the bytes; DuckDB reads escapes, and rejects other characters."""
    if "\\" in text or not text.isascii():
        raise ValueError("BLOB takes bytes, or ASCII text without a backslash")
    return text


def _bits(text: str) -> str:
    if not text:
        raise ValueError("BIT takes a text of one or more digits 0 and 1")
    return text
