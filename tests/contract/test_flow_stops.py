"""Runs that are stopped, restarted, or run under a changed clock, on both databases. Completed work stays completed."""

import functools
import os
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import redrive
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus, State, TaskRetried
from redrive.tasks.operator import actions
from redrive.testing import set_testing
from tests.support.flows import PATIENCE, Beside, stopped, stopped_at_a_retry


@pytest.fixture
def quick():
    with set_testing():
        yield


@pytest.fixture
def flow(store):
    return redrive.Flow("settlement", store=store, workers=2, stop_within=0)


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_37_stopped_run_resumes_without_charged_attempts(flow, task, store):
    begun, go_on = threading.Event(), threading.Event()
    ran = Counter()

    @task()
    def first():
        ran["first"] += 1

    @task(after=first, retry=None)
    def second():
        ran["second"] += 1
        begun.set()
        go_on.wait(PATIENCE if ran["second"] == 1 else 0)

    def person():
        assert begun.wait(PATIENCE)
        flow.stop("the machine is needed")
        time.sleep(0.2)
        go_on.set()

    teller = threading.Thread(target=person)
    teller.start()
    error = stopped(flow)
    teller.join()
    assert str(error) == "flow 'settlement' stopped: the machine is needed; running it again resumes it"
    assert error.report.status is FlowStatus.STOPPED
    report = flow.run()
    assert (report.resumed, report.status, report.run_id) == (True, FlowStatus.COMPLETE, error.report.run_id)
    assert ran["first"] == 1


def test_37_endless_thread_is_left_and_its_task_is_ready(flow, task, store, monkeypatch):
    monkeypatch.setattr("redrive.tasks.executor.executor._THREADS_END_WITHIN", 0.05)
    hangs, calls = threading.Event(), []

    @task(retry=None)
    def hang():
        calls.append(1)
        if len(calls) == 1:
            flow.stop("enough")
            hangs.wait(PATIENCE)
        return len(calls)

    error = stopped(flow)
    row = store.tasks.get("settlement", "hang")
    assert (row.task.state, row.attempts[0].ended) == (State.READY, "stopped")
    assert "stopped: enough; running it again resumes it" in str(error)
    assert flow.run().status is FlowStatus.COMPLETE
    hangs.set()
    time.sleep(0.05)
    assert flow.result("hang") == 2  # what the one left behind returns is nobody's


def test_cancelled_run_is_not_resumed(flow, task, store):
    @task(poison=1)
    def work():
        raise ValueError("bad")

    first = stopped(flow).report.run_id
    with pytest.raises(FlowError, match="to cancel a run needs a note"):
        flow.cancel(note=" ")
    assert flow.cancel(note="wrong day") == first
    report = store.tasks.run(first)
    assert (report.status, report.reason.startswith("cancelled: wrong day (")) == (FlowStatus.ABANDONED, True)
    assert store.dlq.count(status="pending") == 0
    with pytest.raises(FlowError, match="is abandoned: there is nothing to cancel"):
        flow.cancel(note="wrong day")
    assert stopped(flow).report.run_id != first


def test_cancel_stops_the_executor_and_is_final(flow, task, store):
    @task()
    def work():
        begun.set()
        cancelled.wait(PATIENCE)

    begun, cancelled = threading.Event(), threading.Event()
    beside = Beside(flow.run)
    assert begun.wait(PATIENCE)
    actions.cancel(store, "settlement", note="wrong day")
    error = beside.join().error  # the task is left behind: nothing can end a thread
    cancelled.set()
    assert "stopped: it was cancelled: wrong day" in str(error)
    assert error.kind is Kind.PERMANENT


def test_37_sigterm_leaves_a_resumable_run(flow, task, store):
    calls = []

    @task()
    def split():
        return list(range(50))

    @task(each=split)
    def settle(number):
        calls.append(number)
        if len(calls) == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return number

    error = stopped(flow)
    assert (error.report.status, error.report.reason) == (FlowStatus.STOPPED, "SIGTERM")
    assert 10 <= error.report.counts[State.SUCCESS] < 51
    report = flow.run()
    assert (report.counts, report.attempts) == ({State.SUCCESS: 51}, 51)  # what was given back is no attempt
    assert sorted(calls) == list(range(50))


