"""The store cycle of an executor: apply results, advance the graph and claim the next tasks in one transaction.

The executor runs a cycle in its database thread. Everything it needs to know about the run comes back in the result.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from redrive.calls import testmode
from redrive.errors import FlowError
from redrive.model.calls import Kind, Verdict, format_duration
from redrive.model.tasks import FlowStatus, State
from redrive.store.encoding import encode
from redrive.store.repositories.tasks import counts_of, shown_name
from redrive.store.schema import task_attempts, task_runs, tasks
from redrive.tasks.executor.decide import LOST, AttemptHistory, Transition, decide
from redrive.tasks.executor.plan import ClaimPlan
from redrive.tasks.executor.slas import SlaTracker
from redrive.tasks.graph import Node
from redrive.tasks.operator.actions import retry_failed
from redrive.tasks.operator.cancel import cancelled_transition
from redrive.tasks.parameters import make_key
from redrive.tasks.state.apply_results import ResultWriter, SiblingCounts, SiblingStop, TaskResult, count_siblings
from redrive.tasks.state.claims import ClaimedTask, ClaimRequest, claim_tasks, find_active_nodes, find_next_due, is_idle
from redrive.tasks.state.executor_lease import RESTART_HINT, ExecutorLease
from redrive.tasks.state.progression import GraphProgress
from redrive.tasks.state.results import Results
from redrive.tasks.workers.output import read_left_behind
from redrive.tasks.workers.protocol import AttemptEnd, TaskJob, TaskOutcome

_RETRIES_SHOWN = 5  # upcoming retries in the progress view
_LAST_POLL_TIMEOUT = 5.0  # seconds that the last poll of a sensor may take
_PAST_ATTEMPTS = 1_000  # durations read to learn how long a task usually takes
_END_STATES = {State.SUCCESS, State.SKIPPED, State.FAILED, State.UPSTREAM_FAILED, State.DEAD_LETTER}
_LOST = Verdict(Kind.TRANSIENT, "its executor died", "executor_lost")


@dataclass(frozen=True, slots=True)
class RunExit:
    """The exit of an executor from its run: the run is over, or a stop was requested."""

    stopped: str | None = None


@dataclass(slots=True)
class CycleRequest:
    """What one store cycle has to do."""

    task_results: Sequence[TaskResult] = ()
    sibling_stops: Sequence[SiblingStop] = ()
    plan: ClaimPlan = field(default_factory=ClaimPlan)
    processes: int = 0
    threads: int = 0
    start: bool = False
    resume: bool = False
    """The run is resumed: tasks that failed before are retried."""
    recover: bool = False
    survey: bool = False
    """Read what operators and other executors have changed."""
    count: bool = False
    leave: RunExit | None = None


@dataclass(slots=True)
class ClaimedJob:
    """A claimed task with the job for its worker."""

    claim: ClaimedTask
    node: Node
    job: TaskJob
    name: str
    permit: Any = None
    since: float = field(default_factory=time.monotonic)
    item_aside: bool = False
    """Whether the item is in a file, which is removed when the attempt has ended."""


@dataclass(slots=True)
class CycleResult:
    """What a store cycle wrote, claimed and read."""

    progress: GraphProgress
    claimed: list[ClaimedJob] = field(default_factory=list)
    exhausted: set[int] = field(default_factory=set)
    """Nodes with nothing left to claim: what else is due is claimed by other executors, or waits for them."""
    full: bool = False
    """Whether there was more to claim than the limits allow."""
    due_in: float = math.inf
    """Seconds until the next task is due."""
    idle: bool = False
    """No task of the run is claimed or can be claimed."""
    active: set[int] | None = None
    sibling_counts: dict[int, SiblingCounts] = field(default_factory=dict)
    """Counts of fan-outs that other executors work on, too, or worked on."""
    decided_at: datetime | None = None
    changed: bool = False
    """An operator has decided about tasks."""
    cancelled: dict[int, str] = field(default_factory=dict)
    """Tasks of this executor that an operator has cancelled: reasons by task id."""
    sla_events: list[tuple[str, datetime, bool]] = field(default_factory=list)
    """SLAs at risk or missed: task, due time, whether it was missed."""
    abandoned: str | None = None
    """Why the run was abandoned; None if it was not."""
    left: bool = False
    """Whether this executor has left the run; False if it has something left to do."""
    recovered: list[TaskResult] = field(default_factory=list)
    counts: tuple[Mapping[State, int], tuple[tuple[str, float], ...], float] | None = None
    """Tasks by state, the next retries, and how long the query took."""
    seconds: float = 0.0


class StoreCycle:
    """Runs the transactions of one executor."""

    def __init__(
        self,
        lease: ExecutorLease,
        writer: ResultWriter,
        results: Results,
        nodes: Sequence[Node],
        params: Mapping[str, Any],
    ) -> None:
        self._lease = lease
        self._writer = writer
        self._results = results
        self.nodes = nodes
        """The tasks in the order of their numbers in the run."""
        self._params = {name: encode(value) for name, value in params.items()}
        self._tickets = itertools.count(1)
        self._decided_at: datetime | None = None
        self.slas: SlaTracker | None = None
        self._results_read_for: datetime | None = None  # time of the last operator action when results were read

    def run(self, request: CycleRequest) -> CycleResult:
        """Do everything that is requested in one transaction."""
        began = time.monotonic()
        result = self._lease.write(lambda connection, now: self._run_steps(request, connection, now))
        result.seconds = time.monotonic() - began
        self._decided_at = result.decided_at or self._decided_at
        for lost in result.recovered:
            self._results.output_path(lost.claim.id, lost.claim.attempt).unlink(missing_ok=True)
            if self._is_large(lost.claim):
                self._results.remove_item(lost.claim.id, lost.claim.attempt)
        return result

    def _run_steps(self, request: CycleRequest, connection: Connection, now: datetime) -> CycleResult:
        result = CycleResult(GraphProgress())
        if request.start:
            result.progress = self._writer.graph.start(connection, now)
        task_results = list(request.task_results)
        if request.recover:
            result.recovered = self._recover_lost_tasks(connection, now)
            task_results += result.recovered
        if request.start:
            self._lease.correct_due_times(connection, now)
        for task_result in task_results:
            if task_result.outcome is not None and task_result.outcome.ended is AttemptEnd.TIMED_OUT:
                task_result.next = self._explain_timeout(connection, task_result)
        if task_results or request.sibling_stops:
            progress = self._writer.apply(connection, now, task_results, request.sibling_stops)
            progress.ready |= result.progress.ready
            result.progress = progress
        if request.start and request.resume and not self._lease.count_others(connection):
            retry_failed(self._lease, connection, now)
        if request.leave is not None:
            result.left = self._leave(connection, now, request.leave)
            result.sla_events = [
                event for event in self._check_slas(connection, now) if event[2]
            ]  # the run ends: only missed SLAs count
            return result
        self._claim(request, connection, now, result)
        if request.survey:
            self._survey(request, connection, now, result)
        if request.count:
            result.counts = self._count_tasks(connection, now)
        return result

    def _count_tasks(
        self, connection: Connection, now: datetime
    ) -> tuple[Mapping[State, int], tuple[tuple[str, float], ...], float]:
        began = time.monotonic()
        counts = counts_of(connection, self._lease.run_id)
        retries: tuple[tuple[str, float], ...] = ()
        if counts.get(State.RETRYING):
            soonest = (
                select(tasks.c.name, tasks.c.child, tasks.c.due_at)
                .where(tasks.c.run_id == self._lease.run_id, tasks.c.state == State.RETRYING)
                .where(tasks.c.due_at.is_not(None))
                .order_by(tasks.c.due_at)
                .limit(_RETRIES_SHOWN)
            )
            retries = tuple(
                (shown_name(row.name, row.child), max(0.0, (row.due_at - now).total_seconds()))
                for row in connection.execute(soonest)
            )
        return counts, retries, time.monotonic() - began

    # ── claiming ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, request: CycleRequest, connection: Connection, now: datetime, result: CycleResult) -> None:
        room = {False: request.processes, True: request.threads}
        of_service: dict[str, float] = {}
        requests = [*request.plan.wanted, *self._request_freed(request, result)]
        for wanted in requests:
            limit = min(wanted.limit, room[wanted.in_thread])
            if wanted.service is not None:
                limit = int(min(limit, of_service.setdefault(wanted.service, wanted.together)))
            if limit > 0:
                claims = claim_tasks(self._lease, connection, now, replace(wanted, limit=limit))
                if claims:
                    self._forget_old_results(connection)
                room[wanted.in_thread] -= len(claims)
                if wanted.service is not None:
                    of_service[wanted.service] -= len(claims)
                result.claimed += [self._make_job(connection, task) for task in claims]
                result.full = result.full or (len(claims) == limit and not wanted.windowed)
                if len(claims) < limit:
                    result.exhausted.update(wanted.nodes)

    def _forget_old_results(self, connection: Connection) -> None:
        """Drop cached results after an operator action: tasks that ran again may have returned other values."""
        run = select(task_runs.c.updated_at).where(task_runs.c.run_id == self._lease.run_id)
        decided_at = connection.execute(run).scalar_one()
        if decided_at != self._results_read_for:
            self._results.forget()
            self._results_read_for = decided_at

    def _survey(self, request: CycleRequest, connection: Connection, now: datetime, result: CycleResult) -> None:
        result.active = find_active_nodes(self._lease, connection)
        run = select(task_runs.c.status, task_runs.c.updated_at, task_runs.c.reason).where(
            task_runs.c.run_id == self._lease.run_id
        )
        row = connection.execute(run).one()
        result.sla_events = self._check_slas(connection, now)
        mine = tasks.c.owner == self._lease.executor
        cancelled_tasks = select(tasks.c.id, tasks.c.cancelled).where(tasks.c.run_id == self._lease.run_id, mine)
        for task in connection.execute(cancelled_tasks.where(tasks.c.cancelled.is_not(None))):
            result.cancelled[task.id] = task.cancelled
        result.abandoned = (row.reason or "abandoned") if row.status == FlowStatus.ABANDONED else None
        result.changed = self._decided_at is not None and row.updated_at != self._decided_at
        result.decided_at = row.updated_at
        if result.changed:  # an operator only frees tasks: an executor makes them ready
            freed = self._writer.graph.start(connection, now)
            result.progress.ready |= freed.ready
            result.progress.closed |= freed.closed
        elif request.start:
            result.sibling_counts = self._count_siblings(connection, sorted(result.active))
        elif not result.claimed and request.plan.waiting_retries and self._lease.count_others(connection):
            result.sibling_counts = self._count_siblings(connection, request.plan.waiting_retries)
        result.due_in = self._due_in(request.plan, connection, now, result.exhausted)
        if not result.claimed:
            result.idle = is_idle(self._lease, connection)

    def _check_slas(self, connection: Connection, now: datetime) -> list[tuple[str, datetime, bool]]:
        if self.slas is None:
            return []
        own = select(tasks.c.name, tasks.c.ended_at).where(tasks.c.run_id == self._lease.run_id, tasks.c.child == -1)
        ended = connection.execute(own.where(tasks.c.state.in_([State.SUCCESS, State.SKIPPED])))
        done = {row.name: row.ended_at or now for row in ended}
        return [(name, self.slas.due[name], missed) for name, missed in self.slas.check(now, done)]

    def _due_in(self, plan: ClaimPlan, connection: Connection, now: datetime, exhausted: Collection[int]) -> float:
        """Return the seconds until the next task is due; due tasks of exhausted nodes wait for the survey."""

        def due_in(*, of_exhausted: bool) -> float:
            nodes, retries_of = (
                [node for node in some if (node in exhausted) is of_exhausted]
                for some in (plan.waiting, plan.waiting_retries)
            )
            due = find_next_due(self._lease, connection, nodes=nodes, retries_of=retries_of)
            return math.inf if due is None else (due - now).total_seconds()

        later = due_in(of_exhausted=True)
        return min(max(0.0, due_in(of_exhausted=False)), later if later > 0 else math.inf)

    def _count_siblings(self, connection: Connection, nodes: Sequence[int]) -> dict[int, SiblingCounts]:
        fan_outs = [node for node in nodes if self.nodes[node].each is not None]
        return {node: count_siblings(self._lease, connection, node) for node in fan_outs}

    def _request_freed(self, request: CycleRequest, result: CycleResult) -> list[ClaimRequest]:
        """Return requests for tasks that this transaction made ready and that have no limits."""
        requests = []
        known = set(request.plan.waiting) | set(request.plan.waiting_retries)
        for in_thread, room in ((False, request.processes), (True, request.threads)):
            free = [
                node
                for node in result.progress.ready
                if node not in known
                and self.nodes[node].in_thread is in_thread
                and self.nodes[node].service is None
                and self.nodes[node].each is None
            ]
            if free and room > 0:
                requests.append(ClaimRequest(free, room, in_thread))
        return requests

    def _make_job(self, connection: Connection, task: ClaimedTask) -> ClaimedJob:
        node = self.nodes[task.node]
        arguments: dict[str, str] = {name: self._params[name] for name in node.binding.params}
        shared = {name: f"param-{name}" for name in node.binding.params}
        files: dict[str, str] = {}
        for name in node.binding.results:
            number = self._lease.numbers[name]
            value = self._results.read_value(connection, number)
            if value.path is None:
                arguments[name], shared[name] = value.text or "null", f"result-{number}"
            else:
                files[name] = value.path
        item_aside = False
        if node.binding.item is not None:
            item_aside = self._is_large(task)
            if item_aside:
                files[node.binding.item] = self._results.write_item(task.id, task.attempt, task.input or "null")
            else:
                arguments[node.binding.item] = task.input or "null"
        files |= self._results.write_large_arguments(arguments, shared)
        name = shown_name(node.name, task.child)
        job = TaskJob(
            ticket=next(self._tickets),
            task=node.name,
            arguments=arguments,
            files=files,
            identity=self._make_key(node, task) if node.binding.wants_key else "",
            timeout=_attempt_timeout(node, task.past),
            grace=node.grace,
            result_file=self._results.result_path(task.id, task.attempt),
            output_file=str(self._results.output_path(task.id, task.attempt)),
            redact=self._lease.store.dlq.redactor.fields,
        )
        return ClaimedJob(task, node, job, name, item_aside=item_aside)

    def _make_key(self, node: Node, task: ClaimedTask) -> str:
        if self._lease.key_prefix == str(self._lease.run_id):  # a run that an older version started
            return f"{self._lease.run_id}/{shown_name(node.name, task.child)}"
        item = None if task.child < 0 else task.input or "null"
        return make_key(self._lease.key_prefix, node.name, item, task.twin)

    def _is_large(self, claim: ClaimedTask) -> bool:
        return len(claim.input or "") > self._results.largest

    # ── lost tasks, timeouts, the end ─────────────────────────────────────────────────────────────────────────────────

    def _recover_lost_tasks(self, connection: Connection, now: datetime) -> list[TaskResult]:
        """Return results for the tasks of dead executors: each lost an attempt, which was counted with its claim."""
        lost_results = []
        for row in self._lease.find_lost_tasks(connection, now):
            elapsed = max(0.0, (now - row.since).total_seconds())
            past = AttemptHistory(row.failures, row.same, row.fingerprint, row.wait, elapsed, row.lost)
            lost = ClaimedTask(row.id, row.node, row.child, row.attempt, past, row.input, row.note is not None)
            error = "its executor was lost (killed, or its lease expired)"
            seconds = max(0.0, (now - row.started_at).total_seconds())
            outcome = TaskOutcome(
                ticket=0,
                ended=AttemptEnd.LOST,
                seconds=seconds,
                verdict=_LOST,
                error=error,
                fingerprint=LOST,
                output=read_left_behind(self._results.output_path(row.id, row.attempt)),
            )
            transition = decide(self.nodes[row.node], past, outcome, random, testmode.active())
            if row.cancelled is not None:
                transition = cancelled_transition(row.cancelled)
            lost_results.append(TaskResult(lost, transition, outcome, owner=row.owner))
        return lost_results

    def _explain_timeout(self, connection: Connection, result: TaskResult) -> Transition:
        """Compare a timeout with the usual duration of the task: the limit may be too short."""
        node = self.nodes[result.claim.node]
        usual = (
            select(task_attempts.c.seconds)
            .join(tasks, tasks.c.id == task_attempts.c.task_id)
            .join(task_runs, task_runs.c.run_id == tasks.c.run_id)
            .where(task_runs.c.flow_name == self._lease.flow, tasks.c.name == node.name)
            .where(task_attempts.c.ended == AttemptEnd.RETURNED)
            .order_by(task_runs.c.started_at.desc())
            .limit(_PAST_ATTEMPTS)
        )
        past = sorted(connection.execute(usual).scalars())
        assert result.outcome is not None
        if result.outcome.hint:
            hint = result.outcome.hint
        elif not past:
            hint = "it has never ended in time so far: the limit may be too short"
        else:
            p99 = past[min(len(past) - 1, math.ceil(0.99 * len(past)) - 1)]
            near = node.timeout is not None and p99 > node.timeout / 2
            advice = "the limit may be too short" if near else "it hangs, most likely"
            hint = f"99 % of its last {len(past):,} runs took at most {format_duration(p99)}: {advice}"
        return replace(result.next, error=f"{result.outcome.error}; {hint}")

    def _leave(self, connection: Connection, now: datetime, leaving: RunExit) -> bool:
        """Leave the run and return True; False if an operator has sent a task back at the last moment."""
        self._lease.lock_run(connection)
        if leaving.stopped is None:
            freed = self._writer.graph.start(connection, now)
            if freed.ready or not is_idle(self._lease, connection):
                return False
        self._lease.leave(connection, now)
        if leaving.stopped is not None:
            if not self._lease.count_others(connection):
                self._lease.end(connection, now, FlowStatus.STOPPED, leaving.stopped)
            return True
        counts = counts_of(connection, self._lease.run_id)
        self._check_not_stuck(counts)
        dead, failed = counts.get(State.DEAD_LETTER, 0), counts.get(State.FAILED, 0)
        status = FlowStatus.HELD if dead else FlowStatus.FAILED if failed else FlowStatus.COMPLETE
        parts = [
            f"{count:,} {singular if count == 1 else plural}"
            for count, singular, plural in (
                (dead, "dead letter", "dead letters"),
                (failed, "failed task", "failed tasks"),
            )
            if count
        ]
        self._lease.end(connection, now, status, " and ".join(parts) or None)
        return True

    def _check_not_stuck(self, counts: Mapping[State, int]) -> None:
        """Raise if the run would end with tasks that neither ended nor wait for a dead letter."""
        may_wait = {State.PENDING} if counts.get(State.DEAD_LETTER) else set()
        stuck = [f"{count:,} {state}" for state, count in counts.items() if state not in _END_STATES | may_wait]
        if stuck:
            raise FlowError(
                f"run {str(self._lease.run_id)[:8]} of flow {self._lease.flow!r} is stuck with {', '.join(stuck)}, "
                "and nothing of it can be claimed: if the store was changed by hand, undo that; otherwise "
                f"{RESTART_HINT}"
            )


def _attempt_timeout(node: Node, past: AttemptHistory) -> float | None:
    """Return the timeout of one attempt; a poll may outlast its sensor's timeout by at most a few seconds."""
    if node.sensing is None or node.timeout is None:
        return node.timeout
    return round(min(node.timeout, max(node.sensing.timeout - past.elapsed, _LAST_POLL_TIMEOUT)), 1)
