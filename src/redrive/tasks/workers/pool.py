"""The workers of an executor: given jobs, timed, ended, replaced. Driven by the executor's selector, never waiting.

A worker that is to end is asked first (SIGTERM), and after its grace killed (SIGKILL), with its whole process group.
What became of its job is known when its process is dead, and not before: a repeat never runs beside it.
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
from redrive.tasks.workers.messages import AttemptEnd, TaskJob, TaskOutcome
from redrive.tasks.workers.output import OutputCollector
from redrive.tasks.workers.protocol import (
    BROKEN,
    DEAD,
    READY,
    UNFORKED,
    ProtocolError,
    WorkerAnswer,
    job_frame,
    outcome_of,
    read_answer,
)

_TO_IMPORT = 600.0
_TO_END = 10.0  # seconds that a worker has which is dismissed
_TO_BE_BURIED = 1.0  # seconds between a worker's last word and the report of its death
_TO_BEGIN = 60.0  # seconds from the order to fork a worker until its first word
_RESTARTS = 5  # of the fork server, without an answer in between
_STILLBORN = 10  # workers that end before their first word, while there are no others
_BREATH = 1.0  # seconds after such a death, before there are new ones


class RunningJob(NamedTuple):
    """A job in a worker's hands."""

    ticket: int
    seconds: float
    dying: bool


