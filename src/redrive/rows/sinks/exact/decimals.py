"""Numbers in columns with a fixed number of decimal places: how many they need, and how many a new column gets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

from redrive.rows.batch import Outgoing

_FIXED = re.compile(r"\s*(?:numeric|decimal|dec|number)\s*\(\s*\d+\s*(?:,\s*(-?\d+)\s*)?\)\s*", re.IGNORECASE)
_LONGEST = 38  # digits of a DECIMAL in most databases
_USUAL_PLACES = 10


def scale_of(kind: str) -> int | None:
    """Return the decimal places that a column of this type keeps; None where it keeps all, or is not of this kind."""
    found = _FIXED.fullmatch(kind)
    return int(found[1] or 0) if found else None


def decimal_places(number: Decimal) -> int:
    """Return the decimal places that a finite number needs."""
    return max(0, lowest_place(number)) if number else 0


def lowest_place(number: Decimal) -> int:
    """Return the place of the last digit of a finite number that is not 0: 2 for 0.01, -2 for 100."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    for digit in reversed(digits):
        if digit:
            break
        exponent += 1
    return -exponent


def column_digits(name: str, rows: Outgoing) -> tuple[int, int] | None:
    """Return precision and scale of a new column: the model's, or such that the first rows fit with room for more.

    None where a number has more digits than a DECIMAL holds; then a text keeps them all.
    """
    if name in rows.digits:
        return rows.digits[name]
    whole, places = _digits(rows.values(name))
    if whole + places > _LONGEST:
        return None
    return _LONGEST, max(places, min(_USUAL_PLACES, _LONGEST - whole))


def _digits(values: Iterable[Any]) -> tuple[int, int]:
    """Return how many digits the numbers have before and behind the decimal point, at most."""
    whole = places = 0
    for value in values:
        number = number_of(value)
        if number:
            whole, places = max(whole, number.adjusted() + 1), max(places, decimal_places(number))
    return whole, places


def number_of(value: Any) -> Decimal | None:
    """Return a value as the finite number that it is written as; None where it is not one."""
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    elif isinstance(value, int):
        value = Decimal(value)
    return value if isinstance(value, Decimal) and value.is_finite() else None
