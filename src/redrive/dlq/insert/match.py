"""Which letter a rejected record belongs to, where there is one: by key and content, in whatever order records come.

A record that is put by hand has one identity: its key, or its position and content. The row of a run has several: its
key, which over runs identifies it whatever it holds; for further rows of the same key, and for rows whose key is not
sure, the content; for a further row of the same content, its number among them (`redrive.dlq.insert.identity`).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.dlq.insert.identity import Copies, KnownLetter, KnownLetters, LetterIdentity, Place
from redrive.model.letters import OPEN, ErrorType, Status
from redrive.store.database import Database
from redrive.store.dialects.dialect import LetterRow, RepeatedLetter
from redrive.store.schema import cause_hours, letters

_AT_ONCE = 500

# Their record only names the work: the task, the call, or the page as it is by then, has failed once more.
_NEVER_DECIDED = {ErrorType.TASK, ErrorType.PAGE, ErrorType.CALL}

RowThatCounts = Literal["first", "last"]
"""The row of one key and run that must be in the sink: the first or the last."""


@dataclass(slots=True)
class MatchResult:
    """The result of matching records: `rows` are put, the others are counted at their decided letter."""

    rows: list[LetterRow]
    decided: list[RepeatedLetter] = field(default_factory=list)
    superseded: frozenset[bytes] = frozenset()
    """Identities of rows that must not be written: the one that counts was, by a replay."""


def match(
    connection: Connection,
    database: Database,
    rows: Sequence[LetterRow],
    identities: Callable[[LetterRow], LetterIdentity] | None = None,
    *,
    by_run: bool = False,
    counts: RowThatCounts | None = None,
) -> MatchResult:
    """Find the records whose letter was reprocessed or discarded, and give rows of a run the identity of their letter.

    Args:
        identities: by what the row of a run may be known.
        by_run: whether each row is an event: a decision about one does not hold for an equal one of the same run.
        counts: which of the rows of a key counts, so that one that was written may have to be again; None where the
            sink compares them, or has no key.
    """
    superseded = frozenset[bytes]()
    if identities is None:
        decided, put = _decided(connection, database, rows), rows
    else:
        known_by = [identities(row) for row in rows]
        run = _RowsOfRun(connection, database, rows, known_by, by_run=by_run, counts=counts)
        decided, chosen = run.decided, run.chosen
        superseded = frozenset(chosen[place] for place in run.superseded)
        put = [row._replace(identity=chosen.get(place, row.identity)) for place, row in enumerate(rows)]
    times = Counter(decided.values())
    last = {letter_id: rows[place] for place, letter_id in sorted(decided.items())}
    return MatchResult(
        [row for place, row in enumerate(put) if place not in decided],
        [
            RepeatedLetter(one, times[one], row.last_seen, row.run_id, row.source_table, row.position)
            for one, row in last.items()
        ],
        superseded,
    )


def _decided(connection: Connection, database: Database, rows: Sequence[LetterRow]) -> dict[int, int]:
    """Return, by the place of their row, the decided letters of records that have come again unchanged.

    Most causes have no decided letters, as their counts show, so that nothing is looked for. While a letter of the
    same identity is open, the record is counted there.
    """
    causes = _decided_causes(connection, {row.fingerprint for row in rows})
    asked = {
        place: row
        for place, row in enumerate(rows)
        if row.fingerprint in causes and row.error_type not in _NEVER_DECIDED
    }
    if not asked:
        return {}
    known = _known(connection, {row.identity for row in asked.values()})
    places = [
        place
        for place, row in asked.items()
        if known.get(row.identity) and not any(letter.is_open for letter in known[row.identity])
    ]
    same = _same(connection, database, [(place, rows[place]) for place in places])
    found = {}
    for place in places:
        letters_of = known[rows[place].identity]
        matches = [one for one in letters_of if one.is_decided and one.id in same[place]]
        if matches:
            letter = max(matches, key=lambda one: one.id)
            # What was reprocessed since is another record of the key, which has replaced this one.
            if not any(_is_written_after(other.written_at, letter) for other in letters_of):
                found[place] = letter.id
    return found


class _RowsOfRun:
    """The rows of a run, and the letter or the identity that each of them gets.

    First come the letters with the same content, whatever the order of the rows: as many letters as there are copies.
    What is left takes the identity of its key, unless another row of the run has it: its letter shows the newest
    content of the key.
    """

    def __init__(
        self,
        connection: Connection,
        database: Database,
        rows: Sequence[LetterRow],
        known_by: Sequence[LetterIdentity],
        *,
        by_run: bool,
        counts: RowThatCounts | None,
    ) -> None:
        self._by_run = by_run
        self._counts = counts
        self._keeps_every_row = counts is None and not by_run
        self._rows = rows
        self._known_by = known_by
        self.chosen: dict[int, bytes] = {}
        self.decided: dict[int, int] = {}
        self.superseded: set[int] = set()
        run = next((UUID(row.run_id) for row in rows if row.run_id is not None), None)
        # Rows of the same content, in their order.
        self._groups: dict[bytes, list[int]] = defaultdict(list)
        for place, one in enumerate(known_by):
            self._groups[one.content].append(place)
        known = KnownLetters(run, lambda identities: _known(connection, identities))
        known.load({identity for one in known_by for identity in one.certain})
        self._copies = Copies(
            known,
            {
                content: [_place(rows[place]) for place in places]
                for content, places in self._groups.items()
                if known_by[places[0]].is_numbered
            },
        )
        # Where a letter was seen in this run. Decided ones as well: another row of the run must not replace them.
        self._letters = {one.id: one.place for one in known.of_this_run()}
        self._identities = {one.identity: one.place for one in known.of_this_run()}
        self._open = {one.identity for listed in known.letters.values() for one in listed if one.is_open}
        equal = self._equal(connection, database, known)
        self._replaced = set() if counts is None else _replaced(connection, rows, equal)
        for first, listed in equal.items():
            self._match_content(self._groups[known_by[first].content], listed)
        keys = {one.id: one.written_key for listed in equal.values() for one in listed if one.written_at is not None}
        written = {
            place: keys[letter_id] or rows[place].sink_key
            for place, letter_id in self.decided.items()
            if letter_id in keys
        }
        if counts == "last":
            self._decide_again(written)
        elif counts == "first":
            self._keep_first(written, _written_keys(connection, rows, run))
        for content, places in self._groups.items():
            for place in places:
                if place not in self.chosen and place not in self.decided:
                    self.chosen[place] = self._free_identity(content, place)

    def _equal(self, connection: Connection, database: Database, known: KnownLetters) -> dict[int, list[KnownLetter]]:
        """Return the letters that have the content of rows, by the place of the first row of that content."""
        candidates = {
            places[0]: dict.fromkeys(
                [
                    *(identity for place in places for identity in self._known_by[place].certain),
                    *self._copies.near(content),
                ]
            )
            for content, places in self._groups.items()
        }
        asked = [
            (first, self._rows[first]._replace(identity=identity))
            for first, identities in candidates.items()
            for identity in identities
            if identity in known.letters
        ]
        same = _same(connection, database, asked)
        return {
            first: [
                letter
                for identity in candidates[first]
                for letter in known.letters.get(identity, ())
                if letter.id in letter_ids
            ]
            for first, letter_ids in same.items()
        }

    def _match_content(self, places: Sequence[int], letters: Sequence[KnownLetter]) -> None:
        """Give rows of the same content to the letters that have it: each open letter to one of them."""
        decided = sorted(
            (letter for letter in letters if letter.is_decided and letter.id not in self._replaced), key=_by_id
        )
        is_open = [letter for letter in letters if letter.is_open]
        if self._counts == "first" and any(one.written_at for one in decided):
            is_open = [one for one in is_open if not one.is_superseded]  # the equal row that was written is the one
        own = {self._letters[one.id]: one for one in is_open if one.id in self._letters}
        free = deque(one for one in is_open if one.id not in self._letters)
        for place in places:
            row = self._rows[place]
            # The letter of the same row first: a batch that was put before a crash is put again.
            letter = own.get(_place(row)) or (free.popleft() if free else None)
            if letter is not None:
                self.chosen[place] = letter.identity
            elif row.error_type not in _NEVER_DECIDED and (letter := self._newest(decided, row)) is not None:
                self.decided[place] = letter.id
            else:
                continue
            self._letters[letter.id] = self._identities[letter.identity] = _place(row)

    def _newest(self, decided: Sequence[KnownLetter], row: LetterRow) -> KnownLetter | None:
        """Return the newest of these letters that decides a row."""
        if not self._by_run:
            return decided[-1] if decided else None
        fit = (one for one in reversed(decided) if self._letters.get(one.id, _place(row)) == _place(row))
        return next(fit, None)

    def _decide_again(self, written: Mapping[int, str | None]) -> None:
        """Make rows that were written letters again where another row of their key is one: the last is to count.

        Args:
            written: by the place of rows whose letter was reprocessed, the key of what was written.
        """
        undecided = {row.sink_key for place, row in enumerate(self._rows) if place not in self.decided} - {None}
        for place, key in written.items():
            if key in undecided:
                del self.decided[place]

    def _keep_first(self, written: Mapping[int, str | None], keys: set[str]) -> None:
        """Supersede rows behind one of their key that was written; make that a letter again where it is not the first.

        Args:
            written: by the place of rows whose letter was reprocessed, the key of what was written.
            keys: those of which the run has met such a row in an earlier batch.
        """
        undecided: set[str] = set()
        for place, row in enumerate(self._rows):
            key = written.get(place, row.sink_key)
            if key is None:
                continue
            if place not in self.decided:
                if key in keys:
                    self.superseded.add(place)
                else:
                    undecided.add(key)
            elif place in written:
                if key in undecided:
                    del self.decided[place]
                else:
                    keys.add(key)

    def _free_identity(self, content: bytes, place: int) -> bytes:
        """Return the first identity of a row that no other row of the run has."""
        one, where = self._known_by[place], _place(self._rows[place])
        # Where the table chooses among the rows of a key, none of them may be lost behind another.
        if one.keys and one.is_key_sure and not self._keeps_every_row:
            key, *older = one.keys
            identity = next((identity for identity in older if identity in self._open), key)
            if self._take(identity, where):
                return identity
        if not one.is_numbered:
            return content if self._take(content, where) else one.position
        return next(identity for identity in self._copies.from_next(content) if self._take(identity, where))

    def _take(self, identity: bytes, where: Place) -> bool:
        return self._identities.setdefault(identity, where) == where


def _place(row: LetterRow) -> Place:
    return row.source_table, row.position


def _by_id(letter: KnownLetter) -> int:
    return letter.id


def _decided_causes(connection: Connection, fingerprints: Iterable[str]) -> set[str]:
    listed, column = list(fingerprints), cause_hours.c
    decided: set[str] = set()
    for start in range(0, len(listed), _AT_ONCE):
        some = column.fingerprint.in_(listed[start : start + _AT_ONCE])
        found = select(column.fingerprint).distinct().where(some, (column.reprocessed > 0) | (column.discarded > 0))
        decided.update(connection.execute(found).scalars())
    return decided


def _known(connection: Connection, identities: Iterable[bytes]) -> dict[bytes, list[KnownLetter]]:
    """Return the letters of identities."""
    listed, column = list(identities), letters.c
    known: dict[bytes, list[KnownLetter]] = defaultdict(list)
    for start in range(0, len(listed), _AT_ONCE):
        found = select(
            column.id,
            column.identity,
            column.status,
            column.superseded_at,
            column.settled_at,
            column.run_id,
            column.source_table,
            column.position,
            column.sink_key,
        ).where(column.identity.in_(listed[start : start + _AT_ONCE]))
        for row in connection.execute(found):
            # A row that was reprocessed and then overwritten by a newer one is to be decided about again.
            is_written = row.status == Status.REPROCESSED
            holds = row.status == Status.DISCARDED or (is_written and row.superseded_at is None)
            written_at, key = (row.settled_at, row.sink_key) if is_written else (None, None)
            known[row.identity].append(
                KnownLetter(
                    row.id,
                    row.identity,
                    row.status in OPEN,
                    row.superseded_at is not None,
                    holds,
                    written_at,
                    row.run_id,
                    row.source_table,
                    row.position,
                    key,
                )
            )
    return known


def _replaced(
    connection: Connection, rows: Sequence[LetterRow], equal: Mapping[int, Sequence[KnownLetter]]
) -> set[int]:
    """Return the reprocessed letters whose row is not the last of its key, or would not stay so.

    Another letter of the key was written later, or is open: its replay would write it over the row that comes again.
    """
    by_key: dict[tuple[str, str], list[KnownLetter]] = defaultdict(list)
    for place, listed in equal.items():
        for letter in listed:
            # By the key that was written: a line has one only since it was read, and an edit may have changed it.
            if letter.written_key is not None and letter.is_decided:
                by_key[rows[place].pipeline_name, letter.written_key].append(letter)
    asked, column = list(by_key), letters.c
    replaced: set[int] = set()
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        found = select(
            column.id, column.pipeline_name, column.sink_key, column.status, column.superseded_at, column.settled_at
        ).where(
            column.pipeline_name.in_({pipeline for pipeline, _ in some}),
            column.sink_key.in_({key for _, key in some}),
            column.status.in_((*OPEN, Status.REPROCESSED)),
        )
        for other in connection.execute(found):
            is_next = other.status in OPEN and other.superseded_at is None
            written_at = None if other.status in OPEN else other.settled_at
            for letter in by_key.get((other.pipeline_name, other.sink_key), ()):
                if other.id != letter.id and (is_next or _is_written_after(written_at, letter)):
                    replaced.add(letter.id)
    return replaced


def _written_keys(connection: Connection, rows: Sequence[LetterRow], run: UUID | None) -> set[str]:
    """Return the keys of these rows of which a row of this run is in the sink, by a replay of its letter."""
    listed, column = list({row.sink_key for row in rows if row.sink_key is not None}), letters.c
    keys: set[str] = set()
    for start in range(0, len(listed) if run is not None else 0, _AT_ONCE):
        found = select(column.sink_key).where(
            column.pipeline_name.in_({row.pipeline_name for row in rows}),
            column.sink_key.in_(listed[start : start + _AT_ONCE]),
            column.run_id == run,
            column.status == Status.REPROCESSED,
            column.superseded_at.is_(None),
        )
        keys.update(connection.execute(found).scalars())
    return keys


def _is_written_after(moment: datetime | None, letter: KnownLetter) -> bool:
    return moment is not None and letter.written_at is not None and moment > letter.written_at


def _same(connection: Connection, database: Database, asked: Sequence[tuple[int, LetterRow]]) -> dict[int, set[int]]:
    """Return the letters that have the identity, the record and the context of a row, by the place of the row."""
    same: dict[int, set[int]] = defaultdict(set)
    if asked:
        for number, letter_id in database.dialect.same_content(connection, [row for _, row in asked]):
            same[asked[number][0]].add(letter_id)
    return same
