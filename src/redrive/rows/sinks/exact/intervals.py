"""Texts of intervals that PostgreSQL and DuckDB read as they are written, by the form of the whole text.

DuckDB drops what stands behind a time of day, and PostgreSQL reads `1.02:03:04` as 1.02 days and 3 hours. So a text is
accepted for the form that it has, and its meaning is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

_LONGEST = 128  # characters
_SECOND = 1_000_000  # microseconds
MINUTE = 60 * _SECOND
HOUR = 60 * MINUTE
_DAY = 24 * HOUR
_MONTHS = {"month": 1, "year": 12, "decade": 120, "century": 1_200, "millennium": 12_000}
_DAYS = {"day": 1, "week": 7}
_MICROSECONDS = {
    **{"hour": HOUR, "minute": MINUTE, "second": _SECOND, "millisecond": 1_000, "microsecond": 1},
}
_SPELLINGS = {
    **dict.fromkeys(("millennium", "millenniums", "millennia"), "millennium"),
    **dict.fromkeys(("century", "centuries"), "century"),
    **dict.fromkeys(("decade", "decades"), "decade"),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), "year"),
    **dict.fromkeys(("mon", "mons", "month", "months"), "month"),
    **dict.fromkeys(("w", "week", "weeks"), "week"),
    **dict.fromkeys(("d", "day", "days"), "day"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "hour"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "minute"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "second"),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), "millisecond"),
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), "microsecond"),
}
_NUMBER = r"\d{1,18}(?:\.\d{1,6})?"
_CLOCK = r"([+-]?)(\d{1,15}):([0-5]?\d)(?::([0-5]?\d(?:\.\d*)?))?"
_PART = re.compile(rf"([+-]?)({_NUMBER})\s*([A-Za-z]+)")
# No sign right behind a word: there it is a hyphen to one reader and a minus to another.
_GAP = re.compile(r"\s*,\s*(?!$)|\s+|(?=\d)")
_TIME = re.compile(_CLOCK)
_YEARS_AND_MONTHS = re.compile(r"([+-]?)(\d{1,9})-(0?\d|1[01])(?:\s+|$)")
_DAYS_AND_TIME = re.compile(rf"([+-]?)(\d{{1,9}})\s+{_CLOCK}")
_ISO_NUMBER = rf"(-?{_NUMBER})"
_ISO = re.compile(
    rf"P(?=[\dT-])(?:{_ISO_NUMBER}Y)?(?:{_ISO_NUMBER}M)?(?:{_ISO_NUMBER}W)?(?:{_ISO_NUMBER}D)?"
    rf"(?:T(?=[\d-])(?:{_ISO_NUMBER}H)?(?:{_ISO_NUMBER}M)?(?:{_ISO_NUMBER}S)?)?"
)
_ISO_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_INFINITE = re.compile(r"[+-]?infinity", re.IGNORECASE)
_Part = tuple[Fraction, str]


@dataclass(frozen=True, slots=True)
class Interval:
    """The meaning of a text."""

    months: int = 0
    days: int = 0
    microseconds: Fraction = Fraction(0)
    is_first_signed: bool = False
    """Whether the first part has a minus, and a later one no sign: by the SQL standard the minus is for the whole."""
    is_short_clock: bool = False
    """Whether a time has no seconds: to an `interval minute to second` its two numbers are minutes and seconds."""

    @classmethod
    def of(cls, text: str) -> Interval | None:
        """Return the meaning of a text; None where a database might read something else, or only a part of the text."""
        text = text.strip(" \t\n\r\f\v")
        if len(text) > _LONGEST or not text.isascii():
            return None
        if text == "@ 0" or _INFINITE.fullmatch(text):
            return cls()
        return _of_iso(text) or _of_parts(text) or _of_standard(text)


def interval_text(value: timedelta) -> str:
    """Return a timedelta as PostgreSQL reads it in whatever session: a sign for each part, as pandas writes it."""
    return re.sub(r"(?<= )(?=\d+:)", "+", str(value).replace(",", ""))


def _of_iso(text: str) -> Interval | None:
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    return _interval(
        [(Fraction(number), unit) for number, unit in zip(found.groups(), _ISO_UNITS, strict=True) if number]
    )


def _of_parts(text: str) -> Interval | None:
    """Return the meaning of `1 day 2 hours`, `1h30m`, `1 day, 2:03:04`, `2:03:04` or `@ 1 day 2 hours ago`."""
    text = text.removeprefix("@").lstrip()
    parts: list[_Part] = []
    signs: list[str] = []
    words: set[str] = set()
    units: set[str] = set()
    at = 0
    while (found := _PART.match(text, at)) is not None:
        sign, number, word = found.groups()
        unit = _SPELLINGS.get(word.lower())
        if unit is None or unit in units:
            return None
        words.add(word)
        units.add(unit)
        signs.append(sign)
        parts.append((_signed(sign, number), unit))
        at = found.end()
        if (gap := _GAP.match(text, at)) is None:
            break
        at = gap.end()
    if "M" in words or ("m" in words and not units.isdisjoint(_MONTHS)):  # which might be months
        return None
    rest = text[at:]
    clock = None if text[:at][-1:].isalpha() else _TIME.fullmatch(rest)
    if clock is not None and units.isdisjoint(_MICROSECONDS):  # DuckDB adds a time to hours, and takes 30:00 for hours
        signs.append(clock[1])
        parts += _time(clock.groups())
    elif parts and rest.lower() == "ago":
        parts = [(-number, unit) for number, unit in parts]
    elif rest or not parts:
        return None
    return _interval(parts, signs, is_short_clock=clock is not None and clock[4] is None)


def _of_standard(text: str) -> Interval | None:
    """Return the meaning of `1-2`, `3 4:05:06` or `+1-2 -3 +4:05:06` by the SQL standard."""
    parts: list[_Part] = []
    signs: list[str] = []
    at = 0
    if (found := _YEARS_AND_MONTHS.match(text)) is not None:
        sign, years, months = found.groups()
        signs.append(sign)
        parts += [(_signed(sign, years), "year"), (_signed(sign, months), "month")]
        at = found.end()
    found = _DAYS_AND_TIME.fullmatch(text, at)
    if found is not None:
        sign, days, *clock = found.groups()
        signs += [sign, clock[0]]
        parts += [(_signed(sign, days), "day"), *_time(clock)]
    elif not parts or at < len(text):
        return None
    interval = _interval(parts, signs, is_short_clock=found is not None and found[6] is None)
    return None if interval is None or interval.is_first_signed else interval


def _time(clock: Sequence[str | None]) -> list[_Part]:
    sign, *numbers = clock
    return [
        (_signed(sign or "", number.removesuffix(".")), unit)
        for number, unit in zip(numbers, ("hour", "minute", "second"), strict=True)
        if number
    ]


def _signed(sign: str, number: str) -> Fraction:
    return Fraction(sign + number)


def _interval(parts: Sequence[_Part], signs: Sequence[str] = (), *, is_short_clock: bool = False) -> Interval | None:
    """Return the sum of parts; None where a part of a month is among them, which databases take for days."""
    months = days = 0
    microseconds = Fraction(0)
    for number, unit in parts:
        if unit in _MONTHS:
            if (number * _MONTHS[unit]).denominator != 1:
                return None
            months += int(number * _MONTHS[unit])
        elif unit in _DAYS:
            whole = int(number * _DAYS[unit])
            days += whole
            microseconds += (number * _DAYS[unit] - whole) * _DAY
        else:
            microseconds += number * _MICROSECONDS[unit]
    is_first_signed = signs[:1] == ["-"] and "" in signs[1:]
    return Interval(months, days, microseconds, is_first_signed, is_short_clock)
