"""Line charts for a terminal: each line has its own glyph, so that lines can be distinguished without colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from redrive.cli.service_chart import short_count
from redrive.simulate.figure import Figure, Series

MIN_WIDTH = 40
_HEIGHT = 16
_MAX_SHIFT = 4  # cells that a point may be moved by, if it would cover a point of another line


class Pen(NamedTuple):
    """The characters of a chart."""

    glyphs: str
    """One for each line."""
    connector: str
    """Connects the points of a line that has few points."""
    y_axis: str
    y_tick: str
    corner: str
    x_axis: str
    x_tick: str
    mark: str
    """A vertical mark, such as the start of an outage."""


_UNICODE = Pen("●○▲□◆△■◇", "·", "│", "┤", "└", "─", "┬", "┊")
_ASCII = Pen("*ox#@+%&", ".", "|", "+", "+", "-", "+", ":")


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps numbers to cells: 0 is the first cell, `cells` - 1 the last."""

    low: float
    high: float
    cells: int
    log: bool = False

    def place(self, value: float) -> int:
        """Return the cell of a number; a number outside of the axis is placed at its nearer end."""
        low, high, inside = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        return round((inside - low) / (high - low) * (self.cells - 1))

    def ticks(self, most: int) -> list[float]:
        """Return round numbers on the axis, at most `most`."""
        if self.log and math.log10(self.high / self.low) >= 1:
            return self._powers(most)
        powers = range(*_powers_of_ten(self.high - self.low, most))
        steps = (factor * 10.0**power for power in powers for factor in (1, 2, 5))
        for step in steps:
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first < most:
                return [step * n for n in range(first, last + 1)]
        return []

    def _powers(self, most: int) -> list[float]:
        """Return powers of ten, with 2 and 5 times them if they fit."""
        decades = range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 1)
        low, high = self.low * (1 - 1e-9), self.high * (1 + 1e-9)
        inside: list[float] = []
        for factors in ((1, 2, 5), (1,)):
            ticks = (factor * 10.0**power for power in decades for factor in factors)
            inside = [tick for tick in ticks if low <= tick <= high]
            if len(inside) <= most:
                break
        return inside[:: math.ceil(len(inside) / most)]


def _powers_of_ten(span: float, most: int) -> tuple[int, int]:
    near = math.floor(math.log10(span / most))
    return near - 1, near + 3


