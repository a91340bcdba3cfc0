"""The transaction of an operator action: find the run, change it, and reset what follows a task that runs again.

Tasks that are reset return to PENDING, whatever their state was. A failed task has downstream tasks that run
nevertheless: cleanup, notifications, and their own followers. When the task is retried, they run again after it, with
the same idempotency keys. Used by all actions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Row, delete, insert, select, update

from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.letters import Status
from redrive.model.tasks import State
from redrive.store.database import corrupt_row_as_store_error
from redrive.store.encoding import decode
from redrive.store.repositories.tasks import find_run, named, shown_name, unknown_task_error
from redrive.store.schema import task_attempts, task_changes, tasks
from redrive.store.sql import in_ids
from redrive.store.store import Store
from redrive.tasks.graph import reach
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.progression import Progression
from redrive.tasks.state.run_handle import FlowRunHandle, checked
from redrive.tasks.trigger_rules import consequences

T = TypeVar("T")


def change_run(store: Store, run: UUID | str, work: Callable[[FlowRunHandle, Connection, datetime], T]) -> T:
    """Change a run in one transaction; `work` gets the run handle, the connection and the time of the store."""

    def work_on_run(connection: Connection) -> T:
        handle = FlowRunHandle.load(store, connection, find_run(connection, run))
        return work(handle, connection, handle.database.dialect.begin_bounded(connection))

    with corrupt_row_as_store_error("flows"):
        return store.database.write(work_on_run)


def lock_named(handle: FlowRunHandle, connection: Connection, name: str) -> list[Row[Any]]:
    """Lock and return the tasks of a name; for a fan-out, its children. Raises FlowError if there are none."""
    query = select(tasks).where(tasks.c.run_id == handle.run_id, named(name), tasks.c.children.is_(None))
    rows = list(connection.execute(query.order_by(tasks.c.node, tasks.c.child).with_for_update()))
    if not rows:
        raise unknown_task_error(connection, handle.run_id, name)
    return rows


NOT_YET: dict[str, Any] = {
    **dict.fromkeys(("due_at", "since", "wait", "ended_at", "error", "fingerprint", "kind", "cancelled"), None),
    **dict.fromkeys(("failures", "same", "lost"), 0),
}
"""Values of a task that has not started; its count of attempts is kept."""
NO_RESULT: dict[str, Any] = dict.fromkeys(("result", "result_file", "branch"))
_NO_CHILDREN = {"children": None, "remaining": 0, "dead": 0, "failed": 0}


def may_wait(row: Row[Any]) -> bool:
    """Return whether a task can return to PENDING: it is in another state, and no operator has ended it."""
    return row.state != State.PENDING and not (row.state == State.FAILED and row.kind == Kind.PERMANENT)


def state_to_run(handle: FlowRunHandle, row: Row[Any]) -> State:
    """Return the state of a task that will run again.

    A task that was accepted or failed while it waited must wait for its other upstream tasks. A fan-out without
    children must be expanded by an executor, which has the items. Both are PENDING, and the trigger rules decide.
    """
    kind = handle.shape.places[row.node].kind
    if row.child < 0 and (row.waiting or kind == "fan-out"):
        return State.PENDING
    return State.SENSING if kind == "sensor" else State.READY


class StillRunning(FlowError):
    """A downstream task that would be reset is running."""


class Reset:
    """Resets downstream tasks of one run, in one transaction that holds the lock of the graph."""

    def __init__(self, handle: FlowRunHandle, connection: Connection, now: datetime, note: str) -> None:
        self._run, self._connection, self._now, self._note = handle, connection, now, note
        self._of_run = tasks.c.run_id == handle.run_id

    def check(self, nodes: Iterable[int]) -> None:
        """Raise `StillRunning` if a downstream task of these is running."""
        downstream = reach(nodes, self._run.below)
        claimed = select(tasks.c.name, tasks.c.child).where(self._of_run, tasks.c.owner.is_not(None))
        row = self._connection.execute(claimed.where(in_ids(tasks.c.node, sorted(downstream))).limit(1)).first()
        if row is not None:
            raise StillRunning(
                f"task {shown_name(row.name, row.child)!r}, which comes after it, is running: wait for its end, or "
                "cancel it. Nothing was changed"
            )

    def reset_below(self, nodes: Iterable[int]) -> int:
        """Reset everything downstream of these tasks; return the number of changed tasks."""
        downstream = reach(nodes, self._run.below)
        rows = [row for row in self._own_rows() if row.node in downstream and may_wait(row)]
        rows = self.drop_unchanged(rows)
        for row in rows:
            self._reset(row)
        return len(rows)

    def _own_rows(self) -> Sequence[Row[Any]]:
        query = select(tasks).where(self._of_run, tasks.c.child == -1)
        return self._connection.execute(query.order_by(tasks.c.node).with_for_update()).all()

    def drop_unchanged(self, rows: Sequence[Row[Any]]) -> list[Row[Any]]:
        """Leave out tasks that would not run anyway, because another failed upstream task is not retried."""
        states, branches = self._run.read_states(self._connection)
        for row in rows:
            states[row.node] = State.PENDING
            branches.pop(row.node, None)
        outcomes = consequences(self._run.shape.places, states, branches)
        kept = (State.UPSTREAM_FAILED, State.SKIPPED)
        return [row for row in rows if row.state not in kept or outcomes.get(row.node) != row.state]

    def _reset(self, row: Row[Any]) -> None:
        names = [row.name]
        if row.children is not None:
            names += self._remove_children(row)
        resolve_named(self._connection, self._run.run_id, names, self._now, target=Status.DISCARDED, note=self._note)
        if row.state == State.SUCCESS:
            self.undo_success(row)
        self.change_state(row, State.PENDING, **NOT_YET, **NO_RESULT, **_NO_CHILDREN)

    def undo_success(self, row: Row[Any]) -> None:
        """Undo a success: the followers that it freed wait for one task more."""
        chosen: Collection[str] | None = None if row.branch is None else decode(row.branch)
        freed = Progression(self._run, None).list_freed(row.node, chosen)
        if freed:
            followers = update(tasks).where(self._of_run, in_ids(tasks.c.node, freed), tasks.c.child == -1)
            self._connection.execute(followers.values(waiting=tasks.c.waiting + 1))

    def _remove_children(self, row: Row[Any]) -> list[str]:
        """Delete the children of a fan-out: the items may differ next time. Returns names of those with letters."""
        children = self._of_run & (tasks.c.node == row.node) & (tasks.c.child >= 0)
        has_letter = (tasks.c.state == State.DEAD_LETTER) | tasks.c.note.is_not(
            None
        )  # dead, or sent back by an operator
        dead = select(tasks.c.child).where(children, has_letter)
        names = [shown_name(row.name, child) for child in self._connection.execute(dead).scalars()]
        ids = select(tasks.c.id).where(children)
        for table in (task_attempts, task_changes):
            self._connection.execute(delete(table).where(table.c.task_id.in_(ids)))
        self._connection.execute(delete(tasks).where(children))
        return names

    def change_state(self, row: Row[Any], state: State, **values: Any) -> None:
        """Change the state of a task, and store the reason."""
        after = checked(State(row.state), state)
        self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(state=after, **values))
        change = {"task_id": row.id, "at": self._now, "before": row.state, "after": after, "cause": self._note}
        self._connection.execute(insert(task_changes), [change])
