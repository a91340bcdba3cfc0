"""Deadlines and freshness: what is due by when, and whether it is done.

This covers every pipeline and flow that has ever run, and those that only the settings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Table, select

from redrive.alerts.config.settings import NO_DAYS_OFF, WEEKEND, AlertSettings, DaysOff, PipelineSettings
from redrive.alerts.facts.probes import read_bounded, why
from redrive.alerts.facts.sla_calendar import (
    BACK,
    KNOWN,
    RunStart,
    day_of,
    last_deadline,
    last_expected,
    meant,
    with_days_off,
)
from redrive.alerts.facts.snapshot import DueRun, Freshness
from redrive.model.alerts import Subject
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.database import Database
from redrive.store.schema import gauges, pipelines, runs, task_runs

_MANY = 500  # runs
_EVERY_DAY = frozenset(range(7))
_COMPLETE = "complete"
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sla:
    subject: Subject
    sla: TimeOfDay
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


@dataclass(slots=True)
class _SlaSettings:
    """What is promised here, and who promises nothing."""

    kept_by: list[_Sla] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    """Under which names what is set is to be remembered."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What cannot be read, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deadline:
    """The last deadline that was expected to be kept."""

    last: datetime
    """The one that has passed last, whether or not it was."""
    since: datetime
    at: datetime | None
    counts_from: datetime
    """What began before this was for an earlier one."""


class SlaMonitor:
    """The promises of a store. What was kept stays so, and is not asked for again: a quiet look is two queries."""

    def __init__(self, database: Database, settings: AlertSettings) -> None:
        self._database, self._settings = database, settings
        self._deadlines: dict[Subject, _Deadline] = {}
        self._kept: dict[Subject, DueRun] = {}
        self.unknown: Mapping[str, str] = {}
        """At the last look, whose promise could not be read, as `due:IDENT`, and why: nothing is concluded of it."""

    def due(self, now: datetime) -> tuple[list[DueRun], list[str]]:
        """The last deadline of each that was expected to keep one, and whether it has; and who is not waited for."""
        promised = read_bounded(self._database, lambda connection: self._read(connection, now))
        self.unknown = promised.unknown
        if promised.new:
            values = [{"name": name, "at": now, "value": 0.0} for name in promised.new]
            put = self._database.dialect.insert(gauges).on_conflict_do_nothing()
            self._database.write(lambda connection: connection.execute(put, values))
        found = read_bounded(
            self._database,
            lambda connection: {one.subject.ident: self._due(connection, one, now) for one in promised.kept_by},
        )
        inactive = [*promised.free, *(ident for ident, due in found.items() if due is None)]
        return [due for due in found.values() if due is not None], inactive

    # ── what is promised ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, connection: Connection, now: datetime) -> _SlaSettings:
        """What is set holds before what a program says, and only from when it was first seen here."""
        known = {_subject(row): row for row in connection.execute(select(pipelines))}
        set_here = [_sla_gauge(name, own.sla) for name, own in self._settings.pipelines.items() if own.sla is not None]
        noted = select(gauges.c.name, gauges.c.at).where(gauges.c.name.in_(set_here))
        seen: Mapping[str, datetime] = {row.name: row.at for row in connection.execute(noted)} if set_here else {}
        flows = {subject.name for subject in known if subject.kind == "flow"}
        found = _SlaSettings(new=[name for name in set_here if name not in seen])
        named = {Subject(kind="pipeline", name=name) for name in self._settings.pipelines}
        for subject in sorted({*known, *named}, key=lambda one: one.ident):
            row, own = known.get(subject), self._settings.pipelines.get(subject.name)
            days = None if own is None else own.days
            if row is None and subject.name in flows:
                found.free.append(subject.ident)  # what is set means the flow, which had not run yet
            elif own is not None and own.sla is not None:
                # Nothing is known of one that never ran: it is waited for every day.
                days = _EVERY_DAY if days is None and row is None else days
                since = seen.get(_sla_gauge(subject.name, own.sla), now)
                found.kept_by.append(_promise(subject, row, own.sla, days, since))
            elif row is not None and row.sla is not None:
                try:
                    sla = TimeOfDay.of("sla", row.sla)
                except ValueError as error:  # whoever wrote it knew a time zone that this machine does not
                    found.unknown[f"due:{subject.ident}"] = why(error)
                else:
                    found.kept_by.append(_promise(subject, row, sla, days, row.first_seen))
            else:
                found.free.append(subject.ident)
        return found

    # ── whether it was kept ───────────────────────────────────────────────────────────────────────────────────────────

    def _due(self, connection: Connection, promise: _Sla, now: datetime) -> DueRun | None:
        deadline = self._deadline(connection, promise, now)
        if deadline.at is None:
            return None
        kept = self._kept.get(promise.subject)
        if kept is not None and kept.sla == deadline.at:
            return kept
        due = _looked_up(connection, promise, deadline.at, deadline.counts_from)
        if due.done_at is not None:
            self._kept[promise.subject] = due
        return due

    def _deadline(self, connection: Connection, promise: _Sla, now: datetime) -> _Deadline:
        last, known = last_deadline(promise.sla, now), self._deadlines.get(promise.subject)
        if known is None or (known.last, known.since) != (last, promise.since):
            known = self._deadlines[promise.subject] = _deadline(connection, promise, last, self._settings)
        return known


