"""Executors that die, and several at once, on both databases: each attempt belongs to one executor."""

import functools
import json
import subprocess
import textwrap
import threading
import time
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

import redrive
from redrive.model.tasks import FlowStatus, State
from redrive.store.schema import task_attempts, task_executors, tasks
from redrive.tasks.executor.executor import Executor
from redrive.testing import set_testing
from tests.support.flows import PATIENCE, Beside, attempts_made, eventually, stopped, stopped_at_a_retry
from tests.support.warm_python import warm_python


@pytest.fixture
def quick():
    with set_testing():
        yield


@pytest.fixture
def flow(store):
    return redrive.Flow("settlement", store=store, workers=2, stop_within=0)


# ── executors that die ────────────────────────────────────────────────────────────────────────────────────────────────


def as_if_elsewhere(store):
    """Make the executors of the store ones of another machine, whose leases have run out."""
    owner = json.dumps({"host": "elsewhere", "space": "x", "pid": 1, "began": "1", "token": uuid.uuid4().hex})
    past = datetime.now(UTC) - timedelta(minutes=5)
    store.database.write(lambda connection: connection.execute(update(task_executors).values(owner=owner, until=past)))


def test_34_attempt_is_counted_at_its_claim(flow, task, store, quick):
    seen = []

    @task()
    def work():
        seen.append(store.tasks.get("settlement", "work"))

    flow.run()
    (during,) = seen
    assert (during.task.state, during.task.attempts) == (State.RUNNING, 1)
    assert [(one.attempt, one.ended) for one in during.attempts] == [(1, None)]


def test_38_executor_without_its_lease_writes_nothing(flow, task, store, quick):
    begun, go_on, calls = threading.Event(), threading.Event(), []

    @task()
    def work():
        calls.append(1)
        if len(calls) == 1:
            begun.set()
            assert go_on.wait(PATIENCE)
            return "of the first"
        return "of the second"

    task(name="after", after=work)(lambda work: work)
    first = Beside(flow.run)
    assert begun.wait(PATIENCE)
    as_if_elsewhere(store)
    report = flow.run()
    assert (report.status, report.resumed) == (FlowStatus.COMPLETE, True)
    go_on.set()
    error = first.join().error
    assert "another executor has taken over what this one had of flow 'settlement'" in str(error)
    assert (error.report.run_id, error.report.status) == (report.run_id, FlowStatus.COMPLETE)
    details = store.tasks.get("settlement", "work")
    assert (details.result, [one.ended for one in details.attempts]) == ("of the second", ["lost", "returned"])
    assert flow.result("after") == "of the second"


@pytest.fixture
def kill(store, monkeypatch):
    """Kill whatever executor is at work: nothing of it reaches the store any more. `kill.heal()` lets others live."""

    def dead(work, done=None):
        raise RuntimeError("it is dead")

    def kill():
        monkeypatch.setattr(store.database, "write", dead)

    kill.heal = monkeypatch.undo
    return kill


def test_34_task_of_ten_dead_executors_is_a_dead_letter(flow, task, store, quick, kill):
    calls = []

    @task(retry=None)
    def killer():
        calls.append(1)
        kill()

    for _ in range(10):
        with pytest.raises(RuntimeError, match="it is dead"):
            flow.run()
        kill.heal()
    assert stopped(flow).report.status is FlowStatus.HELD
    details = store.tasks.get("settlement", "killer")
    assert (details.task.error, len(calls)) == ("its executor was lost (killed, or its lease expired)", 10)
    assert [one.ended for one in details.attempts] == ["lost"] * 10


def test_claims_of_a_departed_executor_are_taken_over(flow, task, store):
    calls = []

    @task(retry=redrive.Retry(base=3_600, cap=3_600, jitter="none", within=90_000))
    def work():
        calls.append(1)
        if len(calls) == 1:
            raise redrive.Transient("away")

    assert stopped_at_a_retry(flow).report.status is FlowStatus.STOPPED

    def as_if_in_hand(connection):
        last = connection.execute(task_executors.select()).first().id
        connection.execute(update(tasks).values(state="RUNNING", owner=last, due_at=None))

    store.database.write(as_if_in_hand)
    with set_testing():
        assert flow.run().counts == {State.SUCCESS: 1}


