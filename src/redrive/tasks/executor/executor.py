"""The executor: one loop that hands tasks to workers, keeps their deadlines, and writes down what becomes of them."""

from __future__ import annotations

import math
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redrive._internal.shutdown import StopSignal
from redrive.calls import testmode
from redrive.clock import SystemClock
from redrive.errors import FlowStopped, StoreError
from redrive.model.calls import Kind
from redrive.model.tasks import FlowProgress, FlowReport, FlowStatus, State
from redrive.store.store import Store
from redrive.tasks.executor.concurrency import ServiceLimiter
from redrive.tasks.executor.db_thread import DbThread, Waker
from redrive.tasks.executor.decide import Transition, decide
from redrive.tasks.executor.events import FlowEvents
from redrive.tasks.executor.in_thread import TaskThreads
from redrive.tasks.executor.plan import ClaimPlanner
from redrive.tasks.executor.progress import ProgressCollector
from redrive.tasks.executor.slas import WHOLE_RUN, SlaTracker
from redrive.tasks.executor.start_warnings import warn_of_known_keys, warn_of_sla
from redrive.tasks.executor.stop_reason import stopped
from redrive.tasks.executor.store_cycle import ClaimedJob, CycleRequest, CycleResult, RunExit, StoreCycle
from redrive.tasks.operator.cancel import cancelled
from redrive.tasks.state.apply_results import ResultWriter, SiblingStop, TaskResult
from redrive.tasks.state.executor_lease import EarlierRun, ExecutorLease, StartedRun
from redrive.tasks.state.results import Results
from redrive.tasks.workers.import_flow import refuse_within_import
from redrive.tasks.workers.messages import AttemptEnd, TaskOutcome
from redrive.tasks.workers.pool import WorkerPool

if TYPE_CHECKING:
    from redrive.tasks.flow import Flow

_POLL = 1.0  # seconds after which the store is asked what others, or people, have done
_MOST_AHEAD = 256
_SHORT = 0.05  # seconds: tasks that take longer are not claimed before a worker is free for them
_HOARD = 1.0  # seconds that claimed tasks may wait for a worker
_GIVE_UP = 3.0  # seconds: threads that do not end are left behind


