"""What an executor wants to claim next: where there is room, what is held, and when to look again."""

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
from redrive.tasks.state.apply_results import SiblingStop, TaskResult
from redrive.tasks.state.claims import ClaimedTask, ClaimRequest
from redrive.tasks.state.sibling_counts import SiblingCounts


@dataclass(slots=True)
class ClaimPlan:
    """Which tasks to claim, for how many there is room, and what else the store is to be asked."""

    wanted: list[ClaimRequest] = field(default_factory=list)
    probes: dict[str, Permit] = field(default_factory=dict)
    """Services that one task is to probe."""
    waiting: list[int] = field(default_factory=list)
    """Nodes whose next task may be claimed as soon as it is due,"""
    waiting_retries: list[int] = field(default_factory=list)
    """and those of which only the retries may."""
    ask_in: float = math.inf
    """Seconds after which something that is held now may not be any more."""


class ClaimPlanner:
    """Knows which nodes have something to claim, and what holds them."""

    def __init__(self, nodes: list[Node], turnstiles: dict[str, ServiceLimiter], clock: Clock) -> None:
        self.active: set[int] = set()
        self.turnstiles = turnstiles
        self.held: dict[str, str] = {}
        """Groups that wait, and why."""
        self._clock = clock
        self._siblings: dict[int, SiblingLimiter] = {}
        self._fresh: Counter[int] = Counter()  # children under way that were not tried before
        self.number(nodes)

    def number(self, nodes: list[Node]) -> None:
        """Know the tasks by these numbers: a run has those of the flow that began it."""
        self.nodes = nodes
        self._of_service: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            if node.service is not None:
                self._of_service.setdefault(node.service, []).append(number)

    def siblings(self, node: int) -> SiblingLimiter:
        """What is known of a fan-out's children."""
        known = self._siblings.get(node)
        if known is None:
            known = self._siblings[node] = SiblingLimiter(self.nodes[node].storm)
        return known

    def knows(self, node: int) -> bool:
        """Whether anything is known of a fan-out's children."""
        return node in self._siblings

    def forget(self) -> None:
        """A person has changed something: what was learnt about siblings may not hold any more."""
        self._siblings.clear()

    def began(self, claim: ClaimedTask) -> None:
        """A task is in hand."""
        if claim.child >= 0 and not claim.past.failures:
            self._fresh[claim.node] += 1
            self.siblings(claim.node).tried(self._clock.monotonic())

    def ended(self, claim: ClaimedTask) -> None:
        """A task is not in hand any more."""
        if claim.child >= 0 and not claim.past.failures:
            self._fresh[claim.node] -= 1

    def learn(self, one: TaskResult) -> list[SiblingStop]:
        """What the end of an attempt says about its siblings; a storm, where it does."""
        siblings, following = self.siblings(one.claim.node), one.next
        match following.state:
            case State.SUCCESS:
                siblings.succeeded(one.claim.id)
            case State.RETRYING:
                suspect = following.kind in SUSPECT
                siblings.retries(one.claim.id, following.fingerprint or "", suspect=suspect)
            case State.FAILED:
                siblings.ended(one.claim.id)
            case State.DEAD_LETTER if siblings.died(
                one.claim.id, following.fingerprint or "", alone=following.kind is Kind.ROW
            ):
                return [SiblingStop(one.claim.node, one, siblings.dead_of(following.fingerprint or ""))]
        return []

    def recount(self, node: int, census: SiblingCounts) -> list[SiblingStop]:
        """Know of a fan-out's children what the store knows; storms that nobody has noticed."""
        siblings = self.siblings(node)
        found = siblings.recount(census.successes, census.causes)
        return [SiblingStop(node, census.died[cause], siblings.dead_of(cause)) for cause in found]

    def plan(self, *, processes: int, threads: int) -> ClaimPlan:
        """What to claim, given room for so many."""
        plan = ClaimPlan()
        for in_thread, room in ((False, processes), (True, threads)):
            if room > 0:
                chosen = [node for node in self.active if self.nodes[node].in_thread is in_thread]
                self._unrestricted(plan, [node for node in chosen if self.nodes[node].service is None], room, in_thread)
                self._by_service(
                    plan, [node for node in chosen if self.nodes[node].service is not None], room, in_thread
                )
        return plan

    def _unrestricted(self, plan: ClaimPlan, nodes: Collection[int], room: int, in_thread: bool) -> None:
        single = [node for node in nodes if self.nodes[node].each is None]
        if single:
            plan.wanted.append(ClaimRequest(single, room, in_thread))
            plan.waiting += single
        for node in nodes:
            if self.nodes[node].each is not None:
                self._children(plan, node, room, in_thread)

    def _children(
        self, plan: ClaimPlan, node: int, room: int, in_thread: bool, group: tuple[ServiceLimiter, float] | None = None
    ) -> None:
        window = self.siblings(node).may_run(self._clock.monotonic()) - self._fresh[node]
        fresh = window > 0
        limit = min(room, window) if fresh else room
        wanted = ClaimRequest([node], limit, in_thread, windowed=limit < room, only_retries=not fresh)
        plan.wanted.append(self._limited(wanted, group))
        (plan.waiting if fresh else plan.waiting_retries).append(node)

    def _limited(self, wanted: ClaimRequest, group: tuple[ServiceLimiter, float] | None) -> ClaimRequest:
        if group is None:
            return wanted
        turnstile, together = group
        limits = turnstile.group
        return replace(
            wanted,
            service=limits.name,
            together=together,
            concurrency=limits.concurrency,
            across_runs=limits.across_runs,
            sharing=self._of_service[limits.name],
        )

    def _by_service(self, plan: ClaimPlan, nodes: Collection[int], room: int, in_thread: bool) -> None:
        for name in sorted({self.nodes[node].service or "" for node in nodes}):
            if name in plan.probes:
                continue  # one task finds out, of whichever kind
            turnstile = self.turnstiles[name]
            found = turnstile.room()
            if found.why is None:
                self.held.pop(name, None)
            else:
                self.held[name] = found.why
            if found.ask_in is not None:
                plan.ask_in = min(plan.ask_in, found.ask_in)
            if found.tasks <= 0:
                continue
            if found.probe is not None:
                plan.probes[name] = found.probe
            limit = int(min(room, found.tasks))
            theirs = [node for node in nodes if self.nodes[node].service == name]
            single = [node for node in theirs if self.nodes[node].each is None]
            if single:
                plan.wanted.append(self._limited(ClaimRequest(single, limit, in_thread), (turnstile, found.tasks)))
                plan.waiting += single
            for node in theirs:
                if self.nodes[node].each is not None:
                    self._children(plan, node, limit, in_thread, (turnstile, found.tasks))
