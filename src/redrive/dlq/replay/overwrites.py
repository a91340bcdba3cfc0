"""Letters that may overwrite newer rows: it is not known whether their key was written since, by a run or a replay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, and_, case, func, literal, or_, select

from redrive.dlq.edit.keys import StoredTexts
from redrive.dlq.insert.row_builder import as_key
from redrive.dlq.replay.target import Target, TargetAnswer
from redrive.model.letters import Letter
from redrive.model.runs import RunStatus
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import letters, replayed_rows, runs
from redrive.store.sql import in_ids


class UnknownKeys:
    """Counts the letters of a replay that may overwrite newer rows.

    Runs mark the letters whose key they write. They cannot where the key is not known, where it came later than the
    run (by an import or an edit), where the sink had another key then, and where another pipeline wrote the row. The
    same goes for the rows of newer letters that a replay has written. Of a record that becomes several rows, a letter
    has the key of one.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ids: set[int] = set()
        self._latest: dict[str, datetime] = {}
        self._replayed: datetime | None = None

    @property
    def count(self) -> int:
        """Return the number of letters that may overwrite newer rows."""
        return len(self._ids)

    def look(self, connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> None:
        """Find those of the selected letters that the store can identify."""
        if not self._target.overwrites:
            return
        pipelines = select(letters.c.pipeline_name).where(*conditions).distinct()
        column = runs.c
        wrote = select(column.pipeline_name, func.max(_last_written())).where(_wrote())
        own = wrote.where(column.pipeline_name.in_(pipelines)).group_by(column.pipeline_name)
        self._latest = {row[0]: row[1] for row in connection.execute(own)}
        self._replayed = connection.execute(
            select(func.max(replayed_rows.c.newest_letter)).where(self._is_into_sink())
        ).scalar()
        late = [self._is_unknown(), self._is_before_replayed(), self._is_before_others(connection)]
        found = select(letters.c.id).where(or_(*late), *conditions)
        self._ids = set(connection.execute(found).scalars())

    def add(
        self, connection: Connection, answered: Sequence[tuple[Letter, TargetAnswer]], *, stored_texts: StoredTexts
    ) -> None:
        """Count letters that have become other rows than the one of their key, if their pipeline has written since.

        Args:
            stored_texts: how a key may be stored.
        """
        late = {
            letter.id: (letter, answer.keys)
            for letter, answer in answered
            if answer.keys and self._is_written_since(letter)
        }
        if not late:
            return
        keyed = select(letters.c.id, letters.c.sink_key).where(in_ids(letters.c.id, list(late)))
        known = {row.id: row.sink_key for row in connection.execute(keyed)}
        for letter, keys in late.values():
            # Of an edited letter the store knows since when it has its key.
            is_other = not letter.edited and known.get(letter.id) not in stored_texts(as_key(next(iter(keys))))
            if len(keys) > 1 or is_other:
                self._ids.add(letter.id)

    def _is_written_since(self, letter: Letter) -> bool:
        """Return whether rows were written after a letter, by its pipeline or a replay of newer letters."""
        latest = (self._latest.get(letter.pipeline), self._replayed)
        return any(moment is not None and moment >= letter.last_seen for moment in latest)

    def _is_unknown(self) -> ColumnElement[bool]:
        """Return whether the pipeline of a letter has written rows after it and before its key was known."""
        column, run = letters.c, runs.c
        abandoned = select(run.run_id).where(run.status == RunStatus.ABANDONED)
        later = [and_(column.pipeline_name == name, column.last_seen <= at) for name, at in self._latest.items()]
        without_key = and_(column.sink_key.is_(None), or_(*later, column.run_id.in_(abandoned)))
        wrote = select(run.run_id).where(run.pipeline_name == column.pipeline_name, _wrote())
        # Of the run of an edited letter, rows that came before it as well: its new key may be that of one of them.
        since = or_(_last_written() >= column.last_seen, run.updated_at > column.last_seen)
        before = and_(column.key_since.is_not(None), wrote.where(run.started_at <= column.key_since, since).exists())
        # A run by another key of the sink has written the row, and could not know the letter by it.
        own = select(run.key_fields).where(run.run_id == column.run_id).scalar_subquery()
        by_other_key = wrote.where(run.started_at > column.last_seen, run.key_fields != own.correlate(letters))
        return or_(without_key, before, by_other_key.exists())

    def _is_into_sink(self) -> ColumnElement[bool]:
        """Return whether a replay has written to the sink of the target, or rows of the pipeline of the target."""
        column, target = replayed_rows.c, self._target
        return or_(
            column.pipeline_name == target.pipeline, column.letters_of == target.pipeline, column.sink == target.sink
        )

    def _is_before_replayed(self) -> ColumnElement[bool]:
        """Return whether the key of a letter was not known when a replay wrote rows of newer letters."""
        column, replayed = letters.c, replayed_rows.c
        newer = select(replayed.sink).where(self._is_into_sink(), replayed.newest_letter >= column.last_seen)
        return or_(
            and_(column.sink_key.is_(None), newer.exists()),
            newer.where(replayed.written_at <= column.key_since).exists(),
        )

    def _is_before_others(self, connection: Connection) -> ColumnElement[bool]:
        """Return whether another pipeline, or a replay of its letters, has written to the sink of the target since."""
        column, target, replayed = runs.c, self._target, replayed_rows.c
        same = or_(column.pipeline_name == target.pipeline, column.sink == target.sink)
        wrote = select(column.pipeline_name, func.max(_last_written())).where(same, _wrote())
        of_runs = [
            and_(letters.c.pipeline_name != row[0], letters.c.last_seen <= row[1])
            for row in connection.execute(wrote.group_by(column.pipeline_name))
        ]
        by_replay = select(replayed.sink).where(
            self._is_into_sink(),
            replayed.letters_of != letters.c.pipeline_name,
            replayed.pipeline_name != letters.c.pipeline_name,
            replayed.written_at >= letters.c.last_seen,
        )
        return or_(*of_runs, by_replay.exists())


def _last_written() -> ColumnElement[datetime]:
    """Return when a run last wrote rows, or may have done so."""
    column = runs.c
    return case(
        (column.status == RunStatus.RUNNING, literal(datetime.now(UTC), column.updated_at.type)),
        (column.status == RunStatus.ABANDONED, func.coalesce(column.ended_at, column.updated_at)),
        else_=func.coalesce(column.written_at, column.updated_at),
    )


def _wrote() -> ColumnElement[bool]:
    return or_(runs.c.rows_written > 0, runs.c.written_at.is_not(None), _is_unsaved())


def _is_unsaved() -> ColumnElement[bool]:
    """Return whether a run is under way, or was killed: it may have written a batch that it did not count."""
    return runs.c.status.in_((RunStatus.RUNNING, RunStatus.ABANDONED))


def note_replayed(
    connection: Connection,
    dialect: Dialect,
    written: Sequence[tuple[Letter, TargetAnswer]],
    *,
    pipeline: str | None,
    sink: str | None,
) -> None:
    """Note that rows of these letters were written.

    Args:
        pipeline: that of the target; None where it is a function.
        sink: that of the target, as runs have it; None where it is not known.
    """
    now = datetime.now(UTC)  # by the clock of letters
    newest: dict[str, datetime] = {}
    for letter, _ in written:
        # What an operator has edited is newer than any record that was received before.
        moment = now if letter.edited else letter.last_seen
        newest[letter.pipeline] = max(newest.get(letter.pipeline, moment), moment)
    if not newest:
        return
    column, insert = replayed_rows.c, dialect.insert(replayed_rows)
    given = insert.excluded
    later = case((given.newest_letter > column.newest_letter, given.newest_letter), else_=column.newest_letter)
    upsert = insert.on_conflict_do_update(
        index_elements=[column.letters_of, column.pipeline_name, column.sink],
        set_={"written_at": given.written_at, "newest_letter": later},
    )
    rows = [
        {
            "letters_of": name,
            "pipeline_name": pipeline or name,
            "sink": sink or "",
            "written_at": now,
            "newest_letter": moment,
        }
        for name, moment in sorted(newest.items())
    ]
    connection.execute(upsert, rows)
