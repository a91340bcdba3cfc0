"""What is to be done by when, and whether it is: of all that has ever run, and of what only the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, select

from redrive.alerts.errands import read_bounded
from redrive.alerts.expected import KNOWN, is_expected, last_deadline
from redrive.alerts.picture import DueRun
from redrive.alerts.settings import AlertSettings
from redrive.notices import Subject
from redrive.policy.daily import Daily
from redrive.store.database import Database
from redrive.store.schema import gauges, pipelines, runs, task_runs

_WEEK = 7  # deadlines that are looked back at for one that was expected
_MANY = 500  # starts
_EVERY_DAY = frozenset(range(7))
_COMPLETE = "complete"
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    subject: Subject
    sla: Daily
    days: frozenset[int] | None
    since: datetime
    """From when on it is to be kept."""
    last_started: datetime | None = None

    @property
    def table(self) -> Table:
        return task_runs if self.subject.kind == "flow" else runs

    @property
    def ours(self) -> ColumnElement[bool]:
        """Its runs."""
        name = self.table.c.flow_name if self.subject.kind == "flow" else self.table.c.pipeline_name
        return name == self.subject.name


class Promises:
    """The promises of a store. What was kept stays so, and is not asked for again: a quiet look is two queries."""

    def __init__(self, database: Database, settings: AlertSettings) -> None:
        self._database, self._settings = database, settings
        self._deadlines: dict[str, tuple[datetime, datetime, datetime | None]] = {}
        """By name: the last deadline, since when they are kept, and the last one that was expected to be."""
        self._kept: dict[str, DueRun] = {}

    def due(self, now: datetime) -> tuple[list[DueRun], list[str]]:
        """The last deadline of each that was expected to keep one, and whether it has; and who is not waited for."""
        promises, free, new = read_bounded(self._database, lambda connection: self._read(connection, now))
        if new:
            values = [{"name": name, "at": now, "value": 0.0} for name in new]
            put = self._database.dialect.insert(gauges).on_conflict_do_nothing()
            self._database.write(lambda connection: connection.execute(put, values))
        found = read_bounded(
            self._database, lambda connection: {one.subject.name: self._due(connection, one, now) for one in promises}
        )
        given_up = [*free, *(name for name, due in found.items() if due is None)]
        return [due for due in found.values() if due is not None], given_up

    # ── what is promised ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, connection: Connection, now: datetime) -> tuple[list[_Promise], list[str], list[str]]:
        """What is promised; who promises nothing; and the names under which what is set is to be remembered.

        What is set holds before what a program says, and only from when it was first seen here.
        """
        known = {row.name: row for row in connection.execute(select(pipelines))}
        set_here = [_noted(name, own.sla) for name, own in self._settings.pipelines.items() if own.sla is not None]
        noted = select(gauges.c.name, gauges.c.at).where(gauges.c.name.in_(set_here))
        seen: Mapping[str, datetime] = {row.name: row.at for row in connection.execute(noted)} if set_here else {}
        found, free = [], []
        for name in sorted({*known, *self._settings.pipelines}):
            row, own = known.get(name), self._settings.pipelines.get(name)
            days = None if own is None else own.days
            if own is not None and own.sla is not None:
                # Nothing is known of one that never ran: it is waited for every day.
                days = _EVERY_DAY if days is None and row is None else days
                found.append(_promise(name, row, own.sla, days, seen.get(_noted(name, own.sla), now)))
            elif row is not None and row.sla is not None:
                found.append(_promise(name, row, Daily.of("sla", row.sla), days, row.first_seen))
            else:
                free.append(name)
        return found, free, [name for name in set_here if name not in seen]

    # ── whether it was kept ───────────────────────────────────────────────────────────────────────────────────────────

    def _due(self, connection: Connection, promise: _Promise, now: datetime) -> DueRun | None:
        deadline = self._deadline(connection, promise, now)
        if deadline is None:
            return None
        kept = self._kept.get(promise.subject.name)
        if kept is not None and kept.sla == deadline and kept.subject == promise.subject:
            return kept
        due = _looked_up(connection, promise, deadline)
        if due.done_at is not None:
            self._kept[promise.subject.name] = due
        return due

    def _deadline(self, connection: Connection, promise: _Promise, now: datetime) -> datetime | None:
        name, last = promise.subject.name, last_deadline(promise.sla, now)
        if name not in self._deadlines or self._deadlines[name][:2] != (last, promise.since):
            self._deadlines[name] = (last, promise.since, self._last_expected(connection, promise, last))
        return self._deadlines[name][2]

    def _last_expected(self, connection: Connection, promise: _Promise, last: datetime) -> datetime | None:
        """A day on which it does not run hides nothing: what was missed on the day before is missed still."""
        starts = _starts(connection, promise, last)
        deadline = last
        for _ in range(_WEEK):
            if is_expected(promise.sla, promise.days, starts, promise.since, deadline):
                return deadline
            deadline = last_deadline(promise.sla, deadline - _MOMENT)
        return None


def _starts(connection: Connection, promise: _Promise, last: datetime) -> list[datetime]:
    """When it began in the weeks before; of one that runs every few minutes, once for each deadline."""
    began = promise.table.c.started_at
    since = last - KNOWN - timedelta(days=_WEEK)
    newest = select(began).where(promise.ours, began >= since).order_by(began.desc()).limit(_MANY)
    starts = list(connection.execute(newest).scalars())
    if len(starts) < _MANY:
        return starts
    starts, deadline = [], last
    while deadline > since:
        before = last_deadline(promise.sla, deadline - _MOMENT)
        once = select(began).where(promise.ours, began >= before, began < deadline).order_by(began).limit(1)
        starts += connection.execute(once).scalars()
        deadline = before
    return starts


def _looked_up(connection: Connection, promise: _Promise, deadline: datetime) -> DueRun:
    table, newest_first = promise.table, promise.table.c.started_at.desc()
    begins = last_deadline(promise.sla, deadline - _MOMENT)  # a run has the next deadline after its start
    complete = select(table.c.run_id, table.c.ended_at).where(promise.ours, table.c.status == _COMPLETE)
    last = connection.execute(complete.order_by(newest_first).limit(1)).first()
    kept = connection.execute(
        complete.where(table.c.started_at >= begins).order_by(table.c.started_at).limit(1)
    ).first()
    again = promise.last_started is not None and promise.last_started >= begins
    if kept is None and again:  # one of an earlier day, that was gone on with
        gone_on = complete.where(table.c.ended_at >= promise.last_started).order_by(newest_first)
        kept = connection.execute(gone_on.limit(1)).first()
    newest = connection.execute(select(table).where(promise.ours).order_by(newest_first).limit(1)).first()
    started = kept is not None or again or (newest is not None and newest.started_at >= begins)
    shown = kept or (newest if started else None)
    return DueRun(
        subject=promise.subject,
        sla=deadline,
        done_at=None if kept is None else kept.ended_at,
        started=started,
        run_id=None if shown is None else shown.run_id,
        last_complete=None if last is None else last.ended_at,
        target=None if newest is None or promise.subject.kind == "flow" else newest.sink,
        daily=promise.sla,
    )


def _promise(name: str, row: Row[Any] | None, sla: Daily, days: frozenset[int] | None, since: datetime) -> _Promise:
    return _Promise(
        subject=Subject(kind="pipeline" if row is None else row.kind, name=name),
        sla=sla,
        days=days,
        since=since,
        last_started=None if row is None else row.last_started,
    )


def _noted(name: str, sla: Daily) -> str:
    return f"promise:{name}:{sla}"
