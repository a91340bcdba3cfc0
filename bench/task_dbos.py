"""DBOS: steps of one workflow, each recorded when it returned; or one workflow per task, by way of a queue.

A step that is a plain function can have no timeout. One that is a coroutine can: it is cancelled, which it may ignore,
as may a workflow, for which cancellation is looked up before each of its steps.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import task_marks
from dbos import DBOS, SetWorkflowTimeout
from task_marks import TIMEOUT, WORKERS, Marks, Work
from vendor import connected

QUEUE = "bench"
POLL = 0.01  # seconds between looks at the queue and at results; 1 by default


@DBOS.step()
def step(number: int) -> None:
    task_marks.here().task(number)


@DBOS.step(timeout_seconds=TIMEOUT)
async def coroutine_step(number: int) -> None:
    task_marks.here().task(number)


@DBOS.workflow()
def small_workflow(number: int) -> None:
    task_marks.here().task(number)


@DBOS.workflow()
def first_of_all() -> None:
    """Wakes the queue up, which takes it a second."""


@DBOS.workflow()
def steps(work: Work) -> None:
    """One after another, whatever the shape: a plain workflow has no other way."""
    for number in range(work.tasks):
        step(number)


@DBOS.workflow()
async def coroutine_steps(work: Work) -> None:
    """Two at a time: more of them are in each other's way, most of all in SQLite, and all at once never begin."""
    for numbers in work.stages:
        for place in range(0, len(numbers), WORKERS):
            await asyncio.gather(*map(coroutine_step, numbers[place : place + WORKERS]))


def queued(work: Work) -> None:
    for numbers in work.stages:
        with SetWorkflowTimeout(TIMEOUT):
            handles = [DBOS.enqueue_workflow(QUEUE, small_workflow, number) for number in numbers]
        for handle in handles:
            handle.get_result(polling_interval_sec=POLL)


def run(work: Work, marks: Marks, *, way: str) -> int:
    url = work.url.replace("postgresql:", "postgresql+psycopg:")
    if work.database == "SQLite":
        with closing(sqlite3.connect(work.url.partition(":///")[2])) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # half as fast again as with the journal it would have
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        if way == "queue":
            DBOS.register_queue(QUEUE, polling_interval_sec=POLL)
            DBOS.enqueue_workflow(QUEUE, first_of_all).get_result()
        marks.begin()
        if way == "steps":
            steps(work)
        elif way == "async":
            asyncio.run(coroutine_steps(work))
        else:
            queued(work)
        marks.end()
        return recorded(work, queue=way == "queue")
    finally:
        DBOS.destroy()


def recorded(work: Work, *, queue: bool) -> int:
    """How many tasks its tables have as done."""
    schema = "dbos." if work.database == "PostgreSQL" else ""
    counted = (
        f"{schema}workflow_status WHERE status = 'SUCCESS' AND name = 'small_workflow'"
        if queue
        else f"{schema}operation_outputs"
    )
    with closing(connected(work.database, work.url)) as connection:
        return connection.execute(f"SELECT count(*) FROM {counted}").fetchone()[0]
