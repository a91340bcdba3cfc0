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
Name = tuple[str, Content | None]
"""What a record is known by: the id of its row and the content in any order; of an unreadable line, the id alone."""


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
        self.letters: dict[Name, OpenLetter] = {}
        self._discarded: set[Name] = set()
        self._reprocessed: dict[Name, str] = {}
        """What was written, by which id, and by no later row since: then it would be a new letter."""

    def run(self, week: Week) -> None:
        """Load a file: lines without a fee, and unreadable ones, are rejected."""
        for line in week.lines:
            content = week.content(line)
            if line.unreadable or line.fee == NO_FEE:
                self._reject((line.id, None if line.unreadable else tuple(sorted(content))), content)
                continue
            self.table[line.id] = (line.name, float(line.fee))
            self._reprocessed = {name: one for name, one in self._reprocessed.items() if one != line.id}
            for letter in self.letters.values():
                letter.superseded |= letter.payload()["id"] == line.id

    def _reject(self, name: Name, content: Content) -> None:
        if name in self.letters:
            self.letters[name].superseded = False
        elif name not in self._discarded and not self._is_reprocessed(name):
            # The letter of a row shows its newest content, and what was edited in the older one is gone.
            self.letters = {one: letter for one, letter in self.letters.items() if one[0] != name[0]}
            self.letters[name] = OpenLetter(content)

    def _is_reprocessed(self, name: Name) -> bool:
        """Whether a record was written and is still the newest of its row: no open letter is to be written over it."""
        waiting = {letter.payload()["id"] for letter in self.letters.values() if not letter.superseded}
        return name in self._reprocessed and self._reprocessed[name] not in waiting

    def edit(self, name: Name, patch: Mapping[str, str]) -> None:
        """Edit an open letter."""
        self.letters[name].edit.update(patch)

    def discard(self, name: Name) -> None:
        """Discard an open letter."""
        del self.letters[name]
        self._discarded.add(name)

    def replay(self, order: Sequence[Name], age: Mapping[Name, Any], batch: int) -> int:
        """Send letters back through a pipeline that accepts all of them; return how many are written.

        Args:
            order: the letters to send, the oldest first.
            age: what sorts letters by their last sighting; settled ones, too.
            batch: letters that are sent at once. Of those with one key the newest is written.
        """
        chosen = [name for name in order if not self.letters[name].superseded]
        written = 0
        for start in range(0, len(chosen), batch):
            sent = [name for name in chosen[start : start + batch] if not self.letters[name].superseded]
            newest = {self.letters[name].payload()["id"]: name for name in sent}
            written += len(newest)
            for name in sent:
                self.letters[name].superseded = name not in newest.values()
            for name in newest.values():
                self._write(name, age)
        return written

    def _write(self, name: Name, age: Mapping[Name, Any]) -> None:
        sent = self.letters.pop(name).payload()
        self.table[sent["id"]] = (sent["name"], 0.0 if sent["fee"] == NO_FEE else float(sent["fee"]))
        older = {one for one in age if age[one] < age[name]}
        self._reprocessed = {
            one: row for one, row in self._reprocessed.items() if one not in older or row != sent["id"]
        } | {name: sent["id"]}
        for one in older & self.letters.keys():
            self.letters[one].superseded |= self.letters[one].payload()["id"] == sent["id"]
