"""Chart of the last day of a service: bars by the hour, or by the quarter of an hour on a wide terminal."""

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
_LABEL_WIDTH = 8  # of the labels before the bars
_HOUR = 3600  # seconds


class ChartGrid(NamedTuple):
    """The columns of the chart."""

    seconds: int
    """Time span of a column."""
    bar: int
    """Width of a bar in characters."""
    pitch: int
    """Characters from the start of one bar to the start of the next."""

    @property
    def width(self) -> int:
        """Return the width of the whole day in characters."""
        return self.pitch * (DAY // timedelta(seconds=self.seconds))


# The first grid that fits the terminal is used; if none fits, the last one.
_GRIDS = (ChartGrid(QUARTER, 1, 1), ChartGrid(_HOUR, 2, 3), ChartGrid(_HOUR, 1, 2), ChartGrid(_HOUR, 1, 1))


def day_start(now: datetime, seconds: int = QUARTER) -> datetime:
    """Return the start of the last day, which ends with the current window."""
    return datetime.fromtimestamp(window(now.timestamp(), seconds) + seconds, UTC) - DAY


def chart(windows: Sequence[ServiceWindow], now: datetime, *, width: int) -> list[str]:
    """Return the lines of three bar charts: attempts, the share that failed, and the p95 latency of the others."""
    from redrive.store.repositories.services import merge_windows

    grid = next((grid for grid in _GRIDS if width >= _LABEL_WIDTH + grid.width), _GRIDS[-1])
    start = day_start(now, grid.seconds)
    windows_by_column: list[list[ServiceWindow]] = [[] for _ in range(DAY // timedelta(seconds=grid.seconds))]
    for service_window in windows:
        column = (service_window.at - start) // timedelta(seconds=grid.seconds)
        if 0 <= column < len(windows_by_column):
            windows_by_column[column].append(service_window)
    merged = [merge_windows(column_windows) if column_windows else None for column_windows in windows_by_column]

    def row(
        title: str, height: int, value: Callable[[ServiceWindow], float | None], show: Callable[[float], str]
    ) -> list[str]:
        values = [None if window is None else value(window) for window in merged]
        top = max((number for number in values if number is not None), default=0)
        labels = [show(top) if top else "", *[""] * (height - 1)]
        lines = bars(values, height=height, grid=grid)
        return [
            title,
            *(f"{label:>{_LABEL_WIDTH - 1}} {line}".rstrip() for label, line in zip(labels, lines, strict=True)),
        ]

    by = "hour" if grid.seconds == _HOUR else "quarter of an hour"
    return [
        *row(f"attempts, by the {by}, in UTC", 4, lambda window: window.attempts, short_count),
        *row("failed, of these", 2, _failure_rate, percent),
        *row("p95 of the others", 2, lambda window: window.p95, latency),
        " " * _LABEL_WIDTH + _hours(start, grid),
    ]


def _failure_rate(window: ServiceWindow) -> float | None:
    return None if window.success_rate is None else 1 - window.success_rate


def bars(values: Sequence[float | None], *, height: int, grid: ChartGrid) -> list[str]:
    """Return the bars as lines, top line first.

    A missing value leaves its column empty, zero is drawn as the lowest eighth, any other value as at least two
    eighths.
    """
    top = max((value for value in values if value is not None), default=0)
    full = 8 * height
    heights = [0 if value is None else max(2, ceil(full * value / top)) if value > 0 else 1 for value in values]
    return [
        "".join(
            (_EIGHTHS[min(8, max(0, eighths - 8 * line))] * grid.bar).ljust(grid.pitch) for eighths in heights
        ).rstrip()
        for line in reversed(range(height))
    ]


def _hours(start: datetime, grid: ChartGrid) -> str:
    """Return the axis: the hours in UTC, each below the column that starts with it."""
    line = ""
    for column in range(DAY // timedelta(seconds=grid.seconds)):
        time = start + column * timedelta(seconds=grid.seconds)
        if time.minute == 0 and len(line) <= column * grid.pitch:
            line = f"{line:<{column * grid.pitch}}{time:%H} "
    return line.rstrip()


def short_count(number: float) -> str:
    """Return a count in at most seven characters: `9,999`, `12.3k`, `1.2M`."""
    if number < 10_000:
        return f"{number:,.0f}"
    unit, suffix = next((unit, suffix) for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if number >= unit)
    return f"{number / unit:.1f}{suffix}"