class WorkerPool:
    """`workers` processes at work at most, and a few in reserve, so that a killed one is replaced at once."""

    def __init__(self, flow: Flow, selector: selectors.BaseSelector, *, workers: int, spares: int = 1) -> None:
        self._flow = flow
        self._selector = selector
        self._workers = workers
        self._size = workers + spares
        self._recycle_after = inf if flow.recycle_after is None else flow.recycle_after
        self._server: ForkServerClient | None = None
        self._links: dict[int, WorkerConnection] = {}
        self._ready: list[WorkerConnection] = []
        self._waiting: list[TaskJob] = []  # given to a worker that was found dead, and to nobody since
        self._outcomes: list[TaskOutcome] = []
        self._busy = 0
        self._numbers = 0
        self._soonest = inf  # no deadline is before this
        self._import_until = inf
        self._refill_at = -inf
        self._restarts = self._stillborn = 0
        self._threads: list[str] = []  # that the module has started, and that no worker has
        self._stopping = self._closed = False

    # ── beginning ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Launch the fork server, and do not wait for it."""
        self._server = ForkServerClient(self._flow, self._selector, self._heard_server)
        self._import_until = time.monotonic() + _TO_IMPORT
        self._soonest = min(self._soonest, self._import_until)

    def check(self) -> None:
        """Wait until the fork server has imported the flow; FlowError where it cannot, or lacks one of its tasks."""
        assert self._server is not None, "start() comes first"
        while not (server := self._server).has_imported:  # it is another one, where the first was killed
            self._check_import(server)
            poll = select.poll()
            poll.register(server.fileno(), select.POLLIN)
            if poll.poll(1_000 * max(0.0, self._import_until - time.monotonic())):
                self._heard_server()

    def _check_import(self, server: ForkServerClient) -> None:
        if time.monotonic() >= self._import_until:
            raise FlowError(f"no worker could import {server.home.shown} within {_TO_IMPORT / 60:.0f} minutes")

    def _met(self, server: ForkServerClient, tasks: list[str] | None, threads: list[str]) -> None:
        """The fork server has imported what it was told to: is everything there?"""
        server.has_imported = True
        if threads and not self._threads:
            shown = server.home.shown
            warn(
                f"{shown} starts threads when it is imported ({listed(threads)}): workers are forked and do not have "
                "them, and a task that needs one of them hangs. Start them in the task"
            )
        self._threads = threads
        wanted = [node.name for node in self._flow.graph.nodes.values() if not node.in_thread]
        there = set(tasks or ())
        missing = next((name for name in wanted if name not in there), None)
        if missing is not None:
            what = f"flow {self._flow.name!r}" if tasks is None else f"task {missing!r} of flow {self._flow.name!r}"
            raise FlowError(
                f"a worker that imports {server.home.shown} does not find {what}: make the flow and its tasks at the "
                "top of the module, not inside a function, or use in_thread=True"
            )
        self._refill()

    def _refill(self) -> None:
        """Have as many workers as there should be."""
        server = self._server
        if server is None or not server.has_imported or self._stopping or time.monotonic() < self._refill_at:
            return
        for _ in range(self._size - sum(not link.doomed for link in self._links.values())):
            self._numbers += 1
            link = WorkerConnection(self._numbers, self._selector, self._hear)
            try:
                ends = link.open()
            except OSError as error:
                raise FlowError(f"there can be no {len(self._links) + 1} workers: {error.strerror}") from None
            self._links[link.number] = link
            server.fork(link.number, *ends)
            self._remind(link, _TO_BEGIN)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> int:
        """How many jobs can be given right now."""
        return 0 if self._stopping else max(0, min(len(self._ready), self._workers - self._busy))

    def submit(self, job: TaskJob) -> None:
        """Hand a job to an idle worker. Its time begins."""
        self._busy += 1
        self._hand_over(job)

    def _hand_over(self, job: TaskJob) -> None:
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
            self._doom(link)  # it died while it had nothing to do
        self._waiting.append(job)

    def take_outcomes(self) -> list[TaskOutcome]:
        """What has ended since the last call."""
        found, self._outcomes = self._outcomes, []
        return found

    def running(self) -> list[RunningJob]:
        """What is under way."""
        now = time.monotonic()
        return [
            RunningJob(link.job.ticket, now - link.since, link.ending is not None)
            for link in self._links.values()
            if link.job is not None
        ]

    # ── what workers say ──────────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, link: WorkerConnection) -> None:
        for document in link.receive():
            if isinstance(document, int):
                self._greeted(link, document)
            else:
                try:
                    self._answered(link, read_answer(document))
                except ProtocolError:
                    link.lose()
        if link.is_lost:
            self._lost(link)

    def _greeted(self, link: WorkerConnection, pid: int) -> None:
        link.pid = pid
        link.deadline = inf
        self._stillborn = 0
        if not link.doomed:
            self._rest(link)

    def _answered(self, link: WorkerConnection, answer: WorkerAnswer) -> None:
        job = link.job
        if job is None or answer.ticket != job.ticket:
            return
        if link.ending is not None:
            self._kill(link)  # too late, but now it has nothing more to put in order
            return
        outcome = outcome_of(answer, link.last_output())
        self._end(link, outcome)
        self._restarts = 0
        if answer.retire or link.given >= self._recycle_after:
            self._dismiss(link)
        elif not link.doomed:
            self._rest(link)

    def _rest(self, link: WorkerConnection) -> None:
        self._ready.append(link)
        if self._waiting:
            self._hand_over(self._waiting.pop(0))

    def _end(self, link: WorkerConnection, outcome: TaskOutcome) -> None:
        self._outcomes.append(outcome)
        self._busy -= 1
        link.job = None
        link.deadline = inf

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_deadline(self) -> float | None:
        """The moment, by time.monotonic(), at which `tick` has something to do."""
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
                self._overdue(link)
            self._soonest = min(self._soonest, link.deadline)

    def _overdue(self, link: WorkerConnection) -> None:
        if not link.is_lost:
            self._hear(link)  # an answer that waits to be heard is in time
            if link.deadline > time.monotonic():
                return
        if link.pid is None and not link.doomed:
            raise FlowError(
                f"a worker of flow {self._flow.name!r} did not begin within {_TO_BEGIN:.0f} s: its module must not "
                "start threads or take locks when it is imported"
            )
        if link.job is None or link.ending is not None:
            self._kill(link)
        elif link.is_lost:
            link.ending = AttemptEnd.DIED
            self._kill(link)
        else:
            self._ask_to_end(link, AttemptEnd.TIMED_OUT)

    def _ask_to_end(self, link: WorkerConnection, ending: AttemptEnd) -> None:
        assert link.job is not None
        link.ending = ending
        if link.job.grace <= 0:
            self._kill(link)
        else:
            self._doom(link, signal.SIGTERM)
            self._remind(link, link.job.grace)

    def _remind(self, link: WorkerConnection, seconds: float) -> None:
        link.deadline = time.monotonic() + seconds
        self._soonest = min(self._soonest, link.deadline)

    def _kill(self, link: WorkerConnection) -> None:
        link.deadline = inf
        self._doom(link, signal.SIGKILL)

    def _doom(self, link: WorkerConnection, by: signal.Signals = signal.SIGKILL) -> None:
        """Decide that a worker is to end. It is never used again, and replaced at once."""
        link.doomed = True
        if link in self._ready:
            self._ready.remove(link)
        if self._server is not None:
            self._server.signal(link.number, by)
        self._refill()

    def _dismiss(self, link: WorkerConnection) -> None:
        """Let a worker that has nothing to do end by itself: it may have something to write down still."""
        link.doomed = True
        link.dismiss()
        self._remind(link, _TO_END)
        self._refill()

    def cancel(self, ticket: int) -> None:
        """End one attempt, by SIGTERM, grace and SIGKILL."""
        for link in list(self._links.values()):
            if link.job is not None and link.job.ticket == ticket and link.ending is None:
                self._ask_to_end(link, AttemptEnd.STOPPED)
        for job in [job for job in self._waiting if job.ticket == ticket]:
            self._waiting.remove(job)
            self._busy -= 1
            self._outcomes.append(exit_status.never_begun(job))

    def stop(self) -> None:
        """End all that is under way, by SIGTERM, grace and SIGKILL. There will be no more workers."""
        self._stopping = True
        for link in list(self._links.values()):
            if link.job is not None and link.ending is None:
                self._ask_to_end(link, AttemptEnd.STOPPED)
        self._drop_waiting()

    def kill(self) -> None:
        """End all that is under way at once, without asking."""
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

    def _lost(self, link: WorkerConnection) -> None:
        """Its socket is closed. Most likely it is dead, which the fork server will say in a moment."""
        if not link.doomed:
            link.doomed = True
            if link in self._ready:
                self._ready.remove(link)
            self._remind(link, _TO_BE_BURIED)

    def _buried(self, number: int, status: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        unexpected, link.doomed = not link.doomed, True
        if not link.is_lost:
            self._hear(link)  # what it said before it died
        del self._links[number]
        last_words = link.last_output().strip().splitlines()[-1:] if link.pid is None else []
        self._conclude(link, status)
        if link.pid is None and (unexpected or link.is_lost):
            self._count_stillborn(": ".join([exit_status.how(status), *last_words]))
        self._refill()

    def _conclude(self, link: WorkerConnection, status: int | None) -> None:
        """A worker is dead, and so the attempt it was making."""
        link.doomed = True
        if link in self._ready:
            self._ready.remove(link)
        if link.job is not None:
            outcome = exit_status.outcome(link, status, time.monotonic() - link.since)
            hint = _may_wait_for(self._threads) if self._threads and outcome.ended is AttemptEnd.TIMED_OUT else ""
            self._end(link, replace(outcome, hint=hint))
        link.close()

    def _count_stillborn(self, how: str) -> None:
        self._stillborn += 1
        self._refill_at = time.monotonic() + _BREATH
        self._soonest = min(self._soonest, self._refill_at)
        others = any(link.pid is not None and not link.doomed for link in self._links.values())
        if self._stillborn >= _STILLBORN and not others:
            raise FlowError(f"workers of flow {self._flow.name!r} end before they begin: {how}")

    # ── the fork server ───────────────────────────────────────────────────────────────────────────────────────────────

    def _heard_server(self) -> None:
        server = self._server
        assert server is not None
        try:
            reports = server.reports()
        except ProtocolError:
            reports = None
        if reports is None:
            self._server_died(server)
            return
        for what, *told in reports:
            if what == DEAD:
                self._buried(*told)
            elif what == READY:
                self._met(server, *told)
            elif what == BROKEN:
                raise FlowError(*told)
            elif what == UNFORKED:
                number, why = told
                self._links.pop(number).close()
                self._count_stillborn(why)

    def _server_died(self, server: ForkServerClient) -> None:
        """All workers die with it; what they were doing is lost, and a new one is started."""
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
            self._conclude(link, None)
        by_itself = not exit_status.is_from_outside(code)
        if not server.has_imported and not self._numbers and by_itself:
            raise FlowError(f"a worker that imports {server.home.shown} does not survive it: {how}")
        self._restarts += 1
        if self._restarts > _RESTARTS:
            error = f"the process that starts the workers of flow {self._flow.name!r} keeps dying: {how}"
            if by_itself:
                raise FlowError(error)
            raise FlowStopped(f"{error}; running it again goes on from there", kind=Kind.TRANSIENT)
        if not self._stopping:
            self.start()

    def _wait_for_end(self, link: WorkerConnection) -> None:
        """Nobody reports the deaths of these workers any more, but the end of a process closes its socket."""
        until = time.monotonic() + _TO_BE_BURIED
        poll = select.poll()
        poll.register(link.connection, select.POLLIN)
        while not link.is_lost and (left := until - time.monotonic()) > 0:
            if poll.poll(1_000 * left):
                self._hear(link)

    def close(self) -> None:
        """End everything, whatever it is doing. Nothing is left behind."""
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


def _may_wait_for(threads: list[str]) -> str:
    return (
        f"its module has started threads when it was imported ({listed(threads)}), which workers do not have: it may "
        "wait for one of them. Start them in the task"
    )
