"""Runs of flows under kills: each with its own store and effect log, and executors that are replaced."""

import contextlib
import itertools
import threading
import uuid

import redrive
from redrive.model.tasks import FlowStatus
from tests.oracles.tasks import Books, check, check_end, check_nobody_is_left


class Load:
    """One run of a flow with a store and a book of its own; its executors come and go."""

    def __init__(self, workers, store, directory, flow, params):
        self.workers, self.store, self.directory, self.flow, self.params = workers, store, directory, flow, params
        (directory / "book").mkdir(parents=True)
        self.run_id = str(uuid.uuid4())
        self.blame = None
        """How many executors in a row may die of a task before it is suspected, where that is not the usual number."""
        self.marks = []
        self.done = 0

    def start(self, **more):
        self.marks.append(uuid.uuid4().hex)
        job = {
            "flow": self.flow,
            "params": self.params,
            "run_id": self.run_id,
            "mark": self.marks[-1],
            "blame": self.blame,
        }
        return self.workers.start("run", **job, directory=str(self.directory), store=self.store, **more)

    def check(self):
        """The books are in order, and nothing that was done is undone."""
        books = check(self.store, self.run_id, self.directory, self.flow)
        if books is not None:
            done = sum(row.state == "SUCCESS" for row in books.rows)
            assert done >= self.done
            self.done = done
        return books

    def check_now(self):
        """What must be true while executors are at work, too."""
        with redrive.connect(self.store) as store:
            Books(store, self.run_id, self.directory / "book", self.flow).check()

    def is_complete(self):
        with redrive.connect(self.store) as store:
            return FlowStatus.COMPLETE in [run.status for run in store.tasks.runs()]

    def finish(self):
        """Run it to its end, and check all state and processes."""
        if not self.is_complete():
            worker = self.start()
            assert worker.join() == 0
            assert worker.heard("report"), worker.said[-3:]
        books = check_end(self.store, self.run_id, self.directory)
        for mark in self.marks:
            check_nobody_is_left(mark)
        return books


class Loads:
    """Makes loads."""

    def __init__(self, workers, new_store, directory):
        self.workers, self.new_store, self.directory = workers, new_store, directory
        self.serial = itertools.count()
        self.lock = threading.Lock()  # fixtures are not for several threads at once

    @contextlib.contextmanager
    def new(self, kind, flow="fire", **params):
        with contextlib.ExitStack() as around:
            with self.lock:
                store = around.enter_context(self.new_store(kind))
            yield Load(self.workers, store, self.directory / f"load-{next(self.serial)}", flow, params)


def hear(worker, word, times=1):
    """Read until it has printed a line this many times; return False if it ended before."""
    while len(worker.heard(word)) < times:
        if not worker.listen(until=len(worker.said) + 1):
            return False
    return True