def chart(figure: Figure, *, width: int, height: int = _HEIGHT, ascii: bool = False) -> list[str]:
    """Return the chart as lines of text: the title, the plot with its axes, and the legend."""
    pen = _ASCII if ascii else _UNICODE
    width = max(MIN_WIDTH, width)
    drawable = [_finite(series) for series in figure.series]
    points = [point for series in drawable for point in series.points]
    if not points:
        return [f"{figure.title}: there is nothing to draw"]
    y_axis = _make_y_axis([y for _, y in points], log=figure.log_y, cells=height)
    labels = {y_axis.place(tick): _number(tick) for tick in y_axis.ticks(max(2, height // (2 if y_axis.log else 3)))}
    margin = max(map(len, labels.values()), default=0) + 1
    x_axis = _make_x_axis([x for x, _ in points], log=figure.log_x, cells=width - margin - 1)

    cells = [[" "] * x_axis.cells for _ in range(height)]
    for x, _ in figure.marks:
        if x_axis.low <= x <= x_axis.high:
            for row in cells:
                row[x_axis.place(x)] = pen.mark
    glyphs = [pen.glyphs[place % len(pen.glyphs)] for place in range(len(drawable))]
    _draw([*zip(drawable, glyphs, strict=True)], cells, x_axis, y_axis, pen)
    rows = [
        f"{labels.get(place, ''):>{margin}}{pen.y_tick if place in labels else pen.y_axis}{''.join(cells[place])}"
        for place in reversed(range(height))
    ]
    return [
        f"{figure.title}: {figure.y_label}",
        *_mark_labels(figure, x_axis, margin),
        *(row.rstrip() for row in rows),
        *_x_axis_lines(x_axis, margin, figure.x_label, pen),
        *_legend(drawable, glyphs, width),
    ]


def _finite(series: Series) -> Series:
    return replace(series, points=[(x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y)])


def _make_y_axis(values: Sequence[float], *, log: bool, cells: int) -> Axis:
    high = max(values)
    if log and (positive := [value for value in values if value > 0]):
        low = min(positive)
        return Axis(low, high if high > low else low * 10, cells, log=True)
    low = min(0.0, *values)
    return Axis(low, high if high > low else low + 1, cells)


def _make_x_axis(values: Sequence[float], *, log: bool, cells: int) -> Axis:
    low, high = min(values), max(values)
    if high > low:
        return Axis(low, high, cells, log=log and low > 0)
    return Axis(low - 1, low + 1, cells)


# ── the lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw(lines: list[tuple[Series, str]], cells: list[list[str]], x_axis: Axis, y_axis: Axis, pen: Pen) -> None:
    """Draw the lines: one with few points as its glyphs and dots between them, one with many points as glyphs only.

    Emphasized lines take precedence where lines overlap: those with many points are drawn last, and the points of
    those with few are placed first.
    """
    few: list[tuple[list[tuple[int, int]], str]] = []
    for series, glyph in sorted(lines, key=lambda line: line[0].emphasis):
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in series.points]
        sparse = len({column for column, _ in places}) < x_axis.cells / 3
        if sparse:
            few.insert(0, (places, glyph))
        for start, end in pairwise(places):
            for column, row in _cells_between(start, end):
                if not sparse or cells[row][column] in (" ", pen.mark):
                    cells[row][column] = pen.connector if sparse else glyph
        for column, row in places if not sparse else ():
            cells[row][column] = glyph
    for places, glyph in few:
        for column, row in places:
            cells[row][_free_column(column, cells[row], pen)] = glyph


def _free_column(column: int, row: list[str], pen: Pen) -> int:
    """Return the nearest cell without a point of another line; its own column if there is none."""
    near = sorted(
        range(max(0, column - _MAX_SHIFT), min(len(row), column + _MAX_SHIFT + 1)), key=lambda at: abs(at - column)
    )
    return next((at for at in near if row[at] not in pen.glyphs), column)


def _cells_between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Iterate over the cells between two cells, without gaps."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for step in range(1, steps):
        share = step / steps
        yield round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1]))


# ── labels ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _number(value: float) -> str:
    return short_count(value) if abs(value) >= 10_000 else f"{value:,.10g}"


def _mark_labels(figure: Figure, x_axis: Axis, margin: int) -> list[str]:
    """Return the labels above their marks; labels that would overlap are on separate lines."""
    lines: list[str] = []
    for x, label in sorted(figure.marks):
        if not x_axis.low <= x <= x_axis.high:
            continue
        left = margin + 1 + min(x_axis.place(x), max(0, x_axis.cells - len(label)))
        for place, line in enumerate(lines):
            if len(line) < left:
                lines[place] = f"{line:<{left}}{label}"
                break
        else:
            lines.append(" " * left + label)
    return lines


def _x_axis_lines(x_axis: Axis, margin: int, label: str, pen: Pen) -> list[str]:
    """Return the x axis with its ticks, numbers and label."""
    line, numbers = [pen.x_axis] * x_axis.cells, ""
    for tick in x_axis.ticks(max(2, x_axis.cells // 9)):
        place, text = x_axis.place(tick), _number(tick)
        left = min(max(0, place - len(text) // 2), x_axis.cells - len(text))
        if left > len(numbers) or not numbers:
            line[place] = pen.x_tick
            numbers = f"{numbers:<{left}}{text}"
    under = " " * (margin + 1)
    if len(numbers) + 2 + len(label) <= x_axis.cells:
        numbers = f"{numbers}{label:>{x_axis.cells - len(numbers)}}"
        rows = [under + numbers]
    else:
        rows = [under + numbers, f"{under}{label:>{x_axis.cells}}"]
    return [f"{' ' * margin}{pen.corner}{''.join(line)}", *rows]


def _legend(series: Sequence[Series], glyphs: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for line, glyph in zip(series, glyphs, strict=True):
        entry = f"{glyph} {line.name}"
        if lines[-1] and len(lines[-1]) + 3 + len(entry) > width:
            lines.append("")
        lines[-1] += f"   {entry}" if lines[-1] else entry
    return lines
