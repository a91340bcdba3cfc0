"""The last day of a service as a chart: bars by the hour, or by the quarter of an hour where the terminal is wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from redrive.calls.metrics.window import QUARTER, window
from redrive.cli.format import latency, percent

if TYPE_CHECKING:
    from redrive.store.repositories.services import ServiceWindow

DAY = timedelta(days=1)
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL = 8  # columns before the bars
_HOUR = 3600


class ChartGrid(NamedTuple):
    """How the day is cut into columns."""

    seconds: int
    bar: int
    """Characters of a bar."""
    pitch: int
    """Characters from one bar to the next."""

    @property
    def width(self) -> int:
        """Characters of the whole day."""
        return self.pitch * (DAY // timedelta(seconds=self.seconds))


# The widest that fits is taken; the last one always is.
_GRIDS = (ChartGrid(QUARTER, 1, 1), ChartGrid(_HOUR, 2, 3), ChartGrid(_HOUR, 1, 2), ChartGrid(_HOUR, 1, 1))


def beginning(now: datetime, seconds: int = QUARTER) -> datetime:
    """When the last day began: the window that is under way is its last one."""
    return datetime.fromtimestamp(window(now.timestamp(), seconds) + seconds, UTC) - DAY


def chart(windows: Sequence[ServiceWindow], now: datetime, *, width: int) -> list[str]:
    """Attempts, the share of them that failed, and the 95th percentile of the others, one below the other."""
    from redrive.store.repositories.services import merge_windows

    grid = next((one for one in _GRIDS if width >= _LABEL + one.width), _GRIDS[-1])
    begins = beginning(now, grid.seconds)
    places: list[list[ServiceWindow]] = [[] for _ in range(DAY // timedelta(seconds=grid.seconds))]
    for one in windows:
        place = (one.at - begins) // timedelta(seconds=grid.seconds)
        if 0 <= place < len(places):
            places[place].append(one)
    found = [merge_windows(listed) if listed else None for listed in places]

    def row(
        title: str, height: int, value: Callable[[ServiceWindow], float | None], show: Callable[[float], str]
    ) -> list[str]:
        values = [None if one is None else value(one) for one in found]
        top = max((one for one in values if one is not None), default=0)
        labels = [show(top) if top else "", *[""] * (height - 1)]
        lines = bars(values, height=height, grid=grid)
        return [title, *(f"{label:>{_LABEL - 1}} {line}".rstrip() for label, line in zip(labels, lines, strict=True))]

    by = "hour" if grid.seconds == _HOUR else "quarter of an hour"
    return [
        *row(f"attempts, by the {by}, in UTC", 4, lambda one: one.attempts, short),
        *row("failed, of these", 2, lambda one: None if one.success_rate is None else 1 - one.success_rate, percent),
        *row("p95 of the others", 2, lambda one: one.p95, latency),
        " " * _LABEL + _hours(begins, grid),
    ]


def bars(values: Sequence[float | None], *, height: int, grid: ChartGrid) -> list[str]:
    """Lines of bars, the top one first. Where there is nothing to show there is nothing; none at all is a line at the
    ground, and little is more than that.
    """
    top = max((one for one in values if one is not None), default=0)
    full = 8 * height
    eighths = [0 if one is None else max(2, ceil(full * one / top)) if one > 0 else 1 for one in values]
    return [
        "".join((_EIGHTHS[min(8, max(0, one - 8 * floor))] * grid.bar).ljust(grid.pitch) for one in eighths).rstrip()
        for floor in reversed(range(height))
    ]


def _hours(begins: datetime, grid: ChartGrid) -> str:
    """The hours of the day, in UTC, below the columns that begin with them."""
    line = ""
    for place in range(DAY // timedelta(seconds=grid.seconds)):
        at = begins + place * timedelta(seconds=grid.seconds)
        if at.minute == 0 and len(line) <= place * grid.pitch:
            line = f"{line:<{place * grid.pitch}}{at:%H} "
    return line.rstrip()


def short(number: float) -> str:
    """A count in few characters."""
    if number < 10_000:
        return f"{number:,.0f}"
    unit, name = next(one for one in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if number >= one[0])
    return f"{number / unit:.1f}{name}"
