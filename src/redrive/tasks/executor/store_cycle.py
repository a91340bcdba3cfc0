"""One turn of an executor at the store: settle what has ended, move the graph on, claim what comes next."""

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
from redrive.tasks.operator.cancel import cancelled
from redrive.tasks.state.apply_results import ResultWriter, SiblingStop, TaskResult
from redrive.tasks.state.claims import ClaimedTask, ClaimRequest, active, claim, is_idle, next_due
from redrive.tasks.state.executor_lease import ANEW, ExecutorLease
from redrive.tasks.state.idempotency_keys import key_of
from redrive.tasks.state.progression import Progress
from redrive.tasks.state.results import Results
from redrive.tasks.state.sibling_counts import SiblingCounts, census
from redrive.tasks.workers.messages import AttemptEnd, TaskJob, TaskOutcome
from redrive.tasks.workers.output import read_left_behind

_SHOWN = 5  # retries to come
_LAST_QUESTION = 5.0  # seconds that a sensor is given which is asked for the last time
_COMPARED = 1_000  # past durations that say how long a task usually takes
_ENDS = {State.SUCCESS, State.SKIPPED, State.FAILED, State.UPSTREAM_FAILED, State.DEAD_LETTER}
_LOST = Verdict(Kind.TRANSIENT, "its executor died", "executor_lost")


@dataclass(frozen=True, slots=True)
class RunExit:
    """An executor leaves the run: because it is over, or because it was told to stop."""

    stopped: str | None = None


@dataclass(slots=True)
class CycleRequest:
    """What is to be done in a turn."""

    settlements: Sequence[TaskResult] = ()
    storms: Sequence[SiblingStop] = ()
    plan: ClaimPlan = field(default_factory=ClaimPlan)
    processes: int = 0
    threads: int = 0
    start: bool = False
    resume: bool = False
    """The run was begun before: what failed then is tried again."""
    recover: bool = False
    survey: bool = False
    """See what others, and people, have done to the run."""
    count: bool = False
    leave: RunExit | None = None


@dataclass(slots=True)
class ClaimedJob:
    """A claim with its job."""

    claim: ClaimedTask
    node: Node
    job: TaskJob
    name: str
    permit: Any = None
    since: float = field(default_factory=time.monotonic)
    item_aside: bool = False
    """Whether its item is in a file, which is removed when the attempt has ended."""


@dataclass(slots=True)
class CycleResult:
    """What came of it."""

    settled: Progress
    claimed: list[ClaimedJob] = field(default_factory=list)
    exhausted: set[int] = field(default_factory=set)
    """Nodes of which all was claimed that could be: what is due beyond that is in other hands, or waits for them."""
    full: bool = False
    """Whether there was more to claim than room for it."""
    due_in: float = math.inf
    """Seconds until the next task is due."""
    idle: bool = False
    """Nothing is claimed by anybody, or to be claimed."""
    active: set[int] | None = None
    census: dict[int, SiblingCounts] = field(default_factory=dict)
    """Fan-outs whose children were counted, because others work on them, too, or did."""
    decided_at: datetime | None = None
    changed: bool = False
    """A person has decided about tasks."""
    cancelled: dict[int, str] = field(default_factory=dict)
    """Tasks of this executor that an operator has cancelled, by their ids, and why."""
    late: list[tuple[str, datetime, bool]] = field(default_factory=list)
    """Tasks whose SLA is at risk or was missed, and when they are due."""
    abandoned: str | None = None
    """Why the run was abandoned, where it was."""
    left: bool = False
    """This executor has left the run; False where there was something left to do for it."""
    recovered: list[TaskResult] = field(default_factory=list)
    counts: tuple[Mapping[State, int], tuple[tuple[str, float], ...], float] | None = None
    """Tasks by state, the next retries, and how long it took to find that out."""
    took: float = 0.0


