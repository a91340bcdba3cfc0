"""A figure on a terminal: one glyph for each line, so that lines can be distinguished without colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from redrive.cli.service_chart import short
from redrive.simulate.figure import Figure, Series

LEAST_WIDTH = 40
_HEIGHT = 16
_ASIDE = 4  # cells that a point may be moved by, where it would cover another


class Pen(NamedTuple):
    """The characters that a chart is made of."""

    glyphs: str
    between: str
    """Where a line passes from one of its few points to the next."""
    upright: str
    tick: str
    corner: str
    ground: str
    below: str
    mark: str


_DRAWN = Pen("●○▲□◆△■◇", "·", "│", "┤", "└", "─", "┬", "┊")
_TYPED = Pen("*ox#@+%&", ".", "|", "+", "+", "-", "+", ":")


@dataclass(frozen=True, slots=True)
class Axis:
    """From numbers to cells: 0 is the first cell, `cells` - 1 the last."""

    low: float
    high: float
    cells: int
    log: bool = False

    def place(self, value: float) -> int:
        """The cell of a number; what is off the axis stands at its end."""
        low, high, inside = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        return round((inside - low) / (high - low) * (self.cells - 1))

    def ticks(self, most: int) -> list[float]:
        """Return round numbers on the axis, at most `most`."""
        if self.log and math.log10(self.high / self.low) >= 1:
            return self._powers(most)
        steps = (one * 10.0**power for power in range(*_powers_of_ten(self.high - self.low, most)) for one in (1, 2, 5))
        for step in steps:
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first < most:
                return [step * n for n in range(first, last + 1)]
        return []

    def _powers(self, most: int) -> list[float]:
        """Powers of ten, and what is round between them where there is room."""
        decades = range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 1)
        low, high = self.low * (1 - 1e-9), self.high * (1 + 1e-9)
        found: list[float] = []
        for round_ones in ((1, 2, 5), (1,)):
            ticks = (one * 10.0**power for power in decades for one in round_ones)
            found = [tick for tick in ticks if low <= tick <= high]
            if len(found) <= most:
                break
        return found[:: math.ceil(len(found) / most)]


def _powers_of_ten(span: float, most: int) -> tuple[int, int]:
    near = math.floor(math.log10(span / most))
    return near - 1, near + 3


def chart(figure: Figure, *, width: int, height: int = _HEIGHT, ascii: bool = False) -> list[str]:
    """Lines of text: a title, the axes with the lines between them, and which glyph is whose."""
    pen = _TYPED if ascii else _DRAWN
    width = max(LEAST_WIDTH, width)
    drawable = [_finite(one) for one in figure.series]
    points = [point for one in drawable for point in one.points]
    if not points:
        return [f"{figure.title}: there is nothing to draw"]
    upright = _upright([y for _, y in points], log=figure.log_y, cells=height)
    labels = {upright.place(tick): _number(tick) for tick in upright.ticks(max(2, height // (2 if upright.log else 3)))}
    margin = max(map(len, labels.values()), default=0) + 1
    along = _along([x for x, _ in points], log=figure.log_x, cells=width - margin - 1)

    cells = [[" "] * along.cells for _ in range(height)]
    for x, _ in figure.marks:
        if along.low <= x <= along.high:
            for row in cells:
                row[along.place(x)] = pen.mark
    glyphs = [pen.glyphs[place % len(pen.glyphs)] for place in range(len(drawable))]
    _draw([*zip(drawable, glyphs, strict=True)], cells, along, upright, pen)
    rows = [
        f"{labels.get(place, ''):>{margin}}{pen.tick if place in labels else pen.upright}{''.join(cells[place])}"
        for place in reversed(range(height))
    ]
    return [
        f"{figure.title}: {figure.y_label}",
        *_words_of_marks(figure, along, margin),
        *(row.rstrip() for row in rows),
        *_below(along, margin, figure.x_label, pen),
        *_legend(drawable, glyphs, width),
    ]


def _finite(series: Series) -> Series:
    return replace(series, points=[(x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y)])


def _upright(values: Sequence[float], *, log: bool, cells: int) -> Axis:
    high = max(values)
    if log and (positive := [one for one in values if one > 0]):
        low = min(positive)
        return Axis(low, high if high > low else low * 10, cells, log=True)
    low = min(0.0, *values)
    return Axis(low, high if high > low else low + 1, cells)


def _along(values: Sequence[float], *, log: bool, cells: int) -> Axis:
    low, high = min(values), max(values)
    if high > low:
        return Axis(low, high, cells, log=log and low > 0)
    return Axis(low - 1, low + 1, cells)


# ── the lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw(lines: list[tuple[Series, str]], cells: list[list[str]], along: Axis, upright: Axis, pen: Pen) -> None:
    """A line of few points is their glyphs and a dotted way between them; one of many is glyphs throughout.

    Of those that meet, the one that the reader came for is in its place: its many points are drawn last, its few first.
    """
    few: list[tuple[list[tuple[int, int]], str]] = []
    for series, glyph in sorted(lines, key=lambda line: line[0].emphasis):
        places = [(along.place(x), upright.place(y)) for x, y in series.points]
        sparse = len({column for column, _ in places}) < along.cells / 3
        if sparse:
            few.insert(0, (places, glyph))
        for start, end in pairwise(places):
            for column, row in _way(start, end):
                if not sparse or cells[row][column] in (" ", pen.mark):
                    cells[row][column] = pen.between if sparse else glyph
        for column, row in places if not sparse else ():
            cells[row][column] = glyph
    for places, glyph in few:
        for column, row in places:
            cells[row][_beside(column, cells[row], pen)] = glyph


def _beside(column: int, row: list[str], pen: Pen) -> int:
    """The nearest cell that no other line's point has taken; its own, where all are."""
    near = sorted(range(max(0, column - _ASIDE), min(len(row), column + _ASIDE + 1)), key=lambda at: abs(at - column))
    return next((at for at in near if row[at] not in pen.glyphs), column)


