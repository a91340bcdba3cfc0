"""Rollups of real processes, on both databases: they equal a recount of the attempt log under all faults."""

import json
import subprocess
import textwrap
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

import redrive
from redrive.calls.metrics.window import EDGES
from redrive.store.schema import OUTCOMES
from tests.support.stores import OF_SLOTS
from tests.support.warm_python import warm_python

WORKER = Path(__file__).parents[1] / "support" / "rollups_worker.py"
QUARTER = timedelta(minutes=15)
CALLS = 40


def last_quarters(count):
    """Moments in the middle of the last full quarters of an hour: no boundary is near."""
    now = datetime.now(UTC)
    begins = now - (now - datetime.min.replace(tzinfo=UTC)) % QUARTER
    return [begins - QUARTER * n + timedelta(minutes=4) for n in range(count, 0, -1)]


class Fleet:
    """Eight processes at work with one store and one log."""

    def __init__(self, url, directory):
        self.log = directory / "attempts.jsonl"
        quarters = [at.isoformat() for at in last_quarters(2)]
        self._processes = [
            subprocess.Popen(
                warm_python(
                    *("-W", "error", WORKER),
                    json.dumps({"url": url, "log": str(self.log), "seed": n, "quarters": quarters, "calls": CALLS}),
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for n in range(8)
        ]
        self.failed, self.quiet = Counter(), Counter()
        """What they know of themselves: calls that failed, and calls that are in no log."""

    def work(self):
        """Wait until all of them have done their work; they have not ended yet."""
        for process in self._processes:
            said = json.loads(process.stdout.readline())
            self.failed.update(said["failed"])
            self.quiet.update(said["quiet"])

    def end(self):
        """Let them end as programs do."""
        for process in self._processes:
            process.communicate("\n", timeout=250)
        assert [process.returncode for process in self._processes] == [0] * 8


def recounted(log):
    """The attempt log, as sums by service and quarter of an hour."""
    found = defaultdict(Counter)
    for line in log.read_text().splitlines():
        attempt = json.loads(line)
        at = datetime.fromisoformat(attempt["time"])
        counts = found[attempt["service"], at - (at - datetime.min.replace(tzinfo=UTC)) % QUARTER]
        outcome, status = attempt["outcome"], attempt["status"]
        first = attempt["attempt"] == 1
        counts["calls"] += first
        counts["successes" if outcome == "success" else outcome] += 1
        never_sent = outcome in ("circuit_open", "no_key_left")
        if never_sent:
            continue
        counts["attempts"] += 1
        counts["retries"] += not first
        counts["faults"] += outcome in ("transient", "ambiguous") or (status or 0) >= 500
        if outcome == "success":
            counts["bucket", bisect_left(EDGES, attempt["latency_ms"] / 1000)] += 1
            counts["success_seconds"] += attempt["latency_ms"] / 1000
    return found


def assert_equal(store, fleet):
    """Every window of every service is what the log says, and what the processes know beside it."""
    expected = recounted(fleet.log)
    windows = {(one.service, one.at): one for one in store.services.windows()}
    assert {service for service, _ in windows} == {"atlas", "bank", "exchange", "ledger", "partner"}
    assert len(windows) == 10
    for key, one in windows.items():
        counts, name = expected[key], f"{key[0]} {key[1]:%Y-%m-%dT%H:%M:%S%z}"
        unlogged = fleet.quiet[name]
        for counted in ("calls", "attempts", "successes"):
            assert getattr(one, counted) == counts[counted] + unlogged, (key, counted)
        assert one.retries == counts["retries"]
        assert one.failures == {outcome: counts[outcome] for outcome in OUTCOMES}
        assert sum(one.latencies) == one.successes
        if not unlogged:  # else nobody knows how long some of them took
            assert one.latencies == tuple(counts["bucket", n] for n in range(len(EDGES) + 1))
            assert one.success_seconds == pytest.approx(counts["success_seconds"], abs=1e-3)
        assert one.calls_failed == fleet.failed[name]
    for service in store.services.names():
        minutes = store.services.minutes(service, datetime.now(UTC) - timedelta(hours=2))
        of = [key for key in windows if key[0] == service]
        assert sum(one.attempts for one in minutes) == sum(windows[key].attempts for key in of)
        assert sum(one.faults for one in minutes) == sum(expected[key]["faults"] for key in of)


def test_rollups_of_eight_processes_equal_the_attempt_log(store_url, tmp_path):
    fleet = Fleet(store_url, tmp_path)
    fleet.work()
    fleet.end()
    with redrive.connect(store_url) as store:
        assert_equal(store, fleet)
        found = store.services.totals()
        everything = Counter()
        for one in found:
            everything.update(one.failures)
        assert {"cancelled", *(+everything)} == set(OUTCOMES)  # or the test would show little; nobody here cancels
        (bank,) = [one for one in found if one.service == "bank"]
        assert bank.open_seconds > 0
        (exchange,) = [one for one in found if one.service == "exchange"]
        assert exchange.failed_auth
        assert exchange.failed_404


def test_rollups_are_exact_when_connections_break(new_store, tmp_path):
    with new_store("postgresql") as url:
        fleet, over = Fleet(url, tmp_path), threading.Event()
        hunter = threading.Thread(target=break_connections, args=(url, over))
        hunter.start()
        try:
            fleet.work()
        finally:
            over.set()
            hunter.join()
            fleet.end()
        with redrive.connect(url) as store:
            assert_equal(store, fleet)


def break_connections(url, over):
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        while not over.wait(0.02):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND application_name <> %s ORDER BY random() LIMIT 2",
                [name, OF_SLOTS],
            )


# ── the ends of processes ────────────────────────────────────────────────────────────────────────────────────────────

# Nothing is written before the end: the next time would be in ten minutes.
HEAD = """
import multiprocessing, os, sys, time
import redrive

store = redrive.connect(sys.argv[1])
store.services.every = 600
bank = redrive.Service("bank", store=store)

def calls(number):
    for _ in range(number):
        bank.call(len, "fine")

def in_a_fork(work):
    child = os.fork()
    if not child:
        work()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""
ENDS = {
    "returns": ("calls(100)", 100),
    "sys.exit": ("calls(100); sys.exit()", 100),
    "a store that is closed": ("calls(70); store.close(); calls(1000)", 70),
    "a fork": ("calls(10); in_a_fork(lambda: calls(5)); calls(20)", 35),
    "a fork of what was counted already": ("calls(10); bank.stats(); in_a_fork(lambda: calls(5)); calls(20)", 35),
    "a fork of a fork": ("calls(1); in_a_fork(lambda: (calls(2), in_a_fork(lambda: calls(4)))); calls(8)", 15),
    "a fork that does nothing": ("calls(100); in_a_fork(lambda: None)", 100),
    "workers": (
        """
        fork = multiprocessing.get_context("fork")
        calls(10)
        for _ in range(3):
            process = fork.Process(target=calls, args=(7,))
            process.start()
            process.join()
            assert process.exitcode == 0
        """,
        31,
    ),
    "a pool of workers": (
        """
        calls(10)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            pool.map(calls, range(20))
            pool.close()
            pool.join()
        """,
        10 + sum(range(20)),
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_clean_exit_writes_rollups_exactly_once(store_url, tmp_path, end):
    program, calls = ENDS[end]
    script = tmp_path / "program.py"
    script.write_text(HEAD + textwrap.dedent(program))
    done = subprocess.run(
        warm_python("-W", "error", script, store_url), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    with redrive.connect(store_url) as store:
        (one,) = store.services.totals()
    assert (one.calls, one.attempts, one.successes, sum(one.latencies)) == (calls,) * 4


FLOW = """
import os
import redrive

store = redrive.connect(os.environ["STORE"])
store.services.every = 600
bank = redrive.Service("bank", store=store)
bank.call(len, "while it is imported")  # by the program, and once more by what workers are forked from
flow = redrive.Flow("settlement", store=store, workers=3, recycle_after=4)

@flow.task
def merchants() -> list[int]:
    return list(range(20))

@flow.task(each=merchants)
def settle(merchant: int) -> int:
    return sum(bank.call(len, "fine") for _ in range(merchant))

@flow.task(each=merchants, in_thread=True)
def check(merchant: int) -> int:
    return bank.call(len, "fine")
"""


def test_rollups_of_tasks_are_written_before_workers_end(new_store, tmp_path, monkeypatch):
    (tmp_path / "settlement.py").write_text(FLOW)
    with new_store("sqlite") as url:
        monkeypatch.setenv("STORE", url)
        monkeypatch.chdir(tmp_path)
        program = "import settlement; assert settlement.flow.run().status == 'complete'"
        done = subprocess.run(
            warm_python("-W", "error", "-c", program), capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        with redrive.connect(url) as store:
            (one,) = store.services.totals()
    assert one.calls == sum(range(20)) + 20 + 2


# ── an unreachable store ─────────────────────────────────────────────────────────────────────────────────────────────


def test_rollups_of_a_database_outage_are_written_later(mortal_postgres):
    mortal_postgres.start()
    with redrive.connect(mortal_postgres.url, migrate=True) as store:
        store.services.every = 0.05
        bank = redrive.Service("bank", store=store, breaker=None)
        bank.call(len, "before")
        eventually(lambda: store.services.names())
        mortal_postgres.kill()
        for _ in range(100):
            bank.call(len, "meanwhile")
            time.sleep(0.005)
        mortal_postgres.start()
        eventually(lambda: store.services.totals()[0].calls == 101)


def eventually(condition):
    for _ in range(1_000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never came true")
