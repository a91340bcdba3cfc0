"""Services that share what they know with other processes: one thread per process writes their news and reads others'.

A call never waits for it. News is left with the service itself (where its circuit stands, which keys are used up) and
the thread is rung; it then writes what is new. What it hears, it puts into the circuit and the key pool, where the next
call finds it. While the store cannot be reached, each service goes on by what it sees itself, and the news waits.
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

FIRST_LOOK = 2.0
"""Seconds for which a new service waits to hear what is known already."""
LAST_WORD = 2.0
"""Seconds for which the end of a program, or of its store, waits for news to be written."""
LONGEST_PAUSE = 5.0
"""Seconds between two tries to reach a store that is lost."""


class SharedState(Protocol):
    """Where processes leave word for each other. `redrive.connect(…).shared` is one, in the store.

    `read` and `publish` may take long and may raise anything: they are called from a thread of their own, one at a
    time.
    """

    name: str
    """Where it is, for people."""
    node: str
    """The machine this process runs on. Processes of one machine believe each other at once."""
    every: float
    """Seconds between two looks."""

    def read(self, services: Collection[str], *, keys: bool) -> Reports:
        """All that is said of these services, by this process, too; of their keys only if asked.

        Spans of time are taken by one clock that all processes have in common.
        """

    def publish(self, reports: Sequence[BreakerReport], drained: Sequence[DrainedKey]) -> None:
        """Put each word in the place of the last one of the same process, and prolong the rest of drained keys."""

    def on_close(self, stop: Callable[[], None]) -> None:
        """Have `stop` called before this is closed; the last one that was given counts."""


class HasSharedState(Protocol):
    """What a service is given as its `store`. Where it has `services`, too, the service is recorded there: see
    `redrive.calls.metrics.publisher`.
    """

    @property
    def shared(self) -> SharedState:
        """Where it leaves word for other processes."""


class StateReport(NamedTuple):
    """What a service has to tell: the words for it, and what they are made of."""

    reports: list[BreakerReport]
    drained: list[DrainedKey]
    own_report: CircuitReport | None
    slots: dict[int, datetime]


class SyncedService:
    """One service of this process, as other processes know it."""

    def __init__(self, core: ServiceCore, courier: StateSync) -> None:
        self.service = core.name
        self.looked = threading.Event()
        self._node = courier.shared.node
        self._process = own_name()
        self._clock = core.clock
        self._circuit = core.circuit
        self._quorum = 1 if core.circuit is None else core.circuit.quorum
        self.keys = core.credentials
        self._names = [] if self.keys is None else self.keys.names()
        self._said: CircuitReport | None = None
        self._courier = courier
        for part in (self._circuit, self.keys):
            if part is not None:
                part.on_news = self._ring

    def _ring(self) -> None:
        self._courier.ring(self)

    def hear(self, heard: Reports) -> None:
        """Take in what others say."""
        others = [word for word in heard.reports if (word.host, word.process) != (self._node, self._process)]
        if self._circuit is not None:
            before = self._circuit.state
            self._circuit.hear(others, self._node)
            if self._circuit.state is CircuitState.OPEN and before is CircuitState.CLOSED:
                hosts = ", ".join(sorted({word.host for word in consensus.openings(others) if word.in_force}))
                EVENTS.info("%s circuit is open by word of %s", self.service, hosts)
        if self.keys is not None:
            self.keys.apply_remote_reset(consensus.reset_ago(others, ReportKind.RESET_KEYS))
            drained = {key.digest: key for key in heard.drained}
            slots = {slot: drained[name.digest] for slot, name in enumerate(self._names) if name.digest in drained}
            self.keys.hear_drained(slots)

    def news(self, said: Collection[BreakerReport]) -> StateReport:
        """What is worth telling, given what was said."""
        own_report = None if self._circuit is None else self._circuit.own_report()
        reports = [] if own_report is None or own_report == self._said else [self._word(own_report)]
        reports = [word for word in reports if consensus.is_news(word, said)]
        slots = {} if self.keys is None else self.keys.untold()
        drained = [
            DrainedKey(self.service, self._names[slot].digest, self._names[slot].key_id, until)
            for slot, until in slots.items()
        ]
        return StateReport(reports, drained, own_report if reports else None, slots)

    def told(self, news: StateReport) -> None:
        """The news is written."""
        self._said = news.own_report or self._said
        if self.keys is not None:
            self.keys.told(news.slots)

    def _word(self, own_report: CircuitReport) -> BreakerReport:
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

    def leave(self) -> None:
        """From now on the service is on its own."""
        for part in (self._circuit, self.keys):
            if part is not None:
                part.on_news = None

    def start_anew(self) -> None:
        """In a forked child: another process, which has said nothing; what its parent found out, its parent tells."""
        self._process = own_name()
        self._said = None if self._circuit is None else self._circuit.own_report()
        self.looked = threading.Event()


def own_name() -> str:
    """This process, as nobody else is called."""
    return f"{os.getpid()}-{token_hex(4)}"  # numbers of processes are used again, and alike in every container


class StateSync:
    """The thread that carries word between the services of this process and one shared state."""

    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self.members: weakref.WeakSet[SyncedService] = weakref.WeakSet()  # changed and listed under `_lock`
        self._failures = 0
        self._stops_at_exit_of: int | None = None
        shared.on_close(self.stop)

    def start(self) -> None:
        """Begin, in this process."""
        # Not an Event: a queue may be put to from anywhere, even by a garbage collection inside its own lock.
        self._bell: SimpleQueue[SyncedService | None] = SimpleQueue()
        self._ending = False
        self._waiting: set[SyncedService] = set()  # who has news; kept alive until it is told
        self._thread = threading.Thread(target=self._run, name="redrive-sharing", daemon=True)
        self._thread.start()

    def start_anew(self) -> None:
        """Begin again in a forked child, which has none of its parent's threads."""
        for member in list(self.members):
            member.start_anew()
        self.start()

    def ring(self, member: SyncedService) -> None:
        """There is news. It takes a microsecond, and happens only where something went wrong or healed."""
        if self._stops_at_exit_of != os.getpid():
            self._stops_at_exit_of = os.getpid()
            self._stop_at_exit()
        self._bell.put(member)

    def await_first_look(self, member: SyncedService) -> None:
        """Let a new service hear what is known already, within bounds; not where the store is known to be lost."""
        self._bell.put(member)
        if not self._failures and not member.looked.wait(FIRST_LOOK):
            self._failures = 1
            EVENTS.warning("%s has not answered for %g s: %s", self.shared.name, FIRST_LOOK, _ALONE)

    def stop(self) -> None:
        """Write what is still untold, then end; the services go on alone."""
        with _lock:
            if _couriers.get(self.shared) is self:
                del _couriers[self.shared]
            members = list(self.members)
            again, self._ending = self._ending, True
        self._bell.put(None)
        if not again and self._thread is not threading.current_thread():
            self._thread.join(LAST_WORD)
        for member in members:
            member.leave()
        atexit.unregister(self.stop)

    def _stop_at_exit(self) -> None:
        atexit.register(self.stop)
        # A worker of multiprocessing ends without what `atexit` has, but with this.
        if (finalizers := sys.modules.get("multiprocessing.util")) is not None:
            finalizers.Finalize(None, self.stop, exitpriority=0)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        stopping, pause = False, self.shared.every
        while not stopping and self._needed():
            stopping = self._rung(pause)
            pause = self._round()

    def _needed(self) -> bool:
        """Whether there is still a service to carry word for."""
        with _lock:
            needed = bool(self._waiting or self.members)
            if not needed and _couriers.get(self.shared) is self:
                del _couriers[self.shared]
            return needed

    def _rung(self, pause: float) -> bool:
        """Wait for news or for the next look; whether it is time to stop."""
        with suppress(Empty):
            rung = [self._bell.get(timeout=pause)]
            while not self._bell.empty():
                rung.append(self._bell.get())
            self._waiting.update(member for member in rung if member is not None)
            return None in rung
        return False

    def _round(self) -> float:
        """Hear and tell once; the seconds until the next time."""
        with _lock:
            members = list(self.members)
        try:
            self._exchange(members)
        except Exception as error:  # of whatever kind: calls go on, and the next round tries again
            self._failures += 1
            if self._failures == 1:
                EVENTS.warning("%s is lost: %s (%s)", self.shared.name, _ALONE, describe_error(error))
            return self._pause()
        finally:
            for member in members:
                member.looked.set()
        self._waiting.clear()
        if self._failures:
            self._failures = 0
            EVENTS.warning("%s is back: services share what they know again", self.shared.name)
        return self._pause()

    def _pause(self) -> float:
        every = self.shared.every
        if not self._failures:
            return every
        ramp = backoff.ceiling(self._failures, base=every, multiplier=2, cap=max(every, LONGEST_PAUSE))
        return random.uniform(ramp / 2, ramp)

    def _exchange(self, members: Collection[SyncedService]) -> None:
        keys = any(member.keys is not None for member in members)
        heard = self.shared.read({member.service for member in members}, keys=keys)
        told: list[tuple[SyncedService, StateReport]] = []
        for member in members:
            of_it = Reports(
                [word for word in heard.reports if word.service == member.service],
                [key for key in heard.drained if key.service == member.service],
            )
            member.hear(of_it)
            news = member.news(of_it.reports)
            if news.reports or news.drained:
                told.append((member, news))
        if not told:
            return
        self.shared.publish(
            [word for _, news in told for word in news.reports], [key for _, news in told for key in news.drained]
        )
        for member, news in told:
            member.told(news)


def describe_error(error: Exception) -> str:
    """An error of the store, in one line that anybody may read."""
    return str(error) if isinstance(error, RedriveError) else f"{type(error).__name__}: {mask(str(error))}"


_ALONE = "services go on by what they see themselves"

_lock = threading.RLock()
_couriers: dict[SharedState, StateSync] = {}


def attach(core: ServiceCore, shared: SharedState) -> None:
    """Let a service share what it knows; it hears at once what is known already."""
    if core.circuit is None and core.credentials is None:
        return
    with _lock:
        known = _couriers.get(shared)
        courier = known or StateSync(shared)
        member = SyncedService(core, courier)
        courier.members.add(member)
        if known is None:
            _couriers[shared] = courier
            courier.start()
    courier.await_first_look(member)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # the thread that held it may not exist any more
    _lock = threading.RLock()
    for courier in list(_couriers.values()):
        courier.start_anew()


os.register_at_fork(after_in_child=_after_fork)
