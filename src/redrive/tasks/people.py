"""What people do about tasks that went wrong: send them back, accept them as they are, or fail them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, insert, select, update

from redrive.dlq.change import actor
from redrive.errors import FlowError
from redrive.flows import FlowStatus, State
from redrive.letters import Status
from redrive.opening import Store
from redrive.store.encoding import encode
from redrive.store.listed import among
from redrive.store.schema import task_changes, task_runs, tasks
from redrive.store.task_log import exactly, find_run, named, shown_name
from redrive.tasks.graph import reach
from redrive.tasks.letters import settle_named
from redrive.tasks.place import Place
from redrive.tasks.results import Results
from redrive.tasks.settle import Settled, Settler
from redrive.tasks.states import checked

WRONG = (State.DEAD_LETTER, State.FAILED)
_SETTLES_LETTERS = {State.SUCCESS: Status.DISCARDED, State.FAILED: Status.DISCARDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a decision changed."""

    flow: str
    run_id: UUID
    tasks: tuple[str, ...]
    freed: int
    """Tasks further down that may run now, or will, once they are reached."""
    upstream_failed: int
    """Tasks further down that will not run."""


def retry(
    store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str | None = None
) -> Decided:
    """Send tasks back: they are tried again as if they had never been, and the graph goes on from there."""
    return _decide(store, run, names, cause, State.READY, note or "sent back")


def accept(
    store: Store,
    run: UUID | str,
    names: Sequence[str] = (),
    *,
    cause: str | None = None,
    note: str,
    result: Any = None,
) -> Decided:
    """Take tasks as done, with the result given here: what comes after them runs."""
    return _decide(store, run, names, cause, State.SUCCESS, _checked(note, "accept"), result)


def fail(store: Store, run: UUID | str, names: Sequence[str] = (), *, cause: str | None = None, note: str) -> Decided:
    """Give tasks up: what comes after them does not run."""
    return _decide(store, run, names, cause, State.FAILED, _checked(note, "fail"))


def _checked(note: str, action: str) -> str:
    if not isinstance(note, str) or not note.strip():
        raise FlowError(f"to {action} a task needs a note that says why; nothing was changed")
    return note.strip()


def _decide(
    store: Store,
    run: UUID | str,
    names: Sequence[str],
    cause: str | None,
    target: State,
    note: str,
    result: Any = None,
) -> Decided:
    if not names and cause is None:
        raise FlowError("say which tasks: by their names, or by their cause")

    def work(connection: Connection) -> Decided:
        run_id = find_run(connection, run)
        place = Place.of(store, connection, run_id)
        return _Decision(place, connection, target, f"{note} ({actor()})", result).take(names, cause)

    return store.database.write(work)


