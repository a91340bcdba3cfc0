"""Alerts in a store: reported by many processes, opened once, queued for the channels of their severity."""

import threading
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import insert, select, update

import redrive
from redrive.alerts.config.settings import AlertSettings, PipelineSettings
from redrive.alerts.lifecycle import queries
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.alerts.lifecycle.rows import record_of
from redrive.errors import AlertError
from redrive.model.alerts import AlertStatus, Facts, SendStatus, Severity, Subject, What
from redrive.store.lease import end_work
from redrive.store.schema import alert_sends, gauges
from tests.support.alerts import (
    EVERYTHING,
    NOON,
    P1,
    P2,
    P3,
    LostAnswers,
    after,
    finding,
    judgement,
    many,
    settings,
    watched,
)

GONE = judgement(under=EVERYTHING)
SLACK = settings()


@pytest.fixture
def ledger(store):
    return AlertRepository(store.database, SLACK)


def told(ledger, alert_id=None):
    """The queued and sent messages in order: channel and kind."""
    alerts = [alert_id] if alert_id else sorted(one.id for one in ledger.find())
    return [(send.channel, send.what) for one in alerts for send in ledger.sends(one)]


def deliver(store, *, as_="sent"):
    """Everything that waits gets there; or is given up."""
    values = update(alert_sends).where(alert_sends.c.status == "waiting").values(status=as_)
    store.database.write(lambda connection: connection.execute(values))


# ── findings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_alert_is_stored_and_read_back_unchanged(ledger):
    facts = Facts(
        status="failed",
        run_id=UUID(int=7),
        error="bank is down",
        sla=NOON,
        rows_done=5,
        rate=0.03,
        measured={"5xx for": 312.0, "threshold": 300.0},
        affected=("vendor",),
        commands=("redrive runs show 7",),
    )
    (alert,) = ledger.apply(judgement(finding(facts=facts, since=after(-60))), now=NOON)
    assert alert == ledger.get(alert.id)
    assert (alert.facts, alert.since, alert.opened_at) == (facts, after(-60), NOON)
    (send,) = ledger.sends(alert.id)
    assert (send.channel, send.what, send.urgency, send.status) == ("slack", What.OPENED, P1, SendStatus.WAITING)
    assert send.due_at == NOON
    assert ledger.unsent() == [send]


def test_repeated_evidence_is_counted_without_a_message(ledger):
    for second in range(3):
        ledger.apply(judgement(finding()), now=after(second))
    (alert,) = ledger.find()
    assert (alert.seen, alert.last_seen) == (3, after(2))
    assert told(ledger) == [("slack", What.OPENED)]


def test_alert_passes_all_states_in_the_store(ledger, store):
    watched(store)
    assert ledger.apply(judgement(finding(persist=600)), now=NOON) == []
    assert [alert.status for alert in ledger.find(status="open")] == [AlertStatus.WAITING]
    (opened,) = ledger.pass_time(now=after(600))
    deliver(store)
    assert ledger.pass_time(now=after(4_199)) == []
    ledger.pass_time(now=after(4_200))
    ledger.acknowledge(opened.id, by="ann", note="on it", now=after(5_000))
    ledger.pass_time(now=after(50_000))
    (over,) = ledger.apply(GONE, now=after(60_000))
    assert (over.id, over.status, over.resolved_at) == (opened.id, AlertStatus.RESOLVED, after(60_000))
    assert (over.acknowledged_by, over.note, over.repeats) == ("ann", "on it", 1)
    assert told(ledger) == [("slack", What.OPENED), ("slack", What.REPEATED), ("slack", What.RESOLVED)]
    assert ledger.find(status="open") == []


