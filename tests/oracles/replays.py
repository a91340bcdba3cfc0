"""What a table must hold after runs over changing files, decisions about letters and replays: a model in plain dicts.

It knows nothing of stores, identities and batches. A row is known by its id; a line that cannot be decoded has an id of
its own, which no other row has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


Content = tuple[tuple[str, str], ...]
"""A record as it was received, its fields in their order."""


@dataclass
class OpenLetter:
    """A letter that nobody has decided about."""

    content: Content
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
        self._discarded: dict[str, set[Content]] = {}
        self._reprocessed: dict[str, set[Content]] = {}
        """What was written, and by no later row since: then it would be a new letter."""

    def run(self, week: Week) -> None:
        """Load a file: lines without a fee, and unreadable ones, are rejected."""
        for line in week.lines:
            if line.unreadable or line.fee == NO_FEE:
                self._reject(line.id, week.content(line))
                continue
            self.table[line.id] = (line.name, float(line.fee))
            self._reprocessed.pop(line.id, None)
            if line.id in self.letters:
                self.letters[line.id].superseded = True

    def _reject(self, row_id: str, content: Content) -> None:
        letter = self.letters.get(row_id)
        if letter is not None:
            if letter.content != content:
                letter.content, letter.edit = content, {}
            letter.superseded = False
        elif content not in self._discarded.get(row_id, ()) and content not in self._reprocessed.get(row_id, ()):
            self.letters[row_id] = OpenLetter(content)

    def edit(self, row_id: str, patch: Mapping[str, str]) -> None:
        """Edit an open letter."""
        self.letters[row_id].edit.update(patch)

    def discard(self, row_id: str) -> None:
        """Discard an open letter."""
        self._discarded.setdefault(row_id, set()).add(self.letters.pop(row_id).content)

    def replay(self, order: Sequence[str], age: Mapping[tuple[str, Content], Any], batch: int) -> int:
        """Send letters back through a pipeline that accepts all of them; return how many are written.

        Args:
            order: the open letters, the oldest first.
            age: by the id of the row and its content, what sorts letters by their last sighting; settled ones, too.
            batch: letters that are sent at once. Of those with one key the newest is written.
        """
        chosen = [row_id for row_id in order if not self.letters[row_id].superseded]
        written = 0
        for start in range(0, len(chosen), batch):
            sent = [row_id for row_id in chosen[start : start + batch] if not self.letters[row_id].superseded]
            newest = {self.letters[row_id].payload()["id"]: row_id for row_id in sent}
            written += len(newest)
            for row_id in sent:
                self.letters[row_id].superseded = row_id not in newest.values()
            for row_id in newest.values():
                self._write(row_id, age)
        return written

    def _write(self, row_id: str, age: Mapping[tuple[str, Content], Any]) -> None:
        letter = self.letters.pop(row_id)
        sent, own = letter.payload(), age.get((row_id, letter.content))
        key = sent["id"]
        self.table[key] = (sent["name"], 0.0 if sent["fee"] == NO_FEE else float(sent["fee"]))
        self._reprocessed.setdefault(row_id, set()).add(letter.content)
        if own is None:  # an unreadable line: no other letter has its key
            return
        other = self.letters.get(key)
        if other is not None and age[key, other.content] < own:
            other.superseded = True
        before = self._reprocessed.get(key, set())
        self._reprocessed[key] = {one for one in before if not age[key, one] < own}
