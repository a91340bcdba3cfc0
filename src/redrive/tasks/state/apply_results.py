"""Apply the results of attempts in a transaction of the store cycle: store them, advance the graph, count siblings."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, select, true, update

from redrive.model.calls import Kind
from redrive.model.tasks import State
from redrive.store.encoding import encode
from redrive.store.schema import task_attempts, task_runs, tasks
from redrive.tasks.executor.decide import LOST, SUSPECT, AttemptHistory, Transition
from redrive.tasks.executor.sibling_limiter import CauseCount
from redrive.tasks.state.claims import CHANGE, ClaimedTask
from redrive.tasks.state.letters import mark_reprocessed_letters, mark_reprocessed_named, put_letters
from redrive.tasks.state.progression import OVER, GraphProgress, Progression, change_row
from redrive.tasks.state.results import Results
from redrive.tasks.state.run_handle import FlowRunHandle
from redrive.tasks.workers.protocol import TaskOutcome

_RECOVERED = (State.SUCCESS, State.SKIPPED)


@dataclass(slots=True)
class TaskResult:
    """The result of an attempt, to be stored; a task that was not tried has no outcome."""

    claim: ClaimedTask
    next: Transition
    outcome: TaskOutcome | None = None
    result_file: str | None = None
    begun: bool = True
    """Whether a worker started it; otherwise it does not count as an attempt."""
    owner: int | None = None
    """The executor that had the task; None for the one that writes."""
    ended_at: float = field(default_factory=time.time)
    """Time by the clock of this machine; the database stores its own."""


@dataclass(frozen=True, slots=True)
class SiblingStop:
    """A stop of a fan-out whose children die of one cause: untried children become dead letters, too."""

    node: int
    like: TaskResult
    dead: int


class ResultWriter:
    """Stores task results and advances the graph."""

    def __init__(self, run: FlowRunHandle, results: Results) -> None:
        self._run = run
        self.graph = Progression(run, results)

    def apply(
        self,
        connection: Connection,
        now: datetime,
        task_results: Sequence[TaskResult],
        sibling_stops: Sequence[SiblingStop],
    ) -> GraphProgress:
        """Store all results and stops, and return what followed."""
        progress = GraphProgress()
        if task_results:
            self._write_attempts(connection, now, task_results)
        ended = [task_result for task_result in task_results if task_result.next.state in OVER]
        for task_result in ended:
            if (
                task_result.outcome is not None
                and task_result.outcome.branch is not None
                and task_result.claim.child < 0
            ):
                progress.branches[task_result.claim.node] = task_result.outcome.branch
        done: list[tuple[int, State]] = [
            (task_result.claim.node, task_result.next.state) for task_result in ended if task_result.claim.child < 0
        ]
        children: dict[int, list[State]] = defaultdict(list)
        for task_result in ended:
            if task_result.claim.child >= 0:
                children[task_result.claim.node].append(task_result.next.state)
        for stop in sibling_stops:
            untried = self._stop_siblings(connection, now, stop)
            progress.untried[stop.node] = progress.untried.get(stop.node, 0) + untried
            children[stop.node] += [State.DEAD_LETTER] * untried
        for node in sorted(children):  # one order for all executors, so that two of them cannot deadlock
            done += self._count_children(connection, now, node, children[node])
        self._write_letters(connection, now, ended, sibling_stops, progress)
        closed_fan_outs = [node for node, state in done if node in children and state is not State.DEAD_LETTER]
        if closed_fan_outs:  # untried children of a stopped fan-out share one letter
            names = [self._run.shape.places[node].name for node in closed_fan_outs]
            mark_reprocessed_named(self._run, connection, now, names)
        self.graph.advance(connection, now, done, progress)
        return progress

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write_attempts(self, connection: Connection, now: datetime, task_results: Sequence[TaskResult]) -> None:
        connection.execute(_WRITE_TASK, [self._task_values(task_result, now) for task_result in task_results])
        attempts = [
            _attempt_values(task_result, task_result.outcome, now)
            for task_result in task_results
            if task_result.outcome and task_result.begun
        ]
        if attempts:
            connection.execute(_END_ATTEMPT, attempts)
        never_begun = [
            {"b_id": task_result.claim.id, "b_attempt": task_result.claim.attempt}
            for task_result in task_results
            if not task_result.begun
        ]
        if never_begun:
            connection.execute(_FORGET_ATTEMPT, never_begun)
        changes = [
            change_row(task_result.claim.id, now, before, task_result.next.state, task_result.next.cause)
            for task_result in task_results
            if (before := self._state_before(task_result)) != task_result.next.state
        ]
        if changes:
            connection.execute(CHANGE, changes)

    def _state_before(self, task_result: TaskResult) -> State:
        if self._run.shape.places[task_result.claim.node].kind == "sensor":
            return State.SENSING
        return State.RUNNING

    def _task_values(self, task_result: TaskResult, now: datetime) -> dict[str, Any]:
        transition, outcome = task_result.next, task_result.outcome
        is_over = transition.state in OVER
        return {
            "b_id": task_result.claim.id,
            "b_owner": self._run.executor if task_result.owner is None else task_result.owner,
            "state": transition.state,
            "due_at": None if transition.wait is None else now + timedelta(seconds=transition.wait),
            "owner": None,
            "failures": transition.failures,
            "same": transition.same,
            "fingerprint": transition.fingerprint,
            "error": transition.error,
            "kind": transition.kind,
            "wait": transition.wait,
            "lost": transition.lost,
            "attempt": task_result.claim.attempt - (not task_result.begun),
            "result": outcome.result if outcome is not None and transition.state is State.SUCCESS else None,
            "result_file": task_result.result_file if transition.state is State.SUCCESS else None,
            "branch": None if outcome is None or outcome.branch is None else encode(list(outcome.branch)),
            "cancelled": None,
            "ended_at": now if is_over else None,
            "seconds": None if outcome is None else outcome.seconds,
        }

    # ── fan-outs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _count_children(
        self, connection: Connection, now: datetime, node: int, ended: list[State]
    ) -> list[tuple[int, State]]:
        """Count down the children of a fan-out; return its end state if they were the last."""
        dead, failed = ended.count(State.DEAD_LETTER), ended.count(State.FAILED)
        values = {"run": self._run.run_id, "of": node, "over": len(ended), "died": dead, "spent": failed}
        row = connection.execute(_COUNT_CHILDREN, values).one()
        if row.remaining:
            return []
        state = State.DEAD_LETTER if row.dead else State.FAILED if row.failed else State.SUCCESS
        causes = {State.DEAD_LETTER: f"{row.dead} of its children are dead letters", State.FAILED: "children failed"}
        self.graph.change_state(connection, now, row.id, (State.RUNNING, state), causes.get(state))
        return [(node, state)]

    def _stop_siblings(self, connection: Connection, now: datetime, stop: SiblingStop) -> int:
        """Turn untried children and children that failed of the same cause into dead letters; return their number."""
        transition = stop.like.next
        error = f"not tried: {stop.dead} of its siblings died of one cause: {transition.error}"
        siblings = (
            (tasks.c.run_id == self._run.run_id)
            & (tasks.c.node == stop.node)
            & (tasks.c.child >= 0)
            & tasks.c.owner.is_(None)
        )
        values = {
            "state": State.DEAD_LETTER,
            "due_at": None,
            "fingerprint": transition.fingerprint,
            "error": error,
            "kind": transition.kind,
            "ended_at": now,
        }
        stopped = 0
        for state, condition in (
            (State.READY, true()),
            (State.RETRYING, tasks.c.fingerprint == transition.fingerprint),
        ):
            stopping = update(tasks).where(siblings, tasks.c.state == state, condition).values(**values)
            ids = connection.execute(stopping.returning(tasks.c.id)).scalars().all()
            if ids:
                connection.execute(
                    CHANGE, [change_row(task_id, now, state, State.DEAD_LETTER, error) for task_id in ids]
                )
            stopped += len(ids)
        return stopped

    def _write_letters(
        self,
        connection: Connection,
        now: datetime,
        ended: Iterable[TaskResult],
        sibling_stops: Sequence[SiblingStop],
        progress: GraphProgress,
    ) -> None:
        dead = [task_result for task_result in ended if task_result.next.state is State.DEAD_LETTER]
        if dead or sibling_stops:
            put_letters(self._run, connection, dead, [(stop, progress.untried[stop.node]) for stop in sibling_stops])
        if recovered := [
            task_result for task_result in ended if task_result.next.state in _RECOVERED and task_result.claim.revived
        ]:
            mark_reprocessed_letters(self._run, connection, now, recovered)


_OWN = (tasks.c.run_id == bindparam("run")) & (tasks.c.child == -1)
_COUNT_CHILDREN = (
    update(tasks)
    .where(_OWN, tasks.c.node == bindparam("of"))
    .values(
        remaining=tasks.c.remaining - bindparam("over"),
        dead=tasks.c.dead + bindparam("died"),
        failed=tasks.c.failed + bindparam("spent"),
    )
    .returning(tasks.c.id, tasks.c.remaining, tasks.c.dead, tasks.c.failed)
)
_WRITE_TASK = (
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


def _attempt_values(task_result: TaskResult, outcome: TaskOutcome, now: datetime) -> dict[str, Any]:
    return {
        "b_id": task_result.claim.id,
        "b_attempt": task_result.claim.attempt,
        "ended_at": now,
        "ended": outcome.ended,
        "seconds": outcome.seconds,
        "kind": None if outcome.verdict is None else outcome.verdict.kind,
        "error": outcome.error,
        "fingerprint": outcome.fingerprint,
        "trace": outcome.trace,
        "output": outcome.output or None,
    }


@dataclass(slots=True)
class SiblingCounts:
    """Successes and failures of a fan-out's children since the last operator action."""

    successes: int = 0
    causes: dict[str, CauseCount] = field(default_factory=dict)
    died: dict[str, TaskResult] = field(default_factory=dict)
    """For each cause, the result of one child that died of it."""


