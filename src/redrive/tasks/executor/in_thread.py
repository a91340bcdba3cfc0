"""Tasks in threads of the executor: for what is short and can be trusted, since nothing can end a thread."""

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
from redrive.tasks.executor.run_sensor import ASKING
from redrive.tasks.graph import Node, followers_of
from redrive.tasks.workers.messages import TaskJob, TaskOutcome
from redrive.tasks.workers.run_task import perform


class TaskThreads:
    """A few threads that take jobs from one queue."""

    def __init__(self, nodes: Mapping[str, Node], bell: Waker, *, threads: int, store: Store | None = None) -> None:
        self._store = store
        self._nodes = nodes
        self._fanned_out = {node.each for node in nodes.values()}
        self._followers = followers_of(nodes)
        self._bell = bell
        self._jobs: SimpleQueue[TaskJob | None] = SimpleQueue()
        self._ended: deque[TaskOutcome] = deque()
        self._began: dict[int, float] = {}
        self.size = threads
        self._given_at: deque[float] = deque()  # of jobs that nobody has begun
        self.given = 0
        """Jobs that have not ended."""
        self._threads = [
            threading.Thread(target=self._work, name=f"redrive-task-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_since(self) -> float:
        """Since when a job has been waiting for a thread."""
        try:
            return self._given_at[0]
        except IndexError:
            return math.inf

    def give(self, job: TaskJob) -> None:
        """Have a job done."""
        self.given += 1
        self._given_at.append(time.monotonic())
        self._jobs.put(job)

    def take(self) -> list[TaskOutcome]:
        """What has ended since the last time."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        self.given -= len(found)
        return found

    def running(self) -> list[tuple[int, float]]:
        """Tickets of what is under way, and for how many seconds it has been."""
        now = time.monotonic()
        return [(ticket, now - began) for ticket, began in list(self._began.items())]

    def give_back(self) -> list[int]:
        """Tickets of the jobs that nobody has begun; they will not be."""
        found = []
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    self._given_at.popleft()
                    found.append(job.ticket)
        self.given -= len(found)
        return found

    def close(self) -> None:
        """Let the threads end behind what they do."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        ASKING.store = self._store
        while (job := self._jobs.get()) is not None:
            self._given_at.popleft()
            self._began[job.ticket] = time.monotonic()
            fans_out, followers = job.task in self._fanned_out, self._followers[job.task]
            outcome = perform(self._nodes[job.task], job, fans_out=fans_out, followers=followers)
            del self._began[job.ticket]
            self._ended.append(outcome)
            self._bell.ring()
