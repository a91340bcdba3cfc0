"""One token of a service: fetched by one caller at a time, however many need it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from redrive.policy.token import Token, TokenState


class _Abandoned(Exception):
    """The caller that was refreshing was cancelled; the next one takes over."""


# The keepers whose fetch runs around us: a fetch that needs its own token would wait for itself.
_fetching: ContextVar[tuple[TokenKeeper, ...]] = ContextVar("redrive_fetching", default=())


@dataclass(frozen=True, slots=True)
class _Flight:
    """A fetch under way, who makes it, and whether that is us."""

    outcome: Future[None]
    process: int
    thread: int
    leading: bool


class TokenKeeper:
    """One token, fetched by one caller at a time while the others wait for the outcome.

    No lock is held while the user's fetch runs: waiting callers hold on to a future, which threads and
    coroutines can wait for alike.
    """

    def __init__(self, token: Token, renewed: Callable[[TokenState], None]) -> None:
        self.state = TokenState()
        self._fetch = token.fetch
        self._renewed = renewed
        self._lock = threading.Lock()
        self._flight: _Flight | None = None

    def refresh(self, seen: int, patience: float) -> None:
        """Renew the token unless that has happened since generation `seen`."""
        while (flight := self._join(seen)) is not None:
            try:
                # A coroutine of this very thread is fetching: to wait for it would be to keep it from ending.
                if flight.leading or flight.thread == threading.get_ident():
                    with self._landing(flight) as landed:
                        fetched = self._fetched()
                        if isawaitable(fetched):
                            _dispose(fetched)
                            raise TypeError("the token's fetch function is async: call the service with `await acall`")
                        landed.append(fetched)
                    return
                with suppress(_Abandoned):
                    flight.outcome.result(patience)
            finally:
                del flight  # it holds the error, whose traceback holds this frame

    async def arefresh(self, seen: int, patience: float) -> None:
        """The same for coroutines; a blocking fetch is moved to a thread."""
        import asyncio

        while (flight := self._join(seen)) is not None:
            try:
                if flight.leading:
                    with self._landing(flight) as landed:
                        blocking = not iscoroutinefunction(self._fetch)
                        fetched = await asyncio.to_thread(self._fetched) if blocking else self._fetched()
                        landed.append(await fetched if isawaitable(fetched) else fetched)
                    return
                with suppress(_Abandoned):
                    async with asyncio.timeout(patience):
                        # Shielded: one waiting caller that is cancelled must not cancel the fetch of the others.
                        await asyncio.shield(asyncio.wrap_future(flight.outcome))
            finally:
                del flight

    def _fetched(self) -> Any:
        try:
            return self._fetch()
        except StopIteration as error:  # it would end the loop or the generator we are called from
            raise RuntimeError("the token's fetch function raised StopIteration") from error

    def _join(self, seen: int) -> _Flight | None:
        """The fetch under way, or one that is ours to make; None where the token has been renewed since."""
        if self in _fetching.get():
            raise RuntimeError("the token's fetch function calls the service it fetches for; give it another one")
        with self._lock:
            if self.state.outdated(seen):
                return None
            flight = self._flight
            if flight is not None and flight.process == os.getpid():  # a fork does not take a fetch along
                return replace(flight, leading=False)
            self._flight = _Flight(Future(), os.getpid(), threading.get_ident(), leading=True)
            return self._flight

    @contextmanager
    def _landing(self, flight: _Flight) -> Iterator[list[Any]]:
        """Take what a fetch gives, and tell those who wait for it how it ended."""
        landed: list[Any] = []
        entered = _fetching.set((*_fetching.get(), self))
        try:
            yield landed
            with self._lock:
                self.state.renew(landed.pop())
            self._renewed(self.state)
            self._end(flight, None)
        except BaseException as error:
            # A cancelled leader is no verdict on the token: those who wait elect a new one.
            self._end(flight, error if isinstance(error, Exception) else _Abandoned())
            raise
        finally:
            _fetching.reset(entered)
            del flight

    def _end(self, flight: _Flight, error: Exception | None) -> None:
        if not flight.leading:
            return
        with self._lock:
            self._flight = None
        if error is None:
            flight.outcome.set_result(None)
        else:
            flight.outcome.set_exception(error)


def _dispose(awaitable: Any) -> None:
    if hasattr(awaitable, "close"):
        awaitable.close()  # a coroutine that is dropped unawaited warns at a random later moment
