"""Letters that may overwrite newer rows, since it is not known whether their keys were written after them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from redrive.dlq.edited_keys import StoredTexts
from redrive.dlq.prepare import as_key
from redrive.dlq.target import Answer, Target
from redrive.letters import Letter
from redrive.runs import RunStatus
from redrive.store.listed import among
from redrive.store.schema import letters, runs

_NEVER = datetime.min.replace(tzinfo=UTC)


class UnknownKeys:
    """Counts the letters of a replay that may overwrite newer rows.

    Runs mark the letters whose key they write. They cannot where the key is not known, where it came later than the
    run (by an import or an edit), where the sink had another key then, and where another pipeline
    wrote the row. Of a record that becomes several rows, a letter has the key of one.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ids: set[int] = set()
        self._latest: dict[str, datetime] = {}

    @property
    def count(self) -> int:
        """How many letters may overwrite newer rows."""
        return len(self._ids)

    def look(self, connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> None:
        """Find those of the selected letters of which the store can tell."""
        if not self._target.overwrites:
            return
        found = select(letters.c.id).where(or_(_is_unknown(), *self._of_others(connection)), *conditions)
        self._ids = set(connection.execute(found).scalars())
        column = runs.c
        started = select(column.pipeline_name, func.max(column.started_at)).where(_wrote())
        own = started.where(column.pipeline_name.in_(select(letters.c.pipeline_name).where(*conditions).distinct()))
        self._latest = {row[0]: row[1] for row in connection.execute(own.group_by(column.pipeline_name))}

    def add(
        self, connection: Connection, answered: Sequence[tuple[Letter, Answer]], *, stored_texts: StoredTexts
    ) -> None:
        """Count letters that have become other rows than the one of their key, if their pipeline has written since.

        Args:
            stored_texts: how a key may be stored.
        """
        late = {
            letter.id: (letter, answer.keys)
            for letter, answer in answered
            if answer.keys and self._latest.get(letter.pipeline, _NEVER) > letter.last_seen
        }
        if not late:
            return
        keyed = select(letters.c.id, letters.c.sink_key).where(among(letters.c.id, list(late)))
        known = {row.id: row.sink_key for row in connection.execute(keyed)}
        for letter, keys in late.values():
            # Of an edited letter the store knows since when it has its key.
            is_other = not letter.edited and known.get(letter.id) not in stored_texts(as_key(next(iter(keys))))
            if len(keys) > 1 or is_other:
                self._ids.add(letter.id)

    def _of_others(self, connection: Connection) -> Collection[ColumnElement[bool]]:
        """Return conditions of the letters after which another pipeline has written to the sink of the target."""
        column, target = runs.c, self._target
        same = or_(column.pipeline_name == target.pipeline, column.sink == target.sink)
        wrote = select(column.pipeline_name, func.max(column.updated_at)).where(same, _wrote())
        return [
            and_(letters.c.pipeline_name != row[0], letters.c.last_seen < row[1])
            for row in connection.execute(wrote.group_by(column.pipeline_name))
        ]


def _is_unknown() -> ColumnElement[bool]:
    """Whether the pipeline of a letter has written rows after it and before its key was known."""
    column, run = letters.c, runs.c
    later = select(run.run_id).where(run.pipeline_name == column.pipeline_name, _wrote())
    without_key = and_(column.sink_key.is_(None), later.where(run.started_at > column.last_seen).exists())
    before = later.where(run.started_at <= column.key_since, run.updated_at > column.last_seen)
    # A run by another key of the sink has written the row, and could not know the letter by it.
    own = select(run.key_fields).where(run.run_id == column.run_id).scalar_subquery()
    by_other_key = later.where(run.started_at > column.last_seen, run.key_fields != own.correlate(letters))
    return or_(without_key, and_(column.key_since.is_not(None), before.exists()), by_other_key.exists())


def _wrote() -> ColumnElement[bool]:
    # A run that was killed may have written a batch that it did not count.
    return or_(runs.c.rows_written > 0, runs.c.status == RunStatus.ABANDONED)
