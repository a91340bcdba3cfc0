"""Columns of a DuckDB query whose values Python cannot hold: they are read as texts, where they would be changed.

Its driver makes 30 days of a month, the year 9999 of infinity, and cuts nanoseconds off. A moment with a zone is read
as microseconds, because the driver needs the package pytz for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from redrive.errors import SourceError
from redrive.rows.sinks.table_schema import quoted

_INSTANT = "TIMESTAMP WITH TIME ZONE"
_ENDLESS = ("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", _INSTANT)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINE = {"TIMESTAMP_NS": "epoch_ns({0})", "TIME_NS": "epoch_ns({0})"}
_INTERVAL = "INTERVAL"
_QUOTED = r'"(?:[^"]|"")*"|'
_NESTED = re.compile(_QUOTED + r"\b(?:INTERVAL|TIMESTAMP_NS|TIME_NS)\b")
_NESTED_ENDLESS = re.compile(_QUOTED + r"\b(?:INTERVAL|TIME_NS|DATE|TIMESTAMP(?:_S|_MS|_NS| WITH TIME ZONE)?)(?!\w)")


class ExactColumns:
    """The columns of a query, with the texts of some of them."""

    def __init__(self, types: Mapping[str, str], zone: str) -> None:
        """`zone` is that of the session, in which moments are given."""
        self.types = types
        self.names = list(types)
        self._zone = _zone(zone)
        self._instants = [at for at, kind in enumerate(types.values()) if kind == _INSTANT]
        for name, kind in types.items():
            if kind != _INSTANT and _INSTANT in kind and find_spec("pytz") is None:
                raise SourceError(
                    f"DuckDB needs the package pytz to read {name}, which is {kind}: pip install pytz, or cast it to "
                    "text in the SQL"
                )
        self._replaced = {
            name: nested for name, kind in types.items() if (nested := _of_texts(kind, _NESTED)) is not None
        }
        self._texts = {at: text for at, (name, kind) in enumerate(types.items()) if (text := _text(name, kind))}
        self._intervals = {at for at, kind in enumerate(types.values()) if kind == _INTERVAL}

    def select(self, query: str) -> str:
        """Return a query with text columns appended; DuckDB keeps the order of its rows."""
        if not self._texts and not self._replaced:
            return query
        chosen = [self._value(at, name) for at, name in enumerate(self.names)]
        return f"SELECT {', '.join([*chosen, *self._texts.values()])} FROM ({query}) AS redrive_exact"

    def _value(self, at: int, name: str) -> str:
        column = quoted(name)
        if at in self._instants:
            return f"CASE WHEN isfinite({column}) THEN epoch_us({column}) END AS {column}"
        return f"CAST({column} AS {self._replaced[name]}) AS {column}" if name in self._replaced else column

    def rows(self, found: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the rows with texts for the values that Python cannot hold."""
        if not self._texts:
            return found
        width, rows = len(self.names), []
        for row in found:
            values = list(row[:width])
            for at in self._instants:
                if values[at] is not None:
                    values[at] = (_EPOCH + timedelta(microseconds=values[at])).astimezone(self._zone)
            for at, text in zip(self._texts, row[width:], strict=True):
                if text is not None and not (at in self._intervals and is_timedelta(text)):
                    values[at] = text
            rows.append(values)
        return rows


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return UTC  # the moment is the same


def _text(name: str, kind: str) -> str | None:
    """Return the expression for the text of a value, where it must be one; NULL for most values."""
    column = quoted(name)
    if (nested := _of_texts(kind, _NESTED_ENDLESS)) is not None:
        return f"CASE WHEN contains(CAST({column} AS VARCHAR), 'infinity') THEN CAST({column} AS {nested}) END"
    if kind == _INTERVAL:
        return f"CAST({column} AS VARCHAR)"
    condition = f"NOT isfinite({column})" if kind in _ENDLESS else None
    if kind in _FINE:
        condition = f"{_FINE[kind].format(column)} % 1000 <> 0"
        condition = f"NOT isfinite({column}) OR {condition}" if kind == "TIMESTAMP_NS" else condition
    return None if condition is None else f"CASE WHEN {condition} THEN CAST({column} AS VARCHAR) END"


def _of_texts(kind: str, changed: re.Pattern[str]) -> str | None:
    """Return a nested type with texts for what Python cannot hold; None if it has nothing of that kind."""
    if not kind.endswith("]") and not kind.startswith(("STRUCT", "MAP", "UNION")):
        return None
    made = changed.sub(lambda found: found[0] if found[0].startswith('"') else "VARCHAR", kind)
    return None if made == kind else made


def is_timedelta(interval: str) -> bool:
    """Return whether a timedelta that is written again is this interval, in PostgreSQL's default style.

    A timedelta has days of any sign, and a time from 0 to 24 hours: it would make -2 days and 20 hours of -28 hours.
    """
    match = _DAYS_AND_TIME.fullmatch(interval)
    if match is None or match["sign"] == "-":
        return False
    if match["hours"] is None:
        return True
    is_explicit = int(match["days"] or 0) >= 0 or match["sign"] == "+"
    return int(match["hours"]) < 24 and is_explicit


_DAYS_AND_TIME = re.compile(
    r"(?:(?P<days>-?\d+) days?)?\s*(?:(?P<sign>[-+]?)(?P<hours>\d+):\d\d:\d\d(?:\.\d+)?)?", re.ASCII
)
