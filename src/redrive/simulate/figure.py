"""What a simulation has to show, as data: a terminal and a picture draw the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One line; `emphasis` for the one that the reader came for."""

    name: str
    points: Sequence[tuple[float, float]]
    """From left to right."""
    emphasis: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Lines over the same axes.

    log_y  the steps of the upright axis multiply: what is below the smallest number above zero stands at the ground
    log_x  so do those of the level one, where all numbers are above zero
    marks  upright lines, each with a word: when an outage began, when it ended
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = ()
    log_x: bool = False
