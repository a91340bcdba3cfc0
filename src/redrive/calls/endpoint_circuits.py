"""A circuit for each endpoint of a service, where that is asked for: one bad route does not cut off the others."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from redrive.calls.circuit import Circuit
from redrive.calls.endpoints import MOST, OTHER
from redrive.clock import Clock, Random
from redrive.model.calls import Event
from redrive.policy.breaker import Breaker, CircuitState

if TYPE_CHECKING:
    from redrive.calls.core import ServiceCore

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
            name = endpoint if len(self._cores) < MOST else OTHER
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
