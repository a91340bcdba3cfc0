"""Figures as data: the terminal and a plotted file draw the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from redrive._internal.optional import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Metadata that would differ from one run to the next is left out of the file.
_METADATA: dict[str, dict[str, str | None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}

# Distinguishable with colour blindness, and in grey by their line styles.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STROKES = ("-", "--", "-.", ":")
_MOST_MARKERS = 24  # a line with more points is drawn without markers
_WIDE, _HIGH = 9.0, 4.2  # inches of a panel


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a figure; `emphasis` for the line that the reader asked about."""

    name: str
    points: Sequence[tuple[float, float]]
    """From left to right."""
    emphasis: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Lines over the same axes.

    log_y  logarithmic y axis: values below the smallest number above zero are drawn at the bottom
    log_x  logarithmic x axis; all numbers are above zero
    marks  vertical lines, each with a label: when an outage began, when it ended
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = ()
    log_x: bool = False


def check(path: Path) -> None:
    """Check that a plot can be written to a path, before the work that the plot is to show.

    Raises:
        ValueError: the path cannot be written, or its suffix is neither .png nor .svg.
    """
    if path.suffix.lower() not in _METADATA:
        raise ValueError(f"{path} must end in .png or .svg, which selects the format of the plot")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no directory {path.parent}; make it first")
    if path.is_dir():
        raise ValueError(f"{path} is a directory; name a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: permission denied; name another place")
    with require_extra("plot"):
        import matplotlib  # noqa: F401


def save(figures: Sequence[Figure], path: Path, *, into: IO[bytes] | None = None) -> None:
    """Draw the figures, one below the other, and save them.

    Args:
        into: the open file to write to, where the path only selects the format.
    """
    check(path)
    with require_extra("plot"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Sheet

    with rc_context({"svg.hashsalt": "redrive"}):  # makes the ids in an SVG the same every time
        sheet = Sheet(figsize=(_WIDE, _HIGH * len(figures)), layout="constrained")
        panels = sheet.subplots(len(figures), squeeze=False)[:, 0]
        for figure, panel in zip(figures, panels, strict=True):
            _draw(figure, panel)
        kind = path.suffix.lower()
        sheet.savefig(path if into is None else into, format=kind[1:], dpi=150, metadata=_METADATA[kind])


def _draw(figure: Figure, panel: Axes) -> None:
    for index, series in enumerate(figure.series):
        panel.plot(
            [x for x, _ in series.points],
            [y for _, y in series.points],
            label=series.name,
            color=_COLOURS[index % len(_COLOURS)],
            linestyle="-" if series.emphasis else _STROKES[index % len(_STROKES)],
            linewidth=2.4 if series.emphasis else 1.4,
            marker="o" if len(series.points) <= _MOST_MARKERS else None,
            markersize=4,
            zorder=3 if series.emphasis else 2,
        )
    panel.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    if figure.log_y:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    if figure.log_x:
        panel.set_xscale("log")
    for x, label in figure.marks:
        panel.axvline(x, color="#888888", linewidth=1, linestyle="--", zorder=1)
        panel.annotate(
            label, (x, 1), xycoords=panel.get_xaxis_transform(), xytext=(3, -11), textcoords="offset points", fontsize=8
        )
    panel.grid(visible=True, alpha=0.25)
    if figure.series:
        panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))  # beside the lines, so that it covers none
