"""`ServiceCore`: the policies and the state that all callers of one service share."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from redrive.calls.circuit import Circuit, EndpointCircuits
from redrive.calls.credentials import Credentials
from redrive.calls.dead_letters import DeadLetterWriter
from redrive.calls.metrics.counters import CallCounters
from redrive.calls.parts import received, sent
from redrive.calls.service_options import Idempotent
from redrive.classify.classifier import Classifier
from redrive.clock import Clock, Random
from redrive.events.bus import EventBus
from redrive.policy.retry import BudgetLedger, Retry


@dataclass(slots=True, weakref_slot=True, eq=False)
class ServiceCore:
    """A service's policies and its state; every view of the service (`with_options`) refers to the same one."""

    name: str
    retry: Retry
    classifier: Classifier
    circuit: Circuit | None
    ledger: BudgetLedger | None
    credentials: Credentials | None
    announcer: EventBus
    clock: Clock
    random: Random
    idempotent: Idempotent
    slice_seconds: float
    remake: tuple[Callable[[dict[str, Any]], ServiceCore], dict[str, Any]] | None = None
    """How another process makes an equal core: a function and its options."""
    has_store: bool = False
    letters: DeadLetterWriter | None = None
    discards: bool = False
    """Whether a call that is discarded returns None."""
    warned: bool = field(init=False, default=False)
    """Whether the warning was given that the timeout of an attempt does not apply to a function."""
    family: object = field(init=False, default_factory=object)
    """Equal for the core of a service and those of its endpoints."""
    circuits: EndpointCircuits | None = field(init=False, default=None)
    """Where each endpoint has a circuit of its own."""
    token: str | None = field(init=False, default=None)
    """The id under which processes that exchange the core know it."""
    counters: CallCounters = field(init=False)
    # Locks are reentrant here and in all parts of a service: a signal handler, or an object that is collected as
    # garbage, may call the service in the middle of the service's own bookkeeping.
    _ledger_lock: threading.RLock = field(init=False, default_factory=threading.RLock)

    def __post_init__(self) -> None:
        _cores.add(self)
        self.counters = CallCounters(self.clock, slice_seconds=self.slice_seconds, on_successes=self._count_successes)
        for part in (self.circuit, self.credentials, self.counters, self.counters.latencies):
            if part is not None:
                part.owner = weakref.ref(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.circuits is not None and (endpoint := self.circuits.endpoint_of(self)) is not None:
            return _core_at, (self.circuits.root, endpoint)
        if self.remake is None:
            raise TypeError(f"cannot pickle service {self.name!r}")
        make, options = self.remake
        if self.has_store:
            raise TypeError(
                f"cannot pickle service {self.name!r}: it has a store, which stays in its process. "
                "Make the service in the function that runs elsewhere, or without store=."
            )
        self.token = self.token or uuid4().hex
        sent(self.token, self)
        return received, (self.token, make, options)

    def at(self, endpoint: str) -> ServiceCore:
        """Return the core for the calls of an endpoint: the same, or its copy with the circuit of the endpoint."""
        return self if self.circuits is None else self.circuits.core(endpoint)

    def began(self) -> None:
        """Count a call that left the fast path."""
        self.counters.began()
        self._earn(1, self.clock.monotonic())

    def may_retry(self) -> bool:
        """Charge one retry to the budget; return False where the budget is exhausted."""
        if self.ledger is None:
            return True
        self.counters.fold(self.clock.monotonic())  # what successful calls have earned
        with self._ledger_lock:
            return self.ledger.spend(self.clock.monotonic())

    def renew_locks(self) -> None:
        """Replace the locks in a forked child, whose owners may be threads of the parent."""
        self._ledger_lock = threading.RLock()
        self.counters.renew_lock()
        for part in (self.circuit, self.credentials, self.circuits):
            if part is not None:
                part.renew_lock()

    def _count_successes(self, count: int, at: float, by_endpoint: Mapping[str, int]) -> None:
        if self.circuit is not None:
            self.circuit.count_successes(count, at)
        elif self.circuits is not None:
            self.circuits.count_successes(by_endpoint, at)
        self._earn(count, at)

    def _earn(self, calls: int, at: float) -> None:
        if self.ledger is not None:
            with self._ledger_lock:
                self.ledger.earn(at, calls)


def _core_at(root: ServiceCore, endpoint: str) -> ServiceCore:
    return root.at(endpoint)


_cores: weakref.WeakSet[ServiceCore] = weakref.WeakSet()


def _after_fork() -> None:
    for core in list(_cores):
        core.renew_locks()


os.register_at_fork(after_in_child=_after_fork)
