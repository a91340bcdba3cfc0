"""The events of a run: the executor publishes each one once, after it is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from redrive.events.bus import EVENTS, EventBus
from redrive.model.calls import format_duration
from redrive.model.tasks import (
    FlowEnded,
    FlowEvent,
    FlowReport,
    FlowStarted,
    GroupHeld,
    SlaAtRisk,
    State,
    TaskEnded,
    TaskFailed,
    TaskRetried,
    TasksDead,
)
from redrive.store.repositories.tasks import shown_name
from redrive.tasks.executor.plan import ClaimPlanner
from redrive.tasks.state.apply_results import SiblingStop, TaskResult
from redrive.tasks.state.executor_lease import ExecutorLease, StartedRun
from redrive.tasks.state.progression import Progress
from redrive.tasks.workers.messages import TaskOutcome


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

    def announce_start(self, started: StartedRun) -> None:
        """Publish that the run was started or resumed."""
        self._emit(FlowStarted(flow=self._lease.flow, run_id=started.run_id, resumed=started.resumed, sla=started.sla))

    def announce_end(self, report: FlowReport) -> None:
        """Publish the end of the run, and what was held back until then."""
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
        progress: Progress,
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
