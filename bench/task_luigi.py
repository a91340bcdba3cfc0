"""Luigi with its local scheduler; a task is done when its target exists, here a row of a table.

Its own database target calls SQLAlchemy as version 1 was called, so this is one by hand, with less to do. A timeout
makes it fork a process for each task, and so do several workers.
"""

from __future__ import annotations

import warnings

import task_marks
from task_marks import TIMEOUT, WORKERS, Marks, Work
from task_table import Table

warnings.filterwarnings("ignore", module=r"luigi\b")  # its own affair
import luigi  # noqa: E402

_work: Work  # of this process; its children are forked and know it


class Row(luigi.Target):
    def __init__(self, number: int) -> None:
        self._number = number

    def exists(self) -> bool:
        return Table(_work).has(self._number)


class Nothing(luigi.Task):
    number = luigi.IntParameter()

    def output(self) -> Row:
        return Row(self.number)

    def run(self) -> None:
        task_marks.here().task(self.number)
        Table(_work).put(self.number, "done")


class Link(Nothing):
    def requires(self) -> list[luigi.Task]:
        return [Link(self.number - 1)] if self.number else []


class Middle(Nothing):
    def requires(self) -> luigi.Task:
        return Nothing(0)


class Last(Nothing):
    def requires(self) -> list[luigi.Task]:
        return [Middle(number) for number in range(1, self.number)]


def run(work: Work, marks: Marks, *, forks: bool) -> int:
    global _work
    _work = work
    table, last = Table(work), work.tasks - 1
    table.create()
    Nothing.worker_timeout = TIMEOUT if forks else None
    marks.begin()
    if work.shape == "flat":
        wanted: list[luigi.Task] = [Nothing(number) for number in range(work.tasks)]
    else:
        wanted = [Link(last) if work.shape == "chain" else Last(last)]
    luigi.build(wanted, local_scheduler=True, workers=WORKERS if forks else 1, log_level="CRITICAL")
    marks.end()
    done = table.count("done")
    table.close()
    return done
