"""Actions of an operator on failed tasks: retry, accept, skip or fail them, and cancel runs.

Used by `Flow` methods and the command line. Each action is one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, insert, select, update

from redrive.dlq.status import actor, as_note, settle_within
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, State
from redrive.store.database import corrupt_row_as_store_error
from redrive.store.encoding import encode
from redrive.store.repositories.tasks import exactly, find_run, named, resolve_cause, shown_name, unknown_task_error
from redrive.store.schema import letters, task_changes, task_runs, tasks
from redrive.store.sql import in_ids
from redrive.store.store import Store
from redrive.tasks.executor.decide import RECOVERS
from redrive.tasks.graph import reach
from redrive.tasks.operator.transaction import NOT_YET, Reset, StillRunning, change_run, state_to_run
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.progression import GraphProgress, Progression
from redrive.tasks.state.run_handle import FlowRunHandle, checked

WRONG = (State.DEAD_LETTER, State.FAILED)
CAN_RETRY = (*WRONG, State.RETRYING)
"""States of tasks that can be sent back; a task that waits for its next attempt is retried now."""
CANCELLED = "cancelled"
"""The start of the reason of a cancelled run."""
_SKIPPED = object()
"""In place of a result: the task succeeds without one, and the list of its siblings' results leaves it out."""
_LETTER_STATUS = {State.SUCCESS: Status.DISCARDED, State.FAILED: Status.DISCARDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """What an operator action changed."""

    flow: str
    run_id: UUID
    tasks: tuple[str, ...]
    """The tasks that it was applied to."""
    freed: int
    """Downstream tasks that may run now or later."""
    upstream_failed: int
    """Tasks further down that will not run."""


def retry(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str | None = None
) -> OperatorAction:
    """Send tasks back: they are retried with all their attempts, and the run continues from there."""
    note = checked_note(note or "sent back", "send back")
    return _decide(store, run, names, cause=cause, target=State.READY, note=note)


def accept(
    store: Store,
    run: UUID | str,
    names: Sequence[str] = (),
    *,
    cause: str | None = None,
    note: str,
    result: Any = None,
) -> OperatorAction:
    """Mark tasks as successful with this result, so that downstream tasks run."""
    note = checked_note(note, "accept")
    lost: list[str] = []
    encode(result, lost=lost)
    if lost:
        raise FlowError(f"a result is plain data that JSON can hold, not {lost[0]}; nothing was changed")
    return _decide(store, run, names, cause=cause, target=State.SUCCESS, note=note, result=result)


def skip(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str
) -> OperatorAction:
    """Skip children of a fan-out: downstream tasks run with the results of the other children."""
    note = checked_note(note, "skip")
    return _decide(store, run, names, cause=cause, target=State.SUCCESS, note=note, result=_SKIPPED)


def fail(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str
) -> OperatorAction:
    """Fail tasks for good, so that downstream tasks do not run."""
    return _decide(store, run, names, cause=cause, target=State.FAILED, note=checked_note(note, "fail"))


def cancel(store: Store, run: UUID | str, *, note: str) -> UUID:
    """End a run for good: its executors stop, and the next start makes a new run."""
    reason = f"{checked_note(note, 'cancel')} ({actor()})"

    def cancel_run(handle: FlowRunHandle, connection: Connection, now: datetime) -> UUID:
        of_run = task_runs.c.run_id == handle.run_id
        status = connection.execute(select(task_runs.c.status).where(of_run).with_for_update()).scalar_one()
        if status in (FlowStatus.COMPLETE, FlowStatus.ABANDONED):
            raise FlowError(f"run {str(handle.run_id)[:8]} is {status}: there is nothing to cancel")
        ended = {"ended_at": now, "judged_at": now, "updated_at": now}
        values = {"status": FlowStatus.ABANDONED, "reason": f"{CANCELLED}: {reason}", **ended}
        connection.execute(update(task_runs).where(of_run).values(**values))
        settle_within(connection, letters.c.run_id == handle.run_id, target=Status.DISCARDED, note=reason, now=now)
        return handle.run_id

    return change_run(store, run, cancel_run)


def retry_failed(handle: FlowRunHandle, connection: Connection, now: datetime) -> None:
    """Send back tasks with transient failures, in the transaction that resumes the run.

    Tasks that an operator has failed stay failed, and dead letters wait for an operator.
    """
    passing = tasks.c.kind.in_(list(RECOVERS)) & tasks.c.children.is_(None)
    failed = select(tasks).where(tasks.c.run_id == handle.run_id, tasks.c.state == State.FAILED, passing)
    rows = connection.execute(failed.order_by(tasks.c.node, tasks.c.child).with_for_update()).all()
    if rows:
        decision = _ActionTransaction(
            handle, connection, State.READY, "tried again by the next start of the run", None, now
        )
        with suppress(StillRunning):  # the executor may be dead, but this is not known yet: left to the next start
            decision.apply(rows)


def count_concerned(
    store: Store,
    run: UUID | str,
    names: Sequence[str] = (),
    *,
    cause: str | None = None,
    states: Sequence[State] = WRONG,
) -> dict[State, int]:
    """Count the tasks in these states that an action would apply to, by state; nothing is changed."""
    require_selection(names, cause)

    def count(connection: Connection) -> dict[State, int]:
        handle = FlowRunHandle.load(store, connection, find_run(connection, run))
        columns = select(tasks.c.id, tasks.c.state, tasks.c.fingerprint)
        counts = Counter(row.state for row in _select_tasks(handle, connection, columns, names, cause, states))
        return {state: counts[state] for state in states if counts[state]}

    with corrupt_row_as_store_error("flows"):
        return store.database.read(count)


def require_selection(names: Sequence[str], cause: str | None) -> None:
    """Raise FlowError if neither names nor a valid cause select tasks."""
    if not names and cause is None:
        raise FlowError("select tasks by their names, or by their cause")
    if cause is not None and not isinstance(cause, str):
        raise FlowError(f"a cause is a text, as `redrive tasks ls` shows it, not {cause!r}")


def checked_note(note: str, action: str) -> str:
    """Return the note of an action; raises FlowError without one."""
    if not isinstance(note, str) or not note.strip():
        subject = "run" if action == "cancel" else "task"
        raise FlowError(f"to {action} a {subject} needs a note with the reason; nothing was changed")
    return as_note(note)


def _decide(
    store: Store,
    run: UUID | str,
    names: Sequence[str],
    *,
    cause: str | None,
    target: State,
    note: str,
    result: Any = None,
) -> OperatorAction:
    require_selection(names, cause)

    def apply(handle: FlowRunHandle, connection: Connection, now: datetime) -> OperatorAction:
        return _ActionTransaction(handle, connection, target, f"{note} ({actor()})", result, now).run(names, cause)

    return change_run(store, run, apply)


class _ActionTransaction:
    """One operator action on tasks of one run, in one transaction."""

    def __init__(  # noqa: PLR0917 - an action has this many parts
        self, handle: FlowRunHandle, connection: Connection, target: State, note: str, result: Any, now: datetime
    ) -> None:
        self._run = handle
        self._connection = connection
        self._target = target
        self._note = note
        self._result = result
        self._now = now
        self._graph = Progression(handle, None)
        self._reset = Reset(handle, connection, now, note)
        self._without_dead: set[int] = set()  # fan-outs without dead children after the action

    def run(self, names: Sequence[str], cause: str | None) -> OperatorAction:
        """Select the tasks and apply the action."""
        self._run.lock_graph(self._connection)
        states = CAN_RETRY if self._target is State.READY else WRONG
        rows = _select_tasks(self._run, self._connection, select(tasks).with_for_update(), names, cause, states)
        chosen = [row for row in rows if row.state != self._target or self._would_be_retried(row)]
        if not chosen:
            shown = shown_name(rows[0].name, rows[0].child)
            raise FlowError(f"task {shown!r} of run {str(self._run.run_id)[:8]} is {self._target} already")
        self._check_result(chosen)
        return self.apply(chosen)

    def apply(self, chosen: Sequence[Row[Any]]) -> OperatorAction:
        """Apply the action to these tasks and to what depends on them."""
        self._run.lock_graph(self._connection)
        nodes = {row.node for row in chosen}
        if self._target is not State.FAILED:
            self._reset.check(nodes)
        self._write_states(chosen)
        progress = GraphProgress()
        closed = self._recount_fan_outs(chosen)
        closed += [(row.node, self._target) for row in chosen if row.child < 0 and self._target is not State.READY]
        # Tasks that ran because of the failures run again, unless the failure is final.
        freed = 0 if self._target is State.FAILED else self._reset.reset_below(nodes)
        self._graph.advance(
            self._connection,
            self._now,
            [fan_out for fan_out in closed if fan_out[1] in (State.SUCCESS, State.FAILED)],
            progress,
        )
        if any(self._target_state(row) is State.PENDING for row in chosen):
            self._graph.decide_waiting(self._connection, self._now)
        self._close_letters(chosen)
        wake_run(self._run, self._connection, self._now)
        return OperatorAction(
            flow=self._run.flow,
            run_id=self._run.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in chosen),
            freed=freed,
            upstream_failed=sum(progress.upstream_failed.values()),
        )

    def _would_be_retried(self, row: Row[Any]) -> bool:
        """Return whether the next start would retry a failed task that the operator fails for good now."""
        return self._target is State.FAILED and row.kind in RECOVERS

    def _check_result(self, chosen: Sequence[Row[Any]]) -> None:
        places = self._run.shape.places
        for row in chosen:
            checked(State(row.state), self._target_state(row))
            if self._result is _SKIPPED and row.child < 0:
                raise FlowError(
                    f"{row.name!r} is not a child of a fan-out, so there is no list to leave it out of: accept it with "
                    "a result, or fail it"
                )
            if self._target is not State.SUCCESS or row.child >= 0 or isinstance(self._result, list):
                continue
            if places[row.node].kind == "fan-out":
                raise FlowError(
                    f"{row.name!r} runs for each item of a list, and its result is a list: accept it with one, "
                    "`--result '[…]'`"
                )
            feeds = [place.name for place in places if place.kind == "fan-out" and place.after[0] == row.node]
            if feeds:
                raise FlowError(
                    f"{feeds[0]!r} runs for each item of the result of {row.name!r}: accept it with a list, "
                    "`--result '[…]'`"
                )

    def _target_state(self, row: Row[Any]) -> State:
        return state_to_run(self._run, row) if self._target is State.READY else self._target

    def _write_states(self, chosen: Sequence[Row[Any]]) -> None:
        by_state: dict[State, list[Row[Any]]] = {}
        for row in chosen:
            by_state.setdefault(self._target_state(row), []).append(row)
        for state, rows in by_state.items():
            of_state = in_ids(tasks.c.id, [row.id for row in rows])
            self._connection.execute(update(tasks).where(of_state).values(state=state, **self._values(state)))
            common = {"at": self._now, "after": state, "cause": self._note}
            changes = [{"task_id": row.id, "before": row.state, **common} for row in rows]
            self._connection.execute(insert(task_changes), changes)

    def _values(self, state: State) -> dict[str, Any]:
        values: dict[str, Any] = {"note": self._note, "due_at": None, "ended_at": self._now}
        if self._target is State.READY:
            values |= {**NOT_YET, "due_at": None if state is State.PENDING else self._now}
        elif self._target is State.FAILED:
            values["kind"] = Kind.PERMANENT  # so that resuming the run does not retry it
        elif self._result is _SKIPPED:
            values |= {"result": None, "kind": Kind.DISCARD}
        elif self._target is State.SUCCESS:
            values["result"] = encode(self._result)
        return values

    def _recount_fan_outs(self, chosen: Sequence[Row[Any]]) -> list[tuple[int, State]]:
        """Update the counts of fan-outs; return the fan-outs whose state changed, with the new states."""
        moved: Counter[tuple[int, str]] = Counter((row.node, row.state) for row in chosen if row.child >= 0)
        changed = []
        for node in sorted({node for node, _ in moved}):
            dead, failed = moved[node, State.DEAD_LETTER], moved[node, State.FAILED]
            reopened = dead + failed if self._target is State.READY else 0
            newly_failed = dead + failed if self._target is State.FAILED else 0
            row = self._connection.execute(
                update(tasks)
                .where(tasks.c.run_id == self._run.run_id, tasks.c.node == node, tasks.c.child == -1)
                .values(
                    remaining=tasks.c.remaining + reopened,
                    dead=tasks.c.dead - dead,
                    failed=tasks.c.failed - failed + newly_failed,
                )
                .returning(tasks.c.id, tasks.c.state, tasks.c.remaining, tasks.c.dead, tasks.c.failed)
            ).one()
            state = (
                *([State.RUNNING] if row.remaining else []),
                *([State.DEAD_LETTER] if row.dead else []),
                *([State.FAILED] if row.failed else []),
                State.SUCCESS,
            )[0]
            if not row.dead:
                self._without_dead.add(node)
            if row.state != state:
                self._graph.change_state(self._connection, self._now, row.id, (State(row.state), state), self._note)
                changed.append((node, state))
        return changed

    def _close_letters(self, chosen: Sequence[Row[Any]]) -> None:
        status = _LETTER_STATUS.get(self._target)
        if status is not None:
            names = {shown_name(row.name, row.child) for row in chosen}
            names |= {row.name for row in chosen if row.node in self._without_dead}
            resolve_named(self._connection, self._run.run_id, sorted(names), self._now, target=status, note=self._note)


