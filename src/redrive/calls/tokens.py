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
    """The fetch was cancelled; one of the callers that wait starts another."""


@dataclass(frozen=True, slots=True, eq=False)
class _RunningFetch:
    """A running fetch: its keeper, and the process, thread and event loop that run it."""

    keeper: TokenKeeper
    process: int = field(default_factory=os.getpid)
    thread: int = field(default_factory=threading.get_ident)
    outcome: Future[None] = field(default_factory=Future)
    loop: Any = None
    """The event loop, where the fetch is a task of its own."""

    @property
    def lost(self) -> bool:
        """Return whether it will never end: its process is another one, or its event loop has stopped."""
        return self.process != os.getpid() or (self.loop is not None and not self.loop.is_running())

    def ended(self, error: BaseException | None = None) -> None:
        """Wake the callers that wait; a lost fetch that ends after all has no effect."""
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(None)
        else:
            self.outcome.set_exception(error)


# The fetches that enclose the current code: one that needs its own token would wait for itself.
_around: ContextVar[tuple[_RunningFetch, ...]] = ContextVar("redrive_fetching", default=())


class TokenKeeper:
    """One token, fetched by one caller at a time while the others wait for the outcome.

    No lock is taken while the user's fetch runs: callers wait for a future, as threads and coroutines can alike.
    """

    def __init__(self, token: Token, slot: int, clock: Clock, renewed: Callable[[TokenState], None]) -> None:
        self.slot = slot
        self._ttl = token.ttl
        self._clock = clock
        self.state = TokenState()
        self._fetch = token.fetch
        self._renewed = renewed
        self._lock = threading.RLock()
        self._running: _RunningFetch | None = None
        self._task: Any = None  # the loop itself holds its tasks only weakly

    def refresh(self, seen: int, timeout: float) -> None:
        """Renew the token unless that has happened since generation `seen`."""
        while (joined := self._join(seen)) is not None:
            try:
                if joined.leading:
                    self._fetch_here(joined.running)
                elif joined.running.thread == threading.get_ident():
                    # A coroutine of this very thread is fetching: to wait for it would keep it from ending.
                    self._fetch_here(_RunningFetch(self))
                else:
                    with suppress(_Abandoned):
                        joined.running.outcome.result(timeout)
            finally:
                del joined  # it refers to the error, whose traceback refers to this frame

    async def arefresh(self, seen: int, timeout: float) -> None:
        """Do the same for coroutines. The fetch is a task of its own, since a caller that waits may be cancelled."""
        if (trio := running_trio()) is not None:
            await self._refresh_under_trio(trio, seen, timeout)
            return
        import asyncio

        while (joined := self._join(seen, asyncio.get_running_loop())) is not None:
            try:
                if joined.leading:
                    self._task = asyncio.create_task(self._fetch_aside(joined.running, timeout))
                outcome = asyncio.wrap_future(joined.running.outcome)
                outcome.add_done_callback(_retrieve)
                with suppress(_Abandoned):
                    async with asyncio.timeout(timeout):
                        await asyncio.wait([outcome])
                    joined.running.outcome.result()  # asyncio would make another TimeoutError of one, without traceback
            finally:
                del joined

    async def _refresh_under_trio(self, trio: Any, seen: int, timeout: float) -> None:
        """Do the same under trio, where a task has a parent: the caller fetches; if it is cancelled, another does."""
        while (joined := self._join(seen)) is not None:
            running, leading = joined
            try:
                async with time_limit(timeout):
                    if not leading:
                        with suppress(_Abandoned):
                            await trio.to_thread.run_sync(running.outcome.result, abandon_on_cancel=True)
                        continue
                    with self._storing(running) as values:
                        blocking = not iscoroutinefunction(self._fetch)
                        fetched = await trio.to_thread.run_sync(self._fetched) if blocking else self._fetched()
                        values.append(await fetched if isawaitable(fetched) else fetched)
            finally:
                del joined, running

    def _join(self, seen: int, loop: Any = None) -> _JoinedFetch | None:
        """Return the running fetch, or a new one for this caller to make; None where the token was renewed since."""
        if any(running.keeper is self and not running.outcome.done() for running in _around.get()):
            raise RuntimeError("the token's fetch function calls the service it fetches for; give it another one")
        with self._lock:
            if self.state.is_outdated(seen):
                return None
            if self._running is not None and not self._running.lost:
                return _JoinedFetch(self._running, leading=False)
            lost, self._running = self._running, _RunningFetch(self, loop=loop)
            if lost is not None and lost.process == os.getpid():
                lost.ended(_Abandoned())
            return _JoinedFetch(self._running, leading=True)

    def _fetch_here(self, running: _RunningFetch) -> None:
        with self._storing(running) as values:
            del running
            fetched = self._fetched()
            if isawaitable(fetched):
                _dispose(fetched)
                raise TypeError("the token's fetch function is async: call the service with `await acall(…)`")
            values.append(fetched)

    async def _fetch_aside(self, running: _RunningFetch, timeout: float) -> None:
        """Fetch for all callers that wait; a blocking function runs in a thread. The future carries an error."""
        import asyncio

        with suppress(Exception), self._storing(running) as values:
            async with asyncio.timeout(timeout):
                blocking = not iscoroutinefunction(self._fetch)
                fetched = await asyncio.to_thread(self._fetched) if blocking else self._fetched()
                values.append(await fetched if isawaitable(fetched) else fetched)

    def _fetched(self) -> Any:
        try:
            return self._fetch()
        except StopIteration as error:  # it would end the loop or the generator that called
            raise RuntimeError("the token's fetch function raised StopIteration") from error

    @contextmanager
    def _storing(self, running: _RunningFetch) -> Iterator[list[Any]]:
        """Store the token of a fetch, and pass its outcome to the callers that wait."""
        values: list[Any] = []
        entered = _around.set((*_around.get(), running))
        try:
            yield values
            with self._lock:
                now, moment = self._clock.now(), self._clock.monotonic()
                self.state.renew(values.pop(), ttl=self._ttl, now=now, moment=moment)
            self._renewed(self.state)
            self._end(running)
            running.ended()
        except BaseException as error:
            self._end(running)
            # A fetch that was cancelled is no verdict on the token: the callers that wait start another. The
            # outcome of a task of its own goes only to them.
            is_verdict = isinstance(error, Exception) and (running.loop is not None or not is_interrupt(error))
            running.ended(error if is_verdict else _Abandoned())
            raise
        finally:
            with suppress(ValueError):  # closed with its event loop, in another context than it started in
                _around.reset(entered)
            del running

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, whose owner may be a thread of the parent."""
        self._lock = threading.RLock()

    def _end(self, running: _RunningFetch) -> None:
        with self._lock:
            if self._running is running:
                self._running = None


class _JoinedFetch(NamedTuple):
    """A running fetch, and the part of this caller in it."""

    running: _RunningFetch
    leading: bool
    """Whether this caller makes it."""


def _retrieve(outcome: Any) -> None:
    """Retrieve the outcome for a caller that was cancelled: asyncio warns of errors that are never retrieved."""
    if not outcome.cancelled():
        outcome.exception()


def _dispose(awaitable: Any) -> None:
    if hasattr(awaitable, "close"):
        awaitable.close()  # a coroutine that is dropped unawaited warns at a random later moment
