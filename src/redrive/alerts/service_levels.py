"""Services of late, from the sums that all processes add to."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, case, func, select

from redrive.alerts.picture import Minute, ServicePicture
from redrive.calls.rollups import QUARTER
from redrive.store.schema import runs, service_minutes, service_rollups

_MINUTES = timedelta(hours=2)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


def services(connection: Connection, *, now: datetime) -> list[ServicePicture]:
    """Every service that did anything within a day: its last hour, the day before that, its last minutes."""
    names = _names(connection)
    if not names:
        return []
    column = service_rollups.c
    hour = _quarter(now) - _HOUR  # four full quarters, and the one that is under way
    sums: dict[str, ColumnElement[Any]] = {
        **{
            name: _sum(column[name], column.at >= hour)
            for name in ("successes", "retries", "failed_4xx", "failed_404", "streaks_5xx", "failed_auth")
        },
        **{f"{name}_before": _sum(column[name], column.at < hour) for name in ("successes", "retries")},
        "last_auth_failure": _last(column.failed_auth > 0),
        "last_success": _last(column.successes > 0),
    }
    summed = (
        select(column.service, *(one.label(name) for name, one in sums.items()))
        .where(column.service.in_(names), column.at >= hour - _DAY)
        .group_by(column.service)
        .order_by(column.service)
    )
    minutes, suffering = _minutes(connection, names, now), _suffering(connection, now)
    found = []
    for row in connection.execute(summed):
        values = dict(row._mapping)
        name = values.pop("service")
        for moment in ("last_auth_failure", "last_success"):
            began = values.pop(moment)
            values[moment] = None if began is None else began + timedelta(seconds=QUARTER)
        found.append(
            ServicePicture(name=name, minutes=minutes.get(name, ()), used_by=suffering.get(name, ()), **values)
        )
    return found


def _names(connection: Connection) -> list[str]:
    """The services there are, each by one step along the index: their windows of months need not be read for that."""
    first = select(func.min(service_rollups.c.service).label("name")).cte("names", recursive=True)
    beyond = select(func.min(service_rollups.c.service)).where(service_rollups.c.service > first.c.name)
    each = first.union_all(select(beyond.scalar_subquery()).where(first.c.name.is_not(None)))
    return list(connection.execute(select(each.c.name).where(each.c.name.is_not(None))).scalars())


def _minutes(connection: Connection, names: list[str], now: datetime) -> dict[str, tuple[Minute, ...]]:
    column = service_minutes.c
    late = select(service_minutes).where(column.service.in_(names), column.at >= now - _MINUTES).order_by(column.at)
    found = defaultdict(list)
    for row in connection.execute(late):
        found[row.service].append(Minute(at=row.at, attempts=row.attempts, faults=row.faults))
    return {name: tuple(listed) for name, listed in found.items()}


def _suffering(connection: Connection, now: datetime) -> dict[str, tuple[str, ...]]:
    """The pipelines whose runs of the last day a service has ended."""
    column = runs.c
    ended = (
        select(column.error_service, column.pipeline_name)
        .where(column.started_at >= now - _DAY, column.error_service.is_not(None))
        .distinct()
        .order_by(column.error_service, column.pipeline_name)
    )
    found = defaultdict(list)
    for service, pipeline in connection.execute(ended):
        found[service].append(pipeline)
    return {service: tuple(listed) for service, listed in found.items()}


def _sum(column: ColumnElement[int], within: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((within, column), else_=0)), 0).cast(BigInteger)


def _last(where: ColumnElement[bool]) -> ColumnElement[datetime]:
    at = service_rollups.c.at
    return func.max(case((where, at)), type_=at.type)


def _quarter(moment: datetime) -> datetime:
    return moment.replace(minute=moment.minute // 15 * 15, second=0, microsecond=0)
