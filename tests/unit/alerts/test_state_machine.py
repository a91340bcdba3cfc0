"""The lifecycle of an alert, step by step."""

from dataclasses import replace
from uuid import UUID

import pytest

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.lifecycle import state_machine
from redrive.model.alerts import AlertStatus, Facts, Subject, What
from tests.support.alert_state import NOON, P1, P2, P3, Books, after, finding

RUN = UUID(int=7)


@pytest.fixture
def books():
    return Books()


# ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_immediate_event_is_reported_once(books):
    assert books.judge(finding()) == [What.OPENED]
    assert books.judge(finding(), at=60) == []
    assert books.alert().seen == 2
    assert books.alert().last_seen == after(60)


def test_persistent_event_is_reported_after_its_duration(books):
    assert books.judge(finding(persist=600)) == []
    assert books.alert().status is AlertStatus.WAITING
    assert books.pass_time(599) == []
    assert books.pass_time(600) == [What.OPENED]
    assert books.alert().opened_at == after(600)


def test_persistence_counts_from_the_known_start(books):
    assert books.judge(finding(persist=600, since=after(-500)), at=0) == []
    assert books.pass_time(100) == [What.OPENED]
    assert books.alert().since == after(-500)


def test_level_is_reported_when_measured_again_not_by_clock(books):
    level = finding("level:slot:s", P1, persist=300)
    assert books.judge(level) == []
    assert books.pass_time(5_000) == [], "nobody knows whether it still holds"
    assert books.judge(level, at=5_030) == [What.OPENED]


def test_event_that_ends_before_its_alert_is_forgotten(books):
    books.judge(finding("level:slot:s", P1, persist=300))
    assert books.judge(under=["level:slot:"], at=299) == []
    assert books.cases == {}
    assert books.over == []


def test_immediate_evidence_opens_a_waiting_alert(books):
    books.judge(finding("run:vendor:failed", persist=600, key="service:bank:down"))
    level = finding("level:down:bank", key="service:bank:down", since=after(-300))
    assert books.judge(level, at=30) == [What.OPENED]
    assert books.alert("service:bank:down").evidence == {"run:vendor:failed", "level:down:bank"}


# ── severity ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_higher_severity_is_reported_even_if_acknowledged(books):
    books.judge(finding(urgency=P3))
    books.decide("run:vendor", state_machine.acknowledge, 10, by="ann", note=None)
    assert books.judge(finding(urgency=P1), at=20) == [What.ESCALATED]
    assert (books.alert().status, books.alert().urgency) == (AlertStatus.OPEN, P1)
    assert books.alert().acknowledged_by is None


def test_lower_severity_is_silent_and_does_not_flap(books):
    books.judge(finding(urgency=P1))
    assert books.judge(finding(urgency=P3), at=10) == []
    assert books.alert().urgency is P3
    assert books.judge(finding(urgency=P1), at=20) == []
    assert books.alert().urgency is P1
    assert books.pass_time(3_600) == [What.REPEATED]


def test_most_severe_evidence_counts_until_withdrawn(books):
    books.judge(finding("run:vendor:gate", P1, key="letters:vendor", title="7 % rejected"))
    books.judge(finding("level:pending:vendor", P3, key="letters:vendor", title="120 pending"), at=30)
    assert books.alert("letters:vendor").title == "7 % rejected"
    assert books.judge(judged=["run:vendor:gate"], at=60) == []
    assert books.alert("letters:vendor").title == "120 pending"
    assert books.alert("letters:vendor").urgency is P3


def test_newest_of_equal_findings_is_shown_with_all_subjects(books):
    down = "service:bank:down"
    for number, name in enumerate(["vendor", "orders"]):
        books.judge(
            finding(f"run:{name}:failed", key=down, title=name, facts=Facts(affected=(name,), error=name)), at=number
        )
    alert = books.alert(down)
    assert (alert.title, alert.facts.error) == ("orders", "orders")
    assert alert.facts.affected == ("orders", "vendor")
    books.judge(under=["run:orders:"], at=9)
    assert books.alert(down).facts.affected == ("vendor",)


