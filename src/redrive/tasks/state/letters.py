"""Dead letters of tasks: insert them when tasks die, and close them when the tasks succeed."""

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
from redrive.tasks.state.run_handle import FlowRunHandle

if TYPE_CHECKING:
    from redrive.tasks.state.apply_results import SiblingStop, TaskResult

_NAMES_PER_STATEMENT = 10_000  # names in one statement: a database takes no more than some ten thousand parameters


def put_letters(
    run: FlowRunHandle,
    connection: Connection,
    dead: Iterable[TaskResult],
    sibling_stops: Sequence[tuple[SiblingStop, int]],
) -> None:
    """Insert a letter for each task that died, and one for all untried children of each stopped fan-out."""
    new = [_letter(run, task_result) for task_result in dead]
    new += [_untried_letter(run, stop, untried) for stop, untried in sibling_stops if untried]
    run.store.dlq.put_within(connection, new, pipeline=run.flow, run_id=run.run_id)


def mark_reprocessed_letters(
    run: FlowRunHandle, connection: Connection, now: datetime, recovered: Iterable[TaskResult]
) -> None:
    """Mark the letters of tasks that have succeeded as reprocessed."""
    mark_reprocessed_named(run, connection, now, [_task_name(run, task_result) for task_result in recovered])


def mark_reprocessed_named(run: FlowRunHandle, connection: Connection, now: datetime, keys: Sequence[str]) -> None:
    """Mark the letters of tasks as reprocessed, by task name."""
    note = "the task succeeded when it was tried again"
    resolve_named(connection, run.run_id, keys, now, target=Status.REPROCESSED, note=note)


def resolve_named(
    connection: Connection, run_id: UUID, names: Sequence[str], now: datetime, *, target: Status, note: str
) -> None:
    """Set the status of the letters of tasks, by task name."""
    for start in range(0, len(names), _NAMES_PER_STATEMENT):
        task_letters = (letters.c.run_id == run_id) & letters.c.source_key.in_(
            names[start : start + _NAMES_PER_STATEMENT]
        )
        settle_within(connection, task_letters, target=target, note=note, now=now)


def _letter(run: FlowRunHandle, task_result: TaskResult) -> NewLetter:
    claim = task_result.claim
    return NewLetter(
        record={
            "task": _task_name(run, task_result),
            "input": None if claim.input is None else decode(claim.input),
            "params": run.params_of(run.shape.places[claim.node].name),
        },
        error=task_result.next.error or "",
        key=_task_name(run, task_result),
        source=_source(run),
        error_type=ErrorType.TASK,
        attempts=claim.attempt,
    )


def _untried_letter(run: FlowRunHandle, stop: SiblingStop, untried: int) -> NewLetter:
    name = run.shape.places[stop.node].name
    return NewLetter(
        record={"task": name, "untried": untried, "like": _task_name(run, stop.like), "params": run.params_of(name)},
        error=stop.like.next.error or "",
        key=name,
        source=_source(run),
        error_type=ErrorType.TASK,
        attempts=1,
    )


def _source(run: FlowRunHandle) -> str:
    """Return the source of a letter: a task that died in two runs has two letters, one for each run."""
    return f"run {run.run_id}"


def _task_name(run: FlowRunHandle, task_result: TaskResult) -> str:
    return shown_name(run.shape.places[task_result.claim.node].name, task_result.claim.child)
