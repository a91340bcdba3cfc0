"""Letters that may overwrite newer rows, since it is not known whether their keys were written after them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from redrive.dlq.target import Answer, Target
from redrive.letters import Letter
from redrive.runs import RunStatus
from redrive.store.schema import letters, runs

_NEVER = datetime.min.replace(tzinfo=UTC)


class UnknownKeys:
    """Counts the letters of a replay that may overwrite newer rows.

    Runs mark the letters whose key they write. They cannot where the key is not known, where it came later than the
    run (by an import or an edit), and where another pipeline wrote the row. Of a record that becomes several rows, a
    letter has the key of one.
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

    def add(self, letter: Letter, answer: Answer) -> None:
        """Count a letter whose record has become several rows, if its pipeline has written rows since."""
        is_late = self._latest.get(letter.pipeline, _NEVER) > letter.last_seen
        if is_late and answer.keys is not None and len(answer.keys) > 1:
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
    return or_(without_key, and_(column.key_since.is_not(None), before.exists()))


def _wrote() -> ColumnElement[bool]:
    # A run that was killed may have written a batch that it did not count.
    return or_(runs.c.rows_written > 0, runs.c.status == RunStatus.ABANDONED)
