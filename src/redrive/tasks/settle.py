"""Settling: what became of attempts, and what follows from it for the rest of the graph, in one transaction."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Text, bindparam, delete, insert, select, true, update

from redrive.flows import State
from redrive.store.listed import among, as_list
from redrive.store.schema import task_attempts, tasks
from redrive.tasks.claims import CHANGE, Claim
from redrive.tasks.decide import Next
from redrive.tasks.graph import reach
from redrive.tasks.letters import put_letters, settle_as_done, settle_letters
from redrive.tasks.place import Place
from redrive.tasks.results import Results
from redrive.tasks.states import checked
from redrive.tasks.work import Outcome

_OVER = {State.SUCCESS, State.FAILED, State.DEAD_LETTER}
_INSERTED_AT_ONCE = 5_000


@dataclass(slots=True)
class Settlement:
    """What is to be written of an attempt that has ended; of a task that was not tried, without an attempt."""

    claim: Claim
    next: Next
    outcome: Outcome | None = None
    result_file: str | None = None
    begun: bool = True
    """Whether somebody began it; otherwise it was no attempt, and is not counted as one."""
    owner: int | None = None
    """Whose it was, where that is not the one who writes."""
    ended_at: float = field(default_factory=time.time)
    """By this machine's clock; the database writes down its own."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A fan-out whose children die of one cause: those not tried yet share their fate."""

    node: int
    like: Settlement
    dead: int


@dataclass(slots=True)
class Settled:
    """What followed."""

    ready: set[int] = field(default_factory=set)
    """Nodes that have something to claim now."""
    closed: dict[int, State] = field(default_factory=dict)
    """Nodes that are over, with all their children."""
    upstream_failed: dict[int, int] = field(default_factory=dict)
    """For each node that failed, how many will not run because of it."""
    untried: dict[int, int] = field(default_factory=dict)
    """For each storm, how many were not tried."""


