"""The executor of a run: one loop that claims tasks, gives them to workers, enforces deadlines and stores results.

`Flow.run` makes an `Executor` for each run. Several executors may work on one run; they share it through the store.
"""

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
from redrive.tasks.executor.decide import Transition, decide
from redrive.tasks.executor.events import FlowEvents, ProgressCollector, stopped_error, warn_of_known_keys, warn_of_sla
from redrive.tasks.executor.plan import ClaimPlanner
from redrive.tasks.executor.slas import WHOLE_RUN, SlaTracker
from redrive.tasks.executor.store_cycle import ClaimedJob, CycleRequest, CycleResult, RunExit, StoreCycle
from redrive.tasks.executor.threads import DbThread, TaskThreads, Waker
from redrive.tasks.operator.cancel import cancelled_transition
from redrive.tasks.state.apply_results import ResultWriter, SiblingStop, TaskResult
from redrive.tasks.state.executor_lease import EarlierRun, ExecutorLease, StartedFlowRun
from redrive.tasks.state.results import Results
from redrive.tasks.workers.import_flow import refuse_within_import
from redrive.tasks.workers.pool import WorkerPool
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome

if TYPE_CHECKING:
    from redrive.tasks.flow import Flow

_SURVEY_EVERY = 1.0  # seconds between reads of what operators and other executors have changed
_MAX_CLAIMED_AHEAD = 256  # tasks claimed before a worker is free for them
_SHORT_JOB = 0.05  # seconds: only shorter tasks are claimed before a worker is free for them
_CLAIM_KEPT = 1.0  # seconds that a claimed task may wait for a worker
_THREADS_END_WITHIN = 3.0  # seconds: threads that run longer are left behind


