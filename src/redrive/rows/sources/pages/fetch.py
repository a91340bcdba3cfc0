"""Fetch pages through the service: one page with its outcome, and pages ahead, in the caller's thread or in threads.

`async_fetch` does the same with an event loop.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass
from enum import Enum, auto
from inspect import isawaitable, iscoroutine
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from redrive.calls.circuit import Circuit
from redrive.calls.function import endpoint_of, is_async
from redrive.calls.service import Service
from redrive.classify import classify
from redrive.classify.responses import attribute
from redrive.classify.signals import is_interrupt
from redrive.errors import CircuitOpen, RetriesExhausted, SourceError
from redrive.model.calls import Failure, Kind, Verdict
from redrive.policy.breaker import CircuitState
from redrive.rows.sources.pages.content import MalformedPage, Page, PageReader, body_of

_TICK = 0.05  # seconds
PATIENCE = 5.0
"""Seconds that closing waits for what cannot be cancelled."""


class FaultKind(Enum):
    """Whose fault it is that there is no page."""

    MALFORMED = auto()
    """It came and cannot be read."""
    MISSING = auto()
    """HTTP 404: a page that is not there, or the end."""
    REFUSED = auto()
    """This page alone, by the verdict."""
    DOWN = auto()
    """The service's: it failed as long as it was tried."""
    CUT_SHORT = auto()
    """The service's, too: its circuit opened, or its retry budget was spent, while attempts were left."""
    FINAL = auto()
    """A fault of the program or the key: other pages would fail as well, or nothing was sent at all."""


RETRY_LATER = (FaultKind.DOWN, FaultKind.CUT_SHORT, FaultKind.FINAL)
"""Faults that are not of the page."""


STOPPING = (FaultKind.CUT_SHORT, FaultKind.FINAL)
"""Faults that stop the run in any case: the page is to be fetched again."""


@dataclass(frozen=True, slots=True)
class PageFailed:
    """A page that could not be had."""

    error: Exception
    fault: FaultKind

    @property
    def reason(self) -> str:
        """Return what was wrong, in a phrase."""
        if isinstance(self.error, MalformedPage):
            return str(self.error)
        reason = _verdict(self.error).reason
        return f"{reason}: {self.error}" if self.fault is FaultKind.MALFORMED else reason

    @property
    def body(self) -> str | bytes | None:
        """Return what came in place of the page."""
        error = self.error
        if isinstance(error, MalformedPage):
            return error.body
        for name in ("doc", "object"):  # a JSONDecodeError and a UnicodeDecodeError hold what they could not read
            if isinstance(held := attribute(error, name), str | bytes):
                return body_of(held)
        return body_of(attribute(error, "response"))


Outcome = Page | PageFailed


class ReadingClosed(BaseException):
    """The reading was closed: no further attempt. No Exception, so that the service counts it nowhere."""


class PageFetcher:
    """The user's function, called through its service, for one reading."""

    def __init__(self, service: Service, function: Callable[..., Any], contents: PageReader) -> None:
        self.is_async = is_async(function)
        self._service = service
        self._function = function
        self._contents = contents
        self._stopped = False
        self._endpoint = endpoint_of(function)
        self._guarded = service(self._named_attempt())

    def __call__(self, token: Any) -> Outcome:
        """Fetch a page in this thread."""
        while True:
            try:
                return self._page(self._guarded(token))
            except Exception as error:
                if is_interrupt(error):
                    raise
                if not self._met_probe(error):
                    return PageFailed(error, fault_of(error))
            while self._is_probing():
                time.sleep(_TICK)

    async def acall(self, token: Any) -> Outcome:
        """Fetch a page in this coroutine."""
        while True:
            try:
                return self._page(await self._guarded(token))
            except Exception as error:
                if is_interrupt(error):
                    raise
                if not self._met_probe(error):
                    return PageFailed(error, fault_of(error))
            import asyncio  # for those who need it

            while self._is_probing():  # noqa: ASYNC110 - the circuit belongs to threads, and has no event
                await asyncio.sleep(_TICK)

    def _met_probe(self, error: Exception) -> bool:
        """Return whether a page was not sent because another one is the probe of a circuit that is half-open."""
        story = error.redrive if isinstance(error, CircuitOpen) else None
        return story is not None and story.service == self._service.name and self._is_probing()

    def _is_probing(self) -> bool:
        circuit = self._circuit
        if circuit is None or self._stopped:
            return False
        return circuit.state is CircuitState.HALF_OPEN and circuit.retry_in() > 0

    @property
    def wants_probe(self) -> bool:
        """Return whether the next page is the probe that decides if the circuit closes."""
        circuit = self._circuit
        return circuit is not None and circuit.state is not CircuitState.CLOSED and circuit.retry_in() == 0

    @property
    def _circuit(self) -> Circuit | None:
        return self._service.core.at(self._endpoint).circuit

    def stop(self) -> None:
        """Let calls under way make no further attempt."""
        self._stopped = True

    def _named_attempt(self) -> Callable[..., Any]:
        """Return an attempt that takes the function's keywords, `credential` among them, and has its name in logs."""

        async def aattempt(*args: Any, **kwargs: Any) -> Any:
            return await self._aattempt(*args, **kwargs)

        def attempt(*args: Any, **kwargs: Any) -> Any:
            return self._attempt(*args, **kwargs)

        named: Callable[..., Any] = aattempt if self.is_async else attempt
        functools.update_wrapper(named, self._function, assigned=(), updated=())
        named.__qualname__ = self._endpoint
        return named

    # A page is read inside the attempt: a body that was cut short is then fetched once more.

    def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        self._go_on()
        fetched = self._function(*args, **kwargs)
        if isawaitable(fetched):
            if iscoroutine(fetched):
                fetched.close()
            raise SourceError("fetch gave something to await: define it with `async def`")
        return fetched if self._is_bad_answer(fetched) else self._contents.page(fetched)

    async def _aattempt(self, *args: Any, **kwargs: Any) -> Any:
        self._go_on()
        fetched = await self._function(*args, **kwargs)
        return fetched if self._is_bad_answer(fetched) else await self._contents.apage(fetched)

    def _go_on(self) -> None:
        if self._stopped:
            raise ReadingClosed

    def _is_bad_answer(self, fetched: Any) -> bool:
        """Return whether the service itself would reject this response; then the service classifies it."""
        core = self._service.core
        return core.classifier.judge(fetched, now=core.clock.now()) is not None

    def _page(self, result: Any) -> Page:
        if isinstance(result, Page):
            return result
        story = attribute(result, "redrive")
        if isinstance(story, Failure):
            raise RetriesExhausted(redrive=story, response=result)
        raise SourceError(
            f"service {self._service.name!r} gave its fallback in place of a page: what is missing would be lost "
            "without a trace; use a service that has no fallback"
        )