class Settler:
    """Writes settlements and moves the graph on; without results, fan-outs are left to one that has them."""

    def __init__(self, place: Place, results: Results | None) -> None:
        self._place = place
        self._results = results

    def start(self, connection: Connection, now: datetime) -> Settled:
        """Make ready what waits for nothing; of a new run, its beginning, of an old one, nothing."""
        settled = Settled()
        free = (
            select(tasks.c.node)
            .where(tasks.c.run_id == self._place.run_id, tasks.c.child == -1)
            .where(tasks.c.state == State.PENDING, tasks.c.waiting == 0)
            .with_for_update()  # another executor may begin at the same moment
        )
        done: list[tuple[int, State]] = []
        self._promote(connection, now, list(connection.execute(free).scalars()), settled, done)
        self.advance(connection, now, done, settled)
        return settled

    def settle(
        self, connection: Connection, now: datetime, settlements: Sequence[Settlement], storms: Sequence[Storm]
    ) -> Settled:
        """Write them all."""
        settled = Settled()
        if settlements:
            self._write(connection, now, settlements)
        over = [one for one in settlements if one.next.state in _OVER]
        done: list[tuple[int, State]] = [(one.claim.node, one.next.state) for one in over if one.claim.child < 0]
        children: dict[int, list[State]] = defaultdict(list)
        for one in over:
            if one.claim.child >= 0:
                children[one.claim.node].append(one.next.state)
        for storm in storms:
            untried = self._strike(connection, now, storm)
            settled.untried[storm.node] = settled.untried.get(storm.node, 0) + untried
            children[storm.node] += [State.DEAD_LETTER] * untried
        for node in sorted(children):  # one order for all executors, so that two of them do not lock each other out
            done += self._count(connection, now, node, children[node])
        self._letters(connection, now, over, storms, settled)
        whole = [node for node, state in done if node in children and state is not State.DEAD_LETTER]
        if whole:  # those that a storm once kept from being tried had one letter together
            names = [self._place.shape.places[node].name for node in whole]
            settle_as_done(self._place, connection, now, names)
        self.advance(connection, now, done, settled)
        return settled

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, connection: Connection, now: datetime, settlements: Sequence[Settlement]) -> None:
        connection.execute(_SETTLE, [self._task_values(one, now) for one in settlements])
        attempts = [_attempt_values(one, one.outcome, now) for one in settlements if one.outcome and one.begun]
        if attempts:
            connection.execute(_END_ATTEMPT, attempts)
        never_begun = [{"b_id": one.claim.id, "b_attempt": one.claim.attempt} for one in settlements if not one.begun]
        if never_begun:
            connection.execute(_FORGET_ATTEMPT, never_begun)
        changes = [
            _change(one.claim.id, now, before, one.next.state, one.next.cause)
            for one in settlements
            if (before := self._before(one)) != one.next.state
        ]
        if changes:
            connection.execute(CHANGE, changes)

    def _before(self, one: Settlement) -> State:
        if self._place.shape.places[one.claim.node].kind == "sensor":
            return State.SENSING
        return State.RUNNING

    def _task_values(self, one: Settlement, now: datetime) -> dict[str, Any]:
        following, outcome = one.next, one.outcome
        over = following.state in _OVER
        return {
            "b_id": one.claim.id,
            "b_owner": self._place.executor if one.owner is None else one.owner,
            "state": following.state,
            "due_at": None if following.wait is None else now + timedelta(seconds=following.wait),
            "owner": None,
            "failures": following.failures,
            "same": following.same,
            "fingerprint": following.fingerprint,
            "error": following.error,
            "kind": following.kind,
            "wait": following.wait,
            "lost": following.lost,
            "attempt": one.claim.attempt - (not one.begun),
            "result": outcome.result if outcome is not None and following.state is State.SUCCESS else None,
            "result_file": one.result_file if following.state is State.SUCCESS else None,
            "ended_at": now if over else None,
            "seconds": None if outcome is None else outcome.seconds,
        }

    # ── fan-outs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _count(self, connection: Connection, now: datetime, node: int, ended: list[State]) -> list[tuple[int, State]]:
        """Take ended children off a fan-out's count; what it becomes, where they were the last."""
        dead, failed = ended.count(State.DEAD_LETTER), ended.count(State.FAILED)
        counted = {"run": self._place.run_id, "of": node, "over": len(ended), "died": dead, "spent": failed}
        row = connection.execute(_COUNT, counted).one()
        if row.remaining:
            return []
        state = State.DEAD_LETTER if row.dead else State.FAILED if row.failed else State.SUCCESS
        what = {State.DEAD_LETTER: f"{row.dead} of its children are dead letters", State.FAILED: "children failed"}
        self.change(connection, now, row.id, (State.RUNNING, state), what.get(state))
        return [(node, state)]

    def _strike(self, connection: Connection, now: datetime, storm: Storm) -> int:
        """Make dead letters of the children that were not tried, and of those that failed of the same cause."""
        following = storm.like.next
        why = f"not tried: {storm.dead} of its siblings died of one cause: {following.error}"
        theirs = (
            (tasks.c.run_id == self._place.run_id)
            & (tasks.c.node == storm.node)
            & (tasks.c.child >= 0)
            & tasks.c.owner.is_(None)
        )
        fate = {
            "state": State.DEAD_LETTER,
            "due_at": None,
            "fingerprint": following.fingerprint,
            "error": why,
            "kind": following.kind,
            "ended_at": now,
        }
        struck = 0
        for state, like in ((State.READY, true()), (State.RETRYING, tasks.c.fingerprint == following.fingerprint)):
            chosen = update(tasks).where(theirs, tasks.c.state == state, like).values(**fate)
            ids = connection.execute(chosen.returning(tasks.c.id)).scalars().all()
            if ids:
                connection.execute(CHANGE, [_change(one, now, state, State.DEAD_LETTER, why) for one in ids])
            struck += len(ids)
        return struck

    def _expand(self, connection: Connection, now: datetime, node: int, row_id: int, results: Results) -> int:
        """Make the children of a fan-out; how many there are."""
        source = self._place.shape.places[node].after[0]
        items = results.items(connection, source)
        name = self._place.shape.places[node].name
        seen: Counter[str] = Counter()
        for start in range(0, len(items), _INSERTED_AT_ONCE):
            rows = []
            for number, item in enumerate(items[start : start + _INSERTED_AT_ONCE], start):
                rows.append(
                    {
                        "run_id": self._place.run_id,
                        "node": node,
                        "child": number,
                        "name": name,
                        "state": State.READY,
                        "due_at": now,
                        "input": item,
                        "created_at": now,
                        "twin": seen[item],
                    }
                )
                seen[item] += 1
            connection.execute(insert(tasks), rows)
        self.change(connection, now, row_id, (State.PENDING, State.RUNNING), f"{len(items)} children")
        connection.execute(
            update(tasks).where(tasks.c.id == row_id).values(children=len(items), remaining=len(items), since=now)
        )
        return len(items)

    # ── the graph ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, connection: Connection, now: datetime, done: list[tuple[int, State]], settled: Settled) -> None:
        """From every task that is over to those that wait for it."""
        while done:
            node, state = done.pop()
            settled.closed[node] = state
            if state is State.FAILED:
                settled.upstream_failed[node] = self._give_up_below(connection, now, node)
            elif state is State.SUCCESS and self._place.below[node]:
                lower = as_list(self._place.below[node])
                rows = connection.execute(_FREE, {"run": self._place.run_id, "nodes": lower}).all()
                free = [row.node for row in rows if not row.waiting and row.state == State.PENDING]
                self._promote(connection, now, free, settled, done)

    def _promote(
        self,
        connection: Connection,
        now: datetime,
        nodes: Sequence[int],
        settled: Settled,
        done: list[tuple[int, State]],
    ) -> None:
        """Nothing is above them any more that they wait for."""
        places = self._place.shape.places
        for kind, state in (("task", State.READY), ("sensor", State.SENSING)):
            chosen = [node for node in nodes if places[node].kind == kind]
            if chosen:
                made = {"run": self._place.run_id, "nodes": as_list(chosen), "to": checked(State.PENDING, state)}
                ids = connection.execute(_READY, {**made, "now": now}).scalars().all()
                connection.execute(CHANGE, [_change(one, now, State.PENDING, state, None) for one in ids])
                settled.ready.update(chosen)
        for node in nodes:
            if places[node].kind == "fan-out" and self._results is not None:
                row_id = connection.execute(select(tasks.c.id).where(self._own_row(node))).scalar_one()
                if self._expand(connection, now, node, row_id, self._results):
                    settled.ready.add(node)
                else:
                    self.change(connection, now, row_id, (State.RUNNING, State.SUCCESS), "nothing to run for")
                    done.append((node, State.SUCCESS))

    def _give_up_below(self, connection: Connection, now: datetime, node: int) -> int:
        """What comes after a failure will not run; how many these are."""
        self._place.lock_graph(connection)
        lower = sorted(reach([node], self._place.below))
        given_up = (
            update(tasks)
            .where(tasks.c.run_id == self._place.run_id, tasks.c.child == -1, tasks.c.state == State.PENDING)
            .where(among(tasks.c.node, lower))
            .values(state=checked(State.PENDING, State.UPSTREAM_FAILED), ended_at=now)
            .returning(tasks.c.id)
        )
        ids = connection.execute(given_up).scalars().all()
        if ids:
            cause = f"{self._place.shape.places[node].name} failed"
            changes = [_change(one, now, State.PENDING, State.UPSTREAM_FAILED, cause) for one in ids]
            connection.execute(CHANGE, changes)
        return len(ids)

    def change(
        self, connection: Connection, now: datetime, row_id: int, ways: tuple[State, State], cause: str | None
    ) -> None:
        """Change the state of one task, from the one to the other."""
        before, after = ways
        over = now if after in _OVER else None
        connection.execute(
            update(tasks).where(tasks.c.id == row_id).values(state=checked(before, after), ended_at=over)
        )
        connection.execute(CHANGE, [_change(row_id, now, before, after, cause)])

    def _own_row(self, node: int) -> Any:
        return (tasks.c.run_id == self._place.run_id) & (tasks.c.node == node) & (tasks.c.child == -1)

    def _letters(
        self,
        connection: Connection,
        now: datetime,
        over: Iterable[Settlement],
        storms: Sequence[Storm],
        settled: Settled,
    ) -> None:
        dead = [one for one in over if one.next.state is State.DEAD_LETTER]
        if dead or storms:
            put_letters(self._place, connection, dead, [(storm, settled.untried[storm.node]) for storm in storms])
        if healed := [one for one in over if one.next.state is State.SUCCESS and one.claim.revived]:
            settle_letters(self._place, connection, now, healed)


