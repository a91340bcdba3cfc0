"""Rerunning tasks that succeeded, and cancelling single tasks, on both databases."""

import pytest

import redrive
from redrive.errors import FlowError
from redrive.model.tasks import FlowStatus
from redrive.tasks.operator.cancel import cancel_tasks
from redrive.tasks.operator.rerun import rerun
from redrive.testing import set_testing
from tests.support.flows import Beside, eventually, states, stopped
from tests.support.worker_pool import importable


@pytest.fixture(autouse=True)
def _quick():
    with set_testing():
        yield


@pytest.fixture
def calls():
    return []


@pytest.fixture
def flow(store, calls):
    """rows → fee for each → total → publish, with a cleanup."""
    flow = redrive.Flow("fees", store=store, workers=2)
    options = {"in_thread": True, "retry": None, "poison": 1}
    items = [1, 2, 3]

    def note(name, value=None):
        calls.append(name)
        return value

    flow.task(name="rows", **options)(lambda: note("rows", items[:]))
    flow.task(name="fee", each="rows", **options)(lambda row: note(f"fee {row}", row * (10 if len(calls) > 6 else 1)))
    flow.task(name="total", after="fee", **options)(lambda fee: note("total", sum(fee)))
    flow.task(name="publish", after="total", **options)(lambda total: note("publish", total))
    flow.task(name="cleanup", after="publish", run_when="all_done", **options)(lambda: note("cleanup"))
    flow.items = items
    return flow


class TestRerun:
    def test_task_and_its_followers_run_again(self, flow, calls):
        run = flow.run().run_id
        del calls[:]
        decided = flow.rerun("total", note="wrong rate")
        assert (decided.tasks, decided.freed) == (("total",), 2)
        report = flow.run()
        assert (report.run_id, report.status, report.resumed) == (run, FlowStatus.COMPLETE, True)
        assert calls == ["total", "publish", "cleanup"]

    def test_source_of_a_fan_out_changes_its_children(self, flow, calls):
        flow.run()
        assert flow.result("publish") == 6
        flow.items[:] = [1, 2, 3, 4]
        flow.rerun("rows")
        assert flow.run().status is FlowStatus.COMPLETE
        assert flow.result("publish") == 100
        assert flow.result("fee") == [10, 20, 30, 40]

    def test_single_child_and_its_followers_run_again(self, flow, calls):
        flow.run()
        flow.rerun("fee[1]")
        del calls[:5]
        flow.run()
        assert calls[-4:] == ["fee 2", "total", "publish", "cleanup"]
        assert flow.result("fee")[0] == 1

    def test_unsuccessful_task_must_be_retried_instead(self, flow, store):
        flow.items[:] = ["x", 1, 2]
        stopped(flow)
        with pytest.raises(FlowError, match=r"task 'total' of run \w+ is DEAD_LETTER: `redrive tasks retry total`"):
            flow.rerun("total")
        with pytest.raises(FlowError, match=r"is PENDING, and only what succeeded is run again"):
            flow.rerun("publish")
        with pytest.raises(FlowError, match="has no task 'totl'; did you mean 'total'"):
            flow.rerun("totl")

    def test_dry_run_changes_nothing(self, flow, store):
        flow.run()
        before = states(store, "fees")
        foreseen = rerun(store, "fees", ["rows"], dry_run=True)
        assert (foreseen.tasks, foreseen.freed) == (("rows",), 4)
        assert states(store, "fees") == before


class TestCancel:
    def test_waiting_task_fails_permanently_and_cleanup_runs(self, flow, store, calls):
        flow.items[:] = ["x", 1, 2]
        stopped(flow)  # total is a dead letter, publish waits for it
        del calls[:]
        cancelled = flow.cancel_tasks("publish", note="not today")
        assert (cancelled.tasks, cancelled.killed) == (("publish",), ())
        flow.accept("total", result=3, note="by hand")
        assert stopped(flow).report.status is FlowStatus.FAILED
        assert (calls, states(store, "fees")["publish"]) == (["cleanup"], "FAILED")
        assert stopped(flow).report.status is FlowStatus.FAILED  # the next start does not try it again
        flow.retry("publish")
        assert flow.run().status is FlowStatus.COMPLETE

    def test_stays_cancelled_when_an_upstream_decision_is_reopened(self, flow, store):
        flow.items[:] = ["x", 1, 2]
        stopped(flow)
        flow.cancel_tasks("publish", note="not today")
        flow.accept("total", result=3, note="by hand")
        flow.reopen("total")
        assert (states(store, "fees")["total"], states(store, "fees")["publish"]) == ("DEAD_LETTER", "FAILED")
        flow.accept("total", result=4, note="by hand")
        flow.retry("publish")
        assert flow.run().status is FlowStatus.COMPLETE
        assert flow.result("publish") == 4

    def test_finished_task_cannot_be_cancelled(self, flow):
        flow.run()
        with pytest.raises(FlowError, match=r"task 'total' of run \w+ is SUCCESS: there is nothing to cancel"):
            flow.cancel_tasks("total", note="x")
        with pytest.raises(FlowError, match="needs a note with the reason"):
            flow.cancel_tasks("total", note=" ")


