"""`FakeClock`: a clock that passes time at once and records how long it was asked to wait."""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta

from redrive.clock import sleep


class FakeClock:
    """A `redrive.clock.Clock` without waiting: sleeping advances both clocks and is recorded in `sleeps`.

    All tasks share the time: two tasks that each sleep 10 s advance it by 20 s.

    start  the first time of the wall clock
    """

    def __init__(self, start: datetime | None = None) -> None:
        start = start or datetime(2025, 1, 1, tzinfo=UTC)
        if start.tzinfo is None:
            raise ValueError(f"start must have a time zone, not {start!r}")
        self.sleeps: list[float] = []
        """Every sleep that was requested, in order, in seconds."""
        self._lock = threading.Lock()
        self._monotonic = 0.0
        self._wall = start.astimezone(UTC)

    def monotonic(self) -> float:
        """Return seconds since this clock was made; only `sleep`, `asleep` and `advance` change it."""
        return self._monotonic

    def now(self) -> datetime:
        """Return the wall clock, in UTC with zone."""
        return self._wall

    def sleep(self, seconds: float) -> None:
        """Record the sleep and advance both clocks, without blocking."""
        self._advance(seconds, slept=True)

    async def asleep(self, seconds: float) -> None:
        """Sleep as `sleep` does, and let other tasks run once, as a real sleep would."""
        self._advance(seconds, slept=True)
        await sleep(0)

    def advance(self, seconds: float) -> None:
        """Advance both clocks without recording a sleep."""
        self._advance(seconds, slept=False)

    def jump(self, seconds: float) -> None:
        """Step the wall clock alone, forward or back, as a time server does."""
        if not math.isfinite(seconds):
            raise ValueError(f"a jump must be a finite number of seconds, not {seconds!r}")
        with self._lock:
            self._wall += timedelta(seconds=seconds)

    def _advance(self, seconds: float, *, slept: bool) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time passes by a finite number of seconds from 0 up, not {seconds!r}")
        with self._lock:
            self._monotonic += seconds
            self._wall += timedelta(seconds=seconds)
            if slept:
                self.sleeps.append(seconds)