def test_evidence_is_stored_per_reporter(ledger):
    down = {"key": "service:bank:down"}
    ledger.apply(judgement(finding("run:a:failed", P1, title="a", facts=Facts(affected=("a",)), **down)), now=NOON)
    ledger.apply(judgement(finding("run:b:failed", P3, title="b", facts=Facts(affected=("b",)), **down)), now=after(1))
    (alert,) = ledger.find()
    assert (alert.title, alert.facts.affected, alert.evidence) == ("a", ("a", "b"), {"run:a:failed", "run:b:failed"})
    assert ledger.apply(judgement(judged=["run:a:failed"]), now=after(2)) == []
    (alert,) = ledger.find()
    assert (alert.title, alert.urgency, alert.facts.affected) == ("b", P3, ("b",))


def test_condition_gone_before_a_message_leaves_no_alert(ledger):
    ledger.apply(judgement(finding("level:slot:s", persist=300)), now=NOON)
    ledger.apply(GONE, now=after(30))
    assert ledger.find() == []
    assert ledger.unsent() == []


def test_run_recovered_before_a_message_is_one_message(ledger, store):
    watched(store)
    failed = finding(urgency=P2, persist=600, facts=Facts(run_id=UUID(int=7), error="bank is down"))
    well = finding(
        "recovered:7", P3, key="recovered:7", condition="recovered", momentary=True, facts=Facts(run_id=UUID(int=7))
    )
    complete = judgement(well, judged=["run:vendor:failed", "level:lost:vendor"])
    ledger.apply(judgement(failed), now=NOON)
    (alert,) = ledger.apply(complete, now=after(300))
    assert (alert.condition, alert.is_over) == ("recovered", True)
    assert ledger.apply(complete, now=after(301)) == []
    assert told(ledger) == [("slack", What.OPENED)]


def test_further_recovered_runs_within_a_day_are_counted(ledger):
    for number in range(5):
        facts = Facts(run_id=UUID(int=number))
        well = finding(
            "recovered:vendor", P3, key="recovered:vendor", condition="recovered", momentary=True, facts=facts
        )
        ledger.apply(judgement(well, judged=["run:vendor:failed"]), now=after(number * 3_600))
    (alert,) = ledger.find()
    assert (alert.seen, alert.last_seen) == (5, after(4 * 3_600))
    assert told(ledger) == [("slack", What.OPENED)]


def test_reopened_within_an_hour_must_be_clear_for_an_hour(ledger):
    level, gone = judgement(finding("level:slot:s", key="slot:s")), judgement(under=["level:"])
    for at in range(0, 6 * 1_200, 1_200):  # there for ten minutes, and gone for ten
        ledger.apply(level, now=after(at))
        ledger.apply(gone, now=after(at + 600))
        ledger.pass_time(now=after(at + 600 + 400))
    assert told(ledger) == [("slack", What.OPENED), ("slack", What.RESOLVED), ("slack", What.OPENED)]
    (alert,) = ledger.find(status="open")
    assert alert.facts.measured["times it came back"] == 5
    ledger.pass_time(now=after(at + 600 + 3_599))
    assert ledger.get(alert.id).status is AlertStatus.OPEN
    ledger.pass_time(now=after(at + 600 + 3_600))
    assert ledger.get(alert.id).status is AlertStatus.RESOLVED


@pytest.mark.parametrize("comes_back", [True, False])
def test_complete_run_resolves_service_alert_without_a_watch(ledger, store, comes_back):
    if comes_back:
        watched(store)
    service = Subject(kind="service", name="bank")
    ledger.apply(judgement(finding(key="service:bank:down", subject=service)), now=NOON)
    ledger.apply(judgement(judged=["run:vendor:failed"]), now=after(60))
    (alert,) = ledger.find()
    assert alert.is_over is not comes_back
    ledger.pass_time(now=after(360))
    assert ledger.get(alert.id).is_over


def test_resolved_failure_alert_is_not_recovered_again(ledger):
    lost = finding("level:lost:vendor", P2, facts=Facts(run_id=UUID(int=7)))
    ledger.apply(judgement(lost), now=NOON)
    ledger.apply(judgement(under=["level:lost:"]), now=after(10))  # somebody has started it again
    ledger.pass_time(now=after(400))
    well = finding("r", P3, key="r", condition="recovered", momentary=True, facts=Facts(run_id=UUID(int=7)))
    assert ledger.apply(judgement(well, judged=["run:vendor:failed"]), now=after(4_000)) == []
    assert told(ledger) == [("slack", What.OPENED), ("slack", What.RESOLVED)]


