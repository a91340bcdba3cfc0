"""One token of a service: fetched by one caller at a time, however many need it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NamedTuple

from redrive.classify.signals import is_interrupt
from redrive.clock import Clock, running_trio, time_limit
from redrive.policy.keys import Token, TokenState


class _Abandoned(Exception):
    """The fetch was cancelled; one of those who wait begins another."""


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A fetch under way, for which keeper, and who makes it."""

    keeper: TokenKeeper
    process: int = field(default_factory=os.getpid)
    thread: int = field(default_factory=threading.get_ident)
    outcome: Future[None] = field(default_factory=Future)
    loop: Any = None
    """The event loop that runs it, where it is a task of its own."""

    @property
    def lost(self) -> bool:
        """Whether it will never end: its process is another one, or its event loop does not run any more."""
        return self.process != os.getpid() or (self.loop is not None and not self.loop.is_running())

    def ended(self, error: BaseException | None = None) -> None:
        """Wake those who wait; a fetch that was given up as lost, and comes after all, wakes nobody twice."""
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(None)
        else:
            self.outcome.set_exception(error)


# The fetches that run around us: one that needs its own token would wait for itself.
_around: ContextVar[tuple[_Flight, ...]] = ContextVar("redrive_fetching", default=())


class TokenKeeper:
    """One token, fetched by one caller at a time while the others wait for the outcome.

    No lock is held while the user's fetch runs: waiting callers hold on to a future, which threads and
    coroutines can wait for alike.
    """

    def __init__(self, token: Token, slot: int, clock: Clock, renewed: Callable[[TokenState], None]) -> None:
        self.slot = slot
        self._ttl = token.ttl
        self._clock = clock
        self.state = TokenState()
        self._fetch = token.fetch
        self._renewed = renewed
        self._lock = threading.RLock()
        self._flight: _Flight | None = None
        self._task: Any = None  # the loop itself holds its tasks only weakly

    def refresh(self, seen: int, patience: float) -> None:
        """Renew the token unless that has happened since generation `seen`."""
        while (joined := self._join(seen)) is not None:
            try:
                if joined.leading:
                    self._fetch_here(joined.flight)
                elif joined.flight.thread == threading.get_ident():
                    # A coroutine of this very thread is fetching: to wait for it would be to keep it from ending.
                    self._fetch_here(_Flight(self))
                else:
                    with suppress(_Abandoned):
                        joined.flight.outcome.result(patience)
            finally:
                del joined  # it holds the error, whose traceback holds this frame

    async def arefresh(self, seen: int, patience: float) -> None:
        """The same for coroutines. The fetch is a task of its own: who waits for it may be cancelled."""
        if (trio := running_trio()) is not None:
            await self._refresh_under_trio(trio, seen, patience)
            return
        import asyncio

        while (joined := self._join(seen, asyncio.get_running_loop())) is not None:
            try:
                if joined.leading:
                    self._task = asyncio.create_task(self._fetch_aside(joined.flight, patience))
                outcome = asyncio.wrap_future(joined.flight.outcome)
                outcome.add_done_callback(_seen)
                with suppress(_Abandoned):
                    async with asyncio.timeout(patience):
                        await asyncio.wait([outcome])
                    joined.flight.outcome.result()  # asyncio would make another TimeoutError of one, without traceback
            finally:
                del joined

    async def _refresh_under_trio(self, trio: Any, seen: int, patience: float) -> None:
        """The same under trio, where a task has a parent: the caller fetches; when it is cancelled, another does."""
        while (joined := self._join(seen)) is not None:
            flight, leading = joined
            try:
                async with time_limit(patience):
                    if not leading:
                        with suppress(_Abandoned):
                            await trio.to_thread.run_sync(flight.outcome.result, abandon_on_cancel=True)
                        continue
                    with self._landing(flight) as landed:
                        blocking = not iscoroutinefunction(self._fetch)
                        fetched = await trio.to_thread.run_sync(self._fetched) if blocking else self._fetched()
                        landed.append(await fetched if isawaitable(fetched) else fetched)
            finally:
                del joined, flight

    def _join(self, seen: int, loop: Any = None) -> _Joined | None:
        """The fetch under way, or one that is ours to make; None where the token has been renewed since."""
        if any(flight.keeper is self and not flight.outcome.done() for flight in _around.get()):
            raise RuntimeError("the token's fetch function calls the service it fetches for; give it another one")
        with self._lock:
            if self.state.is_outdated(seen):
                return None
            if self._flight is not None and not self._flight.lost:
                return _Joined(self._flight, leading=False)
            lost, self._flight = self._flight, _Flight(self, loop=loop)
            if lost is not None and lost.process == os.getpid():
                lost.ended(_Abandoned())
            return _Joined(self._flight, leading=True)

    def _fetch_here(self, flight: _Flight) -> None:
        with self._landing(flight) as landed:
            del flight
            fetched = self._fetched()
            if isawaitable(fetched):
                _dispose(fetched)
                raise TypeError("the token's fetch function is async: call the service with `await acall(…)`")
            landed.append(fetched)

    async def _fetch_aside(self, flight: _Flight, patience: float) -> None:
        """Fetch for all who wait; a blocking function is moved to a thread. The flight carries what goes wrong."""
        import asyncio

        with suppress(Exception), self._landing(flight) as landed:
            async with asyncio.timeout(patience):
                blocking = not iscoroutinefunction(self._fetch)
                fetched = await asyncio.to_thread(self._fetched) if blocking else self._fetched()
                landed.append(await fetched if isawaitable(fetched) else fetched)

    def _fetched(self) -> Any:
        try:
            return self._fetch()
        except StopIteration as error:  # it would end the loop or the generator we are called from
            raise RuntimeError("the token's fetch function raised StopIteration") from error

    @contextmanager
    def _landing(self, flight: _Flight) -> Iterator[list[Any]]:
        """Take what a fetch gives, and tell those who wait for it how it ended."""
        landed: list[Any] = []
        entered = _around.set((*_around.get(), flight))
        try:
            yield landed
            with self._lock:
                now, moment = self._clock.now(), self._clock.monotonic()
                self.state.renew(landed.pop(), ttl=self._ttl, now=now, moment=moment)
            self._renewed(self.state)
            self._end(flight)
            flight.ended()
        except BaseException as error:
            self._end(flight)
            # A fetch that was cancelled is no verdict on the token: those who wait begin another. Of a task of its own,
            # only those who wait hear.
            is_verdict = isinstance(error, Exception) and (flight.loop is not None or not is_interrupt(error))
            flight.ended(error if is_verdict else _Abandoned())
            raise
        finally:
            with suppress(ValueError):  # closed with its event loop, in another context than it began in
                _around.reset(entered)
            del flight

    def renew_lock(self) -> None:
        """In a forked child: replace the lock, whose holder may be a thread of the parent."""
        self._lock = threading.RLock()

    def _end(self, flight: _Flight) -> None:
        with self._lock:
            if self._flight is flight:
                self._flight = None


class _Joined(NamedTuple):
    flight: _Flight
    leading: bool
    """Whether it is ours to make."""


def _seen(outcome: Any) -> None:
    """Retrieve the outcome for a caller that was cancelled: asyncio warns of errors that nobody has looked at."""
    if not outcome.cancelled():
        outcome.exception()


def _dispose(awaitable: Any) -> None:
    if hasattr(awaitable, "close"):
        awaitable.close()  # a coroutine that is dropped unawaited warns at a random later moment
