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
from redrive.calls.parts import CorePart
from redrive.clock import Clock, Random
from redrive.model.calls import BreakerChanged, Event
from redrive.policy import consensus
from redrive.policy.breaker import Breaker, CircuitMachine, CircuitReport, CircuitState, Permit

if TYPE_CHECKING:
    from redrive.calls.core import ServiceCore


T = TypeVar("T")


class Circuit(CorePart):
    """One service's circuit. `closed` and `generation` are read without a lock by calls on the fast path."""

    path = "circuit"

    def __init__(
        self, options: Breaker, *, service: str, clock: Clock, random: Random, announce: Callable[[Event], None]
    ) -> None:
        self.owner: Any = None
        self.slow = options.slow
        self.quorum = options.quorum
        self.closed = True
        self.generation = 0
        self.on_change: Callable[[], None] | None = None  # publishes the change to other processes
        self.on_transition: Callable[[bool, float], None] | None = (
            None  # called within the lock: is it closed, and since when
        )
        self._service = service
        self._clock = clock
        self._announce = announce
        self._lock = threading.RLock()  # a retry loop that is collected as garbage reports from any code
        self._machine = CircuitMachine(options, random)

    @property
    def state(self) -> CircuitState:
        """Return the state of the circuit."""
        return self._machine.state

    def admit(self) -> Permit | None:
        """Return a permit for one attempt; None where the circuit does not let it through."""
        return self._transition(lambda machine, now: machine.admit(now))

    def retry_in(self) -> float:
        """Return the seconds until an attempt may be let through."""
        with self._lock:
            return self._machine.retry_in(self._clock.monotonic())

    def succeeded(self, permit: Permit, latency: float) -> None:
        """Record an attempt that the service answered; one that took too long is a failure."""
        if self.slow is not None and latency >= self.slow:
            self.failed(permit)
        else:
            self._transition(lambda machine, now: machine.succeeded(permit, now))

    def count_successes(self, successes: int, at: float) -> None:
        """Record successes of the fast path in bulk."""
        with self._lock:
            self._machine.count_successes(successes, at)

    def failed(self, permit: Permit) -> None:
        """Record a failed attempt for which the service is to blame."""
        self._transition(lambda machine, now: machine.failed(permit, now))

    def released(self, permit: Permit) -> None:
        """Return a permit whose outcome is no evidence about the service."""
        self._transition(lambda machine, _: machine.released(permit))

    def reset(self) -> None:
        """Close the circuit, as an operator asked."""
        self._transition(lambda machine, now: machine.reset(now))

    def apply_reports(self, reports: Collection[consensus.BreakerReport], node: str) -> None:
        """Update the circuit by the reports of other processes."""
        self._transition(
            lambda machine, now: consensus.apply_reports(machine, reports, node=node, quorum=self.quorum, now=now)
        )

    def own_report(self) -> CircuitReport | None:
        """Return the report for other processes; None where there is none."""
        with self._lock:
            return self._machine.own_report()

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, whose owner may be a thread of the parent."""
        self._lock = threading.RLock()

    def _transition(self, change: Callable[[CircuitMachine, float], T]) -> T:
        machine = self._machine
        with self._lock:
            before = machine.state
            now = self._clock.monotonic()
            result = change(machine, now)
            after = machine.state
            self.generation = machine.generation
            was_closed, self.closed = self.closed, after is CircuitState.CLOSED
            if self.on_transition is not None and self.closed is not was_closed:
                self.on_transition(self.closed, now)
            retry_in = machine.retry_in(now) if after is CircuitState.OPEN else None
        if after is not before:
            if self.on_change is not None and self.own_report() is not None:
                self.on_change()
            self._announce(BreakerChanged(self._service, before, after, retry_in))
        return result


_WORST = (CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED)


def circuits_of(
    breaker: Breaker, *, clock: Clock, random: Random, announce: Callable[[Event], None]
) -> Callable[[str], Circuit]:
    """Return a function that makes a circuit by the name that its events have."""
    return lambda name: Circuit(breaker, service=name, clock=clock, random=random, announce=announce)


class EndpointCircuits:
    """The circuits of one service by endpoint; endpoints beyond the first hundred share one.

    Each endpoint has a copy of the service's core, which differs from it only by its circuit.
    """

    def __init__(self, root: ServiceCore, make: Callable[[str], Circuit]) -> None:
        self.root = root
        self._make = make
        self._cores: dict[str, ServiceCore] = {}
        self._lock = threading.RLock()
        root.counters.counts_endpoints = True

    def core(self, endpoint: str) -> ServiceCore:
        """Return the core for the calls of an endpoint."""
        known = self._cores.get(endpoint)
        if known is not None:
            return known
        with self._lock:
            name = endpoint if len(self._cores) < MOST_ENDPOINTS else OTHER_ENDPOINT
            if name not in self._cores:
                self._cores[name] = self._copy_core(name)
            return self._cores[name]

    def _copy_core(self, endpoint: str) -> ServiceCore:
        root = self.root
        copied: ServiceCore = object.__new__(type(root))
        for attribute in fields(root):
            setattr(copied, attribute.name, getattr(root, attribute.name))
        copied.circuit = self._make(f"{root.name} {endpoint}")
        copied.circuit.owner = weakref.ref(copied)
        return copied

    def endpoint_of(self, core: ServiceCore) -> str | None:
        """Return the endpoint of a core; None for the service's own."""
        return next((name for name, known in self._cores.items() if known is core), None)

    def count_successes(self, by_endpoint: Mapping[str, int], at: float) -> None:
        """Record successes of the fast path."""
        for name, count in by_endpoint.items():
            if (circuit := self.core(name).circuit) is not None and count:
                circuit.count_successes(count, at)

    @property
    def state(self) -> CircuitState:
        """Return the worst state of all circuits."""
        states = {core.circuit.state for core in list(self._cores.values()) if core.circuit is not None}
        return next((state for state in _WORST if state in states), CircuitState.CLOSED)

    def reset(self) -> None:
        """Close all circuits, as an operator asked."""
        for core in list(self._cores.values()):
            if core.circuit is not None:
                core.circuit.reset()

    def renew_lock(self) -> None:
        """Replace the locks in a forked child, whose owners may be threads of the parent."""
        self._lock = threading.RLock()
        for core in self._cores.values():
            core._ledger_lock = self.root._ledger_lock
            if core.circuit is not None:
                core.circuit.renew_lock()
