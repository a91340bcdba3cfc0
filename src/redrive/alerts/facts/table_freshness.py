"""Freshness of watched tables: the newest value of a time column, against the table's `fresh_within`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any

from redrive.alerts.config.settings import WatchedTable
from redrive.alerts.facts.external_databases import read_newest
from redrive.alerts.facts.probes import Unanswered
from redrive.alerts.facts.snapshot import TableAge

_UNDER = "newest:"
_SHARE = 10  # it is asked so many times within `fresh_within`
_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(minutes=15)


class TableFreshness:
    """Asks for the newest row of each table, and keeps the last answers; a process that starts anew asks at once."""

    def __init__(self, tables: Sequence[WatchedTable]) -> None:
        self._tables = {f"{_UNDER}{one.name}": one for one in tables if one.fresh_within is not None}
        self._asked: dict[str, datetime] = {}
        self._last: dict[str, Any] = {}

    def to_ask(self, now: datetime) -> dict[str, Callable[[], datetime | None]]:
        """Return the questions that are due, by the names that `unknown` of the picture knows."""
        due: dict[str, Callable[[], datetime | None]] = {}
        for name, table in self._tables.items():
            assert table.fresh_within is not None
            assert table.time_column is not None
            every = min(max(timedelta(seconds=table.fresh_within / _SHARE), _SHORTEST), _LONGEST)
            asked = self._asked.get(name)
            if asked is None or not asked <= now < asked + every:
                self._asked[name] = now
                due[name] = partial(_newest, table.url, table.name, table.time_column)
        return due

    def ages(self, answers: Mapping[str, Any], now: datetime, unknown: dict[str, str]) -> list[TableAge]:
        """Return the age of each table; what could not be measured is added to `unknown`."""
        found = []
        for name, table in self._tables.items():
            self._last[name] = answers.get(name, self._last.get(name))
            if isinstance(self._last[name], Unanswered):
                unknown[name] = self._last[name].reason
                continue
            assert table.fresh_within is not None
            assert table.time_column is not None
            newest: datetime | None = self._last[name]
            found.append(
                TableAge(
                    name=table.name,
                    column=table.time_column,
                    within=table.fresh_within,
                    age=None if newest is None else max(0.0, (now - newest).total_seconds()),
                    newest=newest,
                    pipeline=table.pipeline,
                )
            )
        return found


def _newest(url: str, name: str, column: str) -> datetime | None:
    """Return the newest time in a column; None where the table is empty. Times without a zone are UTC."""
    value = read_newest(url, name, column)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time.min)
    if value is not None and not isinstance(value, datetime):
        raise ValueError(f"the newest value of {column} is not a time but {type(value).__name__}")
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)
