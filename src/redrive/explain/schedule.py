"""When the attempts of a call are made: at the earliest, on average, at the latest. Pure.

No formula of the policy is copied here: `Retry.decide` is called with the random numbers at their lowest, at their
highest and in the middle, and, where the middle is not the mean, many times with a fixed seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random as Dice
from statistics import fmean

from redrive.clock import Random
from redrive.explain import UnclearQuestion
from redrive.model.calls import Kind, Repeat, Verdict
from redrive.policy.retry import CallProgress, Retry

TRANSIENT = Verdict(Kind.TRANSIENT, "a transient failure", "schedule")
MOST_ATTEMPTS = 1_000

_SEED = 20_260_101
_DECISIONS = 50_000  # of all simulated calls together: a quarter of a second
_FEWEST_CALLS = 500


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds: the least, the mean and the most there can be."""

    best: float
    mean: float
    worst: float


def fits(total: Duration, sla: float) -> str:
    """Return how often a call that never succeeds ends within the SLA."""
    lengths = {"always": total.worst, "on average": total.mean, "at best": total.best, "never": 0.0}
    return next(word for word, length in lengths.items() if length <= sla)


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """One attempt: when it begins, and how long the wait before it was."""

    attempt: int
    wait: Duration
    at: Duration
    chance: float = 1.0
    """How likely it is made at all: `within` may end the call before."""


@dataclass(frozen=True, slots=True)
class AttemptSchedule:
    """All attempts of a call that fails in the same way each time."""

    starts: tuple[AttemptStart, ...]
    total: Duration
    """Until the caller gets the error."""
    inside: float
    """Seconds that each attempt takes."""
    cut: bool
    """Whether `within` may end the call before its attempts are used."""
    calls: int = 0
    """How many calls were simulated for the means; 0 where they are exact."""


def schedule(
    retry: Retry, verdict: Verdict = TRANSIENT, *, inside: float = 0.0, most: int = MOST_ATTEMPTS
) -> AttemptSchedule:
    """Return the attempts of a policy where each takes `inside` seconds and ends in this verdict.

    `most` is for a call that something else ends, such as its breaker or its budget.
    """
    waits = _waits(retry, verdict, inside, most)
    lowest, highest = _sums(waits.shortest), _sums(waits.longest)
    # Another attempt is made only where all the time before it is less than `within`.
    made = sum(low + place * inside < retry.within for place, low in enumerate(lowest))
    latest = [min(high + place * inside, retry.within) for place, high in enumerate(highest[:made])]
    certain = highest[-1] + (len(highest) - 1) * inside < retry.within
    if certain and _middle_is_mean(retry, verdict, waits):
        drawn = _certain(waits, inside)
    else:
        drawn = _draw(retry, verdict, inside, made)
    worst = latest[-1] + inside
    best = min(worst, *_ends(retry, verdict, waits, inside))
    bounds = zip([0.0, *waits.shortest], drawn.waits, [0.0, *waits.longest], strict=False)
    starts = tuple(
        AttemptStart(
            place + 1,
            Duration(*wait),
            Duration(lowest[place] + place * inside, drawn.starts[place], latest[place]),
            chance,
        )
        for place, (wait, chance) in enumerate(zip(bounds, drawn.chances, strict=False))
        if chance
    )
    total = Duration(best, min(max(drawn.total, best), worst), worst)
    return AttemptSchedule(starts, total, inside, waits.outlasted or not certain, drawn.calls)


# ── the bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class At:
    """Random numbers that are always at the same place between their bounds."""

    share: float

    def uniform(self, low: float, high: float, /) -> float:
        return low + (high - low) * self.share


@dataclass(slots=True)
class _Waits:
    """The possible waits between attempts."""

    shortest: list[float] = field(default_factory=list)
    middle: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    outlasted: bool = False
    """Whether the time is over before the attempts are, whatever the random numbers."""


