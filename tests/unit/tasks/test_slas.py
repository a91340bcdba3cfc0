"""SLAs in seconds from the start of a run: what is reported, and when."""

import threading
import warnings
from datetime import UTC, datetime, timedelta

import pytest

import redrive
from redrive.model.tasks import SlaAtRisk
from redrive.tasks.executor.slas import WHOLE_RUN, SlaTracker
from tests.support.flows import PATIENCE, eventually
from tests.support.worker_pool import importable

START = datetime(2026, 11, 16, tzinfo=UTC)


def after(seconds):
    return START + timedelta(seconds=seconds)


class TestSlas:
    def test_risk_and_miss_are_reported_once_each(self):
        slas = SlaTracker(START, {"load": after(100), WHOLE_RUN: after(1_000)})
        assert slas.check(after(79), {}) == []
        assert slas.check(after(80), {}) == [("load", False)]
        assert slas.check(after(99), {}) == []
        assert slas.check(after(100), {}) == [("load", True)]
        assert slas.check(after(900), {}) == [(WHOLE_RUN, False)]

    def test_finished_task_is_not_reported(self):
        assert SlaTracker(START, {"load": after(100)}, START).check(after(500), {"load": after(99)}) == []

    def test_late_finish_is_reported_once(self):
        slas = SlaTracker(START, {"load": after(100)}, START)
        assert [slas.check(after(500), {"load": after(101)}) for _ in range(2)] == [[("load", True)], []]

    def test_late_finish_before_a_resume_is_not_reported(self):
        assert SlaTracker(START, {"load": after(100)}).check(after(500), {"load": after(101)}) == []


class TestFlow:
    def test_late_task_and_late_run_are_announced_while_it_runs(self, tmp_path):
        missed = {"slow": threading.Event(), None: threading.Event()}

        def hear(event):
            if isinstance(event, SlaAtRisk) and event.missed:
                missed[event.task].set()

        with redrive.connect(tmp_path / "redrive.db") as store:
            flow = redrive.Flow("late", store=store, workers=2, sla=0.001, on_event=hear)
            flow.task(name="quick", in_thread=True, sla=3_600)(lambda: None)
            flow.task(name="slow", in_thread=True, sla=0.001)(
                lambda: all(one.wait(PATIENCE) for one in missed.values())
            )
            with pytest.warns(redrive.PolicyWarning, match="to be done in"):
                report = flow.run()
            assert flow.result("slow") is True
            assert report.late
            assert report.sla - report.started_at == timedelta(milliseconds=1)

    @pytest.mark.process
    def test_miss_between_two_looks_is_announced_at_the_end(self, tmp_path):
        """The only worker is busy, and a task waits for it: the store is looked at when both are done."""
        announced = []
        source = """
        @flow.task(sla=0.2)
        def slow():
            time.sleep(0.3)

        @flow.task
        def waits():
            pass
        """
        module = importable(tmp_path, source, workers=1, sla=0.2)
        with redrive.connect(tmp_path / "redrive.db") as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forget = redrive.on_event(announced.append)
            assert module.flow.run(store=store).late
            forget()
        missed = [event.task for event in announced if isinstance(event, SlaAtRisk) and event.missed]
        assert sorted(missed, key=str) == [None, "slow"]

    def test_missed_sla_of_a_run_is_an_alert_while_it_runs(self, tmp_path):
        with redrive.connect(tmp_path / "redrive.db") as store:
            flow = redrive.Flow("late", store=store, workers=2, sla=0.001)
            flow.task(name="slow", in_thread=True, retry=None)(
                lambda: eventually(lambda: [alert.title for alert in store.alerts.find()])
            )
            flow.run()
            assert flow.result("slow")[0].startswith("late still runs, and was due at ")

    @pytest.mark.parametrize("sla", ["tomorrow", 0, -1, float("nan"), True])
    def test_invalid_sla_is_rejected(self, sla):
        with pytest.raises((ValueError, TypeError), match="sla must be"):
            redrive.Flow("wrong", sla=sla)
