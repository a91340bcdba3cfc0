"""Rate limit of a replay: at most so many letters a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from redrive.errors import LetterError
from redrive.policy import option_checks

_LEAST = 1e-6  # letters per second: below that, one letter waits for weeks


class RateLimit:
    """Spreads letters over time; without a rate it never waits.

    A batch waits until the time of those before it is over, and no second has more letters than the rate, however large
    the batches are. A target that is slower than the rate is not sent a burst afterwards.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and not (option_checks.finite(rate) and rate >= _LEAST):
            raise LetterError(
                "rate must be a number of letters per second above 0, finite and not below 0.000001, "
                f"not {option_checks.shown(rate)}"
            )
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = 0.0
        self._most = 1 if rate is None else max(1, int(rate))
        self._recent: deque[tuple[float, int]] = deque()  # when letters were sent in the last second, and how many

    def allow(self, wanted: int) -> int:
        """Wait until letters may be sent, and return how many of the wanted ones may go in one batch."""
        if self._rate is None or wanted <= 0:
            return wanted
        while (delay := self._free_at - self._clock()) > 0:  # a sleep may end early
            self._sleep(delay)
        # One second, or what a single letter takes where that is longer. The margin is for sums of fractions.
        over = self._clock() - self._most / self._rate * (1 - 1e-9)
        while self._recent and self._recent[0][0] <= over:
            self._recent.popleft()
        return min(wanted, max(1, self._most - sum(count for _, count in self._recent)))

    def sent(self, count: int) -> None:
        """Note that letters are being sent now."""
        if self._rate is not None:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._rate
            self._recent.append((now, count))
