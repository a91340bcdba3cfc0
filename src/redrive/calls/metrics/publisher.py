"""Services whose rollups are kept in a store: one thread per process writes what they did, every few seconds.

A call never waits for it. What a service did gathers as sums; the thread takes them, and adds them to those of all
other processes in one transaction. While the store cannot be reached they grow, by a row for each quarter of an hour.

Nothing is counted twice: each batch has a number, by which the store knows one that it has already, and until it is
known what became of a batch, there is no next one. A forked child begins with nothing, since its parent tells the rest.
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
from redrive.calls.shared_state import describe_error, own_name
from redrive.errors import StoreError
from redrive.events.bus import EVENTS
from redrive.model.calls import Kind
from redrive.policy import backoff

LAST_WORD = 8.0
"""Seconds for which the end of a program, or of its store, waits for a store that is busy."""
LAST_TRY = 2.0
"""And for one that could not be reached of late."""
BREATH = 0.05
"""Seconds between two tries to write into a store that is busy, while somebody waits."""
LONGEST_PAUSE = 60.0
"""Seconds between two tries to reach a store that is lost."""


@dataclass(frozen=True, slots=True)
class MetricsBatch:
    """What the services of one process did since its last batch."""

    process: str
    number: int
    """Counted from 1."""
    books: Mapping[str, MetricsWindow]
    """By the service's name."""


class Rollups(Protocol):
    """Where the sums of all processes are kept. `redrive.connect(…).services` is one, in the store."""

    name: str
    """Where it is, for people."""
    every: float
    """Seconds between two batches."""

    def add(self, batch: MetricsBatch) -> None:
        """Add a batch, unless it is there already.

        It may take long and may raise anything: it is called from a thread of its own. A batch of which it is not known
        whether it was added is given again, before any other of the same process.
        """

    def on_close(self, stop: Callable[[], None]) -> None:
        """Have `stop` called before this is closed; the last one that was given counts."""


class MetricsRecord:
    """What one service did since that was last taken; see `redrive.calls.metrics.counters.MetricsRecorder`."""

    def __init__(self, core: ServiceCore) -> None:
        self.service = core.name
        self._clock = core.clock
        self._core = weakref.ref(core)
        core.tally.parts_endpoints = True
        self._latencies, self._by_endpoint = core.tally.latencies, core.tally.by_endpoint
        self._lock = threading.RLock()
        self._book = MetricsWindow()
        self._told_at = self._now()  # the successes that are told next came after it
        self._open_since: float | None = None  # by the clock that only ever grows, as the circuit has it
        core.tally.recorder = self
        core.tally.fold(core.clock.monotonic())
        if core.circuit is not None:
            core.circuit.on_turn = self.turned

    def _now(self) -> float:
        return self._clock.now().timestamp()

    # ── told by the service ──────────────────────────────────────────────────────────────────────────────────────────

    def succeeded(self, latencies: Sequence[float], by_endpoint: Mapping[str, Sequence[float]]) -> float:
        now = self._now()
        with self._lock:
            self._book.succeeded(self._told_at, latencies, by_endpoint)
            self._told_at = now
            return window(now, MINUTE) + MINUTE - now

    def attempted(self, outcome: str, seconds: float, *, repeat: bool, fault: bool, endpoint: str) -> None:
        now = self._now()
        with self._lock:
            self._book.attempted(now, outcome, seconds, repeat=repeat, fault=fault, endpoint=endpoint)

    def refused(self, outcome: str, *, endpoint: str) -> None:
        now = self._now()
        with self._lock:
            self._book.refused(now, outcome, endpoint=endpoint)

    def ended(self, *how: str, endpoint: str) -> None:
        refused = "failed_auth" in how
        if refused and (core := self._core()) is not None:
            core.tally.fold(core.clock.monotonic())  # what has succeeded before it must not seem to come after it
        now = self._now()
        with self._lock:
            self._book.ended(now, *how, endpoint=endpoint)
            if refused:
                self._told_at = now

    def turned(self, closed: bool, now: float) -> None:
        """The circuit is closed now, or it is not any more."""
        with self._lock:
            self._count_open(now)
            self._open_since = None if closed else now

    def _count_open(self, now: float) -> None:
        if self._open_since is not None:
            ends = self._now()
            self._book.open_for(ends - (now - self._open_since), ends)
            self._open_since = now

    # ── asked by the writer ──────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> bool:
        """Count everything up to now; whether the service is still there."""
        core, now = self._core(), self._clock.monotonic()
        if core is not None:
            core.tally.fold(now)
        else:
            by_endpoint = {name: take(one) for name, one in self._by_endpoint.items()}
            self.succeeded([*take(self._latencies), *chain.from_iterable(by_endpoint.values())], by_endpoint)
        with self._lock:
            self._count_open(now)
            self._book.forget_minutes(self._now() - MINUTES_KEPT)
        return core is not None

    def take(self) -> MetricsWindow:
        """What there is; from now on there is nothing."""
        with self._lock:
            taken, self._book = self._book, MetricsWindow()
            return taken

    def leave(self) -> None:
        """From now on the service is not recorded."""
        if (core := self._core()) is not None:
            core.tally.recorder = None
            if core.circuit is not None:
                core.circuit.on_turn = None

    def start_anew(self) -> None:
        """In a forked child: nothing has been done yet."""
        self._lock = threading.RLock()
        self._book = MetricsWindow()
        if self._open_since is not None:
            self._open_since = self._clock.monotonic()
        for latencies in (self._latencies, *self._by_endpoint.values()):
            latencies.clear()


