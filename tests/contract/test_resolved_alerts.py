"""An alert is resolved when its own condition is over, after any sequence of events, and an incident is one alert.

The alerts are compared with a plain model of the conditions.
"""

from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

import redrive
from redrive.alerts.config.settings import AlertSettings, PipelineSettings, Thresholds
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.service import Alerts
from redrive.alerts.watch import Watch
from redrive.model.alerts import AlertStatus
from redrive.model.runs import RunEnded
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.schema import alert_sends, runs
from redrive.testing import FakeClock
from tests.oracles.incidents import CONDITIONS, DAY, Incidents
from tests.support.examples import examples
from tests.support.run_history import HOUR, MINUTE, MONDAY, Books

SLA = TimeOfDay(6, 30, ZoneInfo("UTC"))
READ = 200
LOOK = timedelta(seconds=50)


class Pipeline(Books):
    """One pipeline of a store: what its runs, its operator and the watch do, and the incidents that come of it."""

    def __init__(self, store):
        super().__init__(store)
        chosen = AlertSettings(
            pipelines={"vendor": PipelineSettings(sla=SLA, days=frozenset(range(7)))},
            thresholds=Thresholds(growing_least=1_000, sla_grace=300.0, flap_seconds=600.0),
            persist=60.0,
            recovery=100.0,
        )
        self.clock = FakeClock(MONDAY - 3 * DAY - HOUR)
        self.desk = Alerts(store.database, chosen, clock=self.clock)
        self.watch = Watch(store.database, self.desk, LevelCollector(store.database, chosen), clock=self.clock)
        self.model = Incidents()
        self.last = None
        self.resolved, self.sent, self.pages = set(), 0, Counter()
        self.known(last=self.clock.now() - DAY)
        self.watch.check()

    def close(self):
        self.watch.leave()
        self.desk.close()

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, outcome, *, judged=True):
        """A scheduler starts it: it resumes a run that is not finished, and does nothing with one that was aborted."""
        if self.last is not None and self.model.runs[self.last].status == "aborted":
            return
        is_new = self.last is None or self.model.runs[self.last].status in ("complete", "abandoned")
        self._run(outcome, uuid4() if is_new else self.last, is_new=is_new, judged=judged)

    def restart(self, outcome, *, judged=True):
        self.abandon()
        self._run(outcome, uuid4(), is_new=True, judged=judged)

    def override(self, *, judged=True):
        if self.last is not None and self.model.runs[self.last].status == "aborted":
            self._run("few", self.last, is_new=False, judged=judged)

    def abandon(self):
        if self.last is None or self.model.runs[self.last].status == "complete":
            return
        values = {"status": "abandoned", "ended_at": self.clock.now(), "judged_at": self.clock.now()}
        self._change(self.last, values)
        self.model.abandoned(self.last)

    def settle(self, newest):
        told_of = [run_id for run_id, one in self.model.runs.items() if one.letters]
        if told_of:
            run_id = told_of[-1 if newest else 0]
            self.store.dlq.discard(run_id=run_id, note="known")
            self.model.settled(run_id)
            self.desk.resolve_handled_letters()

    def acknowledge(self):
        for alert in self.desk.find(status=AlertStatus.OPEN):
            self.desk.acknowledge(alert.id, by="ops")

    def look(self, times=1):
        for _ in range(times):
            self.clock.advance(LOOK.total_seconds())
            self.watch.check()

    def wait(self, span):
        """Advance the clock without a check, until the watch no longer counts."""
        self.clock.advance(span.total_seconds())

    def _run(self, outcome, run_id, *, is_new, judged):
        began = self.clock.now()
        self.clock.advance(300)
        ended = self.clock.now()
        status = {"few": "complete", "many": "complete", "transient": "failed", "permanent": "failed"}
        tier = {"few": "P3", "many": "P1", "aborted": "abort"}.get(outcome, "log")
        rejected = {"P3": 6, "P1": 14, "abort": 80, "log": 0}[tier]
        values = {
            "status": status.get(outcome, outcome),
            "ended_at": None if outcome == "running" else ended,
            "updated_at": ended,
            "judged_at": None,
            "seconds": 300.0,
            "rows_read": READ,
            "rows_rejected": rejected,
            "tier": tier,
            "error_kind": outcome if outcome in ("transient", "permanent") else None,
            "reason": f"a {outcome} error" if outcome in ("transient", "permanent") else None,
        }
        if is_new:
            self.ran(began, run_id=run_id, sla=SLA.after(began), **values)
        else:
            self._change(run_id, values)
        if rejected:
            letter = redrive.NewLetter({"id": str(run_id), "fee": outcome}, "fee: not a number", key=f"{run_id}")
            self.store.dlq.put_many([letter], pipeline="vendor", run_id=run_id, source="deliveries.csv")
        self.last = run_id
        is_open = self.model.runs[run_id].letters if not is_new else False
        self.model.ended(run_id, values["status"], ended, rejected=bool(rejected) or is_open)
        if judged and outcome != "running":
            self.desk.handle_event(RunEnded(report=SimpleNamespace(run_id=run_id)))

    def _change(self, run_id, values):
        changed = update(runs).where(runs.c.run_id == run_id).values(values)
        self.store.database.write(lambda connection: connection.execute(changed))

    # ── what must be true ─────────────────────────────────────────────────────────────────────────────────────────────

    def check(self):
        """No resolve before its condition is over, one alert for an incident, and one page for it."""
        alerts = [one for one in self.desk.find(limit=1_000) if one.condition in CONDITIONS]
        for alert in alerts:
            if alert.status is AlertStatus.RESOLVED and alert.id not in self.resolved:
                self.resolved.add(alert.id)
                assert self.model.is_over(CONDITIONS[alert.condition], alert.since), f"all-clear: {alert.title}"
        standing = Counter(CONDITIONS[one.condition] for one in alerts if one.status is not AlertStatus.RESOLVED)
        assert not {incident: count for incident, count in standing.items() if count > 1}
        about = {one.id: one for one in alerts}
        for row in self._new_sends():
            if row.alert_id in about and row.what == "opened":
                alert = about[row.alert_id]
                incident = CONDITIONS[alert.condition]
                which = alert.since if incident == "sla" else self.model.begun[incident]
                self.pages[incident, which] += 1
                assert self.pages[incident, which] == 1, f"paged again: {alert.title}"

    def check_at_rest(self):
        """Once the watch has looked for a while, what holds is an open alert, and nothing else is."""
        for _ in range(2):
            self.clock.advance(HOUR.total_seconds())
            self.look(4)
            self.check()
        standing = {CONDITIONS.get(one.condition, one.condition) for one in self.desk.find(status="open", limit=1_000)}
        kinds = ("letters", "run")
        assert {one for one in kinds if self.model.must_be_known(one)} <= standing
        assert standing - {"sla"} <= {one for one in kinds if self.model.may_be_open(one)}
        if self.model.has_missed(SLA.before(self.clock.now() - HOUR)):
            assert "sla" in standing

    def _new_sends(self):
        query = select(alert_sends.c.id, alert_sends.c.alert_id, alert_sends.c.what).where(alert_sends.c.id > self.sent)
        rows = self.store.database.read(lambda connection: connection.execute(query.order_by(alert_sends.c.id)).all())
        self.sent = rows[-1].id if rows else self.sent
        return rows


