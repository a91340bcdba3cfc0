"""Failures in flows, on both databases: the states of failed tasks and of their followers."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

import redrive
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, GroupHeld, State, TaskFailed, TasksDead
from redrive.policy.breaker import Breaker
from redrive.tasks.state.run_handle import TRANSITIONS
from redrive.testing import set_testing
from tests.support.flows import states, stopped


@pytest.fixture
def events():
    return []


@pytest.fixture
def flow(store, tmp_path, events):
    return redrive.Flow("settlement", store=store, workers=4, files=tmp_path / "results", on_event=events.append)


@pytest.fixture(autouse=True)
def _no_waits():
    with set_testing():
        yield


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def boom(number):
    if number % 2:
        raise ValueError(f"odd: {number}")
    raise ValueError(f"even: {number}")


def test_second_failure_at_one_line_poisons_and_blocks(flow, task, store, events):
    calls = []

    @task(retry=redrive.Retry(attempts=9))
    def parse():
        calls.append(1)
        raise ValueError(f"row {len(calls)} is bad")

    task(name="load", after=parse)(lambda: None)
    task(name="beside")(lambda: 1)
    error = stopped(flow)
    assert "flow 'settlement' has 1 dead letter, and downstream tasks are blocked; see `redrive tasks ls" in str(error)
    assert (error.report.status, len(calls)) == (FlowStatus.HELD, 2)
    assert states(store) == {"parse": "DEAD_LETTER", "load": "PENDING", "beside": "SUCCESS"}
    (dead,) = [event for event in events if isinstance(event, TasksDead)]
    assert (dead.task, dead.count, dead.untried) == ("parse", 1, 0)
    letter = next(store.dlq.each())
    assert (letter.key, letter.pipeline, letter.attempts, letter.status) == ("parse", "settlement", 2, Status.PENDING)
    assert letter.run_id == error.report.run_id


def test_alternating_causes_keep_their_retries(flow, task, store):
    calls = []

    @task(retry=redrive.Retry(attempts=4))
    def parse():
        calls.append(1)
        if len(calls) < 4:
            boom(len(calls))

    assert flow.run().status is FlowStatus.COMPLETE
    assert len(calls) == 4
    attempts = store.tasks.get("settlement", "parse").attempts
    assert [one.ended for one in attempts] == ["raised"] * 3 + ["returned"]
    assert attempts[0].cause == attempts[2].cause != attempts[1].cause
    assert "ValueError: odd: 1" in attempts[0].trace


def test_exhausted_transient_retries_fail_and_block_followers(flow, task, store, events):
    @task(name="fetch")
    def fetch():
        raise redrive.Transient("bank is away")

    task(name="load", after="fetch")(lambda: None)
    task(name="tell", after="load")(lambda: None)
    error = stopped(flow)
    assert (error.report.status, error.report.attempts) == (FlowStatus.FAILED, 3)
    assert states(store) == {"fetch": "FAILED", "load": "UPSTREAM_FAILED", "tell": "UPSTREAM_FAILED"}
    (failed,) = [event for event in events if isinstance(event, TaskFailed)]
    assert (failed.task, failed.upstream_failed) == ("fetch", 2)
    assert list(store.dlq.each()) == []


def test_bug_and_permanent_error_are_dead_letters_at_once(flow, task, store):
    @task()
    def bug():
        return None.upper()

    @task()
    def refused():
        raise redrive.Permanent("the schema has changed")

    assert stopped(flow).report.attempts == 2
    assert states(store) == {"bug": "DEAD_LETTER", "refused": "DEAD_LETTER"}
    assert {letter.key for letter in store.dlq.each()} == {"bug", "refused"}


def test_discarded_task_succeeds_and_its_fan_out_is_empty(flow, task, store):
    @task()
    def fetch():
        raise redrive.Discard("a holiday")

    task(name="each", each=fetch)(lambda item: item)
    task(name="end", after=["each", "fetch"])(lambda each, fetch: [each, fetch])
    flow.run()
    assert flow.result("end") == [[], None]
    assert store.tasks.get("settlement", "fetch").changes[-1].cause.startswith("discarded on purpose")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: {1, 2}, None),
        (lambda: {"a": 1}, "task 'source' returned a dict, and other tasks run for each item of its result"),
        (lambda: [object()], "which JSON cannot hold: return plain data, or write it to a file and return its path"),
    ],
)
def test_fan_out_needs_a_storable_list(flow, task, store, function, said):
    task(name="source")(function)
    task(name="each", each="source")(lambda item: item)
    if said is None:
        assert flow.run().status is FlowStatus.COMPLETE
    else:
        assert stopped(flow).report.status is FlowStatus.HELD
        assert said in store.tasks.get("settlement", "source").task.error


def test_own_task_timeout_in_a_thread_is_a_failure(flow, task, store):
    @task(retry=None)
    def odd():
        raise redrive.TaskTimeout

    assert stopped(flow).report.status is FlowStatus.FAILED
    assert store.tasks.get("settlement", "odd").task.error == "the task itself raised TaskTimeout"


def test_every_state_change_has_its_time_and_cause(flow, task, store):
    calls = []

    @task()
    def flaky():
        calls.append(1)
        if len(calls) == 1:
            raise redrive.Transient("away")

    began = datetime.now(UTC) - timedelta(seconds=5)
    flow.run()
    changes = store.tasks.get("settlement", "flaky").changes
    assert [(str(one.before), str(one.after), one.cause) for one in changes] == [
        ("PENDING", "READY", None),
        ("READY", "RUNNING", "attempt 1"),
        ("RUNNING", "RETRYING", "transient: Transient: away"),
        ("RETRYING", "RUNNING", "attempt 2"),
        ("RUNNING", "SUCCESS", None),
    ]
    assert all(one.after in TRANSITIONS[one.before] for one in changes)
    assert began < changes[0].at <= changes[-1].at < datetime.now(UTC) + timedelta(seconds=5)


# ── storms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_storm_of_1247_siblings_is_ten_runs_and_one_event(flow, task, store, events):
    ran, fixed = [], []

    @task()
    def split():
        return list(range(1_247))

    @task(each=split)
    def settle(number):
        ran.append(number)
        if not fixed:
            raise ValueError(f"{number} is corrupt")
        return number

    task(name="end", after=settle)(lambda settle: len(settle))
    error = stopped(flow)
    assert (error.report.status, error.report.counts[State.DEAD_LETTER]) == (FlowStatus.HELD, 1_247)
    assert len(ran) <= 10
    (dead,) = [event for event in events if isinstance(event, TasksDead)]
    assert (dead.task, dead.count, dead.untried) == ("settle", 1_247, 1_242)
    (cause,) = store.tasks.causes("settlement")
    assert (cause.count, cause.untried) == (1_247, 1_242)
    assert len(list(store.dlq.each(status=Status.PENDING))) == 6  # one for each that was tried, one for the rest

    fixed.append(True)
    assert len(flow.retry(cause=dead.cause).tasks) == 1_247
    assert flow.run().status is FlowStatus.COMPLETE
    assert flow.result("end") == 1_247
    assert list(store.dlq.each(status=Status.PENDING)) == []


def test_several_transient_errors_do_not_poison_a_group(flow, task, store):
    calls = []

    @task(retry=redrive.Retry(attempts=4, base=0.0))
    def fetch():
        calls.append(1)
        raise ExceptionGroup("five requests", [ConnectionRefusedError(n) for n in range(5)])

    assert stopped(flow).report.counts == {State.FAILED: 1}
    assert len(calls) == 4


def test_failing_items_first_do_not_stop_the_good_ones(flow, task, store):
    @task()
    def items():
        return list(range(60))

    @task(each=items)
    def settle(item):
        if item < 10:
            raise redrive.Reject(f"item {item} is bad")
        return item

    assert stopped(flow).report.counts == {State.SUCCESS: 51, State.DEAD_LETTER: 10}


def test_fan_out_with_ten_percent_failures_completes(flow, task, store, events):
    task(name="split")(lambda: list(range(200)))

    @task(each="split")
    def settle(number):
        if number % 10 == 9:
            raise ValueError(f"{number} is corrupt")

    assert stopped(flow).report.counts == {State.SUCCESS: 181, State.DEAD_LETTER: 20}
    (dead,) = [event for event in events if isinstance(event, TasksDead)]
    assert dead.untried == 0


# ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_of_a_down_service_fail_untried_if_configured(store):
    bank = redrive.Service("bank", breaker=Breaker(failures=2, cooldown=3_600))
    flow = redrive.Flow("settlement", store=store, workers=1)
    flow.group(bank, when_open="fail")
    ran = []

    @flow.task(in_thread=True)
    def split():
        return list(range(30))

    @flow.task(each=split, service=bank, retry=None, in_thread=True)
    def pay(number):
        ran.append(number)
        raise redrive.Transient("away")

    report = stopped(flow).report
    assert (report.status, report.counts[State.FAILED]) == (FlowStatus.FAILED, 30)
    assert len(ran) < 30
    assert {cause.cause for cause in store.tasks.causes("settlement")} > {"circuit"}


def test_tasks_of_a_down_service_wait_until_a_probe_succeeds(store):
    told = []
    bank = redrive.Service("bank", breaker=Breaker(failures=2, cooldown=0.3, probes=1, jitter=0))
    flow = redrive.Flow("settlement", store=store, workers=2, on_event=told.append)
    calls = []
    flow.task(name="split", in_thread=True)(lambda: list(range(6)))
    for name in ("pay", "tell"):

        @flow.task(name=name, each="split", service=bank, in_thread=True, retry=redrive.Retry(attempts=9))
        def ask(number):
            calls.append(number)
            if len(calls) < 8:
                raise redrive.Transient("away")

    assert flow.run().counts == {State.SUCCESS: 13}
    held = [event.held for event in told if isinstance(event, GroupHeld)]
    assert held[:1] == [True]
    assert held[-1] is False
    assert len(calls) == 7 + 12


def test_tasks_of_a_service_run_within_its_limit(store):
    flow = redrive.Flow("settlement", store=store, workers=6)
    flow.group("bank", concurrency=2)
    running, most, lock = [0], [0], threading.Lock()

    def pay(number=0):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    flow.task(name="split", in_thread=True)(lambda: list(range(12)))
    flow.task(name="first", each="split", service="bank", in_thread=True)(lambda item: pay())
    flow.task(name="second", each="split", service="bank", in_thread=True)(lambda item: pay())
    flow.task(name="alone", after="split", service="bank", in_thread=True)(lambda: pay())
    assert flow.run().counts == {State.SUCCESS: 26}
    assert most[0] <= 2


def test_tasks_of_a_service_start_at_its_rate(store):
    flow = redrive.Flow("settlement", store=store, workers=6)
    flow.group("bank", rate=50)
    began = []
    flow.task(name="split", in_thread=True)(lambda: list(range(4)))
    for name in ("first", "second", "third"):
        flow.task(name=name, each="split", service="bank", in_thread=True)(lambda item: began.append(time.monotonic()))
    flow.run()
    assert max(began) - min(began) >= 11 / 50 * 0.9