class Executor:
    """Executes one run of a flow."""

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
        self.started: tuple[Store, UUID] | None = None
        """The run that was started or resumed, and its store."""
        self._is_resumed = False
        self._waker = Waker()
        self._stopping = StopSignal(deadline, on_stop=self._waker.wake)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker.receiver, selectors.EVENT_READ, self._waker.clear)
        nodes = flow.graph.nodes.values()
        in_threads = any(node.in_thread for node in nodes)
        in_processes = not all(node.in_thread for node in nodes)
        self._pool = make_pool(flow, self._selector, workers=flow.workers) if in_processes else None
        opened_store = self._open_store(store)
        self._threads = (
            TaskThreads(flow.graph.nodes, self._waker, threads=flow.workers, store=opened_store) if in_threads else None
        )
        takes = {node.name: node.binding.params for node in nodes}
        self._lease = ExecutorLease(opened_store, flow.name, flow.graph.shape(), defaults=flow.params, takes=takes)
        self._results = Results(self._lease, flow.files)
        self._cycle = StoreCycle(
            self._lease, ResultWriter(self._lease, self._results), self._results, list(nodes), params
        )
        clock = SystemClock()
        limiters = {name: ServiceLimiter(group, clock) for name, group in flow.groups.items()}
        self._planner = ClaimPlanner(list(nodes), limiters, clock)
        self._events = FlowEvents(flow.announcer.with_listeners(opened_store.listeners), self._lease, self._planner)
        self._db_thread: DbThread[CycleResult] = DbThread(self._waker)

        self._jobs: dict[int, ClaimedJob] = {}  # by ticket
        self._ready: deque[ClaimedJob] = deque()  # claimed, and waiting for a free worker
        self._task_results: list[TaskResult] = []
        self._sibling_stops: list[SiblingStop] = []
        self._cancelled: dict[int, str] = {}  # reasons by task id
        self._request = CycleRequest(start=True, recover=True)
        self._claim_at = 0.0
        self._survey_at = 0.0
        self._recover_at = 0.0
        self._requested_at = 0.0
        self._due: list[float] = []  # a heap of the times at which waiting tasks are due
        self._cycle_seconds = 0.001
        self._job_seconds = math.inf  # not known yet
        self._stop_by: float | None = None
        self._workers_stopped = False
        self._is_over = False
        self._progress = ProgressCollector(watch)

    def _open_store(self, store: Store | None) -> Store:
        """Return the store; it is opened while the first worker imports the flow."""
        try:
            if self._pool is not None:
                self._pool.start()
            return store or self._flow.store
        except BaseException:
            if self._pool is not None:
                self._pool.close()
            self._selector.close()
            self._waker.close()
            raise

    def stop(self, reason: str) -> None:
        """Stop the run early; may be called from any thread."""
        self._stopping.request_stop(reason)

    def run(self) -> FlowReport:
        """Run the flow to its end, or until a stop is requested."""
        try:
            try:
                return self._run()
            finally:
                self._close()
        except FlowStopped as error:
            if error.report is None and self.started is not None:  # no attempt runs any more: the store may be slow
                with suppress(StoreError):
                    raise self._lease.add_report(error, resumed=self._is_resumed) from None
            raise

    def _run(self) -> FlowReport:
        if self._pool is not None:
            _ = self._lease.store.alerts  # imported for the end of the run, while the workers import the flow
            self._pool.check()
        warn_of_sla(self._flow)
        started = self._lease.begin(
            params=self._params,
            run_id=self._run_id,
            start=self._start,
            sla=self._flow.sla,
            task_slas={node.name: node.sla for node in self._flow.graph.nodes.values() if node.sla is not None},
        )
        self.started, self._is_resumed = (self._lease.store, started.run_id), started.resumed
        ordered = [self._flow.graph.nodes[task.name] for task in self._lease.shape.places]
        self._cycle.nodes = ordered
        self._planner.set_nodes(ordered)
        self._request.resume = started.resumed
        warn_of_known_keys(self._flow, started)
        self._events.announce_start(started)
        self._track_slas(started)
        with self._stopping.heeding_signals(), self._stopping.heeding_sigint():
            self._loop()
            while not self._leave_run():
                self._loop()
        report = self._lease.report(resumed=started.resumed)
        self._events.announce_end(report)
        if self._stopping.interrupted:
            raise KeyboardInterrupt
        if report.status is not FlowStatus.COMPLETE:
            raise stopped_error(report, self._lease.database, self._stopping.reason())
        return report

    def _track_slas(self, started: StartedFlowRun) -> None:
        due = dict(started.task_slas)
        if started.sla is not None:
            due[WHOLE_RUN] = started.sla
        since = None if started.resumed else started.started_at
        self._cycle.slas = SlaTracker(started.started_at, due, since) if due else None

    def _loop(self) -> None:
        while not self._is_finished():
            self._step()

    def _leave_run(self) -> bool:
        """Leave the run, unless an operator has sent a task back at the last moment."""
        result = self._cycle.run(CycleRequest(leave=RunExit(None if self._is_over else self._stopping.reason() or "")))
        self._events.announce_slas(result.sla_events)  # SLAs that were missed since the last survey
        if result.left:
            return True
        self._is_over = False
        self._claim_at = self._survey_at = 0.0
        return False

    def _is_finished(self) -> bool:
        if self._db_thread.busy or self._task_results or self._sibling_stops or self._jobs or self._request.start:
            return False
        return self._is_over or self._stop_by is not None

    def _step(self) -> None:
        """Do one step of the loop: dispatch jobs, start a transaction, wait for an event, collect outcomes."""
        self._dispatch()
        if self._stop_by is None and self._stopping.reason() is not None:
            self._begin_to_stop()
        self._start_cycle()
        for key, _ in self._selector.select(self._select_timeout()):
            key.data()
        if self._pool is not None:
            self._pool.tick()
        if self._stop_by is not None and time.monotonic() >= self._stop_by:
            self._stop_workers()
        if self._return_claims_at() <= time.monotonic():
            self._job_seconds = 1.0  # the tasks are not as short as they were
            self._return_unstarted("no worker was free for it")
        self._collect_outcomes()
        result = self._db_thread.take_result()
        if result is not None:
            self._apply_result(result)
        if self._lease.is_expired():
            raise self._lease.lease_expired_error()
        self._progress.show(self._jobs, self._pool, self._threads, self._planner.blocked)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self) -> None:
        pool = self._pool
        while self._ready and pool is not None and pool.idle:
            pool.submit(self._ready.popleft().job)

    def _collect_outcomes(self) -> None:
        outcomes = [] if self._pool is None else self._pool.take_outcomes()
        if self._threads is not None:
            outcomes += self._threads.take_outcomes()
        for outcome in outcomes:
            claimed = self._jobs.pop(outcome.ticket, None)
            if claimed is not None:
                self._end_attempt(claimed, outcome)
        self._dispatch()  # a worker that became free need not wait for the database

    def _end_attempt(
        self, claimed: ClaimedJob, outcome: TaskOutcome, transition: Transition | None = None, *, begun: bool = True
    ) -> None:
        claim, node = claimed.claim, claimed.node
        if outcome.ended is AttemptEnd.RETURNED:
            is_known = self._job_seconds < math.inf
            self._job_seconds = self._job_seconds * 15 / 16 + outcome.seconds / 16 if is_known else outcome.seconds
        reason = self._cancelled.pop(claim.id, None)
        if reason is not None and outcome.ended is not AttemptEnd.RETURNED:
            transition = cancelled_transition(reason)
        transition = transition or decide(node, claim.past, outcome, random, testmode.active())
        result = TaskResult(claim, transition, outcome, begun=begun and not outcome.never_begun)
        if outcome.in_file:
            result.result_file = self._results.stored_name(claim.id, claim.attempt)
        if claimed.item_aside:
            self._results.remove_item(claim.id, claim.attempt)
        self._task_results.append(result)
        self._planner.record_end(claim)
        if node.service is not None:
            self._planner.limiters[node.service].end(claimed.permit, outcome)
        if claim.child >= 0:
            self._sibling_stops += self._planner.record_result(result)

    # ── the store ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_cycle(self) -> None:
        """Start a store cycle if there is something to write or to claim."""
        if self._db_thread.busy:
            return
        now = time.monotonic()
        request = self._request
        request.recover = request.recover or now >= self._recover_at
        request.processes, request.threads = (0, 0) if self._stop_by is not None else self._free_slots()
        claims = (request.processes or request.threads) and (now >= self._claim_at or self._task_results)
        if not (claims or self._task_results or self._sibling_stops or request.recover):
            return
        if claims:
            request.plan = self._planner.plan(processes=request.processes, threads=request.threads)
        request.survey = request.recover or bool(claims and now >= self._survey_at)
        request.count = self._progress.wants_counts
        request.task_results, request.sibling_stops = self._task_results, self._sibling_stops
        self._task_results, self._sibling_stops = [], []
        if request.recover:
            self._recover_at = now + self._lease.lease.total_seconds() / 6
        if request.survey:
            self._survey_at = now + _SURVEY_EVERY
        self._request = CycleRequest()
        self._sent_request, self._requested_at = request, now
        self._db_thread.submit(lambda: self._cycle.run(request))

    def _free_slots(self) -> tuple[int, int]:
        """Return how many tasks can be claimed for processes and for threads.

        Short tasks are claimed ahead: as many as will end during one transaction.
        """
        ahead = 0
        if self._job_seconds < _SHORT_JOB:
            ahead = min(
                _MAX_CLAIMED_AHEAD,
                math.ceil(2 * self._flow.workers * self._cycle_seconds / max(self._job_seconds, 1e-4)),
            )
        processes = 0 if self._pool is None else self._pool.idle + ahead - len(self._ready)
        threads = 0 if self._threads is None else self._threads.size + ahead - self._threads.unfinished
        return max(0, processes), max(0, threads)

    def _apply_result(self, result: CycleResult) -> None:
        """Start the jobs that a store cycle claimed, and publish what it wrote."""
        request, planner = self._sent_request, self._planner
        now = time.monotonic()
        self._cycle_seconds += (result.seconds - self._cycle_seconds) / 8
        if result.active is not None:
            if result.active - planner.active:  # freed by other executors or earlier: not requested yet
                self._survey_at = 0.0
            claimed_nodes = {claimed.claim.node for claimed in [*self._jobs.values(), *result.claimed]}
            planner.active = result.active | claimed_nodes  # a claimed task may have to be retried
        task_results = [*request.task_results, *result.recovered]
        planner.active |= result.progress.ready
        claimed_ids = {claimed.claim.id for claimed in result.claimed}
        for task_result in task_results:
            if task_result.next.wait is not None and task_result.claim.id not in claimed_ids:
                planner.active.add(task_result.claim.node)
                heappush(self._due, now + task_result.next.wait)
        planner.active -= result.progress.closed.keys()
        probes = dict(request.plan.probes)
        for claimed in result.claimed:
            self._start_job(claimed, probes)
        for name, probe in probes.items():
            planner.limiters[name].release_probe(probe)
        self._events.announce_results(task_results, request.sibling_stops, result.progress, self._task_results)
        if result.counts is not None:
            self._progress.record_counts(*result.counts)
        if result.changed:
            planner.forget()
        if not self._task_results:  # the store knows every attempt that has ended
            for node, counts in result.sibling_counts.items():
                self._sibling_stops += planner.recount(node, counts)
        self._cancel_tasks(result.cancelled)
        self._events.announce_slas(result.sla_events)
        if result.abandoned is not None:
            self._stopping.request_stop(f"it was {result.abandoned}")
        self._is_over = result.idle and not self._jobs and not self._task_results
        self._schedule_claim(request, result, now)

    def _schedule_claim(self, request: CycleRequest, result: CycleResult, now: float) -> None:
        """Set the time of the next claim."""
        if result.due_in < math.inf:
            heappush(self._due, now + result.due_in)
        while self._due and self._due[0] <= self._requested_at:
            heappop(self._due)
        if not self._jobs and not request.survey:  # nothing to do as far as this executor knows: ask the store
            self._survey_at = 0.0
        new = result.progress.ready - {claimed.claim.node for claimed in result.claimed if claimed.claim.child < 0}
        if new or result.full or self._survey_at <= now:
            self._claim_at = 0.0
        else:
            self._claim_at = min(self._survey_at, now + request.plan.ask_in, *self._due[:1])

    def _start_job(self, claimed: ClaimedJob, probes: dict[str, Any]) -> None:
        node = claimed.node
        self._planner.record_start(claimed.claim)
        if self._stop_by is not None:  # a stop was requested during the claim
            if node.service is not None:
                self._planner.limiters[node.service].begin()
            self._return_job(claimed, "its executor stopped")
            return
        self._jobs[claimed.job.ticket] = claimed
        if node.service is not None:
            limiter = self._planner.limiters[node.service]
            claimed.permit = limiter.begin(probes.pop(node.service, None))
            if claimed.permit is None and limiter.group.when_open == "fail" and limiter.is_open:
                self._fail_job(claimed)
                return
        if node.in_thread:
            assert self._threads is not None
            self._threads.submit(claimed.job)
        else:
            self._ready.append(claimed)

    def _fail_job(self, claimed: ClaimedJob) -> None:
        """Fail a job because its service is down and `when_open` is "fail"."""
        del self._jobs[claimed.job.ticket]
        error = f"service {claimed.node.service!r} is down, and its tasks are to fail while it is"
        outcome = TaskOutcome(
            ticket=claimed.job.ticket, ended=AttemptEnd.STOPPED, seconds=0.0, error=error, fingerprint="circuit"
        )
        transition = Transition(
            state=State.FAILED, cause=error, error=error, fingerprint="circuit", kind=Kind.TRANSIENT
        )
        self._end_attempt(claimed, outcome, transition, begun=False)

    def _select_timeout(self) -> float | None:
        """Return the seconds until the loop has something to do if no event arrives earlier."""
        moments = [self._progress.show_at, self._lease.expires_at, self._return_claims_at()]
        if self._pool is not None and (deadline := self._pool.next_deadline()) is not None:
            moments.append(deadline)
        if self._stop_by is None:
            moments.append(self._stopping.ends_at)
        else:
            moments.append(self._stop_by)
        if not self._db_thread.busy:
            moments.append(self._recover_at)
            if (
                self._task_results or self._sibling_stops or self._is_finished()
            ):  # a stop was requested and no job is running
                return 0.0
            if self._stop_by is None and any(self._free_slots()):
                moments.append(self._claim_at)
        return max(0.0, min(moments) - time.monotonic())

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_to_stop(self) -> None:
        """Stop claiming, and return the claims of jobs that no worker has started."""
        self._stop_by = time.monotonic() + (0.0 if self._stopping.interrupted else self._flow.stop_within)
        self._return_unstarted("its executor stopped")

    def _cancel_tasks(self, tasks: Mapping[int, str]) -> None:
        """Stop tasks that an operator has cancelled. A task in a thread ends by itself, and has failed then."""
        if not tasks:
            return
        for claimed in list(self._jobs.values()):
            if claimed.claim.id in tasks and claimed.claim.id not in self._cancelled:
                self._cancelled[claimed.claim.id] = tasks[claimed.claim.id]
                if claimed in self._ready:
                    self._ready.remove(claimed)
                    del self._jobs[claimed.job.ticket]
                    self._return_job(claimed, "cancelled")
                elif self._pool is not None:
                    self._pool.cancel(claimed.job.ticket)

    def _return_claims_at(self) -> float:
        """Return when unstarted claims have waited so long that another executor should have them."""
        since = self._ready[0].since if self._ready else math.inf
        if self._threads is not None:
            since = min(since, self._threads.waiting_since)
        return since + _CLAIM_KEPT

    def _return_unstarted(self, reason: str) -> None:
        """Return the claims of jobs that were not started; this costs no attempt."""
        jobs = list(self._ready)
        if self._threads is not None:
            jobs += [self._jobs[ticket] for ticket in self._threads.withdraw()]
        self._ready.clear()
        for claimed in jobs:
            del self._jobs[claimed.job.ticket]
            self._return_job(claimed, reason)

    def _return_job(self, claimed: ClaimedJob, reason: str) -> None:
        outcome = TaskOutcome(ticket=claimed.job.ticket, ended=AttemptEnd.STOPPED, seconds=0.0)
        transition = decide(claimed.node, claimed.claim.past, outcome, random)
        self._end_attempt(claimed, outcome, replace(transition, cause=reason), begun=False)

    def _stop_workers(self) -> None:
        """Stop what still runs after the grace period.

        Threads cannot be killed: their tasks are left to the next executor of the run.
        """
        if self._workers_stopped:
            for ticket, seconds in [] if self._threads is None else self._threads.running():
                if claimed := self._jobs.pop(ticket, None):
                    self._end_attempt(claimed, TaskOutcome(ticket=ticket, ended=AttemptEnd.STOPPED, seconds=seconds))
            self._stop_by = math.inf
            return
        self._workers_stopped = True
        self._stop_by = time.monotonic() + _THREADS_END_WITHIN
        if self._pool is not None:
            self._pool.stop()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._threads is not None:
            self._threads.close()
        self._db_thread.close()
        self._lease.release()
        self._selector.close()
        self._waker.close()
