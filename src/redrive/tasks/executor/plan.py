"""The plan of what an executor claims next: capacity, limits, and when to ask the store again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from redrive.clock import Clock
from redrive.model.calls import Kind
from redrive.model.tasks import State
from redrive.policy.breaker import Permit
from redrive.tasks.executor.concurrency import ServiceLimiter
from redrive.tasks.executor.decide import SUSPECT
from redrive.tasks.executor.sibling_limiter import SiblingLimiter
from redrive.tasks.graph import Node
from redrive.tasks.state.apply_results import SiblingCounts, SiblingStop, TaskResult
from redrive.tasks.state.claims import ClaimedTask, ClaimRequest


@dataclass(slots=True)
class ClaimPlan:
    """Which tasks to claim and how many, and when the next task is due."""

    wanted: list[ClaimRequest] = field(default_factory=list)
    probes: dict[str, Permit] = field(default_factory=dict)
    """Services that one task will probe."""
    waiting: list[int] = field(default_factory=list)
    """Nodes whose next task may be claimed as soon as it is due."""
    waiting_retries: list[int] = field(default_factory=list)
    """Nodes of which only retries may be claimed."""
    ask_in: float = math.inf
    """Seconds after which a task that is blocked now may be free."""


class ClaimPlanner:
    """Tracks which nodes have tasks to claim and what blocks them."""

    def __init__(self, nodes: list[Node], limiters: dict[str, ServiceLimiter], clock: Clock) -> None:
        self.active: set[int] = set()
        self.limiters = limiters
        self.blocked: dict[str, str] = {}
        """Blocked services: reasons by name."""
        self._clock = clock
        self._siblings: dict[int, SiblingLimiter] = {}
        self._fresh: Counter[int] = Counter()  # running children at their first attempt
        self.set_nodes(nodes)

    def set_nodes(self, nodes: list[Node]) -> None:
        """Set the order of the tasks: a run keeps the numbers of the flow that started it."""
        self.nodes = nodes
        self._nodes_of_service: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            if node.service is not None:
                self._nodes_of_service.setdefault(node.service, []).append(number)

    def siblings_of(self, node: int) -> SiblingLimiter:
        """Return the limiter of a fan-out's children."""
        siblings = self._siblings.get(node)
        if siblings is None:
            siblings = self._siblings[node] = SiblingLimiter(self.nodes[node].storm)
        return siblings

    def has_siblings(self, node: int) -> bool:
        """Return whether a limiter exists for a fan-out's children."""
        return node in self._siblings

    def forget(self) -> None:
        """Drop the sibling limiters: an operator has changed something, so their counts may be outdated."""
        self._siblings.clear()

    def record_start(self, claim: ClaimedTask) -> None:
        """Record a task that was claimed."""
        if claim.child >= 0 and not claim.past.failures:
            self._fresh[claim.node] += 1
            self.siblings_of(claim.node).record_probe(self._clock.monotonic())

    def record_end(self, claim: ClaimedTask) -> None:
        """Record a task whose attempt ended or whose claim was returned."""
        if claim.child >= 0 and not claim.past.failures:
            self._fresh[claim.node] -= 1

    def record_result(self, task_result: TaskResult) -> list[SiblingStop]:
        """Record the result of a child; return a stop if its fan-out must be stopped."""
        siblings, transition = self.siblings_of(task_result.claim.node), task_result.next
        match transition.state:
            case State.SUCCESS:
                siblings.record_success(task_result.claim.id)
            case State.RETRYING:
                suspect = transition.kind in SUSPECT
                siblings.record_retry(task_result.claim.id, transition.fingerprint or "", suspect=suspect)
            case State.FAILED:
                siblings.record_end(task_result.claim.id)
            case State.DEAD_LETTER if siblings.record_death(
                task_result.claim.id, transition.fingerprint or "", alone=transition.kind is Kind.ROW
            ):
                return [
                    SiblingStop(task_result.claim.node, task_result, siblings.count_dead(transition.fingerprint or ""))
                ]
        return []

    def recount(self, node: int, counts: SiblingCounts) -> list[SiblingStop]:
        """Take over the counts of the store; return stops that no executor has made."""
        siblings = self.siblings_of(node)
        causes = siblings.recount(counts.successes, counts.causes)
        return [SiblingStop(node, counts.died[cause], siblings.count_dead(cause)) for cause in causes]

    def plan(self, *, processes: int, threads: int) -> ClaimPlan:
        """Return what to claim with this many free slots."""
        plan = ClaimPlan()
        for in_thread, room in ((False, processes), (True, threads)):
            if room > 0:
                candidates = [node for node in self.active if self.nodes[node].in_thread is in_thread]
                self._request_unlimited(
                    plan, [node for node in candidates if self.nodes[node].service is None], room, in_thread
                )
                self._request_by_service(
                    plan, [node for node in candidates if self.nodes[node].service is not None], room, in_thread
                )
        return plan

    def _request_unlimited(self, plan: ClaimPlan, nodes: Collection[int], room: int, in_thread: bool) -> None:
        single = [node for node in nodes if self.nodes[node].each is None]
        if single:
            plan.wanted.append(ClaimRequest(single, room, in_thread))
            plan.waiting += single
        for node in nodes:
            if self.nodes[node].each is not None:
                self._request_children(plan, node, room, in_thread)

    def _request_children(
        self, plan: ClaimPlan, node: int, room: int, in_thread: bool, group: tuple[ServiceLimiter, float] | None = None
    ) -> None:
        window = self.siblings_of(node).max_new(self._clock.monotonic()) - self._fresh[node]
        fresh = window > 0
        limit = min(room, window) if fresh else room
        wanted = ClaimRequest([node], limit, in_thread, windowed=limit < room, only_retries=not fresh)
        plan.wanted.append(self._add_service_limits(wanted, group))
        (plan.waiting if fresh else plan.waiting_retries).append(node)

    def _add_service_limits(self, wanted: ClaimRequest, group: tuple[ServiceLimiter, float] | None) -> ClaimRequest:
        if group is None:
            return wanted
        limiter, together = group
        limits = limiter.group
        return replace(
            wanted,
            service=limits.name,
            together=together,
            concurrency=limits.concurrency,
            across_runs=limits.across_runs,
            sharing=self._nodes_of_service[limits.name],
        )

    def _request_by_service(self, plan: ClaimPlan, nodes: Collection[int], room: int, in_thread: bool) -> None:
        for name in sorted({self.nodes[node].service or "" for node in nodes}):
            if name in plan.probes:
                continue  # one probe, whether in a process or a thread
            limiter = self.limiters[name]
            capacity = limiter.check_capacity()
            if capacity.reason is None:
                self.blocked.pop(name, None)
            else:
                self.blocked[name] = capacity.reason
            if capacity.ask_in is not None:
                plan.ask_in = min(plan.ask_in, capacity.ask_in)
            if capacity.tasks <= 0:
                continue
            if capacity.probe is not None:
                plan.probes[name] = capacity.probe
            limit = int(min(room, capacity.tasks))
            service_nodes = [node for node in nodes if self.nodes[node].service == name]
            single = [node for node in service_nodes if self.nodes[node].each is None]
            if single:
                plan.wanted.append(
                    self._add_service_limits(ClaimRequest(single, limit, in_thread), (limiter, capacity.tasks))
                )
                plan.waiting += single
            for node in service_nodes:
                if self.nodes[node].each is not None:
                    self._request_children(plan, node, limit, in_thread, (limiter, capacity.tasks))