class StoreCycle:
    """Takes turns at the store, for one executor."""

    def __init__(
        self,
        ledger: ExecutorLease,
        settler: ResultWriter,
        results: Results,
        nodes: Sequence[Node],
        params: Mapping[str, Any],
    ) -> None:
        self._ledger = ledger
        self._settler = settler
        self._results = results
        self.nodes = nodes
        """The tasks, by the numbers that the run has for them."""
        self._params = {name: encode(value) for name, value in params.items()}
        self._tickets = itertools.count(1)
        self._decided_at: datetime | None = None
        self.slas: SlaTracker | None = None
        self._results_of: datetime | None = None  # the last decision at the time when they were read

    def take(self, order: CycleRequest) -> CycleResult:
        """Do it all in one transaction."""
        began = time.monotonic()
        turned = self._ledger.write(lambda connection, now: self._within(order, connection, now))
        turned.took = time.monotonic() - began
        self._decided_at = turned.decided_at or self._decided_at
        for one in turned.recovered:
            self._results.output_of(one.claim.id, one.claim.attempt).unlink(missing_ok=True)
            if self._is_large(one.claim):
                self._results.remove_item(one.claim.id, one.claim.attempt)
        return turned

    def _within(self, order: CycleRequest, connection: Connection, now: datetime) -> CycleResult:
        turned = CycleResult(Progress())
        if order.start:
            turned.settled = self._settler.graph.start(connection, now)
        settlements = list(order.settlements)
        if order.recover:
            turned.recovered = self._recovered(connection, now)
            settlements += turned.recovered
        if order.start:
            self._ledger.bring_back(connection, now)
        for one in settlements:
            if one.outcome is not None and one.outcome.ended is AttemptEnd.TIMED_OUT:
                one.next = self._compared(connection, one)
        if settlements or order.storms:
            settled = self._settler.settle(connection, now, settlements, order.storms)
            settled.ready |= turned.settled.ready
            turned.settled = settled
        if order.start and order.resume and not self._ledger.others(connection):
            retry_failed(self._ledger, connection, now)
        if order.leave is not None:
            turned.left = self._leave(connection, now, order.leave)
            turned.late = [one for one in self._late(connection, now) if one[2]]  # a risk is none any more
            return turned
        self._claim(order, connection, now, turned)
        if order.survey:
            self._survey(order, connection, now, turned)
        if order.count:
            turned.counts = self._counted(connection, now)
        return turned

    def _counted(
        self, connection: Connection, now: datetime
    ) -> tuple[Mapping[State, int], tuple[tuple[str, float], ...], float]:
        began = time.monotonic()
        counts = counts_of(connection, self._ledger.run_id)
        retries: tuple[tuple[str, float], ...] = ()
        if counts.get(State.RETRYING):
            soonest = (
                select(tasks.c.name, tasks.c.child, tasks.c.due_at)
                .where(tasks.c.run_id == self._ledger.run_id, tasks.c.state == State.RETRYING)
                .where(tasks.c.due_at.is_not(None))
                .order_by(tasks.c.due_at)
                .limit(_SHOWN)
            )
            retries = tuple(
                (shown_name(row.name, row.child), max(0.0, (row.due_at - now).total_seconds()))
                for row in connection.execute(soonest)
            )
        return counts, retries, time.monotonic() - began

    # ── claiming ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, order: CycleRequest, connection: Connection, now: datetime, turned: CycleResult) -> None:
        room = {False: order.processes, True: order.threads}
        of_service: dict[str, float] = {}
        wanted = [*order.plan.wanted, *self._just_freed(order, turned)]
        for one in wanted:
            limit = min(one.limit, room[one.in_thread])
            if one.service is not None:
                limit = int(min(limit, of_service.setdefault(one.service, one.together)))
            if limit > 0:
                claims = claim(self._ledger, connection, now, replace(one, limit=limit))
                if claims:
                    self._forget_old_results(connection)
                room[one.in_thread] -= len(claims)
                if one.service is not None:
                    of_service[one.service] -= len(claims)
                turned.claimed += [self._in_hand(connection, found) for found in claims]
                turned.full = turned.full or (len(claims) == limit and not one.windowed)
                if len(claims) < limit:
                    turned.exhausted.update(one.nodes)

    def _forget_old_results(self, connection: Connection) -> None:
        """Read results again after a decision: tasks may have run once more, and returned something else."""
        run = select(task_runs.c.updated_at).where(task_runs.c.run_id == self._ledger.run_id)
        decided_at = connection.execute(run).scalar_one()
        if decided_at != self._results_of:
            self._results.forget()
            self._results_of = decided_at

    def _survey(self, order: CycleRequest, connection: Connection, now: datetime, turned: CycleResult) -> None:
        turned.active = active(self._ledger, connection)
        run = select(task_runs.c.status, task_runs.c.updated_at, task_runs.c.reason).where(
            task_runs.c.run_id == self._ledger.run_id
        )
        row = connection.execute(run).one()
        turned.late = self._late(connection, now)
        mine = tasks.c.owner == self._ledger.executor
        cancelled_ones = select(tasks.c.id, tasks.c.cancelled).where(tasks.c.run_id == self._ledger.run_id, mine)
        for one in connection.execute(cancelled_ones.where(tasks.c.cancelled.is_not(None))):
            turned.cancelled[one.id] = one.cancelled
        turned.abandoned = (row.reason or "abandoned") if row.status == FlowStatus.ABANDONED else None
        turned.changed = self._decided_at is not None and row.updated_at != self._decided_at
        turned.decided_at = row.updated_at
        if turned.changed:  # what people freed is made ready by who works on it
            freed = self._settler.graph.start(connection, now)
            turned.settled.ready |= freed.ready
            turned.settled.closed |= freed.closed
        elif order.start:
            turned.census = self._census(connection, sorted(turned.active))
        elif not turned.claimed and order.plan.waiting_retries and self._ledger.others(connection):
            turned.census = self._census(connection, order.plan.waiting_retries)
        turned.due_in = self._due_in(order.plan, connection, now, turned.exhausted)
        if not turned.claimed:
            turned.idle = is_idle(self._ledger, connection)

    def _late(self, connection: Connection, now: datetime) -> list[tuple[str, datetime, bool]]:
        if self.slas is None:
            return []
        own = select(tasks.c.name, tasks.c.ended_at).where(tasks.c.run_id == self._ledger.run_id, tasks.c.child == -1)
        ended = connection.execute(own.where(tasks.c.state.in_([State.SUCCESS, State.SKIPPED])))
        done = {row.name: row.ended_at or now for row in ended}
        return [(name, self.slas.due[name], missed) for name, missed in self.slas.late(now, done)]

    def _due_in(self, plan: ClaimPlan, connection: Connection, now: datetime, exhausted: Collection[int]) -> float:
        """Seconds until the next task is due; what is due and could not be had is asked for with the next survey."""

        def due_in(*, of_exhausted: bool) -> float:
            nodes, retries_of = (
                [node for node in some if (node in exhausted) is of_exhausted]
                for some in (plan.waiting, plan.waiting_retries)
            )
            due = next_due(self._ledger, connection, nodes=nodes, retries_of=retries_of)
            return math.inf if due is None else (due - now).total_seconds()

        later = due_in(of_exhausted=True)
        return min(max(0.0, due_in(of_exhausted=False)), later if later > 0 else math.inf)

    def _census(self, connection: Connection, nodes: Sequence[int]) -> dict[int, SiblingCounts]:
        fan_outs = [node for node in nodes if self.nodes[node].each is not None]
        return {node: census(self._ledger, connection, node) for node in fan_outs}

    def _just_freed(self, order: CycleRequest, turned: CycleResult) -> list[ClaimRequest]:
        """What this very transaction made ready, where nothing restricts it."""
        found = []
        known = set(order.plan.waiting) | set(order.plan.waiting_retries)
        for in_thread, room in ((False, order.processes), (True, order.threads)):
            free = [
                node
                for node in turned.settled.ready
                if node not in known
                and self.nodes[node].in_thread is in_thread
                and self.nodes[node].service is None
                and self.nodes[node].each is None
            ]
            if free and room > 0:
                found.append(ClaimRequest(free, room, in_thread))
        return found

    def _in_hand(self, connection: Connection, found: ClaimedTask) -> ClaimedJob:
        node = self.nodes[found.node]
        arguments: dict[str, str] = {name: self._params[name] for name in node.binding.params}
        shared = {name: f"param-{name}" for name in node.binding.params}
        files: dict[str, str] = {}
        for name in node.binding.results:
            number = self._ledger.numbers[name]
            value = self._results.value(connection, number)
            if value.path is None:
                arguments[name], shared[name] = value.text or "null", f"result-{number}"
            else:
                files[name] = value.path
        item_aside = False
        if node.binding.item is not None:
            item_aside = self._is_large(found)
            if item_aside:
                files[node.binding.item] = self._results.put_item(found.id, found.attempt, found.input or "null")
            else:
                arguments[node.binding.item] = found.input or "null"
        files |= self._results.put_aside(arguments, shared)
        name = shown_name(node.name, found.child)
        job = TaskJob(
            ticket=next(self._tickets),
            task=node.name,
            arguments=arguments,
            files=files,
            identity=self._key(node, found) if node.binding.wants_key else "",
            timeout=_time_for(node, found.past),
            grace=node.grace,
            result_file=self._results.file_of(found.id, found.attempt),
            output_file=str(self._results.output_of(found.id, found.attempt)),
        )
        return ClaimedJob(found, node, job, name, item_aside=item_aside)

    def _key(self, node: Node, found: ClaimedTask) -> str:
        if self._ledger.key_prefix == str(self._ledger.run_id):  # of a run that an older version began
            return f"{self._ledger.run_id}/{shown_name(node.name, found.child)}"
        item = None if found.child < 0 else found.input or "null"
        return key_of(self._ledger.key_prefix, node.name, item, found.twin)

    def _is_large(self, claim: ClaimedTask) -> bool:
        return len(claim.input or "") > self._results.largest

    # ── what others left ──────────────────────────────────────────────────────────────────────────────────────────────

    def _recovered(self, connection: Connection, now: datetime) -> list[TaskResult]:
        """The tasks of executors that are dead: each lost an attempt, which was counted when it was claimed."""
        found = []
        for row in self._ledger.left_behind(connection, now):
            elapsed = max(0.0, (now - row.since).total_seconds())
            past = AttemptHistory(row.failures, row.same, row.fingerprint, row.wait, elapsed, row.lost)
            lost = ClaimedTask(row.id, row.node, row.child, row.attempt, past, row.input, row.note is not None)
            error = "its executor was killed, or could not be heard of any more"
            seconds = max(0.0, (now - row.started_at).total_seconds())
            outcome = TaskOutcome(
                ticket=0,
                ended=AttemptEnd.LOST,
                seconds=seconds,
                verdict=_LOST,
                error=error,
                fingerprint=LOST,
                output=read_left_behind(self._results.output_of(row.id, row.attempt)),
            )
            following = decide(self.nodes[row.node], past, outcome, random, testmode.active())
            if row.cancelled is not None:
                following = cancelled(row.cancelled)
            found.append(TaskResult(lost, following, outcome, owner=row.owner))
        return found

    def _compared(self, connection: Connection, one: TaskResult) -> Transition:
        """A timeout beside how long the task usually takes: the limit may be what is wrong."""
        node = self.nodes[one.claim.node]
        usual = (
            select(task_attempts.c.seconds)
            .join(tasks, tasks.c.id == task_attempts.c.task_id)
            .join(task_runs, task_runs.c.run_id == tasks.c.run_id)
            .where(task_runs.c.flow_name == self._ledger.flow, tasks.c.name == node.name)
            .where(task_attempts.c.ended == AttemptEnd.RETURNED)
            .order_by(task_runs.c.started_at.desc())
            .limit(_COMPARED)
        )
        past = sorted(connection.execute(usual).scalars())
        assert one.outcome is not None
        if one.outcome.hint:
            said = one.outcome.hint
        elif not past:
            said = "it has never ended in time so far: the limit may be too short"
        else:
            p99 = past[min(len(past) - 1, math.ceil(0.99 * len(past)) - 1)]
            near = node.timeout is not None and p99 > node.timeout / 2
            advice = "the limit may be too short" if near else "it hangs, most likely"
            said = f"99 % of its last {len(past):,} runs took at most {format_duration(p99)}: {advice}"
        return replace(one.next, error=f"{one.outcome.error}; {said}")

    def _leave(self, connection: Connection, now: datetime, leaving: RunExit) -> bool:
        """Whether it could be left: a person may have sent something back at the last moment."""
        self._ledger.lock_run(connection)
        if leaving.stopped is None:
            freed = self._settler.graph.start(connection, now)
            if freed.ready or not is_idle(self._ledger, connection):
                return False
        self._ledger.leave(connection, now)
        if leaving.stopped is not None:
            if not self._ledger.others(connection):
                self._ledger.end(connection, now, FlowStatus.STOPPED, leaving.stopped)
            return True
        counts = counts_of(connection, self._ledger.run_id)
        self._refuse_what_is_stuck(counts)
        dead, failed = counts.get(State.DEAD_LETTER, 0), counts.get(State.FAILED, 0)
        status = FlowStatus.HELD if dead else FlowStatus.FAILED if failed else FlowStatus.COMPLETE
        said = [
            f"{count:,} {one if count == 1 else many}"
            for count, one, many in ((dead, "dead letter", "dead letters"), (failed, "failed task", "failed tasks"))
            if count
        ]
        self._ledger.end(connection, now, status, " and ".join(said) or None)
        return True

    def _refuse_what_is_stuck(self, counts: Mapping[State, int]) -> None:
        """When nothing is left to claim, a task is over, or waits for a dead letter: never is a run done without it."""
        held = {State.PENDING} if counts.get(State.DEAD_LETTER) else set()
        stuck = [f"{count:,} {state}" for state, count in counts.items() if state not in _ENDS | held]
        if stuck:
            raise FlowError(
                f"run {str(self._ledger.run_id)[:8]} of flow {self._ledger.flow!r} is stuck with {', '.join(stuck)}, "
                f"and nothing of it can be claimed: if the store was changed by hand, undo that; otherwise {ANEW}"
            )


def _time_for(node: Node, past: AttemptHistory) -> float | None:
    """Seconds for one attempt; a sensor's question may not outlast the sensor by more than a moment."""
    if node.sensing is None or node.timeout is None:
        return node.timeout
    return round(min(node.timeout, max(node.sensing.timeout - past.elapsed, _LAST_QUESTION)), 1)
