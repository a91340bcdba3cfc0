"""Threads of the executor for tasks with `in_thread=True`: short, trusted tasks, since a thread cannot be killed."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue

from redrive.store.store import Store
from redrive.tasks.executor.db_thread import Waker
from redrive.tasks.executor.run_sensor import CURRENT
from redrive.tasks.graph import Node, followers_of
from redrive.tasks.workers.messages import TaskJob, TaskOutcome
from redrive.tasks.workers.run_task import perform


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
        """When the oldest job that waits for a thread was submitted."""
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
