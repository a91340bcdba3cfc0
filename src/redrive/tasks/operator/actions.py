"""What people do about tasks that went wrong: send them back, accept or skip them, or fail them."""

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
from redrive.store.corrupt_rows import corrupt_row_as_store_error
from redrive.store.encoding import encode
from redrive.store.repositories.tasks import exactly, find_run, named, resolve_cause, shown_name, unknown_task_error
from redrive.store.schema import letters, task_changes, task_runs, tasks
from redrive.store.sql import in_ids
from redrive.store.store import Store
from redrive.tasks.executor.decide import RECOVERS
from redrive.tasks.graph import reach
from redrive.tasks.operator.reset import NOT_YET, Reset, StillRunning, state_to_run
from redrive.tasks.operator.transaction import change_run
from redrive.tasks.state.letters import resolve_named
from redrive.tasks.state.progression import Progress, Progression
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.state.states import checked

WRONG = (State.DEAD_LETTER, State.FAILED)
CAN_RETRY = (*WRONG, State.RETRYING)
"""The states of tasks that can be sent back; one that waits for its next attempt makes it now."""
CANCELLED = "cancelled"
"""What the reason of a run that was cancelled begins with."""
_SKIPPED = object()
"""Instead of a result: the task is done without one, and not in the list of its siblings' results."""
_SETTLES_LETTERS = {State.SUCCESS: Status.DISCARDED, State.FAILED: Status.DISCARDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """What a decision changed."""

    flow: str
    run_id: UUID
    tasks: tuple[str, ...]
    """Those it was about."""
    freed: int
    """Tasks further down that may run now, or will, once they are reached."""
    upstream_failed: int
    """Tasks further down that will not run."""


def retry(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str | None = None
) -> OperatorAction:
    """Send tasks back: they are tried again with all their attempts, and the graph goes on from there."""
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
    """Take tasks as done, with the result given here: what comes after them runs."""
    note = checked_note(note, "accept")
    lost: list[str] = []
    encode(result, lost=lost)
    if lost:
        raise FlowError(f"a result is plain data that JSON can hold, not {lost[0]}; nothing was changed")
    return _decide(store, run, names, cause=cause, target=State.SUCCESS, note=note, result=result)


def skip(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str
) -> OperatorAction:
    """Leave children of a fan-out out: what comes after it runs, and is given the results of the others."""
    note = checked_note(note, "skip")
    return _decide(store, run, names, cause=cause, target=State.SUCCESS, note=note, result=_SKIPPED)


def fail(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str
) -> OperatorAction:
    """Give tasks up: what comes after them does not run."""
    return _decide(store, run, names, cause=cause, target=State.FAILED, note=checked_note(note, "fail"))


def cancel(store: Store, run: UUID | str, *, note: str) -> UUID:
    """End a run for good: executors that are at work on it stop, and the next start begins a new run."""
    why = f"{checked_note(note, 'cancel')} ({actor()})"

    def work(place: RunHandle, connection: Connection, now: datetime) -> UUID:
        ours = task_runs.c.run_id == place.run_id
        status = connection.execute(select(task_runs.c.status).where(ours).with_for_update()).scalar_one()
        if status in (FlowStatus.COMPLETE, FlowStatus.ABANDONED):
            raise FlowError(f"run {str(place.run_id)[:8]} is {status}: there is nothing to cancel")
        ended = {"ended_at": now, "judged_at": now, "updated_at": now}
        values = {"status": FlowStatus.ABANDONED, "reason": f"{CANCELLED}: {why}", **ended}
        connection.execute(update(task_runs).where(ours).values(**values))
        settle_within(connection, letters.c.run_id == place.run_id, target=Status.DISCARDED, note=why, now=now)
        return place.run_id

    return change_run(store, run, work)


def retry_failed(place: RunHandle, connection: Connection, now: datetime) -> None:
    """Send back what failed of something that passes by itself, in the transaction that resumes the run.

    What an operator has failed stays failed, and a dead letter waits for a decision.
    """
    passing = tasks.c.kind.in_(list(RECOVERS)) & tasks.c.children.is_(None)
    failed = select(tasks).where(tasks.c.run_id == place.run_id, tasks.c.state == State.FAILED, passing)
    rows = connection.execute(failed.order_by(tasks.c.node, tasks.c.child).with_for_update()).all()
    if rows:
        decision = _ActionTransaction(
            place, connection, State.READY, "tried again by the next start of the run", None, now
        )
        with suppress(StillRunning):  # of an executor whose end is not known yet: left to the next start
            decision.apply(rows)


def concerned(
    store: Store,
    run: UUID | str,
    names: Sequence[str] = (),
    *,
    cause: str | None = None,
    states: Sequence[State] = WRONG,
) -> dict[State, int]:
    """How many tasks in these states a decision would be about, by state; nothing is changed."""
    must_say_which(names, cause)

    def work(connection: Connection) -> dict[State, int]:
        place = RunHandle.load(store, connection, find_run(connection, run))
        wanted = select(tasks.c.id, tasks.c.state, tasks.c.fingerprint)
        found = Counter(row.state for row in _chosen(place, connection, wanted, names, cause, states))
        return {state: found[state] for state in states if found[state]}

    with corrupt_row_as_store_error("flows"):
        return store.database.read(work)


def must_say_which(names: Sequence[str], cause: str | None) -> None:
    """FlowError where no task is meant, or none can be."""
    if not names and cause is None:
        raise FlowError("say which tasks: by their names, or by their cause")
    if cause is not None and not isinstance(cause, str):
        raise FlowError(f"a cause is a text, as `redrive tasks ls` shows it, not {cause!r}")


def checked_note(note: str, action: str) -> str:
    """A note that says why; FlowError without one."""
    if not isinstance(note, str) or not note.strip():
        what = "run" if action == "cancel" else "task"
        raise FlowError(f"to {action} a {what} needs a note that says why; nothing was changed")
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
    must_say_which(names, cause)

    def work(place: RunHandle, connection: Connection, now: datetime) -> OperatorAction:
        return _ActionTransaction(place, connection, target, f"{note} ({actor()})", result, now).take(names, cause)

    return change_run(store, run, work)


class _ActionTransaction:
    """One decision of a person about tasks of one run, in one transaction."""

    def __init__(  # noqa: PLR0917 - all of it is what a decision is
        self, place: RunHandle, connection: Connection, target: State, note: str, result: Any, now: datetime
    ) -> None:
        self._place = place
        self._connection = connection
        self._target = target
        self._note = note
        self._result = result
        self._now = now
        self._graph = Progression(place, None)
        self._reset = Reset(place, connection, now, note)
        self._without_dead: set[int] = set()  # fan-outs none of whose children is a dead letter any more

    def take(self, names: Sequence[str], cause: str | None) -> OperatorAction:
        """Make it so."""
        self._place.lock_graph(self._connection)
        states = CAN_RETRY if self._target is State.READY else WRONG
        found = _chosen(self._place, self._connection, select(tasks).with_for_update(), names, cause, states)
        chosen = [row for row in found if row.state != self._target or self._is_tried_again(row)]
        if not chosen:
            shown = shown_name(found[0].name, found[0].child)
            raise FlowError(f"task {shown!r} of run {str(self._place.run_id)[:8]} is {self._target} already")
        self._refuse_what_makes_no_sense(chosen)
        return self.apply(chosen)

    def apply(self, chosen: Sequence[Row[Any]]) -> OperatorAction:
        """Make it so for these tasks, and for what depends on them."""
        self._place.lock_graph(self._connection)
        nodes = {row.node for row in chosen}
        if self._target is not State.FAILED:
            self._reset.check(nodes)
        self._move(chosen)
        settled = Progress()
        closed = self._regroup(chosen)
        closed += [(row.node, self._target) for row in chosen if row.child < 0 and self._target is not State.READY]
        # What ran because the tasks had failed runs again, unless they have failed for good.
        freed = 0 if self._target is State.FAILED else self._reset.below(nodes)
        self._graph.advance(
            self._connection, self._now, [one for one in closed if one[1] in (State.SUCCESS, State.FAILED)], settled
        )
        if any(self._state_of(row) is State.PENDING for row in chosen):
            self._graph.decide_waiting(self._connection, self._now)
        self._letters(chosen)
        wake_run(self._place, self._connection, self._now)
        return OperatorAction(
            flow=self._place.flow,
            run_id=self._place.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in chosen),
            freed=freed,
            upstream_failed=sum(settled.upstream_failed.values()),
        )

    def _is_tried_again(self, row: Row[Any]) -> bool:
        """Whether a failed task would be tried again by the next start, unless an operator fails it for good."""
        return self._target is State.FAILED and row.kind in RECOVERS

    def _refuse_what_makes_no_sense(self, chosen: Sequence[Row[Any]]) -> None:
        places = self._place.shape.places
        for row in chosen:
            checked(State(row.state), self._state_of(row))
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

    def _state_of(self, row: Row[Any]) -> State:
        return state_to_run(self._place, row) if self._target is State.READY else self._target

    def _move(self, chosen: Sequence[Row[Any]]) -> None:
        by_state: dict[State, list[Row[Any]]] = {}
        for row in chosen:
            by_state.setdefault(self._state_of(row), []).append(row)
        for state, rows in by_state.items():
            theirs = in_ids(tasks.c.id, [row.id for row in rows])
            self._connection.execute(update(tasks).where(theirs).values(state=state, **self._values(state)))
            common = {"at": self._now, "after": state, "cause": self._note}
            changes = [{"task_id": row.id, "before": row.state, **common} for row in rows]
            self._connection.execute(insert(task_changes), changes)

    def _values(self, state: State) -> dict[str, Any]:
        values: dict[str, Any] = {"note": self._note, "due_at": None, "ended_at": self._now}
        if self._target is State.READY:
            values |= {**NOT_YET, "due_at": None if state is State.PENDING else self._now}
        elif self._target is State.FAILED:
            values["kind"] = Kind.PERMANENT  # so that no start of the run tries it again
        elif self._result is _SKIPPED:
            values |= {"result": None, "kind": Kind.DISCARD}
        elif self._target is State.SUCCESS:
            values["result"] = encode(self._result)
        return values

    def _regroup(self, chosen: Sequence[Row[Any]]) -> list[tuple[int, State]]:
        """Count the children of fan-outs anew; the fan-outs that are another state for it."""
        moved: Counter[tuple[int, str]] = Counter((row.node, row.state) for row in chosen if row.child >= 0)
        changed = []
        for node in sorted({node for node, _ in moved}):
            dead, failed = moved[node, State.DEAD_LETTER], moved[node, State.FAILED]
            back = dead + failed if self._target is State.READY else 0
            given_up = dead + failed if self._target is State.FAILED else 0
            row = self._connection.execute(
                update(tasks)
                .where(tasks.c.run_id == self._place.run_id, tasks.c.node == node, tasks.c.child == -1)
                .values(
                    remaining=tasks.c.remaining + back,
                    dead=tasks.c.dead - dead,
                    failed=tasks.c.failed - failed + given_up,
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

    def _letters(self, chosen: Sequence[Row[Any]]) -> None:
        status = _SETTLES_LETTERS.get(self._target)
        if status is not None:
            known = {shown_name(row.name, row.child) for row in chosen}
            known |= {row.name for row in chosen if row.node in self._without_dead}
            resolve_named(
                self._connection, self._place.run_id, sorted(known), self._now, target=status, note=self._note
            )


def wake_run(place: RunHandle, connection: Connection, now: datetime) -> None:
    """Let the next run of the flow resume this one; an executor that is at work on it sees that it changed."""
    ours = task_runs.c.run_id == place.run_id
    run = connection.execute(update(task_runs).where(ours).values(updated_at=now).returning(task_runs.c.status)).one()
    if run.status == FlowStatus.ABANDONED:
        raise FlowError(f"run {str(place.run_id)[:8]} was given up; there is nothing to decide about any more")
    if run.status != FlowStatus.RUNNING:
        reason = "a person has decided about its tasks"
        waits = {"status": FlowStatus.STOPPED, "reason": reason, "ended_at": None, "judged_at": None}
        connection.execute(update(task_runs).where(ours).values(**waits))


def _chosen(  # noqa: PLR0917 - what is looked for, and where
    place: RunHandle,
    connection: Connection,
    wanted: Select[Any],
    names: Sequence[str],
    cause: str | None,
    states: Sequence[State],
) -> list[Row[Any]]:
    """The tasks that are meant, all of them in one of these states."""
    wrong = tasks.c.state.in_(states) & tasks.c.children.is_(None)
    ours = wanted.where(tasks.c.run_id == place.run_id, wrong).order_by(tasks.c.node, tasks.c.child)
    if cause is not None:
        cause = resolve_cause(connection, place.run_id, cause, states)
        if not names:
            return list(connection.execute(ours.where(tasks.c.fingerprint == cause)))
    found: dict[int, Row[Any]] = {}
    for name in names:
        rows = list(connection.execute(ours.where(named(name))))
        if not rows:
            raise _nothing_wrong_with(place, connection, name)
        found |= {row.id: row for row in rows if cause is None or row.fingerprint == cause}
    if not found:
        raise FlowError(f"none of these tasks went wrong for the cause {cause!r}")
    return list(found.values())


def _nothing_wrong_with(place: RunHandle, connection: Connection, name: str) -> FlowError:
    own = select(tasks.c.node, tasks.c.state).where(tasks.c.run_id == place.run_id)
    row = connection.execute(own.where(exactly(name))).first()
    if row is None:
        return unknown_task_error(connection, place.run_id, name)
    if row.state == State.UPSTREAM_FAILED:
        failed = connection.execute(own.where(tasks.c.state == State.FAILED, tasks.c.child == -1)).all()
        above = [place.shape.places[one.node].name for one in failed if row.node in reach([one.node], place.below)]
        which = f"{above[0]!r}, which is above it," if above else "one above it"
        return FlowError(f"task {name!r} did not run because {which} failed: decide about that one")
    run = str(place.run_id)[:8]
    return FlowError(f"task {name!r} of run {run} is {row.state}: nothing went wrong that could be decided about")