def _way(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The cells from one to another, without holes."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for step in range(1, steps):
        share = step / steps
        yield round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1]))


# ── the words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _number(value: float) -> str:
    return short(value) if abs(value) >= 10_000 else f"{value:,.10g}"


def _words_of_marks(figure: Figure, along: Axis, margin: int) -> list[str]:
    """The words above their marks, each in a line of its own where they would touch."""
    lines: list[str] = []
    for x, word in sorted(figure.marks):
        if not along.low <= x <= along.high:
            continue
        left = margin + 1 + min(along.place(x), max(0, along.cells - len(word)))
        for place, line in enumerate(lines):
            if len(line) < left:
                lines[place] = f"{line:<{left}}{word}"
                break
        else:
            lines.append(" " * left + word)
    return lines


def _below(along: Axis, margin: int, label: str, pen: Pen) -> list[str]:
    """The ground with its numbers, and what they are."""
    ground, numbers = [pen.ground] * along.cells, ""
    for tick in along.ticks(max(2, along.cells // 9)):
        place, text = along.place(tick), _number(tick)
        left = min(max(0, place - len(text) // 2), along.cells - len(text))
        if left > len(numbers) or not numbers:
            ground[place] = pen.below
            numbers = f"{numbers:<{left}}{text}"
    under = " " * (margin + 1)
    if len(numbers) + 2 + len(label) <= along.cells:
        numbers = f"{numbers}{label:>{along.cells - len(numbers)}}"
        rows = [under + numbers]
    else:
        rows = [under + numbers, f"{under}{label:>{along.cells}}"]
    return [f"{' ' * margin}{pen.corner}{''.join(ground)}", *rows]


def _legend(series: Sequence[Series], glyphs: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for one, glyph in zip(series, glyphs, strict=True):
        entry = f"{glyph} {one.name}"
        if lines[-1] and len(lines[-1]) + 3 + len(entry) > width:
            lines.append("")
        lines[-1] += f"   {entry}" if lines[-1] else entry
    return lines
