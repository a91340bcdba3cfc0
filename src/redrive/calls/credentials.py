"""The keys and tokens of one service, shared by its callers: pick, cool, rotate."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.calls.tokens import TokenKeeper
from redrive.clock import Clock
from redrive.masking import last_four
from redrive.model import QUOTA_USED_UP, RATE_LIMITED, Event, KeyCooled, TokenRefreshed
from redrive.policy.keys import LONGEST_REST, KeyPool, Pool
from redrive.policy.token import Token, TokenState


@dataclass(frozen=True, slots=True)
class Grant:
    """A credential for one attempt; `generation` tells which token of its slot it was."""

    value: str
    key_id: str
    slot: int
    generation: int = 0


class Credentials:
    """A service's pool of keys and tokens. `current` is what an untroubled call uses, read without a lock."""

    def __init__(self, pool: KeyPool, service: str, clock: Clock, announce: Callable[[Event], None]) -> None:
        self._options = pool
        self._service = service
        self._clock = clock
        self._announce = announce
        self._lock = threading.Lock()
        self.size = len(pool.keys)
        self._pool = Pool(self.size)
        self._keepers = [
            TokenKeeper(key, slot, self._renewed) if isinstance(key, Token) else None
            for slot, key in enumerate(pool.keys)
        ]
        self.current: Grant | None = None
        self.blamed = False  # whether the current key has failures that a success should clear
        self.pick()

    def _renewed(self, state: TokenState) -> None:
        self.pick()
        self._announce(TokenRefreshed(self._service, last_four(state.value or ""), state.generation))

    def pick(self, *, pausing: bool = False) -> Grant | TokenKeeper | float:
        """A grant; or the keeper of a token that was never fetched; or, where no key is viable, the seconds to wait.

        Only a pause is worth waiting for; a pool whose keys are all drained answers infinity. `pausing` takes the key
        whose pause ends first as if it had ended.
        """
        with self._lock:
            now, moment = self._clock.now(), self._clock.monotonic()
            slot = self._pool.pick(now, moment)
            if slot is None and pausing:
                slot = self._pool.pick_pausing(now)
            if slot is None:
                self.current = None
                ends = self._pool.next_pause_ends(now)
                return math.inf if ends is None else max(0.0, ends - moment)
            key, keeper = self._options.keys[slot], self._keepers[slot]
            if keeper is None:
                grant = Grant(str(key), last_four(str(key)), slot)
            elif keeper.state.value is None:
                self.current = None
                return keeper
            else:
                value = keeper.state.value
                grant = Grant(value, last_four(value), slot, keeper.state.generation)
            self.current = None if pausing else grant
            self.blamed = self._pool.failures(slot) > 0
            return grant

    def next_reset(self) -> datetime:
        """When the first key is viable again."""
        with self._lock:
            return self._pool.next_reset(self._clock.now(), self._clock.monotonic())

    def keeper(self, grant: Grant) -> TokenKeeper | None:
        """What can renew this grant, where it is a token."""
        return self._keepers[grant.slot]

    def drained(self, grant: Grant, retry_after: float | None) -> None:
        """The key is used up: rotate until its reset, or until the time the server named."""
        now = self._clock.now()
        until = self._options.next_reset(now) if retry_after is None else now + _span(retry_after)
        with self._lock:
            self._pool.blame(grant.slot)
            news = self._pool.drain(grant.slot, until)
        self.pick()
        if news:
            self._announce(KeyCooled(self._service, grant.key_id, until, QUOTA_USED_UP))

    def paused(self, grant: Grant, retry_after: float) -> None:
        """The key was told to slow down."""
        with self._lock:
            self._pool.blame(grant.slot)
            self._pool.pause(grant.slot, self._clock.monotonic() + retry_after)
        self.pick()
        until = self._clock.now() + _span(retry_after)
        self._announce(KeyCooled(self._service, grant.key_id, until, RATE_LIMITED))

    def refused(self, slot: int) -> None:
        """The key was not accepted, or its token could not be fetched: prefer others."""
        with self._lock:
            self._pool.blame(slot)
        self.pick()

    def succeeded(self, grant: Grant) -> None:
        """Success forgives."""
        with self._lock:
            self._pool.forgive(grant.slot)
            self.blamed = False


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_REST))  # a server may ask for any number
