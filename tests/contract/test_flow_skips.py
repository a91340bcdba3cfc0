"""Skipping children of a fan-out, and reopening decisions, on both databases."""

import pytest

import redrive
from redrive.errors import FlowError
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, State
from redrive.testing import set_testing
from tests.support.flows import states, stopped


@pytest.fixture(autouse=True)
def _quick():
    with set_testing():
        yield


@pytest.fixture
def flow(store):
    """A sum over items, of which the second fails."""
    flow = redrive.Flow("fees", store=store, workers=2)
    flow.task(lambda: ["4.90", "N/A", "7.10"], name="rows", in_thread=True)
    flow.task(lambda row: float(row), name="fee", each="rows", in_thread=True)
    flow.task(lambda fee: [round(one * 2) for one in fee], name="double", after="fee", in_thread=True)
    stopped(flow)
    return flow


class TestSkip:
    def test_skipped_child_is_left_out_of_the_list(self, flow, store):
        assert flow.skip("fee[1]", note="no fee").tasks == ("fee[1]",)
        report = flow.run()
        assert (report.status, report.resumed) == (FlowStatus.COMPLETE, True)
        assert flow.result("double") == [10, 14]
        assert flow.result("fee") == [4.9, 7.1]
        assert store.dlq.count(status=Status.DISCARDED) == 1

    def test_skipped_child_has_no_child_in_a_second_fan_out(self, store):
        flow = redrive.Flow("fees", store=store, workers=2)
        flow.task(lambda: ["4.90", "N/A", "7.10"], name="rows", in_thread=True)
        flow.task(lambda row: float(row), name="fee", each="rows", in_thread=True)
        flow.task(lambda item: item * 2, name="double", each="fee", in_thread=True)
        stopped(flow)
        flow.skip("fee[1]", note="no fee")
        flow.run()
        assert flow.result("double") == [9.8, 14.2]

    def test_task_outside_a_fan_out_is_not_skipped(self, flow):
        flow.accept("fee[1]", note="known")  # null
        stopped(flow)
        with pytest.raises(FlowError, match="'double' is not a child of a fan-out"):
            flow.skip("double", note="x")


class TestReopen:
    def test_wrong_decision_is_reopened(self, flow, store):
        """A child accepted without a result makes its follower a dead letter, too."""
        flow.accept("fee[1]", note="known")
        assert stopped(flow).report.counts == {State.SUCCESS: 4, State.DEAD_LETTER: 1}
        assert flow.reopen("fee[1]").tasks == ("fee[1]",)
        found = states(store, "fees")
        assert (found["fee"], found["fee[1]"], found["double"]) == ("DEAD_LETTER", "DEAD_LETTER", "PENDING")
        assert [letter.key for letter in store.dlq.each(status=Status.PENDING)] == ["fee[1]"]
        flow.skip("fee[1]", note="no fee")
        assert flow.run().status is FlowStatus.COMPLETE
        assert flow.result("double") == [10, 14]

    def test_operator_failure_is_reopened(self, flow, store):
        flow.fail("fee[1]", note="never")
        assert states(store, "fees")["double"] == "UPSTREAM_FAILED"
        flow.reopen("fee[1]")
        assert states(store, "fees")["double"] == "PENDING"
        flow.accept("fee[1]", result=1.0, note="a euro")
        assert flow.run().status is FlowStatus.COMPLETE
        assert flow.result("double") == [10, 2, 14]

    def test_blocked_run_stays_blocked_after_reopen(self, flow):
        flow.skip("fee[1]", note="no fee")
        flow.reopen("fee[1]", note="there is one")
        assert stopped(flow).report.status is FlowStatus.HELD

    def test_fails_when_followers_are_done(self, flow):
        flow.skip("fee[1]", note="no fee")
        flow.run()
        with pytest.raises(FlowError, match="'double', which comes after it, is SUCCESS: it is too late"):
            flow.reopen("fee[1]")

    def test_task_blocked_by_another_failure_stays_blocked(self, store):
        flow = redrive.Flow("settlement", store=store)
        for name in ("fees", "rates"):
            flow.task(self.dies, name=name, in_thread=True)
        flow.task(lambda fees, rates: None, name="total", after=["fees", "rates"], in_thread=True)
        flow.task(lambda total: None, name="report", after=["total"], in_thread=True)
        stopped(flow)
        flow.fail("rates", note="no rates")
        flow.fail("fees", note="no fees")
        flow.reopen("fees")
        found = states(store, "settlement")
        assert (found["fees"], found["total"], found["report"]) == ("DEAD_LETTER", *["UPSTREAM_FAILED"] * 2)
        flow.accept("fees", result=1, note="by hand")
        assert stopped(flow).report.status is FlowStatus.FAILED

    @staticmethod
    def dies():
        raise redrive.Permanent("no such table")

    def test_undecided_task_is_not_reopened(self, flow):
        with pytest.raises(FlowError, match="no operator has decided about task 'rows'"):
            flow.reopen("rows")
        with pytest.raises(FlowError, match="no operator has decided about task 'fee"):
            flow.reopen("fee[1]")
