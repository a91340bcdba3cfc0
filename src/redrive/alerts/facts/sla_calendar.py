"""Daily deadlines that a pipeline is expected to meet, learned from the days on which it ran. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from redrive.policy.time_of_day import TimeOfDay

_WEEK = timedelta(days=7)
_YOUNG = timedelta(days=8)
KNOWN = timedelta(days=15)
"""Age of the oldest run whose start must be known."""
BACK = 7
"""Number of deadlines before the last one that are searched for an expected one."""
_LONGEST_OFF = 31  # maximum number of consecutive days off that are skipped
_LATELY = 7  # number of deadlines from which the usual lead time is learned
_TWICE = 2
_EARLY = timedelta(hours=1)
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RunStart:
    """A start of a run, or the time at which a run was resumed."""

    at: datetime
    done_at: datetime | None = None
    """When the run completed."""


def last_deadline(sla: TimeOfDay, now: datetime) -> datetime:
    """Return the last deadline that has passed; at the time of a deadline, that one."""
    return sla.before(now)


def day_of(sla: TimeOfDay, deadline: datetime) -> date:
    """Return the day of a deadline in its time zone."""
    return deadline.astimezone(sla.zone).date()


def is_expected(
    sla: TimeOfDay,
    days: frozenset[int] | None,
    ran: Set[date],
    first_seen: datetime,
    deadline: datetime,
    *,
    off: Container[date] = (),
) -> bool:
    """Return whether a run is expected to be complete by this deadline.

    A run is expected if one has started, or if one ran for the same weekday last week. So a weekly file is missed on
    its own day, and a pipeline that was stopped for good is missed for a week at most. A weekday that was missed last
    week is still expected this week if the pipeline has run since. A pipeline that is new is expected after two
    consecutive days.

    Args:
        sla: The time of day of the deadlines.
        days: The weekdays of its deadlines, with Monday as 0; None to learn them.
        ran: The days of the deadlines that it ran for, within the last `KNOWN`.
        first_seen: When it first ran; earlier deadlines were not missed.
        deadline: The deadline.
        off: Days on which no run is expected.
    """
    if first_seen > deadline:
        return False
    day = day_of(sla, deadline)
    if day in off:
        return False
    if days is not None:
        return day.weekday() in days
    if day in ran or day - _WEEK in ran:
        return True
    if day - 2 * _WEEK in ran and any(day - _WEEK < ran_on < day for ran_on in ran):
        return True
    return deadline - first_seen < _YOUNG and {day - timedelta(days=1), day - timedelta(days=2)} <= ran


def with_days_off(ran: Set[date], off: Container[date], until: date) -> Set[date]:
    """Return the days that it ran for and the days off on which it would have run, by the same weekday before.

    Otherwise a pipeline that does not run on two consecutive Fridays, at Christmas and at New Year, would not be missed
    on the third.
    """
    expected = set(ran)
    day = min(expected, default=until)
    while day < until:
        if day in off and day - _WEEK in expected:
            expected.add(day)
        day += timedelta(days=1)
    return expected


def last_expected(
    sla: TimeOfDay,
    days: frozenset[int] | None,
    ran: Set[date],
    first_seen: datetime,
    last: datetime,
    *,
    off: Container[date] = (),
) -> datetime | None:
    """Return the last deadline at or before `last` that was expected to be met; None if there was none for a week.

    A deadline that was missed stays missed on a following day without a run, and on any number of days off.
    """
    deadline, left = last, BACK
    for _ in range(BACK + _LONGEST_OFF):
        if is_expected(sla, days, ran, first_seen, deadline, off=off):
            return deadline
        left -= day_of(sla, deadline) not in off
        if not left:
            break
        deadline = last_deadline(sla, deadline - _MOMENT)
    return None


def match_deadlines(
    sla: TimeOfDay,
    days: frozenset[int] | None,
    starts: Iterable[RunStart],
    first_seen: datetime,
    *,
    off: Container[date] = (),
) -> list[tuple[RunStart, datetime]]:
    """Return the starts in their order, each with the deadline that it was for.

    That is the next deadline after the start. But a run that starts after a missed deadline, and long before the usual
    start for the next one, makes up for the missed one, and the next deadline must still be met.
    """
    matched: list[tuple[RunStart, datetime]] = []
    ran: set[date] = set()
    leads = _LeadTimes(sla)
    for start in sorted(starts, key=lambda start: start.at):
        following, missed = sla.after(start.at), None
        if following - start.at > leads.usual(following):
            missed = last_expected(sla, days, ran, first_seen, last_deadline(sla, start.at), off=off)
            if missed is not None and _is_met(matched, missed, start.at):
                missed = None
        leads.note(following, start.at, makes_up=missed is not None)
        ran.add(day_of(sla, missed or following))
        matched.append((start, missed or following))
    return matched


def _is_met(matched: Iterable[tuple[RunStart, datetime]], deadline: datetime, now: datetime) -> bool:
    """Return whether a run for this deadline or a later one was complete at this time."""
    return any(start.done_at is not None and start.done_at <= now and due >= deadline for start, due in matched)


class _LeadTimes:
    """Times from the starts of a pipeline to its deadlines."""

    def __init__(self, sla: TimeOfDay) -> None:
        self._sla = sla
        self._leads: dict[datetime, tuple[bool, timedelta]] = {}

    def note(self, deadline: datetime, at: datetime, *, makes_up: bool) -> None:
        """Record a start before this deadline. One that made up for another deadline counts only if it is alone."""
        known = self._leads.get(deadline)
        if known is None or known[0] > makes_up:
            self._leads[deadline] = makes_up, deadline - at

    def usual(self, deadline: datetime) -> timedelta:
        """Return the longest usual lead time for this deadline: as early as the pipeline has lately started twice.

        A start that made up for another deadline is early, and one is not enough to count as usual. If a pipeline
        starts earlier from now on, that is learned on the third day. For a new pipeline, the nearer deadline counts.
        """
        before = [lead for known, (_, lead) in self._leads.items() if known < deadline]
        if len(before) < _TWICE:
            return (deadline - last_deadline(self._sla, deadline - _MOMENT)) / 2
        return sorted(before[-_LATELY:])[-_TWICE] + _EARLY