class _Decision:
    """One decision of a person about tasks of one run, in one transaction."""

    def __init__(self, place: Place, connection: Connection, target: State, note: str, result: Any) -> None:
        self._place = place
        self._connection = connection
        self._target = target
        self._note = note
        self._result = result
        self._now: datetime = place.database.dialect.now(connection)
        self._settler = Settler(place, Results(place, None))

    def take(self, names: Sequence[str], cause: str | None) -> Decided:
        """Make it so."""
        chosen = self._chosen(names, cause)
        self._refuse_what_makes_no_sense(chosen)
        for row in chosen:
            self._move(row)
        settled = Settled()
        closed = self._regroup(chosen)
        closed += [(row.node, self._target) for row in chosen if row.child < 0 and self._target is not State.READY]
        freed = self._revive_below()
        self._settler.advance(
            self._connection, self._now, [one for one in closed if one[1] in (State.SUCCESS, State.FAILED)], settled
        )
        self._letters(chosen)
        self._wake_the_run()
        return Decided(
            flow=self._place.flow,
            run_id=self._place.run_id,
            tasks=tuple(shown_name(row.name, row.child) for row in chosen),
            freed=freed,
            upstream_failed=sum(settled.upstream_failed.values()),
        )

    def _chosen(self, names: Sequence[str], cause: str | None) -> list[Row[Any]]:
        ours = select(tasks).where(tasks.c.run_id == self._place.run_id).with_for_update()
        ours = ours.order_by(tasks.c.node, tasks.c.child)
        wrong = tasks.c.state.in_(WRONG) & tasks.c.children.is_(None)
        found: dict[int, Row[Any]] = {}
        for name in names:
            rows = [row for row in self._connection.execute(ours.where(named(name), wrong))]
            if not rows:
                raise self._nothing_wrong_with(name)
            found |= {row.id: row for row in rows if cause is None or (row.fingerprint or "").startswith(cause)}
        if not names and cause is not None:
            of_cause = tasks.c.fingerprint.startswith(cause, autoescape=True)
            found = {row.id: row for row in self._connection.execute(ours.where(of_cause, wrong))}
        if not found:
            raise FlowError(f"no task of run {str(self._place.run_id)[:8]} went wrong for the cause {cause!r}")
        return list(found.values())

    def _nothing_wrong_with(self, name: str) -> FlowError:
        row = self._connection.execute(
            select(tasks.c.state).where(tasks.c.run_id == self._place.run_id, exactly(name))
        ).first()
        run = str(self._place.run_id)[:8]
        if row is None:
            return FlowError(f"run {run} has no task {name!r}; see `redrive tasks ls --run {run}`")
        if row.state == State.UPSTREAM_FAILED:
            return FlowError(f"task {name!r} did not run because one above it failed: decide about that one")
        return FlowError(f"task {name!r} of run {run} is {row.state}: nothing went wrong that could be decided about")

    def _refuse_what_makes_no_sense(self, chosen: Sequence[Row[Any]]) -> None:
        places = self._place.shape.places
        for row in chosen:
            checked(State(row.state), self._state_of(row))
            feeds = [place.name for place in places if place.kind == "fan-out" and place.after[0] == row.node]
            if self._target is State.SUCCESS and row.child < 0 and feeds and not isinstance(self._result, list):
                raise FlowError(
                    f"{feeds[0]!r} runs for each item of the result of {row.name!r}: accept it with a list as its result"
                )

    def _state_of(self, row: Row[Any]) -> State:
        if self._target is State.READY and self._place.shape.places[row.node].kind == "sensor":
            return State.SENSING
        return self._target

    def _move(self, row: Row[Any]) -> None:
        state = self._state_of(row)
        values: dict[str, Any] = {"state": state, "note": self._note, "due_at": None, "ended_at": self._now}
        if self._target is State.READY:
            again = {"due_at": self._now, "ended_at": None, "since": None, "wait": None, "failures": 0, "same": 0}
            values |= {**again, "fingerprint": None, "error": None, "kind": None}
        elif self._target is State.SUCCESS:
            values["result"] = encode(self._result)
        self._connection.execute(update(tasks).where(tasks.c.id == row.id).values(**values))
        change = {"task_id": row.id, "at": self._now, "before": row.state, "after": state, "cause": self._note}
        self._connection.execute(insert(task_changes), change)

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
            if row.state != state:
                self._settler.change(self._connection, self._now, row.id, State(row.state), state, self._note)
                changed.append((node, state))
        return changed

    def _revive_below(self) -> int:
        """What did not run because of a failure that is none any more waits again; how many these are."""
        own = select(tasks.c.id, tasks.c.node, tasks.c.state).where(
            tasks.c.run_id == self._place.run_id, tasks.c.child == -1
        )
        rows = self._connection.execute(own).all()
        doomed = reach([row.node for row in rows if row.state == State.FAILED], self._place.below)
        revived = [row.id for row in rows if row.state == State.UPSTREAM_FAILED and row.node not in doomed]
        if revived:
            waits = {"state": checked(State.UPSTREAM_FAILED, State.PENDING), "ended_at": None}
            self._connection.execute(update(tasks).where(among(tasks.c.id, revived)).values(**waits))
            common = {"at": self._now, "before": State.UPSTREAM_FAILED, "after": State.PENDING, "cause": self._note}
            self._connection.execute(insert(task_changes), [{"task_id": one, **common} for one in revived])
        return len(revived)

    def _letters(self, chosen: Sequence[Row[Any]]) -> None:
        status = _SETTLES_LETTERS.get(self._target)
        if status is not None:
            known = {shown_name(row.name, row.child) for row in chosen} | {row.name for row in chosen}
            settle_named(self._connection, self._place.run_id, sorted(known), self._now, target=status, note=self._note)

    def _wake_the_run(self) -> None:
        """The next run of the flow goes on with this one; an executor that is at work on it sees that it changed."""
        run = self._connection.execute(
            update(task_runs)
            .where(task_runs.c.run_id == self._place.run_id)
            .values(updated_at=self._now)
            .returning(task_runs.c.status)
        ).one()
        if run.status == FlowStatus.ABANDONED:
            raise FlowError(
                f"run {str(self._place.run_id)[:8]} was given up; there is nothing to decide about any more"
            )
        if run.status != FlowStatus.RUNNING:
            waits = {"status": FlowStatus.STOPPED, "reason": "a person has decided about its tasks", "ended_at": None}
            self._connection.execute(update(task_runs).where(task_runs.c.run_id == self._place.run_id).values(**waits))
