"""The circuit breaker: its options, and its state machine (closed, open, half-open).

A service owns one machine per circuit and holds the lock around it. The rolling window is in `redrive.policy.window`;
`redrive.policy.consensus` compares the circuits of several processes.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from redrive.clock import Random
from redrive.policy import option_checks
from redrive.policy.window import RollingWindow


class CircuitState(StrEnum):
    """The state of a circuit."""

    CLOSED = "closed"
    """Calls go through."""
    OPEN = "open"
    """No calls go through until the cooldown is over."""
    HALF_OPEN = "half_open"
    """One probe at a time goes through, to find out whether the service has recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When to stop calling a service that is down, and how to find out that it has recovered.

    The circuit opens when, within `window` seconds, there were `failures` failures, which were at least `rate` of at
    least `minimum` attempts.

    failures    number of failures that opens the circuit
    window      seconds
    cooldown    seconds the circuit stays open, give or take `jitter`
    probes      successes in half-open that close it; one probe is let through at a time
    rate        least share of failures, so that few of them do not open the circuit of a busy service; 0 to count only
    minimum     attempts before a rate means anything
    slow        seconds: a success that took this long counts as a failure
    jitter      share of the cooldown, so that clients that opened together do not probe together
    lease       seconds after which a probe without an outcome is discarded
    quorum      where a store is shared: how many other machines must report open for this one to believe them
    """

    failures: int = 5
    window: float = 60.0
    cooldown: float = 30.0
    probes: int = 2
    rate: float = 0.1
    minimum: int = 1
    slow: float | None = None
    jitter: float = 0.2
    lease: float = 60.0
    quorum: int = 2

    def __post_init__(self) -> None:
        option_checks.count("failures", self.failures, least=1)
        option_checks.seconds("window", self.window, above=0)
        option_checks.seconds("cooldown", self.cooldown, above=0)
        option_checks.count("probes", self.probes, least=1)
        option_checks.share("rate", self.rate, zero=True)
        option_checks.count("minimum", self.minimum, least=1)
        if self.slow is not None:
            option_checks.seconds("slow", self.slow, above=0)
        option_checks.share("jitter", self.jitter, zero=True)
        option_checks.seconds("lease", self.lease, above=0)
        option_checks.count("quorum", self.quorum, least=1)


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to make one attempt; void once the machine's generation has changed."""

    generation: int


@dataclass(frozen=True, slots=True)
class CircuitReport:
    """The state of a machine by its own evidence, as it is reported to others. Times are of its own clock."""

    open: bool
    since: float
    retry_at: float