def test_without_a_watch_runs_alert_at_once_and_levels_wait(ledger, store):
    both = judgement(finding(persist=600), finding("level:slot:s", key="slot:s", persist=300))
    assert [alert.key for alert in ledger.apply(both, now=NOON)] == ["run:vendor"]


def test_watch_without_heartbeat_does_not_count(ledger, store):
    watched(store, hours=1)
    assert ledger.apply(judgement(finding("run:a:failed", key="run:a", persist=600)), now=after(3_599)) == []
    later = judgement(finding("run:b:failed", key="run:b", persist=600))
    assert [alert.key for alert in ledger.apply(later, now=after(3_600))] == ["run:b"]


def test_next_run_sends_alerts_that_waited_for_a_lost_watch(ledger, store):
    watched(store, hours=1)
    ledger.apply(judgement(finding("run:a:failed", key="run:a", persist=600)), now=after(3_500))
    assert ledger.apply(judgement(judged=["run:b:failed"]), now=after(4_000)) == []
    (alert,) = ledger.apply(judgement(judged=["run:b:failed"]), now=after(4_100))
    assert (alert.key, alert.status) == ("run:a", AlertStatus.OPEN)


def test_killed_watch_does_not_count_despite_its_lease(ledger, store):
    owner = watched(store)
    assert ledger.apply(judgement(finding("run:a:failed", key="run:a", persist=600)), now=NOON) == []
    end_work(owner)  # as far as this machine can tell, nobody is behind it any more
    (alert,) = ledger.apply(judgement(finding("run:b:failed", key="run:b", persist=600)), now=after(1))
    assert alert.key == "run:b"
    (alert,) = ledger.apply(judgement(judged=["run:c:failed"]), now=after(600))
    assert alert.key == "run:a", "what waits for it is told by whoever comes by"


def test_database_clock_is_the_default(ledger, store):
    (alert,) = ledger.apply(judgement(finding()))
    assert alert.opened_at <= store.database.read(store.database.dialect.now)
    assert ledger.pass_time() == []


# ── one step, one transaction ─────────────────────────────────────────────────────────────────────────────────────────


def test_only_if_decides_and_rolls_back_with_the_judgement(ledger, store):
    def once(connection):
        row = {"name": "judged", "at": NOON, "value": 1.0}
        added = store.database.dialect.insert(gauges).on_conflict_do_nothing().values(row).returning(gauges.c.name)
        return connection.execute(added).first() is not None

    assert len(ledger.apply(judgement(finding()), now=NOON, only_if=once)) == 1
    assert ledger.apply(judgement(finding(key="other")), now=NOON, only_if=once) == []
    assert [alert.key for alert in ledger.find()] == ["run:vendor"]

    def breaks(connection):
        connection.execute(insert(gauges).values(name="broken", at=NOON, value=1.0))
        raise LookupError

    with pytest.raises(LookupError):
        ledger.apply(judgement(finding(key="third")), now=NOON, only_if=breaks)
    names = store.database.read(lambda connection: connection.execute(select(gauges.c.name)).scalars().all())
    assert names == ["judged"]


def test_concurrent_judgements_open_one_alert(store_url):
    found, errors = judgement(finding(), *many(3)), []
    gate = threading.Barrier(6)

    def find():
        try:
            with redrive.connect(store_url) as store:
                ledger = AlertRepository(store.database, SLACK)
                gate.wait()
                for _ in range(5):
                    ledger.apply(found)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=find) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with redrive.connect(store_url) as store:
        ledger = AlertRepository(store.database, SLACK)
        assert sorted((alert.key, alert.seen) for alert in ledger.find()) == [
            (key, 30) for key in ("run:vendor", "slot:0", "slot:1", "slot:2")
        ]
        assert len(ledger.unsent()) == 4


