"""The retry budget: retries as a bounded share of calls, so that retries cannot amplify an outage."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.policy import option_checks
from redrive.policy.window import RollingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Retries may be `ratio` of the calls of the last `window` seconds, plus `reserve` for a client that is idle."""

    ratio: float = 0.1
    reserve: int = 10
    window: float = 60.0

    def __post_init__(self) -> None:
        option_checks.share("ratio", self.ratio, zero=True)
        option_checks.count("reserve", self.reserve, least=0)
        option_checks.seconds("window", self.window, above=0)


class BudgetLedger:
    """The calls and retries of the last window; the caller holds the lock."""

    __slots__ = ("_counts", "_options")

    def __init__(self, options: RetryBudget) -> None:
        self._options = options
        self._counts = RollingWindow(options.window)

    def earn(self, now: float, calls: int = 1) -> None:
        """Count calls, however they ended."""
        self._counts.add(now, good=calls)

    def spend(self, now: float) -> bool:
        """Take one retry from the budget and return True; return False where the budget is exhausted."""
        calls, retries = self._counts.totals(now)
        if retries + 1 > self._options.reserve + self._options.ratio * calls:
            return False
        self._counts.add(now, bad=1)
        return True