class MetricsPublisher:
    """The thread that writes what the services of this process did into one store."""

    def __init__(self, rollups: Rollups) -> None:
        self.records: list[MetricsRecord] = []  # changed and listed under `_lock`
        self._rollups = rollups
        self._finalizer: Any = None
        self._follows_forks = False
        rollups.on_close(self.stop)

    def start(self) -> None:
        """Begin, in this process."""
        # Not an Event: a queue may be put to from anywhere, even by a garbage collection inside its own lock.
        self._bell: SimpleQueue[threading.Event | None] = SimpleQueue()
        self._ending = False
        self._failures = 0
        self._busy = False  # whether the last try failed because others were writing
        self._process = own_name()
        self._number = 0
        self._unsure: MetricsBatch | None = None  # given to the store, and not known to be there
        self._thread = threading.Thread(target=self._run, name="redrive-rollups", daemon=True)
        self._thread.start()

    def start_anew(self) -> None:
        """Begin again in a forked child, which has none of its parent's threads."""
        for record in self.records:
            record.start_anew()
        self.start()

    def flush(self) -> None:
        """Have everything written now, within bounds."""
        done, until = threading.Event(), time.monotonic() + self._patience()
        self._bell.put(done)
        while self._thread.is_alive() and time.monotonic() < until:  # it ends when no service is left
            if done.wait(0.1):
                return

    def stop(self) -> None:
        """Write what there is, then end; the services go on without being recorded."""
        with _lock:
            self._retire()
            again, self._ending = self._ending, True
            records = list(self.records)
        self._bell.put(None)
        if not again and self._thread is not threading.current_thread():
            self._thread.join(self._patience())
            if self._unsure is not None:
                EVENTS.warning("%s could not be told what services did last", self._rollups.name)
        for record in records:
            record.leave()

    def _patience(self) -> float:
        return LAST_TRY if self._failures and not self._busy else LAST_WORD

    # ── the ends of a process ────────────────────────────────────────────────────────────────────────────────────────

    def stop_at_exit(self) -> None:
        """See that nothing is lost when the program ends as it should."""
        atexit.register(self.stop)
        if "multiprocessing.util" in sys.modules:
            self.stop_with_multiprocessing()

    def stop_with_multiprocessing(self) -> None:
        """A worker of multiprocessing ends without what `atexit` has, but with this."""
        self._finalizer = sys.modules["multiprocessing.util"].Finalize(None, self.stop, exitpriority=0)

    def _retire(self) -> None:
        """Be known to nobody any more; under `_lock`."""
        if _writers.get(self._rollups) is self:
            del _writers[self._rollups]
        atexit.unregister(self.stop)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def follow_forks(self) -> None:
        """Before a fork: a worker of multiprocessing forgets its parent's finalizers, and is to have one of ours."""
        finalizers = sys.modules.get("multiprocessing.util")
        if finalizers is not None and not self._follows_forks:
            self._follows_forks = True
            finalizers.register_after_fork(self, MetricsPublisher.stop_with_multiprocessing)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        pause = self._rollups.every
        while self._needed():
            rung = self._rung(pause)
            pause, ends = self._round(), time.monotonic() + LAST_WORD
            while rung and self._busy and time.monotonic() < ends:
                if more := self._rung(BREATH):
                    rung, ends = [*rung, *more], time.monotonic() + LAST_WORD
                pause = self._round()
            for waiting in rung:
                if waiting is not None:
                    waiting.set()
            if None in rung:
                break

    def _needed(self) -> bool:
        """Whether there is still something to write, or somebody who may have done something."""
        with _lock:
            needed = bool(self.records or self._unsure)
            if not needed:
                self._retire()
            return needed

    def _rung(self, pause: float) -> Collection[threading.Event | None]:
        """Wait until it is time; who asked for it."""
        rung: list[threading.Event | None] = []
        with suppress(Empty):
            rung.append(self._bell.get(timeout=pause))
            while not self._bell.empty():
                rung.append(self._bell.get())
        return rung

    def _round(self) -> float:
        """Write what has gathered; the seconds until the next time."""
        every = self._rollups.every
        try:
            self._write()
        except Exception as error:  # of whatever kind: calls go on, and the next round tries again
            self._failures, self._busy = self._failures + 1, _is_busy(error)
            if self._failures == 1:
                EVENTS.warning(
                    "%s cannot be told what services do; it is kept (%s)", self._rollups.name, describe_error(error)
                )
            ramp = backoff.ceiling(self._failures, base=every, multiplier=2, cap=max(every, LONGEST_PAUSE))
            return random.uniform(ramp / 2, ramp)
        if self._failures:
            self._failures, self._busy = 0, False
            EVENTS.warning("%s is told what services do again", self._rollups.name)
        return every

    def _write(self) -> None:
        with _lock:
            records = list(self.records)
        gone = [record for record in records if not record.settle()]
        if self._unsure is not None:
            self._rollups.add(self._unsure)
            self._unsure = None
        books: defaultdict[str, MetricsWindow] = defaultdict(MetricsWindow)
        for record in records:
            if taken := record.take():
                books[record.service].add(taken)
        if books:
            self._number += 1
            self._unsure = MetricsBatch(self._process, self._number, dict(books))
        with _lock:
            self.records = [record for record in self.records if record not in gone]
        if self._unsure is not None:
            self._rollups.add(self._unsure)
            self._unsure = None


