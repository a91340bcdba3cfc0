"""The order of a query's rows: checks that the database sorts as it compares, and stores places in it.

A place is a watermark and a key. It is stored as JSON, and the watermark of a new run is moved back by the lag, for
rows that were committed late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import orjson
from sqlalchemy import Select

from redrive.classify.signals import is_interrupt
from redrive.errors import SourceError
from redrive.model.calls import Kind
from redrive.rows.batch import Record
from redrive.rows.sources.query import database as databases
from redrive.rows.sources.query.keyset import IS_BEHIND, Keyset
from redrive.store.encoding import decode, encode

_JSON_TYPES = (str, int, float, Decimal, date, time, timedelta, UUID, bytes)
_DAY = timedelta(days=1)
# As SQLite's own functions, Python and most programs write a time. What follows the seconds' fraction is a zone, which
# must be the same in every row for the order of the texts to be that of the times.
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)([T ])(\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(\D.*)?")


class QueryPage(NamedTuple):
    """Where a page begins, as `Keyset.page` takes it, and how many rows it has at most."""

    start: Any
    behind: Sequence[Any] | None
    most: int


class QueryOrder:
    """The order of a query's rows; `select` runs a statement."""

    def __init__(self, name: str, keyset: Keyset, select: Callable[[Select[Any]], list[Record]]) -> None:
        self._name = name
        self._keyset = keyset
        self._select = select

    def check(self, last: Record, following: Record, page: QueryPage) -> None:
        """Raise where a page that begins after a row of this one would pass over the following row."""
        self._check(last, following, self._keyset.names, page)

    def check_key(self, last: Record, following: Record, page: QueryPage) -> None:
        """Check rows without a watermark, which are in the order of their key."""
        self._check(last, following, self._keyset.names[1:], page)

    def _check(self, last: Record, following: Record, names: Sequence[str], page: QueryPage) -> None:
        here, there = _place(last, names), _place(following, names)
        if here == there:
            raise SourceError(
                f"several rows of {self._name} have {_named(names, there)}, and some of them would be passed over: "
                "name a key that distinguishes them"
            )
        if self._keyset.is_sure(here, there):
            return
        try:
            is_passed_over = self._is_passed_over(here, there, names, page)
        except Exception as error:
            self.raise_incomparable(error, names)
        if is_passed_over:
            raise SourceError(
                f"several rows of {self._name} have {_named(names, there)}, or the database compares it otherwise than "
                "it sorts it, and some of them would be passed over: name a key that distinguishes them, or cast the "
                "columns to text in the SQL"
            )

    def _is_passed_over(self, here: list[Any], there: list[Any], names: Sequence[str], page: QueryPage) -> bool:
        """Return whether the place that follows another is not after it when the two are compared."""
        if [_place(record, names) for record in self._select(self._keyset.following(here))] == [there]:
            return False
        # Others may have written meanwhile: one statement sees the rows sorted and compared at the same moment.
        records = self._select(self._keyset.compared_places(page.start, page.behind, page.most + 1, here))
        for record, following in pairwise(records):
            if _place(record, names) == here != _place(following, names):
                if record[IS_BEHIND]:
                    raise SourceError(self.stands_still(here))
                return not following[IS_BEHIND]
        return False

    def stands_still(self, place: Sequence[Any]) -> str:
        """Return the message for a row that sorts after itself."""
        return (
            f"the row of {self._name} at {_named(self._keyset.names[-len(place) :], place)} comes again behind itself: "
            "its watermark or key is finer than the driver gives it, as nanoseconds or rounded floats are; round it or "
            "cast it to text in the SQL"
        )

    def raise_incomparable(self, error: Exception, names: Sequence[str]) -> NoReturn:
        """Raise the error of a statement that compares columns with values, of columns that can be sorted."""
        if isinstance(error, SourceError) or databases.is_not_of_a_row(error):
            raise_fault(self._name, error)
        columns = ", ".join(dict.fromkeys(names))
        raise SourceError(
            f"{self._name}: the database sorts its rows by {columns}, and cannot compare them with the values of a row "
            f"({databases.first_line(error)}): cast {columns} to text in the SQL"
        ) from error


def raise_fault(name: str, error: Exception) -> NoReturn:
    """Raise the error of a statement, as a `SourceError` unless it is transient."""
    if (
        isinstance(error, SourceError)
        or is_interrupt(error)
        or databases.is_transient(error)
        or databases.kind_of(error) is Kind.RESOURCE
    ):
        raise error
    raise SourceError(f"{name}: {databases.first_line(error)}") from error


def format_value(value: Any) -> str:
    """Return a value for a message."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "null" if value is None else str(value)


def _place(record: Record, names: Sequence[str]) -> list[Any]:
    return [record[name] for name in names]


def _named(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{name} {format_value(value)}" for name, value in dict(zip(names, values, strict=True)).items())


def to_json(values: Sequence[Any], columns: Sequence[str]) -> list[Any]:
    """Return values of a position, as JSON that gives them back."""
    plain = [_plain(value, column) for value, column in zip(values, columns, strict=True)]
    decoded: list[Any] = orjson.loads(encode(plain))
    return decoded


def from_json(position: Any) -> Any:
    """Return what was kept."""
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
    """Return a watermark that is `lag` earlier: a time, or a number that counts seconds."""
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
    """Return the time in the same format, so that texts compare as times do. Truncation makes it earlier."""
    match = _TIME.fullmatch(text)
    if match is None and _DATE.fullmatch(text):
        return (date.fromisoformat(text) - _whole_days(lag)).isoformat()
    if match is None:
        raise ValueError(text)
    day, between, clock, fraction, zone = match.groups()
    earlier = datetime.fromisoformat(f"{day}T{clock}.{fraction[:6]:0<6}" if fraction else f"{day}T{clock}") - lag
    written = earlier.isoformat(between, "minutes" if clock.count(":") == 1 else "seconds")
    if fraction:
        written += f".{earlier.microsecond:06}000"[: len(fraction) + 1]
    return written + (zone or "")


def _whole_days(lag: timedelta) -> timedelta:
    return timedelta(days=-(-lag // _DAY))
