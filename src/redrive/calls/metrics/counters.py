"""Counters of a service's calls, which cost a successful call almost nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redrive.calls.function import MOST_ENDPOINTS, OTHER_ENDPOINT
from redrive.calls.parts import CorePart, Latencies
from redrive.clock import Clock


@dataclass(frozen=True, slots=True)
class CallStats:
    """What a service did since the program began."""

    calls: int = 0
    """Logical calls."""
    attempts: int = 0
    """Of all calls."""
    successes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Failed attempts by outcome."""
    repeats: int = 0
    """Attempts after the first one of a call."""
    fallbacks: int = 0
    success_seconds: float = 0.0
    """Time spent inside successful attempts."""


STREAK = 3
"""Calls in a row that end in a response 5xx, for which there is an alert."""


def take(latencies: list[float]) -> list[float]:
    """Empty a list from the front, and return what was in it; what other threads append meanwhile stays."""
    taken = latencies[:]
    del latencies[: len(taken)]
    return taken


class MetricsRecorder(Protocol):
    """Receives what is counted, to store it by time. Its methods must not raise, nor take long."""

    def succeeded(self, latencies: Sequence[float], by_endpoint: Mapping[str, Sequence[float]]) -> float:
        """Record calls that succeeded at once since this was last called, in all and by endpoint.

        Returns the seconds after which to call it again at the latest, so that the next calls all belong to one window.
        """

    def attempted(self, outcome: str, seconds: float, *, retry: bool, fault: bool, endpoint: str) -> None:
        """Record an attempt of a call that left the fast path; a fault is the service's."""

    def rejected(self, outcome: str, *, endpoint: str) -> None:
        """Record a call that ended before an attempt was made."""

    def ended(self, *how: str, endpoint: str) -> None:
        """Record the end of a call that did not succeed."""


