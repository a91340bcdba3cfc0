"""Counts of a service's calls, at a cost a successful call does not feel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redrive.calls.parts import Latencies, Part
from redrive.clock import Clock


@dataclass(frozen=True, slots=True)
class Stats:
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


class Recorder(Protocol):
    """Who is told what is counted, to keep it by the time it happened at. It may not raise, nor take long."""

    def succeeded(self, latencies: Sequence[float]) -> float:
        """Calls that succeeded at once since this was last called; the seconds after which to call it again at the
        latest, so that none of the next ones belong to another window than the others.
        """

    def attempted(self, outcome: str, seconds: float, *, repeat: bool, fault: bool) -> None:
        """An attempt of a troubled call ended; a fault is the service's."""

    def refused(self, outcome: str) -> None:
        """A call ended before an attempt was made."""

    def ended(self, *how: str) -> None:
        """What a call came to that did not succeed."""


class Tally(Part):
    """Counts without a lock on the way of a successful call.

    An untroubled call appends its latency to `latencies`, which is atomic, and that is all. Once a slice of time
    has passed, or somebody asks, the list is folded into the counts, and whoever needs successes per time (the
    breaker's rate, the retry budget) is told how many there were in that slice. A recorder, where there is one, is
    given the list itself.
    """

    SLICE = 1.0
    place = "tally"

    def __init__(self, clock: Clock, *, slice_seconds: float, tell: Callable[[int, float], None]) -> None:
        self.owner: Any = None
        self.latencies = Latencies()
        self.recorder: Recorder | None = None
        self._clock = clock
        self._tell = tell
        self._width = slice_seconds
        self._lock = threading.RLock()
        self._folding = False
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._seconds = 0.0
        self._since = clock.monotonic()
        self.fold_at = self._since + self._width

    def fold(self, now: float) -> None:
        """Count what has gathered; it belongs to the slice that began at the last fold."""
        with self._lock:
            if self._folding:  # a signal handler calls the service in the middle of this very fold
                return
            self._folding = True
            try:
                self._fold(now)
            finally:
                self._folding = False

    def _fold(self, now: float) -> None:
        # Taken from the front of the same list: what other threads append meanwhile stays for the next fold.
        taken = self.latencies[:]
        count = len(taken)
        del self.latencies[:count]
        self._counts["calls"] += count
        self._counts["attempts"] += count
        self._counts["successes"] += count
        self._seconds += sum(taken)
        began, self._since = self._since, now
        width, recorder = self._width, self.recorder
        if recorder is not None:
            width = min(width, recorder.succeeded(taken))
        self.fold_at = now + width
        if count:
            self._tell(count, began)

    def began(self) -> None:
        """A call left the untroubled path."""
        with self._lock:
            self._counts["calls"] += 1

    def attempted(self, outcome: str, seconds: float, *, repeat: bool, fault: bool) -> None:
        """An attempt of a troubled call ended; a fault is the service's."""
        if (recorder := self.recorder) is not None:
            recorder.attempted(outcome, seconds, repeat=repeat, fault=fault)
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
        if (recorder := self.recorder) is not None:
            recorder.refused(outcome)
        with self._lock:
            self._failures[outcome] += 1

    def fell_back(self) -> None:
        """The fallback was used."""
        self.ended("fallbacks")
        with self._lock:
            self._counts["fallbacks"] += 1

    def ended(self, *how: str) -> None:
        """What a call came to that did not succeed."""
        if (recorder := self.recorder) is not None:
            recorder.ended(*how)

    def renew_lock(self) -> None:
        """In a forked child: replace the lock, whose holder may be a thread of the parent."""
        self._lock = threading.RLock()
        self._folding = False

    def stats(self) -> Stats:
        """The counts up to now."""
        self.fold(self._clock.monotonic())
        with self._lock:
            counts = {name: self._counts[name] for name in ("calls", "attempts", "successes", "repeats", "fallbacks")}
            return Stats(**counts, failures=dict(self._failures), success_seconds=self._seconds)
