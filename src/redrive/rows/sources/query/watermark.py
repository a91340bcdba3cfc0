"""Watermarks of a query: stored as JSON, and moved back by the lag for rows that were committed late."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from redrive.errors import SourceError
from redrive.store.encoding import decode, encode

_JSON_TYPES = (str, int, float, Decimal, date, time, timedelta, UUID, bytes)
_DAY = timedelta(days=1)
# As SQLite's own functions, Python and most programs write a time. What follows the seconds' fraction is a zone, which
# must be the same in every row for the order of the texts to be that of the times.
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)([T ])(\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(\D.*)?")
# What is kept as it is: quoted text, and comments, behind which a line end matters.
_KEPT_TEXT = r"""'[^']*'?|"[^"]*"?|`[^`]*`?|(?:--|\#)[^\n]*\n?|/\*(?:[^*]|\*(?!/))*"""
_SQL_PIECE = re.compile(rf"({_KEPT_TEXT})|\s+")


def kept(values: Sequence[Any], columns: Sequence[str]) -> list[Any]:
    """Values of a position, as JSON that gives them back."""
    plain = [_plain(value, column) for value, column in zip(values, columns, strict=True)]
    found: list[Any] = orjson.loads(encode(plain))
    return found


def given_back(position: Any) -> Any:
    """What was kept."""
    return decode(orjson.dumps(position))


def _plain(value: Any, column: str) -> Any:
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if not isinstance(value, _JSON_TYPES):
        raise SourceError(
            f"{column} is of the type {type(value).__name__}, which no position can hold: cast it to text in the SQL"
        )
    if isinstance(value, datetime) and value.tzinfo is not None:
        with suppress(OverflowError):  # a driver's own zones would not come back as such
            return value.astimezone(UTC)
    return value


def stepped_back(value: Any, lag: timedelta, column: str) -> Any:
    """A watermark that is `lag` earlier: a time, or a number that counts seconds."""
    try:
        if isinstance(value, datetime):
            return (value.astimezone(UTC) if value.tzinfo else value) - lag  # a zone's own clock may jump
        if isinstance(value, date):
            return value - _whole_days(lag)
        if isinstance(value, int):
            return value - -(-lag // timedelta(seconds=1))
        if isinstance(value, float):
            return value - lag.total_seconds()
        if isinstance(value, Decimal):
            return value - Decimal(lag // timedelta(microseconds=1)) / 1_000_000
        if isinstance(value, str):
            return _text_stepped_back(value, lag)
    except (ValueError, OverflowError):
        pass
    raise SourceError(f"lag needs a watermark that is a time or a number of seconds, and {column} is {value!r}")


def _text_stepped_back(text: str, lag: timedelta) -> str:
    """The same way of writing, so that the texts compare as the times do. What is cut off makes it earlier still."""
    found = _TIME.fullmatch(text)
    if found is None and _DATE.fullmatch(text):
        return (date.fromisoformat(text) - _whole_days(lag)).isoformat()
    if found is None:
        raise ValueError(text)
    day, between, clock, fraction, zone = found.groups()
    earlier = datetime.fromisoformat(f"{day}T{clock}.{fraction[:6]:0<6}" if fraction else f"{day}T{clock}") - lag
    written = earlier.isoformat(between, "minutes" if clock.count(":") == 1 else "seconds")
    if fraction:
        written += f".{earlier.microsecond:06}000"[: len(fraction) + 1]
    return written + (zone or "")


def _whole_days(lag: timedelta) -> timedelta:
    return timedelta(days=-(-lag // _DAY))


def normalized(sql: str) -> str:
    """Return the same text for queries that differ only in the space between their words."""
    return _SQL_PIECE.sub(lambda piece: piece[1] or " ", sql.strip(" \t\r\n;"))
