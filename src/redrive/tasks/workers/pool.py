"""The worker pool of an executor: gives jobs to worker processes, enforces timeouts and replaces dead workers.

The executor's selector drives it, so that it never blocks. A worker that must end gets SIGTERM and, after the grace
period, SIGKILL, with its whole process group. The outcome of its job is reported only when the process is dead, so that
a retry never runs beside it.
"""

from __future__ import annotations

import select
import selectors
import signal
import time
from dataclasses import replace
from math import inf
from typing import NamedTuple

from redrive.errors import FlowError, FlowStopped
from redrive.model.calls import Kind
from redrive.policy.option_checks import warn
from redrive.tasks.flow import Flow
from redrive.tasks.graph import listed
from redrive.tasks.workers import exit_status, processes
from redrive.tasks.workers.connection import WorkerConnection
from redrive.tasks.workers.fork_server_client import ForkServerClient
from redrive.tasks.workers.output import OutputCollector
from redrive.tasks.workers.protocol import (
    BROKEN,
    DEAD,
    READY,
    UNFORKED,
    AttemptEnd,
    ProtocolError,
    TaskJob,
    TaskOutcome,
    WorkerAnswer,
    job_frame,
    outcome_of,
    read_answer,
)

_IMPORT_WITHIN = 600.0
_END_WITHIN = 10.0  # seconds that a dismissed worker has to end
_DEATH_REPORT_WITHIN = 1.0  # seconds between the end of a worker's connection and the report of its death
_START_WITHIN = 60.0  # seconds from the order to fork a worker until its first message
_MAX_RESTARTS = 5  # of the fork server, without an answer of a worker in between
_MAX_FAILED_STARTS = 10  # workers that end before their first message while no others live
_START_AGAIN_AFTER = 1.0  # seconds after such a death before new workers are forked


class RunningJob(NamedTuple):
    """A job that a worker is running."""

    ticket: int
    seconds: float
    dying: bool


