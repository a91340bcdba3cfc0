"""The watch judges an SLA in seconds from the start of a flow's run, whatever the state of its executor."""

import pytest

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.facts.runs import RunName
from redrive.alerts.service import Alerts
from redrive.alerts.watch import Watch
from redrive.testing import FakeClock
from tests.support.run_history import DAY, HOUR, MINUTE, MONDAY, Books

BEGAN = MONDAY - HOUR


class Watched(Books):
    """A flow with `sla=3_600`, and a watch on a clock of the test's own."""

    def __init__(self, store):
        super().__init__(store)
        settings = AlertSettings()
        self.clock = FakeClock(BEGAN)
        self.desk = Alerts(store.database, settings, clock=self.clock)
        self.watch = Watch(store.database, self.desk, LevelCollector(store.database, settings), clock=self.clock)
        self.known("settlement", kind="flow", sla=None)

    def begin(self, status, began=BEGAN):
        """Put a run that nothing continues; one that is `running` has no executor, and is lost."""
        ended = None if status == "running" else began + MINUTE
        return self.flowed(began, ended, status=status, sla=began + HOUR, params=f'{{"day": "{began.date()}"}}')

    def at(self, moment):
        """Look then; return severity and condition of what is open about the SLA of the flow."""
        self.clock.advance((moment - self.clock.now()).total_seconds())
        assert self.watch.check()
        alerts = [one for one in self.desk.find(status="open") if one.key == "sla:flow/settlement"]
        return [(str(one.urgency), one.condition) for one in alerts]


@pytest.fixture
def watched(store):
    made = Watched(store)
    yield made
    made.watch.leave()
    made.desk.close()


class TestSlaInSeconds:
    @pytest.mark.parametrize("status", ["running", "held", "stopped", "failed"])
    def test_unfinished_run_is_at_risk_then_missed(self, watched, status):
        watched.begin(status)
        assert watched.at(MONDAY - 15 * MINUTE) == []
        assert watched.at(MONDAY - 5 * MINUTE) == [("P2", "sla_at_risk")]
        assert watched.at(MONDAY + MINUTE) == [("P1", "sla_missed")]
        assert watched.at(MONDAY + HOUR) == [("P1", "sla_missed")]

    def test_watch_keeps_the_alert_that_the_run_raised(self, watched):
        run_id = watched.begin("running")
        watched.clock.advance((MONDAY + MINUTE - BEGAN).total_seconds())
        (raised,) = watched.desk.judge(RunName("flow", run_id))
        assert raised.condition == "sla_missed"
        assert watched.at(MONDAY + 2 * MINUTE) == [("P1", "sla_missed")]

    def test_complete_run_resolves_the_alert(self, watched):
        watched.begin("failed")
        assert watched.at(MONDAY + MINUTE) == [("P1", "sla_missed")]
        watched.flowed(MONDAY + MINUTE, MONDAY + 2 * MINUTE, judged=False, sla=MONDAY + HOUR)
        assert watched.at(MONDAY + 3 * MINUTE) == []

    @pytest.mark.parametrize("status", ["complete", "abandoned"])
    def test_finished_run_misses_nothing(self, watched, status):
        watched.begin(status)
        assert watched.at(MONDAY + MINUTE) == []

    def test_older_run_is_not_hidden_by_one_with_time_left(self, watched):
        watched.begin("failed")
        watched.begin("failed", MONDAY - MINUTE)
        assert watched.at(MONDAY + MINUTE) == [("P1", "sla_missed")]

    def test_failed_run_is_not_waited_for_after_a_week(self, watched):
        watched.begin("failed")
        assert watched.at(MONDAY + 6 * DAY) == [("P1", "sla_missed")]
        assert watched.at(MONDAY + 8 * DAY) == []
