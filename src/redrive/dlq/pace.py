"""Rate limit of a replay: at most so many letters a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from redrive.errors import LetterError


class Pace:
    """Spreads letters over time; without a rate it never waits.

    Each batch is at most one second's worth of letters, and the next one waits until that time is over. A target that
    is slower than the rate is not sent a burst afterwards.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and (not isinstance(rate, int | float) or isinstance(rate, bool) or not rate > 0):
            raise LetterError(f"rate must be a number of letters per second above 0, not {rate!r}")
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = 0.0

    def size(self, wanted: int) -> int:
        """Return how many of the wanted letters may go in one batch."""
        return wanted if self._rate is None or wanted < self._rate else max(1, int(self._rate))

    def wait(self) -> None:
        """Wait until the next batch may be sent."""
        if self._rate is None:
            return
        while (delay := self._free_at - self._clock()) > 0:  # a sleep may end early
            self._sleep(delay)

    def sent(self, count: int) -> None:
        """Note that letters are being sent now."""
        if self._rate is not None:
            self._free_at = max(self._free_at, self._clock()) + count / self._rate
