"""Reopen tasks: an accepted, skipped or failed task becomes a dead letter again if nothing downstream has run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, func, insert, select, update

from redrive.dlq.status import actor, as_note, reopen_within
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.letters import Status
from redrive.model.tasks import State
from redrive.store.repositories.tasks import shown_name
from redrive.store.schema import letters, task_changes, tasks
from redrive.store.sql import in_ids
from redrive.store.store import Store
from redrive.tasks.graph import reach
from redrive.tasks.operator.actions import WRONG, OperatorAction, require_selection, wake_run
from redrive.tasks.operator.reset import NOT_YET, Reset, may_wait
from redrive.tasks.operator.transaction import change_run, lock_named
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.trigger_rules import HEEDS_FAILURE


def reopen(store: Store, run: UUID | str, names: Sequence[str], *, note: str | None = None) -> OperatorAction:
    """Undo operator actions on tasks; raises FlowError if a downstream task has run since."""
    require_selection(names, None)
    reason = as_note(f"{note or 'decision taken back'} ({actor()})")
    return change_run(
        store, run, lambda handle, connection, now: _Reopening(handle, connection, now, reason).apply(names)
    )


class _Reopening:
    """One reopening of tasks, in one transaction."""

    def __init__(self, handle: RunHandle, connection: Connection, now: datetime, note: str) -> None:
        self._run, self._connection, self._now, self._note = handle, connection, now, note
        self._of_run = tasks.c.run_id == handle.run_id

    def apply(self, names: Sequence[str]) -> OperatorAction:
        """Reopen the named tasks."""
        self._run.lock_graph(self._connection)
        chosen = self._find_decided(names)
        nodes = {row.node for row in chosen}
        for row in chosen:
            kind = Kind.PERMANENT if row.kind == Kind.DISCARD else row.kind  # a skipped task has lost its kind
            self._change_state(row, State.DEAD_LETTER, note=self._note, result=None, ended_at=self._now, kind=kind)
        for node in sorted(nodes):
            if self._reopen_node(node, [row for row in chosen if row.node == node]):
                waiting = update(tasks).where(self._of_run, in_ids(tasks.c.node, self._run.below[node]))
                self._connection.execute(waiting.where(tasks.c.child == -1).values(waiting=tasks.c.waiting + 1))
        freed = self._reset_below(reach(nodes, self._list_followers()))
        task_names = tuple(shown_name(row.name, row.child) for row in chosen)
        of_tasks = (letters.c.run_id == self._run.run_id) & letters.c.source_key.in_(task_names)
        reopen_within(self._connection, of_tasks, note=self._note, now=self._now)
        wake_run(self._run, self._connection, self._now)
        return OperatorAction(
            flow=self._run.flow, run_id=self._run.run_id, tasks=task_names, freed=freed, upstream_failed=0
        )

    def _find_decided(self, names: Sequence[str]) -> list[Row[Any]]:
        rows_by_id: dict[int, Row[Any]] = {}
        for name in names:
            rows = lock_named(self._run, self._connection, name)
            decided = [row for row in rows if self._is_decided(row)]
            if not decided:
                run = str(self._run.run_id)[:8]
                raise FlowError(f"nobody has decided about task {name!r} of run {run}: it is {rows[0].state}")
            rows_by_id |= {row.id: row for row in decided}
        return list(rows_by_id.values())

    def _is_decided(self, row: Row[Any]) -> bool:
        """Whether an operator action set the state: no attempt leads from one end state to another."""
        last = select(func.max(task_changes.c.id)).where(task_changes.c.task_id == row.id).scalar_subquery()
        change = self._connection.execute(select(task_changes).where(task_changes.c.id == last)).first()
        ends = (State.SUCCESS, State.FAILED)
        return change is not None and change.before in WRONG and change.after == row.state and row.state in ends

    def _list_followers(self) -> list[list[int]]:
        """Return the followers of each task, without those that run after failures: dead letters do not affect them."""
        places = self._run.shape.places
        return [
            [follower for follower in followers if places[follower].run_when not in HEEDS_FAILURE]
            for followers in self._run.below
        ]

    def _reset_below(self, below: set[int]) -> int:
        """Return downstream tasks to PENDING; raises FlowError if one of them has run or is running."""
        rows = self._connection.execute(select(tasks).where(self._of_run, in_ids(tasks.c.node, sorted(below)))).all()
        done = [row for row in rows if row.state == State.SUCCESS or row.owner is not None or row.children]
        if done:
            raise FlowError(
                f"task {done[0].name!r}, which comes after it, is {done[0].state}: it is too late to take the decision "
                "back. Begin another run with run(new_run=True) or `redrive run --new-run`"
            )
        reset = Reset(self._run, self._connection, self._now, self._note)
        changed = reset.drop_unchanged([row for row in rows if may_wait(row)])
        for row in changed:
            self._change_state(row, State.PENDING, **NOT_YET)
        dead = [row.name for row in changed if row.state == State.DEAD_LETTER]
        resolve_named(self._connection, self._run.run_id, dead, self._now, target=Status.DISCARDED, note=self._note)
        return len(changed)

    def _reopen_node(self, node: int, chosen: Sequence[Row[Any]]) -> bool:
        """Update the counts of a fan-out; return whether the followers of the node had been freed."""
        if chosen[0].child < 0:
            return bool(chosen[0].state == State.SUCCESS)
        before = Counter(row.state for row in chosen)
        query = select(tasks).where(self._of_run, tasks.c.node == node, tasks.c.child == -1)
        row = self._connection.execute(query.with_for_update()).one()
        counts = {"dead": row.dead + len(chosen), "failed": row.failed - before[State.FAILED]}
        state = State.RUNNING if row.remaining else State.DEAD_LETTER
        if row.state == state:
            self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(counts))
        else:
            self._change_state(row, state, **counts)
        return bool(row.state == State.SUCCESS)

    def _change_state(self, row: Row[Any], state: State, **values: Any) -> None:
        self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(state=state, **values))
        change = {"task_id": row.id, "at": self._now, "before": row.state, "after": state, "cause": self._note}
        self._connection.execute(insert(task_changes), [change])
