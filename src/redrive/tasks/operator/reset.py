"""Reset of what comes after a task that runs again: it waits for it again, whatever had become of it before.

A failed task has followers that ran all the same: cleanup, notifications, and what comes after those. When the task is
tried again, they run again behind it, with the same idempotency keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.letters import Status
from redrive.model.tasks import State
from redrive.store.encoding import decode
from redrive.store.repositories.tasks import shown_name
from redrive.store.schema import task_attempts, task_changes, tasks
from redrive.store.sql import in_ids
from redrive.tasks.graph import reach
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.progression import Progression
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.state.states import checked
from redrive.tasks.trigger_rules import consequences

NOT_YET: dict[str, Any] = {
    **dict.fromkeys(("due_at", "since", "wait", "ended_at", "error", "fingerprint", "kind", "cancelled"), None),
    **dict.fromkeys(("failures", "same", "lost"), 0),
}
"""What is stored of a task that has not begun; its attempts remain counted."""
NO_RESULT: dict[str, Any] = dict.fromkeys(("result", "result_file", "branch"))
_NO_CHILDREN = {"children": None, "remaining": 0, "dead": 0, "failed": 0}


def may_wait(row: Row[Any]) -> bool:
    """Whether a task can wait again: it does not already, and no operator has failed it for good or cancelled it."""
    return row.state != State.PENDING and not (row.state == State.FAILED and row.kind == Kind.PERMANENT)


def state_to_run(place: RunHandle, row: Row[Any]) -> State:
    """Return what a task becomes that is to run again.

    A task that was decided about while it waited has to wait for the rest, and a fan-out that has no children is to be
    expanded by an executor, which has its items: both are PENDING, and the rules decide when they run.
    """
    kind = place.shape.places[row.node].kind
    if row.child < 0 and (row.waiting or kind == "fan-out"):
        return State.PENDING
    return State.SENSING if kind == "sensor" else State.READY


class StillRunning(FlowError):
    """Something that would have to wait again is running."""


class Reset:
    """What comes after some tasks of one run, in one transaction that holds the lock of the graph."""

    def __init__(self, place: RunHandle, connection: Connection, now: datetime, note: str) -> None:
        self._place, self._connection, self._now, self._note = place, connection, now, note
        self._ours = tasks.c.run_id == place.run_id

    def check(self, nodes: Iterable[int]) -> None:
        """Raise `StillRunning` where something that comes after these tasks is running."""
        lower = reach(nodes, self._place.below)
        claimed = select(tasks.c.name, tasks.c.child).where(self._ours, tasks.c.owner.is_not(None))
        row = self._connection.execute(claimed.where(in_ids(tasks.c.node, sorted(lower))).limit(1)).first()
        if row is not None:
            raise StillRunning(
                f"task {shown_name(row.name, row.child)!r}, which comes after it, is running: wait for its end, or "
                "cancel it. Nothing was changed"
            )

    def below(self, nodes: Iterable[int]) -> int:
        """Let everything that comes after these tasks wait for them again; how many tasks that changes."""
        lower = reach(nodes, self._place.below)
        rows = [row for row in self._own_rows() if row.node in lower and may_wait(row)]
        rows = self.without_unchanged(rows)
        for row in rows:
            self._reset(row)
        return len(rows)

    def _own_rows(self) -> Sequence[Row[Any]]:
        own = select(tasks).where(self._ours, tasks.c.child == -1)
        return self._connection.execute(own.order_by(tasks.c.node).with_for_update()).all()

    def without_unchanged(self, rows: Sequence[Row[Any]]) -> list[Row[Any]]:
        """Leave out what would not run again anyway: a task further up that failed is not tried again."""
        states, branches = self._place.read_states(self._connection)
        for row in rows:
            states[row.node] = State.PENDING
            branches.pop(row.node, None)
        after = consequences(self._place.shape.places, states, branches)
        kept = (State.UPSTREAM_FAILED, State.SKIPPED)
        return [row for row in rows if row.state not in kept or after.get(row.node) != row.state]

    def _reset(self, row: Row[Any]) -> None:
        names = [row.name]
        if row.children is not None:
            names += self._remove_children(row)
        resolve_named(self._connection, self._place.run_id, names, self._now, target=Status.DISCARDED, note=self._note)
        if row.state == State.SUCCESS:
            self.take_back(row)
        self.change(row, State.PENDING, **NOT_YET, **NO_RESULT, **_NO_CHILDREN)

    def take_back(self, row: Row[Any]) -> None:
        """Let those that a success had freed wait for one task more."""
        chosen: Collection[str] | None = None if row.branch is None else decode(row.branch)
        freed = Progression(self._place, None).list_freed(row.node, chosen)
        if freed:
            theirs = update(tasks).where(self._ours, in_ids(tasks.c.node, freed), tasks.c.child == -1)
            self._connection.execute(theirs.values(waiting=tasks.c.waiting + 1))

    def _remove_children(self, row: Row[Any]) -> list[str]:
        """Forget the children of a fan-out: there may be others the next time. Those with a letter are returned."""
        children = self._ours & (tasks.c.node == row.node) & (tasks.c.child >= 0)
        known = (tasks.c.state == State.DEAD_LETTER) | tasks.c.note.is_not(None)  # dead, or sent back by an operator
        dead = select(tasks.c.child).where(children, known)
        names = [shown_name(row.name, child) for child in self._connection.execute(dead).scalars()]
        ids = select(tasks.c.id).where(children)
        for table in (task_attempts, task_changes):
            self._connection.execute(delete(table).where(table.c.task_id.in_(ids)))
        self._connection.execute(delete(tasks).where(children))
        return names

    def change(self, row: Row[Any], state: State, **values: Any) -> None:
        """Change a task's state, and write down why."""
        after = checked(State(row.state), state)
        self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(state=after, **values))
        change = {"task_id": row.id, "at": self._now, "before": row.state, "after": after, "cause": self._note}
        self._connection.execute(insert(task_changes), [change])
