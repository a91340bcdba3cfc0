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
"""Time after a failure until a table is counted again."""
WEEK = timedelta(days=7)
NEAR = timedelta(hours=3)
"""Maximum distance of the count of last week from the same hour."""
KEPT = timedelta(days=15)
_STALE = 2 * EVERY  # age at which a count is outdated; a count may take long


class _Sample(NamedTuple):
    at: datetime
    rows: int


class TableCounts:
    """Row counts of the watched tables; they are stored, so that they can be compared with those of last week."""

    def __init__(self, database: Database, tables: Sequence[WatchedTable]) -> None:
        self._database = database
        self._tables = {f"tables:{table.name}": table for table in tables}
        self._failed: dict[str, tuple[datetime, str]] = {}
        """When and why a table could not be counted; a new process tries at once."""

    def to_count(self, now: datetime) -> Mapping[str, Callable[[], int]]:
        """Return the counts that are due, by their names in `LevelSnapshot.unknown`."""
        newest = self._newest(now)
        due = {}
        for name, table in self._tables.items():
            counted = name in newest and now - newest[name].at < EVERY
            failed = name in self._failed and timedelta() <= now - self._failed[name][0] < AGAIN
            if not counted and not failed:
                due[name] = partial(count_rows, table.url, table.name)
        return due

    def keep(self, answers: Mapping[str, Any], now: datetime) -> None:
        """Store the counts."""
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
        """Return each table with its count of last week, and the tables without a count with the reason."""
        newest, compared, unknown = self._newest(now), [], {}
        before = self._samples(now - WEEK - _STALE - NEAR, now - WEEK + NEAR) if newest else {}
        for name, table in self._tables.items():
            if name in self._failed:
                unknown[name] = self._failed[name][1]
            elif name in newest:
                week_ago = _nearest(before.get(name, ()), newest[name].at - WEEK)
                compared.append(
                    TableRows(name=table.name, rows=newest[name].rows, week_ago=week_ago, pipeline=table.pipeline)
                )
            else:
                late = answers.get(name)
                unknown[name] = late.reason if isinstance(late, Unanswered) else "it was not counted yet"
        return compared, unknown

    def _newest(self, now: datetime) -> dict[str, _Sample]:
        """Return the last count of each table, unless it is outdated. Counts in the future come from a wrong clock."""
        return {name: max(samples) for name, samples in self._samples(now - _STALE, now).items()}

    def _samples(self, since: datetime, until: datetime) -> dict[str, list[_Sample]]:
        wanted = {_gauge(name): name for name in self._tables}
        if not wanted:
            return {}
        within = select(gauges).where(gauges.c.name.in_(wanted), gauges.c.at.between(since, until))
        samples = defaultdict(list)
        for row in self._database.read(lambda connection: connection.execute(within).all()):
            samples[wanted[row.name]].append(_Sample(row.at, round(row.value)))
        return samples

    def _put(self, connection: Connection, counted: Mapping[str, int], now: datetime) -> None:
        connection.execute(delete(gauges).where(gauges.c.name.in_(counted), gauges.c.at < now - KEPT))
        put = self._database.dialect.insert(gauges).on_conflict_do_nothing()
        connection.execute(put, [{"name": name, "at": now, "value": rows} for name, rows in counted.items()])


def _nearest(samples: Sequence[_Sample], at: datetime) -> int | None:
    near = [sample for sample in samples if abs(sample.at - at) <= NEAR]
    return min(near, key=lambda sample: abs(sample.at - at)).rows if near else None


def _gauge(name: str) -> str:
    return f"rows:{name.removeprefix('tables:')}"


_NEWEST = "newest:"
_SHARE = 10  # number of queries within `fresh_within`
_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(minutes=15)