def test_commit_with_a_lost_answer_is_not_retried(ledger, store, monkeypatch):
    answers = LostAnswers(store.database, monkeypatch)
    answers.strike()
    assert len(ledger.apply(judgement(finding()), now=NOON)) == 1
    assert answers.struck == 1
    assert [alert.seen for alert in ledger.find()] == [1]
    deliver(store)
    answers.strike()
    ledger.pass_time(now=after(3_600))
    assert [alert.repeats for alert in ledger.find()] == [1]
    answers.strike()
    ledger.acknowledge(1, by="ann", now=after(3_700))
    answers.strike()
    assert len(ledger.apply(GONE, now=after(4_000))) == 1
    answers.strike()
    assert len(ledger.sends(ledger.put_test(P1, now=NOON).id)) == 1
    assert answers.struck == 5
    assert told(ledger, 1) == [("slack", What.OPENED), ("slack", What.REPEATED), ("slack", What.RESOLVED)]


def test_unclear_lost_answer_sends_no_second_message(ledger, store, store_url, monkeypatch):
    answers = LostAnswers(store.database, monkeypatch)
    broken = answers._broken

    def meanwhile():
        with redrive.connect(store_url) as other:
            AlertRepository(other.database, SLACK).apply(judgement(finding()), now=after(1))
        return broken()

    monkeypatch.setattr(answers, "_broken", meanwhile)
    answers.strike()
    ledger.apply(judgement(finding()), now=NOON)
    assert told(ledger) == [("slack", What.OPENED)]


def test_time_that_changes_nothing_takes_no_lock(ledger, store, store_url):
    ledger.apply(judgement(finding(), *many(3)), now=NOON)
    with redrive.connect(store_url) as other:

        def meanwhile(connection):
            store.database.dialect.lock(connection, "alerts")
            return AlertRepository(other.database, SLACK).pass_time(now=after(60))

        assert store.database.write(meanwhile) == []
    ledger.pass_time(now=after(3_600))
    assert [alert.repeats for alert in ledger.find()] == [0, 0, 0, 1]


def test_run_locks_only_the_alerts_it_touches(ledger, monkeypatch):
    ledger.apply(judgement(*many(30), finding("run:a:failed", key="run:a")), now=NOON)
    read = []
    monkeypatch.setattr(queries, "record_of", lambda row: read.append(row.key) or record_of(row))
    changed = ledger.apply(judgement(finding(), judged=["run:a:failed"]), now=after(1))
    changed += ledger.apply(judgement(judged=["run:vendor:failed"]), now=after(2))
    assert [alert.key for alert in changed] == ["run:vendor", "run:a", "run:vendor"]
    assert read == ["run:a", "run:vendor"]


def test_evidence_with_a_changed_cause_is_found_under_the_old(ledger, store):
    watched(store)
    for at, key in ((0, "run:vendor"), (300, "service:bank:down"), (600, "service:post:down")):
        changed = ledger.apply(judgement(finding(key=key, urgency=P2, persist=600)), now=after(at))
    assert [(alert.key, alert.since) for alert in changed] == [("service:post:down", NOON)]
    ledger.apply(judgement(finding(key="run:vendor", urgency=P2, persist=600)), now=after(900))
    assert [alert.key for alert in ledger.find(status="open")] == ["service:post:down"]
    assert told(ledger) == [("slack", What.OPENED)]


def test_message_about_one_run_does_not_suppress_the_next(ledger):
    def late(run):
        options = {"key": "sla:vendor", "condition": "sla_missed", "momentary": True, "title": "late"}
        return judgement(finding("sla:vendor", facts=Facts(run_id=UUID(int=run)), **options))

    assert len(ledger.apply(late(1), now=NOON)) == 1
    assert ledger.apply(late(1), now=after(1)) == []
    assert len(ledger.apply(late(2), now=after(2))) == 1
    assert len(ledger.apply(late(1), now=after(8 * 86_400))) == 1, "it is remembered for a week"


