"""The flow that redrive runs in the benchmark of tasks, made when it is imported: by the run and by its workers."""

from __future__ import annotations

import os

import task_marks
from task_marks import TIMEOUT, WORKERS

import redrive

SHAPE, TASKS = os.environ["BENCH_TASKS_SHAPE"], int(os.environ["BENCH_TASKS_COUNT"])
HOW = {"in_thread": True} if os.environ["BENCH_TASKS_IN_THREAD"] == "yes" else {"timeout": TIMEOUT}

flow = redrive.Flow("bench", store=os.environ["BENCH_TASKS_STORE"], workers=WORKERS)


def link() -> None:
    task_marks.here().next_task()


if SHAPE == "chain":
    before = flow.task(name="t0", **HOW)(link)
    for number in range(1, TASKS):
        before = flow.task(name=f"t{number}", after=before, **HOW)(link)
elif SHAPE == "flat":

    @flow.task(**HOW)
    def numbers() -> list[int]:
        return list(range(TASKS))

    @flow.task(each=numbers, **HOW)
    def nothing(number: int) -> None:
        task_marks.here().task(number)

else:

    @flow.task(**HOW)
    def first() -> list[int]:
        task_marks.here().task(0)
        return list(range(1, TASKS - 1))

    @flow.task(each=first, **HOW)
    def middle(number: int) -> None:
        task_marks.here().task(number)

    @flow.task(after=middle, **HOW)
    def last(middle: list[None]) -> None:
        task_marks.here().task(TASKS - 1)
