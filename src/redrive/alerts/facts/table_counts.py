"""Tables whose rows are counted: once an hour, and kept, so that they can be compared with the week before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from redrive.alerts.config.settings import WatchedTable
from redrive.alerts.facts.external_databases import count_rows
from redrive.alerts.facts.probes import Unanswered
from redrive.alerts.facts.snapshot import TableRows
from redrive.store.database import Database
from redrive.store.schema import gauges

EVERY = timedelta(hours=1)
AGAIN = timedelta(minutes=5)
"""After which a table that could not be counted is tried again."""
WEEK = timedelta(days=7)
NEAR = timedelta(hours=3)
"""How far from the very hour of last week a count may be that is compared with."""
KEPT = timedelta(days=15)
_STALE = 2 * EVERY  # a count that takes long is no reason to know nothing


class _Sample(NamedTuple):
    at: datetime
    rows: int


class TableCounts:
    """The counts of a store's watched tables."""

    def __init__(self, database: Database, tables: Sequence[WatchedTable]) -> None:
        self._database = database
        self._tables = {f"tables:{one.name}": one for one in tables}
        self._failed: dict[str, tuple[datetime, str]] = {}
        """When and why a table could not be counted; forgotten with the process, and the next one tries at once."""

    def to_count(self, now: datetime) -> Mapping[str, Callable[[], int]]:
        """The questions that are due, by the names that `unknown` of the picture knows."""
        newest = self._newest(now)
        due = {}
        for name, one in self._tables.items():
            counted = name in newest and now - newest[name].at < EVERY
            failed = name in self._failed and timedelta() <= now - self._failed[name][0] < AGAIN
            if not counted and not failed:
                due[name] = partial(count_rows, one.url, one.name)
        return due

    def keep(self, answers: Mapping[str, Any], now: datetime) -> None:
        """Put the answers down."""
        counted: dict[str, int] = {}
        for name, answer in answers.items():
            if not isinstance(answer, Unanswered):
                self._failed.pop(name, None)
                counted[_gauge(name)] = answer
            elif not answer.still_out:
                self._failed[name] = (now, answer.reason)
        if counted:
            self._database.write(partial(self._put, counted=counted, now=now))

    def compared(self, now: datetime, answers: Mapping[str, Any]) -> tuple[list[TableRows], dict[str, str]]:
        """Each table beside itself a week ago; and those of which nothing can be said, with the reason."""
        newest, found, unknown = self._newest(now), [], {}
        before = self._samples(now - WEEK - _STALE - NEAR, now - WEEK + NEAR) if newest else {}
        for name, one in self._tables.items():
            if name in self._failed:
                unknown[name] = self._failed[name][1]
            elif name in newest:
                week_ago = _nearest(before.get(name, ()), newest[name].at - WEEK)
                found.append(TableRows(name=one.name, rows=newest[name].rows, week_ago=week_ago, pipeline=one.pipeline))
            else:
                late = answers.get(name)
                unknown[name] = late.reason if isinstance(late, Unanswered) else "it was not counted yet"
        return found, unknown

    def _newest(self, now: datetime) -> dict[str, _Sample]:
        """The last count of each table, unless it is stale. One of the future is of a clock that was wrong."""
        return {name: max(samples) for name, samples in self._samples(now - _STALE, now).items()}

    def _samples(self, since: datetime, until: datetime) -> dict[str, list[_Sample]]:
        wanted = {_gauge(name): name for name in self._tables}
        if not wanted:
            return {}
        within = select(gauges).where(gauges.c.name.in_(wanted), gauges.c.at.between(since, until))
        found = defaultdict(list)
        for row in self._database.read(lambda connection: connection.execute(within).all()):
            found[wanted[row.name]].append(_Sample(row.at, round(row.value)))
        return found

    def _put(self, connection: Connection, counted: Mapping[str, int], now: datetime) -> None:
        connection.execute(delete(gauges).where(gauges.c.name.in_(counted), gauges.c.at < now - KEPT))
        put = self._database.dialect.insert(gauges).on_conflict_do_nothing()
        connection.execute(put, [{"name": name, "at": now, "value": rows} for name, rows in counted.items()])


def _nearest(samples: Sequence[_Sample], at: datetime) -> int | None:
    near = [one for one in samples if abs(one.at - at) <= NEAR]
    return min(near, key=lambda one: abs(one.at - at)).rows if near else None


def _gauge(name: str) -> str:
    return f"rows:{name.removeprefix('tables:')}"
