"""Retries of transient errors in the reading thread of a run: of reading the source, validating and transforming.

The sink and the store retry by themselves, in the writing thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from redrive._internal.shutdown import Cancellation, StepCancelled, StopSignal, ThreadInterrupt
from redrive.calls.failures import attached_failure
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.errors import RunStopped
from redrive.model.calls import Kind, Scope
from redrive.policy import backoff
from redrive.rows.write import thread

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which a step is retried."""

_TRANSIENT = {Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED}
_MOST_AMBIGUOUS = 3
_TICK = 0.1
_CANCEL_GRACE = 2.0  # seconds
_classifier = Classifier()

Announce = Callable[[str, int, float, Exception], None]
"""Called before a retry with the step, the number of the retry, the wait in seconds, and the error."""


class Retries:
    """Runs the steps of the reading thread, with retries and cancellation."""

    def __init__(self, *, patience: float, stopping: StopSignal, announce: Announce) -> None:
        self.uncounted = 0
        """Retries that are not yet in the counts of a batch."""
        self._patience = patience
        self._stopping = stopping
        self._announce = announce
        self._cancellation = Cancellation()
        self._interrupt: ThreadInterrupt | None = None

    def run(
        self,
        step: str,
        work: Callable[[], T],
        *,
        scope: Scope,
        before_retry: Callable[[], object] | None = None,
        retried: bool = True,
    ) -> T:
        """Return the result of `work`. Retry a transient or ambiguous error until the timeout of the pipeline.

        Args:
            step: The name of the step, for events: "read", "prepare".
            scope: How to classify an error: as that of a "call", or of a "row" that may have caused it.
            before_retry: Called before each retry.
            retried: False for work that retries by itself; then only a request to stop ends it.
        """
        end, retry, ambiguous = None, 0, 0
        while True:
            try:
                return self._run_interruptibly(work)
            except StepCancelled as cancelled:
                raise self._build_stop_error() or cancelled from None
            except Exception as error:
                if self._cancellation.requested and (stopped := self._build_stop_error()):
                    raise stopped from error
                # The client of a service has retried already; more retries would multiply the attempts.
                if not retried or attached_failure(error) is not None:
                    raise
                verdict = None if is_interrupt(error) else _classifier.classify(error, scope=scope)
                ambiguous += verdict is not None and verdict.kind is Kind.AMBIGUOUS
                if verdict is None or not (verdict.kind in _TRANSIENT or 0 < ambiguous <= _MOST_AMBIGUOUS):
                    raise
                end = time.monotonic() + self._patience if end is None else end
                retry += 1
                longest_wait = backoff.ceiling(retry, base=0.1, multiplier=2, cap=10)
                wait = max(random.uniform(longest_wait / 2, longest_wait), verdict.retry_after or 0.0)
                if time.monotonic() + wait >= end:
                    raise
                self._announce(step, retry, wait, error)
                self._sleep(wait)
            self.uncounted += 1
            if before_retry is not None:
                before_retry()

    def _run_interruptibly(self, work: Callable[[], T]) -> T:
        if self._interrupt is None:
            return work()
        with self._interrupt.armed():
            return work()

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancel the step of this thread if it still runs some time after a request to stop."""
        ended = threading.Event()
        self._interrupt = ThreadInterrupt()
        threading.Thread(target=self._cancel, args=(ended,), name="redrive-stop", daemon=True).start()
        try:
            with self._interrupt.installed(), self._cancellation.active():
                yield
        finally:
            ended.set()

    def _cancel(self, ended: threading.Event) -> None:
        requested_at: float | None = None
        while not ended.wait(_TICK):
            if self._stopping.reason() is not None:
                requested_at = requested_at or time.monotonic()
                waited = time.monotonic() - requested_at
                if waited >= thread.GRACE:
                    self._cancellation.cancel()
                # A cancelled statement ends its step with an error of its own; only other steps need an interrupt.
                if waited >= thread.GRACE + _CANCEL_GRACE and self._interrupt is not None:
                    self._interrupt.interrupt()

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            if stopped := self._build_stop_error():
                raise stopped
            time.sleep(min(remaining, _TICK))

    def _build_stop_error(self) -> RunStopped | None:
        reason = self._stopping.reason()
        if reason is None:
            return None
        message = f"stopped: {reason}; everything so far is written, and the next run resumes there"
        return RunStopped(message, kind=Kind.TRANSIENT)