# ── queries and decisions ─────────────────────────────────────────────────────────────────────────────────────────────


def test_filters_select_status_severity_subject_and_time(ledger):
    bank = Subject(kind="service", name="bank")
    ledger.apply(judgement(finding(urgency=P1), finding("x", P3, key="service:bank:4xx", subject=bank)), now=NOON)
    ledger.apply(judgement(under=["run:"]), now=after(60))
    ledger.apply(judgement(*many(3)), now=after(120))

    def keys(**options):
        return [alert.key for alert in ledger.find(**options)]

    assert keys() == ["slot:2", "slot:1", "slot:0", "service:bank:4xx", "run:vendor"]
    assert keys(status="open") == ["slot:2", "slot:1", "slot:0", "service:bank:4xx"]
    assert keys(status=AlertStatus.RESOLVED) == ["run:vendor"]
    assert keys(urgency="P3") == ["service:bank:4xx"]
    assert keys(subject="bank") == ["service:bank:4xx"]
    assert keys(since=after(100), limit=2) == ["slot:2", "slot:1"]
    with pytest.raises(ValueError, match="purple"):
        ledger.find(status="purple")


def test_missing_or_resolved_alert_cannot_be_changed(ledger, store):
    watched(store)
    with pytest.raises(AlertError, match="no alert 99"):
        ledger.get(99)
    ledger.apply(judgement(finding(persist=600)), now=NOON)
    (waiting,) = ledger.find()
    with pytest.raises(AlertError, match="was not sent yet"):
        ledger.acknowledge(waiting.id, by="ann", now=NOON)
    ledger.close(waiting.id, by="ann", note="known", now=NOON)
    for step in (ledger.acknowledge, ledger.close):
        with pytest.raises(AlertError, match="over already: closed by ann: known"):
            step(waiting.id, by="bob", note="me too")
    assert told(ledger) == []


def test_closed_alert_is_resolved_and_reopens_as_a_new_one(ledger):
    ledger.apply(judgement(finding()), now=NOON)
    closed = ledger.close(1, by="ann", note="mended", now=after(10))
    assert (closed.resolution, closed.note) == ("closed by ann: mended", "mended")
    (again,) = ledger.apply(judgement(finding()), now=after(20))
    assert again.id != closed.id
    assert told(ledger) == [("slack", What.OPENED), ("slack", What.RESOLVED), ("slack", What.OPENED)]


def test_secrets_are_masked_in_every_stored_text(ledger, store):
    secret = "hunter2-sk-0123456789abcdef"
    leak = f"password={secret}"
    facts = Facts(error=leak, impact=leak, cause=leak, commands=(leak,), sql=leak, next_step=leak, checkpoint=leak)
    ledger.apply(judgement(finding(title=f"failed: {leak}", facts=facts)), now=NOON)
    ledger.acknowledge(1, by=leak, note=leak, now=NOON)
    ledger.close(1, by=leak, note=leak, now=NOON)
    alert = ledger.get(1)
    assert secret not in repr(alert)
    assert "password=***" in alert.title

    def everything(connection):
        return connection.exec_driver_sql(f"SELECT * FROM {table}").all()

    for name in ("alerts", "alert_sends"):
        table = f"pipeline.{name}" if store.database.dialect.is_remote else name
        assert secret not in repr(store.database.read(everything))


def test_unstorable_characters_are_stored_escaped(ledger):
    odd = "a\0b\ud800c"
    (alert,) = ledger.apply(judgement(finding(title=odd, facts=Facts(error=odd))), now=NOON)
    assert ledger.get(alert.id) == alert
    assert "\0" not in alert.title


