"""Letters whose row was written after all: a later run, or a later row of the same run, has the same key.

A replay of such a letter would write old data over new, so it is marked, and a replay leaves it out unless told
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, select, update

from redrive.dlq.prepare import as_key
from redrive.letters import NewLetter
from redrive.rows.batch import Outgoing
from redrive.rows.prepare import key_text
from redrive.store.database import Database
from redrive.store.schema import letters

MOST = 200_000
"""Letters that are looked at, the newest: a pipeline with more of them has other problems."""
_AT_ONCE = 500

Place = tuple[str, str]
"""The key and the position of a rejected row."""


class OpenLetters:
    """The letters of a pipeline, by the key of their row in the sink. Settled ones too: they may be reopened."""

    def __init__(
        self,
        database: Database,
        pipeline: str,
        run_id: UUID,
        key: Sequence[str],
        stored_texts: Callable[[str], tuple[str, ...]] = lambda text: (text,),
    ) -> None:
        """Read the letters of a pipeline.

        Args:
            stored_texts: how a key or a position may be stored: as it is, or as a digest where its record was masked.
        """
        self._run_id = run_id
        self._key = key
        self._stored_texts = stored_texts
        self._is_masked = len(stored_texts("")) > 1
        self._ids: dict[str, list[int]] = {}
        self._of_this_run: set[str] = set()
        for letter_id, sink_key in database.read(lambda connection: _find(connection, pipeline)):
            self._ids.setdefault(sink_key, []).append(letter_id)

    def written(self, rows: Outgoing) -> frozenset[str]:
        """Return the keys of these rows, which are in the sink now, that have a letter."""
        if not self._ids and not self._of_this_run:
            return frozenset()
        keys = set(self._texts(rows))
        found = {key for key in keys if key in self._ids or key in self._of_this_run}
        if self._is_masked:
            found |= {key for key in keys if key and any(stored in self._ids for stored in self._stored_texts(key))}
        return frozenset(found)

    def written_later(self, rows: Outgoing, rejected: Mapping[int, NewLetter]) -> frozenset[Place]:
        """Return the rejected rows for which a later row of the same batch and key was written.

        Args:
            rejected: letters of this batch, by the place of their row.
        """
        keyed = {place: letter for place, letter in rejected.items() if letter.sink_key is not None}
        if not keyed:
            return frozenset()
        last = dict(zip(self._texts(rows), rows.origin, strict=True))
        return frozenset(
            (str(letter.sink_key), str(letter.position))
            for place, letter in keyed.items()
            if last.get(letter.sink_key, place) > place
        )

    def mark(self, connection: Connection, keys: Collection[str], now: datetime) -> None:
        """Mark the letters of these keys, in the transaction that moves the checkpoint."""
        keys = [stored for key in keys for stored in self._stored_texts(key)]
        ids = [one for key in keys for one in self._ids.get(key, ())]
        _mark(connection, letters.c.id, ids, (), now)
        _mark(connection, letters.c.sink_key, keys, (letters.c.run_id == self._run_id,), now)

    def mark_here(self, connection: Connection, places: Collection[Place], now: datetime) -> None:
        """Mark letters of this run, each by its key and position."""
        column = letters.c
        mine = (column.run_id == self._run_id) & column.superseded_at.is_(None)
        for sink_key, position in places:
            one = column.sink_key.in_(self._stored_texts(sink_key)) & column.position.in_(self._stored_texts(position))
            connection.execute(update(letters).where(mine, one).values(superseded_at=now))

    def add(self, rejected: Iterable[NewLetter]) -> None:
        """Remember the letters of a batch that was saved."""
        self._of_this_run.update(letter.sink_key for letter in rejected if letter.sink_key is not None)

    def _texts(self, rows: Outgoing) -> Sequence[str | None]:
        rows = rows.keyed
        columns = [rows.values(name) for name in self._key]
        if len(columns) == 1:
            return [as_key(part) for part in columns[0]]
        return [key_text(parts) for parts in zip(*columns, strict=True)]


def _find(connection: Connection, pipeline: str) -> list[tuple[int, str]]:
    column = letters.c
    wanted = (
        select(column.id, column.sink_key)
        .where(column.pipeline_name == pipeline)
        .where(column.sink_key.is_not(None), column.superseded_at.is_(None))
        .order_by(column.id.desc())
        .limit(MOST)
    )
    return [(row.id, row.sink_key) for row in connection.execute(wanted)]


def _mark(
    connection: Connection,
    column: ColumnElement[object],
    values: Sequence[object],
    more: Sequence[ColumnElement[bool]],
    now: datetime,
) -> None:
    unmarked = letters.c.superseded_at.is_(None)
    for start in range(0, len(values), _AT_ONCE):
        some = column.in_(values[start : start + _AT_ONCE])
        connection.execute(update(letters).where(some, unmarked, *more).values(superseded_at=now))
