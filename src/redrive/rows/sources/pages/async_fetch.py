"""Fetching pages by a function that is `async def`, from a program that need not be."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import Future
from typing import Any

from redrive.rows.sources.pages.fetch import PATIENCE, Outcome, PageFetcher

_GRACE = 1.0
"""Seconds that requests are given to end by themselves before they are cancelled."""


class FetchLoop:
    """The event loop of all sources of the program; a thread runs it while one of them is read.

    One for all, since the connections of an HTTP client belong to the loop they were opened in, and a client may serve
    several sources, run after run. In a thread of its own, since the caller may be inside a running loop himself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> asyncio.AbstractEventLoop:
        """See that it runs."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                atexit.register(_end, self._loop, os.getpid())
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-pages-loop", daemon=True)
                self._thread.start()
            self._users += 1
            return self._loop

    def leave(self) -> None:
        """Need it no longer; the last one out stops the thread."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._thread = None


_loops: dict[int, FetchLoop] = {}


def fetch_loop() -> FetchLoop:
    """Return the loop of this process. A forked process does not close the one of its parent."""
    return _loops.setdefault(os.getpid(), FetchLoop())


def _end(loop: asyncio.AbstractEventLoop, process: int) -> None:
    """Do what was left for the next turn, such as the end of connections that were closed from outside, and close."""
    if process == os.getpid() and not loop.is_running():  # the thread of a reading that was not closed may be running
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()


class AsyncFetcher:
    """Fetches pages as tasks of the loop."""

    def __init__(self, fetch: PageFetcher) -> None:
        self._fetch = fetch
        self._home = fetch_loop()
        self._loop: asyncio.AbstractEventLoop | None = self._home.enter()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, token: Any) -> Future[Outcome]:
        assert self._loop is not None, "the reading is closed"
        return asyncio.run_coroutine_threadsafe(self._page(token), self._loop)

    async def _page(self, token: Any) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._fetch.acall(token)
        finally:
            self._tasks.discard(task)

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._fetch.stop()
        try:
            asyncio.run_coroutine_threadsafe(self._wind_down(), loop).result()
        finally:
            self._home.leave()

    async def _wind_down(self) -> None:
        # A client may lose a connection for good where a request is cancelled, so those that end soon are not.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in (left := set(self._tasks)):
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=PATIENCE)
