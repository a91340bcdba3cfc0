"""How often a call is tried, and how long it may take: `Retry`, `RetryBudget` and `Timeout`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from redrive.clock import Random
from redrive.model.calls import Decision, Kind, Repeat, Stop, Verdict
from redrive.policy import backoff, option_checks
from redrive.policy.backoff import JITTERS, Jitter
from redrive.policy.window import RollingWindow

REPEATABLE = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS})

# Responses that limit a client by the minute: 403 where its body states it, as Google's and GitHub's do.
LIMITED_STATUS = frozenset({403, 429})
# What a server asks for gets this share of jitter on top, so that clients given the same delay do not return at once.
FLOOR_JITTER = 0.5
# The victim of a deadlock retries almost at once: the other transaction is already through.
SHORT_BASE, SHORT_CAP = 0.02, 0.5


DEFAULT_WITHIN = float("180")
"""Compared by identity, to distinguish it from a `within=180` set by the user: tasks apply only the latter."""


def attempts_used(attempts: int) -> str:
    """Return the reason why there is no further attempt."""
    return "the one attempt is used" if attempts == 1 else f"all {attempts} attempts are used"


class RetryOptions(TypedDict, total=False):
    """The fields of `Retry` as keywords."""

    attempts: int
    base: float
    multiplier: float
    cap: float
    jitter: Jitter
    within: float
    ambiguous: int
    rate_limit_wait: float
    on: Iterable[Kind | str]


class _Ramp(TypedDict):
    base: float
    multiplier: float
    cap: float
    jitter: Jitter
    previous: float | None


@dataclass(frozen=True, slots=True)
class CallProgress:
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
    """Attempts, waits and the verdicts that are retried; bounded in number and in elapsed time.

    attempts    maximum number of attempts, the first included
    base        seconds: ceiling of the first wait
    multiplier  growth of the ceiling per retry
    cap         seconds: no ceiling grows beyond
    jitter      "full" (default), "equal", "decorrelated", "none", "fixed" (always `base`), or a share: 0.25 is ± 25 %
    within      seconds: total of the call, waits and time inside the function
    ambiguous   maximum number of retries after ambiguous errors
    rate_limit_wait  least seconds to wait after a 429 without a Retry-After
    on          the kinds that are retried
    """

    attempts: int = 5
    base: float = 1.0
    multiplier: float = 2.0
    cap: float = 60.0
    jitter: Jitter = "full"
    within: float = DEFAULT_WITHIN
    ambiguous: int = 2
    rate_limit_wait: float = 30.0
    on: Iterable[Kind | str] = REPEATABLE

    def __post_init__(self) -> None:
        option_checks.count("attempts", self.attempts, least=1)
        option_checks.seconds("base", self.base, least=0)
        option_checks.seconds("cap", self.cap, least=0)
        option_checks.seconds("within", self.within, above=0)
        option_checks.count("ambiguous", self.ambiguous, least=0)
        option_checks.seconds("rate_limit_wait", self.rate_limit_wait, least=0)
        if not option_checks.finite(self.multiplier) or self.multiplier < 1:
            raise ValueError(
                f"multiplier must be a finite number of 1 or more, not {option_checks.shown(self.multiplier)}"
            )
        if self.cap < self.base:
            raise ValueError(f"cap must not be below base: {self.cap:g} s is less than {self.base:g} s")
        if self.jitter not in JITTERS and not (option_checks.finite(self.jitter) and 0 < float(self.jitter) <= 1):
            raise ValueError(
                f"jitter must be one of {', '.join(JITTERS)}, or a number above 0 up to 1, not {self.jitter!r}"
            )
        object.__setattr__(self, "on", self._kinds(self.on))
        self._warn()

    @staticmethod
    def _kinds(kinds: Iterable[Kind | str]) -> frozenset[Kind]:
        names = (kinds,) if isinstance(kinds, str | type) or not isinstance(kinds, Iterable) else tuple(kinds)
        if any(isinstance(name, type) for name in names):
            raise TypeError(
                "on takes kinds, not exception classes: redrive retries by verdict; make the class one with "
                'classifier=Classifier().rule(YourError, kind="transient")'
            )
        unknown = sorted(str(name) for name in names if name not in REPEATABLE)
        if unknown:
            raise ValueError(f"on may hold {', '.join(sorted(REPEATABLE))}, not {', '.join(unknown)}")
        return frozenset(Kind(name) for name in names)

    def _warn(self) -> None:
        if self.attempts > 10:
            option_checks.warn(f"{self.attempts} attempts: past ten, a retry hides an outage instead of bridging it")
        if self.jitter == "fixed" and self.attempts > 1:
            option_checks.warn(
                f'jitter="fixed" makes all clients that failed together come back together every {self.base:g} s'
            )

    def worst_case(self, *, timeout: float | None = None) -> float:
        """Return the longest a call may take in seconds, apart from waits that the server asks for (up to `within`).

        Without a `timeout` per attempt, only the waits are counted.
        """
        inside = timeout or 0.0
        most = self.within + inside  # the last attempt may begin just before `within` ends
        total = self.attempts * inside
        for retry in range(1, self.attempts):
            if total >= most:  # absurd numbers of attempts are not summed to the end
                break
            total += self._longest(retry)
        return min(total, most)

    def _longest(self, retry: int) -> float:
        return backoff.longest(retry, base=self.base, multiplier=self.multiplier, cap=self.cap, jitter=self.jitter)

    def concerns(
        self, *, timeout: float | None = None, round_trip: float | None = None, sla: float | None = None
    ) -> list[str]:
        """Return what will hurt with this policy, given what is known about the service; one sentence each.

        timeout     seconds of one attempt
        round_trip  seconds that a call usually takes
        sla         seconds that the whole call may take
        """
        concerns = []
        if self.attempts > 1 and self.base > self.within:
            concerns.append(
                f"base {self.base:g} s is longer than within {self.within:g} s: a wait that does not fit is not begun, "
                "and the call ends without a retry"
            )
        if timeout is not None and timeout > self.within:
            concerns.append(
                f"timeout {timeout:g} s is longer than the {self.within:g} s of the whole call, and is cut to them: "
                f"pass Retry(within=…) of at least {timeout:g} s"
            )
        if round_trip is not None and self.attempts > 1 and 0 < self.base < round_trip:
            concerns.append(
                f"base {self.base:g} s is shorter than the usual round trip of {round_trip:g} s: "
                "the first retry arrives while the service may still be working on the first attempt"
            )
        if sla is not None:
            if self.cap > sla:
                concerns.append(f"cap {self.cap:g} s is beyond the SLA of {sla:g} s: a single wait can miss it")
            worst = self.worst_case(timeout=timeout)
            if worst > sla:
                concerns.append(f"the worst case of {worst:.1f} s does not fit the SLA of {sla:g} s")
            elif self.within > sla and Kind.RATE_LIMITED in self.on:
                concerns.append(
                    f"within {self.within:g} s is beyond the SLA of {sla:g} s: "
                    "waits that the server asks for may miss it"
                )
        return concerns

    def decide(self, verdict: Verdict, progress: CallProgress, random: Random) -> Decision:
        """Return whether to retry after a wait, or to stop and why."""
        if verdict.kind not in self.on:
            return Stop(f"{verdict.kind} errors are not retried", retry_in=verdict.retry_after)
        if progress.attempts >= self.attempts:
            return Stop(attempts_used(self.attempts), spent=True, retry_in=verdict.retry_after)
        if verdict.kind is Kind.AMBIGUOUS and progress.ambiguous > self.ambiguous:
            return Stop(f"all {self.ambiguous} retries of an ambiguous error are used", spent=True)
        left = self.within - progress.elapsed
        wait = self._wait(verdict, progress, left, random)
        if wait >= left:
            why = f"the next wait of {wait:.1f} s does not fit the {max(left, 0):.1f} s left of {self.within:g} s"
            return Stop(why, spent=True, retry_in=verdict.retry_after)
        return Repeat(wait, verdict.reason)

    def floor(self, verdict: Verdict) -> float | None:
        """Return the least seconds to wait: what the server asks for, else `rate_limit_wait` after a 429."""
        if verdict.retry_after is None and verdict.kind is Kind.RATE_LIMITED and verdict.status in LIMITED_STATUS:
            return self.rate_limit_wait
        return verdict.retry_after

    def _wait(self, verdict: Verdict, progress: CallProgress, left: float, random: Random) -> float:
        short = verdict.kind is Kind.RETRY_NOW
        ramp: _Ramp = {
            "base": min(self.base, SHORT_BASE) if short else self.base,
            "multiplier": self.multiplier,
            "cap": min(self.cap, SHORT_CAP) if short else self.cap,
            "jitter": "full" if short else self.jitter,
            "previous": progress.previous_wait,
        }
        floor = self.floor(verdict)
        if floor is None:
            return backoff.wait(progress.attempts, random=random, **ramp)
        # Take the longer of the two: a server that keeps asking for a second, or for none, gets growing waits.
        least, most = backoff.span(progress.attempts, **ramp)
        least, most = max(floor, least), max(floor * (1 + FLOOR_JITTER), most)
        jittered = random.uniform(least, most)
        return least if least < left <= jittered else jittered


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Retries may be `ratio` of the calls of the last `window` seconds, plus `reserve` for a client that is idle."""

    ratio: float = 0.1
    reserve: int = 10
    window: float = 60.0

    def __post_init__(self) -> None:
        option_checks.share("ratio", self.ratio, zero=True)
        option_checks.count("reserve", self.reserve, least=0)
        option_checks.seconds("window", self.window, above=0)


