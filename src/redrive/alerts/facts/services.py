"""Snapshots of services, read from the sums that all processes add to; used by the collector of levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    func,
    literal,
    or_,
    select,
)

from redrive.alerts.conditions import NO_LONGER
from redrive.alerts.facts.snapshot import Minute, ServiceSnapshot, Window
from redrive.calls.metrics.window import MINUTES_KEPT, QUARTER
from redrive.store.schema import alerts, breakers, runs, service_minutes, service_rollups

_MINUTES = timedelta(seconds=MINUTES_KEPT)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
SPAN = _HOUR + timedelta(seconds=QUARTER)  # four full quarters and the current one
_DAYS = 7
"""Number of earlier days whose same hours are the baseline of the last hour."""
FEW = 500
"""If the same hours have fewer successes, all hours of these days are the baseline: the service is rarely called."""
_ABOUT_FAULTS = ("down", "5xx", "retries")
"""Suffixes of keys of alerts about failures of a service; older versions used separate alerts for the last two."""

_FAILED = (
    service_rollups.c.calls_failed
    - sum((service_rollups.c[name] for name in ("permanent", "row", "resource", "failed_auth")), start=literal(0))
).label("failed")
"""Calls that failed because of the service. Each permanent failure ends its call, so it counts as one call."""

Quarters = Iterable[tuple[datetime, Window]]
"""Quarters of an hour, each with its start."""
Span = tuple[datetime, datetime]


def services(connection: Connection, *, now: datetime) -> list[ServiceSnapshot]:
    """Return every service with calls within a day: its last hour, its baseline, and its last minutes."""
    names = _names(connection)
    if not names:
        return []
    column = service_rollups.c
    hour = last_hour(now)
    sums: dict[str, ColumnElement[Any]] = {
        **{
            name: _sum(column[name], column.at >= hour)
            for name in ("failed_4xx", "failed_404", "streaks_5xx", "failed_auth")
        },
        "last_auth_failure": func.max(column.last_failed_auth, type_=column.at.type),
        "last_success": func.max(column.last_success, type_=column.at.type),
        # Windows that were written by older versions.
        "quarter_auth_failure": _last_quarter((column.failed_auth > 0) & column.last_failed_auth.is_(None)),
        "quarter_success": _last_quarter((column.successes > 0) & column.last_success.is_(None)),
    }
    summed = (
        select(column.service, *(column.label(name) for name, column in sums.items()))
        .where(column.service.in_(names), column.at >= hour - _DAY)
        .group_by(column.service)
        .order_by(column.service)
    )
    minutes, suffering = _minutes(connection, names, now), _affected_pipelines(connection, now)
    probes = next_probes(connection, names, now)
    compared, troubles = _read_quarters(connection, names, hour), _troubles(connection, now)
    snapshots = []
    for row in connection.execute(summed).all():
        values = dict(row._mapping)
        name = values.pop("service")
        refused_in, success_in = values.pop("quarter_auth_failure"), values.pop("quarter_success")
        if refused_in is not None:
            refused_in += timedelta(seconds=QUARTER)
        values["last_auth_failure"] = _latest(values["last_auth_failure"], refused_in)
        values["last_success"] = _latest(values["last_success"], success_in)
        quarters = compared.get(name, [])
        usual = usual_windows(quarters, hour, troubles.get(name, ()))
        if quarters and quarters[-1][0] >= hour and sum(window.successes for window in usual) < FEW:
            usual = usual_windows(_all_hours(connection, name, hour), hour, troubles.get(name, ()))
        snapshots.append(
            ServiceSnapshot(
                name=name,
                minutes=minutes.get(name, ()),
                used_by=suffering.get(name, ()),
                next_probe=probes.get(name),
                quarters=tuple(window for at, window in quarters if at >= hour),
                usual=usual,
                **values,
            )
        )
    return snapshots


def next_probes(connection: Connection, names: Collection[str], now: datetime) -> dict[str, datetime]:
    """Return when the open circuits of these services let the next probe through, by service."""
    column = breakers.c
    soonest = (
        select(column.service, func.min(column.retry_at))
        .where(column.service.in_(names), column.state == "open", column.retry_at > now)
        .group_by(column.service)
    )
    return {service: at for service, at in connection.execute(soonest) if at is not None}


def last_hour(now: datetime) -> datetime:
    """Return the start of the last hour: four full quarters before the current one."""
    return now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0) - _HOUR


def usual_windows(quarters: Quarters, hour: datetime, troubles: Collection[Span]) -> tuple[Window, ...]:
    """Return one window for each earlier day, the newest first, without quarters in which an alert stood.

    An alert is based on the figures of an hour, so the hour before it started is left out, too.

    Args:
        quarters: Quarters of an hour, each with its start.
        hour: The start of the last hour.
        troubles: Start and end of alerts about the service.
    """
    days: defaultdict[int, Window] = defaultdict(Window)
    quarter = timedelta(seconds=QUARTER)
    for at, window in quarters:
        if at < hour and not any(at < ends and at + quarter > begins - SPAN for begins, ends in troubles):
            days[(hour - at + SPAN - quarter) // _DAY] += window
    return tuple(days[day] for day in sorted(days))


def _read_quarters(
    connection: Connection, names: list[str], hour: datetime
) -> dict[str, list[tuple[datetime, Window]]]:
    """Return the quarters of the last hour, and of the same hours of the days before, by service."""
    at = service_rollups.c.at
    before = (and_(at >= hour - day * _DAY, at < hour - day * _DAY + SPAN) for day in range(1, _DAYS + 1))
    wanted = _quarters().where(service_rollups.c.service.in_(names), or_(at >= hour, *before))
    quarters = defaultdict(list)
    for row in connection.execute(wanted):
        quarters[row.service].append(_window(row))
    return quarters


def _all_hours(connection: Connection, name: str, hour: datetime) -> list[tuple[datetime, Window]]:
    at = service_rollups.c.at
    wanted = _quarters().where(service_rollups.c.service == name, at >= hour - _DAYS * _DAY, at < hour)
    return [_window(row) for row in connection.execute(wanted)]


def _quarters() -> Select[Any]:
    column = service_rollups.c
    return select(column.service, column.at, column.calls, _FAILED, column.successes, column.retries).order_by(
        column.at
    )


def _window(row: Row[Any]) -> tuple[datetime, Window]:
    figures = Window(calls=row.calls, failed=max(0, row.failed), successes=row.successes, retries=row.retries)
    return row.at, figures


def _troubles(connection: Connection, now: datetime) -> dict[str, list[Span]]:
    """Return when alerts about the failures of services stood, by service.

    An alert that an operator has closed does not count: what the service did then is accepted, and usual from now on.
    """
    column = alerts.c
    stood = select(column.key, column.since, column.resolved_at).where(
        column.key.startswith("service:", autoescape=True),
        column.opened_at.is_not(None),
        or_(column.resolved_at.is_(None), column.resolved_at >= now - (_DAYS + 1) * _DAY),
        or_(column.resolution.is_(None), column.resolution == NO_LONGER),
    )
    spans = defaultdict(list)
    for key, since, resolved_at in connection.execute(stood):
        name, _, what = key.removeprefix("service:").rpartition(":")
        if what in _ABOUT_FAULTS:
            spans[name].append((since, resolved_at or now))
    return spans


def _names(connection: Connection) -> list[str]:
    """Return the names of all services, with one index lookup for each instead of a scan of all windows."""
    first = select(func.min(service_rollups.c.service).label("name")).cte("names", recursive=True)
    beyond = select(func.min(service_rollups.c.service)).where(service_rollups.c.service > first.c.name)
    each = first.union_all(select(beyond.scalar_subquery()).where(first.c.name.is_not(None)))
    return list(connection.execute(select(each.c.name).where(each.c.name.is_not(None))).scalars())


def _minutes(connection: Connection, names: list[str], now: datetime) -> dict[str, tuple[Minute, ...]]:
    column = service_minutes.c
    late = select(service_minutes).where(column.service.in_(names), column.at >= now - _MINUTES).order_by(column.at)
    minutes = defaultdict(list)
    for row in connection.execute(late):
        minutes[row.service].append(Minute(at=row.at, attempts=row.attempts, faults=row.faults))
    return {name: tuple(values) for name, values in minutes.items()}


def _affected_pipelines(connection: Connection, now: datetime) -> dict[str, tuple[str, ...]]:
    """Return the pipelines whose runs were ended by a service within the last day, by service."""
    column = runs.c
    ended = (
        select(column.error_service, column.pipeline_name)
        .where(column.started_at >= now - _DAY, column.error_service.is_not(None))
        .distinct()
        .order_by(column.error_service, column.pipeline_name)
    )
    pipelines = defaultdict(list)
    for service, pipeline in connection.execute(ended):
        pipelines[service].append(pipeline)
    return {service: tuple(names) for service, names in pipelines.items()}


def _sum(column: ColumnElement[int], within: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((within, column), else_=0)), 0).cast(BigInteger)


def _latest(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _last_quarter(where: ColumnElement[bool]) -> ColumnElement[datetime]:
    at = service_rollups.c.at
    return func.max(case((where, at)), type_=at.type)
