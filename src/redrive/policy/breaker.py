"""The circuit breaker's state machine: closed, open, half-open. Its window and its lock live elsewhere."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from redrive.clock import Random
from redrive.policy import option_checks
from redrive.policy.window import RollingWindow


class CircuitState(StrEnum):
    """Where a circuit stands."""

    CLOSED = "closed"
    """Calls go through."""
    OPEN = "open"
    """Nothing goes through until the cool-down is over."""
    HALF_OPEN = "half_open"
    """One call at a time goes through, to find out whether the service is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When to stop calling a service that is down, and how to find out that it is back.

    The circuit opens when, within `window` seconds, there were `failures` failures, which were at least `rate` of at
    least `minimum` attempts.

    failures    how many
    window      seconds
    cooldown    seconds the circuit stays open, give or take `jitter`
    probes      successes in half-open that close it; one probe is let through at a time
    rate        a service that is busy and mostly well is not cut off for its few failures; 0 to count only
    minimum     attempts before a rate means anything
    slow        seconds: a success that took this long counts as a failure
    jitter      share of the cooldown, so that clients that broke together do not probe together
    lease       seconds after which a probe that was never heard of again is given up
    quorum      where a store is shared: how many other machines must say open for this one to believe them
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
    """Leave to make one attempt; worthless once the machine's generation has moved on."""

    generation: int


@dataclass(frozen=True, slots=True)
class CircuitReport:
    """Where a machine stands by its own evidence: what it can tell others. Times are of the machine's own clock."""

    open: bool
    since: float
    retry_at: float


class CircuitMachine:
    """Pure transitions; its caller passes the time in and holds the lock.

    A permit is reported back exactly once: `succeeded`, `failed`, or `released` for an outcome that says nothing
    about the service (a cancelled probe, a permanent 4xx). A report that comes after the state has changed is void.

    What other processes say is heard by `hear_open`, `hear_closed` and `hear_reset`; `redrive.policy.consensus`
    knows when.
    """

    def __init__(self, options: Breaker, random: Random) -> None:
        self.state = CircuitState.CLOSED
        self.generation = 0
        self.since = -math.inf
        """When it closed; else when it first opened, since a probe that fails prolongs the same trouble."""
        self.opened_at = -math.inf
        """When it last opened, failed probes included."""
        self._own = False  # whether it stands where it stands by its own evidence
        self._hurries_from = -math.inf
        self._options = options
        self._random = random
        self._failed_at: deque[float] = deque(maxlen=options.failures)
        self._seen = RollingWindow(options.window)
        self._retry_at = 0.0
        self._probe_until: float | None = None  # while a probe is out
        self._probed = 0

    def admit(self, now: float) -> Permit | None:
        """A permit, or None while the circuit is open or a probe is out."""
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
        """Seconds until the next attempt may be let through."""
        if self.state is CircuitState.OPEN:
            return max(0.0, self._retry_at - now)
        if self.state is CircuitState.HALF_OPEN and self._probe_until is not None:
            # The probe's answer is near; its lease only bounds the case that it never comes.
            return max(0.0, min(self._probe_until - now, self._options.cooldown / 10))
        return 0.0

    def succeeded(self, permit: Permit, now: float) -> None:
        """The service answered."""
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
        """Successes of a closed circuit, reported in bulk and after the fact."""
        if self.state is CircuitState.CLOSED:
            self._seen.add(at, good=successes)

    def failed(self, permit: Permit, now: float) -> None:
        """The service is to blame: 5xx, timeout, no connection, too slow."""
        if permit.generation != self.generation or self.state is CircuitState.OPEN:
            return
        if self.state is CircuitState.HALF_OPEN or self._tripped(now):
            self._open(now, self._options.cooldown)

    def released(self, permit: Permit) -> None:
        """The outcome says nothing about the service: as if the attempt had not been made."""
        if permit.generation == self.generation:
            self._probe_until = None

    def reset(self, now: float) -> None:
        """Close by hand."""
        if self.state is not CircuitState.CLOSED:
            self._close(now)

    # ── by hearsay ───────────────────────────────────────────────────────────────────────────────────────────────

    def hear_open(self, now: float, retry_in: float) -> None:
        """Others found the service down: open, without a failure of our own.

        For as long as they do, but no longer than our own cool-down, and give or take our own jitter: who heard it at
        the same time does not probe at the same time. A circuit that is open already keeps its own time: others
        could keep it from ever probing by failing again and again.
        """
        if self.state is CircuitState.CLOSED:
            self._open(now, min(retry_in, self._options.cooldown), own=False)

    def hear_closed(self, now: float) -> None:
        """Others found the service well: probe soon, each at a moment of its own, and believe that probe.

        Once per cool-down: a service that is well for some and ill for others is not to be probed by all of them
        whenever one succeeds.
        """
        if self.state is CircuitState.OPEN and now >= self._hurries_from:
            self._hurries_from = now + self._options.cooldown
            soon = self._options.cooldown * self._random.uniform(0, self._options.jitter)
            self._retry_at = min(self._retry_at, now + soon)

    def hear_reset(self, now: float) -> None:
        """Somebody closed the circuit of all processes by hand."""
        if self.state is not CircuitState.CLOSED:
            self._close(now, own=False)

    def stance(self) -> CircuitReport | None:
        """What to tell others; None for what was only heard from them."""
        return CircuitReport(self.state is not CircuitState.CLOSED, self.since, self._retry_at) if self._own else None

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _tripped(self, now: float) -> bool:
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
