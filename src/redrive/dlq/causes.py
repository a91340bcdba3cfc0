"""Causes: letters grouped by fingerprint, from the counts that the database keeps as letters come and go.

Whole hours are read from `cause_hours`; the hour that a span cuts, and conditions the counts know nothing of (a run, a
key), are counted letter by letter. Both ways give the same numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, select, true

from redrive.dlq.filters import Filter, of_cause
from redrive.model.letters import Cause
from redrive.store.schema import STATUSES, cause_hours, causes, letters

TREND_DAYS = 7
_FEW = 500  # causes that are asked for by name; beyond, reading all of them is quicker
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


@dataclass(slots=True)
class _Group:
    by_status: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    seen: int = 0
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    pipelines: set[str] = field(default_factory=set)

    def add(self, row: Any) -> None:
        """Add a row of counts, from either table."""
        for status in STATUSES:
            self.by_status[status] += int(getattr(row, status))
        self.seen += int(row.seen)
        self.first_seen = row.first_seen if self.first_seen is None else min(self.first_seen, row.first_seen)
        self.last_seen = row.last_seen if self.last_seen is None else max(self.last_seen, row.last_seen)
        self.pipelines.add(row.pipeline_name)


def find_causes(connection: Connection, chosen: Filter, *, limit: int | None, now: datetime) -> list[Cause]:
    """The causes of a selection, those with most letters first."""
    groups: dict[str, _Group] = defaultdict(_Group)
    for statement in _statements(chosen):
        for row in connection.execute(statement):
            if chosen.status is None or any(getattr(row, status) for status in chosen.status):
                groups[row.fingerprint].add(row)
    wanted = STATUSES if chosen.status is None else cast("tuple[str, ...]", chosen.status)
    counts = {cause: sum(group.by_status[status] for status in wanted) for cause, group in groups.items()}
    # A cause that was only seen again in the span has no new letters and is still what fails today.
    named = [cause for cause, count in counts.items() if count or (chosen.status is None and groups[cause].seen)]
    named.sort(key=lambda cause: (-counts[cause], -groups[cause].seen, cause))
    return _described(connection, {cause: groups[cause] for cause in named[:limit]}, counts, chosen, now)


def _statements(chosen: Filter) -> Iterable[Select[Any]]:
    if chosen != Filter(
        pipeline=chosen.pipeline,
        cause=chosen.cause,
        error_type=chosen.error_type,
        status=chosen.status,
        since=chosen.since,
        until=chosen.until,
    ):
        yield _letter_by_letter(chosen.but(status=None))
        return
    since, until = cast("datetime | None", chosen.since), cast("datetime | None", chosen.until)
    first = None if since is None else _hour_of(since + _HOUR - timedelta(microseconds=1))
    last = None if until is None else _hour_of(until)
    if since is not None and until is not None and first is not None and last is not None and first >= last:
        yield _letter_by_letter(chosen.but(status=None))
        return
    yield _by_the_hour(chosen, first, last)
    if first is not None and since != first:
        yield _letter_by_letter(chosen.but(status=None, until=first), repeats=False)
    if last is not None and until != last:
        yield _letter_by_letter(chosen.but(status=None, since=last), repeats=False)


def _by_the_hour(chosen: Filter, first: datetime | None, last: datetime | None) -> Select[Any]:
    column = cause_hours.c
    statement = (
        select(
            column.fingerprint,
            column.pipeline_name,
            *(func.sum(column[name]).label(name) for name in (*STATUSES, "seen")),
            func.min(column.first_seen, type_=column.first_seen.type).label("first_seen"),
            func.max(column.last_seen, type_=column.last_seen.type).label("last_seen"),
        )
        .where(_same(chosen))
        .group_by(column.fingerprint, column.pipeline_name)
    )
    if first is not None:
        statement = statement.where(column.hour >= first)
    if last is not None:
        statement = statement.where(column.hour < last)
    return statement


def _same(chosen: Filter) -> Any:
    """The conditions on letters that hold for counts as well."""
    column = cause_hours.c
    conditions: list[ColumnElement[bool]] = [true()]
    if chosen.pipeline is not None:
        conditions.append(column.pipeline_name.in_(chosen.pipeline))
    if chosen.cause is not None:
        conditions.append(of_cause(column.fingerprint, chosen.cause))
    if chosen.error_type is not None:
        known = select(causes.c.fingerprint).where(causes.c.error_type.in_(chosen.error_type))
        conditions.append(column.fingerprint.in_(known))
    return and_(*conditions)


def _letter_by_letter(chosen: Filter, *, repeats: bool = True) -> Select[Any]:
    """Counts of single letters; without later sightings where those are in the hours that are read beside it."""
    column = letters.c
    return (
        select(
            column.fingerprint,
            column.pipeline_name,
            *(func.sum(case((column.status == status, 1), else_=0)).label(status) for status in STATUSES),
            (func.sum(column.seen) if repeats else func.count()).label("seen"),
            func.min(column.rejected_at, type_=column.rejected_at.type).label("first_seen"),
            func.max(column.last_seen, type_=column.last_seen.type).label("last_seen"),
        )
        .where(chosen.where())
        .group_by(column.fingerprint, column.pipeline_name)
    )


def _described(
    connection: Connection, groups: dict[str, _Group], counts: dict[str, int], chosen: Filter, now: datetime
) -> list[Cause]:
    described = select(causes)
    if len(groups) <= _FEW:
        described = described.where(causes.c.fingerprint.in_(groups))
    listed = {row.fingerprint: row for row in connection.execute(described)}
    trends = _trends(connection, groups, chosen, now)
    found = []
    for cause, group in groups.items():
        row = listed.get(cause)
        assert group.first_seen is not None
        assert group.last_seen is not None
        found.append(
            Cause(
                fingerprint=cause,
                error_type=row.error_type if row else "unknown",
                # A letter that others wrote has no fingerprint unless they gave it one.
                message=row.template if row else "(written without a fingerprint)",
                sample=row.sample if row else "",
                count=counts[cause],
                by_status={
                    status: count if chosen.status is None or status in chosen.status else 0
                    for status, count in group.by_status.items()
                },
                seen=group.seen,
                first_seen=group.first_seen,
                last_seen=group.last_seen,
                pipelines=tuple(sorted(group.pipelines)),
                trend=trends[cause],
            )
        )
    return found


def _trends(
    connection: Connection, groups: Collection[str], chosen: Filter, now: datetime
) -> dict[str, tuple[int, ...]]:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today - ago * _DAY for ago in range(TREND_DAYS - 1, -1, -1)]
    column = cause_hours.c
    counts = [
        func.sum(case((and_(column.hour >= day, column.hour < day + _DAY), column.seen), else_=0)).label(f"day_{place}")
        for place, day in enumerate(days)
    ]
    rows = connection.execute(
        select(column.fingerprint, *counts).where(column.hour >= days[0], _same(chosen)).group_by(column.fingerprint)
    )
    found = {row.fingerprint: tuple(int(count) for count in row[1:]) for row in rows if row.fingerprint in groups}
    return {cause: found.get(cause, (0,) * TREND_DAYS) for cause in groups}


def _hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
