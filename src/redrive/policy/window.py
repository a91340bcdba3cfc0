"""Counts over a rolling window of time, for the circuit breaker and the retry budget."""

from __future__ import annotations

from collections import deque


class RollingWindow:
    """Sums of two counts over the last `span` seconds, kept in slices: constant memory, exact to a slice."""

    __slots__ = ("_bad", "_good", "_slices", "_width", "span")

    SLICES = 20

    def __init__(self, span: float) -> None:
        self.span = span
        self._width = span / self.SLICES
        self._slices: deque[list[int]] = deque()  # [slice number, good, bad], oldest first
        self._good = self._bad = 0

    def add(self, now: float, *, good: int = 0, bad: int = 0) -> None:
        """Add counts at `now`; a late report goes to its own slice."""
        number = int(now // self._width)
        self._expire(number)
        position = len(self._slices)
        while position and self._slices[position - 1][0] > number:
            position -= 1
        newest = self._slices[-1][0] if self._slices else number
        if number <= newest - self.SLICES:
            return
        if position and self._slices[position - 1][0] == number:
            entry = self._slices[position - 1]
            entry[1] += good
            entry[2] += bad
        else:
            self._slices.insert(position, [number, good, bad])
        self._good += good
        self._bad += bad

    def totals(self, now: float) -> tuple[int, int]:
        """Return (good, bad) of the window that ends at `now`."""
        self._expire(int(now // self._width))
        return self._good, self._bad

    def clear(self) -> None:
        """Reset both counts."""
        self._slices.clear()
        self._good = self._bad = 0

    def _expire(self, number: int) -> None:
        while self._slices and self._slices[0][0] <= number - self.SLICES:
            _, good, bad = self._slices.popleft()
            self._good -= good
            self._bad -= bad