# ── several executors ─────────────────────────────────────────────────────────────────────────────────────────────────


def graph_on(store, ran, *, together=0):
    """A fan-out whose children wait for so many of them to run at once."""
    flow = redrive.Flow("shared", store=store, workers=2)
    add = functools.partial(flow.task, in_thread=True)
    enough, lock, running = threading.Event(), threading.Lock(), [0]

    @add()
    def split():
        ran["split"] += 1
        return list(range(60))

    @add(each=split)
    def settle(number):
        with lock:
            ran[number] += 1
            running[0] += 1
            if running[0] >= together:
                enough.set()
        assert enough.wait(PATIENCE)
        with lock:
            running[0] -= 1
        return number

    @add(after=settle)
    def total(settle):
        ran["total"] += 1
        return sum(settle)

    return flow


def test_38_two_executors_do_each_task_of_a_run_once(store, quick):
    ran = Counter()
    flow = graph_on(store, ran, together=4)  # more than one executor can run
    run_id = uuid.uuid4()
    both = [Beside(flow.run, run_id=run_id), Beside(flow.run, run_id=run_id)]
    for one in both:
        assert one.join().error is None
        assert one.report.status is FlowStatus.COMPLETE
    assert ran == Counter(["split", "total", *range(60)])
    assert attempts_made(store) == 62
    attempts = store.database.read(lambda connection: connection.execute(task_attempts.select()).all())
    assert len({row.executor for row in attempts}) == 2


def test_concurrent_starts_share_one_run(store, quick):
    ran = Counter()
    flow = graph_on(store, ran, together=4)
    both = [Beside(flow.run), Beside(flow.run)]
    assert len({one.join().report.run_id for one in both}) == 1
    assert sum(ran.values()) == 62


@pytest.mark.parametrize("_", range(5))
def test_38_task_readied_by_two_executors_runs_once(store, quick, _):
    ran, lock, together = Counter(), threading.Lock(), threading.Barrier(2)

    def note(number):
        with lock:
            ran[number] += 1

    def run(flow, run_id):
        together.wait(PATIENCE)
        return flow.run(run_id=run_id)

    run_id, both = uuid.uuid4(), []
    for _ in range(2):
        flow = redrive.Flow("shared", store=store, workers=2)
        for number in range(6):
            flow.task(name=f"t{number}", in_thread=True)(functools.partial(note, number))
        both.append(Beside(functools.partial(run, flow), run_id=run_id))
    assert [one.join().error for one in both] == [None, None]
    assert ran == Counter(range(6))


def test_task_retried_while_executor_leaves_still_runs(flow, task, store, quick, monkeypatch):
    bad, leave = [True], Executor._leave_run

    @task()
    def work():
        if bad:
            raise redrive.Permanent("a new column")

    def at_the_last_moment(executor):
        if bad:
            bad.clear()
            flow.retry("work")
        return leave(executor)

    monkeypatch.setattr(Executor, "_leave_run", at_the_last_moment)
    assert flow.run().status is FlowStatus.COMPLETE


def test_stopped_executor_leaves_the_run_to_the_other(store):
    flow, beside = (redrive.Flow("shared", store=store, workers=1) for _ in range(2))
    begun, go_on = threading.Event(), threading.Event()

    def long():
        begun.set()
        assert go_on.wait(PATIENCE)

    for one in (flow, beside):
        one.task(name="long", in_thread=True)(long)
    first = Beside(beside.run)
    assert begun.wait(PATIENCE)
    error = stopped(flow, deadline=0.2)
    assert "has passed; another executor continues it" in str(error)
    assert error.report.status is FlowStatus.RUNNING
    go_on.set()
    assert first.join().report.status is FlowStatus.COMPLETE


