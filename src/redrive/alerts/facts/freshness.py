"""Freshness: how old the newest complete run of a pipeline or flow is, against its `fresh_within`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal

from sqlalchemy import Connection, Row, select

from redrive.alerts.config.settings import AlertSettings, PipelineSettings
from redrive.alerts.facts.days_off import NO_DAYS_OFF, DaysOff
from redrive.alerts.facts.probes import read_bounded
from redrive.alerts.facts.snapshot import Freshness
from redrive.model.alerts import Subject
from redrive.store.database import Database
from redrive.store.schema import gauges, runs, task_runs

_DAY = timedelta(days=1)
_COMPLETE = "complete"


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
                connection, name, own, first_seen[_noted(name)], now, off=settings.days_off(name, on_weekends=True)
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
    names = [_noted(name) for name in limits]
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


def _noted(name: str) -> str:
    return f"fresh:{name}"
