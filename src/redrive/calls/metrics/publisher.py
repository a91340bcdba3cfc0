"""Services whose metrics are stored: one thread per process writes them, every few seconds.

A call never waits for it. The metrics of a service are summed up; the thread takes the sums, and adds them to those of
all other processes in one transaction. While the store cannot be reached they grow, by a row for each quarter of an
hour.

Nothing is counted twice: each batch has a number, by which the store recognizes one that it has already, and until it
is known whether a batch was stored, there is no next one. A forked child starts empty: its parent writes the rest.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from redrive.calls.core import ServiceCore
from redrive.calls.metrics.counters import take
from redrive.calls.metrics.window import MINUTE, MINUTES_KEPT, MetricsWindow, window
from redrive.calls.shared_state import describe_error, process_name
from redrive.errors import StoreError
from redrive.events.bus import EVENTS
from redrive.model.calls import Kind
from redrive.policy import backoff

STOP_TIMEOUT = 8.0
"""Seconds for which the end of a program, or of its store, waits for a store that is busy."""
LOST_STOP_TIMEOUT = 2.0
"""The same for a store that could not be reached."""
BUSY_RETRY_DELAY = 0.05
"""Seconds between two attempts to write into a store that is busy, while a caller waits."""
LONGEST_PAUSE = 60.0
"""Longest pause in seconds before the next attempt to reach a store that is lost."""


@dataclass(frozen=True, slots=True)
class MetricsBatch:
    """The metrics of the services of one process since its last batch."""

    process: str
    number: int
    """Counted from 1."""
    windows: Mapping[str, MetricsWindow]
    """By the service's name."""


class Rollups(Protocol):
    """Where the sums of all processes are stored. `redrive.connect(…).services` is one."""

    name: str
    """Where it is, as messages show it."""
    every: float
    """Seconds between two batches."""

    def add(self, batch: MetricsBatch) -> None:
        """Add a batch, unless it is there already.

        It may take long and may raise anything: it is called from a thread of its own. A batch of which it is not known
        whether it was added is passed again, before any other of the same process.
        """

    def on_close(self, stop: Callable[[], None]) -> None:
        """Call `stop` before this is closed; the last function that was given counts."""


class MetricsRecord:
    """The metrics of one service since they were last taken; a `redrive.calls.metrics.counters.MetricsRecorder`."""

    def __init__(self, core: ServiceCore) -> None:
        self.service = core.name
        self._clock = core.clock
        self._core = weakref.ref(core)
        core.counters.counts_endpoints = True
        self._latencies, self._by_endpoint = core.counters.latencies, core.counters.by_endpoint
        self._lock = threading.RLock()
        self._window = MetricsWindow()
        self._counted_until = self._now()  # the successes that are recorded next came after it
        self._open_since: float | None = None  # by the monotonic clock, as the circuit has it
        core.counters.recorder = self
        core.counters.fold(core.clock.monotonic())
        if core.circuit is not None:
            core.circuit.on_transition = self.on_transition

    def _now(self) -> float:
        return self._clock.now().timestamp()

    # ── called by the service ────────────────────────────────────────────────────────────────────────────────────────

    def succeeded(self, latencies: Sequence[float], by_endpoint: Mapping[str, Sequence[float]]) -> float:
        now = self._now()
        with self._lock:
            self._window.succeeded(self._counted_until, latencies, by_endpoint)
            self._counted_until = now
            return window(now, MINUTE) + MINUTE - now

    def attempted(self, outcome: str, seconds: float, *, retry: bool, fault: bool, endpoint: str) -> None:
        now = self._now()
        with self._lock:
            self._window.attempted(now, outcome, seconds, retry=retry, fault=fault, endpoint=endpoint)

    def rejected(self, outcome: str, *, endpoint: str) -> None:
        now = self._now()
        with self._lock:
            self._window.rejected(now, outcome, endpoint=endpoint)

    def ended(self, *how: str, endpoint: str) -> None:
        is_auth_failure = "failed_auth" in how
        if is_auth_failure and (core := self._core()) is not None:
            core.counters.fold(core.clock.monotonic())  # what has succeeded before it must not seem to come after it
        now = self._now()
        with self._lock:
            self._window.ended(now, *how, endpoint=endpoint)
            if is_auth_failure:
                self._counted_until = now

    def on_transition(self, closed: bool, now: float) -> None:
        """Record that the circuit has closed, or that it is not closed any more."""
        with self._lock:
            self._count_open(now)
            self._open_since = None if closed else now

    def _count_open(self, now: float) -> None:
        if self._open_since is not None:
            ends = self._now()
            self._window.open_for(ends - (now - self._open_since), ends)
            self._open_since = now

    # ── called by the publisher ──────────────────────────────────────────────────────────────────────────────────────

    def collect(self) -> bool:
        """Count everything up to now; return whether the service still exists."""
        core, now = self._core(), self._clock.monotonic()
        if core is not None:
            core.counters.fold(now)
        else:
            by_endpoint = {name: take(latencies) for name, latencies in self._by_endpoint.items()}
            self.succeeded([*take(self._latencies), *chain.from_iterable(by_endpoint.values())], by_endpoint)
        with self._lock:
            self._count_open(now)
            self._window.forget_minutes(self._now() - MINUTES_KEPT)
        return core is not None

    def take(self) -> MetricsWindow:
        """Return the metrics so far, and start an empty window."""
        with self._lock:
            taken, self._window = self._window, MetricsWindow()
            return taken

    def detach(self) -> None:
        """Stop recording the service."""
        if (core := self._core()) is not None:
            core.counters.recorder = None
            if core.circuit is not None:
                core.circuit.on_transition = None

    def restart(self) -> None:
        """Start again in a forked child, where nothing was done yet."""
        self._lock = threading.RLock()
        self._window = MetricsWindow()
        if self._open_since is not None:
            self._open_since = self._clock.monotonic()
        for latencies in (self._latencies, *self._by_endpoint.values()):
            latencies.clear()