def _waits(retry: Retry, verdict: Verdict, inside: float, most: int) -> _Waits:
    """Return the waits before each retry, up to the last that can still be made."""
    possible = _Waits()
    ways = ((possible.shortest, At(0.0)), (possible.middle, At(0.5)), (possible.longest, At(1.0)))
    spent = inside
    for made in range(1, MOST_ATTEMPTS + 1):
        waits = [_wait(retry, verdict, made, way[-1] if way else None, chance) for way, chance in ways]
        if None in waits or made == most < MOST_ATTEMPTS:
            return possible
        if spent >= retry.within:
            possible.outlasted = True
            return possible
        for (way, _), wait in zip(ways, waits, strict=True):
            way.append(wait or 0.0)
        spent += possible.shortest[-1] + inside
    raise UnclearQuestion(
        f"the policy makes more than {MOST_ATTEMPTS:,} attempts within its {retry.within:g} s, which no service "
        "survives: give it fewer attempts, or a longer base"
    )


def _wait(retry: Retry, verdict: Verdict, made: int, previous: float | None, random: Random) -> float | None:
    # Its time never ends here: what `within` cuts is computed once all waits are known.
    decision = retry.decide(verdict, _progress(verdict, made, -math.inf, previous), random)
    return decision.wait if isinstance(decision, Repeat) else None


def _progress(verdict: Verdict, made: int, elapsed: float, previous: float | None) -> CallProgress:
    return CallProgress(made, elapsed, made if verdict.kind is Kind.AMBIGUOUS else 0, previous)


def _sums(waits: list[float]) -> list[float]:
    """Return the sum of the waits before each attempt."""
    return [math.fsum(waits[:count]) for count in range(len(waits) + 1)]


def _ends(retry: Retry, verdict: Verdict, waits: _Waits, inside: float) -> list[float]:
    """Return the earliest end by each reason: the attempts are exhausted, or a wait does not fit any more."""
    lowest, highest = _sums(waits.shortest), _sums(waits.longest)
    ends = []
    for place, low in enumerate(lowest):
        if low + place * inside >= retry.within:
            break
        soonest = low + (place + 1) * inside
        if place == len(waits.longest):
            ends.append(soonest)
            break
        # The time that a server asks for gets no jitter where only that time itself fits.
        longest = waits.longest[place] if retry.floor(verdict) is None else waits.shortest[place]
        if highest[place] + (place + 1) * inside + longest >= retry.within:
            ends.append(max(soonest, retry.within - longest))
    return ends


# ── the means ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Drawn:
    waits: list[float]
    starts: list[float]
    chances: list[float]
    total: float
    calls: int = 0


def _middle_is_mean(retry: Retry, verdict: Verdict, waits: _Waits) -> bool:
    """Return whether the middle is the mean: a wait that depends on the one before is linear in it, but for the cap."""
    depends = retry.jitter == "decorrelated" and verdict.kind is not Kind.RETRY_NOW
    if depends and retry.floor(verdict) is not None:
        return False
    return not depends or all(longest < retry.cap for longest in waits.longest)


def _certain(waits: _Waits, inside: float) -> _Drawn:
    starts = [before + place * inside for place, before in enumerate(_sums(waits.middle))]
    return _Drawn([0.0, *waits.middle], starts, [1.0] * len(starts), starts[-1] + inside)


def _draw(retry: Retry, verdict: Verdict, inside: float, made: int) -> _Drawn:
    """Return the means of many calls; the seed is fixed, so that the same question has the same answer."""
    dice, calls = Dice(_SEED), max(_FEWEST_CALLS, _DECISIONS // made)
    waits: list[list[float]] = [[] for _ in range(made)]
    starts: list[list[float]] = [[] for _ in range(made)]
    totals = []
    for _ in range(calls):
        elapsed, previous = 0.0, None
        for place in range(made):
            waits[place].append(previous or 0.0)
            starts[place].append(elapsed)
            elapsed += inside
            decision = retry.decide(verdict, _progress(verdict, place + 1, elapsed, previous), dice)
            if not isinstance(decision, Repeat) or place + 1 == made:
                break
            previous = decision.wait
            elapsed += previous
        totals.append(elapsed)
    return _Drawn(
        [fmean(found) if found else 0.0 for found in waits],
        [fmean(found) if found else 0.0 for found in starts],
        [len(found) / calls for found in starts],
        fmean(totals),
        calls,
    )