def test_two_findings_of_one_cause_are_one_message(books):
    assert books.judge(finding("a", P3), finding("b", P1)) == [What.OPENED]
    assert books.alert().urgency is P1


def test_severe_evidence_counts_only_after_its_duration(books):
    assert books.judge(finding("a", P3)) == [What.OPENED]
    assert books.judge(finding("b", P1, persist=60), at=1) == []
    assert books.alert().urgency is P3
    assert books.pass_time(61) == [What.ESCALATED]


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_alert_is_resolved_without_evidence(books):
    books.judge(finding("run:a:failed", key="service:bank:down"), finding("run:b:failed", key="service:bank:down"))
    assert books.judge(judged=["run:a:failed"], at=10) == []
    assert books.judge(judged=["run:b:failed"], at=20) == [What.RESOLVED]
    assert books.over[-1].resolved_at == after(20)


def test_level_must_be_clear_for_a_while(books):
    level = finding("level:down:bank")
    books.judge(level)
    assert books.judge(under=["level:down:"], at=100) == []
    assert books.alert().gone_since == after(100)
    assert books.pass_time(399) == []
    assert books.pass_time(400) == [What.RESOLVED]


class TestResolvedName:
    """An alert is resolved as what was last sent of it, not as what was left of it at the end."""

    KEY = "service:bank:down"

    def judge(self, books, *conditions, at):
        names = {"server_errors": ("level:5xx:bank", P3), "service_down": ("level:down:bank", P2)}
        findings = [finding(*names[name], key=self.KEY, condition=name, title=name) for name in conditions]
        books.judge(*findings, under=["level:"], at=at)

    def test_resolved_alert_names_the_alert_it_became(self, books):
        self.judge(books, "server_errors", at=0)
        self.judge(books, "server_errors", "service_down", at=60)
        self.judge(books, "server_errors", at=120)
        assert books.alert(self.KEY).condition == "server_errors"
        self.judge(books, at=180)
        books.pass_time(600)
        (over,) = books.over
        assert (over.condition, over.title) == ("service_down", "service_down")

    def test_resolved_alert_names_the_reminder(self, books):
        self.judge(books, "service_down", at=0)
        self.judge(books, "server_errors", at=60)
        books.pass_time(90_000)
        self.judge(books, at=90_060)
        books.pass_time(91_000)
        assert books.over[0].condition == "server_errors"


class TestFlapping:
    """What is gone and comes back within an hour must then be gone for an hour."""

    @pytest.mark.parametrize("up", [60, 299, 301, 1_800, 3_000])
    def test_level_is_at_most_two_alerts(self, books, up):
        for at in range(0, 20 * (up + 60), up + 60):
            books.judge(finding("level:lag:bank"), at=at)
            books.judge(under=["level:lag:"], at=at + 60)
            books.pass_time(at + 60 + up - 1)
        assert books.alert().facts.measured["times it came back"] == 19
        once = [What.OPENED] if up < 300 else [What.OPENED, What.RESOLVED, What.OPENED]
        assert [what for _, what, _ in books.told if what is not What.REPEATED] == once
        assert books.pass_time(at + 60 + 3_599) == []
        assert books.pass_time(at + 60 + 3_600) == [What.RESOLVED]

    def test_alternating_run_is_at_most_two_alerts(self, books):
        for at in range(0, 12_000, 1_200):
            books.judge(finding(), at=at)
            books.judge(judged=["run:vendor:failed"], at=at + 600)
            books.pass_time(at + 1_199)
        assert [what for _, what, _ in books.told] == [What.OPENED, What.RESOLVED, What.OPENED]

    def test_good_run_alone_does_not_resolve_a_service_alert(self, books):
        bank = Subject(kind="service", name="bank")
        books.judge(finding(key="service:bank:down", subject=bank))
        assert books.judge(judged=["run:vendor:failed"], at=60) == []
        assert books.judge(finding(key="service:bank:down", subject=bank), at=120) == []
        assert len(books.told) == 1

    def test_return_after_an_hour_is_a_new_incident(self, books):
        books.judge(finding())
        books.judge(judged=["run:vendor:failed"], at=10)
        books.judge(finding(), at=3_611)
        assert books.judge(judged=["run:vendor:failed"], at=3_620) == [What.RESOLVED]

    def test_alert_closed_by_an_operator_did_not_flap(self, books):
        books.judge(finding())
        books.decide("run:vendor", state_machine.close, 5, by="ann", note="fixed")
        books.judge(finding(), at=10)
        assert books.judge(judged=["run:vendor:failed"], at=20) == [What.RESOLVED]

    def test_decision_of_an_operator_is_resolved_at_once(self, books):
        """Rejected rows of one run after another, each time discarded: nothing to wait for."""
        for at in (0, 100, 200):
            books.judge(finding("run:vendor:gate", key="letters:vendor", condition="rejected"), at=at)
            assert books.judge(judged=["run:vendor:gate"], at=at + 50) == [What.RESOLVED]


