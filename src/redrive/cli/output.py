"""How a command answers: tables for people on a terminal, plain rows in a pipe, JSON where it is asked for.

On stdout there is data and nothing else; what is said to a person beside it goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from redrive.cli.format import in_json, lines, one_line

_GAP = 2
_MOST_LINES = 3
_NARROWEST = 16  # of a text that goes on below


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    show   how a person reads the value; a pipe gets the value itself
    right  numbers stand at the right
    drop   left out where there is no room, the highest first, or where it is empty; 0 is never left out
    least  may be cut to so many characters, with an ellipsis, where there is no room
    wrap   goes on in the next line instead of being cut, for two or three lines
    whole  with wrap: for as many lines as it takes
    hidden data for pipes that people have in another form
    """

    title: str
    show: Callable[[Any], str] | None = None
    right: bool = False
    drop: int = 0
    least: int = 0
    wrap: bool = False
    whole: bool = False
    hidden: bool = False

    def for_people(self, value: Any) -> str:
        """The value as a cell on a terminal."""
        if self.show is not None:
            return one_line(self.show(value))
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(datum(value))


class Output:
    """The two streams, and the form that stdout is to have."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.json = as_json
        self.terminal = sys.stdout.isatty() and not as_json
        self.attended = sys.stdin.isatty() and sys.stderr.isatty()

    def document(self, value: Any) -> None:
        """One JSON document."""
        sys.stdout.write(in_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
        """Rows under a header; on a terminal as wide as that is."""
        if not self.terminal:
            self._plain(columns, rows)
        elif rows:
            self._drawn(columns, rows)

    def text(self, text: str) -> None:
        """Text for a terminal; its controls are shown, not obeyed."""
        sys.stdout.write(f"{lines(text)}\n")

    def say(self, text: str) -> None:
        """A word to the person, beside the data."""
        sys.stdout.flush()
        sys.stderr.write(f"{lines(text)}\n")

    @contextmanager
    def progress(self, doing: str, *, of: str = "letters") -> Iterator[Callable[[int, int | None], None]]:
        """A bar on stderr, where that is a terminal; call it with how much is done, and of how much."""
        if not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        how_far = MofNCompleteColumn() if of == "letters" else TextColumn("{task.percentage:>3.0f} %")
        columns = (TextColumn("{task.description}"), BarColumn(), how_far, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def _plain(self, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
        titles = [column.title.replace(" ", "_") for column in columns]
        for row in [titles, *rows]:
            sys.stdout.write("\t".join(one_line(datum(value)) for value in row) + "\n")

    def _drawn(self, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        width, height = get_terminal_size()  # rich takes whatever calls itself dumb for 80 columns
        console = Console(file=sys.stdout, highlight=False, width=width, height=height)
        cells = [[column.for_people(value) for column, value in zip(columns, row, strict=True)] for row in rows]
        widths = _widths(columns, cells, console.width)
        if sum(widths.values()) + _GAP * (len(widths) - 1) > console.width:
            self._listed(
                [columns[place].title for place in widths], [[row[place] for place in widths] for row in cells]
            )
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for place, width in widths.items():
            column = columns[place]
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=not column.wrap,
                overflow="fold" if column.wrap else "ellipsis",
                width=width,
            )
        for row in cells:
            table.add_row(
                *(
                    Text(row[place] if columns[place].whole else _cut(row[place], width * _MOST_LINES))
                    for place, width in widths.items()
                )
            )
        console.print(table)

    def _listed(self, titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        """Row by row, each value in a line of its own: where columns would be cut until nothing can be read."""
        label = max(map(len, titles)) + _GAP
        for number, row in enumerate(cells):
            if number:
                self.text("")
            for title, value in zip(titles, row, strict=True):
                if value:
                    self.text(self.wrapped(f"{title:<{label}}{value}", hang=label))

    def wrapped(self, text: str, *, hang: int) -> str:
        """A line of text; where a terminal has no room for it, it goes on below, so far to the right."""
        width = max(get_terminal_size().columns, hang + _NARROWEST)
        if not self.terminal or len(text) <= width:
            return text
        return fill(text, width, subsequent_indent=" " * hang, break_on_hyphens=False)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def datum(value: Any) -> str:
    """A value as a program reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, tuple | list):
        return ",".join(datum(one) for one in value)
    return str(value)


def iso(moment: datetime) -> str:
    """A moment as ISO 8601 in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """How wide each column is; those there is no room for are left out before a message becomes unreadable."""
    from rich.cells import cell_len

    longest = {
        place: max(cell_len(text) for text in [column.title, *(row[place] for row in cells)])
        for place, column in enumerate(columns)
        if not column.hidden and (not column.drop or any(row[place] for row in cells))
    }
    least = {place: min(width, columns[place].least or width) for place, width in longest.items()}
    while sum(least.values()) + _GAP * (len(least) - 1) > room:
        droppable = [place for place in least if columns[place].drop]
        if not droppable:
            break
        del least[max(droppable, key=lambda place: columns[place].drop)]
    spare = room - sum(least.values()) - _GAP * (len(least) - 1)
    widths = {}
    for place, width in least.items():
        more = max(0, min(spare, longest[place] - width))
        widths[place] = width + more
        spare -= more
    return widths