def test_service_limit_applies_to_all_executors_of_a_run(store, quick):
    running, most, lock = [0], [0], threading.Lock()

    def pay(item):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    def made():
        flow = redrive.Flow("paying", store=store, workers=4)
        flow.group("bank", concurrency=2)
        flow.task(name="split", in_thread=True)(lambda: list(range(30)))
        flow.task(name="pay", each="split", service="bank", in_thread=True)(pay)
        return flow

    run_id = uuid.uuid4()
    both = [Beside(made().run, run_id=run_id), Beside(made().run, run_id=run_id)]
    assert [one.join().report.counts for one in both] == [{State.SUCCESS: 31}] * 2
    assert most[0] <= 2


def test_storm_stops_both_executors_and_leaves_no_child(store, quick):
    ran, lock = Counter(), threading.Lock()

    def settle(number):
        with lock:
            ran[number] += 1
        time.sleep(0.002)
        raise ValueError("corrupt")

    def made():
        flow = redrive.Flow("storming", store=store, workers=2)
        flow.task(name="split", in_thread=True)(lambda: list(range(400)))
        flow.task(name="settle", each="split", in_thread=True)(settle)
        return flow

    run_id = uuid.uuid4()
    both = [Beside(made().run, run_id=run_id), Beside(made().run, run_id=run_id)]
    for one in both:
        assert one.join().error.report.counts[State.DEAD_LETTER] == 400
    assert len(ran) <= 10  # five for each executor


def test_storm_is_known_to_the_next_executor(store, quick, kill):
    ran = Counter()
    flow = redrive.Flow("storming", store=store, workers=1)
    flow.task(name="split", in_thread=True)(lambda: list(range(400)))

    @flow.task(each="split", in_thread=True)
    def settle(number):
        ran[number] += 1
        if sum(ran.values()) == 4:
            eventually(lambda: len(store.tasks.find("storming", state="DEAD_LETTER")) == 3)
            kill()
        raise redrive.Permanent("corrupt")

    with pytest.raises(RuntimeError, match="it is dead"):
        flow.run()
    kill.heal()
    assert stopped(flow).report.counts[State.DEAD_LETTER] == 400
    assert len(ran) <= 7  # three had died, two were lost with the executor, two more were enough


PROGRAM = """
    import sys, os, time, redrive
    flow = redrive.Flow("processes", store=sys.argv[1], workers=2)
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @flow.task(in_thread=True)
    def split():
        return list(range(60))

    @flow.task(each=split, in_thread=True)
    def settle(number):
        os.write(log, f"{os.getpid()} {number}\\n".encode())
        time.sleep(0.01)
        return number

    @flow.task(after=settle, in_thread=True)
    def total(settle):
        return sum(settle)

    report = flow.run(run_id=sys.argv[3])
    sys.exit(report.status != "complete")
"""


def test_38_two_processes_share_one_run(store, store_url, tmp_path):
    program, log, run_id = tmp_path / "program.py", tmp_path / "log", str(uuid.uuid4())
    program.write_text(textwrap.dedent(PROGRAM))
    command = warm_python(program, store_url, log, run_id)
    both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [one.communicate(timeout=PATIENCE)[1] or one.returncode for one in both] == [0, 0]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(int(number) for _, number in lines) == list(range(60))
    assert store.tasks.run(run_id).counts == {State.SUCCESS: 62}


def test_claims_without_a_free_worker_are_released(store, quick):
    """Short tasks are claimed ahead; if they take long, another executor gets its share."""
    ran, go_on = Counter(), threading.Event()

    def flow_of(name):
        flow = redrive.Flow("shared", store=store, workers=1)
        flow.task(name="split", in_thread=True)(lambda: list(range(430)))

        @flow.task(name="settle", each="split", in_thread=True)
        def settle(number):
            if number >= 400:
                ran[name] += 1
                go_on.wait(1)

        return flow

    first = Beside(flow_of("first").run)
    eventually(lambda: ran["first"])
    second = Beside(flow_of("second").run)
    eventually(lambda: ran["second"])
    go_on.set()
    assert first.join().report.status is second.join().report.status is FlowStatus.COMPLETE
    assert store.tasks.run("shared").counts == {State.SUCCESS: 431}
