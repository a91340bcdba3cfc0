"""SLAs in seconds from the start of a run: what is told, and when."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

import redrive
from redrive.flows import SlaAtRisk
from redrive.tasks.slas import WHOLE_RUN, Slas
from tests.support.flows import PATIENCE, eventually

START = datetime(2026, 11, 16, tzinfo=UTC)


def after(seconds):
    return START + timedelta(seconds=seconds)


class TestSlas:
    def test_risk_and_miss_are_told_once_each(self):
        slas = Slas(START, {"load": after(100), WHOLE_RUN: after(1_000)})
        assert slas.late(after(79), set()) == []
        assert slas.late(after(80), set()) == [("load", False)]
        assert slas.late(after(99), set()) == []
        assert slas.late(after(100), set()) == [("load", True)]
        assert slas.late(after(900), set()) == [(WHOLE_RUN, False)]

    def test_nothing_is_told_of_what_is_done(self):
        assert Slas(START, {"load": after(100)}).late(after(500), {"load"}) == []


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

    def test_missed_sla_of_a_run_is_an_alert_while_it_runs(self, tmp_path):
        with redrive.connect(tmp_path / "redrive.db") as store:
            flow = redrive.Flow("late", store=store, workers=2, sla=0.001)
            flow.task(name="slow", in_thread=True, retry=None)(
                lambda: eventually(lambda: [alert.title for alert in store.alerts.find()])
            )
            flow.run()
            assert flow.result("slow")[0].startswith("late still runs, and was due at ")

    @pytest.mark.parametrize("sla", ["tomorrow", 0, -1, float("nan"), True])
    def test_sla_that_is_none_is_refused(self, sla):
        with pytest.raises((ValueError, TypeError), match="sla must be"):
            redrive.Flow("wrong", sla=sla)
