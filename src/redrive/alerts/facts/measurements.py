"""Measurements of other databases and of probes, each at its own interval; used by the collector.

Tables are counted once an hour, and their newest rows and the values of conditions are read more often.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from redrive.alerts.config.settings import ConditionSettings, WatchedTable
from redrive.alerts.facts.external_databases import count_rows, finite, read_newest, read_number
from redrive.alerts.facts.probes import Unanswered
from redrive.alerts.facts.snapshot import Figure, TableAge, TableRows
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


_NEWEST = "newest:"
_SHARE = 10  # it is asked so many times within `fresh_within`
_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(minutes=15)


class TableFreshness:
    """Asks for the newest row of each table, and keeps the last answers; a process that starts anew asks at once."""

    def __init__(self, tables: Sequence[WatchedTable]) -> None:
        self._tables = {f"{_NEWEST}{one.name}": one for one in tables if one.fresh_within is not None}
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
                due[name] = partial(_read_newest_time, table.url, table.name, table.time_column)
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


def _read_newest_time(url: str, name: str, column: str) -> datetime | None:
    """Return the newest time in a column; None where the table is empty. Times without a zone are UTC."""
    value = read_newest(url, name, column)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time.min)
    if value is not None and not isinstance(value, datetime):
        raise ValueError(f"the newest value of {column} is not a time but {type(value).__name__}")
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)


_CONDITIONS = "conditions:"


class ConditionFigures:
    """Asks for the numbers, each no more often than its condition says, and keeps the last ones.

    probes  functions that return a number, by the name that the settings have for them
    """

    def __init__(
        self,
        database: Database,
        conditions: Mapping[str, ConditionSettings],
        probes: Mapping[str, Callable[[], object]],
    ) -> None:
        self._database, self._conditions = database, conditions
        # Without the address that a query needs, nothing can be asked here.
        self._questions = {
            name: partial(read_number, one.url, one.query)
            for name, one in conditions.items()
            if one.query is not None and one.url
        } | {
            name: partial(_call, one.probe, probes[one.probe])
            for name, one in conditions.items()
            if one.probe is not None and one.probe in probes
        }
        self._asked: dict[str, datetime] = {}
        self._last: dict[str, Any] = {}

    def to_ask(self, now: datetime) -> dict[str, Callable[[], float | None]]:
        """Return the questions that are due, by name."""
        due: dict[str, Callable[[], float | None]] = {}
        for name, question in self._questions.items():
            every, asked = timedelta(seconds=self._conditions[name].every), self._asked.get(name)
            if asked is None or not asked <= now < asked + every:
                self._asked[name] = now
                due[f"{_CONDITIONS}{name}"] = question
        return due

    def figures(self, answers: Mapping[str, Any], now: datetime, unknown: dict[str, str]) -> list[Figure]:
        """Return the numbers as they are known now; what could not be measured is added to `unknown`."""
        found = self._metrics()
        for name in self._questions:
            self._last[name] = answers.get(f"{_CONDITIONS}{name}", self._last.get(name))
            if isinstance(self._last[name], Unanswered):
                unknown[f"{_CONDITIONS}{name}"] = self._last[name].reason
            else:
                found.append(Figure(name=name, value=self._last[name]))
        return found

    def _metrics(self) -> list[Figure]:
        wanted = {name: one for name, one in self._conditions.items() if one.metric is not None}
        if not wanted:
            return []
        from redrive.observe.figures import Reader
        from redrive.observe.metric_families import families

        samples = [sample for family in families(Reader(self._database).read(), took=0.0) for sample in family.samples]
        found = []
        for name, one in wanted.items():
            matching = [
                sample.value
                for sample in samples
                if sample.name == one.metric and one.labels.items() <= sample.labels.items()
            ]
            found.append(Figure(name=name, value=sum(matching) if matching else None))
        return found


def _call(name: str, probe: Callable[[], object]) -> float | None:
    answer = probe()
    if answer is None:
        return None
    if isinstance(answer, bool) or not isinstance(answer, int | float | Decimal):
        raise ValueError(f"{name} must return a finite number or None, not {type(answer).__name__}")
    return finite(answer, name)
