"""Kill executors hundreds of times, alone and beside others: every task runs, and runs once.

The short form runs with the tests; `make chaos` runs the full count, and with `-s` prints where the kills hit.
"""

import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import redrive
from tests.oracles.tasks import check_nobody_is_left
from tests.support.tasks_loads import Load, Loads, hear

NEVER = 1_000  # in a row: tasks are not suspected of what is done to them here
SAVED = 300  # times that an executor saves something, if nobody disturbs it


@pytest.fixture
def loads(executors, new_store, tmp_path):
    return Loads(executors, new_store, tmp_path)


# ── kill -9 at random moments ─────────────────────────────────────────────────────────────────────────────────────────


class Fire:
    """Ends executors until enough have ended in the middle of a run, and remembers where they were hit."""

    kind, pace, a_round, blame = "sqlite", 0.03, 20, NEVER

    def __init__(self, loads, seed, pace=None):
        self.loads = loads
        self.pace = pace or self.pace
        self.chance = random.Random(seed)
        self.hits, self.last_words, self.ends = Counter(), Counter(), Counter()
        self.starting = 1.0

    @property
    def kills(self):
        """How many were not done already."""
        return self.hits["before"] + self.hits["in the run"]

    def burn(self, kills):
        while self.kills < kills:
            with self.loads.new(self.kind, pace=self.pace) as load:
                load.blame = self.blame
                self.round(load, kills)
                for attempts in load.finish().attempts.values():
                    self.ends.update(one.ended for one in attempts)
        place = ", ".join(f"after {words!r} {count}" for words, count in self.last_words.most_common())
        sys.stdout.write(f"\n{type(self).__name__}: {dict(self.hits)}; {place}; attempts {dict(self.ends)}\n")

    def round(self, load, kills):
        """One run with its kills."""
        for left in range(self.a_round, 0, -1):
            if self.kills >= kills or load.is_complete():
                return
            self.hit(load, left)

    def hit(self, load, left):
        """Kill it on its way, so that the last kill of the round hits near the end."""
        worker = self.aim(load, left)
        worker.kill()
        self.remember(worker, worker.join())
        if self.chance.random() < 0.3:  # otherwise the next one comes at once
            load.check()

    def aim(self, load, left, **more):
        """Start one, and wait for the moment."""
        began = time.monotonic()
        worker = load.start(**more)
        if self.chance.random() < 0.2:
            time.sleep(self.chance.uniform(0, self.starting))
        elif hear(worker, "started"):
            self.starting = time.monotonic() - began
            hear(worker, "saved", self.chance.randint(1, 2 * SAVED // (left + 1)))
            time.sleep(self.chance.uniform(0, 0.02))
        return worker

    def remember(self, worker, code):
        assert code in {0, -9}
        self.last_words[worker.said[-1]["what"] if worker.said else "nothing"] += 1
        self.hits["after" if worker.heard("report") else "in the run" if worker.heard("started") else "before"] += 1


class Few(Fire):
    """As many in a row as no task is suspected of, left to itself."""

    a_round, blame = 4, None


def in_lanes(make, loads, seeds, kills):
    """The same several times at once, for machines with several cores."""
    with ThreadPoolExecutor(len(seeds)) as lanes:
        list(lanes.map(lambda seed: make(loads, seed).burn(kills // len(seeds)), seeds))


def test_few_executor_kills_run_every_task_once(loads):
    Few(loads, seed=51).burn(3)


@pytest.mark.chaos
def test_three_hundred_executor_kills_run_every_task_once(loads):
    in_lanes(Few, loads, seeds=(52, 53), kills=100)
    in_lanes(Fire, loads, seeds=(54, 55), kills=200)


@pytest.mark.chaos
def test_executor_killed_at_every_commit_resumes(loads):
    for kind in ("sqlite", "postgresql"):
        with loads.new(kind, pace=0.0) as load:
            load.blame = NEVER
            for step in itertools.chain(*((("committing", n), ("saved", n)) for n in range(1, 12))):
                assert load.start(die_at=step).join() == -9, step
                load.check()
            load.finish()


# ── several at once ───────────────────────────────────────────────────────────────────────────────────────────────────


class Beside(Fire):
    """One executor lives on; another one is killed and restarted beside it, again and again."""

    kind, pace, lease = "postgresql", 0.3, 12

    def round(self, load, kills):
        survivor = load.start(lease=self.lease)
        assert hear(survivor, "started")
        for _ in range(self.a_round):
            if self.kills >= kills or load.is_complete():
                break
            worker = self.aim(load, self.a_round, lease=self.lease)
            worker.kill()
            self.remember(worker, worker.join())
            load.check_now()
        assert survivor.join() == 0
        assert survivor.heard("report"), survivor.said[-3:]


def test_second_executor_survives_few_kills_of_the_first(loads):
    Beside(loads, seed=54, pace=0.06).burn(3)


@pytest.mark.chaos
def test_second_executor_survives_many_kills_of_the_first(loads):
    in_lanes(Beside, loads, seeds=(55, 56, 57), kills=300)


class BesideOnOneFile(Beside):
    """The same on one machine, with a file for a store."""

    kind = "sqlite"


@pytest.mark.chaos
def test_second_executor_survives_kills_on_sqlite(loads):
    in_lanes(BesideOnOneFile, loads, seeds=(60, 61), kills=40)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_38_suspended_executor_cannot_write_after_takeover(loads, kind):
    with loads.new(kind, pace=0.01) as load:
        first = load.start(stop_at=("saved", 15), lease=1.0)
        assert hear(first, "saved", 15)
        second = load.start(lease=5.0)
        assert second.join() == 0
        assert second.heard("report"), second.said[-3:]
        os.kill(first.pid, signal.SIGCONT)
        assert first.join() == 0
        (stopped,) = first.heard("stopped")
        assert stopped["kind"] == "transient"  # it finds out by itself that its lease is over, or is told by the store
        assert "running it again" in stopped["reason"]
        books = load.finish()
        # What it had in hand when it stood still is lost; now and then that is nothing.
        assert {one.ended for attempts in books.attempts.values() for one in attempts} <= {"returned", "raised", "lost"}


# ── PostgreSQL goes away under them ───────────────────────────────────────────────────────────────────────────────────

_serial = itertools.count()


@pytest.fixture
def mortal_load(mortal_postgres, executors, tmp_path):
    """Makes a load whose store is on the server that goes away."""

    def make():
        name = f"tasks_{next(_serial)}"
        with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = mortal_postgres.url.rpartition("/")[0] + f"/{name}"
        with redrive.connect(url, migrate=True):
            pass
        return Load(executors, url, tmp_path / name, "fire", {"pace": 0.05})

    return make


class Restarts:
    """Takes a server away from under two executors again and again, by force and in order in turn, and brings it back.

    Now and then one of the two is killed while the server is away.
    """

    def __init__(self, server, load, seed):
        self.server, self.load = server, load
        load.blame = NEVER
        self.chance = random.Random(seed)
        self.pair = [load.start(), load.start()]
        self.happened = Counter()

    def burn(self, restarts):
        for number in range(restarts):
            self.progress()
            (self.server.stop if number % 2 else self.server.kill)()
            if self.chance.random() < 0.3:
                self.kill_one()
            time.sleep(self.chance.uniform(0, 0.1))
            self.server.start()
            self.happened["restarts"] += 1
        for executor in self.pair:
            self.check_ended(executor)
        books = self.load.finish()
        ends = Counter(one.ended for attempts in books.attempts.values() for one in attempts)
        sys.stdout.write(f"\n{dict(self.happened)}; attempts {dict(ends)}\n")

    def progress(self):
        """Wait until more is saved, and restart executors that stopped."""
        for place, executor in enumerate(self.pair):
            if not hear(executor, "saved", len(executor.heard("saved")) + self.chance.randint(1, 20)):
                self.check_ended(executor)
                self.pair[place] = self.load.start()
        time.sleep(self.chance.uniform(0, 0.02))

    def kill_one(self):
        self.pair[0].kill()
        assert self.pair[0].join() in {0, -9}
        self.pair[0] = self.load.start()
        self.happened["kills"] += 1

    def check_ended(self, executor):
        """Check that the executor completed, or stopped because of a transient error."""
        assert executor.join() == 0
        if not executor.heard("report"):
            assert [one["kind"] for one in executor.heard("stopped")] == ["transient"], executor.said[-3:]
            self.happened["gave up"] += 1


def test_few_postgres_restarts_run_every_task_once(mortal_postgres, mortal_load):
    Restarts(mortal_postgres, mortal_load(), seed=71).burn(2)


@pytest.mark.chaos
def test_sixty_postgres_restarts_run_every_task_once(mortal_postgres, mortal_load):
    for seed in range(72, 78):
        Restarts(mortal_postgres, mortal_load(), seed).burn(10)


# ── SIGTERM ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Notice(Fire):
    """Executors are asked to end; what runs may finish within its time, and is given back otherwise."""

    def hit(self, load, left):
        patient = self.chance.random() < 0.5
        worker = self.aim(load, left, stop_within=60 if patient else 0.0)
        os.kill(worker.pid, signal.SIGTERM)
        code = worker.join()
        told = worker.heard("stopped")
        if told:
            assert [(one["kind"], "stopped: SIGTERM" in one["reason"]) for one in told] == [("transient", True)]
            self.check_stopped(load, patient)
        else:  # it was done before, or it had not begun to listen
            assert code == -15 or worker.heard("report")
        self.remember(worker, 0)

    def check_stopped(self, load, patient):
        check_nobody_is_left(load.marks[-1])
        books = load.check()
        assert books.runs[0].status == "stopped"
        assert all(one.ended_at is not None for one in books.executors.values())
        assert all(row.owner is None for row in books.rows), "something is still in hand"
        last = max(books.executors)
        ended = [one for attempts in books.attempts.values() for one in attempts if one.executor == last]
        given_back = [one for one in ended if one.ended == "stopped"]
        if patient:
            assert all(one.seconds == 0 for one in given_back), "a task that had begun was not given its time"


def test_37_terminated_executors_leave_a_resumable_run(loads):
    Notice(loads, seed=58).burn(4)


@pytest.mark.chaos
def test_37_sixty_terminated_executors_leave_a_resumable_run(loads):
    in_lanes(Notice, loads, seeds=(59, 62), kills=60)
