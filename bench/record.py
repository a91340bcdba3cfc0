"""What a benchmark leaves behind: tables of figures with unit, spread and ratios, and what they are held against.

A benchmark puts this beside its own rows, under `record`; `python bench` gathers the records of all of them in
`bench/results.json`, and `page.py` makes `docs/benchmarks.md` of that. Nothing is ever read out of prose.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Relation = Literal["at least", "at most", "exactly"]


def spread(values: Sequence[float], digits: int | None = None) -> dict[str, float] | None:
    """What the repetitions of one measurement gave; none where it was made once, which spreads over nothing."""
    measured = [value for value in values if math.isfinite(value)]
    if len(measured) < 2:
        return None
    found = {"low": min(measured), "median": statistics.median(measured), "high": max(measured)}
    return {"repeats": len(measured), **{name: round(value, digits) for name, value in found.items()}}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number of one contender."""

    row: str
    name: str
    unit: str
    value: float | None
    spread: Mapping[str, float] | None = None
    ratios: Mapping[str, float | None] = field(default_factory=dict)
    """By heading: what this figure is to that of a peer, measured in the same run."""
    note: str = ""
    """What must be known to read it: that it was stopped, or why there is none."""


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that are to be read side by side."""

    title: str
    figures: Sequence[Figure]
    rows: Mapping[str, str] = field(default_factory=dict)
    """What is behind the name of a row, where it is not the same in every table."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure is held against."""

    what: str
    value: float | None
    relation: Relation
    limit: float
    unit: str

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None:
            return None
        if self.relation == "exactly":
            return self.value == self.limit
        return self.value >= self.limit if self.relation == "at least" else self.value <= self.limit


def record(
    about: str,
    tables: Sequence[Table],
    *,
    targets: Sequence[Target] = (),
    rows: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """As it goes into the document; `about` is the docstring of the benchmark, which says how it measures."""
    return {
        "about": paragraphs(about),
        "tables": [
            {"title": table.title, "figures": [_without_blanks(one) for one in table.figures], "rows": dict(table.rows)}
            for table in tables
        ],
        "rows": dict(rows or {}),
        "notes": list(notes),
        "targets": [{**asdict(target), "met": target.met} for target in targets],
    }


def paragraphs(text: str) -> list[str]:
    """Prose without its line breaks."""
    return [" ".join(part.split()) for part in text.strip().split("\n\n")]


def _without_blanks(figure: Figure) -> dict[str, Any]:
    needed = ("row", "name", "unit", "value")
    return {name: value for name, value in asdict(figure).items() if value or name in needed}
