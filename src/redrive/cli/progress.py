"""Progress of a run: one line on stderr where that is a terminal, removed when the run ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redrive.cli.format import counted, one_line, percent
from redrive.cli.style import COMMAND, SUCCESS
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.model.runs import Progress

_BAR = 24


@contextmanager
def shown(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Return a function that draws the progress it is called with."""
    if quiet or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR, complete_style=COMMAND, finished_style=SUCCESS, pulse_style=COMMAND),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(one_line(name), total=None, figures="")

        def draw(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, figures=in_figures(progress))

        yield draw


def in_figures(progress: Progress) -> str:
    """Return the figures beside the bar."""
    counts, seconds = progress.counts, progress.seconds
    figures = [counted(counts.read, "row")]
    if seconds > 0:
        figures.append(f"{counts.read / seconds:,.0f} rows/s")
    figures.append(f"{counts.rejected:,} rejected ({percent(counts.rate)})")
    if counts.retries:
        figures.append(counted(counts.retries, "retry", "retries"))
    if progress.total is not None and 0 < progress.done < progress.total:
        figures.append(f"{format_duration(seconds * (progress.total - progress.done) / progress.done)} left")
    return " · ".join(figures)