class TestRecoveredRuns:
    def test_are_one_message_a_day_for_each_pipeline(self, books):
        for number in range(48):
            facts = Facts(run_id=UUID(int=number))
            books.judge(finding(persist=600, facts=facts), at=number * 1_800)
            books.judge(replace(recovered(), facts=facts), judged=COMPLETE, at=number * 1_800 + 300)
        assert [what for _, what, _ in books.told] == [What.OPENED]
        facts = Facts(run_id=UUID(int=48))
        assert books.judge(replace(recovered(), facts=facts), judged=COMPLETE, at=90_000) == [What.OPENED]


def test_resolving_alert_has_no_reminder(books):
    books.judge(finding("level:down:bank", P1))
    books.judge(under=["level:down:"], at=3_500)
    assert books.pass_time(3_700) == []


def test_unexamined_alert_stays_unchanged(books):
    books.judge(finding("level:slot:a"))
    assert books.judge(judged=["level:slot:b"], under=["run:"], at=9_999) == []
    assert books.alert().gone_since is None


def test_recurrence_after_resolution_is_a_new_alert(books):
    books.judge(finding())
    books.judge(judged=["run:vendor:failed"], at=10)
    assert books.judge(finding(), at=20) == [What.OPENED]
    assert books.alert().id != books.over[0].id


def test_operator_closes_an_undelivered_alert_silently(books):
    books.judge(finding())
    assert books.decide("run:vendor", state_machine.close, 5, by="ann", note="mended") == [What.RESOLVED]
    assert books.over[0].resolution == "closed by ann: mended"
    books.judge(finding(persist=60), at=10)
    assert books.decide("run:vendor", state_machine.close, 15, by="ann", note="known") == []


# ── evidence whose cause changes ──────────────────────────────────────────────────────────────────────────────────────

BLAMED = ("run:vendor", "service:bank:down", "service:post:down")


