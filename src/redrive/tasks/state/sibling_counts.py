"""Counts of a fan-out's children in the store, for an executor that has not seen all of their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, select

from redrive.model.calls import Kind
from redrive.model.tasks import State
from redrive.store.schema import task_runs, tasks
from redrive.tasks.executor.decide import LOST, SUSPECT, AttemptHistory, Transition
from redrive.tasks.executor.sibling_limiter import CauseCount
from redrive.tasks.state.apply_results import TaskResult
from redrive.tasks.state.claims import ClaimedTask
from redrive.tasks.state.run_handle import RunHandle


@dataclass(slots=True)
class SiblingCounts:
    """Successes and failures of a fan-out's children since the last operator action."""

    successes: int = 0
    causes: dict[str, CauseCount] = field(default_factory=dict)
    died: dict[str, TaskResult] = field(default_factory=dict)
    """For each cause, the result of one child that died of it."""


def count_siblings(run: RunHandle, connection: Connection, node: int) -> SiblingCounts:
    """Count the children of a fan-out by cause of failure."""
    children = (tasks.c.run_id == run.run_id) & (tasks.c.node == node) & (tasks.c.child >= 0)
    counts = SiblingCounts(_count(connection, children & (tasks.c.state == State.SUCCESS)))
    decided_at = select(task_runs.c.updated_at).where(task_runs.c.run_id == run.run_id).scalar_subquery()
    died = (tasks.c.state == State.DEAD_LETTER) & (tasks.c.attempt > 0) & (tasks.c.ended_at > decided_at)
    died &= tasks.c.fingerprint != LOST  # the death of an executor does not concern siblings
    failing = (
        tasks.c.state.in_([State.RETRYING, State.RUNNING]) & tasks.c.kind.in_(list(SUSPECT)) & (tasks.c.failures > 0)
    )
    by_cause: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(select(tasks).where(children, died | failing)):
        by_cause.setdefault(row.fingerprint or "", []).append(row)
    for cause, rows in by_cause.items():
        dead = [row for row in rows if row.state == State.DEAD_LETTER]
        first_started_at = min(row.started_at for row in rows)
        survived = _count(
            connection, children & (tasks.c.state == State.SUCCESS) & (tasks.c.ended_at > first_started_at)
        )
        failing_ids = {row.id for row in rows if row.state != State.DEAD_LETTER}
        only_inputs = all(row.kind == Kind.ROW for row in dead) and bool(dead)
        counts.causes[cause] = CauseCount(len(dead), failing_ids, survived, only_inputs)
        if dead:
            counts.died[cause] = _as_task_result(dead[-1])
    return counts


def _count(connection: Connection, condition: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(tasks).where(condition)).scalar_one()


def _as_task_result(row: Row[Any]) -> TaskResult:
    past = AttemptHistory(row.failures, row.same, row.fingerprint, row.wait)
    claim = ClaimedTask(row.id, row.node, row.child, row.attempt, past, row.input, row.note is not None)
    kind = None if row.kind is None else Kind(row.kind)
    transition = Transition(state=State.DEAD_LETTER, fingerprint=row.fingerprint, error=row.error, kind=kind)
    return TaskResult(claim, transition)
