"""The circuit breaker's state machine: closed, open, half-open. Its window and its lock live elsewhere."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from redrive.clock import Random
from redrive.policy import checks
from redrive.policy.window import RollingWindow


class State(StrEnum):
    """Where a circuit stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


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

    def __post_init__(self) -> None:
        checks.count("failures", self.failures, least=1)
        checks.seconds("window", self.window, above=0)
        checks.seconds("cooldown", self.cooldown, above=0)
        checks.count("probes", self.probes, least=1)
        checks.share("rate", self.rate, zero=True)
        checks.count("minimum", self.minimum, least=1)
        if self.slow is not None:
            checks.seconds("slow", self.slow, above=0)
        checks.share("jitter", self.jitter, zero=True)
        checks.seconds("lease", self.lease, above=0)


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to make one attempt; worthless once the machine's generation has moved on."""

    generation: int


class Machine:
    """Pure transitions; its caller passes the time in and holds the lock.

    A permit is reported back exactly once: `succeeded`, `failed`, or `released` for an outcome that says nothing
    about the service (a cancelled probe, a permanent 4xx). A report that comes after the state has changed is void.
    """

    def __init__(self, options: Breaker, random: Random) -> None:
        self.state = State.CLOSED
        self.generation = 0
        self._options = options
        self._random = random
        self._failed_at: deque[float] = deque(maxlen=options.failures)
        self._seen = RollingWindow(options.window)
        self._retry_at = 0.0
        self._probe_until: float | None = None  # while a probe is out
        self._probed = 0

    def admit(self, now: float) -> Permit | None:
        """A permit, or None while the circuit is open or a probe is out."""
        if self.state is State.CLOSED:
            return Permit(self.generation)
        if self.retry_in(now) > 0:
            return None
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN
            self._probed = 0
        self.generation += 1  # voids a lost probe that reports after its lease
        self._probe_until = now + self._options.lease
        return Permit(self.generation)

    def retry_in(self, now: float) -> float:
        """Seconds until the next attempt may be let through."""
        if self.state is State.OPEN:
            return max(0.0, self._retry_at - now)
        if self.state is State.HALF_OPEN and self._probe_until is not None:
            # The probe's answer is near; its lease only bounds the case that it never comes.
            return max(0.0, min(self._probe_until - now, self._options.cooldown / 10))
        return 0.0

    def succeeded(self, permit: Permit, now: float) -> None:
        """The service answered."""
        if permit.generation != self.generation or self.state is State.OPEN:
            return
        if self.state is State.CLOSED:
            self._seen.add(now, good=1)
            return
        self._probe_until = None
        self._probed += 1
        if self._probed >= self._options.probes:
            self._close()

    def count_successes(self, successes: int, at: float) -> None:
        """Successes of a closed circuit, reported in bulk and after the fact."""
        if self.state is State.CLOSED:
            self._seen.add(at, good=successes)

    def failed(self, permit: Permit, now: float) -> None:
        """The service is to blame: 5xx, timeout, no connection, too slow."""
        if permit.generation != self.generation or self.state is State.OPEN:
            return
        if self.state is State.HALF_OPEN or self._tripped(now):
            self._open(now)

    def released(self, permit: Permit) -> None:
        """The outcome says nothing about the service: as if the attempt had not been made."""
        if permit.generation == self.generation:
            self._probe_until = None

    def reset(self) -> None:
        """Close by hand."""
        if self.state is not State.CLOSED:
            self._close()

    def _tripped(self, now: float) -> bool:
        options = self._options
        self._failed_at.append(now)
        self._seen.add(now, bad=1)
        if len(self._failed_at) < options.failures or now - self._failed_at[0] > options.window:
            return False
        good, bad = self._seen.totals(now)
        return good + bad >= options.minimum and bad >= options.rate * (good + bad)

    def _open(self, now: float) -> None:
        spread = self._options.jitter
        self.state = State.OPEN
        self.generation += 1
        self._probe_until = None
        self._retry_at = now + self._options.cooldown * self._random.uniform(1 - spread, 1 + spread)

    def _close(self) -> None:
        self.state = State.CLOSED
        self.generation += 1
        self._probe_until = None
        self._failed_at.clear()
        self._seen.clear()
