"""A time of day in a place: "06:30 Asia/Kolkata"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_DAILY = re.compile(r"([01]\d|2[0-3]):([0-5]\d) (\S+)")


@dataclass(frozen=True, slots=True)
class Daily:
    """A moment of every day, on the wall of one place."""

    hour: int
    minute: int
    zone: ZoneInfo

    @classmethod
    def of(cls, option: str, text: str, *, or_else: str = "") -> Daily:
        """Read "HH:MM Area/City"."""
        match = _DAILY.fullmatch(text) if isinstance(text, str) else None
        if not match:
            raise ValueError(f'{option} must be "HH:MM Area/City"{or_else}, not {text!r}')
        try:
            zone = ZoneInfo(match[3])
        except (KeyError, ValueError, OSError):
            raise ValueError(
                f'{option} names an unknown time zone {match[3]!r}; write one like "America/New_York"'
            ) from None
        return cls(int(match[1]), int(match[2]), zone)

    def after(self, now: datetime) -> datetime:
        """When it comes next, in UTC."""
        local = now.astimezone(self.zone)
        at = local.replace(hour=self.hour, minute=self.minute, second=0, microsecond=0, fold=0)
        if at.astimezone(UTC) <= now:
            # The next day on the wall, not 24 hours on: the zone may change its offset in between.
            at = (at.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=self.zone)
        return at.astimezone(UTC)
