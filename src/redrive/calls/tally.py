"""Counts of a service's calls, at a cost a successful call does not feel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from redrive.clock import Clock


@dataclass(frozen=True, slots=True)
class Stats:
    """What a service did since the program began."""

    calls: int = 0
    attempts: int = 0
    successes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Failed attempts by outcome."""
    repeats: int = 0
    fallbacks: int = 0
    success_seconds: float = 0.0
    """Time spent inside successful attempts."""


class Tally:
    """Counts without a lock on the way of a successful call.

    An untroubled call appends its latency to `latencies`, which is atomic, and that is all. Once a slice of time
    has passed, or somebody asks, the list is folded into the counts, and whoever needs successes per time (the
    breaker's rate, the retry budget) is told how many there were in that slice.
    """

    SLICE = 1.0

    def __init__(self, clock: Clock, *, slice_seconds: float, tell: Callable[[int, float], None]) -> None:
        self.latencies: list[float] = []
        self._clock = clock
        self._tell = tell
        self._width = slice_seconds
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._seconds = 0.0
        self._since = clock.monotonic()
        self.fold_at = self._since + self._width

    def fold(self, now: float) -> None:
        """Count what has gathered; it belongs to the slice that began at the last fold."""
        with self._lock:
            count = len(self.latencies)
            # Taken from the front of the same list: what other threads append meanwhile stays for the next fold.
            seconds = sum(self.latencies[:count])
            del self.latencies[:count]
            self._counts["calls"] += count
            self._counts["attempts"] += count
            self._counts["successes"] += count
            self._seconds += seconds
            began, self._since, self.fold_at = self._since, now, now + self._width
            if count:
                self._tell(count, began)

    def began(self) -> None:
        """A call left the untroubled path."""
        with self._lock:
            self._counts["calls"] += 1

    def attempted(self, outcome: str, seconds: float, *, repeat: bool) -> None:
        """An attempt of a troubled call ended."""
        with self._lock:
            self._counts["attempts"] += 1
            self._counts["repeats"] += repeat
            if outcome == "success":
                self._counts["successes"] += 1
                self._seconds += seconds
            else:
                self._failures[outcome] += 1

    def refused(self, outcome: str) -> None:
        """A call ended before an attempt was made."""
        with self._lock:
            self._failures[outcome] += 1

    def fell_back(self) -> None:
        """The fallback was used."""
        with self._lock:
            self._counts["fallbacks"] += 1

    def stats(self) -> Stats:
        """The counts up to now."""
        self.fold(self._clock.monotonic())
        with self._lock:
            counts = {name: self._counts[name] for name in ("calls", "attempts", "successes", "repeats", "fallbacks")}
            return Stats(**counts, failures=dict(self._failures), success_seconds=self._seconds)
