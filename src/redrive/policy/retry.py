"""The retry policy: which verdicts repeat, how often, how long, and when to give up."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from redrive.clock import Random
from redrive.errors import PolicyWarning
from redrive.model import Decision, Kind, Repeat, Stop, Verdict
from redrive.policy import backoff, checks
from redrive.policy.backoff import JITTERS, Jitter

REPEATABLE = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS})

# Retry-After gets this much jitter on top, so that clients told the same second do not come back in it.
FLOOR_JITTER = 0.1
# A deadlock's victim repeats almost at once: the other transaction is already through.
SHORT_BASE, SHORT_CAP = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """What a call has behind it when its next step is decided."""

    attempts: int
    """Attempts made that count against the policy's number."""
    elapsed: float
    """Seconds since the call began, the time inside the function included."""
    ambiguous: int = 0
    """How many of the attempts ended ambiguous."""
    previous_wait: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Attempts, waits and the verdicts that repeat; bounded in number and in elapsed time.

    attempts    at most this many, the first included
    base        seconds: ceiling of the first wait
    multiplier  growth of the ceiling per repeat
    cap         seconds: no ceiling grows beyond
    jitter      "full" (default), "equal", "decorrelated", "none", or "fixed" (always `base`)
    within      seconds: total of the call, waits and time inside the function
    ambiguous   repeats allowed to errors that cannot be told
    on          the kinds that repeat
    """

    attempts: int = 5
    base: float = 1.0
    multiplier: float = 2.0
    cap: float = 60.0
    jitter: Jitter = "full"
    within: float = 180.0
    ambiguous: int = 2
    on: Iterable[Kind | str] = REPEATABLE

    def __post_init__(self) -> None:
        checks.count("attempts", self.attempts, least=1)
        checks.seconds("base", self.base, least=0)
        checks.seconds("cap", self.cap, least=0)
        checks.seconds("within", self.within, above=0)
        checks.count("ambiguous", self.ambiguous, least=0)
        if not isinstance(self.multiplier, int | float) or not 1 <= self.multiplier < math.inf:
            raise ValueError(f"multiplier must be a finite number of 1 or more, not {self.multiplier!r}")
        if self.cap < self.base:
            raise ValueError(f"cap must not be below base: {self.cap:g} s is less than {self.base:g} s")
        if self.jitter not in JITTERS:
            raise ValueError(f"jitter must be one of {', '.join(JITTERS)}, not {self.jitter!r}")
        object.__setattr__(self, "on", self._kinds(self.on))
        self._warn()

    @staticmethod
    def _kinds(given: Iterable[Kind | str]) -> frozenset[Kind]:
        names = (given,) if isinstance(given, str) else tuple(given)
        unknown = sorted(str(name) for name in names if name not in REPEATABLE)
        if unknown:
            allowed = ", ".join(sorted(REPEATABLE))
            raise ValueError(f"on may hold {allowed}; {', '.join(unknown)} is never repeated as it is")
        return frozenset(Kind(name) for name in names)

    def _warn(self) -> None:
        if self.attempts > 10:
            text = f"{self.attempts} attempts: past ten, a retry hides an outage instead of bridging it"
            warnings.warn(text, PolicyWarning, stacklevel=4)
        if self.jitter == "fixed" and self.attempts > 1:
            text = f'jitter="fixed" makes all clients that failed together come back together every {self.base:g} s'
            warnings.warn(text, PolicyWarning, stacklevel=4)

    def worst_case(self, *, timeout: float | None = None) -> float:
        """The longest a call may take in seconds; without a `timeout` per attempt, only its waits can be known."""
        inside = timeout or 0.0
        most = self.within + inside  # the last attempt may begin just before `within` ends
        total = self.attempts * inside
        for repeat in range(1, self.attempts):
            if total >= most:  # absurd numbers of attempts are not summed to the end
                break
            total += self._longest(repeat)
        return min(total, most)

    def _longest(self, repeat: int) -> float:
        return backoff.longest(repeat, base=self.base, multiplier=self.multiplier, cap=self.cap, jitter=self.jitter)

    def concerns(
        self, *, timeout: float | None = None, round_trip: float | None = None, sla: float | None = None
    ) -> list[str]:
        """What will hurt with this policy, given what is known about the service; one sentence each."""
        found = []
        if round_trip is not None and self.attempts > 1 and 0 < self.base < round_trip:
            found.append(
                f"base {self.base:g} s is shorter than the usual round trip of {round_trip:g} s: "
                "the first repeat arrives while the service may still be working on the first attempt"
            )
        if sla is not None:
            if self.cap > sla:
                found.append(f"cap {self.cap:g} s is beyond the SLA of {sla:g} s: a single wait can miss it")
            worst = self.worst_case(timeout=timeout)
            if worst > sla:
                found.append(f"the worst case of {worst:.1f} s does not fit the SLA of {sla:g} s")
        return found

    def decide(self, verdict: Verdict, progress: Progress, random: Random) -> Decision:
        """Repeat after a wait, or stop and say why."""
        if verdict.kind not in self.on:
            return Stop(f"{verdict.kind} errors are not repeated", retry_in=verdict.retry_after)
        if progress.attempts >= self.attempts:
            return Stop(f"all {self.attempts} attempts are used", spent=True, retry_in=verdict.retry_after)
        if verdict.kind is Kind.AMBIGUOUS and progress.ambiguous > self.ambiguous:
            return Stop(f"the {self.ambiguous} repeats of an ambiguous error are used", spent=True)
        left = self.within - progress.elapsed
        wait = self._wait(verdict, progress, left, random)
        if wait >= left:
            why = f"the next wait of {wait:.1f} s does not fit the {max(left, 0):.1f} s left of {self.within:g} s"
            return Stop(why, spent=True, retry_in=verdict.retry_after)
        return Repeat(wait, verdict.reason)

    def _wait(self, verdict: Verdict, progress: Progress, left: float, random: Random) -> float:
        if verdict.retry_after is not None:
            floor = verdict.retry_after
            jittered = random.uniform(floor, floor * (1 + FLOOR_JITTER))
            return floor if floor < left <= jittered else jittered
        if verdict.kind is Kind.RETRY_NOW:
            base = min(self.base, SHORT_BASE)
            top = backoff.ceiling(
                progress.attempts, base=base, multiplier=self.multiplier, cap=min(self.cap, SHORT_CAP)
            )
            return random.uniform(0.0, top)
        return backoff.wait(
            progress.attempts,
            base=self.base,
            multiplier=self.multiplier,
            cap=self.cap,
            jitter=self.jitter,
            previous=progress.previous_wait,
            random=random,
        )
