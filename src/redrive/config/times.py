"""Checks of times of day, time zones, dates and weekdays in settings."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo, available_timezones

from redrive.config.located import Located, listed, nearest, shown
from redrive.config.value_kinds import text

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_GROUPS = {"weekdays": frozenset(range(5)), "daily": frozenset(range(7))}
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_LONGEST_ZONE = 40


def time_of_day(at: Located) -> time:
    """Return a local time: "22:00", or as TOML has it, 22:00:00."""
    if isinstance(at.value, time):
        return at.value
    match = _TIME.fullmatch(text(at))
    if match is None:
        raise at.wrong(f'must be a time of day such as "06:30", not {shown(at.value)}')
    return time(int(match[1]), int(match[2]))


def zone(at: Located) -> ZoneInfo:
    """Return the time zone of that name."""
    name = text(at)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        near = _suggest_zone(name)
        hint = f"did you mean {near!r}?" if near else 'write one like "Europe/Berlin"'
        quoted = shown(name, longest=_LONGEST_ZONE)
        raise at.wrong(f"names an unknown time zone {quoted}; {hint}") from None


def moment(at: Located, local_zone: ZoneInfo | None) -> datetime:
    """Return a date and a time: 2026-12-24T18:00:00+01:00, or without the offset where a zone is set."""
    value = at.value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise at.wrong(f'must be a date and a time such as "2026-12-24 18:00", not {shown(at.value)}') from None
    if not isinstance(value, datetime):
        raise at.wrong("must be a date and a time, such as 2026-12-24T18:00:00+01:00")
    if value.tzinfo is None and local_zone is None:
        raise at.wrong('has no time zone: add an offset such as +01:00, or zone = "Europe/Berlin"')
    return (value if value.tzinfo is not None else value.replace(tzinfo=local_zone)).astimezone(UTC)


def weekdays(at: Located) -> frozenset[int]:
    """Return days of the week, Monday being 0: ["mon", "thu"], "weekdays" or "daily"."""
    if isinstance(at.value, str):
        return _GROUPS[at.value] if at.value in _GROUPS else frozenset({_weekday(at)})
    days = [_weekday(entry) for entry in at.entries('weekdays, as in ["mon", "thu"]')]
    if not days:
        raise at.wrong("names no day; leave it out where the days are to be learned from the runs")
    return frozenset(days)


def _weekday(at: Located) -> int:
    name = text(at)
    if name not in WEEKDAYS:
        near = nearest(name, (*WEEKDAYS, *_GROUPS))
        hint = f"did you mean {near!r}?" if near else f'there are {listed(WEEKDAYS)}, and "weekdays" and "daily"'
        raise at.wrong(f"names an unknown day {shown(name)}; {hint}")
    return WEEKDAYS.index(name)


def _suggest_zone(name: str) -> str | None:
    """Return the zone of that city, or the one that is spelled most like it."""
    known = sorted(available_timezones())
    city = name.replace(" ", "_").lower()
    of_city = [zone for zone in known if zone.lower().endswith(f"/{city}")]
    return of_city[0] if of_city else nearest(name, known)
