"""Circuits and keys shared by real processes, on both databases, and their state after a kill."""

import itertools
import json
import logging
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

import redrive
from tests.support.warm_python import warm_python

_serial = itertools.count()

# A process that does what it is told, a line at a time.
PROCESS = """
import json, multiprocessing, os, sys
import redrive

class UsedUp(Exception): ...

told = json.loads(sys.argv[1])
store = redrive.connect(told["url"])
store.shared.node, store.shared.every = told["node"], 0.05
bank = redrive.Service(
    "bank",
    store=store,
    retry=redrive.Retry(attempts=1),
    breaker=redrive.Breaker(failures=1, probes=1, cooldown=told["cooldown"]),
    credentials=redrive.KeyPool(["key-one-1111", "key-two-2222"]),
    classifier=redrive.Classifier().rule(UsedUp, kind="quota"),
)

def fail():
    raise TimeoutError

def trip():
    try:
        bank.call(fail)
    except TimeoutError:
        return bank.circuit

def call():
    try:
        return bank.call(lambda credential: credential)
    except redrive.CircuitOpen:
        return "circuit open"

def drain():
    def first_is_used_up(credential):
        if credential == "key-one-1111":
            raise UsedUp
        return credential
    return bank.call(first_is_used_up)

def fork():
    "In a child that then does as it is told, in this process's place; this one waits for it."
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return bank.circuit

def worker():
    "In a worker of multiprocessing, which ends in a way of its own."
    process = multiprocessing.get_context("fork").Process(target=drain)
    process.start()
    process.join()
    return process.exitcode

for line in sys.stdin:
    print(json.dumps({"trip": trip, "call": call, "drain": drain, "fork": fork, "worker": worker}[line.strip()]()))
    sys.stdout.flush()
"""


class Process:
    """One process that shares the service `bank`."""

    def __init__(self, url, node="here", cooldown=30.0):
        told = json.dumps({"url": url, "node": node, "cooldown": cooldown})
        self.popen = subprocess.Popen(
            warm_python("-W", "error", "-c", PROCESS, told),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, command):
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline()
        assert answer, self.popen.stderr.read()
        return json.loads(answer)

    def end(self):
        """Let it run to its end, right after what it last did."""
        self.popen.stdin.close()
        assert self.popen.wait(90) == 0, self.popen.stderr.read()

    def kill(self):
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            stream.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'redrive.db'}"
    else:
        server, name = request.getfixturevalue("postgres_url"), f"shared_{next(_serial)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = server.rpartition("/")[0] + f"/{name}"
    redrive.connect(url, migrate=True).close()
    return url


@pytest.fixture
def start(url):
    started = []

    def start(**options):
        started.append(Process(url, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def eventually(condition):
    for _ in range(1_000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never came true")


def test_22_open_circuit_is_shared_on_one_machine_only(start):
    one, other, elsewhere = start(node="a"), start(node="a"), start(node="b")
    assert [other("call"), elsewhere("call")] == ["key-one-1111"] * 2
    assert one("trip") == "open"
    eventually(lambda: other("call") == "circuit open")
    assert elsewhere("call") == "key-one-1111"


def test_22_two_open_machines_open_the_third(start):
    one, other, third = start(node="a"), start(node="b"), start(node="c")
    assert [one("trip"), other("trip")] == ["open"] * 2
    eventually(lambda: third("call") == "circuit open")


def test_open_circuit_of_killed_process_ends_at_retry_time(start):
    one, other = start(cooldown=1.0), start(cooldown=1.0)
    one("trip")
    eventually(lambda: other("call") == "circuit open")
    one.kill()
    eventually(lambda: other("call") == "key-one-1111")
    late = start()
    assert late("call") == "key-one-1111"


def test_process_started_during_open_circuit_sends_nothing(start):
    first = start()
    first("trip")
    first.end()
    assert start()("call") == "circuit open"


@pytest.mark.parametrize("command", ["drain", "worker"])
def test_exhausted_key_is_not_used_after_restart(start, command):
    process = start()
    assert process(command) in ("key-two-2222", 0)
    process.end()
    assert start()("call") == "key-two-2222"


def test_forked_process_shares_keys_and_circuit(start):
    child, other = start(), start()
    assert child("fork") == "closed"  # from here on the child answers
    other("drain")
    eventually(lambda: child("call") == "key-two-2222")
    child("trip")
    eventually(lambda: other("call") == "circuit open")


def test_reset_closes_the_circuit_in_every_process(start, url):
    one, other = start(), start()
    one("drain")
    one("trip")
    eventually(lambda: other("call") == "circuit open")
    with redrive.connect(url) as store:
        assert [(state.service, state.state) for state in store.shared.services()] == [("bank", "open")]
        assert [key.key_id for key in store.shared.services()[0].drained] == ["1111"]
        assert store.shared.reset("bank", keys=True)
        assert [(state.state, state.drained) for state in store.shared.services()] == [("closed", ())]
    eventually(lambda: one("call") == other("call") == "key-one-1111")


def break_sqlite(url):
    """The file turns into something else under the store's hands."""
    path = Path(url.removeprefix("sqlite:///"))
    path.write_bytes(b"no database" * 10_000)
    path.with_name(path.name + "-wal").write_bytes(b"")
    return lambda: None


def break_postgres(url):
    """Close all connections of the server, and reject new ones."""
    server, name = url.rpartition("/")[0] + "/postgres", url.rpartition("/")[2]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    def mend():
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    return mend


def test_calls_continue_without_store_and_share_when_back(url, caplog):
    caplog.set_level(logging.WARNING, "redrive.events")
    breaker = redrive.Breaker(failures=1)
    with redrive.connect(url) as store:
        store.shared.every = 0.05
        bank = redrive.Service("bank", store=store, retry=redrive.Retry(attempts=1), breaker=breaker)
        mend = (break_sqlite if url.startswith("sqlite") else break_postgres)(url)
        eventually(lambda: "is lost" in caplog.text)
        assert bank.call(len, "fine") == 4
        with pytest.raises(ZeroDivisionError):
            bank.call(lambda: 1 / 0)
        with pytest.raises(TimeoutError):
            bank.call(time_out)
        assert bank.circuit == "open"
        mend()
        if url.startswith("postgresql"):
            eventually(lambda: "is back" in caplog.text)
            eventually(lambda: [state.state for state in store.shared.services()] == ["open"])
    assert caplog.text.count("is lost") == 1


def time_out():
    raise TimeoutError