def _deadline(connection: Connection, promise: _Sla, last: datetime, settings: AlertSettings) -> _Deadline:
    sla, began = promise.sla, _turns(connection, promise, last)
    on_weekends = promise.days is None or not promise.days.isdisjoint(WEEKEND)
    if promise.days is None and began:
        on_weekends = any(day_of(sla, sla.after(turn.at)).weekday() in WEEKEND for turn in began)
    off = settings.days_off(promise.subject.name, on_weekends=on_weekends)
    turns = meant(sla, promise.days, began, promise.since, off=off)
    ran = with_days_off({day_of(sla, deadline) for _, deadline in turns}, off, day_of(sla, last))
    at = last_expected(sla, promise.days, ran, promise.since, last, off=off)
    begins = last_deadline(sla, (last if at is None else at) - _MOMENT)
    made_up = [turn.at + _MOMENT for turn, deadline in turns if deadline <= begins <= turn.at]
    return _Deadline(last=last, since=promise.since, at=at, counts_from=max([begins, *made_up]))


def _turns(connection: Connection, promise: _Sla, last: datetime) -> list[RunStart]:
    """When it began in the weeks before; of one that runs every few minutes, once for each deadline."""
    table, began = promise.table, promise.table.c.started_at
    since = last - KNOWN - timedelta(days=BACK)
    columns = select(began, table.c.ended_at, table.c.status).where(promise.ours)
    found = connection.execute(columns.where(began >= since).order_by(began.desc()).limit(_MANY)).all()
    if len(found) >= _MANY:
        found, deadline = [], last
        while deadline > since:
            before = last_deadline(promise.sla, deadline - _MOMENT)
            once = columns.where(began >= before, began < deadline).order_by(began).limit(1)
            found += connection.execute(once).all()
            deadline = before
    turns = [RunStart(row.started_at, row.ended_at if row.status == _COMPLETE else None) for row in found]
    again = promise.last_started  # which may be when an earlier run was gone on with
    if again is not None and again >= since and all(turn.at != again for turn in turns):
        turns.append(RunStart(again))
    return turns


def _looked_up(connection: Connection, promise: _Sla, deadline: datetime, counts_from: datetime) -> DueRun:
    table, newest_first = promise.table, promise.table.c.started_at.desc()
    complete = select(table.c.run_id, table.c.ended_at).where(promise.ours, table.c.status == _COMPLETE)
    last = connection.execute(complete.order_by(newest_first).limit(1)).first()
    kept = connection.execute(
        complete.where(table.c.started_at >= counts_from).order_by(table.c.started_at).limit(1)
    ).first()
    again = promise.last_started is not None and promise.last_started >= counts_from
    if kept is None and again:  # one of an earlier day, that was gone on with
        gone_on = complete.where(table.c.ended_at >= promise.last_started).order_by(newest_first)
        kept = connection.execute(gone_on.limit(1)).first()
    newest = connection.execute(select(table).where(promise.ours).order_by(newest_first).limit(1)).first()
    started = kept is not None or again or (newest is not None and newest.started_at >= counts_from)
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


