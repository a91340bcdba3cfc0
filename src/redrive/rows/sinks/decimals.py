"""Exact numbers in columns with a fixed number of decimal places.

Databases round such values and report nothing. An exact value (a Decimal, a text) that would change is rejected; a
float is an approximation already and is rounded like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from redrive.rows.batch import Outgoing

if TYPE_CHECKING:
    import polars as pl

_FIXED = re.compile(r"\s*(?:numeric|decimal|dec|number)\s*\(\s*\d+\s*(?:,\s*(-?\d+)\s*)?\)\s*", re.IGNORECASE)
_LONGEST = 38  # digits of a DECIMAL in most databases
_USUAL_PLACES = 10


def scale_of(kind: str) -> int | None:
    """Return the decimal places that a column of this type keeps; None where it keeps all, or is not of this kind."""
    found = _FIXED.fullmatch(kind)
    return int(found[1] or 0) if found else None


def decimal_places(number: Decimal) -> int:
    """Return the decimal places that a finite number needs."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    for digit in reversed(digits):
        if digit:
            break
        exponent += 1
    return max(0, -exponent) if any(digits) else 0


def would_round(value: Any, scale: int) -> bool:
    """Return whether a column that keeps `scale` decimal places would change an exact value."""
    number = _number(value)
    return number is not None and decimal_places(number) > scale


def rounded(series: pl.Series, scale: int) -> Sequence[int]:
    """Return the places of exact values that a column would round; a text that is not a number is none of them."""
    import polars as pl

    if isinstance(series.dtype, pl.Decimal):
        if series.dtype.scale <= scale:
            return ()
        series = series.cast(pl.String)
    if series.dtype != pl.String or scale < 0:
        return ()
    # Only candidates are looked at one by one: a digit that is not 0 behind those that are kept, or an exponent.
    candidates = series.str.contains(rf"\.\d{{{scale}}}\d*[1-9]|[0-9.][eE]").fill_null(False).arg_true().to_list()
    return [place for place in candidates if would_round(series[place], scale)]


def rounded_values(values: Sequence[Any], scale: int) -> Iterator[int]:
    """Return the places of exact values among any others that a column would round."""
    return (place for place, value in enumerate(values) if type(value) in (str, Decimal) and would_round(value, scale))


def rounding_fault(column: str, value: object, scale: int) -> str:
    """Return why a value is rejected."""
    return f"{column}: {value} would be rounded, since the column keeps {scale} decimal places"


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
        number = _number(value)
        if number:
            whole, places = max(whole, number.adjusted() + 1), max(places, decimal_places(number))
    return whole, places


def _number(value: Any) -> Decimal | None:
    """Return an exact value as a finite number; None where it is not one."""
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    elif isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    return value if isinstance(value, Decimal) and value.is_finite() else None
