"""How a command answers: tables on a terminal, plain rows in a pipe, JSON on request.

Data goes to stdout; notes and next steps go to stderr.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import IO, Any

from redrive.cli.exit_codes import CommandRefused, Unwritten
from redrive.cli.format import COMMAND, HINT, SUCCESS, in_json, lines, one_line, paint

_GAP = 2
_MOST_LINES = 3
_WIDEST = 10_000  # columns of a table with --wide
_NARROWEST = 16  # columns of text beside a label
_LABEL = 11  # columns of the label in a list of fields
_WORDS = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")
"""The words of a command, each with its quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    heading the title on a terminal, where it differs
    show   how a terminal shows the value; a pipe gets the value itself
    style  the style of a value on a terminal
    right  aligned to the right, as numbers are
    drop   left out where there is no room, the highest first, or where it is empty; 0 is never left out
    least  the least number of characters to which it may be cut, with an ellipsis
    wrap   continued on the next line instead of being cut, for up to three lines
    whole  with wrap: continued for as many lines as needed
    hidden shown in pipes only
    """

    title: str
    heading: str = ""
    show: Callable[[Any], str] | None = None
    style: Callable[[Any], str] | None = None
    right: bool = False
    drop: int = 0
    least: int = 0
    wrap: bool = False
    whole: bool = False
    hidden: bool = False

    def for_people(self, value: Any) -> str:
        """Return the value as a cell on a terminal."""
        if self.show is not None:
            return one_line(self.show(value))
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(datum(value))


class Output:
    """Stdout and stderr, and the format of stdout."""

    def __init__(self, *, as_json: bool = False, wide: bool = False) -> None:
        self.json = as_json
        self.wide = wide
        self.terminal = sys.stdout.isatty() and not as_json
        self.attended = sys.stdin.isatty() and sys.stderr.isatty()

    def document(self, value: Any) -> None:
        """Print a JSON document."""
        sys.stdout.write(in_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows under a header; on a terminal, fitted to its width."""
        if not self.terminal:
            self._plain(columns, rows)
        elif rows:
            self._drawn(columns, rows)

    def text(self, text: str) -> None:
        """Print a text; control characters are shown as escapes."""
        sys.stdout.write(f"{lines(text)}\n")

    def prose(self, text: str) -> None:
        """Write text to stdout; on a terminal, wrapped to its width."""
        shown = lines(text)
        if self.terminal:
            shown = "\n".join(wrapped_prose(line) for line in shown.split("\n"))
        sys.stdout.write(f"{shown}\n")

    def heading(self, title: str, *, first: bool = False) -> None:
        """Write the heading of a section, with an empty line before all but the first."""
        sys.stdout.write(("" if first else "\n") + paint(one_line(title), "bold", sys.stdout) + "\n")

    def say(self, text: str) -> None:
        """Write a note to stderr; on a terminal, wrapped to its width."""
        sys.stdout.flush()
        shown = lines(text)
        if sys.stderr.isatty():
            shown = "\n".join(wrapped_prose(line) for line in shown.split("\n"))
        sys.stderr.write(f"{shown}\n")

    def fields(self, rows: Mapping[str, str | None], *, styles: Mapping[str, str] | None = None) -> None:
        """Write labels with their values, one below the other; None leaves a line out."""
        for label, value in rows.items():
            if value is None:
                continue
            shown = lines("\n".join(self.wrapped(f"{'':<{_LABEL}}{line}", hang=_LABEL) for line in value.split("\n")))
            style = (styles or {}).get(label, "")
            text = paint(shown[_LABEL:], style, sys.stdout)
            sys.stdout.write(f"{one_line(label):<{_LABEL}}{text}".rstrip() + "\n")

    def next_steps(self, steps: Sequence[tuple[str, str]]) -> None:
        """Write commands that lead on to stderr, each with what it is for.

        Commands are aligned. A command that is longer than the terminal is continued with a backslash, so that it can
        still be copied.
        """
        steps = list(dict.fromkeys(steps))
        if not steps:
            return
        sys.stdout.flush()
        width = get_terminal_size().columns if sys.stderr.isatty() else None
        label = max(len(purpose) for purpose, _ in steps) + _GAP
        stacked = width is not None and any(_GAP + label + len(command) > width for _, command in steps)
        sys.stderr.write(paint("Next steps:", "bold", sys.stderr) + "\n")
        for purpose, command in steps:
            indent = "    " if stacked else f"{'':<{_GAP + label}}"
            shown = paint(one_line(purpose), HINT, sys.stderr)
            pad = "\n    " if stacked else " " * (label - len(purpose))
            parts = _continued(one_line(command), None if width is None else width - len(indent))
            continued = f"\n{indent}  ".join(paint(part, COMMAND, sys.stderr) for part in parts)
            sys.stderr.write(f"{'':<{_GAP}}{shown}{pad}{continued}\n")

    @contextmanager
    def progress(self, doing: str, *, of: str = "letters") -> Iterator[Callable[[int, int | None], None]]:
        """Show a progress bar where stderr is a terminal; call it with what is done, and the total."""
        if not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        how_far = MofNCompleteColumn() if of == "letters" else TextColumn("{task.percentage:>3.0f} %")
        columns = (
            TextColumn("{task.description}"),
            BarColumn(complete_style=COMMAND, finished_style=SUCCESS, pulse_style=COMMAND),
            how_far,
            TimeRemainingColumn(),
        )
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

        width, height = get_terminal_size()  # rich assumes 80 columns for a terminal that calls itself dumb
        if self.wide:
            width = _WIDEST
        console = Console(file=sys.stdout, highlight=False, width=width, height=height)
        cells = [[column.for_people(value) for column, value in zip(columns, row, strict=True)] for row in rows]
        widths = _widths(columns, cells, console.width)
        if sum(widths.values()) + _GAP * (len(widths) - 1) > console.width:
            self._listed(
                [columns[place].heading or columns[place].title for place in widths],
                [[row[place] for place in widths] for row in cells],
            )
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for place, width in widths.items():
            column = columns[place]
            table.add_column(
                column.heading or column.title,
                justify="right" if column.right else "left",
                no_wrap=not column.wrap,
                overflow="fold" if column.wrap else "ellipsis",
                width=width,
            )
        for row, values in zip(cells, rows, strict=True):
            table.add_row(
                *(
                    Text(
                        row[place] if columns[place].whole else _cut(row[place], width * _MOST_LINES),
                        style=_style(columns[place], values[place]),
                    )
                    for place, width in widths.items()
                )
            )
        console.print(table)

    def _listed(self, titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        """Write each value on a line of its own, where columns would be too narrow to read."""
        label = max(map(len, titles)) + _GAP
        for number, row in enumerate(cells):
            if number:
                self.text("")
            for title, value in zip(titles, row, strict=True):
                if value:
                    self.text(self.wrapped(f"{title:<{label}}{value}", hang=label))

    def wrapped(self, text: str, *, hang: int) -> str:
        """Return a line wrapped to the terminal's width, continued after `hang` columns."""
        width = max(get_terminal_size().columns, hang + _NARROWEST)
        if not self.terminal or len(text) <= width:
            return text
        return fill(text, width, subsequent_indent=" " * hang, break_on_hyphens=False)


def _style(column: Column, value: Any) -> str:
    return "" if column.style is None else column.style(value)


def wrapped_prose(line: str) -> str:
    """Return a line wrapped to the terminal, without breaking words: a path or an id must stay whole."""
    width = max(get_terminal_size().columns, _NARROWEST)
    indent = " " * (len(line) - len(line.lstrip()))
    if len(line) <= width:
        return line
    return fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _continued(command: str, width: int | None) -> list[str]:
    """Return a command in parts that fit, each but the last ending with a backslash."""
    if width is None or len(command) <= width:
        return [command]
    parts = [""]
    for word in _WORDS.findall(command):
        if parts[-1] and len(parts[-1]) + len(word) + 5 > width:
            parts[-1] += " \\"
            parts.append(word)
        else:
            parts[-1] = f"{parts[-1]} {word}".strip()
    return parts


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def datum(value: Any) -> str:
    """Return a value as text for programs."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, tuple | list):
        return ",".join(datum(item) for item in value)
    return str(value)


def iso(moment: datetime) -> str:
    """Return a time as ISO 8601 in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """Return the width of each column; columns are dropped before a message becomes unreadable."""
    from rich.cells import cell_len

    longest = {
        place: max(cell_len(text) for text in [column.heading or column.title, *(row[place] for row in cells)])
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


@contextmanager
def whole_file(path: Path, *, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name when all of it is written. A symbolic link keeps leading to it.

    Args:
        mode: its permissions, less those that the umask takes away; of a file with records, its user's alone.
    """
    from redrive._internal.files import FILE, open_new, refuse_link_of_another, scratch_beside

    try:
        place = path
        if path.is_symlink():
            refuse_link_of_another(path)
            place = path.resolve()
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode)
        # A device or a pipe cannot be replaced, only written to.
        part = path if special else Path(scratch_beside(place))
        file = part.open("wb") if special else open(open_new(part, FILE if mode is None else mode), "wb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise CommandRefused(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
            if not special:
                file.flush()
                os.fsync(file.fileno())
        if not special:
            part.replace(place)
    except BaseException as error:
        if not special:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise Unwritten(path, error, is_left=special) from None
        raise
