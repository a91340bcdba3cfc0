"""Limits for the tasks of one service: its circuit breaker, concurrency and start rate.

Users configure a `ServiceGroup`; the planner of an executor asks a `ServiceLimiter` how many tasks may start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from redrive.calls.service import Service
from redrive.clock import Clock
from redrive.model.calls import Kind, format_duration
from redrive.policy import option_checks
from redrive.policy.breaker import CircuitState, Permit
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome

if TYPE_CHECKING:
    from redrive.calls.circuit import Circuit

WhenOpen = Literal["hold", "fail"]
_SERVICE_FAILURES = {Kind.TRANSIENT, Kind.RATE_LIMITED}


class ServiceGroup:
    """The limits of the tasks that depend on a service."""

    def __init__(
        self,
        name: str,
        service: Service | None,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        when_open: WhenOpen = "hold",
        across_runs: bool = False,
    ) -> None:
        if not isinstance(across_runs, bool) or (across_runs and concurrency is None):
            raise ValueError("across_runs=True applies to concurrency: add concurrency=…")
        if when_open not in get_args(WhenOpen):
            raise ValueError(f'when_open must be "hold" or "fail", not {when_open!r}')
        if rate is not None and not (option_checks.finite(rate) and rate > 0):
            raise ValueError(f"rate must be a number of tasks a second above 0, not {option_checks.shown(rate)}")
        self.name = name
        self.service = service
        self.concurrency = None if concurrency is None else option_checks.count("concurrency", concurrency, least=1)
        self.rate = rate
        self.when_open: WhenOpen = when_open
        self.across_runs = across_runs

    def with_service(self, service: Service) -> ServiceGroup:
        """Return a copy with the service; the group may be declared by its name alone."""
        return ServiceGroup(
            self.name,
            service,
            concurrency=self.concurrency,
            rate=self.rate,
            when_open=self.when_open,
            across_runs=self.across_runs,
        )


@dataclass(frozen=True, slots=True)
class ServiceCapacity:
    """How many tasks of a group may start now; if blocked, why, and when to ask again."""

    tasks: float
    reason: str | None = None
    ask_in: float | None = None
    probe: Permit | None = None
    """The permit for one task that probes whether the service is back."""


class ServiceLimiter:
    """Applies the limits of a group in one executor: circuit, concurrency, rate."""

    def __init__(self, group: ServiceGroup, clock: Clock) -> None:
        self.group = group
        self.running = 0
        self._clock = clock
        self._next_start = -math.inf
        self._probe: Permit | None = None  # kept by a running task
        service = group.service
        self._circuit: Circuit | None = None if service is None else service.core.circuit

    @property
    def is_open(self) -> bool:
        """Return whether the circuit of the service is not closed."""
        return self._circuit is not None and self._circuit.state is not CircuitState.CLOSED

    def check_capacity(self) -> ServiceCapacity:
        """Return how many tasks may start now. A permit for a probe must be used or released."""
        circuit = self._circuit
        if circuit is None or circuit.state is CircuitState.CLOSED:
            return self._check_limits()
        capacity = self._check_limits()
        wait = circuit.retry_in()
        if capacity.tasks <= 0 or (self.group.when_open == "fail" and wait > 0):
            return replace(capacity, reason=f"{self.group.name} is down")
        if self._probe is not None:  # wait for it, however long: a second probe would void its result
            return ServiceCapacity(0, f"{self.group.name} is down, one task finds out whether it is back")
        permit = circuit.admit() if wait <= 0 else None
        if permit is None:
            wait = circuit.retry_in()
            return ServiceCapacity(
                0, f"{self.group.name} is down, next try in {format_duration(wait)}", max(wait, 0.01)
            )
        return ServiceCapacity(1, f"{self.group.name} is down, one task finds out whether it is back", probe=permit)

    def _check_limits(self) -> ServiceCapacity:
        """Return how many tasks concurrency and rate allow."""
        tasks = math.inf if self.group.concurrency is None else self.group.concurrency - self.running
        if self.group.rate is None or tasks <= 0:  # without capacity, the next check is when a task ends
            return ServiceCapacity(max(0, tasks))
        wait = self._next_start - self._clock.monotonic()
        return ServiceCapacity(0, ask_in=wait) if wait > 0 else ServiceCapacity(1)

    def begin(self, probe: Permit | None = None) -> Permit | None:
        """Count a task that starts, and return the permit to report at its end."""
        self.running += 1
        if self.group.rate is not None:
            self._next_start = max(self._next_start, self._clock.monotonic()) + 1 / self.group.rate
        self._probe = probe or self._probe
        return probe if probe is not None or self._circuit is None else self._circuit.admit()

    def release_probe(self, probe: Permit) -> None:
        """Release a permit for a probe that no task used."""
        if self._circuit is not None:
            self._circuit.released(probe)

    def end(self, permit: Permit | None, outcome: TaskOutcome | None) -> None:
        """Count a task that has ended and report to the circuit; no outcome if the task did not run."""
        self.running -= 1
        if permit is self._probe:
            self._probe = None
        if self._circuit is None or permit is None:
            return
        if outcome is not None and outcome.ended is AttemptEnd.RETURNED:
            self._circuit.succeeded(permit, outcome.seconds)
        elif outcome is not None and outcome.verdict is not None and outcome.verdict.kind in _SERVICE_FAILURES:
            self._circuit.failed(permit)
        else:
            self._circuit.released(permit)
