"""Executors that share a store: how long a suspended one blocks the others, and how often a full limit is polled."""

import functools
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text, update

import redrive
from redrive.errors import FlowStopped
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus, State
from redrive.store.dialects import postgres
from redrive.store.schema import task_executors, tasks
from redrive.tasks.executor.executor import Executor
from redrive.tasks.state.executor_lease import EarlierRun, ExecutorLease
from tests.support.flows import PATIENCE, Beside, attempts_made, eventually

SUSPENDED = """
    import signal, sys, redrive
    from sqlalchemy import text
    from redrive.store.dialects import postgres
    from redrive.tasks.executor.store_cycle import StoreCycle
    from redrive.tasks.state import executor_lease

    postgres.SILENCE = "2s" if sys.argv[2] == "idle" else "0"
    executor_lease._TRANSACTION_SHARE = 0.1
    flow = redrive.Flow("shared", store=sys.argv[1], workers=1)
    flow.task(name="split", in_thread=True)(lambda: [1, 2, 3])
    flow.task(name="settle", each="split", in_thread=True)(lambda item: item)
    claim, suspended = StoreCycle._claim, []

    def claim_and_stand_still(cycle, request, connection, now, result):
        claim(cycle, request, connection, now, result)
        if not suspended and any(job.claim.child >= 0 for job in result.claimed):
            suspended.append(True)
            connection.execute(text("SELECT 1"))
            print("suspended", flush=True)
            signal.raise_signal(signal.SIGSTOP)  # this thread at once: the process's first one may take its time

    StoreCycle._claim = claim_and_stand_still
    flow.run()
"""


@pytest.fixture
def on_postgres(store):
    if not store.database.dialect.is_remote:
        pytest.skip("a file has one writer at a time, whoever it is")


@pytest.mark.parametrize("known_to_be", ["idle", "at work"])
def test_suspended_executor_blocks_no_other(store, store_url, tmp_path, on_postgres, known_to_be):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SUSPENDED))
    flow = redrive.Flow("shared", store=store, workers=1)
    flow.task(name="split", in_thread=True)(lambda: [1, 2, 3])
    flow.task(name="settle", each="split", in_thread=True)(lambda item: item)
    command = [sys.executable, program, store_url, known_to_be]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as still:
        try:
            assert still.stdout.readline() == "suspended\n"
            beside = Beside(flow.run).join()
            assert beside.error is None
            assert (beside.report.resumed, beside.report.counts) == (True, {State.SUCCESS: 4})
            still.send_signal(signal.SIGCONT)  # its transaction is void
            said = still.communicate(timeout=PATIENCE)[1]
            assert still.returncode == 0 or "running again is safe" in said
        finally:
            still.kill()
    assert attempts_made(store) == 4


def test_lock_wait_is_limited_and_retried(store, on_postgres, monkeypatch):
    monkeypatch.setattr(postgres, "LOCK_PATIENCE", "100ms")
    flow = redrive.Flow("shared", store=store, workers=1)
    held, let_go = threading.Event(), threading.Event()

    def hold(connection):
        connection.execute(select(tasks.c.id).with_for_update())
        held.set()
        assert let_go.wait(PATIENCE)

    flow.task(name="work", in_thread=True)(lambda: held.wait(PATIENCE))
    begun = eventually_running(flow, store)
    before = store.database.retries
    holder = Beside(lambda: store.database.write(hold))
    eventually(lambda: store.database.retries > before)
    let_go.set()
    assert holder.join().error is None
    assert begun.join().report.status is FlowStatus.COMPLETE


def eventually_running(flow, store):
    beside = Beside(flow.run)
    eventually(lambda: store.tasks.runs() and store.tasks.find(flow.name, state="RUNNING"))
    return beside


def test_transaction_limit_ends_with_the_transaction(store, on_postgres):
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")

    def bounds(connection, *, bounded):
        if bounded:
            store.database.dialect.begin_bounded(connection, within=45)
        return [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names]

    assert store.database.write(functools.partial(bounds, bounded=True)) == ["25s", "15s", "45s"]
    assert store.database.write(functools.partial(bounds, bounded=False)) == ["0", "0", "0"]


