"""A process for each task, as many a team has written it: forked, watched, killed at its timeout, its row updated."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import task_marks
from task_marks import TIMEOUT, WORKERS, Marks, Work
from task_table import Table

FORK = multiprocessing.get_context("fork")


def nothing(number: int) -> None:
    task_marks.here().task(number)


def run(work: Work, marks: Marks) -> int:
    table = Table(work)
    marks.begin()
    table.create(work.tasks)
    executor = Executor(table)
    for numbers in work.stages:
        executor.run(numbers)
    marks.end()
    done = table.count("done")
    table.close()
    return done


class Executor:
    """So many processes at once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._running: dict[BaseProcess, tuple[int, float]] = {}

    def run(self, numbers: range) -> None:
        for number in numbers:
            if len(self._running) == WORKERS:
                self._end_some()
            self._table.move(number, "running")
            process = FORK.Process(target=nothing, args=(number,))
            process.start()
            self._running[process] = (number, time.monotonic() + TIMEOUT)
        while self._running:
            self._end_some()

    def _end_some(self) -> None:
        """Wait until one has ended or is to be killed."""
        first = min(deadline for _, deadline in self._running.values())
        wait([process.sentinel for process in self._running], max(0.0, first - time.monotonic()))
        for process, (number, deadline) in list(self._running.items()):
            if process.is_alive():
                if time.monotonic() < deadline:
                    continue
                process.kill()
            process.join()
            self._table.move(number, "done" if process.exitcode == 0 else "failed")
            del self._running[process]
