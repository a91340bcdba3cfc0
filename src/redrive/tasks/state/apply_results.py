"""Settling: what became of attempts, and what follows from it for the rest of the graph, in one transaction."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, true, update

from redrive.model.tasks import State
from redrive.store.encoding import encode
from redrive.store.schema import task_attempts, tasks
from redrive.tasks.executor.decide import Transition
from redrive.tasks.state.claims import CHANGE, ClaimedTask
from redrive.tasks.state.letters import put_letters, settle_as_done, settle_letters
from redrive.tasks.state.progression import OVER, Progress, Progression, change_row
from redrive.tasks.state.results import Results
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.workers.messages import TaskOutcome

_HEALED = (State.SUCCESS, State.SKIPPED)


@dataclass(slots=True)
class TaskResult:
    """What is to be written of an attempt that has ended; of a task that was not tried, without an attempt."""

    claim: ClaimedTask
    next: Transition
    outcome: TaskOutcome | None = None
    result_file: str | None = None
    begun: bool = True
    """Whether somebody began it; otherwise it was no attempt, and is not counted as one."""
    owner: int | None = None
    """Whose it was, where that is not the one who writes."""
    ended_at: float = field(default_factory=time.time)
    """By this machine's clock; the database writes down its own."""


@dataclass(frozen=True, slots=True)
class SiblingStop:
    """A fan-out whose children die of one cause: those not tried yet share their fate."""

    node: int
    like: TaskResult
    dead: int


class ResultWriter:
    """Writes settlements, and has the graph moved on."""

    def __init__(self, place: RunHandle, results: Results) -> None:
        self._place = place
        self.graph = Progression(place, results)

    def settle(
        self, connection: Connection, now: datetime, settlements: Sequence[TaskResult], storms: Sequence[SiblingStop]
    ) -> Progress:
        """Write them all."""
        settled = Progress()
        if settlements:
            self._write(connection, now, settlements)
        over = [one for one in settlements if one.next.state in OVER]
        for one in over:
            if one.outcome is not None and one.outcome.branch is not None and one.claim.child < 0:
                settled.branches[one.claim.node] = one.outcome.branch
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
        self.graph.advance(connection, now, done, settled)
        return settled

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, connection: Connection, now: datetime, settlements: Sequence[TaskResult]) -> None:
        connection.execute(_SETTLE, [self._task_values(one, now) for one in settlements])
        attempts = [_attempt_values(one, one.outcome, now) for one in settlements if one.outcome and one.begun]
        if attempts:
            connection.execute(_END_ATTEMPT, attempts)
        never_begun = [{"b_id": one.claim.id, "b_attempt": one.claim.attempt} for one in settlements if not one.begun]
        if never_begun:
            connection.execute(_FORGET_ATTEMPT, never_begun)
        changes = [
            change_row(one.claim.id, now, before, one.next.state, one.next.cause)
            for one in settlements
            if (before := self._before(one)) != one.next.state
        ]
        if changes:
            connection.execute(CHANGE, changes)

    def _before(self, one: TaskResult) -> State:
        if self._place.shape.places[one.claim.node].kind == "sensor":
            return State.SENSING
        return State.RUNNING

    def _task_values(self, one: TaskResult, now: datetime) -> dict[str, Any]:
        following, outcome = one.next, one.outcome
        over = following.state in OVER
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
            "branch": None if outcome is None or outcome.branch is None else encode(list(outcome.branch)),
            "cancelled": None,
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
        self.graph.change(connection, now, row.id, (State.RUNNING, state), what.get(state))
        return [(node, state)]

    def _strike(self, connection: Connection, now: datetime, storm: SiblingStop) -> int:
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
                connection.execute(CHANGE, [change_row(one, now, state, State.DEAD_LETTER, why) for one in ids])
            struck += len(ids)
        return struck

    def _letters(
        self,
        connection: Connection,
        now: datetime,
        over: Iterable[TaskResult],
        storms: Sequence[SiblingStop],
        settled: Progress,
    ) -> None:
        dead = [one for one in over if one.next.state is State.DEAD_LETTER]
        if dead or storms:
            put_letters(self._place, connection, dead, [(storm, settled.untried[storm.node]) for storm in storms])
        if healed := [one for one in over if one.next.state in _HEALED and one.claim.revived]:
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
                *("result", "result_file", "branch", "cancelled", "ended_at", "seconds"),
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


def _attempt_values(one: TaskResult, outcome: TaskOutcome, now: datetime) -> dict[str, Any]:
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
