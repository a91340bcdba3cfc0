"""redrive: every task claimed, counted before it starts and recorded when it ended; the flow's definition timed too."""

from __future__ import annotations

import importlib
import os

from task_marks import Marks, Work

import redrive
from redrive.model.tasks import State


def run(work: Work, marks: Marks, *, in_thread: bool) -> int:
    redrive.connect(work.url, migrate=True).close()  # once for all runs, as a table is made once
    os.environ |= {
        "BENCH_TASKS_SHAPE": work.shape,
        "BENCH_TASKS_COUNT": str(work.tasks),
        "BENCH_TASKS_STORE": work.url,
        "BENCH_TASKS_IN_THREAD": "yes" if in_thread else "no",
    }
    marks.begin()
    report = importlib.import_module("task_flows").flow.run()
    marks.end()
    return report.counts[State.SUCCESS] - (work.shape == "flat")  # whose list is made by one task more