class TableFreshness:
    """Newest rows of the watched tables; the last answers are kept in memory, and a new process queries at once."""

    def __init__(self, tables: Sequence[WatchedTable]) -> None:
        self._tables = {f"{_NEWEST}{table.name}": table for table in tables if table.fresh_within is not None}
        self._asked: dict[str, datetime] = {}
        self._last: dict[str, Any] = {}

    def to_ask(self, now: datetime) -> dict[str, Callable[[], datetime | None]]:
        """Return the queries that are due, by their names in `LevelSnapshot.unknown`."""
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
        ages = []
        for name, table in self._tables.items():
            self._last[name] = answers.get(name, self._last.get(name))
            if isinstance(self._last[name], Unanswered):
                unknown[name] = self._last[name].reason
                continue
            assert table.fresh_within is not None
            assert table.time_column is not None
            newest: datetime | None = self._last[name]
            ages.append(
                TableAge(
                    name=table.name,
                    column=table.time_column,
                    within=table.fresh_within,
                    age=None if newest is None else max(0.0, (now - newest).total_seconds()),
                    newest=newest,
                    pipeline=table.pipeline,
                )
            )
        return ages


def _read_newest_time(url: str, name: str, column: str) -> datetime | None:
    """Return the newest time in a column; None if the table is empty. Times without a zone are UTC."""
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
    """Values of the conditions that the settings define, each measured at its own interval.

    Args:
        database: The store, whose metrics a condition may use.
        conditions: The settings of the conditions.
        probes: Functions that return a number, by their names in the settings.
    """

    def __init__(
        self,
        database: Database,
        conditions: Mapping[str, ConditionSettings],
        probes: Mapping[str, Callable[[], object]],
    ) -> None:
        self._database, self._conditions = database, conditions
        # A query without an address cannot be run here.
        self._queries = {
            name: partial(read_number, own.url, own.query)
            for name, own in conditions.items()
            if own.query is not None and own.url
        } | {
            name: partial(_call, own.probe, probes[own.probe])
            for name, own in conditions.items()
            if own.probe is not None and own.probe in probes
        }
        self._asked: dict[str, datetime] = {}
        self._last: dict[str, Any] = {}

    def to_ask(self, now: datetime) -> dict[str, Callable[[], float | None]]:
        """Return the queries and probes that are due, by name."""
        due: dict[str, Callable[[], float | None]] = {}
        for name, query in self._queries.items():
            every, asked = timedelta(seconds=self._conditions[name].every), self._asked.get(name)
            if asked is None or not asked <= now < asked + every:
                self._asked[name] = now
                due[f"{_CONDITIONS}{name}"] = query
        return due

    def figures(self, answers: Mapping[str, Any], now: datetime, unknown: dict[str, str]) -> list[Figure]:
        """Return the values as they are known now; what could not be measured is added to `unknown`."""
        figures = self._metrics()
        for name in self._queries:
            self._last[name] = answers.get(f"{_CONDITIONS}{name}", self._last.get(name))
            if isinstance(self._last[name], Unanswered):
                unknown[f"{_CONDITIONS}{name}"] = self._last[name].reason
            else:
                figures.append(Figure(name=name, value=self._last[name]))
        return figures

    def _metrics(self) -> list[Figure]:
        wanted = {name: own for name, own in self._conditions.items() if own.metric is not None}
        if not wanted:
            return []
        from redrive.observe.figures import Reader
        from redrive.observe.metric_families import families

        samples = [sample for family in families(Reader(self._database).read(), took=0.0) for sample in family.samples]
        figures = []
        for name, own in wanted.items():
            matching = [
                sample.value
                for sample in samples
                if sample.name == own.metric and own.labels.items() <= sample.labels.items()
            ]
            figures.append(Figure(name=name, value=sum(matching) if matching else None))
        return figures


def _call(name: str, probe: Callable[[], object]) -> float | None:
    answer = probe()
    if answer is None:
        return None
    if isinstance(answer, bool) or not isinstance(answer, int | float | Decimal):
        raise ValueError(f"{name} must return a finite number or None, not {type(answer).__name__}")
    return finite(answer, name)