def test_retry_times_are_stored_and_outlive_the_executor(flow, task, store, monkeypatch):
    calls = []

    @task(retry=redrive.Retry(base=3_600, cap=3_600, jitter="none", within=90_000))
    def fetch():
        calls.append(1)
        if len(calls) == 1:
            raise redrive.Transient("away")

    assert stopped_at_a_retry(flow).report.counts == {State.RETRYING: 1}
    due = store.tasks.get("settlement", "fetch").task.due_at
    assert timedelta(minutes=59) < due - datetime.now(UTC) < timedelta(minutes=61)
    assert stopped(flow, deadline=0.3).report.attempts == 1  # not before its time
    Wall(store, monkeypatch).ahead = timedelta(hours=2)
    assert flow.run().attempts == 2


class TestLongWait:
    """A task that waits for its next attempt can be retried at once, and its wait is limited."""

    @pytest.fixture
    def bank(self, task):
        """A bank that is down and names an absurd time; `up` is what it needs."""
        up = []

        @task(retry=redrive.Retry(attempts=2))
        def fetch():
            if not up:
                raise redrive.Transient("down", retry_after=999_999_999)
            return "fetched"

        task(name="load", after="fetch")(lambda fetch: fetch)
        return up

    def test_retry_after_of_years_counts_for_a_day(self, flow, bank, store, caplog):
        assert stopped_at_a_retry(flow).report.counts == {State.RETRYING: 1, State.PENDING: 1}
        due = store.tasks.get("settlement", "fetch").task.due_at
        assert timedelta(hours=23) < due - datetime.now(UTC) < timedelta(hours=37)
        assert "settlement: task fetch: the server asks to wait 11574 days; it is tried again in" in caplog.text

    def test_retrying_task_is_tried_now_with_all_its_attempts(self, flow, bank, store):
        stopped_at_a_retry(flow)
        assert flow.retry("fetch", note="the bank is up").tasks == ("fetch",)
        stopped_at_a_retry(flow)  # again the first of its two attempts
        flow.retry(cause="redrive.errors.Transient")
        bank.append(True)
        assert (flow.run().attempts, flow.result("load")) == (4, "fetched")  # with the one of load
        history = [(change.before, change.after) for change in store.tasks.get("settlement", "fetch").changes]
        assert history.count((State.RETRYING, State.READY)) == 2

    def test_executor_at_work_tries_a_retrying_task_now(self, flow, bank, store):
        waits = threading.Event()
        end = redrive.on_event(lambda event: waits.set() if isinstance(event, TaskRetried) else None)
        beside = Beside(flow.run)
        assert waits.wait(PATIENCE)
        end()
        bank.append(True)
        flow.retry("fetch", run=store.tasks.run("settlement").run_id)
        assert beside.join().report.status is FlowStatus.COMPLETE

    def test_retrying_child_is_tried_now(self, flow, task, store):
        up = []

        @task(each=task(name="split")(lambda: [1, 2, 3]))
        def settle(number):
            if number == 2 and not up:
                raise redrive.Transient("down", retry_after=999_999_999)
            return number

        task(name="total", after=settle)(lambda settle: sum(settle))
        stopped_at_a_retry(flow)
        up.append(True)
        assert flow.retry("settle").tasks == ("settle[1]",)
        flow.run()
        assert flow.result("total") == 6


# ── beginning again ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_runs_with_other_parameters_are_separate(store):
    flow = redrive.Flow("daily", store=store, params=["day"])
    may_go_on = []

    @flow.task(in_thread=True)
    def work(day):
        if not may_go_on:
            flow.stop()
            threading.Event().wait(0.05)
            raise redrive.Transient("away")
        return day

    found = {day: stopped(flow, params={"day": day}).report.run_id for day in ("monday", "friday")}
    assert len(set(found.values())) == 2
    may_go_on.append(True)
    with set_testing():
        for day, run_id in found.items():
            assert flow.run(params={"day": day}).run_id == run_id
            assert flow.result("work", run=run_id) == day