_OWN = (tasks.c.run_id == bindparam("run")) & (tasks.c.child == -1)
_COUNT = (
    update(tasks)
    .where(_OWN, tasks.c.node == bindparam("of"))
    .values(
        remaining=tasks.c.remaining - bindparam("over"),
        dead=tasks.c.dead + bindparam("died"),
        failed=tasks.c.failed + bindparam("spent"),
    )
    .returning(tasks.c.id, tasks.c.remaining, tasks.c.dead, tasks.c.failed)
)
_FREE = (
    update(tasks)
    .where(_OWN, among(tasks.c.node, bindparam("nodes", type_=Text)))
    .values(waiting=tasks.c.waiting - 1)
    .returning(tasks.c.node, tasks.c.waiting, tasks.c.state)
)
_READY = (
    update(tasks)
    .where(_OWN, among(tasks.c.node, bindparam("nodes", type_=Text)), tasks.c.state == State.PENDING)
    .values(state=bindparam("to"), due_at=bindparam("now"))
    .returning(tasks.c.id)
)
_SETTLE = (
    update(tasks)
    .where(tasks.c.id == bindparam("b_id"), tasks.c.owner == bindparam("b_owner"))
    .values(
        {
            name: bindparam(name)
            for name in (
                *(
                    "state",
                    "due_at",
                    "owner",
                    "failures",
                    "same",
                    "fingerprint",
                    "error",
                    "kind",
                    "wait",
                    "lost",
                    "attempt",
                ),
                *("result", "result_file", "ended_at", "seconds"),
            )
        }
    )
)
_THIS_ATTEMPT = (task_attempts.c.task_id == bindparam("b_id")) & (task_attempts.c.attempt == bindparam("b_attempt"))
_FORGET_ATTEMPT = delete(task_attempts).where(_THIS_ATTEMPT)
_END_ATTEMPT = (
    update(task_attempts)
    .where(_THIS_ATTEMPT)
    .values(
        {
            name: bindparam(name)
            for name in ("ended_at", "ended", "seconds", "kind", "error", "fingerprint", "trace", "output")
        }
    )
)


def _attempt_values(one: Settlement, outcome: Outcome, now: datetime) -> dict[str, Any]:
    return {
        "b_id": one.claim.id,
        "b_attempt": one.claim.attempt,
        "ended_at": now,
        "ended": outcome.ended,
        "seconds": outcome.seconds,
        "kind": None if outcome.verdict is None else outcome.verdict.kind,
        "error": outcome.error,
        "fingerprint": outcome.fingerprint,
        "trace": outcome.trace,
        "output": outcome.output or None,
    }


def _change(task_id: int, at: datetime, before: State, after: State, cause: str | None) -> dict[str, Any]:
    return {"task_id": task_id, "at": at, "before": before, "after": checked(before, after), "cause": cause}
