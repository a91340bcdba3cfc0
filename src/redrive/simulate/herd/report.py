"""The results of a herd simulation: one for each strategy, and the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from redrive.simulate.figure import Figure, Series
from redrive.simulate.herd.server import RequestOutcome
from redrive.simulate.herd.simulation import BucketCounts, Scenario, Strategy, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one strategy in the scenario. Counts are from the start of the outage on."""

    strategy: str
    normal: float
    peak: float
    """Requests per second in the worst bucket after the recovery: what the service must sustain."""
    peak_at: float
    """When that was, in seconds after the recovery."""
    peak_while_down: float
    probe_peak: float
    """Probes of half-open circuits per second in the bucket that has most, before or after the recovery."""
    recovered_after: float
    """Seconds after the recovery until no client was left whose last request had failed; infinite if one was left."""
    requests: int
    in_vain: int
    """Requests that were not answered: refused, reset, or timed out."""
    calls_failed: int
    """Calls that ended in an error for their caller, whether anything was sent or not."""
    lost: int
    """Answers that are missing in comparison with a scenario without an outage."""
    buckets: BucketCounts

    @property
    def peak_ratio(self) -> float:
        """The peak divided by the normal rate."""
        return self.peak / self.normal


def hold(
    scenario: Scenario,
    strategies: Sequence[Strategy],
    *,
    seed: int,
    repetitions: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Result]:
    """Simulate every strategy in the same scenario; of several repetitions, return the worst of each figure."""
    runs = len(strategies) * repetitions
    results = []
    for position, strategy in enumerate(strategies):
        repetition_results = []
        for repetition in range(repetitions):
            done = position * repetitions + repetition
            buckets = simulate(
                scenario,
                strategy,
                seed=seed + repetition,
                progress=lambda share, done=done: progress((done + share) / runs),  # type: ignore[misc]
            )
            repetition_results.append(_result(scenario, strategy.name, buckets))
        results.append(reduce(_worse, repetition_results))
    return results


def _result(scenario: Scenario, name: str, buckets: BucketCounts) -> Result:
    first, back = buckets.first, buckets.before
    peak_bucket = max(range(back, len(buckets.requests)), key=buckets.requests.__getitem__)
    answered = sum(buckets.fates[RequestOutcome.ANSWERED][first:])
    return Result(
        strategy=name,
        normal=scenario.normal,
        peak=buckets.requests[peak_bucket] / buckets.width,
        peak_at=buckets.begins(peak_bucket),
        peak_while_down=max(buckets.requests[first:back]) / buckets.width,
        probe_peak=max(buckets.probes) / buckets.width,
        recovered_after=math.inf if buckets.troubled else max(0.0, buckets.recovered_at - scenario.back),
        requests=sum(buckets.requests[first:]),
        in_vain=sum(
            sum(counts[first:]) for outcome, counts in zip(RequestOutcome, buckets.fates, strict=True) if outcome
        ),
        calls_failed=sum(buckets.calls_failed),
        lost=max(0, round(scenario.normal * (scenario.outage + scenario.watch)) - answered),
        buckets=buckets,
    )


def _worse(first: Result, second: Result) -> Result:
    """Combine the worse of each figure; the counts that are drawn are those with the higher peak."""
    worst = first if first.peak >= second.peak else second
    return Result(
        strategy=first.strategy,
        normal=first.normal,
        peak=worst.peak,
        peak_at=worst.peak_at,
        peak_while_down=max(first.peak_while_down, second.peak_while_down),
        probe_peak=max(first.probe_peak, second.probe_peak),
        recovered_after=max(first.recovered_after, second.recovered_after),
        requests=max(first.requests, second.requests),
        in_vain=max(first.in_vain, second.in_vain),
        calls_failed=max(first.calls_failed, second.calls_failed),
        lost=max(first.lost, second.lost),
        buckets=worst.buckets,
    )


def per_second(buckets: BucketCounts, counts: Sequence[int]) -> list[float]:
    """Return counts by bucket as rates."""
    return [count / buckets.width for count in counts]


def figures(scenario: Scenario, results: Sequence[Result]) -> list[Figure]:
    """Return the figures: requests over time, and probes if any; the first result is the user's policy."""
    x_label = "seconds since the service went down"
    marks = ((0.0, "down"), (scenario.outage, "back"))

    def line(result: Result, values: Sequence[int]) -> Series:
        times = [result.buckets.begins(bucket) + scenario.outage for bucket in range(len(values))]
        return Series(
            result.strategy,
            [*zip(times, per_second(result.buckets, values), strict=True)],
            emphasis=result is results[0],
        )

    drawn = [
        Figure(
            title=f"what reaches the service, {scenario.normal:,.0f} requests per second being normal",
            x_label=x_label,
            y_label="requests per second",
            series=[line(result, result.buckets.requests) for result in results],
            log_y=True,
            marks=marks,
        )
    ]
    probing = [line(result, result.buckets.probes) for result in results if result.probe_peak]
    if probing:
        title, y_label = "probes of circuits that find out whether it is back", "probes per second"
        drawn.append(Figure(title=title, x_label=x_label, y_label=y_label, series=probing, marks=marks))
    return drawn
