"""`KeyPool`, several keys for one service, and its state: which key to use, and which cool down until when."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b

from redrive._internal.masking import MASK, last_four
from redrive.policy import option_checks
from redrive.policy.time_of_day import TimeOfDay
from redrive.policy.token import Token, check_secret

# Adding more to today would exceed the range of a date.
LONGEST_COOLDOWN = 10 * 365 * 86_400.0
# A key is tried again after this at the latest, whatever a server asks for: some send a date instead of seconds.
LONGEST_PAUSE = 3_600.0


class KeyPool:
    """Keys, or one `Token` per account, of which the usable one with the fewest failures is used.

    keys    at least one
    resets  when an exhausted key is good again: "00:00 America/Los_Angeles" (every day), or seconds, or a timedelta
    """

    __slots__ = ("_daily", "keys", "resets")

    def __init__(self, keys: Sequence[str | Token], *, resets: str | float | timedelta = 3600.0) -> None:
        is_list = isinstance(keys, Sequence) and not isinstance(keys, str | bytes)
        if not is_list or not all(isinstance(key, str | Token) and key for key in keys):
            raise TypeError("KeyPool takes a list of non-empty strings or Tokens")
        if not keys:
            raise ValueError("KeyPool needs at least one key")
        for key in keys:
            if isinstance(key, str):
                check_secret("a key of the pool", key)
        if len(set(keys)) != len(keys):
            raise ValueError("KeyPool was given the same key twice")
        self.keys = tuple(keys)
        self.resets = resets
        self._daily = (
            TimeOfDay.of("resets", resets, alternative=", seconds or a timedelta") if isinstance(resets, str) else None
        )
        if self._daily is None:
            span = resets.total_seconds() if isinstance(resets, timedelta) else resets
            if option_checks.seconds("resets", span, above=0) > LONGEST_COOLDOWN:  # type: ignore[arg-type]  # a str is daily
                raise ValueError("resets must be within ten years")

    def __repr__(self) -> str:
        return f"KeyPool({len(self.keys)} keys, resets={self.resets!r})"

    def next_reset(self, now: datetime) -> datetime:
        """Return when a key that is exhausted at `now` is good again, in UTC."""
        if self._daily is None:
            span = self.resets if isinstance(self.resets, timedelta) else timedelta(seconds=float(self.resets))
            return now + span
        return self._daily.after(now)


@dataclass(frozen=True, slots=True)
class KeyName:
    """The name of a key for other processes, which must not learn the key itself."""

    digest: str
    key_id: str


def name_of(key: str | Token, *, service: str, place: int) -> KeyName:
    """Return the name of a key: a digest that differs from service to service, and its last four characters.

    A token has no secret that lasts, so it is named by its position in the pool.
    """
    if isinstance(key, Token):
        return KeyName(f"token {place + 1}", f"token {place + 1}")
    salt = blake2b(service.encode()).digest()  # a digest, since a name may be longer than a key of blake2b
    shown = last_four(key) if len(key) > 4 else MASK
    return KeyName(blake2b(key.encode(), key=salt, digest_size=16).hexdigest(), shown)


@dataclass(slots=True)
class KeyState:
    """The failures and cooldowns of one key."""

    failures: int = 0
    drained_until: datetime | None = None
    """When its quota resets: by the wall clock, as resets are."""
    drained_at: float = 0.0
    """When the quota was found exhausted: monotonic."""
    paused_until: float = 0.0
    """Rate limited until then: monotonic, so that a step of the wall clock does not prolong it."""

    def viable(self, now: datetime, moment: float) -> bool:
        """Return whether the key may be used."""
        return (self.drained_until is None or self.drained_until <= now) and self.paused_until <= moment


class KeyPoolState:
    """Which key is next; the caller passes the time of both clocks in and holds the lock."""

    def __init__(self, size: int) -> None:
        self._slots = [KeyState() for _ in range(size)]

    def pick(self, now: datetime, moment: float, avoid: Collection[int] = ()) -> int | None:
        """Return the usable key that failed least, the first of several; None where all cool down.

        Args:
            avoid: keys that are not to be used.
        """
        viable = [index for index, slot in enumerate(self._slots) if slot.viable(now, moment) and index not in avoid]
        return min(viable, key=lambda index: self._slots[index].failures, default=None)

    def pick_pausing(self, now: datetime, avoid: Collection[int] = ()) -> int | None:
        """Return, of the keys that are not exhausted, the one whose pause ends first."""
        pausing = [index for index, slot in enumerate(self._slots) if slot.viable(now, math.inf) and index not in avoid]
        return min(pausing, key=lambda index: self._slots[index].paused_until, default=None)

    def drain(self, index: int, until: datetime, moment: float) -> bool:
        """Put an exhausted key out of use until `until`; return whether that is later than was known."""
        slot = self._slots[index]
        is_news = slot.drained_until is None or until > slot.drained_until
        if is_news:
            slot.drained_until, slot.drained_at = until, moment
        return is_news

    def refill(self, before: float) -> list[int]:
        """Put the keys that were drained before this moment back to use, and return them."""
        refilled = [
            index
            for index, slot in enumerate(self._slots)
            if slot.drained_until is not None and slot.drained_at < before
        ]
        for index in refilled:
            self._slots[index] = KeyState()
        self.resume()
        return refilled

    def resume(self) -> None:
        """End all pauses."""
        for slot in self._slots:
            slot.paused_until = 0.0

    def pause(self, index: int, until: float) -> None:
        """Put a rate-limited key out of use until `until`."""
        slot = self._slots[index]
        slot.paused_until = max(slot.paused_until, until)

    def blame(self, index: int) -> None:
        """Record a failure of the key, so that others come first from now on."""
        self._slots[index].failures += 1

    def forgive(self, index: int) -> None:
        """Clear the failures of the key after a success; a cooldown that began meanwhile stays."""
        self._slots[index].failures = 0

    def failures(self, index: int) -> int:
        """Return how often the key failed since its last success."""
        return self._slots[index].failures

    def next_pause_ends(self, now: datetime, avoid: Collection[int] = ()) -> float | None:
        """Return when the first key that is only rate limited may be used; None where all are exhausted."""
        key = self.pick_pausing(now, avoid)
        return None if key is None else self._slots[key].paused_until

    def next_reset(self, now: datetime, moment: float, avoid: Collection[int] = ()) -> datetime:
        """Return when the first key may be used; call it only while all of them cool down."""
        return min(
            max(slot.drained_until or now, now + timedelta(seconds=_clamp_cooldown(slot.paused_until - moment)))
            for index, slot in enumerate(self._slots)
            if index not in avoid
        )


def _clamp_cooldown(seconds: float) -> float:
    return min(max(0.0, seconds), LONGEST_COOLDOWN)
