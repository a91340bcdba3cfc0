"""Services that share circuits and exhausted keys with other processes: one thread per process writes and reads them.

A call never waits for the store. A change stays with the service (the state of its circuit, its exhausted keys) and the
thread is woken; it then publishes what is new. What it reads, it applies to the circuit and the key pool, where the
next call finds it. While the store cannot be reached, each service uses its own evidence only, and the changes wait.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import NamedTuple, Protocol

from redrive._internal.masking import mask
from redrive.calls.core import ServiceCore
from redrive.errors import RedriveError
from redrive.events.bus import EVENTS
from redrive.policy import backoff, consensus
from redrive.policy.breaker import CircuitReport, CircuitState
from redrive.policy.consensus import BreakerReport, DrainedKey, ReportKind, Reports

FIRST_READ_TIMEOUT = 2.0
"""Seconds for which a new service waits for what other processes have published."""
STOP_TIMEOUT = 2.0
"""Seconds for which the end of a program, or of its store, waits for changes to be published."""
LONGEST_PAUSE = 5.0
"""Longest pause in seconds before the next attempt to reach a store that is lost."""


class SharedState(Protocol):
    """Where processes publish the state of services. `redrive.connect(…).shared` is one, in the store.

    `read` and `publish` may take long and may raise anything: they are called from a thread of their own, one at a
    time.
    """

    name: str
    """Where it is, as messages show it."""
    node: str
    """The machine of this process. Processes of one machine believe each other at once."""
    every: float
    """Seconds between two reads."""

    def read(self, services: Collection[str], *, keys: bool) -> Reports:
        """Return all reports on these services, those of this process included; of their keys only where `keys`.

        Spans of time are measured by one clock that all processes have in common.
        """

    def publish(self, reports: Sequence[BreakerReport], drained: Sequence[DrainedKey]) -> None:
        """Replace the last report of the same process by each report, and extend the cooldown of exhausted keys."""

    def on_close(self, stop: Callable[[], None]) -> None:
        """Call `stop` before this is closed; the last function that was given counts."""


class HasSharedState(Protocol):
    """What a service takes as its `store`.

    Where it has `services`, too, the service is recorded there: see `redrive.calls.metrics.publisher`.
    """

    @property
    def shared(self) -> SharedState:
        """Return where the service publishes its state to other processes."""


class StateReport(NamedTuple):
    """What a service publishes: the reports, and the state they are made of."""

    reports: list[BreakerReport]
    drained: list[DrainedKey]
    own_report: CircuitReport | None
    slots: dict[int, datetime]


class SyncedService:
    """One service of this process that exchanges its state with other processes."""

    def __init__(self, core: ServiceCore, sync: StateSync) -> None:
        self.service = core.name
        self.has_read = threading.Event()
        self._node = sync.shared.node
        self._process = process_name()
        self._clock = core.clock
        self._circuit = core.circuit
        self._quorum = 1 if core.circuit is None else core.circuit.quorum
        self.keys = core.credentials
        self._names = [] if self.keys is None else self.keys.names()
        self._published: CircuitReport | None = None
        self._sync = sync
        for part in (self._circuit, self.keys):
            if part is not None:
                part.on_change = self._wake

    def _wake(self) -> None:
        self._sync.wake(self)

    def apply(self, reports: Reports) -> None:
        """Apply what other processes report."""
        others = [report for report in reports.reports if (report.host, report.process) != (self._node, self._process)]
        if self._circuit is not None:
            before = self._circuit.state
            self._circuit.apply_reports(others, self._node)
            if self._circuit.state is CircuitState.OPEN and before is CircuitState.CLOSED:
                hosts = ", ".join(sorted({report.host for report in consensus.openings(others) if report.in_force}))
                EVENTS.info("%s circuit opened (reported by %s)", self.service, hosts)
        if self.keys is not None:
            self.keys.apply_remote_reset(consensus.reset_ago(others, ReportKind.RESET_KEYS))
            drained = {key.digest: key for key in reports.drained}
            slots = {slot: drained[name.digest] for slot, name in enumerate(self._names) if name.digest in drained}
            self.keys.apply_drained(slots)

    def pending_report(self, published: Collection[BreakerReport]) -> StateReport:
        """Return what is to be published, given the reports so far."""
        own_report = None if self._circuit is None else self._circuit.own_report()
        reports = [] if own_report is None or own_report == self._published else [self._report(own_report)]
        reports = [report for report in reports if consensus.is_news(report, published)]
        slots = {} if self.keys is None else self.keys.unpublished()
        drained = [
            DrainedKey(self.service, self._names[slot].digest, self._names[slot].key_id, until)
            for slot, until in slots.items()
        ]
        return StateReport(reports, drained, own_report if reports else None, slots)

    def mark_published(self, state: StateReport) -> None:
        """Record that a report is published."""
        self._published = state.own_report or self._published
        if self.keys is not None:
            self.keys.mark_published(state.slots)

    def _report(self, own_report: CircuitReport) -> BreakerReport:
        now = self._clock.monotonic()
        return BreakerReport(
            service=self.service,
            host=self._node,
            process=self._process,
            kind=ReportKind.OPEN if own_report.open else ReportKind.CLOSED,
            ago=now - own_report.since,
            retry_in=max(0.0, own_report.retry_at - now) if own_report.open else 0.0,
            quorum=self._quorum,
        )

    def detach(self) -> None:
        """Stop publishing changes of the service."""
        for part in (self._circuit, self.keys):
            if part is not None:
                part.on_change = None

    def restart(self) -> None:
        """Start again in a forked child, which has published nothing; the parent publishes what it found out."""
        self._process = process_name()
        self._published = None if self._circuit is None else self._circuit.own_report()
        self.has_read = threading.Event()


def process_name() -> str:
    """Return a name of this process that no other process has."""
    return f"{os.getpid()}-{token_hex(4)}"  # process ids are reused, and equal in every container


class StateSync:
    """The thread that exchanges state between the services of this process and one shared state."""

    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self.members: weakref.WeakSet[SyncedService] = weakref.WeakSet()  # changed and listed under `_lock`
        self._failures = 0
        self._stops_at_exit_of: int | None = None
        shared.on_close(self.stop)

    def start(self) -> None:
        """Start the thread, in this process."""
        # Not an Event: a queue may be put to from anywhere, even by a garbage collection inside its own lock.
        self._queue: SimpleQueue[SyncedService | None] = SimpleQueue()
        self._ending = False
        self._waiting: set[SyncedService] = set()  # services with changes; kept alive until these are published
        self._thread = threading.Thread(target=self._run, name="redrive-sharing", daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """Start again in a forked child, which has none of its parent's threads."""
        for member in list(self.members):
            member.restart()
        self.start()

    def wake(self, member: SyncedService) -> None:
        """Wake the thread for a change. It takes a microsecond, and happens only after a failure or a recovery."""
        if self._stops_at_exit_of != os.getpid():
            self._stops_at_exit_of = os.getpid()
            self._stop_at_exit()
        self._queue.put(member)

    def await_first_read(self, member: SyncedService) -> None:
        """Wait, within bounds, until a new service has the published state; not where the store is known to be lost."""
        self._queue.put(member)
        if not self._failures and not member.has_read.wait(FIRST_READ_TIMEOUT):
            self._failures = 1
            EVENTS.warning("%s has not answered for %g s: %s", self.shared.name, FIRST_READ_TIMEOUT, _ALONE)

    def stop(self) -> None:
        """Publish what is pending, then end; the services continue alone."""
        with _lock:
            if _syncs.get(self.shared) is self:
                del _syncs[self.shared]
            members = list(self.members)
            was_ending, self._ending = self._ending, True
        self._queue.put(None)
        if not was_ending and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT)
        for member in members:
            member.detach()
        atexit.unregister(self.stop)

    def _stop_at_exit(self) -> None:
        atexit.register(self.stop)
        # A worker of multiprocessing does not run the functions of `atexit`, but its finalizers.
        if (finalizers := sys.modules.get("multiprocessing.util")) is not None:
            finalizers.Finalize(None, self.stop, exitpriority=0)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        stopping, pause = False, self.shared.every
        while not stopping and self._needed():
            stopping = self._wait_for_wake(pause)
            pause = self._round()

    def _needed(self) -> bool:
        """Return whether there is still a service to exchange state for."""
        with _lock:
            needed = bool(self._waiting or self.members)
            if not needed and _syncs.get(self.shared) is self:
                del _syncs[self.shared]
            return needed

    def _wait_for_wake(self, pause: float) -> bool:
        """Wait for a change or for the next read; return whether to stop."""
        with suppress(Empty):
            woken = [self._queue.get(timeout=pause)]
            while not self._queue.empty():
                woken.append(self._queue.get())
            self._waiting.update(member for member in woken if member is not None)
            return None in woken
        return False

    def _round(self) -> float:
        """Read and publish once; return the seconds until the next time."""
        with _lock:
            members = list(self.members)
        try:
            self._exchange(members)
        except Exception as error:  # of whatever kind: calls continue, and the next round retries
            self._failures += 1
            if self._failures == 1:
                EVENTS.warning("%s is lost: %s (%s)", self.shared.name, _ALONE, describe_error(error))
            return self._pause()
        finally:
            for member in members:
                member.has_read.set()
        self._waiting.clear()
        if self._failures:
            self._failures = 0
            EVENTS.warning("%s is back: services share circuits and keys again", self.shared.name)
        return self._pause()

    def _pause(self) -> float:
        every = self.shared.every
        if not self._failures:
            return every
        ramp = backoff.ceiling(self._failures, base=every, multiplier=2, cap=max(every, LONGEST_PAUSE))
        return random.uniform(ramp / 2, ramp)

    def _exchange(self, members: Collection[SyncedService]) -> None:
        keys = any(member.keys is not None for member in members)
        reports = self.shared.read({member.service for member in members}, keys=keys)
        pending: list[tuple[SyncedService, StateReport]] = []
        for member in members:
            of_service = Reports(
                [report for report in reports.reports if report.service == member.service],
                [key for key in reports.drained if key.service == member.service],
            )
            member.apply(of_service)
            state = member.pending_report(of_service.reports)
            if state.reports or state.drained:
                pending.append((member, state))
        if not pending:
            return
        self.shared.publish(
            [report for _, state in pending for report in state.reports],
            [key for _, state in pending for key in state.drained],
        )
        for member, state in pending:
            member.mark_published(state)


def describe_error(error: Exception) -> str:
    """Return an error of the store in one line, without secrets."""
    return str(error) if isinstance(error, RedriveError) else f"{type(error).__name__}: {mask(str(error))}"


_ALONE = "services use their own evidence only"

_lock = threading.RLock()
_syncs: dict[SharedState, StateSync] = {}


def attach(core: ServiceCore, shared: SharedState) -> None:
    """Let a service exchange its state; what other processes have published applies to it at once."""
    if core.circuit is None and core.credentials is None:
        return
    with _lock:
        known = _syncs.get(shared)
        sync = known or StateSync(shared)
        member = SyncedService(core, sync)
        sync.members.add(member)
        if known is None:
            _syncs[shared] = sync
            sync.start()
    sync.await_first_read(member)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # its owner may be a thread of the parent
    _lock = threading.RLock()
    for sync in list(_syncs.values()):
        sync.restart()


os.register_at_fork(after_in_child=_after_fork)
