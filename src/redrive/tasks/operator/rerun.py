"""Rerun: tasks that succeeded run again, and everything downstream of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, select, update

from redrive.dlq.status import actor, as_note
from redrive.errors import FlowError
from redrive.model.tasks import State
from redrive.store.repositories.tasks import shown_name
from redrive.store.schema import tasks
from redrive.store.store import Store
from redrive.tasks.graph import reach
from redrive.tasks.operator.actions import WRONG, OperatorAction, require_selection, wake_run
from redrive.tasks.operator.reset import NO_RESULT, NOT_YET, Reset, state_to_run
from redrive.tasks.operator.transaction import change_run, lock_named
from redrive.tasks.state.progression import Progression
from redrive.tasks.state.run_handle import RunHandle


def rerun(
    store: Store, run: UUID | str, names: Sequence[str], *, note: str | None = None, dry_run: bool = False
) -> OperatorAction:
    """Run tasks that succeeded again, and everything downstream; with `dry_run`, only return what would run.

    Raises `FlowError` if a downstream task is running.
    """
    require_selection(names, None)
    reason = as_note(f"{note or 'rerun'} ({actor()})")

    def apply(handle: RunHandle, connection: Connection, now: datetime) -> OperatorAction:
        rerunning = _Rerun(handle, connection, now, reason)
        return rerunning.preview(names) if dry_run else rerunning.apply(names)

    return change_run(store, run, apply)


class _Rerun:
    """One rerun, in one transaction."""

    def __init__(self, handle: RunHandle, connection: Connection, now: datetime, note: str) -> None:
        self._run, self._connection, self._now, self._note = handle, connection, now, note
        self._of_run = tasks.c.run_id == handle.run_id
        self._reset = Reset(handle, connection, now, note)

    def preview(self, names: Sequence[str]) -> OperatorAction:
        """Return what would run again."""
        chosen = self._find_succeeded(names)
        below = reach({row.node for row in chosen}, self._run.below)
        states, _ = self._run.read_states(self._connection)
        return self._make_action(chosen, sum(states[node] is not State.PENDING for node in below))

    def apply(self, names: Sequence[str]) -> OperatorAction:
        """Reset the named tasks and everything downstream."""
        self._run.lock_graph(self._connection)
        chosen = self._find_succeeded(names)
        nodes = sorted({row.node for row in chosen})
        self._reset.check(nodes)
        for row in chosen:
            state = state_to_run(self._run, row)
            due = None if state is State.PENDING else self._now
            self._reset.change_state(row, state, **{**NOT_YET, **NO_RESULT, "due_at": due, "note": self._note})
        for node in nodes:
            self._reopen(node, [row for row in chosen if row.node == node])
        freed = self._reset.reset_below(nodes)
        if any(state_to_run(self._run, row) is State.PENDING for row in chosen):
            Progression(self._run, None).decide_waiting(self._connection, self._now)
        wake_run(self._run, self._connection, self._now)
        return self._make_action(chosen, freed)

    def _find_succeeded(self, names: Sequence[str]) -> list[Row[Any]]:
        rows_by_id: dict[int, Row[Any]] = {}
        for name in names:
            rows = lock_named(self._run, self._connection, name)
            done = [row for row in rows if row.state == State.SUCCESS]
            if not done:
                state, run = rows[0].state, str(self._run.run_id)[:8]
                hint = f": `redrive tasks retry {name}`" if state in WRONG else ", and only what succeeded is run again"
                raise FlowError(f"task {name!r} of run {run} is {state}{hint}")
            rows_by_id |= {row.id: row for row in done}
        return list(rows_by_id.values())

    def _reopen(self, node: int, chosen: Sequence[Row[Any]]) -> None:
        """Undo the success of a task; for a fan-out, count the reset children as remaining."""
        if chosen[0].child < 0:
            self._reset.undo_success(chosen[0])
            return
        query = select(tasks).where(self._of_run, tasks.c.node == node, tasks.c.child == -1).with_for_update()
        row = self._connection.execute(query).one()
        counts = {"remaining": row.remaining + len(chosen)}
        if row.state == State.SUCCESS:
            self._reset.undo_success(row)
        if row.state == State.RUNNING:
            self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(**counts))
        else:
            self._reset.change_state(row, State.RUNNING, ended_at=None, **counts)

    def _make_action(self, chosen: Sequence[Row[Any]], freed: int) -> OperatorAction:
        return OperatorAction(
            flow=self._run.flow,
            run_id=self._run.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in chosen),
            freed=freed,
            upstream_failed=0,
        )
