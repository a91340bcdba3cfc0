"""The dispatcher of messages: one delivery at a time to each channel, in its own thread and with a timeout.

A delivery that does not end in time counts as a failed attempt, and its thread is abandoned, so that a hanging channel
does not block the others. The delivery may still succeed, and then the message arrives twice.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from redrive.alerts.config.settings import AlertSettings, Channel
from redrive.alerts.delivery.format import safe_line
from redrive.alerts.delivery.outbox import ClaimedMessage, DueMessages, Outbox
from redrive.classify.signals import is_interrupt
from redrive.errors import StoreError
from redrive.policy import backoff

if TYPE_CHECKING:
    from redrive.alerts.delivery.message import Message

LOG = logging.getLogger("redrive.alerts.sending")

Deliver = Callable[[Channel, "Message"], None]

TIMEOUT_GRACE = 1.0
"""Seconds by which a delivery may exceed the timeout of its channel before it is abandoned."""
MAX_HANGING_DELIVERIES = 3
"""Maximum number of hanging deliveries to a channel; no further delivery starts until one of them ends."""
RECHECK_AFTER = 5.0
"""Seconds until the next check for due messages that cannot be sent yet, during a storm or a claim elsewhere."""
PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""First and longest pause of a channel after a failure, in seconds, whatever else is due to it."""


class DeliveryEnded:
    """The end of a delivery, as a worker reports it to the dispatcher."""

    def __init__(self, claim: ClaimedMessage, error: BaseException | None) -> None:
        self.claim, self.error = claim, error


FinishedQueue = SimpleQueue["DeliveryEnded | None"]
"""Deliveries that have ended; None wakes the dispatcher."""