def fault_of(error: Exception) -> FaultKind:
    """Return the fault of an error that remained after all retries."""
    if isinstance(error, MalformedPage | UnicodeDecodeError):
        return FaultKind.MALFORMED
    if isinstance(error, SourceError | CircuitOpen):
        return FaultKind.FINAL
    verdict, kind = _verdict(error), _kind(error)
    if kind in (Kind.ROW, Kind.DISCARD):
        return FaultKind.MISSING if verdict.status == 404 else FaultKind.REFUSED
    # A ValueError is what a function raises for a page that it fetched and cannot read.
    unread = kind is Kind.AMBIGUOUS or (kind is Kind.PERMANENT and isinstance(error, ValueError))
    if unread and verdict.status is None and classify(error, "row").kind is Kind.ROW:
        return FaultKind.MALFORMED
    # An answer to retry later does not mean that the page is at fault: a rate limit is not of the page.
    if kind not in (Kind.TRANSIENT, Kind.RETRY_NOW, Kind.AMBIGUOUS):
        return FaultKind.FINAL
    story = attribute(error, "redrive")
    return FaultKind.CUT_SHORT if isinstance(story, Failure) and story.cut_short else FaultKind.DOWN


def _verdict(error: Exception) -> Verdict:
    story = attribute(error, "redrive")
    return story.verdict if isinstance(story, Failure) else classify(error)


def _kind(error: Exception) -> Kind:
    """Return the kind as classified first: an ambiguous error whose retries are exhausted becomes permanent."""
    story = attribute(error, "redrive")
    if isinstance(story, Failure) and story.attempts:
        return Kind(story.attempts[-1].outcome)
    return _verdict(error).kind


class Fetcher(Protocol):
    """Fetches pages for one reading."""

    def start(self, token: Any) -> Future[Outcome]:
        """Begin to fetch a page."""

    def close(self) -> None:
        """Cancel fetches in flight; may be called twice."""


class InlineFetcher:
    """Fetches in the caller's thread, when a page is started."""

    def __init__(self, fetch: PageFetcher) -> None:
        self._fetch = fetch

    def start(self, token: Any) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(self._fetch(token))
        return future

    def close(self) -> None:
        self._fetch.stop()


class ThreadedFetcher:
    """Fetches by threads, in the order in which pages were asked for.

    Threads stay for the whole reading, so that what a fetch keeps per thread, such as a session, is made once for each.
    A fetch that is under way cannot be cancelled: closing waits for it, but not for long, and it makes no further
    attempt. The threads are daemons, so that one that hangs does not hold up the end of the program.
    """

    def __init__(self, fetch: PageFetcher, most: int) -> None:
        self._fetch = fetch
        self._most = most
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[tuple[Future[Outcome], Any, Context] | None] = SimpleQueue()

    def start(self, token: Any) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        self._jobs.put((future, token, copy_context()))
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="redrive-pages", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, token, context = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(context.run(self._fetch, token))
            except BaseException as error:  # any error is raised for the caller that waits for the page
                future.set_exception(error)

    def close(self) -> None:
        self._fetch.stop()
        try:
            while job := self._jobs.get_nowait():
                job[0].cancel()
        except Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