def wake_run(handle: FlowRunHandle, connection: Connection, now: datetime) -> None:
    """Mark the run as changed: running executors notice it, and the next start resumes a run that had ended."""
    of_run = task_runs.c.run_id == handle.run_id
    run = connection.execute(update(task_runs).where(of_run).values(updated_at=now).returning(task_runs.c.status)).one()
    if run.status == FlowStatus.ABANDONED:
        raise FlowError(f"run {str(handle.run_id)[:8]} was abandoned; there is nothing left to decide")
    if run.status != FlowStatus.RUNNING:
        reason = "an operator has decided about its tasks"
        values = {"status": FlowStatus.STOPPED, "reason": reason, "ended_at": None, "judged_at": None}
        connection.execute(update(task_runs).where(of_run).values(**values))


def _select_tasks(  # noqa: PLR0917 - the query and its filters
    handle: FlowRunHandle,
    connection: Connection,
    query: Select[Any],
    names: Sequence[str],
    cause: str | None,
    states: Sequence[State],
) -> list[Row[Any]]:
    """Return the selected tasks; raises FlowError if a named one is not in one of these states."""
    wrong = tasks.c.state.in_(states) & tasks.c.children.is_(None)
    candidates = query.where(tasks.c.run_id == handle.run_id, wrong).order_by(tasks.c.node, tasks.c.child)
    if cause is not None:
        cause = resolve_cause(connection, handle.run_id, cause, states)
        if not names:
            return list(connection.execute(candidates.where(tasks.c.fingerprint == cause)))
    rows_by_id: dict[int, Row[Any]] = {}
    for name in names:
        rows = list(connection.execute(candidates.where(named(name))))
        if not rows:
            raise _wrong_state_error(handle, connection, name)
        rows_by_id |= {row.id: row for row in rows if cause is None or row.fingerprint == cause}
    if not rows_by_id:
        raise FlowError(f"none of these tasks went wrong for the cause {cause!r}")
    return list(rows_by_id.values())


def _wrong_state_error(handle: FlowRunHandle, connection: Connection, name: str) -> FlowError:
    query = select(tasks.c.node, tasks.c.state).where(tasks.c.run_id == handle.run_id)
    row = connection.execute(query.where(exactly(name))).first()
    if row is None:
        return unknown_task_error(connection, handle.run_id, name)
    if row.state == State.UPSTREAM_FAILED:
        failed = connection.execute(query.where(tasks.c.state == State.FAILED, tasks.c.child == -1)).all()
        above = [handle.shape.places[task.node].name for task in failed if row.node in reach([task.node], handle.below)]
        cause = f"{above[0]!r}, which is above it," if above else "one above it"
        return FlowError(f"task {name!r} did not run because {cause} failed: decide about that one")
    run = str(handle.run_id)[:8]
    return FlowError(f"task {name!r} of run {run} is {row.state}: nothing went wrong that could be decided about")
