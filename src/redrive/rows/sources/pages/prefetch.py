"""Fetching pages before they are asked for: at once, or by threads. Event loops are told of next door."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from redrive.rows.sources.pages.fetch import Outcome, PageFetcher

PATIENCE = 5.0
"""Seconds that closing waits for what cannot be cancelled."""


class Fetcher(Protocol):
    """Fetches pages for one reading."""

    def start(self, token: Any) -> Future[Outcome]:
        """Begin to fetch a page."""

    def close(self) -> None:
        """Give up what is under way; may be called twice."""


class InlineFetcher:
    """Fetches in the caller's thread, when it is told to."""

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
            except BaseException as error:  # whoever waits for the page is told, whatever it is
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