OUTCOMES = st.sampled_from(["complete", "few", "many", "aborted", "transient", "permanent", "running"])
STEPS = st.one_of(
    st.tuples(st.just("run"), OUTCOMES, st.booleans()),
    st.tuples(st.just("restart"), OUTCOMES, st.booleans()),
    st.tuples(st.sampled_from(["override", "abandon", "acknowledge", "look"])),
    st.tuples(st.just("settle"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([MINUTE, 11 * MINUTE, 2 * HOUR, DAY])),
)


def follow(pipeline, steps):
    for name, *options in steps:
        if name in ("run", "restart"):
            getattr(pipeline, name)(options[0], judged=options[1])
        else:
            getattr(pipeline, name)(*options)
        pipeline.check()
    pipeline.check_at_rest()


@pytest.fixture
def pipeline(store):
    made = Pipeline(store)
    yield made
    made.close()


class TestAnySequence:
    # Without a shorter example: each takes a store, and to find one would take minutes.
    @settings(
        max_examples=examples(12),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(steps=st.lists(STEPS, min_size=1, max_size=14))
    def test_alerts_equal_the_model(self, new_store, steps):
        with new_store("sqlite") as url, redrive.connect(url) as store:
            pipeline = Pipeline(store)
            try:
                follow(pipeline, steps)
            finally:
                pipeline.close()


class TestSequence:
    def test_rejected_rows_judged_after_a_later_run_open_an_alert(self, pipeline):
        follow(pipeline, [("run", "many", False), ("run", "complete", True)])
        (alert,) = pipeline.desk.find(status="open", condition="rejected")
        assert "14 of 200 rows rejected" in alert.title

    def test_letters_of_an_earlier_run_keep_an_abandoned_alert_open(self, pipeline):
        follow(pipeline, [("run", "many", True), ("run", "aborted", True), ("restart", "complete", True)])
        assert [one.key for one in pipeline.desk.find(status="open")] == ["letters:vendor"]
        follow(pipeline, [("settle", False)])
        assert pipeline.desk.find(status="open") == []

    def test_abandoned_run_ends_its_alert_without_a_new_run(self, pipeline):
        pipeline.run("complete")
        follow(pipeline, [("run", "aborted", True), ("abandon",)])
        assert pipeline.desk.find(status="open") == []

    def test_failed_run_after_a_met_deadline_is_not_late(self, pipeline):
        follow(pipeline, [("run", "complete", True), ("run", "transient", False), ("wait", 2 * HOUR)])
        assert pipeline.desk.find(condition="sla_missed") == []
