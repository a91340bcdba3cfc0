"""Whether a single value stays the same in a column. This is the rule; `exact` finds the values it must be asked about.

A number is kept by a column of floats where the float, written with as many digits, is the same number.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family, decimal_places, lowest_place, number_of
from redrive.rows.sinks.exact.intervals import HOUR, MINUTE, Interval, interval_text
from redrive.rows.sinks.exact.moments import misread_fault

_CLOCK = re.compile(
    r"^(?P<before>.*?)(?P<hour>\d{1,2}):?(?P<minute>(?<=:)\d\d|(?<=T\d\d)\d\d)"
    r"(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d*))?)?\s*(?P<after>.*)$"
)
_ZONE = re.compile(r"[+-]\d{1,2}(?::?\d\d){0,2}|[a-z]{1,5}(?:[+-]\d+)?|[a-z_]+/[a-z_/+-]+", re.IGNORECASE)
_NO_OFFSET = re.compile(r"z|utc|gmt|[+-]00?(?::?00){0,2}", re.IGNORECASE)
_NO_ZONE = re.compile(r"(?:[ap]m)?\s*\(?(?:ad|bc)?\)?", re.IGNORECASE)
_RELATIVE = re.compile(r"\s*(?:now|today|tomorrow|yesterday|epoch|allballs|[+-]?inf|\+infinity)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*+[+-]?(?:\d++\.?\d*+|\.\d++)\s*+")
# ISO 8601's basic forms, the only bare digits that are a day or a time of day: 20260701, 1030, 103059.
_BASIC_DATE = re.compile(r"\d{8}")
_BASIC_TIME = re.compile(r"\d{4}|\d{6}")
_DATE = re.compile(r"\d[-/]\d")
_LEAP_SECOND = "60"
_BRACKETS = re.compile(r"[\[\]{}\"']")
TIMES = (Family.TIMESTAMP, Family.INSTANT, Family.DATE, Family.TIME, Family.INTERVAL)
_WITH_FORMS = (Family.TIMESTAMP, Family.INSTANT, Family.DATE, Family.TIME)
NOT_TIMES = (int, float, Decimal, dt.timedelta, dt.time)
"""Types whose values a database might take for a time that they are not."""
_OWN: dict[Family, type | tuple[type, ...]] = {
    **dict.fromkeys(TIMES, ()),
    Family.TIME: dt.time,
    Family.INTERVAL: dt.timedelta,
}


def change_of(value: Any, capacity: ColumnCapacity) -> str | None:
    """Return why a value would not be the same in the column; None if it is, or the database rejects it itself."""
    if value is None:
        return None
    if capacity.family in TIMES and isinstance(value, NOT_TIMES) and not isinstance(value, _OWN[capacity.family]):
        return f"is a {type(value).__name__}, not a value of type {capacity.type}"
    if capacity.family in TIMES and isinstance(value, str) and _is_bare_number(value, capacity.family):
        return f"is a number, not a value of type {capacity.type}"
    if capacity.family in TIMES and isinstance(value, str) and _BRACKETS.search(value):
        return f"has brackets or quotes, which {capacity.type} would leave out"
    change = _CHANGES[capacity.family](value, capacity)
    if change is None and capacity.family in _WITH_FORMS and isinstance(value, str):
        return misread_fault(value, capacity)
    return change


def unchecked(value: Any, type_: str, error: Exception) -> str:
    """Return why a value is rejected that the check itself stumbles over."""
    return f"{type(value).__name__} cannot be compared with {type_}: {type(error).__name__}: {error}"


def is_held(number: Decimal, bits: int = 64) -> bool:
    """Return whether the nearest float, written with as many digits, is this number."""
    try:
        near = float(number) if bits == 64 else struct.unpack("f", struct.pack("f", float(number)))[0]
    except OverflowError:
        return False
    if not math.isfinite(near) or (near == 0) != (number == 0):
        return False
    digits = len(number.as_tuple().digits)
    return Decimal(format(near, f".{digits - 1}e")) == number


def _in_integers(value: Any, capacity: ColumnCapacity) -> str | None:
    number = number_of(value)
    if number is None:
        return None
    if decimal_places(number):
        return f"is not a whole number, as {capacity.type} has it"
    if isinstance(value, float) and number != int(value):
        return f"would be changed: as a float it is {int(value)}; pass it as an integer or a text"
    return None


def _in_decimals(value: Any, capacity: ColumnCapacity) -> str | None:
    number = number_of(value)
    if not number or lowest_place(number) <= capacity.places:
        return None
    return f"would be rounded: {capacity.type} keeps {capacity.places} decimal places"


def _in_floats(value: Any, capacity: ColumnCapacity) -> str | None:
    if isinstance(value, float) and (capacity.bits == 64 or _is_single(value)):
        return None
    number = number_of(value)
    if number is None or is_held(number, capacity.bits):
        return None
    return f"would be changed: {capacity.type} has no such number"


def _is_single(value: float) -> bool:
    """Return whether a float has 32 bits, or is not a number."""
    try:
        return not math.isfinite(value) or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


def _in_booleans(value: Any, capacity: ColumnCapacity) -> str | None:
    if isinstance(value, float | Decimal) or (isinstance(value, int) and value not in (0, 1)):
        return f"is neither 0 nor 1, as {capacity.type} has it"
    return None


def _in_timestamps(value: Any, capacity: ColumnCapacity) -> str | None:
    zoned = capacity.family is Family.INSTANT
    if isinstance(value, dt.datetime):
        if not zoned and value.utcoffset():
            return _offset(capacity)
        return _finer(f"{value.microsecond:06}", capacity)
    if not isinstance(value, str):
        return None
    if _RELATIVE.fullmatch(value):
        return _relative(capacity)
    match = _CLOCK.match(value)
    if match is None:
        return None
    if match["second"] == _LEAP_SECOND:
        return f"would be changed: {capacity.type} has no leap seconds"
    if not zoned and _has_offset(match["after"]):
        return _offset(capacity)
    return _finer(match["fraction"] or "", capacity)


def _is_bare_number(value: str, family: Family) -> bool:
    """Return whether a text is a number that a database reads as part of a date: 286.212 as day 212 of year 286."""
    if family is Family.INTERVAL or not _NUMBER.fullmatch(value):
        return False
    basic = _BASIC_TIME if family is Family.TIME else _BASIC_DATE
    return not basic.fullmatch(value.strip())


def _in_dates(value: Any, capacity: ColumnCapacity) -> str | None:
    if isinstance(value, dt.datetime):
        return _timed(capacity) if value.time() != dt.time() or value.utcoffset() else None
    if not isinstance(value, str):
        return None
    if _RELATIVE.fullmatch(value):
        return _relative(capacity)
    match = _CLOCK.match(value)
    if match is None:
        return None
    clock = "".join(match[part] or "" for part in ("hour", "minute", "second", "fraction"))
    return _timed(capacity) if clock.strip("0") or _has_offset(match["after"]) else None


def _in_times(value: Any, capacity: ColumnCapacity) -> str | None:
    if isinstance(value, dt.date):
        return f"has a date, which {capacity.type} does not keep"
    if isinstance(value, dt.time):
        has_offset = value.utcoffset() and not capacity.zoned
        return _offset(capacity) if has_offset else _finer(f"{value.microsecond:06}", capacity)
    if not isinstance(value, str):
        return None
    if _RELATIVE.fullmatch(value):
        return _relative(capacity)
    match = _CLOCK.match(value)
    if match is None and not _DATE.search(value):
        return None
    if match is None or match["before"].strip() not in ("", "T"):
        return f"has a date, which {capacity.type} does not keep"
    if match["second"] == _LEAP_SECOND:
        return f"would be changed: {capacity.type} has no leap seconds"
    after = match["after"].strip()
    if not capacity.zoned and not _NO_ZONE.fullmatch(after) and not _NO_OFFSET.fullmatch(after):
        return _offset(capacity)
    return _finer(match["fraction"] or "", capacity)


def _in_intervals(value: Any, capacity: ColumnCapacity) -> str | None:
    if isinstance(value, dt.timedelta):
        value = interval_text(value)
    if not isinstance(value, str):
        return None
    interval = Interval.of(value)
    if interval is None:
        return (
            f"is not in a form that {capacity.type} reads in full: write 1 day 02:03:04.5, or numbers with their units"
        )
    if interval.is_first_signed and not capacity.has_own_signs:
        return "is ambiguous: write the sign of each part, as in -1 day +02:00:00"
    if interval.is_short_clock and capacity.is_minutes:
        return f"is ambiguous: {capacity.type} reads minutes and seconds; write 00:01:02"
    if _is_cut(interval, capacity.lowest):
        return f"would be cut: {capacity.type} keeps nothing below a {capacity.lowest}"
    return _rounded(capacity) if (interval.microseconds * 10**capacity.places / 10**6).denominator != 1 else None


def _is_cut(interval: Interval, lowest: str) -> bool:
    """Return whether an interval has more than whole units, down to the lowest that is kept."""
    below = {
        "year": (interval.months % 12, interval.days, interval.microseconds),
        "month": (interval.days, interval.microseconds),
        "day": (interval.microseconds,),
        "hour": (interval.microseconds % HOUR,),
        "minute": (interval.microseconds % MINUTE,),
    }
    return any(below.get(lowest, ()))


def _has_offset(after: str) -> bool:
    """Return whether what stands after the time is a zone other than UTC."""
    after = after.strip()
    return bool(_ZONE.fullmatch(after)) and not _NO_OFFSET.fullmatch(after) and not _NO_ZONE.fullmatch(after)


def _finer(fraction: str, capacity: ColumnCapacity) -> str | None:
    if len(fraction.rstrip("0")) <= capacity.places:
        return None
    return _rounded(capacity)


def _rounded(capacity: ColumnCapacity) -> str:
    return f"would be rounded: {capacity.type} keeps {capacity.places} decimal places of a second"


def _offset(capacity: ColumnCapacity) -> str:
    return f"has an offset from UTC, which {capacity.type} does not keep"


def _timed(capacity: ColumnCapacity) -> str:
    return f"has a time of day, which {capacity.type} does not keep"


def _relative(capacity: ColumnCapacity) -> str:
    return f"is a keyword of the database, not a value of type {capacity.type}"


_CHANGES: dict[Family, Callable[[Any, ColumnCapacity], str | None]] = {
    Family.INTEGER: _in_integers,
    Family.DECIMAL: _in_decimals,
    Family.FLOAT: _in_floats,
    Family.BOOLEAN: _in_booleans,
    Family.TIMESTAMP: _in_timestamps,
    Family.INSTANT: _in_timestamps,
    Family.DATE: _in_dates,
    Family.TIME: _in_times,
    Family.INTERVAL: _in_intervals,
}
