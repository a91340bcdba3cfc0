"""What a column can hold exactly: the precision and scale of numbers, times, texts, read from the name of its type.

PostgreSQL and DuckDB use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from redrive.rows.batch import Outgoing

_FIXED = re.compile(r"\s*(?:numeric|decimal|dec|number)\s*\(\s*\d+\s*(?:,\s*(-?\d+)\s*)?\)\s*", re.IGNORECASE)
_LONGEST = 38  # digits of a DECIMAL in most databases
_USUAL_PLACES = 10
_INTEGER = re.compile(r"u?(?:tiny|small|big|huge)?int(?:eger)?|bignum")
_TIMED = re.compile(
    r"(?P<base>timestamp|time)(?P<ending>tz|_s|_ms|_ns|tz_ns)?(?:\s*+\((?P<places>\d)\))?\s*+"
    r"(?P<zone>with(?:out)? time zone)?"
)
_INTERVAL = re.compile(
    r"interval(?: (?:(?P<highest>\w+) to )?(?P<lowest>year|month|day|hour|minute|second))?(?:\s*\((?P<places>\d)\))?"
)
_ENDINGS = {"_s": 0, "_ms": 3, "_ns": 9, "tz_ns": 9}
_MICROSECONDS = 6


def scale_of(kind: str) -> int | None:
    """Return the decimal places that a column of this type keeps; None if it keeps all, or is not of this kind."""
    match = _FIXED.fullmatch(kind)
    return int(match[1] or 0) if match else None


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

    None if a number has more digits than a DECIMAL holds; then a text keeps them all.
    """
    if name in rows.digits:
        return rows.digits[name]
    whole, places = _digits(rows.values(name))
    if whole + places > _LONGEST:
        return None
    return _LONGEST, max(places, min(_USUAL_PLACES, _LONGEST - whole))


def _digits(values: Iterable[Any]) -> tuple[int, int]:
    """Return how many digits the numbers have before and after the decimal point, at most."""
    whole = places = 0
    for value in values:
        number = number_of(value)
        if number:
            whole, places = max(whole, number.adjusted() + 1), max(places, decimal_places(number))
    return whole, places


def number_of(value: Any) -> Decimal | None:
    """Return a value as the finite number that it is written as; None if it is not one."""
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


class Family(StrEnum):
    """Types that change values in the same way."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    """With a fixed number of decimal places."""
    FLOAT = "float"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"
    """A timestamp with a zone."""
    DATE = "date"
    TIME = "time"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class ColumnCapacity:
    """What a column can hold: a value that has more to it would be changed on the way in."""

    type: str
    """As the database writes it."""
    family: Family
    places: int = 0
    """Decimal places: of a number, or of the seconds of a time."""
    bits: int = 64
    """Of a float."""
    zoned: bool = False
    """Whether a time of day keeps its offset from UTC."""
    lowest: str = ""
    """The last unit that an interval keeps, such as "day"; empty where it keeps seconds."""
    is_minutes: bool = False
    """Whether an interval reads two numbers such as 1:02 as minutes and seconds."""
    has_own_signs: bool = False
    """Whether a minus is only for the part of an interval that it stands before, in whatever session."""
    iso_only: bool = False
    """Whether texts of dates and times must have the form of ISO 8601: others are read otherwise, or only in part."""

    @classmethod
    def of(cls, kind: str) -> ColumnCapacity | None:
        """Return the capacity of a column of this type; None if nothing is changed silently."""
        name = kind.strip().lower()
        if (scale := scale_of(name)) is not None:
            return cls(kind, Family.DECIMAL, scale)
        if _INTEGER.fullmatch(name):
            return cls(kind, Family.INTEGER)
        if name in ("real", "float", "double", "double precision"):
            return cls(kind, Family.FLOAT, bits=64 if name.startswith("double") else 32)
        if name in ("boolean", "date"):
            return cls(kind, Family(name))
        if (interval := _INTERVAL.fullmatch(name)) is not None:
            places = int(interval["places"]) if interval["places"] else _MICROSECONDS
            lowest = interval["lowest"] if interval["lowest"] != "second" else None
            is_minutes = interval["highest"] == "minute"
            return cls(kind, Family.INTERVAL, places, lowest=lowest or "", is_minutes=is_minutes)
        found = _TIMED.fullmatch(name)
        return None if found is None else _timed(kind, found)


def _timed(kind: str, found: re.Match[str]) -> ColumnCapacity:
    ending = found["ending"] or ""
    zoned = ending.startswith("tz") or found["zone"] == "with time zone"
    places = int(found["places"]) if found["places"] else _ENDINGS.get(ending, _MICROSECONDS)
    if found["base"] == "time":
        return ColumnCapacity(kind, Family.TIME, places, zoned=zoned)
    return ColumnCapacity(kind, Family.INSTANT if zoned else Family.TIMESTAMP, places)
