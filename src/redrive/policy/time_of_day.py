"""A time of day in a time zone, such as "06:30 Asia/Kolkata": for the SLAs of runs and the resets of keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from redrive.policy import option_checks

_DAILY = re.compile(r"([01]\d|2[0-3]):([0-5]\d) (\S+)")


def checked_sla(sla: object) -> TimeOfDay | float | None:
    """Return an SLA: a time of day, or seconds from the start of the run.

    Raises:
        ValueError: the SLA is neither.
    """
    if sla is None:
        return None
    if isinstance(sla, int | float) and not isinstance(sla, bool):
        return option_checks.seconds("sla", sla, above=0)
    return TimeOfDay.of("sla", sla, alternative=" or seconds from the start of the run")  # type: ignore[arg-type]


def due_at(sla: TimeOfDay | float | None, start: datetime) -> datetime | None:
    """Return when a run that starts at `start` is due."""
    if sla is None:
        return None
    return sla.after(start) if isinstance(sla, TimeOfDay) else start + timedelta(seconds=sla)


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """A time of every day, by the local clock of a time zone."""

    hour: int
    minute: int
    zone: ZoneInfo

    @classmethod
    def of(cls, option: str, text: str, *, alternative: str = "") -> TimeOfDay:
        """Return the time of day that `text` states as "HH:MM Area/City"."""
        match = _DAILY.fullmatch(text) if isinstance(text, str) else None
        if not match:
            raise ValueError(f'{option} must be "HH:MM Area/City"{alternative}, not {text!r}')
        try:
            zone = ZoneInfo(match[3])
        except (KeyError, ValueError, OSError):
            raise ValueError(
                f'{option} names an unknown time zone {match[3]!r}; write one like "America/New_York"'
            ) from None
        return cls(int(match[1]), int(match[2]), zone)

    def __str__(self) -> str:
        return f"{self.hour:02}:{self.minute:02} {self.zone.key}"

    def on(self, day: date) -> datetime:
        """Return when it is on this local day, in UTC; a time that the clock skips that day comes as much later."""
        return datetime(day.year, day.month, day.day, self.hour, self.minute, tzinfo=self.zone).astimezone(UTC)

    def after(self, now: datetime) -> datetime:
        """Return the next time after `now`, in UTC."""
        today = now.astimezone(self.zone).date()
        at = self.on(today)
        # The next local day, not 24 hours later: the zone may change its offset in between.
        return at if at > now else self.on(today + timedelta(days=1))

    def before(self, now: datetime) -> datetime:
        """Return the last time up to and including `now`, in UTC."""
        today = now.astimezone(self.zone).date()
        at = self.on(today)
        return at if at <= now else self.on(today - timedelta(days=1))
