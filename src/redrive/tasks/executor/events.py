"""What the executor reports of a run: events once they are stored, progress, warnings, and the error at its end."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from redrive._internal.masked_errors import masked_traceback
from redrive.errors import FlowStopped
from redrive.events.bus import EVENTS, EventBus
from redrive.model.calls import Kind, format_duration
from redrive.model.tasks import (
    FlowEnded,
    FlowEvent,
    FlowProgress,
    FlowReport,
    FlowStarted,
    FlowStatus,
    GroupHeld,
    RunningTask,
    SlaAtRisk,
    State,
    TaskEnded,
    TaskFailed,
    TaskRetried,
    TasksDead,
)
from redrive.policy.option_checks import warn
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.database import Database
from redrive.store.repositories.tasks import causes_of, shown_name
from redrive.tasks.executor.decide import RECOVERS
from redrive.tasks.executor.plan import ClaimPlanner
from redrive.tasks.graph import listed, longest_way, worst_case
from redrive.tasks.operator.actions import CANCELLED
from redrive.tasks.state.apply_results import SiblingStop, TaskResult
from redrive.tasks.state.executor_lease import ExecutorLease, StartedFlowRun
from redrive.tasks.state.progression import GraphProgress
from redrive.tasks.workers.protocol import TaskOutcome

if TYPE_CHECKING:
    from redrive.tasks.executor.store_cycle import ClaimedJob
    from redrive.tasks.executor.threads import TaskThreads
    from redrive.tasks.flow import Flow
    from redrive.tasks.workers.pool import WorkerPool


class FlowEvents:
    """Publishes the events of one run."""

    def __init__(self, bus: EventBus, lease: ExecutorLease, planner: ClaimPlanner) -> None:
        self._bus = bus
        self._lease = lease
        self._planner = planner
        self._reasons: dict[tuple[int, str], str] = {}
        # Reasons of failed children, by node and fingerprint.
        self._failures: defaultdict[int, dict[str, list[str]]] = defaultdict(dict)
        self._blocked: set[str] = set()

    def announce_start(self, started: StartedFlowRun) -> None:
        """Publish that the run was started or resumed."""
        self._emit(FlowStarted(flow=self._lease.flow, run_id=started.run_id, resumed=started.resumed, sla=started.sla))

    def announce_end(self, report: FlowReport) -> None:
        """Publish the end of the run, and the events that waited for it."""
        for node in range(len(self._planner.nodes)):
            if self._planner.has_siblings(node):
                self._announce_sibling_deaths(node, final=True)
        for node in list(self._failures):
            self._announce_child_failures(node, 0)
        self._emit(FlowEnded(report=report))

    def announce_slas(self, sla_events: Iterable[tuple[str, datetime, bool]]) -> None:
        """Publish SLAs of the run or its tasks that are at risk or missed."""
        flow, run_id = self._lease.flow, self._lease.run_id
        for name, due, missed in sla_events:
            self._emit(SlaAtRisk(flow=flow, run_id=run_id, task=name or None, due=due, missed=missed))

    def announce_results(
        self,
        task_results: Iterable[TaskResult],
        sibling_stops: Sequence[SiblingStop],
        progress: GraphProgress,
        unwritten: Iterable[TaskResult] = (),
    ) -> None:
        """Publish attempts that have ended and what followed from them; unwritten results wait."""
        unwritten_nodes = {task_result.claim.node for task_result in unwritten}
        stopped = {(stop.node, stop.like.next.fingerprint) for stop in sibling_stops}
        has_hooks = self._bus.has_hooks
        for task_result in task_results:
            name = shown_name(self._planner.nodes[task_result.claim.node].name, task_result.claim.child)
            if has_hooks and task_result.outcome is not None and task_result.begun:
                self._emit(self._make_task_ended(name, task_result, task_result.outcome))
            reason = task_result.next.error or task_result.next.cause or ""
            if task_result.next.state is State.RETRYING:
                self._announce_retry(name, task_result, reason)
            elif task_result.next.state is State.FAILED and task_result.claim.child < 0:
                self._announce_failure(name, reason, progress.upstream_failed.get(task_result.claim.node, 0))
            elif task_result.next.state is State.FAILED:
                self._failures[task_result.claim.node].setdefault(task_result.next.fingerprint or "", []).append(reason)
            elif task_result.next.state is State.DEAD_LETTER:
                self._reasons[task_result.claim.node, task_result.next.fingerprint or ""] = reason
                if task_result.claim.child < 0:
                    self._announce_deaths(task_result.claim.node, task_result.next.fingerprint or "", count=1)
        for stop in sibling_stops:
            fingerprint = stop.like.next.fingerprint or ""
            untried = progress.untried.get(stop.node, 0)
            self._reasons.setdefault((stop.node, fingerprint), stop.like.next.error or "")
            if self._planner.siblings_of(stop.node).mark_announced(fingerprint):
                self._announce_deaths(stop.node, fingerprint, count=stop.dead + untried, untried=untried)
        for node in {task_result.claim.node for task_result in task_results if task_result.claim.child >= 0}:
            if node not in unwritten_nodes and not any(node == where for where, _ in stopped):
                self._announce_sibling_deaths(node, final=node in progress.closed)
        for node in self._failures.keys() & progress.closed.keys():
            self._announce_child_failures(node, progress.upstream_failed.get(node, 0))
        self._announce_blocked_services()

    def _make_task_ended(self, name: str, task_result: TaskResult, outcome: TaskOutcome) -> TaskEnded:
        return TaskEnded(
            flow=self._lease.flow,
            run_id=self._lease.run_id,
            task=name,
            attempt=task_result.claim.attempt,
            state=task_result.next.state,
            ended=outcome.ended,
            ended_at=datetime.fromtimestamp(task_result.ended_at, UTC),
            seconds=outcome.seconds,
            error=task_result.next.error,
            kind=task_result.next.kind,
        )

    def _announce_retry(self, name: str, task_result: TaskResult, reason: str) -> None:
        flow, wait = self._lease.flow, task_result.next.wait or 0.0
        if task_result.next.capped is not None:
            asked, then = format_duration(task_result.next.capped), format_duration(wait)
            EVENTS.warning("%s: task %s: the server asks to wait %s; it is tried again in %s", flow, name, asked, then)
        run_id, attempt = self._lease.run_id, task_result.claim.attempt
        self._emit(TaskRetried(flow=flow, run_id=run_id, task=name, attempt=attempt, reason=reason, wait=wait))

    def _announce_child_failures(self, node: int, upstream_failed: int) -> None:
        """Publish how children of a fan-out failed, when all have ended."""
        for reasons in self._failures.pop(node).values():
            self._announce_failure(self._planner.nodes[node].name, reasons[0], upstream_failed, count=len(reasons))

    def _announce_failure(self, name: str, reason: str, upstream_failed: int, *, count: int = 1) -> None:
        self._emit(
            TaskFailed(
                flow=self._lease.flow,
                run_id=self._lease.run_id,
                task=name,
                reason=reason,
                upstream_failed=upstream_failed,
                count=count,
            )
        )

    def _announce_sibling_deaths(self, node: int, *, final: bool) -> None:
        siblings = self._planner.siblings_of(node)
        for fingerprint in siblings.take_unannounced(final=final):
            self._announce_deaths(node, fingerprint, count=siblings.count_dead(fingerprint))

    def _announce_deaths(self, node: int, fingerprint: str, *, count: int, untried: int = 0) -> None:
        self._emit(
            TasksDead(
                flow=self._lease.flow,
                run_id=self._lease.run_id,
                task=self._planner.nodes[node].name,
                cause=fingerprint,
                reason=self._reasons.get((node, fingerprint), ""),
                count=count,
                untried=untried,
            )
        )

    def _announce_blocked_services(self) -> None:
        """Publish services whose tasks became blocked or free."""
        blocked = set(self._planner.blocked)
        for name in sorted(blocked ^ self._blocked):
            self._emit(GroupHeld(flow=self._lease.flow, run_id=self._lease.run_id, service=name, held=name in blocked))
        self._blocked = blocked

    def _emit(self, event: FlowEvent) -> None:
        self._bus.event(event)


_SHOW_EVERY = 0.25
_TASKS_SHOWN = 20
_COUNT_EVERY = 0.5


class ProgressCollector:
    """Collects the progress of a run if there is a callback."""

    def __init__(self, watch: Callable[[FlowProgress], None] | None) -> None:
        self._watch = watch
        self._began = time.monotonic()
        self._counts: Mapping[State, int] = {}
        self._count_at = 0.0
        self.retries: tuple[tuple[str, float], ...] = ()
        self.show_at = math.inf if watch is None else 0.0
        """When to call `show` next."""

    @property
    def wants_counts(self) -> bool:
        """Return whether the counts of tasks by state are outdated."""
        return self._watch is not None and time.monotonic() >= self._count_at

    def record_counts(
        self, counts: Mapping[State, int], retries: tuple[tuple[str, float], ...], seconds: float
    ) -> None:
        """Store new counts. A slow count is made less often."""
        self._counts = counts
        self.retries = retries
        self._count_at = time.monotonic() + max(_COUNT_EVERY, 20 * seconds)

    def show(
        self,
        jobs: Mapping[int, ClaimedJob],
        pool: WorkerPool | None,
        threads: TaskThreads | None,
        blocked: Mapping[str, str],
    ) -> None:
        """Call the callback if it is time to."""
        now = time.monotonic()
        if self._watch is None or now < self.show_at:
            return
        self.show_at = now + _SHOW_EVERY
        in_progress: list[tuple[int, float, bool]] = [] if pool is None else list(pool.running())
        if threads is not None:
            in_progress += [(ticket, seconds, False) for ticket, seconds in threads.running()]
        running = [
            RunningTask(
                task=jobs[ticket].name,
                seconds=seconds,
                attempt=jobs[ticket].claim.attempt,
                timeout=jobs[ticket].node.timeout,
                dying=dying,
            )
            for ticket, seconds, dying in sorted(in_progress, key=lambda entry: -entry[1])[:_TASKS_SHOWN]
            if ticket in jobs
        ]
        progress = FlowProgress(
            counts=self._counts,
            running=tuple(running),
            retries=self.retries,
            held=tuple(sorted(blocked.items())),
            seconds=now - self._began,
        )
        try:
            self._watch(progress)
        except Exception as error:  # a failing callback must not end the run
            EVENTS.error("the watch of a run failed, and is not called any more\n%s", masked_traceback(error))
            self._watch, self.show_at = None, math.inf


def warn_of_sla(flow: Flow) -> None:
    """Warn if the retries of the run may exceed its SLA."""
    if flow.sla is None:
        return
    now, sla = datetime.now(UTC), flow.sla
    left = (sla.after(now) - now).total_seconds() if isinstance(sla, TimeOfDay) else sla
    worst = longest_way(flow.graph, worst_case)
    if worst > left:
        warn(
            f"flow {flow.name!r} is to be done in {format_duration(left)}, and its tasks may take "
            f"{format_duration(worst)}, one after another with all their retries: shorten their timeouts or the waits"
        )


def warn_of_known_keys(flow: Flow, started: StartedFlowRun) -> None:
    """Warn if services may take the work of this run for that of a complete one."""
    known = [node.name for node in flow.graph.nodes.values() if node.binding.wants_key and node.key is None]
    if known and started.done_before is not None:
        warn(
            f"flow {flow.name!r} was complete with these parameters at {started.done_before:%Y-%m-%d %H:%M} "
            f"UTC: {listed(known)} of this run {'has' if len(known) == 1 else 'have'} the same idempotency keys, "
            "so services that know them do nothing. If this is other work, distinguish it by a parameter"
        )


def stopped_error(report: FlowReport, database: Database, stop_reason: str | None) -> FlowStopped:
    """Return the error of a run that did not complete."""
    next_step = f"see `redrive tasks ls --run {report.run_id}`"
    if report.status in (FlowStatus.STOPPED, FlowStatus.RUNNING, FlowStatus.ABANDONED):
        reason = stop_reason or report.reason
        cancelled = report.status is FlowStatus.ABANDONED and (report.reason or "").startswith(CANCELLED)
        what_follows = {
            FlowStatus.RUNNING: "another executor continues it",
            FlowStatus.ABANDONED: "running it again begins a new run" if cancelled else "a new run has taken its place",
        }
        return FlowStopped(
            f"flow {report.flow!r} stopped: {reason}; "
            + what_follows.get(report.status, "running it again resumes it"),
            kind=Kind.PERMANENT if cancelled else Kind.TRANSIENT,
            report=report,
        )
    blocked = ", and downstream tasks are blocked" if report.counts.get(State.PENDING) else ""
    return FlowStopped(
        f"flow {report.flow!r} has {report.reason}{blocked}; {next_step}",
        kind=_kind_of(report, database),
        report=report,
    )


def _kind_of(report: FlowReport, database: Database) -> Kind:
    """Return TRANSIENT if resuming the run would retry something, even if other tasks are blocked."""

    def kinds_of(*states: State) -> set[Kind]:
        causes = database.read(lambda connection: causes_of(connection, report.run_id, states))
        return {Kind(cause.kind or Kind.PERMANENT) for cause in causes}

    if kinds_of(State.FAILED) & RECOVERS:
        return Kind.TRANSIENT
    kinds = kinds_of(State.FAILED, State.DEAD_LETTER)
    return kinds.pop() if len(kinds) == 1 else Kind.PERMANENT
