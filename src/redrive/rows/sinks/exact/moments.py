"""Texts of dates and times that a database reads as they are written, by the form of the whole text.

PostgreSQL drops an offset where the column has no zone, and DuckDB drops whatever stands after a time. So a text is
accepted for the form that it has, not rejected for a form that it should not have.
"""

from __future__ import annotations

import re

from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family

_FLAGS = re.IGNORECASE | re.ASCII
_LONGEST = 128  # characters; PostgreSQL rejects longer ones
_DIGIT = re.compile(r"\d", re.ASCII)
# Words that PostgreSQL reads as another time in each run, also beside a time of day.
_RELATIVE = re.compile(r"(?<![a-z])(?:now|today|tomorrow|yesterday|epoch|allballs)(?![a-z])", _FLAGS)

# ── ISO 8601, and the years that DuckDB itself writes ─────────────────────────────────────────────────────────────────
_ISO_DATE = r"(?:\d{8}|\d{4,6}([-/])\d{1,2}\1\d{1,2}(?: \(BC\))?)"
_ISO_TIME = r"\d{1,2}:\d\d(?::\d\d(?:\.\d*)?)?"
_ISO_UTC = r"(?: ?(?:Z|UTC|GMT|[+-]00(?::?00(?::?00)?)?))?"
_ISO_ZONE = rf"(?:{_ISO_UTC}| ?[+-]\d\d(?::?\d\d(?::?\d\d)?)?| [a-z_]+(?:/[a-z_-]+)+)"
_ISO = {
    Family.DATE: rf"{_ISO_DATE}(?:[T ]{_ISO_TIME}{_ISO_UTC})?",
    Family.TIMESTAMP: rf"{_ISO_DATE}(?:[T ]{_ISO_TIME}{_ISO_UTC})?",
    Family.INSTANT: rf"{_ISO_DATE}(?:[T ]{_ISO_TIME}{_ISO_ZONE})?",
    Family.TIME: rf"{_ISO_TIME}{_ISO_UTC}",
}
_ISO_FORMS = {family: re.compile(rf"\s*{form}\s*", _FLAGS) for family, form in _ISO.items()}
_ISO_TIMETZ = re.compile(rf"\s*{_ISO_TIME}{_ISO_ZONE}\s*", _FLAGS)

