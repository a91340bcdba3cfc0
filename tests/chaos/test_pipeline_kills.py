"""Kill pipelines hundreds of times on each sink, and restart PostgreSQL under them: the result is exact.

After every kill the target, the letters and the counts are those behind the checkpoint. The short form runs with the
tests; `make chaos` runs the full count, and with `-s` prints where the kills hit.
"""

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter

import psycopg
import pytest

import redrive
from tests.oracles.rows import (
    DuckdbTarget,
    ParquetTarget,
    PostgresTarget,
    SqliteTarget,
    check,
    check_end,
    form,
    is_complete,
    newest_run,
)
from tests.support import rows_worker
from tests.support.killable_workers import workers_of
from tests.support.rows_worker import BATCH, COUNT

KILLS_A_ROUND = 10
VARIANTS = ("csv", "records", "ndjson", "csv ignore", "csv newer", "ndjson first", "ndjson delete", "csv append")
"""Forms of the rows, and a rule for duplicates or a mode of the table where it is not the default one."""
FOR_TABLES = ("csv ignore", "csv newer", "ndjson delete", "csv append")
BATCHES = (BATCH, BATCH // 2, 2 * BATCH)
SINKS = ("postgresql with its store", "postgresql", "sqlite with its store", "sqlite", "duckdb", "parquet")


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    with workers_of("rows_worker", tmp_path_factory.mktemp("rows-workers")) as made:
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same rows in each form."""
    directory = tmp_path_factory.mktemp("files")
    made = {"csv": directory / "deliveries.csv", "ndjson": directory / "deliveries.ndjson", "records": None}
    rows_worker.write_csv(made["csv"])
    rows_worker.write_json(made["ndjson"])
    return made


# ── one run, from its first kill to its end ───────────────────────────────────────────────────────────────────────────


class Load:
    """One pipeline with a store and a target of its own; its processes come and go."""

    def __init__(self, workers, variant, file, store, target, batch=BATCH):
        self.workers, self.variant, self.store, self.target, self.batch = workers, variant, store, target, batch
        self.job = {"variant": variant, "file": file and str(file), "url": target.url, "store": store, "batch": batch}
        self.batches = 0

    def start(self, operation="run", **more):
        return self.workers.start(operation, **self.job, **more)

    def check(self):
        """The books are in order, and no batch that was saved is lost."""
        batches = check(self.store, self.target, self.variant, self.batch)
        assert batches >= self.batches
        self.batches = batches

    def finish(self):
        """Run it to its end, and look at everything."""
        if not is_complete(self.store):
            worker = self.start()
            assert worker.join() == 0
            assert worker.heard("report"), worker.said[-3:]
        check_end(self.store, self.target, self.variant, self.batch)


class Loads:
    """Makes loads; one of each sort in turn."""

    def __init__(self, workers, files, new_store, directory):
        self.workers, self.files, self.new_store, self.directory = workers, files, new_store, directory
        self.serial = itertools.count()

    @contextlib.contextmanager
    def new(self, sink, variant=None, batch=BATCH):
        number = next(self.serial)
        variants = [one for one in VARIANTS if sink != "parquet" or one not in FOR_TABLES]
        variant = variant or variants[(number + SINKS.index(sink)) % len(variants)]
        kind, shared = sink.partition(" ")[0], sink.endswith("with its store")
        with contextlib.ExitStack() as around:
            store = around.enter_context(self.new_store(kind if shared else "sqlite"))
            target = self._target(around, kind, store if shared else None, self.directory / f"target-{number}")
            yield Load(self.workers, variant, self.files[form(variant)], store, target, batch)

    def _target(self, around, kind, shared, path):
        if kind == "postgresql":
            return PostgresTarget(shared or around.enter_context(self.new_store(kind)), shared=bool(shared))
        if kind == "sqlite":
            return SqliteTarget(shared or f"sqlite:///{path}.db", shared=bool(shared))
        if kind == "duckdb":
            return DuckdbTarget(f"duckdb:///{path}.duckdb", shared=False)
        return ParquetTarget(f"parquet:{path}", shared=False)


@pytest.fixture
def loads(workers, files, new_store, tmp_path):
    return Loads(workers, files, new_store, tmp_path)


# ── kill -9 at random moments ─────────────────────────────────────────────────────────────────────────────────────────


class Fire:
    """Kills processes until enough have died in the middle of a run, and remembers where they were hit."""

    def __init__(self, loads, seed):
        self.loads = loads
        self.chance = random.Random(seed)
        self.hits, self.last_words = Counter(), Counter()
        self.starting = self.pace = 0.0
        self.things = 0

    def burn(self, sink, kills):
        self.measure(sink)
        while self.hits["in the run"] < kills:
            with self.loads.new(sink, batch=self.chance.choice(BATCHES)) as load:
                for left in range(KILLS_A_ROUND, 0, -1):
                    if self.hits["in the run"] >= kills or not self.kill_once(load, left):
                        break
                load.finish()
        place = ", ".join(f"after {words!r} {count}" for words, count in self.last_words.most_common())
        sys.stdout.write(f"\n{sink}: {dict(self.hits)}; {place}\n")

    def measure(self, sink):
        """Measure an undisturbed run: how many lines it prints, and how fast, to aim the kills."""
        with self.loads.new(sink, "csv") as load:
            began = time.monotonic()
            worker = load.start()
            worker.listen(until=1)
            self.starting = time.monotonic() - began
            assert worker.join() == 0
            self.things = len(worker.said)
            self.pace = (time.monotonic() - began - self.starting) / self.things
            load.check()

    def kill_once(self, load, left):
        """Let it come so far that the last kill of the round hits near the end; False where it was done before that."""
        steps = self.things * (1 - load.batches * load.batch / COUNT) * 2 / (left + 1)
        worker = load.start()
        if self.chance.random() < 0.5:
            worker.listen(until=self.chance.randint(0, int(steps)))
            time.sleep(self.chance.uniform(0, 2 * self.pace if worker.said else self.starting))
        else:
            time.sleep(self.chance.uniform(0, self.starting + steps * self.pace))
        worker.kill()
        assert worker.join() in {0, -9}
        self.last_words[worker.said[-1]["what"] if worker.said else "nothing"] += 1
        self.hits["after" if worker.heard("report") else "in the run" if worker.heard("started") else "before"] += 1
        if self.chance.random() < 0.5:  # otherwise the next one comes at once, while the server still has the last
            load.check()
        return not is_complete(load.store)


@pytest.mark.parametrize("sink", ["postgresql with its store", "parquet"])
def test_run_killed_a_few_times_has_exact_result(loads, sink):
    Fire(loads, seed=11).burn(sink, kills=5)


@pytest.mark.chaos
@pytest.mark.parametrize("sink", SINKS)
def test_run_killed_three_hundred_times_has_exact_result(loads, sink):
    Fire(loads, seed=12).burn(sink, kills=300)


# ── kill -9 at every step ─────────────────────────────────────────────────────────────────────────────────────────────


def steps(load):
    """Where to die next: at every step of the beginning, of a batch, of the last batch, and of the end."""
    yield from (("saving", 1), ("saved", 1), ("started", 1))
    yield from (("committing", times) for times in range(2, 7))  # some are the store's, some the sink's own
    yield from (("writing", 1), ("wrote", 1), ("saving", 2), ("saved", 2))

    def left():
        return COUNT // BATCH - load.batches

    # A process saves once when it begins, then its batches, and once more when it ends.
    yield "saved", left()
    assert left() == 1
    yield from (("writing", 1), ("wrote", 1), ("saving", 2), ("saved", 2))
    assert left() == 0
    yield from (("saving", 2), ("saved", 2))


OTHER_VARIANTS = [
    ("sqlite with its store", "csv ignore"),
    ("postgresql with its store", "ndjson first"),
    *((sink, "csv newer") for sink in SINKS if sink != "parquet"),
    *((sink, "ndjson delete") for sink in SINKS if sink not in {"sqlite", "parquet"}),
    *((sink, "csv append") for sink in SINKS if sink not in {"postgresql", "parquet"}),
]


@pytest.mark.parametrize(
    ("sink", "variant"),
    [
        *((sink, None) for sink in SINKS),
        ("sqlite", "ndjson delete"),
        ("postgresql", "csv append"),
        *(pytest.param(*one, marks=pytest.mark.chaos) for one in OTHER_VARIANTS),
    ],
)
def test_run_killed_at_every_step_resumes_from_checkpoint(loads, sink, variant):
    with loads.new(sink, variant) as load:
        for step in steps(load):
            assert load.start(die_at=step).join() == -9, step
            load.check()
        assert is_complete(load.store)
        load.finish()


# ── two at once ───────────────────────────────────────────────────────────────────────────────────────────────────────

STORES = ("postgresql with its store", "sqlite with its store")


@pytest.mark.parametrize("sink", STORES)
def test_concurrent_starts_run_once(loads, sink):
    with loads.new(sink) as load:
        with load.workers.together() as half_way:
            with load.workers.together() as gate:
                started = [load.start(gate=gate, halt_at=("saved", 10, str(half_way))) for _ in range(4)]
                for worker in started:
                    worker.listen(until=1)
            refused = [worker for worker in started if not hear(worker, "saved", 10)]
            assert [worker.join() for worker in refused] == [0] * 3
        said = [one for worker in refused for one in worker.heard("stopped")]
        assert [one["kind"] for one in said] == ["transient"] * 3
        assert all("is being run by process" in one["reason"] for one in said)
        (running,) = set(started) - set(refused)
        assert running.join() == 0
        check_end(load.store, load.target, load.variant)


@pytest.mark.parametrize("buried", [True, False], ids=["and buried", "and not yet buried"])
@pytest.mark.parametrize("sink", STORES)
def test_waiting_process_takes_over_from_killed_one(loads, sink, buried):
    with loads.new(sink) as load, load.workers.together() as half_way:
        first = load.start(halt_at=("saved", 10, str(half_way)))
        hear(first, "saved", 10)
        second = load.start("wait")
        hear(second, "stopped", 2)
        first.kill()
        if buried:
            first.join()
        second.join()
        if not buried:
            first.join()
        assert second.heard("report"), second.said[-2:]
        check_end(load.store, load.target, load.variant)


@pytest.mark.parametrize("sink", STORES)
def test_suspended_process_cannot_write_after_takeover(loads, sink):
    with loads.new(sink) as load:
        first = load.start(stop_at=("saved", 10), lease=0.3)
        hear(first, "saved", 10)
        second = load.start("wait", lease=0.3)
        assert second.join() == 0
        assert second.heard("report")
        os.kill(first.pid, signal.SIGCONT)
        assert first.join() == 0
        (stopped,) = first.heard("stopped")
        assert (stopped["kind"], "has taken pipeline 'vendor' over" in stopped["reason"]) == ("transient", True)
        check_end(load.store, load.target, load.variant)


def hear(worker, word, times):
    """Read until it has printed a line this many times; return False if it ended before."""
    while len(worker.heard(word)) < times:
        if not worker.listen(until=len(worker.said) + 1):
            return False
    return True


# ── PostgreSQL restarts ───────────────────────────────────────────────────────────────────────────────────────────────

# What is on the server that goes away.
UNDER = ("rows and letters", "rows", "letters")
_serial = itertools.count()


@pytest.fixture
def load_on(mortal_postgres, loads):
    """Makes a load of which so much is on the server that goes away."""

    def make(what):
        number = next(_serial)
        with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE rows_{number}")
        there = mortal_postgres.url.rpartition("/")[0] + f"/rows_{number}"
        here = f"sqlite:///{loads.directory}/{{}}-{number}.db".format
        store = here("store") if what == "rows" else there
        with redrive.connect(store, migrate=True):
            pass
        shared = what == "rows and letters"
        target = SqliteTarget(here("rows"), shared=False) if what == "letters" else PostgresTarget(there, shared=shared)
        variant = VARIANTS[number % len(VARIANTS)]
        return Load(loads.workers, variant, loads.files[form(variant)], store, target)

    return make


class Restarts:
    """Takes a server away from under a run again and again, in order and by force in turn, and brings it back."""

    def __init__(self, server, load, seed):
        self.server, self.load = server, load
        self.chance = random.Random(seed)
        self.worker, self.behind, self.stops = load.start(), 0, 0

    def burn(self, restarts):
        for number in range(restarts):
            self.await_batch(number * COUNT // BATCH // restarts)
            time.sleep(self.chance.uniform(0, 0.02))
            (self.server.stop if number % 2 else self.server.kill)()
            time.sleep(self.chance.uniform(0, 0.1))
            self.server.start()
        while not (self.worker.join() == 0 and self.worker.heard("report")):
            self.go_on()
        check_end(self.load.store, self.load.target, self.load.variant)
        (report,) = self.worker.heard("report")
        sys.stdout.write(f"\n{restarts} restarts: {report['retries']} retries, {self.stops} stops\n")
        assert report["retries"] or self.stops

    def await_batch(self, batch):
        """Wait until so many are saved. A process saves once when it begins, then its batches."""
        while not hear(self.worker, "saved", 1 + batch - self.behind):
            assert self.worker.join() == 0
            self.go_on()

    def go_on(self):
        """Rerun a process that stopped; it may stop only with a transient error."""
        assert [one["kind"] for one in self.worker.heard("stopped")] == ["transient"], self.worker.said[-3:]
        self.stops += 1
        self.behind = newest_run(self.load.store).read // BATCH
        self.worker = self.load.start()


@pytest.mark.parametrize("under", UNDER)
def test_few_postgres_restarts_leave_exact_result(mortal_postgres, load_on, under):
    Restarts(mortal_postgres, load_on(under), seed=13).burn(3)


@pytest.mark.chaos
@pytest.mark.parametrize("under", UNDER)
def test_twenty_postgres_restarts_leave_exact_result(mortal_postgres, load_on, under):
    for seed in range(14, 14 + len(VARIANTS)):
        Restarts(mortal_postgres, load_on(under), seed).burn(20)