class CallCounters(CorePart):
    """Counts without a lock on the fast path.

    A call on the fast path appends its latency to `latencies`, which is atomic, and nothing else. Once a slice of time
    has passed, or the counts are read, the list is folded into the counts, and `on_successes` is called with the number
    of that slice, for the breaker's rate and the retry budget. A recorder, where there is one, gets the list itself.
    """

    SLICE = 1.0
    path = "counters"

    def __init__(
        self, clock: Clock, *, slice_seconds: float, on_successes: Callable[[int, float, Mapping[str, int]], None]
    ) -> None:
        self.owner: Any = None
        self.latencies = Latencies()
        self.by_endpoint: dict[str, Latencies] = {}
        """The same of each endpoint, where endpoints are counted separately."""
        self.counts_endpoints = False
        """Whether they are: the service is recorded, or each endpoint has a circuit of its own."""
        self._streak = 0
        self._successes_before = 0
        self.recorder: MetricsRecorder | None = None
        self._clock = clock
        self._on_successes = on_successes
        self._width = slice_seconds
        self._lock = threading.RLock()
        self._folding = False
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._seconds = 0.0
        self._since = clock.monotonic()
        self.fold_at = self._since + self._width

    def latencies_of(self, endpoint: str) -> Latencies:
        """Return the list that successful calls of an endpoint append to."""
        if not self.counts_endpoints:
            return self.latencies
        known = self.by_endpoint.get(endpoint)
        return known if known is not None else self._new_list(self.name_of(endpoint))

    def name_of(self, endpoint: str) -> str:
        """Return the name under which an endpoint is counted: its own, unless there are too many."""
        return endpoint if endpoint in self.by_endpoint or len(self.by_endpoint) < MOST_ENDPOINTS else OTHER_ENDPOINT

    def _new_list(self, name: str) -> Latencies:
        with self._lock:
            known = self.by_endpoint.get(name)
            if known is None:
                known = self.by_endpoint[name] = Latencies()
                known.owner, known.endpoint = self.owner, name
            return known

    def fold(self, now: float) -> None:
        """Count the latencies that were appended; they belong to the slice that started at the last fold."""
        with self._lock:
            if self._folding:  # a signal handler calls the service in the middle of this very fold
                return
            self._folding = True
            try:
                self._fold(now)
            finally:
                self._folding = False

    def _fold(self, now: float) -> None:
        taken = take(self.latencies)
        by_endpoint = {
            name: latencies for name, appended in list(self.by_endpoint.items()) if (latencies := take(appended))
        }
        for latencies in by_endpoint.values():
            taken += latencies
        count = len(taken)
        self._counts["calls"] += count
        self._counts["attempts"] += count
        self._counts["successes"] += count
        self._seconds += sum(taken)
        began, self._since = self._since, now
        width, recorder = self._width, self.recorder
        if recorder is not None:
            width = min(width, recorder.succeeded(taken, by_endpoint))
        self.fold_at = now + width
        if count:
            self._on_successes(count, began, {name: len(latencies) for name, latencies in by_endpoint.items()})

    def began(self) -> None:
        """Count a call that left the fast path."""
        with self._lock:
            self._counts["calls"] += 1

    def attempted(self, outcome: str, seconds: float, *, retry: bool, fault: bool, endpoint: str) -> None:
        """Record an attempt of a call that left the fast path; a fault is the service's."""
        if (recorder := self.recorder) is not None:
            name = self.latencies_of(endpoint).endpoint or OTHER_ENDPOINT
            recorder.attempted(outcome, seconds, retry=retry, fault=fault, endpoint=name)
        with self._lock:
            self._counts["attempts"] += 1
            self._counts["repeats"] += retry
            if outcome == "success":
                self._counts["successes"] += 1
                self._seconds += seconds
            else:
                self._failures[outcome] += 1

    def rejected(self, outcome: str, *, endpoint: str) -> None:
        """Record a call that ended before an attempt was made."""
        if (recorder := self.recorder) is not None:
            recorder.rejected(outcome, endpoint=self.latencies_of(endpoint).endpoint or OTHER_ENDPOINT)
        with self._lock:
            self._failures[str(outcome)] += 1

    def cancelled(self, seconds: float, endpoint: str) -> None:
        """Count a call whose caller has cancelled the first attempt, by a limit of its own perhaps."""
        self.began()
        self.attempted("cancelled", seconds, retry=False, fault=False, endpoint=endpoint)

    def fell_back(self, endpoint: str) -> None:
        """Count a fallback."""
        self.ended("fallbacks", endpoint=endpoint)
        with self._lock:
            self._counts["fallbacks"] += 1

    def ended(self, *how: str, endpoint: str, status: int | None = None) -> None:
        """Record the end of a call that did not succeed, and the HTTP status of its last response."""
        if (recorder := self.recorder) is not None:
            name = self.latencies_of(endpoint).endpoint or OTHER_ENDPOINT
            if status is not None and self._completes_streak(status):
                how = (*how, "streaks_5xx")
            recorder.ended(*how, endpoint=name)

    def _completes_streak(self, status: int) -> bool:
        """Return whether this is the third call in a row, without a success in between, that ended in a 5xx."""
        with self._lock:
            successes = self._counts["successes"] + sum(map(len, [self.latencies, *self.by_endpoint.values()]))
            unbroken, self._successes_before = successes == self._successes_before, successes
            self._streak = (self._streak if unbroken else 0) + 1 if status >= 500 else 0
            return self._streak == STREAK

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, whose owner may be a thread of the parent."""
        self._lock = threading.RLock()
        self._folding = False

    def stats(self) -> CallStats:
        """Return the counts up to now."""
        self.fold(self._clock.monotonic())
        with self._lock:
            counts = {name: self._counts[name] for name in ("calls", "attempts", "successes", "repeats", "fallbacks")}
            return CallStats(**counts, failures=dict(self._failures), success_seconds=self._seconds)