# ── What PostgreSQL reads in full in a date or time without a zone ────────────────────────────────────────────────────
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:sun(?:day)?|mon(?:day)?|tue(?:s|sday)?|wed(?:s|nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?)"
_GAP = r"[\s,;.()]*+"
_PART = rf"(?:\d{{1,6}}|{_MONTH})"
_FULL_DATES = (
    *(rf"{_PART}{between}{_PART}{between}\d{{1,6}}(?!\d)" for between in ("-", "/", r"\.")),
    r"\d{4}-\d{3}(?!\d)",  # the day of a year
)
_CLOCK = r"\d{1,2}:\d{1,2}(?::\d{1,2}(?:\.\d*)?)?(?![\d:])"
_UTC = r"(?:(?:z|utc|gmt)(?![a-z\d])|\+00(?::?00){0,2}(?![\d:]))"
# Only after a time of day: after a date, PostgreSQL takes it for a time.
_MINUS = r"(?:\s*-00(?::?00){0,2}(?![\d:]))?"
_NO_MONTH = rf"(?:(?:{_DAY}|ad|bc|at|on)(?![a-z])|{_UTC})"
# Possessive, so that "2026-07-01-05" is not taken apart into another date and a rest that is a number; without groups
# that capture, which Python's `re` does not get right within a possessive repetition.
_MOMENT_PARTS = (
    rf"[T:]?{_CLOCK}{_MINUS}",
    *_FULL_DATES,
    _NO_MONTH,
    r"[TJ]?\d+(?:\.\d*)?",
    rf"(?:{_MONTH}|[ap]m)(?![a-z])",
)
_MOMENT = rf"{_GAP}(?:(?:{'|'.join(_MOMENT_PARTS)}){_GAP})*+"
# A number after a full date would be a time of day, which a column of dates drops without an error.
_MIDNIGHT = rf"(?:[T:]?0{{1,2}}:00(?::00(?:\.0*+)?)?(?![\d:])|T(?:00){{1,3}}(?!\d)){_MINUS}{_GAP}"
_OTHERS = rf"(?:{_NO_MONTH}{_GAP})*+(?:{_MIDNIGHT})?(?:{_NO_MONTH}{_GAP})*+"
_NAMED = rf"{_MONTH}(?![a-z])"
_DATES = (
    *_FULL_DATES,
    r"(?:\d{8}|\d{6}|J\d+)(?!\d)",
    rf"{_NAMED}{_GAP}\d+{_GAP}\d+(?!\d)",
    rf"\d+{_GAP}{_NAMED}{_GAP}\d+(?!\d)",
    rf"\d+{_GAP}\d+{_GAP}{_NAMED}",
)
_TIME = rf"{_GAP}(?:T?{_CLOCK}|T?(?:\d{{4}}|\d{{6}})(?!\d)){_GAP}(?:[ap]m(?![a-z]))?{_GAP}"
_WITHOUT_ZONE = {
    Family.TIMESTAMP: re.compile(_MOMENT, _FLAGS),
    Family.DATE: re.compile(rf"{_GAP}{_OTHERS}(?:{'|'.join(_DATES)}){_GAP}{_OTHERS}", _FLAGS),
    Family.TIME: re.compile(rf"{_TIME}(?:{_UTC})?{_MINUS}{_GAP}", _FLAGS),
}
_TIMETZ = re.compile(rf"{_TIME}(?:{_UTC}|[+-]\d{{1,2}}(?::?\d\d){{0,2}})?{_GAP}", _FLAGS)

# ── Zones that are not what they seem: PostgreSQL reads IST as that of Israel, CET without summer time, and GMT+2, by
#    the rules of POSIX, as two hours west of Greenwich ────────────────────────────────────────────────────────────────
_WORD = re.compile(r"[a-z_]+(?:/[a-z_]+(?:-[a-z_]+)*(?:[+-]?\d+)?)*", _FLAGS)
_PLAIN_WORD = re.compile(rf"{_MONTH}|{_DAY}|[ap]m|ad|bc|at|on|[tj]|z|zulu|utc|gmt|infinity|.*/.*", _FLAGS)
_SHIFTED = re.compile(r"(?<![a-z/])(?:z|zulu|utc|gmt)\s*[+-](?!0{1,2}(?::?00){0,2}(?![\d:]))\d", _FLAGS)


def misread_fault(text: str, capacity: ColumnCapacity) -> str | None:
    """Return why a column of times would not keep all of a text; None if it does, or the database rejects it.

    A database rejects a text without digits itself, except words such as "infinity".
    """
    is_short = len(text) <= _LONGEST
    if capacity.iso_only:
        form = _ISO_TIMETZ if capacity.zoned else _ISO_FORMS[capacity.family]
        if not _DIGIT.search(text) or (is_short and form.fullmatch(text)):
            return None
        return (
            f"is not in a form that {capacity.type} reads in full: write a date as 2026-07-01, with a year of four "
            "digits, a time as 17:30:00"
        )
    if _RELATIVE.search(text):
        return f"has a keyword of the database, which is not a value of type {capacity.type}"
    if not _DIGIT.search(text):
        return None
    if capacity.family is Family.INSTANT or capacity.zoned:
        if _SHIFTED.search(text) or not all(_PLAIN_WORD.fullmatch(word) for word in _WORD.findall(text)):
            return "has an ambiguous zone or another word: write the offset as +05:30, or a zone such as Europe/Berlin"
        if capacity.family is Family.INSTANT:
            return None
    form = _TIMETZ if capacity.zoned else _WITHOUT_ZONE[capacity.family]
    if is_short and form.fullmatch(text):
        return None
    return f"has more to it than {capacity.type} keeps, such as an offset from UTC, a time of day or a word"
