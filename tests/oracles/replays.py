"""What a table must hold after runs over changing files, decisions about letters and replays: a model in plain dicts.

It knows nothing of stores, identities and batches. A row is known by its id; a line that cannot be decoded has an id of
its own, which no other row has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NO_FEE = "N/A"


@dataclass(frozen=True)
class Line:
    """A line of a file: `unreadable` ones hold a byte that is no UTF-8 at the end of their name."""

    id: str
    name: str
    fee: str
    unreadable: bool = False


@dataclass(frozen=True)
class Week:
    """A file as it came: its columns in their order, and its lines."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    def content(self, line: Line) -> tuple[tuple[str, str], ...]:
        """Return a line as it is received, in the order of the columns."""
        return tuple((name, getattr(line, name)) for name in self.columns)


@dataclass
class OpenLetter:
    """A letter that nobody has decided about."""

    content: tuple[tuple[str, str], ...]
    edit: dict[str, str] = field(default_factory=dict)
    superseded: bool = False

    def payload(self) -> dict[str, str]:
        """Return what a replay sends."""
        return {**dict(self.content), **self.edit}


class Oracle:
    """The table, the open letters and the decisions."""

    def __init__(self) -> None:
        self.table: dict[str, tuple[str, float]] = {}
        self.letters: dict[str, OpenLetter] = {}
        """By the id of the row as it was received, in the order in which they were rejected first."""
        self._decided: dict[str, set[tuple[tuple[str, str], ...]]] = {}

    def run(self, week: Week) -> None:
        """Load a file: lines without a fee, and unreadable ones, are rejected."""
        for line in week.lines:
            if line.unreadable or line.fee == NO_FEE:
                self._reject(line.id, week.content(line))
                continue
            self.table[line.id] = (line.name, float(line.fee))
            if line.id in self.letters:
                self.letters[line.id].superseded = True

    def _reject(self, row_id: str, content: tuple[tuple[str, str], ...]) -> None:
        letter = self.letters.get(row_id)
        if letter is not None:
            if letter.content != content:
                letter.content, letter.edit = content, {}
            letter.superseded = False
        elif content not in self._decided.get(row_id, ()):
            self.letters[row_id] = OpenLetter(content)

    def edit(self, row_id: str, patch: Mapping[str, str]) -> None:
        """Edit an open letter."""
        self.letters[row_id].edit.update(patch)

    def discard(self, row_id: str) -> None:
        """Discard an open letter."""
        self._decided.setdefault(row_id, set()).add(self.letters.pop(row_id).content)

    def replay(self, order: Sequence[str]) -> None:
        """Send the letters back in this order, through a pipeline that accepts all of them, but for superseded ones."""
        for row_id in order:
            letter = self.letters[row_id]
            if letter.superseded:
                continue
            sent = letter.payload()
            self.table[sent["id"]] = (sent["name"], 0.0 if sent["fee"] == NO_FEE else float(sent["fee"]))
            self.discard(row_id)
