"""pebble: a pool of processes with timeouts that are enforced by killing, and nothing kept anywhere."""

from __future__ import annotations

import task_marks
from pebble import ProcessPool
from task_marks import TIMEOUT, WORKERS, Marks, Work


def nothing(number: int) -> None:
    task_marks.here().task(number)


def run(work: Work, marks: Marks) -> None:
    marks.begin()
    with ProcessPool(WORKERS) as pool:
        for numbers in work.stages:
            for future in [pool.schedule(nothing, args=(number,), timeout=TIMEOUT) for number in numbers]:
                future.result()
        marks.end()