class WorkerPool:
    """Runs at most `workers` jobs at once; spare workers replace killed ones at once."""

    def __init__(self, flow: Flow, selector: selectors.BaseSelector, *, workers: int, spares: int = 1) -> None:
        self._flow = flow
        self._selector = selector
        self._workers = workers
        self._size = workers + spares
        self._recycle_after = inf if flow.recycle_after is None else flow.recycle_after
        self._server: ForkServerClient | None = None
        self._links: dict[int, WorkerConnection] = {}
        self._ready: list[WorkerConnection] = []
        self._waiting: list[TaskJob] = []  # submitted to a worker that was dead, and to no other since
        self._outcomes: list[TaskOutcome] = []
        self._busy = 0
        self._numbers = 0
        self._soonest = inf  # no deadline is before this
        self._import_until = inf
        self._refill_at = -inf
        self._restarts = self._failed_starts = 0
        self._threads: list[str] = []  # threads that the module starts on import; workers do not have them
        self._stopping = self._closed = False

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Launch the fork server without waiting for it."""
        self._server = ForkServerClient(self._flow, self._selector, self._read_server)
        self._import_until = time.monotonic() + _IMPORT_WITHIN
        self._soonest = min(self._soonest, self._import_until)

    def check(self) -> None:
        """Wait until the fork server has imported the flow; raises FlowError if it cannot, or if a task is missing."""
        assert self._server is not None, "start() comes first"
        while not (server := self._server).has_imported:  # a new server, if the first was killed
            self._check_import(server)
            poll = select.poll()
            poll.register(server.fileno(), select.POLLIN)
            if poll.poll(1_000 * max(0.0, self._import_until - time.monotonic())):
                self._read_server()

    def _check_import(self, server: ForkServerClient) -> None:
        if time.monotonic() >= self._import_until:
            raise FlowError(f"no worker could import {server.home.shown} within {_IMPORT_WITHIN / 60:.0f} minutes")

    def _check_tasks(self, server: ForkServerClient, tasks: list[str] | None, threads: list[str]) -> None:
        """Check that the fork server has found the flow and all its tasks."""
        server.has_imported = True
        if threads and not self._threads:
            shown = server.home.shown
            warn(
                f"{shown} starts threads when it is imported ({listed(threads)}): workers are forked and do not have "
                "them, and a task that needs one of them hangs. Start them in the task"
            )
        self._threads = threads
        wanted = [node.name for node in self._flow.graph.nodes.values() if not node.in_thread]
        found_tasks = set(tasks or ())
        missing = next((name for name in wanted if name not in found_tasks), None)
        if missing is not None:
            what = f"flow {self._flow.name!r}" if tasks is None else f"task {missing!r} of flow {self._flow.name!r}"
            raise FlowError(
                f"a worker that imports {server.home.shown} does not find {what}: make the flow and its tasks at the "
                "top of the module, not inside a function, or use in_thread=True"
            )
        self._refill()

    def _refill(self) -> None:
        """Fork workers up to the size of the pool."""
        server = self._server
        if server is None or not server.has_imported or self._stopping or time.monotonic() < self._refill_at:
            return
        for _ in range(self._size - sum(not link.doomed for link in self._links.values())):
            self._numbers += 1
            link = WorkerConnection(self._numbers, self._selector, self._read_worker)
            try:
                ends = link.open()
            except OSError as error:
                raise FlowError(f"there can be no {len(self._links) + 1} workers: {error.strerror}") from None
            self._links[link.number] = link
            server.fork(link.number, *ends)
            self._set_deadline(link, _START_WITHIN)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> int:
        """Return the number of jobs that can be submitted now."""
        return 0 if self._stopping else max(0, min(len(self._ready), self._workers - self._busy))

    def submit(self, job: TaskJob) -> None:
        """Send a job to an idle worker; its timeout starts."""
        self._busy += 1
        self._send_job(job)

    def _send_job(self, job: TaskJob) -> None:
        message = job_frame(job)
        while self._ready:
            link = self._ready.pop()
            if link.send(message):
                now = time.monotonic()
                link.job = job
                link.since = now
                link.given += 1
                link.output = OutputCollector(job.output_file)
                if job.timeout is not None:
                    link.deadline = now + job.timeout
                    self._soonest = min(self._soonest, link.deadline)
                return
            self._doom(link)  # the worker died while it was idle
        self._waiting.append(job)

    def take_outcomes(self) -> list[TaskOutcome]:
        """Return the outcomes of jobs that have ended since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def running(self) -> list[RunningJob]:
        """Return the running jobs."""
        now = time.monotonic()
        return [
            RunningJob(link.job.ticket, now - link.since, link.ending is not None)
            for link in self._links.values()
            if link.job is not None
        ]

    # ── messages of workers ───────────────────────────────────────────────────────────────────────────────────────────

    def _read_worker(self, link: WorkerConnection) -> None:
        for document in link.receive():
            if isinstance(document, int):
                self._record_start(link, document)
            else:
                try:
                    self._record_answer(link, read_answer(document))
                except ProtocolError:
                    link.mark_lost()
        if link.is_lost:
            self._mark_lost(link)

    def _record_start(self, link: WorkerConnection, pid: int) -> None:
        link.pid = pid
        link.deadline = inf
        self._failed_starts = 0
        if not link.doomed:
            self._mark_idle(link)

    def _record_answer(self, link: WorkerConnection, answer: WorkerAnswer) -> None:
        job = link.job
        if job is None or answer.ticket != job.ticket:
            return
        if link.ending is not None:
            self._kill(link)  # the answer is too late, and the worker has finished its cleanup
            return
        outcome = outcome_of(answer, link.take_output())
        self._end_job(link, outcome)
        self._restarts = 0
        if answer.retire or link.given >= self._recycle_after:
            self._dismiss(link)
        elif not link.doomed:
            self._mark_idle(link)

    def _mark_idle(self, link: WorkerConnection) -> None:
        self._ready.append(link)
        if self._waiting:
            self._send_job(self._waiting.pop(0))

    def _end_job(self, link: WorkerConnection, outcome: TaskOutcome) -> None:
        self._outcomes.append(outcome)
        self._busy -= 1
        link.job = None
        link.deadline = inf

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to do, by time.monotonic()."""
        return None if self._soonest == inf else self._soonest

    def tick(self) -> None:
        """Enforce the deadlines that have passed."""
        now = time.monotonic()
        if now < self._soonest:
            return
        self._soonest = inf
        if self._server is not None and not self._server.has_imported:
            self._check_import(self._server)
            self._soonest = self._import_until
        if now < self._refill_at:
            self._soonest = min(self._soonest, self._refill_at)
        else:
            self._refill()
        for link in list(self._links.values()):
            if link.deadline <= now:
                self._handle_overdue(link)
            self._soonest = min(self._soonest, link.deadline)

    def _handle_overdue(self, link: WorkerConnection) -> None:
        if not link.is_lost:
            self._read_worker(link)  # an answer that was not read yet is in time
            if link.deadline > time.monotonic():
                return
        if link.pid is None and not link.doomed:
            raise FlowError(
                f"a worker of flow {self._flow.name!r} did not begin within {_START_WITHIN:.0f} s: its module must not "
                "start threads or take locks when it is imported"
            )
        if link.job is None or link.ending is not None:
            self._kill(link)
        elif link.is_lost:
            link.ending = AttemptEnd.DIED
            self._kill(link)
        else:
            self._terminate(link, AttemptEnd.TIMED_OUT)

    def _terminate(self, link: WorkerConnection, ending: AttemptEnd) -> None:
        assert link.job is not None
        link.ending = ending
        if link.job.grace <= 0:
            self._kill(link)
        else:
            self._doom(link, signal.SIGTERM)
            self._set_deadline(link, link.job.grace)

    def _set_deadline(self, link: WorkerConnection, seconds: float) -> None:
        link.deadline = time.monotonic() + seconds
        self._soonest = min(self._soonest, link.deadline)

    def _kill(self, link: WorkerConnection) -> None:
        link.deadline = inf
        self._doom(link, signal.SIGKILL)

    def _doom(self, link: WorkerConnection, by_signal: signal.Signals = signal.SIGKILL) -> None:
        """Signal a worker to end. It gets no more jobs, and is replaced at once."""
        link.doomed = True
        if link in self._ready:
            self._ready.remove(link)
        if self._server is not None:
            self._server.signal(link.number, by_signal)
        self._refill()

    def _dismiss(self, link: WorkerConnection) -> None:
        """Let an idle worker end by itself, since it may still have something to write."""
        link.doomed = True
        link.dismiss()
        self._set_deadline(link, _END_WITHIN)
        self._refill()

    def cancel(self, ticket: int) -> None:
        """Stop one attempt with SIGTERM, a grace period and SIGKILL."""
        for link in list(self._links.values()):
            if link.job is not None and link.job.ticket == ticket and link.ending is None:
                self._terminate(link, AttemptEnd.STOPPED)
        for job in [job for job in self._waiting if job.ticket == ticket]:
            self._waiting.remove(job)
            self._busy -= 1
            self._outcomes.append(exit_status.never_begun(job))

    def stop(self) -> None:
        """Stop all running jobs with SIGTERM, a grace period and SIGKILL, and fork no more workers."""
        self._stopping = True
        for link in list(self._links.values()):
            if link.job is not None and link.ending is None:
                self._terminate(link, AttemptEnd.STOPPED)
        self._drop_waiting()

    def kill(self) -> None:
        """Kill all workers at once."""
        self._stopping = True
        for link in list(self._links.values()):
            if link.job is not None and link.ending is None:
                link.ending = AttemptEnd.STOPPED
            self._kill(link)
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        for job in self._waiting:
            self._busy -= 1
            self._outcomes.append(exit_status.never_begun(job))
        self._waiting.clear()

    # ── deaths ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _mark_lost(self, link: WorkerConnection) -> None:
        """Mark a worker whose socket is closed. It is most likely dead; the fork server will report it."""
        if not link.doomed:
            link.doomed = True
            if link in self._ready:
                self._ready.remove(link)
            self._set_deadline(link, _DEATH_REPORT_WITHIN)

    def _record_death(self, number: int, status: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        unexpected, link.doomed = not link.doomed, True
        if not link.is_lost:
            self._read_worker(link)  # messages that it sent before it died
        del self._links[number]
        last_words = link.take_output().strip().splitlines()[-1:] if link.pid is None else []
        self._end_worker(link, status)
        if link.pid is None and (unexpected or link.is_lost):
            self._count_failed_start(": ".join([exit_status.how(status), *last_words]))
        self._refill()

    def _end_worker(self, link: WorkerConnection, status: int | None) -> None:
        """End the job of a dead worker."""
        link.doomed = True
        if link in self._ready:
            self._ready.remove(link)
        if link.job is not None:
            outcome = exit_status.outcome(link, status, time.monotonic() - link.since)
            hint = _threads_hint(self._threads) if self._threads and outcome.ended is AttemptEnd.TIMED_OUT else ""
            self._end_job(link, replace(outcome, hint=hint))
        link.close()

    def _count_failed_start(self, how: str) -> None:
        self._failed_starts += 1
        self._refill_at = time.monotonic() + _START_AGAIN_AFTER
        self._soonest = min(self._soonest, self._refill_at)
        others = any(link.pid is not None and not link.doomed for link in self._links.values())
        if self._failed_starts >= _MAX_FAILED_STARTS and not others:
            raise FlowError(f"workers of flow {self._flow.name!r} end before they begin: {how}")

    # ── the fork server ───────────────────────────────────────────────────────────────────────────────────────────────

    def _read_server(self) -> None:
        server = self._server
        assert server is not None
        try:
            reports = server.read_reports()
        except ProtocolError:
            reports = None
        if reports is None:
            self._replace_server(server)
            return
        for kind, *details in reports:
            if kind == DEAD:
                self._record_death(*details)
            elif kind == READY:
                self._check_tasks(server, *details)
            elif kind == BROKEN:
                raise FlowError(*details)
            elif kind == UNFORKED:
                number, reason = details
                self._links.pop(number).close()
                self._count_failed_start(reason)

    def _replace_server(self, server: ForkServerClient) -> None:
        """Replace a dead fork server: its workers die with it, and their attempts are lost."""
        self._server = None
        code = server.end()
        how = exit_status.how_process(code)
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.doomed = True
            if link.pid is not None:
                processes.kill_group(link.pid, signal.SIGKILL)
        for link in links:
            self._wait_for_end(link)
            self._end_worker(link, None)
        by_itself = not exit_status.is_from_outside(code)
        if not server.has_imported and not self._numbers and by_itself:
            raise FlowError(f"a worker that imports {server.home.shown} does not survive it: {how}")
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            error = f"the process that starts the workers of flow {self._flow.name!r} keeps dying: {how}"
            if by_itself:
                raise FlowError(error)
            raise FlowStopped(f"{error}; running it again resumes it", kind=Kind.TRANSIENT)
        if not self._stopping:
            self.start()

    def _wait_for_end(self, link: WorkerConnection) -> None:
        """Wait for a worker to end, seen by the end of its socket: no fork server reports the death."""
        until = time.monotonic() + _DEATH_REPORT_WITHIN
        poll = select.poll()
        poll.register(link.connection, select.POLLIN)
        while not link.is_lost and (left := until - time.monotonic()) > 0:
            if poll.poll(1_000 * left):
                self._read_worker(link)

    def close(self) -> None:
        """Kill the fork server and all workers. No process is left."""
        if self._closed:
            return
        self._closed = self._stopping = True
        try:
            if self._server is not None:
                for link in self._links.values():
                    if link.job is not None:
                        self._server.signal(link.number, signal.SIGKILL)
                    link.dismiss()
                self._server.end()
        finally:
            self._server = None
            for link in self._links.values():
                link.close()
            self._links.clear()
            self._ready.clear()


def _threads_hint(threads: list[str]) -> str:
    return (
        f"its module has started threads when it was imported ({listed(threads)}), which workers do not have: it may "
        "wait for one of them. Start them in the task"
    )
