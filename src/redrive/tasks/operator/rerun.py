"""Rerun and reopen: tasks that succeeded run again, or accepted, skipped or failed tasks become dead letters again."""

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
from redrive.tasks.operator.transaction import NO_RESULT, NOT_YET, Reset, change_run, lock_named, may_wait, state_to_run
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.progression import Progression
from redrive.tasks.state.run_handle import FlowRunHandle
from redrive.tasks.trigger_rules import HEEDS_FAILURE


def rerun(
    store: Store, run: UUID | str, names: Sequence[str], *, note: str | None = None, dry_run: bool = False
) -> OperatorAction:
    """Run tasks that succeeded again, and everything downstream; with `dry_run`, only return what would run.

    Raises `FlowError` if a downstream task is running.
    """
    require_selection(names, None)
    reason = as_note(f"{note or 'rerun'} ({actor()})")

    def apply(handle: FlowRunHandle, connection: Connection, now: datetime) -> OperatorAction:
        rerunning = _Rerun(handle, connection, now, reason)
        return rerunning.preview(names) if dry_run else rerunning.apply(names)

    return change_run(store, run, apply)


class _Rerun:
    """One rerun, in one transaction."""

    def __init__(self, handle: FlowRunHandle, connection: Connection, now: datetime, note: str) -> None:
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


def reopen(store: Store, run: UUID | str, names: Sequence[str], *, note: str | None = None) -> OperatorAction:
    """Undo operator actions on tasks; raises FlowError if a downstream task has run since."""
    require_selection(names, None)
    reason = as_note(f"{note or 'decision taken back'} ({actor()})")
    return change_run(
        store, run, lambda handle, connection, now: _Reopening(handle, connection, now, reason).apply(names)
    )


class _Reopening:
    """One reopening of tasks, in one transaction."""

    def __init__(self, handle: FlowRunHandle, connection: Connection, now: datetime, note: str) -> None:
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
                raise FlowError(f"no operator has decided about task {name!r} of run {run}: it is {rows[0].state}")
            rows_by_id |= {row.id: row for row in decided}
        return list(rows_by_id.values())

    def _is_decided(self, row: Row[Any]) -> bool:
        """Return whether an operator action set the state: no attempt leads from one end state to another."""
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
