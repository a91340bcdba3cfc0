"""Which deadlines a pipeline is expected to keep, learned from the days on which it ran."""

from __future__ import annotations

from collections.abc import Container, Iterable, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from redrive.policy.time_of_day import TimeOfDay

_WEEK = timedelta(days=7)
_YOUNG = timedelta(days=8)
KNOWN = timedelta(days=15)
"""How far back turns have to be known for all of this."""
BACK = 7
"""Deadlines that are looked back at for one that was expected."""
_LONGEST_OFF = 31  # days off in a row that are looked past
_LATELY = 7  # deadlines that say how early it usually begins
_TWICE = 2
_EARLY = timedelta(hours=1)
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RunStart:
    """One time that it began, or was gone on with."""

    at: datetime
    done_at: datetime | None = None
    """When the run that began then was complete."""


def last_deadline(sla: TimeOfDay, now: datetime) -> datetime:
    """The deadline that passed last; at the moment itself, this one."""
    return sla.before(now)


def day_of(sla: TimeOfDay, deadline: datetime) -> date:
    """The day of a deadline, in its place."""
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
    """Whether there should be a run that is done by this deadline.

    days        the weekdays of its deadlines, Monday being 0, where they are set; else they are learned
    ran         the days of the deadlines that it ran for, of the last `KNOWN`
    first_seen  when it first ran at all: what came before that was not missed
    off         days on which nothing is expected

    One is expected where it has begun, or where there was one for the same weekday last week: so a weekly file is
    missed on its own day, and what was given up is not missed for longer than a week. A day on which it failed to run
    last week does not hide it this week, if it has run since. What is not known for a week yet is expected after two
    days in a row.
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
    if day - 2 * _WEEK in ran and any(day - _WEEK < one < day for one in ran):
        return True
    return deadline - first_seen < _YOUNG and {day - timedelta(days=1), day - timedelta(days=2)} <= ran


def with_days_off(ran: Set[date], off: Container[date], until: date) -> Set[date]:
    """The days that it ran for, and the days off on which it would have run: the same weekday before says so.

    Without these, what does not run on two Fridays in a row, at Christmas and at New Year, would not be missed on the
    third.
    """
    found = set(ran)
    day = min(found, default=until)
    while day < until:
        if day in off and day - _WEEK in found:
            found.add(day)
        day += timedelta(days=1)
    return found


def last_expected(
    sla: TimeOfDay,
    days: frozenset[int] | None,
    ran: Set[date],
    first_seen: datetime,
    last: datetime,
    *,
    off: Container[date] = (),
) -> datetime | None:
    """The last deadline that was expected to be kept, from this one back; None where there was none for a week.

    A day on which it does not run hides nothing: what was missed on the day before is missed still. Nor does a day off,
    however many there are in a row.
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


def meant(
    sla: TimeOfDay,
    days: frozenset[int] | None,
    turns: Iterable[RunStart],
    first_seen: datetime,
    *,
    off: Container[date] = (),
) -> list[tuple[RunStart, datetime]]:
    """The turns in their order, and the deadline that each was for.

    That is the next one after it. But what begins behind a deadline that was missed, and long before it usually begins
    for the next one, makes up for what was missed: the next deadline is still to be kept.
    """
    found: list[tuple[RunStart, datetime]] = []
    ran: set[date] = set()
    leads = _LeadTimes(sla)
    for turn in sorted(turns, key=lambda one: one.at):
        following, missed = sla.after(turn.at), None
        if following - turn.at > leads.usual(following):
            missed = last_expected(sla, days, ran, first_seen, last_deadline(sla, turn.at), off=off)
            if missed is not None and _is_kept(found, missed, turn.at):
                missed = None
        leads.note(following, turn.at, makes_up=missed is not None)
        ran.add(day_of(sla, missed or following))
        found.append((turn, missed or following))
    return found


def _is_kept(found: Iterable[tuple[RunStart, datetime]], deadline: datetime, now: datetime) -> bool:
    """Whether by now something is done that was meant for this deadline, or for a later one."""
    return any(turn.done_at is not None and turn.done_at <= now and one >= deadline for turn, one in found)


class _LeadTimes:
    """How long before its deadlines it begins."""

    def __init__(self, sla: TimeOfDay) -> None:
        self._sla = sla
        self._leads: dict[datetime, tuple[bool, timedelta]] = {}

    def note(self, deadline: datetime, at: datetime, *, makes_up: bool) -> None:
        """Note when it began before this deadline; what made up for another one counts where there is nothing else."""
        known = self._leads.get(deadline)
        if known is None or known[0] > makes_up:
            self._leads[deadline] = makes_up, deadline - at

    def usual(self, deadline: datetime) -> timedelta:
        """At most so long before this one, going by those before: as early as it has begun twice of late.

        What made up for another one is early, and once is not enough to make that usual; but where it begins earlier
        from now on, that is understood on the third day. Of what is new it is only known what is nearer.
        """
        before = [lead for one, (_, lead) in self._leads.items() if one < deadline]
        if len(before) < _TWICE:
            return (deadline - last_deadline(self._sla, deadline - _MOMENT)) / 2
        return sorted(before[-_LATELY:])[-_TWICE] + _EARLY
