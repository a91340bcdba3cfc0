"""The writing thread of a run, which also cancels a write that takes too long after a request to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from redrive._internal.shutdown import Cancellation, StopSignal
from redrive.errors import RunStopped
from redrive.model.calls import Kind

T = TypeVar("T")

GRACE = 10.0
"""The grace period of a batch, in seconds, after a request to stop."""
ABANDONED_AFTER = 15.0
"""Seconds after which a write that cannot be cancelled is abandoned."""
_KIND = Kind.TRANSIENT
_TICK = 0.25
_CANCEL_EVERY = 1.0


class WriteThread:
    """Calls the sink, with one call at a time, while the caller reads the next batch."""

    def __init__(self, stopping: StopSignal) -> None:
        self._stopping = stopping
        self._cancellation = Cancellation()
        self._under_way: Future[Any] | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Start a call that may have to wait for the sink."""
        future: Future[T] = Future()
        self._under_way = future
        # A daemon: a write that cannot be cancelled must not keep the process from ending.
        threading.Thread(target=self._run, args=(future, work), name="redrive-sink", daemon=True).start()
        return future

    def _run(self, future: Future[T], work: Callable[[], T]) -> None:
        try:
            with self._cancellation.active():
                result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def result(self, future: Future[T]) -> T:
        """Wait for a call and return its result. After a request to stop, wait only for the grace period."""
        deadline: float | None = None
        while not self._is_done(future, _TICK):
            if self._stopping.reason() is not None:
                deadline = deadline or time.monotonic() + GRACE
                if time.monotonic() >= deadline:
                    return self._cancel_write(future)
        self._under_way = None
        return future.result()

    def ask(self, work: Callable[[], T]) -> T:
        """Call the sink after the current write, and return the result. The result of that write can still be read."""
        current_write = self._under_way
        try:
            if current_write is not None:
                self._wait_for(current_write)
            return self.result(self.submit(work))
        finally:
            self._under_way = current_write

    def _wait_for(self, future: Future[Any]) -> None:
        try:
            self.result(future)
        except RunStopped:
            raise
        except Exception:
            pass  # the caller that waits for the write itself gets its error

    def interrupt(self) -> Any:
        """End the current write after Ctrl-C. Return its result if it finishes within the grace period.

        A second Ctrl-C cancels the write at once.
        """
        future, self._under_way = self._under_way, None
        if future is None:
            return None
        try:
            return future.result() if self._is_done(future, GRACE) else self._cancel_write(future)
        except KeyboardInterrupt:
            self._cancel_until_done(future)
        except Exception:
            pass  # the batch was not saved, and the checkpoint has not moved; the interrupt is reported
        return None

    def _cancel_write(self, future: Future[T]) -> T:
        """Cancel a write. Return its result if it has finished all the same."""
        if not self._cancel_until_done(future):
            raise RunStopped(self._build_message("the sink did not answer, and its write was left behind"), kind=_KIND)
        try:
            return future.result()
        except Exception as error:
            raise RunStopped(self._build_message("the write that was under way was cancelled"), kind=_KIND) from error

    def _cancel_until_done(self, future: Future[T]) -> bool:
        deadline = time.monotonic() + ABANDONED_AFTER
        while time.monotonic() < deadline:
            self._cancellation.cancel()
            if self._is_done(future, _CANCEL_EVERY):
                return True
        return False

    def _build_message(self, what: str) -> str:
        reason = self._stopping.reason() or "it was interrupted"
        return f"stopped: {reason}; {what}; everything before that batch is saved, and the next run resumes there"

    @staticmethod
    def _is_done(future: Future[Any], seconds: float) -> bool:
        return bool(wait([future], seconds).done)
