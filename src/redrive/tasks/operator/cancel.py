"""Cancellation of single tasks: a waiting task fails at once, a running task is killed by its executor.

A cancelled task is FAILED for good: downstream tasks follow their trigger rules, and only an operator's retry runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, select, update

from redrive.dlq.status import actor
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus, State
from redrive.store.repositories.tasks import shown_name
from redrive.store.schema import task_runs, tasks
from redrive.store.sql import in_ids
from redrive.store.store import Store
from redrive.tasks.executor.decide import Transition
from redrive.tasks.operator.actions import CANCELLED, checked_note, require_selection, wake_run
from redrive.tasks.operator.transaction import change_run, lock_named
from redrive.tasks.state.claims import CHANGE
from redrive.tasks.state.progression import OVER, GraphProgress, Progression, change_row
from redrive.tasks.state.run_handle import FlowRunHandle

_ENDED = [*OVER, State.UPSTREAM_FAILED]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksCancelled:
    """The tasks that were cancelled."""

    flow: str
    run_id: UUID
    tasks: tuple[str, ...]
    """Tasks that had not started, or waited for their next attempt."""
    killed: tuple[str, ...]
    """Tasks that were running: their executors kill them within seconds."""
    upstream_failed: int
    """Downstream tasks that will not run."""


def cancelled_transition(reason: str) -> Transition:
    """Return the transition of a cancelled task."""
    error = f"{CANCELLED}: {reason}"
    return Transition(state=State.FAILED, cause=error, error=error, fingerprint=CANCELLED, kind=Kind.PERMANENT)


def cancel_tasks(store: Store, run: UUID | str, names: Sequence[str], *, note: str) -> TasksCancelled:
    """Cancel tasks that have not ended, by name; raises FlowError if a name has none."""
    require_selection(names, None)
    reason = f"{checked_note(note, 'cancel')} ({actor()})"

    return change_run(
        store, run, lambda handle, connection, now: _Cancelling(handle, connection, now, reason).apply(names)
    )


class _Cancelling:
    """One cancellation of tasks, in one transaction."""

    def __init__(self, handle: FlowRunHandle, connection: Connection, now: datetime, reason: str) -> None:
        self._run, self._connection, self._now, self._reason = handle, connection, now, reason
        self._of_run = tasks.c.run_id == handle.run_id
        self._graph = Progression(handle, None)

    def apply(self, names: Sequence[str]) -> TasksCancelled:
        """Cancel the named tasks."""
        self._run.lock_graph(self._connection)
        rows = self._find_open(names)
        running = [row for row in rows if row.owner is not None]
        waiting = [row for row in rows if row.owner is None]
        self._request_kill([row.id for row in running])
        self._fail(waiting)
        done = [(row.node, State.FAILED) for row in waiting if row.child < 0]
        for node in sorted({row.node for row in waiting if row.child >= 0}):
            done += self._count_children(node, sum(row.node == node for row in waiting))
        progress = GraphProgress()
        self._graph.advance(self._connection, self._now, done, progress)
        wake_run(self._run, self._connection, self._now)
        return TasksCancelled(
            flow=self._run.flow,
            run_id=self._run.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in waiting),
            killed=tuple(shown_name(row.name, row.child) for row in running),
            upstream_failed=sum(progress.upstream_failed.values()),
        )

    def _find_open(self, names: Sequence[str]) -> list[Row[Any]]:
        status = select(task_runs.c.status).where(task_runs.c.run_id == self._run.run_id)
        if self._connection.execute(status).scalar_one() == FlowStatus.ABANDONED:
            raise FlowError(f"run {str(self._run.run_id)[:8]} was abandoned; there is nothing to cancel")
        rows_by_id: dict[int, Row[Any]] = {}
        for name in names:
            rows = lock_named(self._run, self._connection, name)
            still_open = [row for row in rows if row.state not in _ENDED]
            if not still_open:
                run = str(self._run.run_id)[:8]
                raise FlowError(f"task {name!r} of run {run} is {rows[0].state}: there is nothing to cancel")
            rows_by_id |= {row.id: row for row in still_open}
        return list(rows_by_id.values())

    def _request_kill(self, ids: Sequence[int]) -> None:
        if ids:
            running = update(tasks).where(in_ids(tasks.c.id, ids))
            self._connection.execute(running.values(cancelled=self._reason))

    def _fail(self, rows: Sequence[Row[Any]]) -> None:
        transition = cancelled_transition(self._reason)
        values = {
            "state": transition.state,
            "error": transition.error,
            "fingerprint": transition.fingerprint,
            "kind": transition.kind,
            "due_at": None,
            "ended_at": self._now,
        }
        if rows:
            waiting = update(tasks).where(in_ids(tasks.c.id, [row.id for row in rows]))
            self._connection.execute(waiting.values(**values))
            changes = [change_row(row.id, self._now, State(row.state), State.FAILED, transition.cause) for row in rows]
            self._connection.execute(CHANGE, changes)

    def _count_children(self, node: int, ended: int) -> list[tuple[int, State]]:
        """Count down the cancelled children of a fan-out; return its end state if they were the last."""
        fan_out = update(tasks).where(self._of_run, tasks.c.node == node, tasks.c.child == -1)
        counting = fan_out.values(remaining=tasks.c.remaining - ended, failed=tasks.c.failed + ended)
        row = self._connection.execute(counting.returning(tasks.c.id, tasks.c.remaining, tasks.c.dead)).one()
        if row.remaining:
            return []
        state = State.DEAD_LETTER if row.dead else State.FAILED
        self._graph.change_state(self._connection, self._now, row.id, (State.RUNNING, state), "children were cancelled")
        return [(node, state)]
