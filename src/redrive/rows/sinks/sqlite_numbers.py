"""Numbers in SQLite. A column of numbers also takes any text, and keeps 15 digits of a number that is not an integer.

Both would happen without a word, so such values are rejected here. Columns of approximate numbers (REAL) round, as they
do in every database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

_NUMBERS = re.compile("INT|REAL|FLOA|DOUB|NUMERIC|DECIMAL|NUMBER", re.IGNORECASE)
_APPROXIMATE = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d+")
_EXACT_DIGITS = 15
_SHORT = _EXACT_DIGITS  # a text of this length cannot have more digits


def holds_numbers(kind: str) -> bool:
    """Return whether a column of this declared type is meant for numbers: DATE and STRING are not, whatever SQLite does
    with numbers in them."""
    return _NUMBERS.search(kind) is not None


def is_kept(number: Decimal) -> bool:
    """Return whether SQLite keeps every digit of a number."""
    return _is_short(number) or (number == number.to_integral_value() and -(2**63) <= number < 2**63)


def column_type(values: Iterable[Any]) -> str:
    """Return the type of a new column of decimals: one of numbers, unless SQLite would cut digits off."""
    decimals = (value for value in values if isinstance(value, Decimal) and value.is_finite())
    return "NUMERIC" if all(map(is_kept, decimals)) else "TEXT"


def number_text(number: Decimal) -> str:
    """Return a decimal as text for a column of numbers: with a fraction of zeros, a long integer would lose digits."""
    if number.is_nan():
        raise ValueError("NaN is not kept as a number")
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_short(number: Decimal) -> bool:
    return len("".join(map(str, number.as_tuple().digits)).strip("0")) <= _EXACT_DIGITS


def check_numbers(name: str, kind: str, values: Sequence[Any], bad: dict[int, str]) -> None:
    """Note the texts among the values of a column of numbers that are not a number, or one that would be changed."""
    kinds = set(map(type, values)) - {type(None)}
    if str not in kinds or (kinds == {str} and _are_short_numbers(values)):
        return
    for place, value in enumerate(values):
        if type(value) is str and (fault := _fault(value, kind)):
            bad.setdefault(place, f"{name}: {value!r} {fault}")


def _are_short_numbers(values: Sequence[str | None]) -> bool:
    """Return whether all texts are numbers that SQLite keeps; the quick test for whole columns."""
    given = [value for value in values if value is not None]
    try:
        whole = sum(map(float, given))
    except ValueError:
        return False
    return isfinite(whole) and max(map(len, given)) <= _SHORT and "_" not in "".join(given)


def _fault(text: str, kind: str) -> str | None:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return f"is not a number, as the column's type {kind} has it"
    if not number.is_finite() or "_" in text:
        return f"is not a number, as the column's type {kind} has it"
    if _APPROXIMATE.search(kind) or (is_kept(number) and (_INTEGER.fullmatch(text.strip()) or _is_short(number))):
        return None
    return f"has more digits than SQLite keeps in a column of type {kind}; a TEXT column keeps them all"
