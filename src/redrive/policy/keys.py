"""Several keys for one service: which to use, which are cooling down, until when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from redrive.policy import checks
from redrive.policy.token import Token

_DAILY = re.compile(r"([01]\d|2[0-3]):([0-5]\d) (\S+)")


class KeyPool:
    """Keys, or one `Token` per account, of which the least-failed viable one is used.

    resets  when a used-up key is good again: "00:00 America/Los_Angeles" (every day), or seconds, or a timedelta
    """

    __slots__ = ("_daily", "keys", "resets")

    def __init__(self, keys: Sequence[str | Token], *, resets: str | float | timedelta = 3600.0) -> None:
        if isinstance(keys, str) or not all(isinstance(key, str | Token) and key for key in keys):
            raise TypeError("KeyPool takes a list of non-empty strings or Tokens")
        if not keys:
            raise ValueError("KeyPool needs at least one key")
        if len(set(keys)) != len(keys):
            raise ValueError("KeyPool was given the same key twice")
        self.keys = tuple(keys)
        self.resets = resets
        self._daily = _daily_reset(resets) if isinstance(resets, str) else None
        if self._daily is None:
            span = resets.total_seconds() if isinstance(resets, timedelta) else resets
            checks.seconds("resets", span, above=0)  # type: ignore[arg-type]  # a str is a daily reset

    def __repr__(self) -> str:
        return f"KeyPool({len(self.keys)} keys, resets={self.resets!r})"

    def next_reset(self, now: datetime) -> datetime:
        """When a key that is used up at `now` is good again, in UTC."""
        if self._daily is None:
            span = self.resets if isinstance(self.resets, timedelta) else timedelta(seconds=float(self.resets))
            return now + span
        hour, minute, zone = self._daily
        local = now.astimezone(zone)
        at = local.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0)
        if at.astimezone(UTC) <= now:
            # The next day on the wall, not 24 hours on: the zone may change its offset in between.
            at = (at.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
        return at.astimezone(UTC)


def _daily_reset(text: str) -> tuple[int, int, ZoneInfo]:
    match = _DAILY.fullmatch(text)
    if not match:
        raise ValueError(f'resets must be "HH:MM Area/City", seconds or a timedelta, not {text!r}')
    try:
        zone = ZoneInfo(match[3])
    except (KeyError, ValueError, OSError):
        raise ValueError(f'resets names an unknown time zone {match[3]!r}; write one like "America/New_York"') from None
    return int(match[1]), int(match[2]), zone


@dataclass(slots=True)
class Slot:
    """The record of one key."""

    failures: int = 0
    until: datetime | None = None
    """Not to be used before."""
    drained: bool = False
    """Used up for its period, rather than told to pause for a moment."""


class Pool:
    """Which key is next; its caller passes the time in and holds the lock."""

    def __init__(self, size: int) -> None:
        self._slots = [Slot() for _ in range(size)]

    def pick(self, now: datetime) -> int | None:
        """The viable key that failed least, the first of them where several did; None where all are cooling down."""
        viable = [index for index, slot in enumerate(self._slots) if slot.until is None or slot.until <= now]
        return min(viable, key=lambda index: self._slots[index].failures, default=None)

    def cool(self, index: int, until: datetime, *, drained: bool) -> None:
        """Put a key out of use. A pause never shortens a longer cool-down."""
        slot = self._slots[index]
        if slot.until is None or until > slot.until:
            slot.until, slot.drained = until, drained

    def blame(self, index: int) -> None:
        """The key failed: others come first from now on."""
        self._slots[index].failures += 1

    def forgive(self, index: int) -> None:
        """A success clears the key's record; a cool-down that began meanwhile stands."""
        self._slots[index].failures = 0

    def failures(self, index: int) -> int:
        """How often the key failed since its last success."""
        return self._slots[index].failures

    def next_viable(self) -> datetime:
        """When the first of the cooling keys is good again; only asked while all of them cool."""
        return min(slot.until for slot in self._slots if slot.until is not None)

    def pause_ends(self) -> datetime | None:
        """When the first key that is only pausing (not drained) is good again."""
        return min((slot.until for slot in self._slots if slot.until is not None and not slot.drained), default=None)
