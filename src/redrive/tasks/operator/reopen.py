"""Taking a decision back: an accepted, skipped or failed task is a dead letter again, while nothing has come of it."""

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
from redrive.tasks.operator.actions import WRONG, OperatorAction, must_say_which, wake_run
from redrive.tasks.operator.reset import NOT_YET, Reset, may_wait
from redrive.tasks.operator.transaction import change_run, rows_named
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.trigger_rules import HEEDS_FAILURE


def reopen(store: Store, run: UUID | str, names: Sequence[str], *, note: str | None = None) -> OperatorAction:
    """Take decisions about tasks back; FlowError where what comes after them has been done since."""
    must_say_which(names, None)
    why = as_note(f"{note or 'decision taken back'} ({actor()})")
    return change_run(store, run, lambda place, connection, now: _Reopening(place, connection, now, why).take(names))


class _Reopening:
    """One decision that is taken back, in one transaction."""

    def __init__(self, place: RunHandle, connection: Connection, now: datetime, note: str) -> None:
        self._place, self._connection, self._now, self._note = place, connection, now, note
        self._ours = tasks.c.run_id == place.run_id

    def take(self, names: Sequence[str]) -> OperatorAction:
        """Make it so."""
        self._place.lock_graph(self._connection)
        chosen = self._decided_about(names)
        nodes = {row.node for row in chosen}
        for row in chosen:
            kind = Kind.PERMANENT if row.kind == Kind.DISCARD else row.kind  # of a skipped one it is not known any more
            self._change(row, State.DEAD_LETTER, note=self._note, result=None, ended_at=self._now, kind=kind)
        for node in sorted(nodes):
            if self._reopen_node(node, [row for row in chosen if row.node == node]):
                waiting = update(tasks).where(self._ours, in_ids(tasks.c.node, self._place.below[node]))
                self._connection.execute(waiting.where(tasks.c.child == -1).values(waiting=tasks.c.waiting + 1))
        held = self._hold_below(reach(nodes, self._without_cleanup()))
        shown = tuple(shown_name(row.name, row.child) for row in chosen)
        theirs = (letters.c.run_id == self._place.run_id) & letters.c.source_key.in_(shown)
        reopen_within(self._connection, theirs, note=self._note, now=self._now)
        wake_run(self._place, self._connection, self._now)
        return OperatorAction(
            flow=self._place.flow, run_id=self._place.run_id, tasks=shown, freed=held, upstream_failed=0
        )

    def _decided_about(self, names: Sequence[str]) -> list[Row[Any]]:
        found: dict[int, Row[Any]] = {}
        for name in names:
            rows = rows_named(self._place, self._connection, name)
            decided = [row for row in rows if self._is_decided(row)]
            if not decided:
                run = str(self._place.run_id)[:8]
                raise FlowError(f"nobody has decided about task {name!r} of run {run}: it is {rows[0].state}")
            found |= {row.id: row for row in decided}
        return list(found.values())

    def _is_decided(self, row: Row[Any]) -> bool:
        """Whether it is what it is by a decision: no attempt leads from one end to another."""
        last = select(func.max(task_changes.c.id)).where(task_changes.c.task_id == row.id).scalar_subquery()
        change = self._connection.execute(select(task_changes).where(task_changes.c.id == last)).first()
        ends = (State.SUCCESS, State.FAILED)
        return change is not None and change.before in WRONG and change.after == row.state and row.state in ends

    def _without_cleanup(self) -> list[list[int]]:
        """What comes after each task, without what runs after a failure: to that a dead letter makes no difference."""
        places = self._place.shape.places
        return [[one for one in lower if places[one].run_when not in HEEDS_FAILURE] for lower in self._place.below]

    def _hold_below(self, below: set[int]) -> int:
        """Let everything that comes after wait again; FlowError where some of it has been done, or is being done."""
        rows = self._connection.execute(select(tasks).where(self._ours, in_ids(tasks.c.node, sorted(below)))).all()
        done = [row for row in rows if row.state == State.SUCCESS or row.owner is not None or row.children]
        if done:
            raise FlowError(
                f"task {done[0].name!r}, which comes after it, is {done[0].state}: it is too late to take the decision "
                "back. Begin another run with run(new_run=True) or `redrive run --new-run`"
            )
        reset = Reset(self._place, self._connection, self._now, self._note)
        moved = reset.without_unchanged([row for row in rows if may_wait(row)])
        for row in moved:
            self._change(row, State.PENDING, **NOT_YET)
        dead = [row.name for row in moved if row.state == State.DEAD_LETTER]
        resolve_named(self._connection, self._place.run_id, dead, self._now, target=Status.DISCARDED, note=self._note)
        return len(moved)

    def _reopen_node(self, node: int, chosen: Sequence[Row[Any]]) -> bool:
        """Count the children of a fan-out again; whether what comes after the node had been freed."""
        if chosen[0].child < 0:
            return bool(chosen[0].state == State.SUCCESS)
        before = Counter(row.state for row in chosen)
        own = select(tasks).where(self._ours, tasks.c.node == node, tasks.c.child == -1)
        row = self._connection.execute(own.with_for_update()).one()
        counts = {"dead": row.dead + len(chosen), "failed": row.failed - before[State.FAILED]}
        state = State.RUNNING if row.remaining else State.DEAD_LETTER
        if row.state == state:
            self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(counts))
        else:
            self._change(row, state, **counts)
        return bool(row.state == State.SUCCESS)

    def _change(self, row: Row[Any], state: State, **values: Any) -> None:
        self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(state=state, **values))
        change = {"task_id": row.id, "at": self._now, "before": row.state, "after": state, "cause": self._note}
        self._connection.execute(insert(task_changes), [change])