def count_siblings(run: FlowRunHandle, connection: Connection, node: int) -> SiblingCounts:
    """Count the children of a fan-out by cause of failure."""
    children = (tasks.c.run_id == run.run_id) & (tasks.c.node == node) & (tasks.c.child >= 0)
    counts = SiblingCounts(_count(connection, children & (tasks.c.state == State.SUCCESS)))
    decided_at = select(task_runs.c.updated_at).where(task_runs.c.run_id == run.run_id).scalar_subquery()
    died = (tasks.c.state == State.DEAD_LETTER) & (tasks.c.attempt > 0) & (tasks.c.ended_at > decided_at)
    died &= tasks.c.fingerprint != LOST  # the death of an executor does not concern siblings
    failing = (
        tasks.c.state.in_([State.RETRYING, State.RUNNING]) & tasks.c.kind.in_(list(SUSPECT)) & (tasks.c.failures > 0)
    )
    by_cause: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(select(tasks).where(children, died | failing)):
        by_cause.setdefault(row.fingerprint or "", []).append(row)
    for cause, rows in by_cause.items():
        dead = [row for row in rows if row.state == State.DEAD_LETTER]
        first_started_at = min(row.started_at for row in rows)
        survived = _count(
            connection, children & (tasks.c.state == State.SUCCESS) & (tasks.c.ended_at > first_started_at)
        )
        failing_ids = {row.id for row in rows if row.state != State.DEAD_LETTER}
        only_inputs = all(row.kind == Kind.ROW for row in dead) and bool(dead)
        counts.causes[cause] = CauseCount(len(dead), failing_ids, survived, only_inputs)
        if dead:
            counts.died[cause] = _as_task_result(dead[-1])
    return counts


def _count(connection: Connection, condition: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(tasks).where(condition)).scalar_one()


def _as_task_result(row: Row[Any]) -> TaskResult:
    past = AttemptHistory(row.failures, row.same, row.fingerprint, row.wait)
    claim = ClaimedTask(row.id, row.node, row.child, row.attempt, past, row.input, row.note is not None)
    kind = None if row.kind is None else Kind(row.kind)
    transition = Transition(state=State.DEAD_LETTER, fingerprint=row.fingerprint, error=row.error, kind=kind)
    return TaskResult(claim, transition)