def _is_busy(error: Exception) -> bool:
    """Whether the store was reached, but others kept its locks: SQLite's one lock, or those of PostgreSQL."""
    if not isinstance(error, StoreError) or error.kind not in (Kind.TRANSIENT, Kind.RETRY_NOW):
        return False
    original = getattr(error.__cause__, "orig", None)
    state = getattr(original, "sqlstate", "")  # SQLite has none, nor a server that could be down
    return original is not None and state is not None and not state.startswith("08")


_lock = threading.RLock()
_writers: dict[Rollups, MetricsPublisher] = {}


def attach(core: ServiceCore, rollups: Rollups) -> None:
    """Have it recorded what a service does."""
    with _lock:
        known = _writers.get(rollups)
        writer = known or MetricsPublisher(rollups)
        writer.records.append(MetricsRecord(core))
        if known is None:
            _writers[rollups] = writer
            writer.start()
            writer.stop_at_exit()


def flush() -> None:
    """Have it written now what services did: for a process that does not end as programs do."""
    for writer in list(_writers.values()):
        writer.flush()


def _before_fork() -> None:
    for writer in list(_writers.values()):
        writer.follow_forks()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # the thread that held it may not exist any more
    _lock = threading.RLock()
    for writer in list(_writers.values()):
        writer.start_anew()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