class CircuitMachine:
    """Pure transitions; the caller passes the time in and holds the lock.

    A permit is reported back exactly once: `succeeded`, `failed`, or `released` for an outcome that is no evidence
    about the service (a cancelled probe, a permanent 4xx). A report that comes after the state has changed is void.

    What other processes report is applied by `apply_remote_open`, `apply_remote_close` and `apply_remote_reset`;
    `redrive.policy.consensus` decides when.
    """

    def __init__(self, options: Breaker, random: Random) -> None:
        self.state = CircuitState.CLOSED
        self.generation = 0
        self.since = -math.inf
        """When it closed; else when it first opened, since a probe that fails prolongs the same outage."""
        self.opened_at = -math.inf
        """When it last opened, failed probes included."""
        self._own = False  # whether its state is by its own evidence
        self._hurries_from = -math.inf
        self._options = options
        self._random = random
        self._failed_at: deque[float] = deque(maxlen=options.failures)
        self._seen = RollingWindow(options.window)
        self._retry_at = 0.0
        self._probe_until: float | None = None  # while a probe is in flight
        self._probed = 0

    def admit(self, now: float) -> Permit | None:
        """Return a permit, or None while the circuit is open or a probe is in flight."""
        if self.state is CircuitState.CLOSED:
            return Permit(self.generation)
        if self.retry_in(now) > 0:
            return None
        if self.state is CircuitState.OPEN:
            self.state = CircuitState.HALF_OPEN
            self._probed = 0
        self.generation += 1  # voids a lost probe that reports after its lease
        self._probe_until = now + self._options.lease
        return Permit(self.generation)

    def retry_in(self, now: float) -> float:
        """Return the seconds until the next attempt may be let through."""
        if self.state is CircuitState.OPEN:
            return max(0.0, self._retry_at - now)
        if self.state is CircuitState.HALF_OPEN and self._probe_until is not None:
            # The outcome of the probe is near; the lease only bounds the case that it never comes.
            return max(0.0, min(self._probe_until - now, self._options.cooldown / 10))
        return 0.0

    def succeeded(self, permit: Permit, now: float) -> None:
        """Record that the service answered."""
        if permit.generation != self.generation or self.state is CircuitState.OPEN:
            return
        if self.state is CircuitState.CLOSED:
            self._seen.add(now, good=1)
            return
        self._probe_until = None
        self._probed += 1
        if self._probed >= self._options.probes:
            self._close(now)

    def count_successes(self, successes: int, at: float) -> None:
        """Record successes of a closed circuit, reported in bulk and after the fact."""
        if self.state is CircuitState.CLOSED:
            self._seen.add(at, good=successes)

    def failed(self, permit: Permit, now: float) -> None:
        """Record a failure of the service: 5xx, timeout, no connection, too slow."""
        if permit.generation != self.generation or self.state is CircuitState.OPEN:
            return
        if self.state is CircuitState.HALF_OPEN or self._has_tripped(now):
            self._open(now, self._options.cooldown)

    def released(self, permit: Permit) -> None:
        """Record an outcome that is no evidence about the service, as if the attempt had not been made."""
        if permit.generation == self.generation:
            self._probe_until = None

    def reset(self, now: float) -> None:
        """Close the circuit, as an operator asked."""
        if self.state is not CircuitState.CLOSED:
            self._close(now)

    # ── reports of other processes ───────────────────────────────────────────────────────────────────────────────

    def apply_remote_open(self, now: float, retry_in: float) -> None:
        """Open because others found the service down, without a failure seen here.

        The circuit stays open for as long as theirs, but no longer than the cooldown set here, and with the jitter set
        here, so that processes that get the report at the same time do not probe at the same time. A circuit that is
        open already keeps its own time: others could keep it from ever probing by failing again and again.
        """
        if self.state is CircuitState.CLOSED:
            self._open(now, min(retry_in, self._options.cooldown), own=False)

    def apply_remote_close(self, now: float) -> None:
        """Probe soon because others found the service up: each process at a random moment, and by its own probe.

        This happens once per cooldown: a service that is up for some and down for others is not to be probed by all of
        them whenever one succeeds.
        """
        if self.state is CircuitState.OPEN and now >= self._hurries_from:
            self._hurries_from = now + self._options.cooldown
            soon = self._options.cooldown * self._random.uniform(0, self._options.jitter)
            self._retry_at = min(self._retry_at, now + soon)

    def apply_remote_reset(self, now: float) -> None:
        """Close because an operator closed the circuit of all processes."""
        if self.state is not CircuitState.CLOSED:
            self._close(now, own=False)

    def own_report(self) -> CircuitReport | None:
        """Return the report for other processes; None where the state only follows theirs."""
        return CircuitReport(self.state is not CircuitState.CLOSED, self.since, self._retry_at) if self._own else None

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _has_tripped(self, now: float) -> bool:
        options = self._options
        self._failed_at.append(now)
        self._seen.add(now, bad=1)
        if len(self._failed_at) < options.failures or now - self._failed_at[0] > options.window:
            return False
        good, bad = self._seen.totals(now)
        return good + bad >= options.minimum and bad >= options.rate * (good + bad)

    def _open(self, now: float, cooldown: float, *, own: bool = True) -> None:
        if self.state is CircuitState.CLOSED or not self._own:
            self.since = now
        spread = self._options.jitter
        self.state = CircuitState.OPEN
        self.generation += 1
        self.opened_at = now
        self._own = own
        self._probe_until = None
        self._retry_at = now + cooldown * self._random.uniform(1 - spread, 1 + spread)

    def _close(self, now: float, *, own: bool = True) -> None:
        self.state = CircuitState.CLOSED
        self.generation += 1
        self.since = now
        self._own = own
        self._probe_until = None
        self._failed_at.clear()
        self._seen.clear()
