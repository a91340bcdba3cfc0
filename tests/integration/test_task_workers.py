"""Tasks in real worker processes: how long they may take, what they write, what their module has started."""

import pytest

import redrive
from redrive.flows import FlowStatus, State
from tests.support.worker_pool import importable


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "redrive.db") as opened:
        yield opened


class TestSensor:
    def test_question_that_hangs_ends_with_the_sensor(self, store, tmp_path):
        source = "@flow.sensor(every=0.2, timeout=1)\ndef arrived():\n    time.sleep(600)\n"
        flow = importable(tmp_path, source, workers=1).flow
        with pytest.raises(redrive.FlowStopped) as stopped:
            flow.run(store=store)
        assert stopped.value.report.status is FlowStatus.FAILED
        found = store.tasks.get(flow.name, "arrived")
        assert (found.task.state, [one.ended for one in found.attempts]) == (State.FAILED, ["timed_out"])

    def test_last_question_is_asked_when_the_time_is_over(self, store, tmp_path):
        source = """
        @flow.sensor(every=30, timeout=2)
        def arrived():
            asked = Path(__file__).with_name("asked")
            return asked.exists() or asked.touch()
        """
        flow = importable(tmp_path, source, workers=1).flow
        assert flow.run(store=store).status is FlowStatus.COMPLETE