class MetricsPublisher:
    """The thread that writes the metrics of the services of this process into one store."""

    def __init__(self, rollups: Rollups) -> None:
        self.records: list[MetricsRecord] = []  # changed and listed under `_lock`
        self._rollups = rollups
        self._finalizer: Any = None
        self._follows_forks = False
        rollups.on_close(self.stop)

    def start(self) -> None:
        """Start the thread, in this process."""
        # Not an Event: a queue may be put to from anywhere, even by a garbage collection inside its own lock.
        self._queue: SimpleQueue[threading.Event | None] = SimpleQueue()
        self._ending = False
        self._failures = 0
        self._busy = False  # whether the last attempt failed because others were writing
        self._process = process_name()
        self._number = 0
        self._unconfirmed: MetricsBatch | None = None  # passed to the store, and not known to be stored
        self._thread = threading.Thread(target=self._run, name="redrive-rollups", daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """Start again in a forked child, which has none of its parent's threads."""
        for record in self.records:
            record.restart()
        self.start()

    def flush(self) -> None:
        """Write everything now, within bounds."""
        done, until = threading.Event(), time.monotonic() + self._stop_timeout()
        self._queue.put(done)
        while self._thread.is_alive() and time.monotonic() < until:  # it ends when no service is left
            if done.wait(0.1):
                return

    def stop(self) -> None:
        """Write what is pending, then end; the services continue without being recorded."""
        with _lock:
            self._retire()
            was_ending, self._ending = self._ending, True
            records = list(self.records)
        self._queue.put(None)
        if not was_ending and self._thread is not threading.current_thread():
            self._thread.join(self._stop_timeout())
            if self._unconfirmed is not None:
                EVENTS.warning("the last service metrics were not written to %s", self._rollups.name)
        for record in records:
            record.detach()

    def _stop_timeout(self) -> float:
        return LOST_STOP_TIMEOUT if self._failures and not self._busy else STOP_TIMEOUT

    # ── the end of a process ─────────────────────────────────────────────────────────────────────────────────────────

    def stop_at_exit(self) -> None:
        """Write what is pending when the program ends normally."""
        atexit.register(self.stop)
        if "multiprocessing.util" in sys.modules:
            self.stop_with_multiprocessing()

    def stop_with_multiprocessing(self) -> None:
        """Register a finalizer: a worker of multiprocessing does not run the functions of `atexit`."""
        self._finalizer = sys.modules["multiprocessing.util"].Finalize(None, self.stop, exitpriority=0)

    def _retire(self) -> None:
        """Remove the publisher from all registries; the caller holds `_lock`."""
        if _publishers.get(self._rollups) is self:
            del _publishers[self._rollups]
        atexit.unregister(self.stop)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def follow_forks(self) -> None:
        """Prepare a fork: a worker of multiprocessing drops its parent's finalizers, and needs a new one."""
        finalizers = sys.modules.get("multiprocessing.util")
        if finalizers is not None and not self._follows_forks:
            self._follows_forks = True
            finalizers.register_after_fork(self, MetricsPublisher.stop_with_multiprocessing)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        pause = self._rollups.every
        while self._needed():
            waiters = self._wait_for_wake(pause)
            pause, ends = self._round(), time.monotonic() + STOP_TIMEOUT
            while waiters and self._busy and time.monotonic() < ends:
                if more := self._wait_for_wake(BUSY_RETRY_DELAY):
                    waiters, ends = [*waiters, *more], time.monotonic() + STOP_TIMEOUT
                pause = self._round()
            for waiting in waiters:
                if waiting is not None:
                    waiting.set()
            if None in waiters:
                break

    def _needed(self) -> bool:
        """Return whether there is still something to write, or a service that may do something."""
        with _lock:
            needed = bool(self.records or self._unconfirmed)
            if not needed:
                self._retire()
            return needed

    def _wait_for_wake(self, pause: float) -> Collection[threading.Event | None]:
        """Wait until it is time to write; return the callers that wait for it."""
        waiters: list[threading.Event | None] = []
        with suppress(Empty):
            waiters.append(self._queue.get(timeout=pause))
            while not self._queue.empty():
                waiters.append(self._queue.get())
        return waiters

    def _round(self) -> float:
        """Write what is pending; return the seconds until the next time."""
        every = self._rollups.every
        try:
            self._write()
        except Exception as error:  # of whatever kind: calls continue, and the next round retries
            self._failures, self._busy = self._failures + 1, _is_busy(error)
            if self._failures == 1:
                EVENTS.warning(
                    "cannot write service metrics to %s; buffering (%s)", self._rollups.name, describe_error(error)
                )
            ramp = backoff.ceiling(self._failures, base=every, multiplier=2, cap=max(every, LONGEST_PAUSE))
            return random.uniform(ramp / 2, ramp)
        if self._failures:
            self._failures, self._busy = 0, False
            EVENTS.warning("writing service metrics to %s again", self._rollups.name)
        return every

    def _write(self) -> None:
        with _lock:
            records = list(self.records)
        gone = [record for record in records if not record.collect()]
        if self._unconfirmed is not None:
            self._rollups.add(self._unconfirmed)
            self._unconfirmed = None
        windows: defaultdict[str, MetricsWindow] = defaultdict(MetricsWindow)
        for record in records:
            if taken := record.take():
                windows[record.service].add(taken)
        if windows:
            self._number += 1
            self._unconfirmed = MetricsBatch(self._process, self._number, dict(windows))
        with _lock:
            self.records = [record for record in self.records if record not in gone]
        if self._unconfirmed is not None:
            self._rollups.add(self._unconfirmed)
            self._unconfirmed = None


def _is_busy(error: Exception) -> bool:
    """Return whether the store was reached, but others kept its locks: SQLite's one lock, or those of PostgreSQL."""
    if not isinstance(error, StoreError) or error.kind not in (Kind.TRANSIENT, Kind.RETRY_NOW):
        return False
    original = getattr(error.__cause__, "orig", None)
    state = getattr(original, "sqlstate", "")  # SQLite has none, nor a server that could be down
    return original is not None and state is not None and not state.startswith("08")


_lock = threading.RLock()
_publishers: dict[Rollups, MetricsPublisher] = {}


def attach(core: ServiceCore, rollups: Rollups) -> None:
    """Record what a service does."""
    with _lock:
        known = _publishers.get(rollups)
        publisher = known or MetricsPublisher(rollups)
        publisher.records.append(MetricsRecord(core))
        if known is None:
            _publishers[rollups] = publisher
            publisher.start()
            publisher.stop_at_exit()


def flush() -> None:
    """Write the metrics of all services now: for a process that does not end as programs do."""
    for publisher in list(_publishers.values()):
        publisher.flush()


def _before_fork() -> None:
    for publisher in list(_publishers.values()):
        publisher.follow_forks()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # its owner may be a thread of the parent
    _lock = threading.RLock()
    for publisher in list(_publishers.values()):
        publisher.restart()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
