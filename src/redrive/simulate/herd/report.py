"""What a herd came to: one result for each strategy, and the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from redrive.simulate.figure import Figure, Series
from redrive.simulate.herd.buckets import BucketCounts
from redrive.simulate.herd.server import RequestOutcome
from redrive.simulate.herd.simulation import Scenario, Strategy, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one strategy made of the scenario. Counts are from the beginning of the outage on."""

    strategy: str
    normal: float
    peak: float
    """Requests per second in the worst bucket once the service is back: what it must live through."""
    peak_at: float
    """When that was, in seconds since it is back."""
    peak_while_down: float
    probe_peak: float
    """Probes of half-open circuits per second in the bucket that has most, down or not."""
    recovered_after: float
    """Seconds, since it is back, until no client was left whose last request had failed; infinite where one was."""
    requests: int
    in_vain: int
    """Requests that were not answered: refused, cut off, or given up."""
    calls_failed: int
    """Calls that ended in an error for their caller, whether anything was sent or not."""
    lost: int
    """Answers that were not given, of those that would have been without the outage."""
    books: BucketCounts

    @property
    def peak_ratio(self) -> float:
        """The peak by the normal rate."""
        return self.peak / self.normal


def hold(
    scenario: Scenario,
    strategies: Sequence[Strategy],
    *,
    seed: int,
    repetitions: int = 1,
    tell: Callable[[float], None] = lambda share: None,
) -> list[Result]:
    """Every strategy in the same scenario; of several repetitions the worst of each figure."""
    runs = len(strategies) * repetitions
    results = []
    for place, strategy in enumerate(strategies):
        found = []
        for repetition in range(repetitions):
            done = place * repetitions + repetition
            books = simulate(
                scenario,
                strategy,
                seed=seed + repetition,
                tell=lambda share, done=done: tell((done + share) / runs),  # type: ignore[misc]
            )
            found.append(_result(scenario, strategy.name, books))
        results.append(reduce(_worse, found))
    return results


def _result(scenario: Scenario, name: str, books: BucketCounts) -> Result:
    first, back = books.first, books.before
    peak_bucket = max(range(back, len(books.requests)), key=books.requests.__getitem__)
    answered = sum(books.fates[RequestOutcome.ANSWERED][first:])
    return Result(
        strategy=name,
        normal=scenario.normal,
        peak=books.requests[peak_bucket] / books.width,
        peak_at=books.begins(peak_bucket),
        peak_while_down=max(books.requests[first:back]) / books.width,
        probe_peak=max(books.probes) / books.width,
        recovered_after=math.inf if books.troubled else max(0.0, books.healed_at - scenario.back),
        requests=sum(books.requests[first:]),
        in_vain=sum(sum(counts[first:]) for fate, counts in zip(RequestOutcome, books.fates, strict=True) if fate),
        calls_failed=sum(books.calls_failed),
        lost=max(0, round(scenario.normal * (scenario.outage + scenario.watch)) - answered),
        books=books,
    )


def _worse(one: Result, other: Result) -> Result:
    """The worse of each figure; what is drawn is the one with the higher peak."""
    worst = one if one.peak >= other.peak else other
    return Result(
        strategy=one.strategy,
        normal=one.normal,
        peak=worst.peak,
        peak_at=worst.peak_at,
        peak_while_down=max(one.peak_while_down, other.peak_while_down),
        probe_peak=max(one.probe_peak, other.probe_peak),
        recovered_after=max(one.recovered_after, other.recovered_after),
        requests=max(one.requests, other.requests),
        in_vain=max(one.in_vain, other.in_vain),
        calls_failed=max(one.calls_failed, other.calls_failed),
        lost=max(one.lost, other.lost),
        books=worst.books,
    )


def per_second(books: BucketCounts, counts: Sequence[int]) -> list[float]:
    """Counts by bucket as a rate."""
    return [count / books.width for count in counts]


def figures(scenario: Scenario, results: Sequence[Result]) -> list[Figure]:
    """The requests over time, and the probes of those who probe; the first is the policy that was asked about."""
    x_label = "seconds since the service went down"
    marks = ((0.0, "down"), (scenario.outage, "back"))

    def line(one: Result, counts: Sequence[int]) -> Series:
        times = [one.books.begins(bucket) + scenario.outage for bucket in range(len(counts))]
        return Series(
            one.strategy, [*zip(times, per_second(one.books, counts), strict=True)], emphasis=one is results[0]
        )

    drawn = [
        Figure(
            title=f"what reaches the service, {scenario.normal:,.0f} requests per second being normal",
            x_label=x_label,
            y_label="requests per second",
            series=[line(one, one.books.requests) for one in results],
            log_y=True,
            marks=marks,
        )
    ]
    probing = [line(one, one.books.probes) for one in results if one.probe_peak]
    if probing:
        title, y_label = "probes of circuits that find out whether it is back", "probes per second"
        drawn.append(Figure(title=title, x_label=x_label, y_label=y_label, series=probing, marks=marks))
    return drawn
