"""The keys and tokens of one service, shared by its callers: pick, cool, rotate, refresh once."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from redrive.clock import Clock
from redrive.masking import last_four
from redrive.model import Event, KeyCooled, TokenRefreshed
from redrive.policy.keys import KeyPool, Pool
from redrive.policy.token import Token, TokenState


@dataclass(frozen=True, slots=True)
class Grant:
    """A credential for one attempt; `generation` tells which token of its slot it was."""

    value: str
    key_id: str
    slot: int
    generation: int = 0


# A server may ask for any number of seconds; a date has an end.
LONGEST_PAUSE = 10 * 365 * 86_400.0


class _Abandoned(Exception):
    """The caller that was refreshing was cancelled; the next one takes over."""


class TokenKeeper:
    """One token, refreshed by one caller at a time while the others wait for the outcome.

    No lock is held while the user's fetch runs: waiting callers hold on to a future, which threads and
    coroutines can wait for alike.
    """

    def __init__(self, token: Token, renewed: Callable[[TokenState], None]) -> None:
        self.state = TokenState()
        self._fetch = token.fetch
        self._renewed = renewed
        self._lock = threading.Lock()
        self._outcome: Future[None] | None = None

    def refresh(self, seen: int) -> None:
        """Renew the token unless that has happened since generation `seen`."""
        while (flight := self._join(seen)) is not None:
            if flight.leading:
                try:
                    fetched = self._fetch()
                    if isawaitable(fetched):
                        _dispose(fetched)
                        raise TypeError("the token's fetch function is async: call the service with `await acall(…)`")
                    self._land(flight, fetched)
                except BaseException as error:
                    self._fail(flight, error)
                    raise
                finally:
                    del flight  # its error holds this frame, and the frame would hold it
                return
            with suppress(_Abandoned):
                flight.outcome.result()

    async def arefresh(self, seen: int) -> None:
        """The same for coroutines; a blocking fetch is moved to a thread."""
        import asyncio

        while (flight := self._join(seen)) is not None:
            if flight.leading:
                try:
                    blocking = not iscoroutinefunction(self._fetch)
                    fetched: Any = await asyncio.to_thread(self._fetch) if blocking else self._fetch()
                    self._land(flight, await fetched if isawaitable(fetched) else fetched)
                except BaseException as error:
                    self._fail(flight, error)
                    raise
                finally:
                    del flight
                return
            with suppress(_Abandoned):
                # Shielded: one waiting caller that is cancelled must not cancel the refresh of the others.
                await asyncio.shield(asyncio.wrap_future(flight.outcome))

    def _join(self, seen: int) -> _Flight | None:
        with self._lock:
            if self.state.outdated(seen):
                return None
            if self._outcome is None:
                self._outcome = Future()
                return _Flight(self._outcome, leading=True)
            return _Flight(self._outcome, leading=False)

    def _land(self, flight: _Flight, value: Any) -> None:
        with self._lock:
            self.state.renew(value)
            self._outcome = None
        self._renewed(self.state)
        flight.outcome.set_result(None)

    def _fail(self, flight: _Flight, error: BaseException) -> None:
        with self._lock:
            self._outcome = None
        # A cancelled leader is no verdict on the token: those who wait elect a new one.
        flight.outcome.set_exception(error if isinstance(error, Exception) else _Abandoned())


@dataclass(frozen=True, slots=True)
class _Flight:
    """A refresh in flight, as the caller who leads it or one who waits for it sees it."""

    outcome: Future[None]
    leading: bool


def _dispose(awaitable: Any) -> None:
    if hasattr(awaitable, "close"):
        awaitable.close()  # a coroutine that is dropped unawaited warns at a random later moment


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
        self._keepers = [TokenKeeper(key, self._renewed) if isinstance(key, Token) else None for key in pool.keys]
        self.current: Grant | None = None
        self.blamed = False  # whether any key has failures that a success should clear
        self.pick()

    def _renewed(self, state: TokenState) -> None:
        self.pick()
        self._announce(TokenRefreshed(self._service, last_four(state.value or ""), state.generation))

    def pick(self) -> Grant | TokenKeeper | float:
        """A grant; or the keeper of a token that was never fetched; or, where no key is viable, the seconds to wait.

        Only a pause is worth waiting for; a pool whose keys are all drained answers infinity.
        """
        with self._lock:
            now = self._clock.now()
            slot = self._pool.pick(now)
            self.current = None
            if slot is None:
                pause = self._pool.pause_ends()
                return math.inf if pause is None else max(0.0, (pause - now).total_seconds())
            key, keeper = self._options.keys[slot], self._keepers[slot]
            if keeper is None:
                self.current = Grant(str(key), last_four(str(key)), slot)
            elif keeper.state.value is None:
                return keeper
            else:
                value = keeper.state.value
                self.current = Grant(value, last_four(value), slot, keeper.state.generation)
            return self.current

    def next_reset(self) -> datetime:
        """When the first key is viable again."""
        with self._lock:
            return self._pool.next_viable()

    def keeper(self, grant: Grant) -> TokenKeeper | None:
        """What can renew this grant, where it is a token."""
        return self._keepers[grant.slot]

    def drained(self, grant: Grant, retry_after: float | None) -> None:
        """The key is used up: rotate until its reset, or until the time the server named."""
        now = self._clock.now()
        until = self._options.next_reset(now) if retry_after is None else now + _span(retry_after)
        self._cool(grant, until, drained=True, reason="quota used up")

    def paused(self, grant: Grant, retry_after: float) -> None:
        """The key was told to slow down."""
        until = self._clock.now() + _span(retry_after)
        self._cool(grant, until, drained=False, reason="rate limited")

    def refused(self, grant: Grant) -> None:
        """The key was not accepted: prefer others."""
        with self._lock:
            self._pool.blame(grant.slot)
            self.blamed = True
        self.pick()

    def succeeded(self, grant: Grant) -> None:
        """Success forgives."""
        with self._lock:
            self._pool.forgive(grant.slot)
            self.blamed = any(self._pool.failures(slot) for slot in range(self.size))

    def _cool(self, grant: Grant, until: datetime, *, drained: bool, reason: str) -> None:
        with self._lock:
            self._pool.blame(grant.slot)
            self._pool.cool(grant.slot, until, drained=drained)
            self.blamed = True
        self.pick()
        self._announce(KeyCooled(self._service, grant.key_id, until, reason))


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_PAUSE))