def test_failure_with_changing_cause_persists_since_the_first(books):
    told = [
        (at, what)
        for at in range(0, 1_500, 300)
        for what in books.judge(finding(key=BLAMED[at // 300 % 3], persist=600), at=at) + books.pass_time(at + 299)
    ]
    assert told == [(600, What.OPENED)]
    (alert,) = (case.alert for case in books.cases.values())
    assert (alert.key, alert.since) == (BLAMED[2], NOON)


def test_reported_alert_stays_the_same_when_its_cause_changes(books):
    assert books.judge(finding(key="run:vendor", title="no answer")) == [What.OPENED]
    for at in range(1, 50):
        assert books.judge(finding(key=BLAMED[at % 3], title=f"failure {at}"), at=at) == []
    assert set(books.cases) == {"run:vendor"}
    assert (books.alert().title, books.alert().seen) == ("failure 49", 50)
    assert books.judge(judged=["run:vendor:failed"], at=60) == [What.RESOLVED]


def test_reported_alert_with_a_worse_cause_is_escalated(books):
    books.judge(finding(key="service:bank:down"))
    worse = finding(urgency=P1, key="service:bank:auth", condition="permanent_error")
    assert books.judge(worse, at=9) == [What.ESCALATED]
    assert books.judge(worse, at=10) == []
    assert (set(books.cases), books.alert("service:bank:down").condition) == ({"service:bank:down"}, "permanent_error")


def test_waiting_failure_joins_the_alert_of_its_cause(books):
    books.judge(finding("level:down:bank", key="service:bank:down"))
    books.judge(finding(persist=600), at=1)
    assert books.judge(finding(key="service:bank:down", persist=600), at=2) == []
    assert set(books.cases) == {"service:bank:down"}
    assert books.alert("service:bank:down").evidence == {"level:down:bank", "run:vendor:failed"}


def test_alert_closed_by_an_operator_gets_no_new_failure(books):
    books.judge(finding(key="run:vendor"))
    books.decide("run:vendor", state_machine.close, 5, by="ann", note="mended")
    assert books.judge(finding(key="service:bank:down"), at=9) == [What.OPENED]
    assert set(books.cases) == {"service:bank:down"}


# ── reminders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("urgency", "every"), [(P1, 3_600), (P2, 14_400), (P3, 86_400)])
def test_clock_that_was_ahead_delays_no_reminder(books, urgency, every):
    assert books.judge(finding(urgency=urgency), at=1_000_000) == [What.OPENED]
    assert books.pass_time(0) == []
    assert books.pass_time(every - 1) == []
    assert books.pass_time(every) == [What.REPEATED]


@pytest.mark.parametrize(("urgency", "every"), [(P1, 3_600), (P2, 14_400), (P3, 86_400)])
def test_open_alert_has_reminders_until_acknowledged(books, urgency, every):
    books.judge(finding(urgency=urgency))
    assert books.pass_time(every - 1) == []
    assert books.pass_time(every) == [What.REPEATED]
    assert books.pass_time(2 * every - 1) == []
    assert books.decide("run:vendor", state_machine.acknowledge, 2 * every, by="ann", note="on it") == [
        What.ACKNOWLEDGED
    ]
    assert books.pass_time(5 * every) == []
    assert books.decide("run:vendor", state_machine.acknowledge, 5 * every, by="bob", note=None) == []
    assert (books.alert().acknowledged_by, books.alert().note) == ("bob", "on it")


def test_alert_without_reminders_is_sent_once():
    books = Books(AlertSettings(repeat={P1: None}))
    books.judge(finding(urgency=P1))
    assert books.pass_time(1e7) == []


# ── recovered runs, and findings that are over when they are reported ─────────────────────────────────────────────────

COMPLETE = ("run:vendor:failed", "level:lost:vendor", "recovered:vendor")


def recovered(run_id=RUN):
    return finding(
        "recovered:vendor",
        P3,
        key="recovered:vendor",
        condition="recovered",
        title="vendor is complete after it had failed once",
        momentary=True,
        facts=Facts(run_id=run_id),
    )


@pytest.mark.parametrize("evidence", ["run:vendor:failed", "level:lost:vendor"])
@pytest.mark.parametrize("said_by_the_rule", [True, False])
def test_run_recovered_before_an_alert_is_one_p3(books, evidence, said_by_the_rule):
    books.judge(finding(evidence, persist=600, facts=Facts(run_id=RUN, error="bank is down")))
    assert books.judge(*([recovered()] if said_by_the_rule else []), judged=COMPLETE, at=300) == [What.OPENED]
    assert books.cases == {}
    (alert,) = books.over
    assert (alert.condition, alert.urgency, alert.subject.name) == ("recovered", P3, "vendor")
    assert books.judge(*([recovered()] if said_by_the_rule else []), judged=COMPLETE, at=301) == []


def test_run_recovered_after_an_alert_is_only_resolved(books):
    books.judge(finding(facts=Facts(run_id=RUN)))
    assert books.judge(recovered(), judged=COMPLETE, at=300) == [What.RESOLVED]


def test_run_recovered_within_an_open_outage_is_silent(books):
    for name in ("vendor", "orders"):
        books.judge(finding(f"run:{name}:failed", key="service:bank:down"))
    assert books.judge(recovered(), judged=COMPLETE, at=300) == []


def test_waiting_failure_followed_by_gate_abort_not_recovered(books):
    books.judge(finding(persist=600))
    abort = finding("run:vendor:gate", P1, key="letters:vendor", condition="gate_abort")
    assert books.judge(abort, judged=COMPLETE, at=10) == [What.OPENED]
    assert set(books.cases) == {"letters:vendor"}


@pytest.mark.parametrize("said_by_the_rule", [True, False])
def test_recovered_flow_does_not_cover_other_parameters(books, said_by_the_rule):
    flow = Subject(kind="flow", name="load")
    known, waiting = "run:flow/load#0badcafe:failed", "run:flow/load#deadbeef:failed"
    books.judge(finding(known, key="run:flow/load#0badcafe", subject=flow))
    books.judge(finding(waiting, key="run:flow/load#deadbeef", subject=flow, persist=600, facts=Facts(run_id=RUN)))
    rule_says = [replace(recovered(), subject=flow)] if said_by_the_rule else []
    assert books.judge(*rule_says, judged=[waiting, "level:lost:flow/load#deadbeef"], at=60) == [What.OPENED]
    assert (books.over[0].condition, books.over[0].subject) == ("recovered", flow)
    assert set(books.cases) == {"run:flow/load#0badcafe"}


def test_gate_abort_of_a_pipeline_hides_no_recovered_flow(books):
    flow = Subject(kind="flow", name="vendor")
    books.judge(finding("run:flow/vendor:failed", key="run:flow/vendor", subject=flow, persist=600))
    abort = finding("run:vendor:gate", P1, key="letters:vendor", condition="gate_abort")
    assert books.judge(abort, judged=["run:flow/vendor:failed"], at=60) == [What.OPENED, What.OPENED]
    assert [alert.condition for alert in books.over] == ["recovered"]


@pytest.mark.parametrize(
    ("ident", "subject"),
    [
        ("vendor", Subject(kind="pipeline", name="vendor")),
        ("flow/load", Subject(kind="flow", name="load")),
        ("flow/load#deadbeef", Subject(kind="flow", name="load")),
    ],
)
def test_recovered_run_is_named_despite_the_service(books, ident, subject):
    bank = Subject(kind="service", name="bank")
    books.judge(finding(f"run:{ident}:failed", key="service:bank:down", subject=bank, persist=600))
    assert books.judge(judged=[f"run:{ident}:failed"], at=60) == [What.OPENED]
    assert books.over[0].subject == subject
    assert books.over[0].title == f"{subject.name} recovered by itself after it had failed"


def test_recovered_run_is_one_line_without_secrets(books):
    name = "line one\nline two password=hunter2hunter2 " + "x" * 400
    books.judge(finding(f"run:{name}:failed", subject=Subject(kind="pipeline", name=name), persist=600))
    books.judge(judged=[f"run:{name}:failed"], at=60)
    (alert,) = books.over
    assert alert.condition == "recovered"
    assert "\n" not in alert.title
    assert "hunter2" not in alert.title
    assert len(alert.title) <= 160


def test_finding_that_is_over_is_reported_once(books):
    late = finding("sla:vendor", P1, key="sla:vendor", condition="sla_missed", momentary=True)
    assert books.judge(late) == [What.OPENED]
    assert books.over[0].is_over
    assert books.judge(late, at=1) == []


def test_finding_that_is_over_resolves_an_open_alert(books):
    books.judge(finding("sla:vendor", P1, key="sla:vendor", condition="sla_missed"))
    late = finding("sla:vendor", P1, key="sla:vendor", condition="sla_missed", momentary=True, title="an hour late")
    assert books.judge(late, at=1) == [What.RESOLVED]
    assert books.over[0].resolution == "an hour late"
    assert books.judge(late, at=2) == []