def test_restarted_run_abandons_the_unfinished_one(flow, task, store):
    ended = []

    @task(retry=redrive.Retry(base=3_600, cap=3_600, jitter="none", within=90_000))
    def work():
        if not ended:
            raise redrive.Transient("away")

    old = stopped(flow, deadline=0.2).report.run_id
    ended.append(True)
    report = flow.run(restart=True)
    assert (report.status, report.resumed) == (FlowStatus.COMPLETE, False)
    assert store.tasks.run(old).status is FlowStatus.ABANDONED
    with pytest.raises(FlowError, match="was abandoned; begin another one"):
        flow.run(run_id=old)
    with pytest.raises(FlowError, match="cannot restart under its own id: leave run_id out"):
        flow.run(run_id=report.run_id, restart=True)


def test_executor_of_an_abandoned_run_stops(flow, task, store):
    begun, ended = threading.Event(), []

    @flow.sensor(every=0.05, timeout=3_600, in_thread=True)
    def arrived():
        begun.set()
        return bool(ended)

    beside = Beside(flow.run)
    assert begun.wait(PATIENCE)
    ended_run = store.tasks.run("settlement").run_id
    other = Beside(flow.run, restart=True)
    beside.join()
    assert "it was abandoned for a new run; a new run has taken its place" in str(beside.error)
    ended.append(True)
    assert other.join().report.run_id != ended_run


def test_changed_flow_does_not_resume_a_run_of_the_old(flow, task, store):
    @task(name="a", retry=redrive.Retry(base=3_600, cap=3_600, jitter="none", within=90_000))
    def away():
        raise redrive.Transient("away")

    run_id = stopped(flow, deadline=0.2).report.run_id
    changed = redrive.Flow("settlement", store=store)
    changed.task(name="b", in_thread=True)(lambda: 1)
    with pytest.raises(FlowError) as refused:
        changed.run()
    assert str(refused.value) == (
        f"flow 'settlement' has changed since run {str(run_id)[:8]} began: 'a' is gone, 'b' is new; finish that run "
        "with the flow as it was, or restart with run(restart=True) or `redrive run --restart`"
    )
    assert store.tasks.run(run_id).status is FlowStatus.STOPPED
    assert changed.run(restart=True).status is FlowStatus.COMPLETE


# ── clock changes ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Wall:
    """The database's clock, set by hand."""

    def __init__(self, store, monkeypatch):
        dialect, self.ahead = store.database.dialect, timedelta()
        for read in (dialect.now, dialect.begin_bounded):
            monkeypatch.setattr(dialect, read.__name__, functools.partial(self._read, read))

    def _read(self, read, connection, **options):
        return read(connection, **options) + self.ahead


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
def test_39_clock_change_neither_hastens_nor_starves_a_retry(flow, task, store, monkeypatch, jump):
    wall, tried = Wall(store, monkeypatch), []

    @task(retry=redrive.Retry(base=0.5, jitter="none"))
    def fetch():
        tried.append(time.monotonic())
        if len(tried) == 1:
            wall.ahead = jump
            raise redrive.Transient("away")

    assert flow.run().status is FlowStatus.COMPLETE
    assert tried[1] - tried[0] >= 0.49


def test_39_retry_timed_by_a_fast_clock_waits_only_its_delay(flow, task, store, monkeypatch):
    wall, tried = Wall(store, monkeypatch), []
    wall.ahead = timedelta(days=1)

    @task(retry=redrive.Retry(base=1.0, jitter="none"))
    def fetch():
        tried.append(time.monotonic())
        if len(tried) == 1:
            raise redrive.Transient("away")

    assert stopped_at_a_retry(flow).report.counts == {State.RETRYING: 1}
    wall.ahead = timedelta()
    assert flow.run().status is FlowStatus.COMPLETE
