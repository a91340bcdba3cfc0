"""Retries of what transient errors stop in a run: reading its source, its validate and its transform.

The sink and the store retry by themselves, in the thread that writes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from redrive._internal.shutdown import Cancellation, StepCancelled, StopSignal, ThreadInterrupt
from redrive.calls.failure_of import story_of
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
_TO_CANCEL = 2.0  # seconds
_classifier = Classifier()

Announce = Callable[[str, int, float, Exception], None]
"""Called before a retry with the step, the number of the retry, the seconds until then, and the error."""


class Retries:
    """Runs the steps of a run in the thread that reads."""

    def __init__(self, *, patience: float, stopping: StopSignal, announce: Announce) -> None:
        self.uncounted = 0
        """Retries that no batch has counted yet."""
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
        again: Callable[[], object] | None = None,
        retried: bool = True,
    ) -> T:
        """Return what `work` returns; an error that may be transient is retried within the patience.

        Args:
            step: What `work` does, for events: "read", "prepare".
            scope: What the error is classified as: an error of a "call", or one that a "row" may be to blame for.
            again: Called before a retry.
            retried: False for what has its own retries: it is only ended by a request to stop.
        """
        ends, retry, ambiguous = None, 0, 0
        while True:
            try:
                return self._interruptible(work)
            except StepCancelled as cancelled:
                raise self._stopped() or cancelled from None
            except Exception as error:
                if self._cancellation.requested and (stopped := self._stopped()):
                    raise stopped from error
                # A service has retried by its own policy; to do so again would multiply the attempts.
                if not retried or story_of(error) is not None:
                    raise
                verdict = None if is_interrupt(error) else _classifier.classify(error, scope=scope)
                ambiguous += verdict is not None and verdict.kind is Kind.AMBIGUOUS
                if verdict is None or not (verdict.kind in _TRANSIENT or 0 < ambiguous <= _MOST_AMBIGUOUS):
                    raise
                ends = time.monotonic() + self._patience if ends is None else ends
                retry += 1
                top = backoff.ceiling(retry, base=0.1, multiplier=2, cap=10)
                wait = max(random.uniform(top / 2, top), verdict.retry_after or 0.0)
                if time.monotonic() + wait >= ends:
                    raise
                self._announce(step, retry, wait, error)
                self._sleep(wait)
            self.uncounted += 1
            if again is not None:
                again()

    def _interruptible(self, work: Callable[[], T]) -> T:
        if self._interrupt is None:
            return work()
        with self._interrupt.armed():
            return work()

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """End what this thread waits for when it goes on after the run was asked to stop: a statement, a source."""
        over = threading.Event()
        self._interrupt = ThreadInterrupt()
        threading.Thread(target=self._cancel, args=(over,), name="redrive-stop", daemon=True).start()
        try:
            with self._interrupt.installed(), self._cancellation.active():
                yield
        finally:
            over.set()

    def _cancel(self, over: threading.Event) -> None:
        asked: float | None = None
        while not over.wait(_TICK):
            if self._stopping.reason() is not None:
                asked = asked or time.monotonic()
                waited = time.monotonic() - asked
                if waited >= thread.GRACE:
                    self._cancellation.cancel()
                # A statement that is cancelled ends its step in an orderly way, within a moment.
                if waited >= thread.GRACE + _TO_CANCEL and self._interrupt is not None:
                    self._interrupt.interrupt()

    def _sleep(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if stopped := self._stopped():
                raise stopped
            time.sleep(min(left, _TICK))

    def _stopped(self) -> RunStopped | None:
        reason = self._stopping.reason()
        if reason is None:
            return None
        sentence = f"stopped: {reason}; everything so far is written, and running again goes on from there"
        return RunStopped(sentence, kind=Kind.TRANSIENT)
