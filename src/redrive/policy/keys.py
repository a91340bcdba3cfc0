"""Credentials of a service: `Token`, which can be refreshed; `KeyPool`, several keys; and the state of both.

The state decides which key to use, and which cool down until when.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b

from redrive._internal.masking import MASK, last_four
from redrive.policy import option_checks
from redrive.policy.time_of_day import TimeOfDay

Expiry = float | timedelta | datetime
Fetched = str | tuple[str, Expiry]

# A token is refreshed this long before it expires, or after nine tenths of its life where that is sooner.
_MARGIN = 60.0


def check_secret(what: str, secret: str) -> None:
    """Raise ValueError where a secret cannot be sent in a header or a query; the message does not show it."""
    if any(character.isspace() or not character.isprintable() for character in secret):
        raise ValueError(f"{what} holds a space, a line end or a control character; strip it")


class Token:
    """A refreshable credential: `fetch` is called on first use, after a 401, and before the token expires.

    However many callers meet the same 401, one refresh is in flight; each of them then retries once.

    fetch  returns the token, or the token and when it expires: seconds, a timedelta, or a datetime with zone
    ttl    seconds for which a token is valid, where `fetch` does not return them
    """

    __slots__ = ("fetch", "ttl")

    def __init__(
        self, fetch: Callable[[], Fetched] | Callable[[], Awaitable[Fetched]], *, ttl: float | timedelta | None = None
    ) -> None:
        if not callable(fetch):
            raise TypeError(f"Token needs a function that returns the token, not {type(fetch).__name__}")
        self.fetch = fetch
        span = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        self.ttl = None if span is None else option_checks.seconds("ttl", span, above=0)

    def __repr__(self) -> str:
        return f"Token({getattr(self.fetch, '__qualname__', type(self.fetch).__qualname__)})"


class TokenState:
    """The token in use, and how often it was fetched."""

    __slots__ = ("generation", "renew_at", "value", "warned")

    def __init__(self) -> None:
        self.value: str | None = None
        self.generation = 0
        self.renew_at = math.inf
        """When to refresh it, by the monotonic clock."""
        self.warned = False
        """Whether the warning that its tokens expire at once was given."""

    def is_outdated(self, generation: int) -> bool:
        """Return whether the token has been renewed since the generation that failed."""
        return generation != self.generation

    def renew(self, fetched: object, *, ttl: float | None, now: datetime, moment: float) -> None:
        """Store a token that was fetched, and when it expires."""
        value, expiry = fetched if isinstance(fetched, tuple) and len(fetched) == 2 else (fetched, ttl)
        span = None if expiry is None else _seconds_until(expiry, now)
        if not isinstance(value, str) or not value:
            raise TypeError(f"the token's fetch function must return a non-empty string, not {type(value).__name__}")
        check_secret("the token", value)
        self.value = value
        self.generation += 1
        self.renew_at = math.inf if span is None else moment + span - min(_MARGIN, span / 10)


def _seconds_until(expiry: object, now: datetime) -> float:
    if isinstance(expiry, datetime) and expiry.tzinfo is not None:
        return max(0.0, (expiry - now).total_seconds())
    span = expiry.total_seconds() if isinstance(expiry, timedelta) else expiry
    if not option_checks.finite(span):
        raise TypeError(
            "the token's fetch function must return when it expires as seconds, a timedelta or a datetime with zone, "
            f"not {option_checks.shown(expiry)}"
        )
    return max(0.0, float(span))  # type: ignore[arg-type]  # checked


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