class ChannelWorker:
    """A thread that delivers to one channel."""

    def __init__(self, channel: Channel, deliver: Callable[[ClaimedMessage], None], finished: FinishedQueue) -> None:
        self._deliver, self._finished = deliver, finished
        self._claims: SimpleQueue[ClaimedMessage | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"redrive-to-{channel.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the thread delivers or waits for a message."""
        return self._thread.is_alive()

    def take(self, claim: ClaimedMessage) -> None:
        """Deliver a claimed message in the thread."""
        self._claims.put(claim)

    def stop(self) -> None:
        """Stop the thread after its current delivery."""
        self._claims.put(None)

    def _run(self) -> None:
        while (claim := self._claims.get()) is not None:
            self._finished.put(delivered(claim, self._deliver))


def delivered(claim: ClaimedMessage, deliver: Callable[[ClaimedMessage], None]) -> DeliveryEnded:
    """Deliver a message, and return how that ended."""
    try:
        deliver(claim)
    except BaseException as error:  # a channel may do anything, and this thread is its own
        return DeliveryEnded(claim, error)
    return DeliveryEnded(claim, None)


@dataclass(slots=True)
class _InFlight:
    claim: ClaimedMessage
    worker: ChannelWorker | None
    until: float


@dataclass(slots=True)
class _FailingChannel:
    """The pause of a channel after failures."""

    failures: int
    until: float
    """By the clock of `_moment`."""


class Dispatcher:
    """All deliveries in progress. Used by one thread at a time; each channel has its own worker thread.

    Callers pass the time with every call, or with none of them.
    """

    def __init__(self, outbox: Outbox, settings: AlertSettings, deliver: Deliver | None) -> None:
        self.finished: FinishedQueue = SimpleQueue()
        self._outbox, self._settings, self._deliver = outbox, settings, deliver
        self._workers: dict[str, ChannelWorker] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._abandoned: defaultdict[str, list[ChannelWorker]] = defaultdict(list)
        self._failing: dict[str, _FailingChannel] = {}
        self._unsaved_results: list[Callable[[], None]] = []

    @property
    def is_busy(self) -> bool:
        """Return whether a delivery is in progress."""
        return bool(self._in_flight)

    def start_workers(self) -> None:
        """Start a thread for every channel, because no thread can be started while the program exits."""
        for name in self._outbox.channels:
            self._worker(name)

    def stop(self) -> None:
        """Stop the threads that are idle."""
        for name in [name for name in self._workers if name not in self._in_flight]:
            self._workers.pop(name).stop()

    # ── begin ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, *, now: datetime | None = None, alert_id: int | None = None) -> float | None:
        """Claim messages that are due to idle channels, and deliver them in their threads.

        Returns:
            The number of seconds until the next check; None if no message waits.
        """
        while self._unsaved_results:
            _store_result(self._unsaved_results[0])
            del self._unsaved_results[0]
        due = self._outbox.due(now=now, alert_id=alert_id)
        for name, at in due.channels.items():
            # A message that an operator waits for is sent even while the channel is paused.
            if at <= due.now and self._is_free(name) and (alert_id is not None or self._pause(name, now) <= 0):
                claim = self._outbox.claim(name, now=now, alert_id=alert_id)
                if claim is not None:
                    self._hand_over(claim)
        return self._next_check(due, now)

    def _pause(self, name: str, now: datetime | None) -> float:
        """Return for how many seconds a channel is still paused after a failure."""
        return self._failing[name].until - _moment(now) if name in self._failing else 0.0

    def _is_free(self, name: str) -> bool:
        if name in self._in_flight:
            return False
        hanging = self._abandoned[name] = [worker for worker in self._abandoned[name] if worker.is_alive]
        return len(hanging) < MAX_HANGING_DELIVERIES

    def _hand_over(self, claim: ClaimedMessage) -> None:
        channel = claim.channel
        worker = self._worker(channel.name)
        self._in_flight[channel.name] = _InFlight(claim, worker, time.monotonic() + channel.timeout + TIMEOUT_GRACE)
        if worker is not None:
            worker.take(claim)
        else:  # the program is exiting, and no thread can be started
            self.finished.put(delivered(claim, self._deliver_message))

    def _worker(self, name: str) -> ChannelWorker | None:
        if name not in self._workers:
            try:
                self._workers[name] = ChannelWorker(self._outbox.channels[name], self._deliver_message, self.finished)
            except RuntimeError:
                return None
        return self._workers[name]

    def _deliver_message(self, claim: ClaimedMessage) -> None:
        from redrive.alerts.delivery import channels

        (self._deliver or channels.deliver)(claim.channel, self._message(claim))

    def _message(self, claim: ClaimedMessage) -> Message:
        """Return the message. If it cannot be formatted, which is not a failure of the channel, it is plain text."""
        from redrive.alerts.delivery.message import compose, compose_many, compose_plain

        kind = claim.group.kind
        try:
            if kind == "one":
                message = compose(*claim.messages[0], self._settings)
            else:
                message = compose_many(kind, claim.messages, self._settings)
            json.dumps([message.document(), message.slack()], ensure_ascii=False).encode()
            message.markdown(), message.plain()
        except Exception as error:
            if is_interrupt(error):
                raise
            number, reason = claim.messages[0][1].id, safe_line(f"{type(error).__name__}: {error}", 300)
            LOG.error("alert %s cannot be shown in full: %s", number, reason)
            return compose_plain(kind, claim.messages)
        return message

    def _next_check(self, due: DueMessages, now: datetime | None = None) -> float | None:
        waits: list[float] = []
        for name, at in due.channels.items():
            if name not in self._in_flight:  # a channel that is busy is checked when its delivery ends
                wait = max((at - due.now).total_seconds(), self._pause(name, now))
                waits.append(wait if wait > 0 else RECHECK_AFTER)
        return min(waits, default=None)

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, seconds: float | None, *, now: datetime | None = None) -> int:
        """Wait until a delivery ends, `None` is put into `finished`, or the time is over.

        Returns:
            The number of messages that arrived.
        """
        ends = [delivery.until for delivery in self._in_flight.values()]
        if seconds is not None:
            ends.append(time.monotonic() + seconds)
        arrived = 0
        try:
            ended = self.finished.get(timeout=max(0.0, min(ends) - time.monotonic()) if ends else None)
            arrived += self._end(ended, now)
            while True:
                arrived += self._end(self.finished.get_nowait(), now)
        except Empty:
            pass
        for name, delivery in list(self._in_flight.items()):
            if delivery.until <= time.monotonic():
                self._abandon(name, delivery, now)
        return arrived

    def _end(self, ended: DeliveryEnded | None, now: datetime | None) -> int:
        if ended is None:
            return 0
        name = ended.claim.channel.name
        delivery = self._in_flight.get(name)
        if delivery is None or delivery.claim is not ended.claim:
            return 0  # the delivery was abandoned, and is retried
        del self._in_flight[name]
        if ended.error is not None:
            self._failed(ended.claim, ended.error, now)
            return 0
        self._failing.pop(name, None)
        self._save_result(lambda: self._outbox.sent(ended.claim, now=now))
        return 1

    def _abandon(self, name: str, delivery: _InFlight, now: datetime | None) -> None:
        del self._in_flight[name]
        self._workers.pop(name, None)
        if delivery.worker is not None:
            delivery.worker.stop()
            self._abandoned[name].append(delivery.worker)
        self._failed(
            delivery.claim, TimeoutError(f"no answer within {delivery.claim.channel.timeout + TIMEOUT_GRACE:g} s"), now
        )

    def _failed(self, claim: ClaimedMessage, error: BaseException, now: datetime | None) -> None:
        from redrive.alerts.delivery.channels import DeliveryFailed

        reason, permanent, retry_after = f"{type(error).__name__}: {error}", False, None
        if isinstance(error, DeliveryFailed):
            reason, permanent, retry_after = error.reason, error.permanent, error.retry_after
        elif isinstance(error, TimeoutError):
            reason = str(error) or "no answer in time"
        self._save_result(
            lambda: self._outbox.failed(claim, reason, permanent=permanent, retry_after=retry_after, now=now)
        )
        name = claim.channel.name
        if permanent:  # the channel rejects this message, and may take others
            LOG.error("channel %s rejected a message: %s", name, safe_line(reason, 300))
            return
        failures = self._failing[name].failures + 1 if name in self._failing else 1
        if failures == 1:
            LOG.warning("delivery to channel %s failed and is retried: %s", name, safe_line(reason, 300))
        longest = backoff.ceiling(failures, base=PAUSE, multiplier=2, cap=LONGEST_PAUSE)
        self._failing[name] = _FailingChannel(failures, _moment(now) + random.uniform(0, longest))

    def _save_result(self, save: Callable[[], None]) -> None:
        """Store the result of a delivery; while the store is unreachable, nothing else is sent before that."""
        try:
            _store_result(save)
        except StoreError as error:
            LOG.warning("the result of a delivery could not be stored yet: %s", error)
            self._unsaved_results.append(save)


def _store_result(save: Callable[[], None]) -> None:
    """Store the result of a delivery.

    An error that is not one of the store would be raised each time, so it is logged and the result is dropped: another
    attempt is made when the claim of the message expires.
    """
    try:
        save()
    except StoreError:
        raise
    except Exception as error:
        if is_interrupt(error):
            raise
        LOG.error("the result of a delivery cannot be stored: %s", safe_line(f"{type(error).__name__}: {error}", 300))


def _moment(now: datetime | None) -> float:
    """Return the given time in seconds, or else the monotonic time.

    The pause of a channel concerns this process only, so the clock of the database is not needed.
    """
    return time.monotonic() if now is None else now.timestamp()
