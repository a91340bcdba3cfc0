"""The circuits of a service: the lock, the clock and the events around the state machine of `redrive.policy.breaker`.

A service has one circuit, or one for each endpoint. No lock is held while user code runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.calls.function import MOST_ENDPOINTS, OTHER_ENDPOINT
from redrive.calls.parts import Part
from redrive.clock import Clock, Random
from redrive.model.calls import BreakerChanged, Event
from redrive.policy import consensus
from redrive.policy.breaker import Breaker, CircuitMachine, CircuitReport, CircuitState, Permit

if TYPE_CHECKING:
    from redrive.calls.core import ServiceCore


T = TypeVar("T")


class Circuit(Part):
    """One service's circuit. `closed` and `generation` are read without a lock by untroubled calls."""

    place = "circuit"

    def __init__(
        self, options: Breaker, *, service: str, clock: Clock, random: Random, announce: Callable[[Event], None]
    ) -> None:
        self.owner: Any = None
        self.slow = options.slow
        self.quorum = options.quorum
        self.closed = True
        self.generation = 0
        self.on_news: Callable[[], None] | None = None  # where other processes are to be told
        self.on_turn: Callable[[bool, float], None] | None = None  # told, within the lock, if it is closed since when
        self._service = service
        self._clock = clock
        self._announce = announce
        self._lock = threading.RLock()  # a flow that is collected as garbage reports from wherever it happens to be
        self._machine = CircuitMachine(options, random)

    @property
    def state(self) -> CircuitState:
        """Where the circuit stands."""
        return self._machine.state

    def admit(self) -> Permit | None:
        """Leave for one attempt, or None."""
        return self._moving(lambda machine, now: machine.admit(now))

    def retry_in(self) -> float:
        """Seconds until an attempt may be let through."""
        with self._lock:
            return self._machine.retry_in(self._clock.monotonic())

    def succeeded(self, permit: Permit, latency: float) -> None:
        """Report an attempt that the service answered; one that took too long is a failure."""
        if self.slow is not None and latency >= self.slow:
            self.failed(permit)
        else:
            self._moving(lambda machine, now: machine.succeeded(permit, now))

    def count_successes(self, successes: int, at: float) -> None:
        """Report successes of untroubled calls in bulk."""
        with self._lock:
            self._machine.count_successes(successes, at)

    def failed(self, permit: Permit) -> None:
        """Report an attempt for whose failure the service is to blame."""
        self._moving(lambda machine, now: machine.failed(permit, now))

    def released(self, permit: Permit) -> None:
        """Give back a permit whose attempt said nothing about the service."""
        self._moving(lambda machine, _: machine.released(permit))

    def reset(self) -> None:
        """Close the circuit by hand."""
        self._moving(lambda machine, now: machine.reset(now))

    def hear(self, words: Collection[consensus.BreakerReport], node: str) -> None:
        """Take in what other processes say of the service."""
        self._moving(
            lambda machine, now: consensus.apply_reports(machine, words, node=node, quorum=self.quorum, now=now)
        )

    def own_report(self) -> CircuitReport | None:
        """What there is to tell other processes."""
        with self._lock:
            return self._machine.own_report()

    def renew_lock(self) -> None:
        """In a forked child: the thread that held the lock may not exist any more."""
        self._lock = threading.RLock()

    def _moving(self, change: Callable[[CircuitMachine, float], T]) -> T:
        machine = self._machine
        with self._lock:
            before = machine.state
            now = self._clock.monotonic()
            result = change(machine, now)
            after = machine.state
            self.generation = machine.generation
            was_closed, self.closed = self.closed, after is CircuitState.CLOSED
            if self.on_turn is not None and self.closed is not was_closed:
                self.on_turn(self.closed, now)
            retry_in = machine.retry_in(now) if after is CircuitState.OPEN else None
        if after is not before:
            if self.on_news is not None and self.own_report() is not None:
                self.on_news()
            self._announce(BreakerChanged(self._service, before, after, retry_in))
        return result


_WORST = (CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED)


def circuits_of(
    breaker: Breaker, *, clock: Clock, random: Random, announce: Callable[[Event], None]
) -> Callable[[str], Circuit]:
    """Return what makes circuits, each by the name that its events have."""
    return lambda name: Circuit(breaker, service=name, clock=clock, random=random, announce=announce)


class EndpointCircuits:
    """The circuits of one service by endpoint; endpoints beyond the first hundred share one.

    A call runs by a core. Each endpoint has a twin of the service's core, which differs from it by the circuit alone.
    """

    def __init__(self, root: ServiceCore, make: Callable[[str], Circuit]) -> None:
        self.root = root
        self._make = make
        self._cores: dict[str, ServiceCore] = {}
        self._lock = threading.RLock()
        root.tally.parts_endpoints = True

    def core(self, endpoint: str) -> ServiceCore:
        """Return the core for the calls of an endpoint."""
        known = self._cores.get(endpoint)
        if known is not None:
            return known
        with self._lock:
            name = endpoint if len(self._cores) < MOST_ENDPOINTS else OTHER_ENDPOINT
            if name not in self._cores:
                self._cores[name] = self._twin(name)
            return self._cores[name]

    def _twin(self, endpoint: str) -> ServiceCore:
        root = self.root
        twin: ServiceCore = object.__new__(type(root))
        for one in fields(root):
            setattr(twin, one.name, getattr(root, one.name))
        twin.circuit = self._make(f"{root.name} {endpoint}")
        twin.circuit.owner = weakref.ref(twin)
        return twin

    def endpoint_of(self, core: ServiceCore) -> str | None:
        """Return which endpoint a core is of; None for the service's own."""
        return next((name for name, known in self._cores.items() if known is core), None)

    def count_successes(self, by_endpoint: Mapping[str, int], at: float) -> None:
        """Report successes of untroubled calls."""
        for name, count in by_endpoint.items():
            if (circuit := self.core(name).circuit) is not None and count:
                circuit.count_successes(count, at)

    @property
    def state(self) -> CircuitState:
        """The worst state of all of them."""
        states = {core.circuit.state for core in list(self._cores.values()) if core.circuit is not None}
        return next((state for state in _WORST if state in states), CircuitState.CLOSED)

    def reset(self) -> None:
        """Close all of them by hand."""
        for core in list(self._cores.values()):
            if core.circuit is not None:
                core.circuit.reset()

    def renew_lock(self) -> None:
        """In a forked child: the threads that held the locks may not exist any more."""
        self._lock = threading.RLock()
        for core in self._cores.values():
            core._ledger_lock = self.root._ledger_lock
            if core.circuit is not None:
                core.circuit.renew_lock()
