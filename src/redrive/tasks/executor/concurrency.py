"""What the tasks of one service have in common: its circuit, how many run at once, how fast they begin."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from redrive.calls.service import Service
from redrive.clock import Clock
from redrive.model.calls import Kind, format_duration
from redrive.policy import option_checks
from redrive.policy.breaker import CircuitState, Permit
from redrive.tasks.workers.messages import AttemptEnd, TaskOutcome

if TYPE_CHECKING:
    from redrive.calls.circuit import Circuit

WhenOpen = Literal["hold", "fail"]
_BLAMED = {Kind.TRANSIENT, Kind.RATE_LIMITED}


class ServiceGroup:
    """How the tasks that depend on a service are treated."""

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
            raise ValueError("across_runs=True says for what concurrency counts: add concurrency=…")
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

    def of(self, service: Service) -> ServiceGroup:
        """The same, of a service that was known by its name alone."""
        return ServiceGroup(
            self.name,
            service,
            concurrency=self.concurrency,
            rate=self.rate,
            when_open=self.when_open,
            across_runs=self.across_runs,
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many tasks of a group may begin now; where it is held, why, and when to ask again."""

    tasks: float
    why: str | None = None
    ask_in: float | None = None
    probe: Permit | None = None
    """Where one task is to find out whether the service is back."""


class ServiceLimiter:
    """One executor's way into a group: asks its circuit, counts what runs, paces what begins."""

    def __init__(self, group: ServiceGroup, clock: Clock) -> None:
        self.group = group
        self.running = 0
        self._clock = clock
        self._next_start = -math.inf
        self._probe: Permit | None = None  # in a task's hands
        service = group.service
        self._circuit: Circuit | None = None if service is None else service._core.circuit

    @property
    def open(self) -> bool:
        """Whether the service is known to be down."""
        return self._circuit is not None and self._circuit.state is not CircuitState.CLOSED

    def room(self) -> Capacity:
        """How many may begin now. A permit for a probe must be used or given back."""
        circuit = self._circuit
        if circuit is None or circuit.state is CircuitState.CLOSED:
            return self._paced()
        paced = self._paced()
        wait = circuit.retry_in()
        if paced.tasks <= 0 or (self.group.when_open == "fail" and wait > 0):
            return replace(paced, why=f"{self.group.name} is down")
        if self._probe is not None:  # however long it takes: a second one would make its answer void
            return Capacity(0, f"{self.group.name} is down, one task finds out whether it is back")
        permit = circuit.admit() if wait <= 0 else None
        if permit is None:
            wait = circuit.retry_in()
            return Capacity(0, f"{self.group.name} is down, next try in {format_duration(wait)}", max(wait, 0.01))
        return Capacity(1, f"{self.group.name} is down, one task finds out whether it is back", probe=permit)

    def _paced(self) -> Capacity:
        """How many its limits leave room for."""
        tasks = math.inf if self.group.concurrency is None else self.group.concurrency - self.running
        if self.group.rate is None or tasks <= 0:  # where there is no room, it is asked again when a task ends
            return Capacity(max(0, tasks))
        early = self._next_start - self._clock.monotonic()
        return Capacity(0, ask_in=early) if early > 0 else Capacity(1)

    def begin(self, probe: Permit | None = None) -> Permit | None:
        """A task begins; what it is given is reported back with its end."""
        self.running += 1
        if self.group.rate is not None:
            self._next_start = max(self._next_start, self._clock.monotonic()) + 1 / self.group.rate
        self._probe = probe or self._probe
        return probe if probe is not None or self._circuit is None else self._circuit.admit()

    def give_back(self, probe: Permit) -> None:
        """Nobody was there to probe."""
        if self._circuit is not None:
            self._circuit.released(probe)

    def end(self, permit: Permit | None, outcome: TaskOutcome | None) -> None:
        """A task has ended; None where it did not even run."""
        self.running -= 1
        if permit is self._probe:
            self._probe = None
        if self._circuit is None or permit is None:
            return
        if outcome is not None and outcome.ended is AttemptEnd.RETURNED:
            self._circuit.succeeded(permit, outcome.seconds)
        elif outcome is not None and outcome.verdict is not None and outcome.verdict.kind in _BLAMED:
            self._circuit.failed(permit)
        else:
            self._circuit.released(permit)
