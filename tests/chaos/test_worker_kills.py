"""Kill workers of a running flow by signals, by their timeouts, and with the process that forked them.

Each kill is an attempt with a clear cause, and no process is left. The short form runs with the tests; `make chaos`
runs the full count, and with `-s` prints where the kills hit.
"""

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from redrive.model.tasks import State
from tests.oracles.tasks import alive, check_nobody_is_left
from tests.support.tasks_loads import Loads, hear

CAUSES = {
    "signal:SIGKILL": "killed by SIGKILL",
    "signal:SIGSEGV": "segmentation fault",
    "signal:SIGTERM": "ended from outside",
    "signal:SIGUSR1": "killed by SIGUSR1",
    "timeout": "ran longer than its limit of 3 s",
    "lost": "the process that workers are forked from died",
}


@pytest.fixture
def loads(executors, new_store, tmp_path):
    return Loads(executors, new_store, tmp_path)


def parent_of(pid):
    """The number of a process's parent; None where it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


class Hunt:
    """Kill workers of one executor while it runs."""

    weapons = (*[signal.SIGKILL] * 4, *[signal.SIGSEGV] * 3, signal.SIGTERM, signal.SIGUSR1, signal.SIGSTOP)

    def __init__(self, load, seed):
        self.load = load
        self.chance = random.Random(seed)
        self.shots = Counter()

    def run(self, shots):
        executor = self.load.start()
        assert hear(executor, "started")
        while self.shots.total() < shots and self.shoot(executor):
            # As many as it saves something: what nobody is given the time for, nobody can do.
            hear(executor, "saved", len(executor.heard("saved")) + self.chance.randint(1, 12))
        code = executor.join()
        sys.stdout.write(f"\n{dict(self.shots)}\n")
        assert (code, bool(executor.heard("report"))) == (0, True), executor.said[-3:]
        check_nobody_is_left(self.load.marks[-1])
        self.check()

    def shoot(self, executor):
        """Kill a worker; return False if none is left."""
        servers = self.servers(executor)
        parents = {pid: parent_of(pid) for pid in alive(self.load.marks[-1])}
        workers = [pid for pid, parent in parents.items() if parent in servers]
        if workers and self.chance.random() > 0.08:
            weapon = self.chance.choice(self.weapons)
            self.hit(weapon.name, self.chance.choice(workers), weapon)
        elif servers and (workers or self.chance.random() < 0.3):
            self.hit("the fork server" if workers else "the fork server at its import", servers[0], signal.SIGKILL)
        return bool(parents) or hear(executor, "saved", len(executor.heard("saved")) + 1)

    def servers(self, executor):
        """The process that workers are forked from, where there is one."""
        return [pid for pid in alive(self.load.marks[-1]) if parent_of(pid) == executor.pid]

    def hit(self, what, pid, weapon):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, weapon)
            self.shots[what] += 1

    def check(self):
        books = self.load.check()
        assert {row.state for row in books.rows} == {State.SUCCESS}
        assert len([row for row in books.rows if row.child >= 0]) == self.load.params["count"]
        ends = Counter()
        for attempts in books.attempts.values():
            for one in attempts:
                ends[one.fingerprint or one.ended] += 1
                if one.ended != "returned":
                    assert one.error.startswith(CAUSES[one.fingerprint]), one
        sys.stdout.write(f"{dict(ends)}\n")
        assert len(ends) > 1, "nobody was hit at work"


def test_few_worker_kills_run_every_task_once(loads):
    with loads.new("sqlite", "hunt", count=60, pace=0.03) as load:
        Hunt(load, seed=61).run(12)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_hundred_worker_kills_run_every_task_once(loads, kind):
    for seed in (62, 63):
        with loads.new(kind, "hunt", count=300, pace=0.1) as load:
            Hunt(load, seed).run(100)


def test_fork_server_killed_at_import_is_replaced(loads):
    with loads.new("sqlite", "hunt", count=60, pace=0.05) as load:
        hunt = Hunt(load, seed=63)
        executor = load.start()
        assert hear(executor, "saved", 10)
        killed = []
        for _ in range(3):  # the second and the third have hardly begun
            while set(found := hunt.servers(executor)) <= set(killed):
                time.sleep(0.001)
            os.kill(found[0], signal.SIGKILL)
            killed += found
        assert (executor.join(), bool(executor.heard("report"))) == (0, True), executor.said[-3:]
        check_nobody_is_left(load.marks[-1])
        hunt.check()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def hang(load):
    """As many tasks that hang as healthy ones: the first end at their limit, the others do not notice."""
    count, executor = load.params["count"], load.start()
    assert executor.join() == 0
    (stopped,) = executor.heard("stopped")
    assert f"has {count} failed tasks" in stopped["reason"]
    check_nobody_is_left(load.marks[-1])
    books = load.check()
    states = Counter((row.name, row.state) for row in books.rows if row.child >= 0)
    assert states == {("hang", State.FAILED): count, ("work", State.SUCCESS): count}
    assert books.by_name["count_them"].state == State.SUCCESS
    assert books.by_name["not_reached"].state == State.UPSTREAM_FAILED
    for row in books.rows:
        if row.name == "hang" and row.child >= 0:
            (attempt,) = books.attempts[row.id]
            assert (attempt.ended, attempt.fingerprint) == ("timed_out", "timeout")
            assert row.error.startswith("ran longer than its limit of 0.2 s")


def test_hanging_tasks_are_killed_without_harming_others(loads):
    with loads.new("sqlite", "stall", count=21, pace=0.02) as load:
        hang(load)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_hundreds_of_hanging_tasks_are_killed(loads, kind):
    with loads.new(kind, "stall", count=300, pace=0.02) as load:
        hang(load)
