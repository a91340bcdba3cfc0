"""The keys of a pipeline's letters: the writer of a run marks a letter as superseded when it writes a row of its key.

A replay of a superseded letter would overwrite new data with old, so by default a replay leaves it out. If a replay has
claimed a letter, the run waits: the replay writes older data, which must be in the sink before the row of the run.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, select, update

from redrive._internal.shutdown import Cancellation
from redrive.dlq.edit.keys import KeysOf, NormalizedKey, StoredTexts, find_edited, respell, respelled
from redrive.dlq.insert.identity import PREFIX
from redrive.dlq.insert.row_builder import as_key, key_text, storable
from redrive.dlq.replay.claims import Claims
from redrive.errors import RunStopped
from redrive.model.calls import Kind
from redrive.model.letters import NewLetter
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.sink import ComparesKeys, Sink
from redrive.store.database import Database
from redrive.store.schema import letters

MAX_LETTERS = 200_000
"""Maximum number of letters whose keys are read, the newest first. The keys of older letters are not marked."""
_TEXTS_PER_STATEMENT = 500
_CLAIM_RETRY = 0.1
"""Seconds between two attempts to claim letters that a replay has claimed."""
_COMMITTED_WITHIN = timedelta(minutes=2)
"""Maximum time from the time stamp of an import or an edit to its commit; runs see it only after the commit."""

_NO_KEYS = (type(None), list, dict)

Place = tuple[str | None, str]
"""The source and the position of a rejected row."""
Order = tuple[int, int]
"""The order of a row in its batch: its piece, and its place there."""


class LetterKeys:
    """The keys in the sink of all letters of a pipeline that are not superseded, whatever their status.

    Reprocessed and discarded letters are included, because an operator may reopen them.
    """

    def __init__(
        self,
        database: Database,
        pipeline: str,
        run_id: UUID,
        key: Sequence[str],
        *,
        stored_texts: StoredTexts = lambda text: (text,),
        keys_of: KeysOf = lambda records: [None] * len(records),
    ) -> None:
        """Read the keys of the letters of a pipeline.

        Args:
            stored_texts: Returns the forms in which a key or a position may be stored: unchanged, and as a digest if
                it was masked.
            keys_of: Returns the keys of edited records as the sink compares them.
        """
        self._database = database
        self._pipeline = pipeline
        self._run_id = run_id
        self._key = key
        self._stored_texts = stored_texts
        self._keys_of = keys_of
        self._edits_since: datetime | None = None  # letters edited before have their key in the sink
        self._read_at = datetime.min.replace(tzinfo=UTC)
        self._keys: set[str] = set()
        self._database.read(self._read_keys)
        self._of_this_run: set[str] = set()

    def refresh(self) -> None:
        """Add the keys of letters that were imported or edited since the last call."""
        edited = self._database.read(self._read_changes)
        if not edited:
            return
        keys, stored_texts = self._keys_of([row.edited_record for row in edited]), self._stored_texts

        def work(connection: Connection) -> list[NormalizedKey]:
            now = self._database.dialect.now(connection)
            changes = respelled(connection, edited, keys, stored_texts=stored_texts, now=now)
            respell(connection, changes)
            return changes

        self._keys.update(change.key for change in self._database.write(work))

    def _read_keys(self, connection: Connection) -> None:
        self._read_at = self._database.dialect.now(connection)
        self._keys.update(_fetch_keys(connection, self._pipeline))

    def _read_changes(self, connection: Connection) -> Sequence[Any]:
        since, self._read_at = self._read_at - _COMMITTED_WITHIN, self._database.dialect.now(connection)
        self._keys.update(_fetch_keys(connection, self._pipeline, letters.c.key_since > since))
        edited = find_edited(connection, self._pipeline, self._edits_since)
        self._edits_since = self._read_at - _COMMITTED_WITHIN
        return edited

    def find_keys_with_letters(self, rows: Outgoing) -> frozenset[str]:
        """Return those keys of the rows for which there is a letter."""
        if not self._keys and not self._of_this_run:
            return frozenset()
        keys = {key for key in self._texts(rows) if key is not None}
        with_letters = {key for key in keys if key in self._keys or key in self._of_this_run}
        if any(key.startswith(PREFIX) for key in self._keys):
            with_letters |= {key for key in keys if any(stored in self._keys for stored in self._stored_texts(key))}
        return frozenset(with_letters)

    def last_places(self, rows: Outgoing) -> dict[str, int]:
        """Return the keys for which there is a letter, each with the index in the batch of its last row."""
        keys = self.find_keys_with_letters(rows)
        return {key: place for key, place in zip(self._texts(rows), rows.origin, strict=True) if key in keys}

    def places(self, rows: Outgoing, keys: Collection[str]) -> list[int]:
        """Return the indexes of the rows that have these keys."""
        return [place for place, key in enumerate(self._texts(rows)) if key in keys]

    def written_later(
        self, rows: Outgoing, rejected: Mapping[int, NewLetter], *, or_before: bool = False
    ) -> frozenset[Place]:
        """Return the rejected rows for which a later row of the same batch and key was written.

        Args:
            rejected: Letters of this batch, by the index of their row.
            or_before: Whether earlier rows of the key count as well.
        """
        letters_by_place = {place: letter for place, letter in rejected.items() if letter.sink_key is not None}
        if not letters_by_place:
            return frozenset()
        last = dict(zip(self._texts(rows), rows.origin, strict=True))
        return frozenset(
            place_of(letter)
            for place, letter in letters_by_place.items()
            if letter.sink_key in last and (or_before or last[letter.sink_key] > place)
        )

    def claim(self, keys: Collection[str], claims: Claims, *, patience: float) -> None:
        """Claim the letters of these keys, so that no replay sends them. Wait for letters that a replay has claimed.

        Raises:
            RunStopped: A replay has not released the letters within `patience` seconds.
        """
        ends, cancellation = time.monotonic() + patience, Cancellation.current()
        while claimed_elsewhere := self._database.write(lambda connection: self._claim(connection, keys, claims)):
            if cancellation.requested or time.monotonic() >= ends:
                raise RunStopped(
                    f"a replay has claimed {claimed_elsewhere:,} letters of pipeline {self._pipeline!r} whose rows "
                    "this run writes; run it again when the replay is done",
                    kind=Kind.TRANSIENT,
                )
            cancellation.wait(_CLAIM_RETRY)

    def _claim(self, connection: Connection, keys: Collection[str], claims: Claims) -> int:
        """Claim the letters of these keys; return the number of letters that a replay has claimed."""
        ids: list[int] = []
        for part in _parts(self._stored(keys)):
            ids += connection.execute(select(letters.c.id).where(*self._not_superseded(part))).scalars()
        return len(ids) - len(claims.take(connection, sorted(ids))) if ids else 0

    def mark(self, connection: Connection, keys: Collection[str], now: datetime) -> None:
        """Mark the letters of these keys as superseded, in the transaction that moves the checkpoint."""
        for part in _parts(self._stored(keys)):
            connection.execute(update(letters).where(*self._not_superseded(part)).values(superseded_at=now))

    def mark_rows_of_this_run(self, connection: Connection, places: Collection[Place], now: datetime) -> None:
        """Mark letters of rows that this run has rejected as superseded, by their source and position."""
        column = letters.c
        mine = (column.run_id == self._run_id) & column.superseded_at.is_(None)
        by_source: dict[str | None, list[str]] = defaultdict(list)
        for source, position in places:
            by_source[source] += self._stored_texts(storable(position))
        for source, positions in by_source.items():
            same = column.source_table.is_(None) if source is None else column.source_table == storable(source)
            for part in _parts(positions):
                connection.execute(
                    update(letters).where(mine, same, column.position.in_(part)).values(superseded_at=now)
                )

    def mark_edited(
        self, connection: Connection, written: Mapping[str, Order], rejected: Mapping[Place, Order], now: datetime
    ) -> None:
        """Mark edited letters of this batch's rejected rows as superseded if a later row has the edited key.

        The row of such a letter was rejected again, so the letter is newer than rows that were written before it.

        Args:
            written: The written keys, each with the order of its last row.
            rejected: The rejected rows, each with its order.
        """
        if not written or not rejected:
            return
        column = letters.c
        last = {stored: order for key, order in written.items() for stored in self._stored([key])}
        seen = {
            (None if source is None else storable(source), stored): order
            for (source, position), order in rejected.items()
            for stored in self._stored_texts(storable(position))
        }
        edited = select(column.id, column.sink_key, column.source_table, column.position)
        edited = edited.where(column.run_id == self._run_id, column.received_key.is_not(None))
        for part in _parts(list(last)):
            for row in connection.execute(edited.where(*self._not_superseded(part))).all():
                order = seen.get((row.source_table, row.position))
                if order is not None and last[row.sink_key] > order:
                    connection.execute(update(letters).where(column.id == row.id).values(superseded_at=now))

    def add(self, rejected: Iterable[NewLetter]) -> None:
        """Add the keys of the letters of a batch that was saved."""
        self._of_this_run.update(letter.sink_key for letter in rejected if letter.sink_key is not None)

    def _not_superseded(self, stored_keys: Sequence[str]) -> list[Any]:
        column = letters.c
        return [
            column.pipeline_name == self._pipeline,
            column.sink_key.in_(stored_keys),
            column.superseded_at.is_(None),
        ]

    def _stored(self, keys: Collection[str]) -> list[str]:
        return [stored for key in keys for stored in self._stored_texts(as_key(key))]

    def _texts(self, rows: Outgoing) -> Sequence[str | None]:
        rows = rows.keyed
        columns = [rows.values(name) for name in self._key]
        if len(columns) == 1:
            return [as_key(part) for part in columns[0]]
        return [key_text(parts) for parts in zip(*columns, strict=True)]


def compared_texts(sink: Sink, records: Sequence[Any], *, of_text: bool) -> list[str | None]:
    """Return the keys of records as the sink compares them and letters store them; None for a record without key."""
    compared: list[str | None] = [None] * len(records)
    keys = {
        place: tuple(record.get(name) for name in sink.key)
        for place, record in enumerate(records)
        if isinstance(record, Mapping)
    }
    scalars = {place: key for place, key in keys.items() if not any(isinstance(part, _NO_KEYS) for part in key)}
    rows = Outgoing(sink.key, list(scalars), tuples=list(scalars.values()), of_text=of_text)
    if isinstance(sink, ComparesKeys) and len(rows):
        rows.keys = sink.compared_keys(rows)
    keyed = rows.keyed
    texts = [key_text(parts) for parts in zip(*(keyed.values(name) for name in sink.key), strict=True)]
    for place, text in zip(scalars, texts, strict=True):
        compared[place] = text
    return compared


def place_of(letter: NewLetter) -> Place:
    """Return the source and the position of a rejected row."""
    return letter.source, str(letter.position)


def _fetch_keys(connection: Connection, pipeline: str, *conditions: ColumnElement[bool]) -> list[str]:
    column = letters.c
    wanted = (
        select(column.sink_key)
        .where(column.pipeline_name == pipeline)
        .where(column.sink_key.is_not(None), column.superseded_at.is_(None), *conditions)
        .order_by(column.id.desc())
        .limit(MAX_LETTERS)
    )
    return list(connection.execute(wanted).scalars())


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _TEXTS_PER_STATEMENT):
        yield values[start : start + _TEXTS_PER_STATEMENT]