def _promise(
    subject: Subject, row: Row[Any] | None, sla: TimeOfDay, days: frozenset[int] | None, since: datetime
) -> _Sla:
    return _Sla(
        subject=subject, sla=sla, days=days, since=since, last_started=None if row is None else row.last_started
    )


def _subject(row: Row[Any]) -> Subject:
    return Subject(kind=row.kind, name=row.name)


def _sla_gauge(name: str, sla: TimeOfDay) -> str:
    return f"promise:{name}:{sla}"


_DAY = timedelta(days=1)


def read_freshness(database: Database, settings: AlertSettings, now: datetime) -> list[Freshness]:
    """Return how fresh every pipeline and flow with a `fresh_within` is.

    One that has never been complete is measured from when its setting was first seen, so that the first look of a new
    watch pages nobody.
    """
    limits = {name: own for name, own in settings.pipelines.items() if own.fresh_within is not None}
    if not limits:
        return []
    first_seen = _first_seen(database, limits, now)
    return read_bounded(
        database,
        lambda connection: [
            _measure(
                connection,
                name,
                own,
                first_seen[_fresh_gauge(name)],
                now,
                off=settings.days_off(name, on_weekends=True),
            )
            for name, own in sorted(limits.items())
        ],
    )


def worked(
    since: datetime, until: datetime, days: frozenset[int] | None, zone: tzinfo, off: DaysOff = NO_DAYS_OFF
) -> float:
    """Return the seconds between two moments, without those of weekdays and days off on which nothing is expected."""
    if days is None and off == NO_DAYS_OFF:
        return max(0.0, (until - since).total_seconds())
    seconds, begin = 0.0, since
    while begin < until:
        day = begin.astimezone(zone).date()
        following = day + _DAY
        midnight = datetime(following.year, following.month, following.day, tzinfo=zone).astimezone(UTC)
        end = min(midnight, until)
        if (days is None or day.weekday() in days) and day not in off:
            seconds += (end - begin).total_seconds()
        begin = end
    return seconds


def _first_seen(database: Database, limits: Mapping[str, PipelineSettings], now: datetime) -> dict[str, datetime]:
    names = [_fresh_gauge(name) for name in limits]
    query = select(gauges.c.name, gauges.c.at).where(gauges.c.name.in_(names))
    seen = {row.name: row.at for row in read_bounded(database, lambda connection: connection.execute(query).all())}
    new = [{"name": name, "at": now, "value": 0.0} for name in names if name not in seen]
    if new:
        put = database.dialect.insert(gauges).on_conflict_do_nothing()
        database.write(lambda connection: connection.execute(put, new))
    return dict.fromkeys(names, now) | seen


def _measure(
    connection: Connection, name: str, own: PipelineSettings, first_seen: datetime, now: datetime, *, off: DaysOff
) -> Freshness:
    flow = _newest(connection, name, kind="flow", complete=False)
    kind: Literal["pipeline", "flow"] = "pipeline" if flow is None else "flow"
    complete = _newest(connection, name, kind=kind, complete=True)
    newest = flow or _newest(connection, name, kind=kind, complete=False)
    since = first_seen if complete is None else complete.ended_at
    zone = UTC if own.sla is None else own.sla.zone
    assert own.fresh_within is not None
    return Freshness(
        subject=Subject(kind=kind, name=name),
        within=own.fresh_within,
        age=worked(since, now, own.days, zone, off),
        last_complete=None if complete is None else complete.ended_at,
        target=getattr(newest, "sink", None),
        run_id=None if newest is None else newest.run_id,
        status=None if newest is None else newest.status,
    )


def _newest(connection: Connection, name: str, *, kind: str, complete: bool) -> Row[tuple[object, ...]] | None:
    table = task_runs if kind == "flow" else runs
    query = select(table).where((table.c.flow_name if kind == "flow" else table.c.pipeline_name) == name)
    if complete:
        query = query.where(table.c.status == _COMPLETE)
    return connection.execute(query.order_by(table.c.started_at.desc()).limit(1)).first()


def _fresh_gauge(name: str) -> str:
    return f"fresh:{name}"
