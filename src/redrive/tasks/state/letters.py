"""Dead tasks as letters: so that they stand among everything else that was quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import Connection

from redrive.dlq.status import settle_within
from redrive.model.letters import ErrorType, NewLetter, Status
from redrive.store.encoding import decode
from redrive.store.repositories.tasks import shown_name
from redrive.store.schema import letters
from redrive.tasks.state.run_handle import RunHandle

if TYPE_CHECKING:
    from redrive.tasks.state.apply_results import SiblingStop, TaskResult

_AT_ONCE = 10_000  # names in one statement: a database takes no more than some ten thousand parameters


def put_letters(
    place: RunHandle, connection: Connection, dead: Iterable[TaskResult], storms: Sequence[tuple[SiblingStop, int]]
) -> None:
    """A letter for each task that died, and one for all those that a storm kept from being tried."""
    new = [_letter(place, one) for one in dead]
    new += [_of_many(place, storm, untried) for storm, untried in storms if untried]
    place.store.dlq.put_within(connection, new, pipeline=place.flow, run_id=place.run_id)


def settle_letters(place: RunHandle, connection: Connection, now: datetime, healed: Iterable[TaskResult]) -> None:
    """The letters of tasks that have succeeded after all."""
    settle_as_done(place, connection, now, [_name(place, one) for one in healed])


def settle_as_done(place: RunHandle, connection: Connection, now: datetime, keys: Sequence[str]) -> None:
    """The same, by the tasks' names."""
    note = "the task succeeded when it was tried again"
    settle_named(connection, place.run_id, keys, now, target=Status.REPROCESSED, note=note)


def settle_named(
    connection: Connection, run_id: UUID, names: Sequence[str], now: datetime, *, target: Status, note: str
) -> None:
    """Settle the letters of tasks, by the tasks' names."""
    for start in range(0, len(names), _AT_ONCE):
        theirs = (letters.c.run_id == run_id) & letters.c.source_key.in_(names[start : start + _AT_ONCE])
        settle_within(connection, theirs, target=target, note=note, now=now)


def _letter(place: RunHandle, one: TaskResult) -> NewLetter:
    claim = one.claim
    return NewLetter(
        record={
            "task": _name(place, one),
            "input": None if claim.input is None else decode(claim.input),
            "params": place.params_of(place.shape.places[claim.node].name),
        },
        error=one.next.error or "",
        key=_name(place, one),
        source=_source(place),
        error_type=ErrorType.TASK,
        attempts=claim.attempt,
    )


def _of_many(place: RunHandle, storm: SiblingStop, untried: int) -> NewLetter:
    name = place.shape.places[storm.node].name
    return NewLetter(
        record={"task": name, "untried": untried, "like": _name(place, storm.like), "params": place.params_of(name)},
        error=storm.like.next.error or "",
        key=name,
        source=_source(place),
        error_type=ErrorType.TASK,
        attempts=1,
    )


def _source(place: RunHandle) -> str:
    """Where it comes from: a task that died in two runs is two letters, which are decided about one by one."""
    return f"run {place.run_id}"


def _name(place: RunHandle, one: TaskResult) -> str:
    return shown_name(place.shape.places[one.claim.node].name, one.claim.child)