class Executor:
    """Runs a flow once."""

    def __init__(
        self,
        flow: Flow,
        store: Store | None,
        *,
        params: Mapping[str, Any],
        run_id: UUID | None,
        start: EarlierRun,
        deadline: float | None,
        watch: Callable[[FlowProgress], None] | None,
        make_pool: Callable[..., WorkerPool] = WorkerPool,
    ) -> None:
        refuse_within_import()
        flow.graph.check()
        self._flow = flow
        self._params, self._run_id, self._start = params, run_id, start
        self.begun: tuple[Store, UUID] | None = None
        self._is_resumed = False
        """The run that it began or resumed, and where."""
        self._bell = Waker()
        self._stopping = StopSignal(deadline, told=self._bell.ring)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell.hears, selectors.EVENT_READ, self._bell.hush)
        nodes = flow.graph.nodes.values()
        in_threads = any(node.in_thread for node in nodes)
        in_processes = not all(node.in_thread for node in nodes)
        self._pool = make_pool(flow, self._selector, workers=flow.workers) if in_processes else None
        opened = self._opened(store)
        self._threads = (
            TaskThreads(flow.graph.nodes, self._bell, threads=flow.workers, store=opened) if in_threads else None
        )
        takes = {node.name: node.binding.params for node in nodes}
        self._ledger = ExecutorLease(opened, flow.name, flow.graph.shape(), defaults=flow.params, takes=takes)
        self._results = Results(self._ledger, flow.files)
        self._turn = StoreCycle(
            self._ledger, ResultWriter(self._ledger, self._results), self._results, list(nodes), params
        )
        clock = SystemClock()
        turnstiles = {name: ServiceLimiter(group, clock) for name, group in flow.groups.items()}
        self._planner = ClaimPlanner(list(nodes), turnstiles, clock)
        self._news = FlowEvents(flow.announcer.with_listeners(opened.listeners), self._ledger, self._planner)
        self._scribe: DbThread[CycleResult] = DbThread(self._bell)

        self._hands: dict[int, ClaimedJob] = {}  # by ticket
        self._ready: deque[ClaimedJob] = deque()  # claimed, and waiting for a worker to be free
        self._settlements: list[TaskResult] = []
        self._storms: list[SiblingStop] = []
        self._cancelled: dict[int, str] = {}  # by the ids of tasks in hand: why
        self._order = CycleRequest(start=True, recover=True)
        self._look_at = 0.0
        self._survey_at = 0.0
        self._recover_at = 0.0
        self._asked_at = 0.0
        self._due: list[float] = []  # a heap of the moments at which what is known to wait is due
        self._turn_took = 0.001
        self._job_took = math.inf  # not known yet
        self._stop_by: float | None = None
        self._ending = False
        self._over = False
        self._view = ProgressCollector(watch)

    def _opened(self, store: Store | None) -> Store:
        """The store, opened while the first worker imports the flow."""
        try:
            if self._pool is not None:
                self._pool.start()
            return store or self._flow.store
        except BaseException:
            if self._pool is not None:
                self._pool.close()
            self._selector.close()
            self._bell.close()
            raise

    def stop(self, reason: str) -> None:
        """End the run before its time; from any thread."""
        self._stopping.request_stop(reason)

    def run(self) -> FlowReport:
        """Run it, to its end or until it is told to stop."""
        try:
            try:
                return self._run()
            finally:
                self._close()
        except FlowStopped as error:
            if error.report is None and self.begun is not None:  # nothing of ours runs any more: the store may be slow
                with suppress(StoreError):
                    raise self._ledger.explained(error, resumed=self._is_resumed) from None
            raise

    def _run(self) -> FlowReport:
        if self._pool is not None:
            _ = self._ledger.store.alerts  # imported for the end of the run, while the workers import the flow
            self._pool.check()
        warn_of_sla(self._flow)
        begun = self._ledger.begin(
            params=self._params,
            run_id=self._run_id,
            start=self._start,
            sla=self._flow.sla,
            task_slas={one.name: one.sla for one in self._flow.graph.nodes.values() if one.sla is not None},
        )
        self.begun, self._is_resumed = (self._ledger.store, begun.run_id), begun.resumed
        ordered = [self._flow.graph.nodes[place.name] for place in self._ledger.shape.places]
        self._turn.nodes = ordered
        self._planner.number(ordered)
        self._order.resume = begun.resumed
        warn_of_known_keys(self._flow, begun)
        self._news.began(begun)
        self._watch_slas(begun)
        with self._stopping.heeding_signals(), self._stopping.heeding_sigint():
            self._work()
            while not self._leave():
                self._work()
        report = self._ledger.report(resumed=begun.resumed)
        self._news.ended(report)
        if self._stopping.interrupted:
            raise KeyboardInterrupt
        if report.status is not FlowStatus.COMPLETE:
            raise stopped(report, self._ledger.database, self._stopping.reason())
        return report

    def _watch_slas(self, begun: StartedRun) -> None:
        due = dict(begun.task_slas)
        if begun.sla is not None:
            due[WHOLE_RUN] = begun.sla
        since = None if begun.resumed else begun.started_at
        self._turn.slas = SlaTracker(begun.started_at, due, since) if due else None

    def _work(self) -> None:
        while not self._finished():
            self._pass()

    def _leave(self) -> bool:
        """Leave the run, unless a person has sent something back at the last moment."""
        turned = self._turn.take(CycleRequest(leave=RunExit(None if self._over else self._stopping.reason() or "")))
        self._news.late(turned.late)  # what was missed since the store was last looked at
        if turned.left:
            return True
        self._over = False
        self._look_at = self._survey_at = 0.0
        return False

    def _finished(self) -> bool:
        if self._scribe.busy or self._settlements or self._storms or self._hands or self._order.start:
            return False
        return self._over or self._stop_by is not None

    def _pass(self) -> None:
        """Once around: hand out, write, wait for something to happen, take in."""
        self._hand_out()
        if self._stop_by is None and self._stopping.reason() is not None:
            self._begin_to_stop()
        self._write()
        for key, _ in self._selector.select(self._patience()):
            key.data()
        if self._pool is not None:
            self._pool.tick()
        if self._stop_by is not None and time.monotonic() >= self._stop_by:
            self._end_all()
        if self._hoarded_at() <= time.monotonic():
            self._job_took = 1.0  # they are not as short as they were
            self._give_back("no worker was free for it")
        self._take_in()
        turned = self._scribe.result()
        if turned is not None:
            self._go_on(turned)
        if self._ledger.is_late():
            raise self._ledger.out_of_touch()
        self._view.show(self._hands, self._pool, self._threads, self._planner.held)

    # ── to the workers and back ───────────────────────────────────────────────────────────────────────────────────────

    def _hand_out(self) -> None:
        pool = self._pool
        while self._ready and pool is not None and pool.idle:
            pool.give(self._ready.popleft().job)

    def _take_in(self) -> None:
        outcomes = [] if self._pool is None else self._pool.take()
        if self._threads is not None:
            outcomes += self._threads.take()
        for outcome in outcomes:
            hand = self._hands.pop(outcome.ticket, None)
            if hand is not None:
                self._ended(hand, outcome)
        self._hand_out()  # a worker that is free now need not wait for the database

    def _ended(
        self, hand: ClaimedJob, outcome: TaskOutcome, following: Transition | None = None, *, begun: bool = True
    ) -> None:
        claim, node = hand.claim, hand.node
        if outcome.ended is AttemptEnd.RETURNED:
            known = self._job_took < math.inf
            self._job_took = self._job_took * 15 / 16 + outcome.seconds / 16 if known else outcome.seconds
        why = self._cancelled.pop(claim.id, None)
        if why is not None and outcome.ended is not AttemptEnd.RETURNED:
            following = cancelled(why)
        following = following or decide(node, claim.past, outcome, random, testmode.active())
        settlement = TaskResult(claim, following, outcome, begun=begun and not outcome.never_begun)
        if outcome.in_file:
            settlement.result_file = self._results.stored_name(claim.id, claim.attempt)
        if hand.item_aside:
            self._results.remove_item(claim.id, claim.attempt)
        self._settlements.append(settlement)
        self._planner.ended(claim)
        if node.service is not None:
            self._planner.turnstiles[node.service].end(hand.permit, outcome)
        if claim.child >= 0:
            self._storms += self._planner.learn(settlement)

    # ── to the store and back ─────────────────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        """Begin a turn at the store, where there is a reason to."""
        if self._scribe.busy:
            return
        now = time.monotonic()
        order = self._order
        order.recover = order.recover or now >= self._recover_at
        order.processes, order.threads = (0, 0) if self._stop_by is not None else self._room()
        looks = (order.processes or order.threads) and (now >= self._look_at or self._settlements)
        if not (looks or self._settlements or self._storms or order.recover):
            return
        if looks:
            order.plan = self._planner.plan(processes=order.processes, threads=order.threads)
        order.survey = order.recover or bool(looks and now >= self._survey_at)
        order.count = self._view.wants_counts
        order.settlements, order.storms = self._settlements, self._storms
        self._settlements, self._storms = [], []
        if order.recover:
            self._recover_at = now + self._ledger.lease.total_seconds() / 6
        if order.survey:
            self._survey_at = now + _POLL
        self._order = CycleRequest()
        self._written, self._asked_at = order, now
        self._scribe.begin(lambda: self._turn.take(order))

    def _room(self) -> tuple[int, int]:
        """For how many tasks there is room, in processes and in threads.

        Short ones are claimed ahead: so many as will be done while the store is at work.
        """
        ahead = 0
        if self._job_took < _SHORT:
            ahead = min(_MOST_AHEAD, math.ceil(2 * self._flow.workers * self._turn_took / max(self._job_took, 1e-4)))
        processes = 0 if self._pool is None else self._pool.idle + ahead - len(self._ready)
        threads = 0 if self._threads is None else self._threads.size + ahead - self._threads.given
        return max(0, processes), max(0, threads)

    def _go_on(self, turned: CycleResult) -> None:
        """Something was written: what was claimed with it may begin."""
        order, planner = self._written, self._planner
        now = time.monotonic()
        self._turn_took += (turned.took - self._turn_took) / 8
        if turned.active is not None:
            if turned.active - planner.active:  # by others, or before our time: these have not been asked for yet
                self._survey_at = 0.0
            in_hand = {hand.claim.node for hand in [*self._hands.values(), *turned.claimed]}
            planner.active = turned.active | in_hand  # what is in hand may be to be tried again
        settlements = [*order.settlements, *turned.recovered]
        planner.active |= turned.settled.ready
        claimed = {hand.claim.id for hand in turned.claimed}
        for one in settlements:
            if one.next.wait is not None and one.claim.id not in claimed:
                planner.active.add(one.claim.node)
                heappush(self._due, now + one.next.wait)
        planner.active -= turned.settled.closed.keys()
        probes = dict(order.plan.probes)
        for hand in turned.claimed:
            self._begin(hand, probes)
        for name, probe in probes.items():
            planner.turnstiles[name].give_back(probe)
        self._news.written(settlements, order.storms, turned.settled, self._settlements)
        if turned.counts is not None:
            self._view.counted(*turned.counts)
        if turned.changed:
            planner.forget()
        if not self._settlements:  # nothing has ended that the store does not know
            for node, census in turned.census.items():
                self._storms += planner.recount(node, census)
        self._cancel(turned.cancelled)
        self._news.late(turned.late)
        if turned.abandoned is not None:
            self._stopping.request_stop(f"it was {turned.abandoned}")
        self._over = turned.idle and not self._hands and not self._settlements
        self._look_again(order, turned, now)

    def _look_again(self, order: CycleRequest, turned: CycleResult, now: float) -> None:
        """When to ask for more."""
        if turned.due_in < math.inf:
            heappush(self._due, now + turned.due_in)
        while self._due and self._due[0] <= self._asked_at:
            heappop(self._due)
        if not self._hands and not order.survey:  # nothing to do, as far as we know: see whether that is so
            self._survey_at = 0.0
        new = turned.settled.ready - {hand.claim.node for hand in turned.claimed if hand.claim.child < 0}
        if new or turned.full or self._survey_at <= now:
            self._look_at = 0.0
        else:
            self._look_at = min(self._survey_at, now + order.plan.ask_in, *self._due[:1])

    def _begin(self, hand: ClaimedJob, probes: dict[str, Any]) -> None:
        node = hand.node
        self._planner.began(hand.claim)
        if self._stop_by is not None:  # told to stop while it was being claimed
            if node.service is not None:
                self._planner.turnstiles[node.service].begin()
            self._return(hand, "its executor stopped")
            return
        self._hands[hand.job.ticket] = hand
        if node.service is not None:
            turnstile = self._planner.turnstiles[node.service]
            hand.permit = turnstile.begin(probes.pop(node.service, None))
            if hand.permit is None and turnstile.group.when_open == "fail" and turnstile.open:
                self._refuse(hand)
                return
        if node.in_thread:
            assert self._threads is not None
            self._threads.give(hand.job)
        else:
            self._ready.append(hand)

    def _refuse(self, hand: ClaimedJob) -> None:
        """Its service is down, and it is to fail for that."""
        del self._hands[hand.job.ticket]
        error = f"service {hand.node.service!r} is down, and its tasks are to fail while it is"
        outcome = TaskOutcome(
            ticket=hand.job.ticket, ended=AttemptEnd.STOPPED, seconds=0.0, error=error, fingerprint="circuit"
        )
        following = Transition(state=State.FAILED, cause=error, error=error, fingerprint="circuit", kind=Kind.TRANSIENT)
        self._ended(hand, outcome, following, begun=False)

    def _patience(self) -> float | None:
        """Seconds until something is to be done, if nothing happens before."""
        moments = [self._view.show_at, self._ledger.late_at, self._hoarded_at()]
        if self._pool is not None and (deadline := self._pool.next_deadline()) is not None:
            moments.append(deadline)
        if self._stop_by is None:
            moments.append(self._stopping.ends_at)
        else:
            moments.append(self._stop_by)
        if not self._scribe.busy:
            moments.append(self._recover_at)
            if self._settlements or self._storms or self._finished():  # told to stop, and nothing was in hand
                return 0.0
            if self._stop_by is None and any(self._room()):
                moments.append(self._look_at)
        return max(0.0, min(moments) - time.monotonic())

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_to_stop(self) -> None:
        """Claim nothing more, and give back what nobody has begun."""
        self._stop_by = time.monotonic() + (0.0 if self._stopping.interrupted else self._flow.stop_within)
        self._give_back("its executor stopped")

    def _cancel(self, tasks: Mapping[int, str]) -> None:
        """End tasks that an operator has cancelled. One in a thread ends by itself, and has failed then."""
        if not tasks:
            return
        for hand in list(self._hands.values()):
            if hand.claim.id in tasks and hand.claim.id not in self._cancelled:
                self._cancelled[hand.claim.id] = tasks[hand.claim.id]
                if hand in self._ready:
                    self._ready.remove(hand)
                    del self._hands[hand.job.ticket]
                    self._return(hand, "cancelled")
                elif self._pool is not None:
                    self._pool.cancel(hand.job.ticket)

    def _hoarded_at(self) -> float:
        """When what waits here for a worker has waited so long that somebody else might take it."""
        since = self._ready[0].since if self._ready else math.inf
        if self._threads is not None:
            since = min(since, self._threads.waiting_since)
        return since + _HOARD

    def _give_back(self, why: str) -> None:
        """Let go of what was claimed and not begun: it costs no attempt."""
        hands = list(self._ready)
        if self._threads is not None:
            hands += [self._hands[ticket] for ticket in self._threads.give_back()]
        self._ready.clear()
        for hand in hands:
            del self._hands[hand.job.ticket]
            self._return(hand, why)

    def _return(self, hand: ClaimedJob, why: str) -> None:
        outcome = TaskOutcome(ticket=hand.job.ticket, ended=AttemptEnd.STOPPED, seconds=0.0)
        following = decide(hand.node, hand.claim.past, outcome, random)
        self._ended(hand, outcome, replace(following, cause=why), begun=False)

    def _end_all(self) -> None:
        """Their time to finish is over: what runs is ended; what cannot be is left to whoever runs the flow next."""
        if self._ending:
            for ticket, seconds in [] if self._threads is None else self._threads.running():
                if hand := self._hands.pop(ticket, None):
                    self._ended(hand, TaskOutcome(ticket=ticket, ended=AttemptEnd.STOPPED, seconds=seconds))
            self._stop_by = math.inf
            return
        self._ending = True
        self._stop_by = time.monotonic() + _GIVE_UP
        if self._pool is not None:
            self._pool.stop()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._threads is not None:
            self._threads.close()
        self._scribe.close()
        self._ledger.release()
        self._selector.close()
        self._bell.close()
