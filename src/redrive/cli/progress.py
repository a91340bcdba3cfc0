"""How far a run has come: one line on stderr where that is a terminal, gone when the run ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redrive.cli.format import counted, one_line
from redrive.cli.runs import share
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.model.runs import Progress

_BAR = 24


@contextmanager
def shown(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """A line that is drawn anew whenever it is called with how far the run has come."""
    if quiet or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(one_line(name), total=None, said="")

        def draw(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, said=in_figures(progress))

        yield draw


def in_figures(progress: Progress) -> str:
    """What stands beside the bar."""
    counts, seconds = progress.counts, progress.seconds
    said = [counted(counts.read, "row")]
    if seconds > 0:
        said.append(f"{counts.read / seconds:,.0f} rows/s")
    said.append(f"{counts.rejected:,} rejected ({share(counts.rate)})")
    if counts.retries:
        said.append(f"{counts.retries:,} {'retry' if counts.retries == 1 else 'retries'}")
    if progress.total is not None and 0 < progress.done < progress.total:
        said.append(f"{format_duration(seconds * (progress.total - progress.done) / progress.done)} left")
    return " · ".join(said)
