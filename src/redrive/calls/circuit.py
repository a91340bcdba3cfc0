"""The breaker's shell: its lock, its clock, and what it announces. No lock is held while user code runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from redrive.calls.parts import Part
from redrive.clock import Clock, Random
from redrive.model.calls import BreakerChanged, Event
from redrive.policy import consensus
from redrive.policy.breaker import Breaker, CircuitMachine, CircuitReport, CircuitState, Permit

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
