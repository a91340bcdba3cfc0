"""Writes batches in a second thread, and cancels a write that goes on after the run was asked to stop."""

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
"""Seconds in which a batch may still be finished after the run was asked to stop."""
ABANDONED_AFTER = 15.0
"""Seconds after which a write that cannot be cancelled is left behind."""
_KIND = Kind.TRANSIENT
_TICK = 0.25
_CANCEL_EVERY = 1.0


class WriteThread:
    """Does one thing at a time with the sink, while the caller reads the next batch."""

    def __init__(self, stopping: StopSignal) -> None:
        self._stopping = stopping
        self._cancellation = Cancellation()
        self._under_way: Future[Any] | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin something that may have to wait for the sink."""
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
        """Wait for what was begun. After a request to stop this takes seconds, whatever the sink waits for."""
        ends: float | None = None
        while not self._is_done(future, _TICK):
            if self._stopping.reason() is not None:
                ends = ends or time.monotonic() + GRACE
                if time.monotonic() >= ends:
                    return self._cancelled(future)
        self._under_way = None
        return future.result()

    def ask(self, work: Callable[[], T]) -> T:
        """Do something with the sink once the write that is under way has ended; its result stays to be waited for."""
        before = self._under_way
        try:
            if before is not None:
                self._wait_for(before)
            return self.result(self.submit(work))
        finally:
            self._under_way = before

    def _wait_for(self, future: Future[Any]) -> None:
        try:
            self.result(future)
        except RunStopped:
            raise
        except Exception:
            pass  # who waits for the write itself has its error

    def interrupt(self) -> Any:
        """End what is under way after Ctrl-C; return its result where it was finished within the grace period.

        A second Ctrl-C cancels it at once.
        """
        future, self._under_way = self._under_way, None
        if future is None:
            return None
        try:
            return future.result() if self._is_done(future, GRACE) else self._cancelled(future)
        except KeyboardInterrupt:
            self._cancel(future)
        except Exception:
            pass  # the batch was not saved, as the checkpoint shows; the interrupt is what is reported
        return None

    def _cancelled(self, future: Future[T]) -> T:
        """Cancel a write. The batch may still have been finished in the last moment."""
        if not self._cancel(future):
            raise RunStopped(self._sentence("the sink did not answer, and its write was left behind"), kind=_KIND)
        try:
            return future.result()
        except Exception as error:
            raise RunStopped(self._sentence("the write that was under way was cancelled"), kind=_KIND) from error

    def _cancel(self, future: Future[T]) -> bool:
        ends = time.monotonic() + ABANDONED_AFTER
        while time.monotonic() < ends:
            self._cancellation.cancel()
            if self._is_done(future, _CANCEL_EVERY):
                return True
        return False

    def _sentence(self, what: str) -> str:
        reason = self._stopping.reason() or "it was interrupted"
        return f"stopped: {reason}; {what}; everything before that batch is saved, and running again goes on from there"

    @staticmethod
    def _is_done(future: Future[Any], seconds: float) -> bool:
        return bool(wait([future], seconds).done)
