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
    match_deadlines,
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
    daily: TimeOfDay
    days: frozenset[int] | None
    since: datetime
    """When the SLA was first seen; earlier deadlines do not count."""
    last_started: datetime | None = None

    @property
    def table(self) -> Table:
        return task_runs if self.subject.kind == "flow" else runs

    @property
    def is_own_run(self) -> ColumnElement[bool]:
        """The condition that selects its runs."""
        name = self.table.c.flow_name if self.subject.kind == "flow" else self.table.c.pipeline_name
        return name == self.subject.name


@dataclass(slots=True)
class _SlaSettings:
    """The SLAs of all pipelines and flows."""

    slas: list[_Sla] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    """The idents of pipelines and flows without an SLA."""
    new: list[str] = field(default_factory=list)
    """The names of gauges that record when an SLA of the settings was first seen."""
    unknown: dict[str, str] = field(default_factory=dict)
    """SLAs that cannot be read, as `due:IDENT`, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deadline:
    """The last deadline that a pipeline or flow was expected to meet."""

    last: datetime
    """The last deadline that has passed, expected or not."""
    since: datetime
    at: datetime | None
    counts_from: datetime
    """Runs that started before this were for an earlier deadline."""


class SlaMonitor:
    """The SLAs of a store. A deadline that was met is not queried again, so most checks take two queries."""

    def __init__(self, database: Database, settings: AlertSettings) -> None:
        self._database, self._settings = database, settings
        self._deadlines: dict[Subject, _Deadline] = {}
        self._kept: dict[Subject, DueRun] = {}
        self.unknown: Mapping[str, str] = {}
        """The SLAs that could not be read at the last check, as `due:IDENT`, with the reason. They are not judged."""

    def due(self, now: datetime) -> tuple[list[DueRun], list[str]]:
        """Return the last deadline of each pipeline and flow, and the idents of those without a current deadline."""
        known = read_bounded(self._database, lambda connection: self._read(connection, now))
        self.unknown = known.unknown
        if known.new:
            values = [{"name": name, "at": now, "value": 0.0} for name in known.new]
            put = self._database.dialect.insert(gauges).on_conflict_do_nothing()
            self._database.write(lambda connection: connection.execute(put, values))
        by_ident = read_bounded(
            self._database,
            lambda connection: {sla.subject.ident: self._due(connection, sla, now) for sla in known.slas},
        )
        inactive = [*known.without, *(ident for ident, due in by_ident.items() if due is None)]
        return [due for due in by_ident.values() if due is not None], inactive

    # ── the SLAs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, connection: Connection, now: datetime) -> _SlaSettings:
        """Read the SLAs. Those of the settings take precedence, and count from when they were first seen."""
        known = {_subject(row): row for row in connection.execute(select(pipelines))}
        gauge_names = [
            _sla_gauge(name, own.sla) for name, own in self._settings.pipelines.items() if own.sla is not None
        ]
        noted = select(gauges.c.name, gauges.c.at).where(gauges.c.name.in_(gauge_names))
        seen: Mapping[str, datetime] = {row.name: row.at for row in connection.execute(noted)} if gauge_names else {}
        flows = {subject.name for subject in known if subject.kind == "flow"}
        settings = _SlaSettings(new=[name for name in gauge_names if name not in seen])
        named = {Subject(kind="pipeline", name=name) for name in self._settings.pipelines}
        for subject in sorted({*known, *named}, key=lambda subject: subject.ident):
            row, own = known.get(subject), self._settings.pipelines.get(subject.name)
            days = None if own is None else own.days
            if row is None and subject.name in flows:
                settings.without.append(subject.ident)  # the setting is for the flow of this name
            elif own is not None and own.sla is not None:
                # A pipeline that never ran is expected every day, because nothing is known about its days.
                days = _EVERY_DAY if days is None and row is None else days
                since = seen.get(_sla_gauge(subject.name, own.sla), now)
                settings.slas.append(_make_sla(subject, row, own.sla, days, since))
            elif row is not None and row.sla is not None:
                try:
                    sla = TimeOfDay.of("sla", row.sla)
                except ValueError as error:  # its time zone is unknown on this machine
                    settings.unknown[f"due:{subject.ident}"] = why(error)
                else:
                    settings.slas.append(_make_sla(subject, row, sla, days, row.first_seen))
            else:
                settings.without.append(subject.ident)
        return settings

    # ── whether they were met ─────────────────────────────────────────────────────────────────────────────────────────

    def _due(self, connection: Connection, sla: _Sla, now: datetime) -> DueRun | None:
        deadline = self._deadline(connection, sla, now)
        if deadline.at is None:
            return None
        kept = self._kept.get(sla.subject)
        if kept is not None and kept.sla == deadline.at:
            return kept
        due = _read_due_run(connection, sla, deadline.at, deadline.counts_from)
        if due.done_at is not None:
            self._kept[sla.subject] = due
        return due

    def _deadline(self, connection: Connection, sla: _Sla, now: datetime) -> _Deadline:
        last, known = last_deadline(sla.daily, now), self._deadlines.get(sla.subject)
        if known is None or (known.last, known.since) != (last, sla.since):
            known = self._deadlines[sla.subject] = _deadline(connection, sla, last, self._settings)
        return known


def _deadline(connection: Connection, sla: _Sla, last: datetime, settings: AlertSettings) -> _Deadline:
    daily, starts = sla.daily, _run_starts(connection, sla, last)
    on_weekends = sla.days is None or not sla.days.isdisjoint(WEEKEND)
    if sla.days is None and starts:
        on_weekends = any(day_of(daily, daily.after(start.at)).weekday() in WEEKEND for start in starts)
    off = settings.days_off(sla.subject.name, on_weekends=on_weekends)
    by_deadline = match_deadlines(daily, sla.days, starts, sla.since, off=off)
    ran = with_days_off({day_of(daily, deadline) for _, deadline in by_deadline}, off, day_of(daily, last))
    at = last_expected(daily, sla.days, ran, sla.since, last, off=off)
    begins = last_deadline(daily, (last if at is None else at) - _MOMENT)
    made_up = [start.at + _MOMENT for start, deadline in by_deadline if deadline <= begins <= start.at]
    return _Deadline(last=last, since=sla.since, at=at, counts_from=max([begins, *made_up]))


def _run_starts(connection: Connection, sla: _Sla, last: datetime) -> list[RunStart]:
    """Return when its runs of the last weeks started; for very frequent runs, one for each deadline."""
    table, started_at = sla.table, sla.table.c.started_at
    since = last - KNOWN - timedelta(days=BACK)
    columns = select(started_at, table.c.ended_at, table.c.status).where(sla.is_own_run)
    rows = connection.execute(columns.where(started_at >= since).order_by(started_at.desc()).limit(_MANY)).all()
    if len(rows) >= _MANY:
        rows, deadline = [], last
        while deadline > since:
            before = last_deadline(sla.daily, deadline - _MOMENT)
            first = columns.where(started_at >= before, started_at < deadline).order_by(started_at).limit(1)
            rows += connection.execute(first).all()
            deadline = before
    starts = [RunStart(row.started_at, row.ended_at if row.status == _COMPLETE else None) for row in rows]
    resumed_at = sla.last_started  # the last start, which may have resumed an earlier run
    if resumed_at is not None and resumed_at >= since and all(start.at != resumed_at for start in starts):
        starts.append(RunStart(resumed_at))
    return starts


def _read_due_run(connection: Connection, sla: _Sla, deadline: datetime, counts_from: datetime) -> DueRun:
    table, newest_first = sla.table, sla.table.c.started_at.desc()
    complete = select(table.c.run_id, table.c.ended_at).where(sla.is_own_run, table.c.status == _COMPLETE)
    last = connection.execute(complete.order_by(newest_first).limit(1)).first()
    kept = connection.execute(
        complete.where(table.c.started_at >= counts_from).order_by(table.c.started_at).limit(1)
    ).first()
    resumed = sla.last_started is not None and sla.last_started >= counts_from
    if kept is None and resumed:  # a run of an earlier day was resumed
        resumed_runs = complete.where(table.c.ended_at >= sla.last_started).order_by(newest_first)
        kept = connection.execute(resumed_runs.limit(1)).first()
    newest = connection.execute(select(table).where(sla.is_own_run).order_by(newest_first).limit(1)).first()
    started = kept is not None or resumed or (newest is not None and newest.started_at >= counts_from)
    shown = kept or (newest if started else None)
    return DueRun(
        subject=sla.subject,
        sla=deadline,
        done_at=None if kept is None else kept.ended_at,
        started=started,
        run_id=None if shown is None else shown.run_id,
        last_complete=None if last is None else last.ended_at,
        target=None if newest is None or sla.subject.kind == "flow" else newest.sink,
        daily=sla.daily,
    )


def _make_sla(
    subject: Subject, row: Row[Any] | None, daily: TimeOfDay, days: frozenset[int] | None, since: datetime
) -> _Sla:
    last_started = None if row is None else row.last_started
    return _Sla(subject=subject, daily=daily, days=days, since=since, last_started=last_started)


def _subject(row: Row[Any]) -> Subject:
    return Subject(kind=row.kind, name=row.name)


def _sla_gauge(name: str, sla: TimeOfDay) -> str:
    return f"promise:{name}:{sla}"


_DAY = timedelta(days=1)


def read_freshness(database: Database, settings: AlertSettings, now: datetime) -> list[Freshness]:
    """Return how fresh every pipeline and flow with a `fresh_within` is.

    A pipeline that was never complete is measured from when its setting was first seen, so that the first check of a
    new watch sends no page.
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
    """Return the seconds between two times, without weekdays and days off on which no run is expected."""
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