def test_test_alert_uses_the_real_route_and_ends_at_once(store):
    own = {"vendor": PipelineSettings(routes={P1: ("pager",)})}
    ledger = AlertRepository(store.database, settings("slack", "pager", routes={P1: ("slack",)}, pipelines=own))
    for pipeline, channel in ((None, "slack"), ("vendor", "pager")):
        alert = ledger.put_test(P1, pipeline=pipeline, now=NOON)
        assert alert.is_over
        assert [(send.channel, send.what) for send in ledger.sends(alert.id)] == [(channel, What.TEST)]
    assert ledger.find(status="open") == []


def test_retention_removes_old_alerts_and_keeps_open_ones(ledger):
    ledger.apply(judgement(*many(2)), now=NOON)
    ledger.close(1, by="ann", note="mended", now=NOON)
    ledger.apply(judgement(finding()), now=after(10))
    ledger.close(3, by="ann", note="mended", now=after(86_400))
    assert ledger.purge(older_than=timedelta(days=1), now=after(86_401)) == 1
    assert sorted(alert.id for alert in ledger.find()) == [2, 3]
    assert ledger.sends(1) == []
    assert len(ledger.sends(3)) == 2


# ── whom to tell ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_severity_selects_channels_for_alert_and_resolution(store):
    routes = {P1: ("pager", "slack"), P2: ("slack",), P3: ("mail",)}
    ledger = AlertRepository(store.database, settings("pager:pagerduty", "slack", "mail", routes=routes))
    ledger.apply(judgement(finding(urgency=P3)), now=NOON)
    ledger.apply(judgement(finding(urgency=P1)), now=after(60))
    ledger.acknowledge(1, by="ann", now=after(70))
    ledger.apply(judgement(finding(urgency=P3)), now=after(80))
    ledger.apply(GONE, now=after(90))
    assert told(ledger) == [
        ("mail", What.OPENED),
        ("pager", What.ESCALATED),
        ("slack", What.ESCALATED),
        ("pager", What.ACKNOWLEDGED),
        ("mail", What.RESOLVED),
        ("pager", What.RESOLVED),
        ("slack", What.RESOLVED),
    ]
    assert {send.channel: send.urgency for send in ledger.sends(1) if send.what is What.RESOLVED} == {
        **{"mail": P3, "pager": P1, "slack": P1}
    }


def test_unreached_channel_gets_reminders_but_no_resolution(ledger, store):
    ledger.apply(judgement(finding()), now=NOON)
    deliver(store, as_="failed")
    ledger.pass_time(now=after(3_600))
    assert told(ledger) == [("slack", What.OPENED), ("slack", What.REPEATED)]
    deliver(store, as_="failed")
    ledger.apply(GONE, now=after(3_700))
    assert told(ledger) == [("slack", What.OPENED), ("slack", What.REPEATED)]


def test_undelivered_message_is_not_queued_twice(ledger):
    ledger.apply(judgement(finding()), now=NOON)
    ledger.pass_time(now=after(3_600))
    assert told(ledger) == [("slack", What.OPENED)]


def test_first_message_has_the_current_severity(ledger):
    ledger.apply(judgement(finding(urgency=P3)), now=NOON)
    ledger.apply(judgement(finding(urgency=P1)), now=after(1))
    (send,) = ledger.sends(1)
    assert (send.what, send.urgency) == (What.ESCALATED, P1)


def test_momentary_alert_is_resolved_at_once_on_pagerduty(store):
    ledger = AlertRepository(store.database, settings("pager:pagerduty", "slack"))
    ledger.apply(judgement(finding(momentary=True)), now=NOON)
    assert told(ledger) == [("pager", What.OPENED), ("pager", What.RESOLVED), ("slack", What.OPENED)]


def test_default_channel_is_the_log(store):
    ledger = AlertRepository(store.database, AlertSettings())
    ledger.apply(judgement(finding()), now=NOON)
    assert told(ledger) == [("log", What.OPENED)]


def test_every_severity_is_delivered(ledger):
    for urgency in Severity:
        ledger.apply(judgement(finding(urgency.value, urgency, key=urgency.value)), now=NOON)
    assert [alert.urgency for alert in ledger.find()] == [P3, P2, P1]
