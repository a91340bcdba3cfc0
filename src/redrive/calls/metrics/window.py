"""The metrics of a service as sums: by quarter of an hour, and for the last hours by minute.

Pure: the caller passes the time in, in seconds since the epoch. A window is identified by the second it starts with.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

QUARTER = 900
MINUTE = 60
MINUTES_KEPT = 3 * 3600
"""Seconds for which the sums of minutes are used."""

EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds up to which, inclusive, a latency falls into each bucket; the last bucket, of which there is one more, has no
end."""


def window(at: float, length: int) -> int:
    """Return the start of the window of this length that a moment lies in."""
    return int(at // length) * length


def spread(latencies: Sequence[float]) -> list[int]:
    """Return how many latencies fall into each bucket.

    Where there are very many, nearly all are short. So only those beyond the first edge are sorted: to select them
    takes about ten nanoseconds for each latency, and a thread has at most two hundred of them in a second.
    """
    quickest = EDGES[0]
    slower = sorted([latency for latency in latencies if latency > quickest])
    below = [bisect_right(slower, edge) for edge in EDGES]  # none of them is below the first
    counts = [until - since for since, until in zip(below, [*below[1:], len(slower)], strict=True)]
    return [len(latencies) - len(slower), *counts]


def spans(begins: float, ends: float, length: int) -> Iterator[tuple[int, float]]:
    """Yield the windows of a span of time, each with the seconds of the span in it."""
    while begins < ends:
        at = window(begins, length)
        until = min(ends, at + length)
        yield at, until - begins
        begins = until


@dataclass(slots=True)
class WindowSums:
    """The sums of a quarter of an hour of one service."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the names of the store's columns."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    """Successful attempts by latency."""
    success_seconds: float = 0.0
    open_seconds: float = 0.0
    last_success: float | None = None
    """An attempt has succeeded at this time or later."""
    last_failed_auth: float | None = None
    """When a call last failed because its credential was rejected."""

    def succeeded(self, at: float, latencies: Sequence[float]) -> None:
        """Count attempts that succeeded, at this time or later."""
        self.last_success = _later(self.last_success, at)
        self.counts["successes"] += len(latencies)
        self.buckets = [before + more for before, more in zip(self.buckets, spread(latencies), strict=True)]
        self.success_seconds += sum(latencies)

    def add(self, other: WindowSums) -> None:
        """Add the counts of another one."""
        self.counts.update(other.counts)
        self.buckets = [before + more for before, more in zip(self.buckets, other.buckets, strict=True)]
        self.success_seconds += other.success_seconds
        self.open_seconds += other.open_seconds
        self.last_success = _later(self.last_success, other.last_success)
        self.last_failed_auth = _later(self.last_failed_auth, other.last_failed_auth)


def _later(*moments: float | None) -> float | None:
    return max((at for at in moments if at is not None), default=None)


@dataclass(slots=True)
class EndpointWindowSums:
    """The sums of a quarter of an hour of one endpoint of a service."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the names of the store's columns."""
    success_seconds: float = 0.0


# The counts of a service that are counted for each endpoint, too.
ENDPOINT_COUNTS = frozenset({"calls", "attempts", "successes", "retries", "calls_failed", "failed_4xx", "failed_404"})


@dataclass(slots=True)
class MinuteSums:
    """The sums of a minute of one service."""

    attempts: int = 0
    faults: int = 0
    """Attempts for whose failure the service is to blame."""


class MetricsWindow:
    """The metrics of one service. Not for two threads at once."""

    def __init__(self) -> None:
        self.quarters: defaultdict[int, WindowSums] = defaultdict(WindowSums)
        self.minutes: defaultdict[int, MinuteSums] = defaultdict(MinuteSums)
        self.endpoints: defaultdict[tuple[str, int], EndpointWindowSums] = defaultdict(EndpointWindowSums)
        """By endpoint and quarter."""

    def __bool__(self) -> bool:
        return bool(self.quarters)

    def succeeded(
        self, at: float, latencies: Sequence[float], by_endpoint: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        """Count calls that succeeded at their first attempt, in all and by endpoint, at this time or later."""
        if not latencies:
            return
        sums, count = self.quarters[window(at, QUARTER)], len(latencies)
        sums.counts["calls"] += count
        sums.counts["attempts"] += count
        sums.succeeded(at, latencies)
        self.minutes[window(at, MINUTE)].attempts += count
        for endpoint, taken in (by_endpoint or {}).items():
            self._count(at, endpoint, Counter(dict.fromkeys(("calls", "attempts", "successes"), len(taken))))
            self.endpoints[endpoint, window(at, QUARTER)].success_seconds += sum(taken)

    def _count(self, at: float, endpoint: str | None, counts: Counter[str]) -> None:
        if endpoint is not None:
            self.endpoints[endpoint, window(at, QUARTER)].counts.update(counts)

    def attempted(
        self, at: float, outcome: str, seconds: float, *, retry: bool, fault: bool, endpoint: str | None = None
    ) -> None:
        """Count an attempt of a call that left the fast path; the first attempt of a call counts the call, too."""
        names = ["attempts", "retries" if retry else "calls", *(["successes"] if outcome == "success" else [])]
        self._count(at, endpoint, Counter([*names, *(["faults"] if fault else [])]))
        if endpoint is not None and outcome == "success":
            self.endpoints[endpoint, window(at, QUARTER)].success_seconds += seconds
        sums = self.quarters[window(at, QUARTER)]
        sums.counts["attempts"] += 1
        sums.counts["retries" if retry else "calls"] += 1
        if outcome == "success":
            sums.succeeded(at, [seconds])
        else:
            sums.counts[outcome] += 1
        minute = self.minutes[window(at, MINUTE)]
        minute.attempts += 1
        minute.faults += fault

    def rejected(self, at: float, outcome: str, *, endpoint: str | None = None) -> None:
        """Count a call of which nothing was sent."""
        self._count(at, endpoint, Counter(["calls"]))
        counts = self.quarters[window(at, QUARTER)].counts
        counts["calls"] += 1
        counts[outcome] += 1

    def ended(self, at: float, *names: str, endpoint: str | None = None) -> None:
        """Count the end of a call that did not succeed, by the names of the columns."""
        self._count(at, endpoint, Counter(name for name in names if name in ENDPOINT_COUNTS))
        sums = self.quarters[window(at, QUARTER)]
        sums.counts.update(names)
        if "failed_auth" in names:
            sums.last_failed_auth = _later(sums.last_failed_auth, at)

    def open_for(self, begins: float, ends: float) -> None:
        """Count a span in which the circuit was not closed."""
        for at, seconds in spans(begins, ends, QUARTER):
            self.quarters[at].open_seconds += seconds

    def add(self, other: MetricsWindow) -> None:
        """Add the counts of another one."""
        for at, sums in other.quarters.items():
            self.quarters[at].add(sums)
        for key, of_endpoint in other.endpoints.items():
            self.endpoints[key].counts.update(of_endpoint.counts)
            self.endpoints[key].success_seconds += of_endpoint.success_seconds
        for at, minute in other.minutes.items():
            self.minutes[at].attempts += minute.attempts
            self.minutes[at].faults += minute.faults

    def forget_minutes(self, before: float) -> None:
        """Drop minutes that are not used any more: while they cannot be written, they must not pile up."""
        for at in [at for at in self.minutes if at < before]:
            del self.minutes[at]