class TestUnexpandedFanOut:
    """Decisions about a fan-out that was cancelled while it waited: it has no children yet."""

    @pytest.fixture
    def flow(self, store, calls):
        """items, gate → pay for each item → fee for each payment → total, with a cleanup; the gate is a dead letter."""
        flow = redrive.Flow("fan", store=store, workers=2)
        options = {"in_thread": True, "retry": None, "poison": 1}
        flow.is_open = False

        def gate():
            if not flow.is_open:
                raise redrive.Permanent("not yet")

        def note(name, value):
            calls.append(f"{name} {value}")
            return value

        flow.task(name="items", **options)(lambda: [1, 2])
        flow.task(name="gate", **options)(gate)
        flow.task(name="pay", each="items", after="gate", **options)(lambda item: note("pay", item))
        flow.task(name="fee", each="pay", **options)(lambda paid: note("fee", paid))
        flow.task(name="total", after="fee", **options)(lambda fee: note("total", sum(fee)))
        flow.task(name="cleanup", after="total", run_when="all_done", **options)(lambda: note("cleanup", ""))
        stopped(flow)
        del calls[:]
        return flow

    def open_gate(self, flow):
        flow.is_open = True
        flow.retry("gate")

    @pytest.mark.parametrize("gate_first", [True, False])
    @pytest.mark.parametrize("task", ["pay", "fee", "total"])
    def test_retry_expands_the_fan_out(self, flow, store, calls, task, gate_first):
        flow.cancel_tasks(task, note="wait")
        if gate_first:
            self.open_gate(flow)
            assert stopped(flow).report.status is FlowStatus.FAILED
            del calls[:-1]
            flow.retry(task)
        else:
            flow.retry(task)
            assert stopped(flow).report.status is FlowStatus.HELD
            assert states(store, "fan")[task] == "PENDING"
            self.open_gate(flow)
        assert flow.run().status is FlowStatus.COMPLETE
        assert (flow.result("pay"), flow.result("fee"), flow.result("total")) == ([1, 2], [1, 2], 3)
        assert calls[-2:] == ["total 3", "cleanup "]

    def test_retry_below_a_failed_task_does_not_run(self, flow, store, calls):
        flow.cancel_tasks("pay", note="wait")
        flow.fail("gate", note="closed")
        flow.retry("pay")
        assert stopped(flow).report.status is FlowStatus.FAILED
        assert (states(store, "fan")["pay"], calls) == ("UPSTREAM_FAILED", ["cleanup "])

    def test_accepted_list_is_passed_to_the_next_tasks(self, flow, calls):
        flow.cancel_tasks("pay", note="by hand")
        with pytest.raises(FlowError, match="'pay' runs for each item of a list, and its result is a list"):
            flow.accept("pay", note="paid")
        with pytest.raises(FlowError, match="'pay' is not a child of a fan-out"):
            flow.skip("pay", note="paid")
        flow.accept("pay", result=[7, 8], note="paid")
        assert stopped(flow).report.status is FlowStatus.HELD
        assert (flow.result("pay"), flow.result("total")) == ([7, 8], 15)
        flow.rerun("pay")  # waits for the gate again
        self.open_gate(flow)
        assert flow.run().status is FlowStatus.COMPLETE
        assert (flow.result("pay"), flow.result("total")) == ([1, 2], 3)

    def test_reopened_and_retried_acceptance_expands_fan_out(self, flow, store, calls):
        flow.cancel_tasks("pay", note="wait")
        flow.accept("pay", result=[7], note="paid")
        flow.reopen("pay", note="not paid")
        assert states(store, "fan")["pay"] == "DEAD_LETTER"
        flow.retry("pay")
        self.open_gate(flow)
        assert flow.run().status is FlowStatus.COMPLETE
        assert (flow.result("pay"), flow.result("total")) == ([1, 2], 3)


def test_running_task_is_killed_and_followers_use_their_rule(store, tmp_path):
    """In worker processes, while other tasks continue."""
    source = """
    @flow.task(grace=0)
    def hangs():
        Path(__file__).with_name("began").touch()
        time.sleep(600)

    @flow.task
    def other():
        return 1

    @flow.task(after=hangs)
    def below():
        return 2

    @flow.task(after=[below, other], run_when="all_done")
    def cleanup(other):
        return other
    """
    flow = importable(tmp_path, source, workers=2).flow
    beside = Beside(flow.run, store=store)
    eventually(lambda: list(tmp_path.rglob("began")))
    run = store.tasks.runs(flow=flow.name)[0].run_id
    assert cancel_tasks(store, run, ["hangs"], note="stuck").killed == ("hangs",)
    assert beside.join().error.report.status is FlowStatus.FAILED
    found = states(store, flow.name)
    assert found == {"hangs": "FAILED", "other": "SUCCESS", "below": "UPSTREAM_FAILED", "cleanup": "SUCCESS"}
    (cause,) = store.tasks.causes(run)
    assert cause.error.startswith("cancelled: stuck (")
