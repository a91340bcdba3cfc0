"""Which deadlines a pipeline is expected to keep, learned from the days on which it ran."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta

from redrive.policy.daily import Daily

_WEEK = timedelta(days=7)
_YOUNG = timedelta(days=8)
KNOWN = timedelta(days=15)
"""How far back starts have to be known for all of this."""


def last_deadline(sla: Daily, now: datetime) -> datetime:
    """The deadline that passed last; at the moment itself, this one."""
    return sla.before(now)


def is_expected(
    sla: Daily, days: frozenset[int] | None, starts: Sequence[datetime], first_seen: datetime, deadline: datetime
) -> bool:
    """Whether there should be a run that is done by this deadline.

    days        the weekdays of its deadlines, Monday being 0, where they are set; else they are learned
    starts      when its runs began, of the last `KNOWN`
    first_seen  when it first ran at all: what came before that was not missed

    A run has the next deadline after its start. One is expected where it has begun, or where there was one for the same
    weekday last week: so a weekly file is missed on its own day, and what was given up is not missed for longer than a
    week. A day on which it failed to run last week does not hide it this week, if it has run since. What is not known
    for a week yet is expected after two days in a row.
    """
    if first_seen > deadline:
        return False
    day = deadline.astimezone(sla.zone).date()
    if days is not None:
        return day.weekday() in days
    ran = {_deadline_day(sla, start) for start in starts}
    if day in ran or day - _WEEK in ran:
        return True
    if day - 2 * _WEEK in ran and any(day - _WEEK < one < day for one in ran):
        return True
    return deadline - first_seen < _YOUNG and {day - timedelta(days=1), day - timedelta(days=2)} <= ran


def _deadline_day(sla: Daily, start: datetime) -> date:
    return sla.after(start).astimezone(sla.zone).date()
