"""Results and decisions of a flow from its program; waits of tasks, in real time and in tests."""

from datetime import timedelta
from uuid import uuid4

import pytest

import redrive
from redrive.model.tasks import FlowStatus, State
from redrive.testing import set_testing
from tests.support.worker_pool import importable

LARGE = "x" * 100_000


@pytest.fixture
def make(tmp_path):
    """Makes flows that keep their state in a file of the test's own."""

    def make(name, **options):
        return redrive.Flow(name, store=tmp_path / "redrive.db", workers=2, **options)

    return make


def sizes(flow, size=3):
    @flow.task(in_thread=True)
    def items():
        return list(range(size))

    @flow.task(each=items, in_thread=True, poison=1)
    def work(item):
        if item == 1:
            raise ValueError("one is bad")
        return LARGE if item == 2 else item

    @flow.task(after=work, in_thread=True)
    def total(work):
        return [LARGE, *work]

    return items, work, total


def stopped(flow, **options):
    with pytest.raises(redrive.FlowStopped) as caught:
        flow.run(**options)
    return caught.value.report


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_are_found_by_task_name_and_child(make, tmp_path):
    flow = make("sizes", files=tmp_path / "elsewhere")
    items, work, _ = sizes(flow)
    stopped(flow)
    flow.accept("work[1]", result={"one": 1}, note="good enough")
    flow.run()
    assert flow.result(items) == [0, 1, 2]
    assert flow.result("work[2]") == LARGE
    assert flow.result(work) == [0, {"one": 1}, LARGE]
    assert flow.result("total") == [LARGE, 0, {"one": 1}, LARGE]


def test_newest_run_is_the_default(make):
    flow = make("days", params=["day"])

    @flow.task(in_thread=True)
    def day_of(day):
        return day

    first = flow.run(params={"day": "monday"})
    flow.run(params={"day": "tuesday"})
    assert flow.result(day_of) == "tuesday"
    assert flow.result(day_of, run=first.run_id) == "monday"
    assert flow.result(day_of, run=str(first.run_id)[:8]) == "monday"


def test_missing_result_is_reported(make):
    flow = make("sizes")
    _, work, total = sizes(flow)
    with pytest.raises(redrive.FlowError, match="flow 'sizes' has not run yet"):
        flow.result(total)
    stopped(flow)
    with pytest.raises(redrive.FlowError, match=r"task 'total' of run .* is PENDING: it has no result"):
        flow.result(total)
    with pytest.raises(redrive.FlowError, match="has no task 'nothing'"):
        flow.result("nothing")
    with pytest.raises(redrive.FlowError, match="no run of a flow"):
        flow.result(work, run=uuid4())


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_retried_task_runs_and_the_graph_continues(make, tmp_path):
    flow = make("mended")
    mended = tmp_path / "mended"

    @flow.task(in_thread=True, poison=1)
    def broken():
        if not mended.exists():
            raise ValueError("still broken")
        return "done"

    @flow.task(after=broken, in_thread=True)
    def after(broken):
        return broken

    assert stopped(flow).status is FlowStatus.HELD
    mended.touch()
    assert flow.retry(broken, note="mended").tasks == ("broken",)
    assert flow.run().resumed
    assert flow.result(after) == "done"


def test_successor_of_an_accepted_task_may_read_a_result_file(make, tmp_path):
    flow = make("files", files=tmp_path / "elsewhere")

    @flow.task(in_thread=True)
    def items():
        return [LARGE, LARGE]

    @flow.task(in_thread=True, poison=1)
    def broken():
        raise ValueError("broken for good")

    @flow.task(each=items, after=broken, in_thread=True)
    def length(item):
        return len(item)

    stopped(flow)
    flow.accept(broken, note="it does not matter")
    flow.run()
    assert flow.result(length) == [100_000, 100_000]


def test_whole_cause_is_decided_at_once(make):
    flow = make("sizes")
    sizes(flow)
    report = stopped(flow)
    (cause,) = flow.store.tasks.causes(report.run_id)
    decided = flow.fail(cause=cause.cause, note="not worth it", run=report.run_id)
    assert (decided.tasks, decided.upstream_failed) == (("work[1]",), 1)
    assert stopped(flow).counts == {State.SUCCESS: 3, State.FAILED: 1, State.UPSTREAM_FAILED: 1}


# ── waits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def busy(flow, retry):
    @flow.task(in_thread=True, retry=retry)
    def ask():
        raise redrive.RateLimited("come back later", retry_after=600)

    return ask


def test_task_waits_as_long_as_a_service_asks(make):
    flow = make("patient")
    busy(flow, redrive.Retry(attempts=2))
    for deadline in (1, 5, 30):  # a busy machine may not begin it within the first
        assert stopped(flow, deadline=deadline).status is FlowStatus.STOPPED
        task = flow.store.tasks.get("patient", "ask").task
        if task.state is State.RETRYING:
            break
    assert task.state is State.RETRYING
    assert task.due_at - task.started_at >= timedelta(seconds=600)


def test_time_limit_is_respected(make):
    flow = make("impatient")
    busy(flow, redrive.Retry(attempts=2, within=300))
    assert stopped(flow).counts == {State.FAILED: 1}


def test_test_mode_caps_the_waits_and_attempts_of_tasks(make):
    flow = make("quick")
    busy(flow, redrive.Retry(attempts=3))
    with set_testing():
        assert stopped(flow).attempts == 3
    fewer = make("quicker")
    busy(fewer, redrive.Retry(attempts=3))
    with set_testing(attempts=2):
        assert stopped(fewer).attempts == 2


def test_test_mode_caps_the_waits_of_sensors(make, tmp_path):
    flow = make("sensing")

    @flow.sensor(every=3_600, timeout=86_400, in_thread=True)
    def asked_thrice():
        with (tmp_path / "asked").open("a") as file:
            file.write("?")
        return (tmp_path / "asked").read_text() == "???"

    with set_testing():
        assert flow.run().attempts == 3


@pytest.mark.process
def test_test_mode_applies_to_services_in_workers(tmp_path):
    source = """
        import redrive

        service = redrive.Service("down", retry=redrive.Retry(attempts=3, base=99, cap=99, jitter="none", within=999))

        def refuse():
            print("asked")
            raise ConnectionRefusedError

        @flow.task(retry=None, timeout=60)
        def call():
            service.call(refuse)
    """
    flow = importable(tmp_path, source, store=str(tmp_path / "redrive.db")).flow
    with set_testing():
        stopped(flow)
    (attempt,) = flow.store.tasks.get(flow.name, "call").attempts
    assert attempt.output.count("asked") == 3
