"""Threads of the executor: one for its transactions, and some for tasks with `in_thread=True`."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from redrive.store.store import Store
from redrive.tasks.executor.run_sensor import CURRENT
from redrive.tasks.graph import Node, followers_of
from redrive.tasks.workers.protocol import TaskJob, TaskOutcome
from redrive.tasks.workers.run_task import perform

T = TypeVar("T")


class Waker:
    """Wakes a selector from another thread or from a signal handler."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def wake(self) -> None:
        """Wake the selector."""
        try:
            self._sender.send(b"!")
        except BlockingIOError:  # the buffer is full of wake-ups that were not read yet
            pass
        except OSError:  # closed: no selector waits there any more
            pass

    def clear(self) -> None:
        """Read the pending wake-ups, so that the selector can sleep."""
        try:
            while len(self.receiver.recv(4_096)) == 4_096:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close both sockets."""
        self.receiver.close()
        self._sender.close()


class DbThread(Generic[T]):
    """Runs one job at a time beside the loop that submits it."""

    def __init__(self, waker: Waker) -> None:
        self.busy = False
        self._waker = waker
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._outcomes: list[T | BaseException] = []
        self._thread = threading.Thread(target=self._loop, name="redrive-flow-store", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> None:
        """Run a job in the thread; `take_result` has its result when the waker wakes the loop."""
        assert not self.busy
        self.busy = True
        self._jobs.put(job)

    def take_result(self) -> T | None:
        """Return the result of the job, once; None while it runs. Raises what the job raised."""
        if not self._outcomes:
            return None
        self.busy = False
        outcome = self._outcomes.pop()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """Let the thread end after its current job."""
        self._jobs.put(None)
        self._thread.join(1)  # bounded, since the job may be waiting for a database that is gone

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._outcomes.append(job())
            except BaseException as error:
                self._outcomes.append(error)
            self._waker.wake()


class TaskThreads:
    """A fixed number of threads that run jobs from one queue."""

    def __init__(self, nodes: Mapping[str, Node], waker: Waker, *, threads: int, store: Store | None = None) -> None:
        self._store = store
        self._nodes = nodes
        self._fanned_out = {node.each for node in nodes.values()}
        self._followers = followers_of(nodes)
        self._waker = waker
        self._jobs: SimpleQueue[TaskJob | None] = SimpleQueue()
        self._outcomes: deque[TaskOutcome] = deque()
        self._started_at: dict[int, float] = {}
        self.size = threads
        self._submitted_at: deque[float] = deque()  # of jobs that no thread has started
        self.unfinished = 0
        """Number of jobs that have not ended."""
        self._threads = [
            threading.Thread(target=self._loop, name=f"redrive-task-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_since(self) -> float:
        """Return when the oldest job that waits for a thread was submitted."""
        try:
            return self._submitted_at[0]
        except IndexError:
            return math.inf

    def submit(self, job: TaskJob) -> None:
        """Queue a job."""
        self.unfinished += 1
        self._submitted_at.append(time.monotonic())
        self._jobs.put(job)

    def take_outcomes(self) -> list[TaskOutcome]:
        """Return the outcomes of jobs that have ended since the last call."""
        outcomes = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        self.unfinished -= len(outcomes)
        return outcomes

    def running(self) -> list[tuple[int, float]]:
        """Return the tickets of running jobs and their seconds so far."""
        now = time.monotonic()
        return [(ticket, now - started_at) for ticket, started_at in list(self._started_at.items())]

    def withdraw(self) -> list[int]:
        """Remove the jobs that no thread has started, and return their tickets."""
        tickets = []
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    self._submitted_at.popleft()
                    tickets.append(job.ticket)
        self.unfinished -= len(tickets)
        return tickets

    def close(self) -> None:
        """Let the threads end after their current jobs."""
        for _ in self._threads:
            self._jobs.put(None)

    def _loop(self) -> None:
        CURRENT.store = self._store
        while (job := self._jobs.get()) is not None:
            self._submitted_at.popleft()
            self._started_at[job.ticket] = time.monotonic()
            fans_out, followers = job.task in self._fanned_out, self._followers[job.task]
            outcome = perform(self._nodes[job.task], job, fans_out=fans_out, followers=followers)
            del self._started_at[job.ticket]
            self._outcomes.append(outcome)
            self._waker.wake()