def test_executor_with_a_locked_row_is_skipped(store, on_postgres):
    flow = redrive.Flow("shared", store=store, workers=1, stop_within=0)
    ran = []
    flow.sensor(name="ready", every=0.01, timeout=600, in_thread=True)(lambda: bool(ran))
    with pytest.raises(FlowStopped):
        flow.run(deadline=0.2)
    let_go, held = threading.Event(), threading.Event()

    def as_if_long_dead(connection):
        connection.execute(update(task_executors).values(owner=elsewhere(), ended_at=None))
        connection.execute(update(task_executors).values(until=text("now() - interval '1 hour'")))

    def lock(connection):
        connection.execute(select(task_executors.c.id).with_for_update())
        held.set()
        assert let_go.wait(PATIENCE)

    store.database.write(as_if_long_dead)
    holder = Beside(lambda: store.database.write(lock))
    assert held.wait(PATIENCE)
    ran.append(True)
    assert flow.run().status is FlowStatus.COMPLETE
    let_go.set()
    assert holder.join().error is None


# ── the lease ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lease_counts_from_its_time_of_reading(store):
    flow = redrive.Flow("shared", store=store)
    flow.task(name="a", in_thread=True)(lambda: 1)
    ledger = ExecutorLease(store, "shared", flow.graph.shape())
    ledger.begin(params={}, run_id=None, start=EarlierRun.RESUME, sla=None)
    moments = []
    ledger.write(lambda connection, now: moments.append(time.monotonic()))
    assert ledger.confirmed <= moments[0]
    ledger.release()


def test_suspended_executor_reports_the_takeover(store, monkeypatch):
    flow = redrive.Flow("shared", store=store, workers=1, stop_within=0)
    flow.task(name="work", in_thread=True)(lambda: 1)

    def was_suspended(lease):
        ended = update(task_executors).values(ended_at=datetime.now(UTC))
        store.database.write(lambda connection: connection.execute(ended))
        return True

    monkeypatch.setattr(ExecutorLease, "is_expired", was_suspended)
    with pytest.raises(FlowStopped, match="another executor has taken over") as stopped:
        flow.run()
    assert stopped.value.kind is Kind.TRANSIENT
    assert stopped.value.report.run_id == store.tasks.runs(flow="shared")[0].run_id


def test_executor_unsure_of_its_lease_stops_with_reason(store, monkeypatch):
    flow = redrive.Flow("shared", store=store, workers=1, stop_within=0)
    begun, go_on = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go_on.wait(PATIENCE)

    flow.task(name="work", in_thread=True)(work)
    late = functools.partial(ExecutorLease, lease=timedelta(seconds=0.5))
    monkeypatch.setattr("redrive.tasks.executor.executor.ExecutorLease", late)
    beside = Beside(flow.run)
    assert begun.wait(PATIENCE)
    release = threading.Event()
    monkeypatch.setattr(
        Executor, "_start_cycle", lambda executor: release.wait(0.01)
    )  # nothing reaches the store any more
    error = eventually(lambda: beside.error)
    go_on.set()
    beside.join()
    assert "the store could not be reached for longer than the lease of 0.5 s" in str(error)
    assert "what was running has been ended, and running it again resumes it" in str(error)
    monkeypatch.undo()
    store.database.write(lambda connection: connection.execute(update(task_executors).values(owner=elsewhere())))
    time.sleep(0.5)  # its lease, which others keep
    assert flow.run().status is FlowStatus.COMPLETE


def elsewhere():
    return '{"host": "elsewhere", "space": "x", "pid": 1, "began": "1"}'


# ── limits that others use up ─────────────────────────────────────────────────────────────────────────────────────────


def test_exhausted_service_limit_is_polled_with_pauses(store):
    begun, go_on = threading.Event(), threading.Event()

    def pay(item):
        begun.set()
        assert go_on.wait(PATIENCE)

    def made():
        flow = redrive.Flow("paying", store=store, workers=2)
        flow.group("bank", concurrency=1)
        flow.task(name="split", in_thread=True)(lambda: [1, 2])
        flow.task(name="pay", each="split", service="bank", in_thread=True)(pay)
        return flow

    def beats():
        rows = select(task_executors.c.beat).order_by(task_executors.c.id)
        return store.database.read(lambda connection: list(connection.execute(rows).scalars()))

    first = Beside(made().run)
    assert begun.wait(PATIENCE)
    second = Beside(made().run)
    eventually(lambda: len(beats()) == 2 and beats()[1] >= 2)
    before = beats()[1]
    time.sleep(2)
    turns = beats()[1] - before
    go_on.set()
    for one in (first, second):
        assert one.join().report.counts == {State.SUCCESS: 3}
    assert turns <= 10  # two seconds, in which it looks what others have done
