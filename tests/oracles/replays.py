"""What a table must hold after runs over changing files, decisions about letters and replays: a model in plain dicts.

It knows nothing of stores, identities and batches. A row is known by its id; a line that cannot be decoded has an id of
its own, which no other row has. The table has two columns that identify a row, `id` and `ref`, and the pipeline is
keyed by one of them at a time: a letter that was put under one key is not recognized under the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NO_FEE = "N/A"
NAME_COLUMNS = ("name", "title")
"""What files call the name; the table calls it `name`."""


@dataclass(frozen=True)
class Line:
    """A line of a file: `unreadable` ones hold a byte that is no UTF-8 at the end of their name."""

    id: str
    name: str
    fee: str
    note: str = ""
    unreadable: bool = False


@dataclass(frozen=True)
class Week:
    """A file as it came: its columns in their order, its lines, and the key that the pipeline has then."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    key: str = "id"

    def content(self, line: Line) -> Content:
        """Return a line as it is received, in the order of the columns."""
        values = {"id": line.id, "ref": ref_of(line.id), "fee": line.fee, "note": line.note}
        return tuple((column, values.get(column, line.name)) for column in self.columns)


Content = tuple[tuple[str, str], ...]
"""A record as it was received, its fields in their order."""
Name = tuple[str, Content | None, str | None]
"""What a record is known by: the id of its row, the content in any order, and the key that the pipeline had; of an
unreadable line, the id alone."""
Moment = tuple[int, int]
"""The number of a run, and of a line in its file."""


def ref_of(row: str) -> str:
    """Return the other column that identifies a row."""
    return f"r{row}"


def name_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name that a record has, whatever its file calls it; nothing where it has none."""
    return next(({"name": record[column]} for column in NAME_COLUMNS if column in record), {})


def key_text(row: str, key: str) -> str:
    """Return the key of a row, by the column that the pipeline is keyed by."""
    return row if key == "id" else ref_of(row)


@dataclass
class OpenLetter:
    """A letter that nobody has decided about."""

    content: Content
    key: str | None
    """Of the row that a replay writes; None where it is not known."""
    seen: Moment
    edit: dict[str, str] = field(default_factory=dict)
    superseded: bool = False
    received: tuple[str | None, bool] | None = None
    """Where an edit has changed the key: the key as received, and whether it was superseded."""

    def payload(self) -> dict[str, str]:
        """Return what a replay sends."""
        return {**dict(self.content), **self.edit}


class Oracle:
    """The table, the open letters and the decisions."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Any]] = {}
        self.letters: dict[Name, OpenLetter] = {}
        self.key = "id"
        self.overwritten = 0
        """Letters of the last replay that were written over what a run has written since they were seen."""
        self._discarded: set[Name] = set()
        self._reprocessed: dict[Name, str] = {}
        """What was written, by which key, and by no later row since: then it would be a new letter."""
        self._ever_reprocessed: dict[Name, str] = {}
        self._written_by_run: dict[str, Moment] = {}
        self._runs = 0

    def run(self, week: Week, age: Mapping[Name, Any]) -> None:
        """Load a file: lines without a fee, and unreadable ones, are rejected. The model knows no notes.

        Args:
            age: what sorts letters by their last sighting; settled ones, too.
        """
        self.key = week.key
        self._runs += 1
        for number, line in enumerate(week.lines):
            content, moment = week.content(line), (self._runs, number)
            key = key_text(line.id, week.key)
            if line.unreadable:
                self._reject((line.id, None, None), OpenLetter(content, None, moment))
            elif line.fee == NO_FEE:
                self._reject((line.id, tuple(sorted(content)), week.key), OpenLetter(content, key, moment))
            else:
                row = {"name": None, **name_of(dict(content)), "fee": float(line.fee)}
                self.table[line.id] = {"note": None, **self.table.get(line.id, {}), **row}
                self._written_by_run[line.id] = moment
                self._respell(age)
                self._reprocessed = {name: one for name, one in self._reprocessed.items() if one != key}
                for letter in self.letters.values():
                    letter.superseded |= letter.key == key

    def _reject(self, name: Name, new: OpenLetter) -> None:
        if name in self.letters:
            letter = self.letters[name]
            letter.superseded, letter.seen = False, new.seen
            if letter.received is not None:
                letter.received = letter.received[0], False
        elif name not in self._discarded and not self._is_reprocessed(name):
            # The letter of a row shows its newest content, and what was edited in the older one is gone.
            same_row = {one for one in self.letters if (one[0], one[2]) == (name[0], name[2])}
            self.letters = {one: letter for one, letter in self.letters.items() if one not in same_row}
            self.letters[name] = new

    def _is_reprocessed(self, name: Name) -> bool:
        """Whether a record was written and is still the newest of its row: no open letter is to be written over it."""
        waiting = {letter.key for letter in self.letters.values() if not letter.superseded}
        return name in self._reprocessed and self._reprocessed[name] not in waiting

    def edit(self, name: Name, patch: Mapping[str, str], age: Mapping[Name, Any]) -> None:
        """Edit an open letter: it has the key of its new content, and what superseded the old one counts no more."""
        letter = self.letters[name]
        letter.edit.update(patch)
        received, superseded = letter.received or (letter.key, letter.superseded)
        key = self._edited_key(letter, received)
        if key == letter.key:
            return
        if key == received:
            letter.key, letter.superseded, letter.received = key, superseded, None
            return
        letter.key, letter.received = key, (received, superseded)
        letter.superseded = self._has_newer(name, key, age)

    def _has_newer(self, name: Name, key: str | None, age: Mapping[Name, Any]) -> bool:
        """Whether a newer letter of a key was written."""
        return any(written == key and age[one] > age[name] for one, written in self._ever_reprocessed.items())

    def _respell(self, age: Mapping[Name, Any]) -> None:
        """Give letters whose key was edited the key that they have for the pipeline of today."""
        for name, letter in self.letters.items():
            if letter.received is None or letter.key is None or letter.superseded:
                continue
            key = key_text(letter.payload()["id"], self.key)
            if key == letter.key:
                continue
            letter.key = key
            letter.superseded = letter.received[1] if key == letter.received[0] else self._has_newer(name, key, age)

    def _edited_key(self, letter: OpenLetter, received: str | None) -> str | None:
        """Return the key of an edited letter: by the field that the pipeline is keyed by, if that made the old one."""
        before, after = dict(letter.content), letter.payload()
        if before.get(self.key) == received:
            return after.get(self.key)
        return received if before["id"] == after["id"] else None

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
        self._respell(age)
        chosen = [name for name in order if not self.letters[name].superseded]
        written = self.overwritten = 0
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
        letter = self.letters.pop(name)
        sent = letter.payload()
        row, key = sent["id"], key_text(sent["id"], self.key)
        self.overwritten += self._written_by_run.get(row, letter.seen) > letter.seen
        # A replay writes the fields that the record has, and leaves the others as they are.
        fields = name_of(sent) | ({"note": sent["note"]} if "note" in sent else {})
        fee = 0.0 if sent["fee"] == NO_FEE else float(sent["fee"])
        empty = {"note": None, "name": None}
        self.table[row] = {**empty, **self.table.get(row, {}), **fields, "fee": fee}
        older = {one for one in age if age[one] < age[name]}
        self._reprocessed = {
            one: written for one, written in self._reprocessed.items() if one not in older or written != key
        } | {name: key}
        self._ever_reprocessed[name] = key
        for one in older & self.letters.keys():
            self.letters[one].superseded |= self.letters[one].key == key
