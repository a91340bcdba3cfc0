"""Cancelling single tasks: one that waits fails at once, one that runs is killed by its executor.

A cancelled task is FAILED for good: what comes after it follows its trigger rule, and only an operator's retry runs it.
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
from redrive.tasks.operator.actions import CANCELLED, checked_note, must_say_which, wake_run
from redrive.tasks.operator.transaction import change_run, rows_named
from redrive.tasks.state.claims import CHANGE
from redrive.tasks.state.progression import OVER, Progress, Progression, change_row
from redrive.tasks.state.run_handle import RunHandle

_ENDED = [*OVER, State.UPSTREAM_FAILED]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksCancelled:
    """What was cancelled."""

    flow: str
    run_id: UUID
    tasks: tuple[str, ...]
    """Those that had not begun, or waited for their next attempt."""
    killed: tuple[str, ...]
    """Those that were running: their executors end them within seconds."""
    upstream_failed: int
    """Tasks further down that will not run."""


def cancelled(why: str) -> Transition:
    """What becomes of a task that was cancelled."""
    error = f"{CANCELLED}: {why}"
    return Transition(state=State.FAILED, cause=error, error=error, fingerprint=CANCELLED, kind=Kind.PERMANENT)


def cancel_tasks(store: Store, run: UUID | str, names: Sequence[str], *, note: str) -> TasksCancelled:
    """Cancel tasks that have not ended, by their names; FlowError where all of them have."""
    must_say_which(names, None)
    why = f"{checked_note(note, 'cancel')} ({actor()})"

    return change_run(store, run, lambda place, connection, now: _Cancelling(place, connection, now, why).take(names))


class _Cancelling:
    """One decision, in one transaction."""

    def __init__(self, place: RunHandle, connection: Connection, now: datetime, why: str) -> None:
        self._place, self._connection, self._now, self._why = place, connection, now, why
        self._ours = tasks.c.run_id == place.run_id
        self._graph = Progression(place, None)

    def take(self, names: Sequence[str]) -> TasksCancelled:
        """Make it so."""
        self._place.lock_graph(self._connection)
        rows = self._open(names)
        running = [row for row in rows if row.owner is not None]
        waiting = [row for row in rows if row.owner is None]
        self._mark([row.id for row in running])
        self._fail(waiting)
        done = [(row.node, State.FAILED) for row in waiting if row.child < 0]
        for node in sorted({row.node for row in waiting if row.child >= 0}):
            done += self._count(node, sum(row.node == node for row in waiting))
        settled = Progress()
        self._graph.advance(self._connection, self._now, done, settled)
        wake_run(self._place, self._connection, self._now)
        return TasksCancelled(
            flow=self._place.flow,
            run_id=self._place.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in waiting),
            killed=tuple(shown_name(row.name, row.child) for row in running),
            upstream_failed=sum(settled.upstream_failed.values()),
        )

    def _open(self, names: Sequence[str]) -> list[Row[Any]]:
        status = select(task_runs.c.status).where(task_runs.c.run_id == self._place.run_id)
        if self._connection.execute(status).scalar_one() == FlowStatus.ABANDONED:
            raise FlowError(f"run {str(self._place.run_id)[:8]} was given up; there is nothing to cancel")
        found: dict[int, Row[Any]] = {}
        for name in names:
            rows = rows_named(self._place, self._connection, name)
            still_open = [row for row in rows if row.state not in _ENDED]
            if not still_open:
                run = str(self._place.run_id)[:8]
                raise FlowError(f"task {name!r} of run {run} is {rows[0].state}: there is nothing to cancel")
            found |= {row.id: row for row in still_open}
        return list(found.values())

    def _mark(self, ids: Sequence[int]) -> None:
        if ids:
            mine = update(tasks).where(in_ids(tasks.c.id, ids))
            self._connection.execute(mine.values(cancelled=self._why))

    def _fail(self, rows: Sequence[Row[Any]]) -> None:
        following = cancelled(self._why)
        values = {
            "state": following.state,
            "error": following.error,
            "fingerprint": following.fingerprint,
            "kind": following.kind,
            "due_at": None,
            "ended_at": self._now,
        }
        if rows:
            mine = update(tasks).where(in_ids(tasks.c.id, [row.id for row in rows]))
            self._connection.execute(mine.values(**values))
            changes = [change_row(row.id, self._now, State(row.state), State.FAILED, following.cause) for row in rows]
            self._connection.execute(CHANGE, changes)

    def _count(self, node: int, ended: int) -> list[tuple[int, State]]:
        """Take cancelled children off a fan-out's count; what it becomes, where they were the last."""
        own = update(tasks).where(self._ours, tasks.c.node == node, tasks.c.child == -1)
        counted = own.values(remaining=tasks.c.remaining - ended, failed=tasks.c.failed + ended)
        row = self._connection.execute(counted.returning(tasks.c.id, tasks.c.remaining, tasks.c.dead)).one()
        if row.remaining:
            return []
        state = State.DEAD_LETTER if row.dead else State.FAILED
        self._graph.change_state(self._connection, self._now, row.id, (State.RUNNING, state), "children were cancelled")
        return [(node, state)]
