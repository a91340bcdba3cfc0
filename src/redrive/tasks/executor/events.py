"""What a run tells whoever listens: each thing that people may want to know, once."""

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
    """Announces what was written, after it was written."""

    def __init__(self, announcer: EventBus, ledger: ExecutorLease, planner: ClaimPlanner) -> None:
        self._announcer = announcer
        self._ledger = ledger
        self._planner = planner
        self._reasons: dict[tuple[int, str], str] = {}
        self._failures: defaultdict[int, dict[str, list[str]]] = defaultdict(dict)  # of children, by their causes
        self._held: set[str] = set()

    def began(self, begun: StartedRun) -> None:
        """The run has begun, or goes on."""
        self._tell(FlowStarted(flow=self._ledger.flow, run_id=begun.run_id, resumed=begun.resumed, sla=begun.sla))

    def ended(self, report: FlowReport) -> None:
        """The run is over."""
        for node in range(len(self._planner.nodes)):
            if self._planner.knows(node):
                self._of_siblings(node, final=True)
        for node in list(self._failures):
            self._of_failures(node, 0)
        self._tell(FlowEnded(report=report))

    def late(self, late: Iterable[tuple[str, datetime, bool]]) -> None:
        """The SLA of the run, or of some of its tasks, is at risk or was missed."""
        flow, run_id = self._ledger.flow, self._ledger.run_id
        for name, due, missed in late:
            self._tell(SlaAtRisk(flow=flow, run_id=run_id, task=name or None, due=due, missed=missed))

    def written(
        self,
        settlements: Iterable[TaskResult],
        storms: Sequence[SiblingStop],
        settled: Progress,
        unwritten: Iterable[TaskResult] = (),
    ) -> None:
        """Attempts have ended, and the graph has moved on; what is not written yet is not told of yet."""
        waiting = {one.claim.node for one in unwritten}
        struck = {(storm.node, storm.like.next.fingerprint) for storm in storms}
        tell_of_all = self._announcer.has_hooks
        for one in settlements:
            name = shown_name(self._planner.nodes[one.claim.node].name, one.claim.child)
            if tell_of_all and one.outcome is not None and one.begun:
                self._tell(self._attempt(name, one, one.outcome))
            reason = one.next.error or one.next.cause or ""
            if one.next.state is State.RETRYING:
                self._retried(name, one, reason)
            elif one.next.state is State.FAILED and one.claim.child < 0:
                self._failed(name, reason, settled.upstream_failed.get(one.claim.node, 0))
            elif one.next.state is State.FAILED:
                self._failures[one.claim.node].setdefault(one.next.fingerprint or "", []).append(reason)
            elif one.next.state is State.DEAD_LETTER:
                self._reasons[one.claim.node, one.next.fingerprint or ""] = reason
                if one.claim.child < 0:
                    self._dead(one.claim.node, one.next.fingerprint or "", count=1)
        for storm in storms:
            fingerprint = storm.like.next.fingerprint or ""
            untried = settled.untried.get(storm.node, 0)
            self._reasons.setdefault((storm.node, fingerprint), storm.like.next.error or "")
            if self._planner.siblings(storm.node).stormed(fingerprint):
                self._dead(storm.node, fingerprint, count=storm.dead + untried, untried=untried)
        for node in {one.claim.node for one in settlements if one.claim.child >= 0}:
            if node not in waiting and not any(node == where for where, _ in struck):
                self._of_siblings(node, final=node in settled.closed)
        for node in self._failures.keys() & settled.closed.keys():
            self._of_failures(node, settled.upstream_failed.get(node, 0))
        self._groups()

    def _attempt(self, name: str, one: TaskResult, outcome: TaskOutcome) -> TaskEnded:
        return TaskEnded(
            flow=self._ledger.flow,
            run_id=self._ledger.run_id,
            task=name,
            attempt=one.claim.attempt,
            state=one.next.state,
            ended=outcome.ended,
            ended_at=datetime.fromtimestamp(one.ended_at, UTC),
            seconds=outcome.seconds,
            error=one.next.error,
            kind=one.next.kind,
        )

    def _retried(self, name: str, one: TaskResult, reason: str) -> None:
        flow, wait = self._ledger.flow, one.next.wait or 0.0
        if one.next.capped is not None:
            asked, then = format_duration(one.next.capped), format_duration(wait)
            EVENTS.warning("%s: task %s: the server asks to wait %s; it is tried again in %s", flow, name, asked, then)
        run_id, attempt = self._ledger.run_id, one.claim.attempt
        self._tell(TaskRetried(flow=flow, run_id=run_id, task=name, attempt=attempt, reason=reason, wait=wait))

    def _of_failures(self, node: int, upstream_failed: int) -> None:
        """How children of a fan-out failed, now that all are over."""
        for reasons in self._failures.pop(node).values():
            self._failed(self._planner.nodes[node].name, reasons[0], upstream_failed, count=len(reasons))

    def _failed(self, name: str, reason: str, upstream_failed: int, *, count: int = 1) -> None:
        self._tell(
            TaskFailed(
                flow=self._ledger.flow,
                run_id=self._ledger.run_id,
                task=name,
                reason=reason,
                upstream_failed=upstream_failed,
                count=count,
            )
        )

    def _of_siblings(self, node: int, *, final: bool) -> None:
        siblings = self._planner.siblings(node)
        for fingerprint in siblings.to_announce(final=final):
            self._dead(node, fingerprint, count=siblings.dead_of(fingerprint))

    def _dead(self, node: int, fingerprint: str, *, count: int, untried: int = 0) -> None:
        self._tell(
            TasksDead(
                flow=self._ledger.flow,
                run_id=self._ledger.run_id,
                task=self._planner.nodes[node].name,
                cause=fingerprint,
                reason=self._reasons.get((node, fingerprint), ""),
                count=count,
                untried=untried,
            )
        )

    def _groups(self) -> None:
        """Services whose tasks wait, or do not wait any more."""
        held = set(self._planner.held)
        for name in sorted(held ^ self._held):
            self._tell(GroupHeld(flow=self._ledger.flow, run_id=self._ledger.run_id, service=name, held=name in held))
        self._held = held

    def _tell(self, event: FlowEvent) -> None:
        self._announcer.event(event)
