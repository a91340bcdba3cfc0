"""The keys and tokens of one service, shared by its callers: pick one, let it cool down, rotate."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from redrive._internal.masking import last_four, remember
from redrive.calls.parts import CorePart
from redrive.calls.tokens import TokenKeeper
from redrive.clock import Clock
from redrive.events.bus import EVENTS
from redrive.model.calls import QUOTA_USED_UP, RATE_LIMITED, Event, KeyCooled, TokenRefreshed, format_duration
from redrive.policy.consensus import DrainedKey
from redrive.policy.keys import LONGEST_PAUSE, KeyName, KeyPool, KeyPoolState, Token, TokenState, name_of


@dataclass(frozen=True, slots=True)
class Grant:
    """A credential for one attempt; `generation` counts the tokens of its slot."""

    value: str
    key_id: str
    slot: int
    generation: int = 0


class Credentials(CorePart):
    """A service's pool of keys and tokens. `current` is what the fast path uses, read without a lock."""

    path = "credentials"

    def __init__(self, pool: KeyPool, service: str, clock: Clock, announce: Callable[[Event], None]) -> None:
        self.owner: Any = None
        self.options = pool
        self._service = service
        self._clock = clock
        self._announce = announce
        self._lock = threading.RLock()
        self.size = len(pool.keys)
        self.on_change: Callable[[], None] | None = None  # publishes exhausted keys to other processes
        self._unpublished: dict[int, datetime] = {}
        self._pool = KeyPoolState(self.size)
        for key in pool.keys:
            if isinstance(key, str):
                remember(key)
        self._keepers = [
            TokenKeeper(key, slot, clock, self._renewed) if isinstance(key, Token) else None
            for slot, key in enumerate(pool.keys)
        ]
        self.expires = any(keeper is not None for keeper in self._keepers)
        self.renew_at = math.inf  # when to refresh the current token
        self.current: Grant | None = None
        self.blamed = False  # whether the current key has failures that a success should clear
        self.pick()

    def names(self) -> list[KeyName]:
        """Return the names of the keys for other processes, by slot.

        Not cached here: an attribute that is added later makes all others slower to read, and `current` is read in
        every call.
        """
        return [name_of(key, service=self._service, place=slot) for slot, key in enumerate(self.options.keys)]

    def _renewed(self, state: TokenState) -> None:
        if state.value is not None:
            remember(state.value)
        self.pick()
        if state.renew_at <= self._clock.monotonic() and not state.warned:
            state.warned = True
            EVENTS.warning(
                "%s: the token expires at once: each call fetches one and uses it all the same. Check the expiry that "
                "the fetch function returns, and the clocks of this host and of the server",
                self._service,
            )
        self._announce(TokenRefreshed(self._service, last_four(state.value or ""), state.generation))

    def pick(
        self, *, pausing: bool = False, avoid: Collection[int] = (), expired: Collection[int] = ()
    ) -> Grant | TokenKeeper | float:
        """Return a grant, or the keeper of a token to fetch, or the seconds to wait where no key is viable.

        Only a pause is worth waiting for; for a pool whose keys are all exhausted it is infinity. `pausing` takes
        the key whose pause ends first as if it had ended; `avoid` are the slots that the call must not use, `expired`
        those whose token it uses although it has expired.
        """
        with self._lock:
            now, moment = self._clock.now(), self._clock.monotonic()
            slot = self._pool.pick(now, moment, avoid)
            if slot is None and pausing:
                slot = self._pool.pick_pausing(now, avoid)
            if slot is None:
                self.current = None
                ends = self._pool.next_pause_ends(now, avoid)
                return math.inf if ends is None else max(0.0, ends - moment)
            key, keeper = self.options.keys[slot], self._keepers[slot]
            if keeper is None:
                grant = Grant(str(key), last_four(str(key)), slot)
            elif keeper.state.value is None or (keeper.state.renew_at <= moment and slot not in expired):
                self.current = None
                return keeper
            else:
                value = keeper.state.value
                grant = Grant(value, last_four(value), slot, keeper.state.generation)
            self.renew_at = math.inf if keeper is None else keeper.state.renew_at
            self.current = None if pausing else grant
            self.blamed = self._pool.failures(slot) > 0
            return grant

    def next_reset(self, avoid: Collection[int] = ()) -> datetime:
        """Return when the first key is viable again."""
        with self._lock:
            return self._pool.next_reset(self._clock.now(), self._clock.monotonic(), avoid)

    def keeper(self, grant: Grant) -> TokenKeeper | None:
        """Return the keeper that refreshes this grant; None where it is no token."""
        return self._keepers[grant.slot]

    def drained(self, grant: Grant, retry_after: float | None) -> None:
        """Rotate: the key is exhausted until its reset, or until the time that the server named."""
        now = self._clock.now()
        until = self.options.next_reset(now)
        if retry_after is not None:
            longest = max(LONGEST_PAUSE, (until - now).total_seconds())
            until = now + timedelta(seconds=self._bounded(grant, retry_after, longest))
        with self._lock:
            self._pool.blame(grant.slot)
            news = self._pool.drain(grant.slot, until, self._clock.monotonic())
            if news and self.on_change is not None:
                self._unpublished[grant.slot] = until
        self.pick()
        if news:
            if self.on_change is not None:
                self.on_change()
            self._announce(KeyCooled(self._service, grant.key_id, until, QUOTA_USED_UP))

    def apply_drained(self, slots: Mapping[int, DrainedKey]) -> None:
        """Put the keys out of use that other processes found exhausted."""
        with self._lock:
            now, moment = self._clock.now(), self._clock.monotonic()
            news = [
                KeyCooled(self._service, key.key_id, key.until, QUOTA_USED_UP)
                for slot, key in slots.items()
                if key.until > now and self._pool.drain(slot, key.until, moment)
            ]
        if news:
            self.pick()
        for event in news:
            self._announce(event)

    def apply_remote_reset(self, ago: float) -> None:
        """Put exhausted keys back to use: an operator declared what was recorded until then out of date."""
        with self._lock:
            refilled = self._pool.refill(before=self._clock.monotonic() - ago)
            for slot in refilled:
                self._unpublished.pop(slot, None)
        if refilled:
            self.pick()

    def unpublished(self) -> dict[int, datetime]:
        """Return the exhausted slots that are not published to other processes yet."""
        with self._lock:
            return dict(self._unpublished)

    def mark_published(self, slots: Mapping[int, datetime]) -> None:
        """Record that these slots are published to other processes."""
        with self._lock:
            for slot, until in slots.items():
                if self._unpublished.get(slot) == until:
                    del self._unpublished[slot]

    def renew_lock(self) -> None:
        """Replace the locks in a forked child; what the parent found out, the parent publishes."""
        self._lock = threading.RLock()
        self._unpublished = {}
        for keeper in self._keepers:
            if keeper is not None:
                keeper.renew_lock()

    def paused(self, grant: Grant, retry_after: float) -> None:
        """Pause a key that is rate limited."""
        pause = self._bounded(grant, retry_after, LONGEST_PAUSE)
        with self._lock:
            self._pool.blame(grant.slot)
            self._pool.pause(grant.slot, self._clock.monotonic() + pause)
        self.pick()
        until = self._clock.now() + timedelta(seconds=pause)
        self._announce(KeyCooled(self._service, grant.key_id, until, RATE_LIMITED))

    def _bounded(self, grant: Grant, asked: float, longest: float) -> float:
        if asked > longest:
            EVENTS.warning(
                "%s key …%s: the server asks to wait %s; it is tried again in %s",
                self._service,
                grant.key_id,
                format_duration(asked),
                format_duration(longest),
            )
        return min(asked, longest)

    def resume(self) -> None:
        """End all pauses, as an operator asked."""
        with self._lock:
            self._pool.resume()
        self.pick()

    def rejected(self, slot: int) -> None:
        """Prefer other keys: this one was rejected, or its token could not be fetched."""
        with self._lock:
            self._pool.blame(slot)
        self.pick()

    def succeeded(self, grant: Grant) -> None:
        """Clear the failures of the key after a success."""
        with self._lock:
            self._pool.forgive(grant.slot)
            self.blamed = False
