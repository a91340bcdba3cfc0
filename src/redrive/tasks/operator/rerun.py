"""Rerun: tasks that succeeded run once more, and everything that comes after them."""

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
from redrive.tasks.operator.actions import WRONG, OperatorAction, must_say_which, wake_run
from redrive.tasks.operator.reset import NO_RESULT, NOT_YET, Reset, state_to_run
from redrive.tasks.operator.transaction import change_run, rows_named
from redrive.tasks.state.progression import Progression
from redrive.tasks.state.run_handle import RunHandle


def rerun(
    store: Store, run: UUID | str, names: Sequence[str], *, note: str | None = None, dry_run: bool = False
) -> OperatorAction:
    """Have tasks that succeeded run again, and what comes after them; with `dry_run`, only say what that would be.

    Raises `FlowError` where something that comes after them is running.
    """
    must_say_which(names, None)
    why = as_note(f"{note or 'rerun'} ({actor()})")

    def work(place: RunHandle, connection: Connection, now: datetime) -> OperatorAction:
        rerunning = _Rerun(place, connection, now, why)
        return rerunning.foresee(names) if dry_run else rerunning.take(names)

    return change_run(store, run, work)


class _Rerun:
    """One rerun, in one transaction."""

    def __init__(self, place: RunHandle, connection: Connection, now: datetime, note: str) -> None:
        self._place, self._connection, self._now, self._note = place, connection, now, note
        self._ours = tasks.c.run_id == place.run_id
        self._reset = Reset(place, connection, now, note)

    def foresee(self, names: Sequence[str]) -> OperatorAction:
        """What would run again."""
        chosen = self._succeeded(names)
        below = reach({row.node for row in chosen}, self._place.below)
        states, _ = self._place.read_states(self._connection)
        return self._decided(chosen, sum(states[node] is not State.PENDING for node in below))

    def take(self, names: Sequence[str]) -> OperatorAction:
        """Make it so."""
        self._place.lock_graph(self._connection)
        chosen = self._succeeded(names)
        nodes = sorted({row.node for row in chosen})
        self._reset.check(nodes)
        for row in chosen:
            state = state_to_run(self._place, row)
            due = None if state is State.PENDING else self._now
            self._reset.change(row, state, **{**NOT_YET, **NO_RESULT, "due_at": due, "note": self._note})
        for node in nodes:
            self._reopen(node, [row for row in chosen if row.node == node])
        freed = self._reset.below(nodes)
        if any(state_to_run(self._place, row) is State.PENDING for row in chosen):
            Progression(self._place, None).decide_waiting(self._connection, self._now)
        wake_run(self._place, self._connection, self._now)
        return self._decided(chosen, freed)

    def _succeeded(self, names: Sequence[str]) -> list[Row[Any]]:
        found: dict[int, Row[Any]] = {}
        for name in names:
            rows = rows_named(self._place, self._connection, name)
            done = [row for row in rows if row.state == State.SUCCESS]
            if not done:
                state, run = rows[0].state, str(self._place.run_id)[:8]
                then = f": `redrive tasks retry {name}`" if state in WRONG else ", and only what succeeded is run again"
                raise FlowError(f"task {name!r} of run {run} is {state}{then}")
            found |= {row.id: row for row in done}
        return list(found.values())

    def _reopen(self, node: int, chosen: Sequence[Row[Any]]) -> None:
        """Let those that were freed by a success wait again; of a fan-out, count its children again."""
        if chosen[0].child < 0:
            self._reset.take_back(chosen[0])
            return
        own = select(tasks).where(self._ours, tasks.c.node == node, tasks.c.child == -1).with_for_update()
        row = self._connection.execute(own).one()
        more = {"remaining": row.remaining + len(chosen)}
        if row.state == State.SUCCESS:
            self._reset.take_back(row)
        if row.state == State.RUNNING:
            self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(**more))
        else:
            self._reset.change(row, State.RUNNING, ended_at=None, **more)

    def _decided(self, chosen: Sequence[Row[Any]], freed: int) -> OperatorAction:
        return OperatorAction(
            flow=self._place.flow,
            run_id=self._place.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in chosen),
            freed=freed,
            upstream_failed=0,
        )
