"""The group `simulate`, with the options and charts that its commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.command import noun
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.output import Output, whole_file

if TYPE_CHECKING:
    from redrive.simulate.figure import Figure

app = noun("Simulate what a policy does to a service under load or after an outage.")

Seed = Annotated[
    int, typer.Option(metavar="NUMBER", help="Seed of the random numbers; the same seed gives the same result.")
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the charts to a .png or .svg file.", show_default=False),
]


@contextmanager
def refusing() -> Iterator[None]:
    """Raise a usage error for a number that the model rejects."""
    try:
        yield
    except ValueError as error:
        raise CommandRefused(str(error)) from None


def check(plot: Path | None) -> None:
    """Check that the plot can be written, before the work begins."""
    if plot is not None:
        from redrive.simulate.figure import check

        with refusing():
            check(plot)


def show(out: Output, figures: Sequence[Figure], plot: Path | None) -> None:
    """Draw the figures on a terminal if they have lines, and write them to the file of --plot."""
    if out.terminal and any(len(series.points) > 1 for figure in figures for series in figure.series):
        from redrive.cli.simulate.chart import chart

        width = get_terminal_size().columns
        for figure in figures:
            out.text("\n" + "\n".join(chart(figure, width=width, ascii=not _shows("●·┤"))))
    if plot is not None:
        from redrive.simulate.figure import save

        with whole_file(plot, mode=0o666) as file:
            save(figures, plot, into=file)
        out.say(f"wrote the charts to {plot}")


def _shows(glyphs: str) -> bool:
    try:
        glyphs.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
