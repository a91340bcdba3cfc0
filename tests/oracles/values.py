"""Whether a value that was read back is the one that was written, by exact arithmetic of its own.

Numbers are compared as Decimals, times by their nanoseconds. A float holds a number where it is that number when it is
written with as many digits.
"""

import datetime as dt
import json
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

_WIDE = Context(prec=2000, rounding=ROUND_HALF_EVEN, Emax=999_999, Emin=-999_999)
_MOMENT = re.compile(
    r"\s*(?:(\d{4})-(\d\d)-(\d\d))?[ T]?(?:(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?\s*(Z|[+-]\d\d(?::?\d\d)?)?\s*"
)
_BASIC = re.compile(r"\d{4}|\d{6}|\d{8}")  # the basic forms of ISO 8601, without separators: 1030, 103059, 20260701
_TRUE, _FALSE = ("1", "t", "true", "y", "yes", "on"), ("0", "f", "false", "n", "no", "off")


class Moment(str):
    """A timestamp without a zone that was read as a text, because the driver has no nanoseconds."""

    __slots__ = ()


def is_same(given, found):
    """Return whether `found`, as a driver returns it, is `given`."""
    if given is None or found is None:
        return given is None and found is None
    if isinstance(given, bytes) or isinstance(found, bytes):
        return (given.encode() if isinstance(given, str) else given) == found
    if isinstance(found, list | tuple):
        given = json.loads(given.replace("{", "[").replace("}", "]")) if isinstance(given, str) else given
        return len(given) == len(found) and all(map(is_same, given, found))
    if isinstance(found, dict):
        return given.keys() == found.keys() and all(is_same(given[name], found[name]) for name in given)
    if isinstance(found, bool):
        return given in (0, 1) and bool(given) == found if not isinstance(given, str) else _truth(given) == found
    if isinstance(found, Moment):
        return _is_same_time(given, found)
    if isinstance(found, str):
        return _is_same_text(given, found)
    if isinstance(found, int | float | Decimal):
        return _is_same_number(given, found)
    if isinstance(found, dt.timedelta):
        return given == found
    return _is_same_time(given, found)


def _truth(text):
    return True if text.strip().lower() in _TRUE else False if text.strip().lower() in _FALSE else None


def _is_same_text(given, found):
    if isinstance(given, str):
        return given == found
    if isinstance(given, bool):
        return _truth(found) == given
    if isinstance(given, int | float | Decimal):
        return _number(found) == _number(given) or str(given).lower() == found.lower()  # nan, inf
    if isinstance(given, list | dict):
        return _is_same_json(given, json.loads(found, parse_float=Decimal))
    if isinstance(given, dt.timedelta):
        return str(given).replace(",", "") == found.replace(",", "")
    (day, clock, offset), (own_day, own_clock, own_offset) = _parts(given), _parts(found)
    if None not in (day, clock, offset, own_day, own_clock, own_offset):
        return _instant(day, clock, offset) == _instant(own_day, own_clock, own_offset)
    return (day, clock, offset) == (own_day, own_clock, own_offset)


def _is_same_json(given, found):
    if isinstance(given, list):
        return len(given) == len(found) and all(map(_is_same_json, given, found))
    if isinstance(given, int | float | Decimal):
        return _number(given) == _number(found)
    return given == found


def _is_same_number(given, found):
    if isinstance(given, float) and isinstance(found, float) and (given == found or given != given != found != found):
        return True
    number = _number(given)
    if number is None:  # nan, inf
        return str(given).strip().lower()[:3] == str(found).lower()[:3]
    if not isinstance(found, float):
        return Decimal(found) == number
    if not -1e308 < found < 1e308 or (found == 0) != (number == 0):
        return Decimal(repr(found)) == number if abs(found) < float("inf") else False
    last = Decimal((0, (1,), number.as_tuple().exponent))
    # Zeros at the end of a number may be more digits than a float has; its own text has none.
    return Decimal(repr(found)) == number or Decimal(found).quantize(last, context=_WIDE) == number


def _number(value):
    """The number that a value is written as."""
    try:
        if isinstance(value, str) and value.startswith("0x"):  # which databases read
            value = int(value, 0)
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return number if number.is_finite() else None


def _is_same_time(given, found):
    if isinstance(given, int | float | Decimal | dt.timedelta):
        return False
    if isinstance(given, str) and _BASIC.fullmatch(given.strip()):
        given = _in_full(given.strip())
    day, clock, offset = _parts(given) or (None, None, None)
    own_day, own_clock, own_offset = _parts(found)
    if type(found) is dt.date:
        return day == own_day and clock in (None, 0) and not offset
    if isinstance(found, dt.time):
        return day is None and clock == own_clock and (offset or 0) == (own_offset or 0)
    if own_offset is None:
        return (day, clock or 0) == (own_day, own_clock) and not offset
    return _instant(day, clock or 0, offset or 0) == _instant(own_day, own_clock, own_offset)


def _in_full(digits):
    """Return a time of day or a day in the extended form of ISO 8601."""
    if len(digits) == 8:
        return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def _instant(day, clock, offset):
    return day.toordinal() * 86_400 * 10**9 + clock - offset * 60 * 10**9


def _parts(value):
    """Day, nanoseconds since midnight and offset in minutes of a time or its text, each None where it has none."""
    if not isinstance(value, str):
        value = value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
    found = _MOMENT.fullmatch(value)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    date = None if year is None else dt.date(int(year), int(month), int(day))
    clock = None
    if hour is not None:
        seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
        clock = seconds * 10**9 + int((fraction or "").ljust(9, "0")[:9])
    offset = None
    if zone is not None:
        digits = "" if zone == "Z" else zone[1:].replace(":", "").ljust(4, "0")
        offset = 0 if zone == "Z" else (int(digits[:2]) * 60 + int(digits[2:])) * (-1 if zone[0] == "-" else 1)
    return date, clock, offset
