"""Figures as data: the terminal and the plotted picture draw the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