class BudgetLedger:
    """The calls and retries of the last window; the caller holds the lock."""

    __slots__ = ("_counts", "_options")

    def __init__(self, options: RetryBudget) -> None:
        self._options = options
        self._counts = RollingWindow(options.window)

    def earn(self, now: float, calls: int = 1) -> None:
        """Count calls, however they ended."""
        self._counts.add(now, good=calls)

    def spend(self, now: float) -> bool:
        """Take one retry from the budget and return True; return False where the budget is exhausted."""
        calls, retries = self._counts.totals(now)
        if retries + 1 > self._options.reserve + self._options.ratio * calls:
            return False
        self._counts.add(now, bad=1)
        return True


@dataclass(frozen=True, slots=True)
class Timeout:
    """Limits of one attempt, in seconds; None for no limit.

    total    the whole attempt, its body included: for HTTP adapters, async functions and functions that take `timeout`
    connect  until the connection is there, name resolution and TLS included, and for a place in the client's pool;
             for HTTP adapters
    read     each wait for bytes, and for bytes to be taken; for HTTP adapters
    """

    total: float | None = None
    connect: float | None = None
    read: float | None = None

    def __post_init__(self) -> None:
        for name in ("total", "connect", "read"):
            value = getattr(self, name)
            if value is None:
                continue
            object.__setattr__(self, name, option_checks.seconds(name, value, above=0))
            if self.total is not None and value > self.total:
                raise ValueError(f"{name} of {value:g} s is longer than the total of {self.total:g} s")
        if self.total is self.connect is self.read is None:
            raise ValueError("a Timeout needs total, connect or read")

    def phase(self, name: str, left: float | None) -> float | None:
        """Return the limit of a phase of an HTTP request.

        Args:
            name: "connect", "pool", "read" or "write".
            left: seconds left for the whole request; None for no limit.
        """
        limits = (self.connect if name in ("connect", "pool") else self.read, left)
        return min((limit for limit in limits if limit is not None), default=None)


def timeout_of(value: object) -> Timeout | None:
    """Return the limits that an option gives: a number of seconds is the total."""
    if value is None or isinstance(value, Timeout):
        return value
    if option_checks.finite(value):
        return Timeout(total=option_checks.seconds("timeout", value, above=0))  # type: ignore[arg-type]  # it is a number
    raise ValueError(f"timeout must be a number of seconds or a redrive.Timeout, not {option_checks.shown(value)}")
