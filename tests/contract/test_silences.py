"""Silences, snoozes and maintenance windows, on both databases and a clock of the test."""

import random
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

import redrive
from redrive.alerts.config.settings import Maintenance, Quiet
from redrive.alerts.delivery.channels import DeliveryFailed
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.service import Alerts
from redrive.errors import AlertError, FlowStopped, RunStopped
from redrive.model.alerts import AlertFilter, AlertStatus, Facts, SendStatus, Subject, What
from tests.support.alerts import NOON, P1, P2, P3, Recorder, after, finding, judgement, raising, settings, watched
from tests.support.flows import eventually

HOUR = 3_600


class Clock:
    def __init__(self):
        self.at = NOON

    def now(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(store, clock):
    def make(**options):
        desk = Alerts(store.database, settings("team", **options), clock=clock)
        desk.sender.wake = lambda: None  # messages stay where they can be counted
        return desk

    return make


@pytest.fixture
def desk(make):
    return make()


def find(desk, *findings, gone=()):
    desk.ledger.apply(judgement(*findings, judged=gone), now=desk._now())


def sent(desk):
    return [str(send.what) for one in sorted(desk.find(), key=lambda one: one.id) for send in desk.sends(one.id)]


def look(desk, clock, seconds):
    clock.at = after(seconds)
    desk.pass_time()


class TestSilence:
    def test_silenced_alert_opens_and_sends_nothing(self, desk):
        desk.silence(seconds=HOUR, reason="deploy", pipeline="vendor", by="me")
        find(desk, finding())
        (alert,) = desk.find(status="open")
        assert (alert.status, alert.opened_at, alert.told_at) == (AlertStatus.OPEN, NOON, None)
        assert sent(desk) == []
        assert desk.silenced_until([alert]) == {alert.id: after(HOUR)}

    def test_alert_that_still_holds_is_sent_at_the_end(self, store, desk, clock):
        watched(store)
        desk.silence(seconds=HOUR, reason="deploy", subject="vendor")
        find(desk, finding())
        look(desk, clock, HOUR - 1)
        assert sent(desk) == []
        look(desk, clock, HOUR)
        look(desk, clock, HOUR + 30)
        assert sent(desk) == ["opened"]
        (alert,) = desk.find()
        assert (alert.opened_at, alert.told_at) == (NOON, after(HOUR))

    def test_alert_resolved_during_a_silence_is_never_sent(self, store, desk, clock):
        watched(store)
        desk.silence(seconds=HOUR, reason="deploy", subject="vendor")
        find(desk, finding())
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        look(desk, clock, 2 * HOUR)
        assert (desk.find()[0].status, sent(desk)) == (AlertStatus.RESOLVED, [])

    def test_end_of_silence_is_sent_by_any_process(self, desk, clock):
        desk.silence(seconds=HOUR, reason="deploy", subject="vendor")
        find(desk, finding())
        clock.at = after(HOUR + 1)
        find(desk, finding(key="run:other", evidence="run:other:failed", subject=Subject(kind="pipeline", name="o")))
        assert sent(desk) == ["opened", "opened"]

    def test_early_end_is_sent_at_the_next_check(self, desk, clock):
        silence = desk.silence(seconds=HOUR, reason="deploy", subject="vendor")
        find(desk, finding())
        ended = desk.end_silence(silence.id, by="me")
        assert (ended.until, ended.ended_by) == (NOON, "me")
        look(desk, clock, 30)
        assert sent(desk) == ["opened"]
        with pytest.raises(AlertError, match="over already"):
            desk.end_silence(silence.id)

    def test_silenced_open_alert_is_sent_again_at_the_end(self, desk, clock):
        find(desk, finding(urgency=P3))
        clock.at = after(60)
        desk.silence(seconds=HOUR, reason="known", subject="vendor")
        look(desk, clock, HOUR)
        assert sent(desk) == ["opened"]
        look(desk, clock, HOUR + 61)
        assert desk.find()[0].repeats == 1
        look(desk, clock, HOUR + 120)
        assert desk.find()[0].repeats == 1

    def test_alert_sent_before_a_silence_is_resolved_as_sent(self, desk, clock):
        find(desk, finding())
        desk.silence(seconds=HOUR, reason="known", subject="vendor")
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        assert sent(desk) == ["opened", "resolved"]

    def test_escalation_waits_for_the_end(self, desk, clock):
        find(desk, finding(urgency=P3))
        desk.silence(seconds=HOUR, reason="known", subject="vendor")
        clock.at = after(60)
        find(desk, finding(urgency=P1))
        assert (desk.find()[0].urgency, sent(desk)) == (P1, ["opened"])
        look(desk, clock, HOUR + 1)
        assert sent(desk)[-1] == "escalated"

    def test_acknowledged_while_silent_is_not_sent_at_the_end(self, desk, clock):
        desk.silence(seconds=HOUR, reason="known", subject="vendor")
        find(desk, finding())
        desk.acknowledge(desk.find()[0].id, by="me")
        look(desk, clock, HOUR + 1)
        assert (desk.find()[0].status, sent(desk)) == (AlertStatus.ACKNOWLEDGED, [])

    def test_rise_acknowledged_while_silent_is_not_sent_at_the_end(self, desk, clock):
        find(desk, finding(urgency=P3))
        desk.silence(seconds=HOUR, reason="known", subject="vendor")
        clock.at = after(60)
        find(desk, finding(urgency=P1))
        desk.acknowledge(desk.find()[0].id, by="me")
        for seconds in (HOUR + 1, 2 * HOUR + 2):
            look(desk, clock, seconds)
            assert (desk.find()[0].status, sent(desk)) == (AlertStatus.ACKNOWLEDGED, ["opened"])
        find(desk, gone=["run:vendor:orders"])

    def test_own_alert_is_silenced_too(self, desk, clock):
        desk.silence(seconds=HOUR, reason="known", condition="custom")
        desk.open(key="export", severity="P1", title="no rows")
        assert sent(desk) == []
        look(desk, clock, HOUR)
        assert sent(desk) == ["opened"]

    def test_momentary_alert_is_recorded_and_never_sent(self, desk, clock):
        desk.silence(seconds=HOUR, reason="known", condition="recovered")
        find(desk, finding("recovered:1", P3, key="recovered:1", condition="recovered", momentary=True))
        look(desk, clock, HOUR + 1)
        assert (desk.find()[0].status, sent(desk)) == (AlertStatus.RESOLVED, [])

    def test_test_messages_are_sent(self, desk):
        desk.silence(seconds=HOUR, reason="known", condition="slow")
        alert = desk.ledger.put_test(P1, now=NOON)
        assert [send.what for send in desk.sends(alert.id)] == [What.TEST]


class TestWhichAlerts:
    SERVICE = Subject(kind="service", name="bank")

    @pytest.mark.parametrize(
        ("only", "matches"),
        [
            ({"subject": "vendor"}, True),
            ({"subject": "other"}, False),
            ({"pipeline": "vendor", "condition": "retries_exhausted"}, True),
            ({"pipeline": "vendor", "condition": "slow"}, False),
        ],
    )
    def test_all_that_is_set_must_match(self, desk, only, matches):
        desk.silence(seconds=HOUR, reason="known", **only)
        find(desk, finding())
        assert (sent(desk) == []) is matches

    def test_pipeline_covers_no_alert_of_other_pipelines(self, desk, clock):
        desk.silence(seconds=HOUR, reason="known", pipeline="vendor")
        alone = finding(subject=self.SERVICE, facts=Facts(affected=("vendor",)))
        find(desk, alone)
        assert sent(desk) == []
        clock.at = after(60)
        find(desk, finding("run:orders:failed", subject=self.SERVICE, facts=Facts(affected=("orders",))))
        assert sent(desk) == ["opened"]  # another pipeline suffers, too


class TestSnooze:
    def test_snoozed_alert_comes_back(self, desk, clock):
        find(desk, finding(urgency=P3))
        clock.at = after(10)
        number = desk.find()[0].id
        desk.acknowledge(number, by="me")
        desk.snooze(number, seconds=HOUR, by="me")
        look(desk, clock, HOUR)
        assert "repeated" not in sent(desk)
        look(desk, clock, HOUR + 11)
        alert = desk.get(number)
        assert (alert.status, alert.repeats) == (AlertStatus.OPEN, 1)

    def test_other_alerts_are_sent(self, desk):
        find(desk, finding())
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        find(desk, finding("level:slot:a", key="slot:a"))
        assert sent(desk) == ["opened", "opened"]

    def test_resolved_alert_is_rejected(self, desk):
        find(desk, finding())
        number = desk.find()[0].id
        desk.resolve(number, by="me", note="done")
        with pytest.raises(AlertError, match="over already"):
            desk.snooze(number, seconds=HOUR)
        with pytest.raises(AlertError, match="there is no alert 99"):
            desk.snooze(99, seconds=HOUR)


class TestEndOfSnooze:
    """A snooze applies to one alert in its state at the time of the snooze."""

    @pytest.fixture
    def desk(self, store, make):
        watched(store)
        desk = make()
        desk.sender = Sender(store.database, desk.settings, deliver=Recorder())
        desk.sender.wake = lambda: None
        return desk

    def sent(self, desk):
        desk.send_due()
        return sent(desk)

    def snoozed(self, desk, *findings, hours=72):
        find(desk, *(findings or (finding(urgency=P3),)))
        desk.send_due()
        number = desk.find()[0].id
        desk.snooze(number, seconds=hours * HOUR)
        return number

    def test_later_alert_of_the_same_key_is_sent(self, desk, clock):
        first = self.snoozed(desk)
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        assert (desk.silences(), desk.silences(ended=True)[0].until) == ([], after(60))
        clock.at = after(HOUR)
        find(desk, finding(urgency=P3))
        assert desk.silenced_until(desk.find(status="open")) == {}
        assert [send.what for send in desk.sends(desk.find()[0].id)] == [What.OPENED]
        assert [send.what for send in desk.sends(first)] == [What.OPENED, What.RESOLVED]

    @pytest.mark.parametrize("how", ["closed", "resolved by its program"])
    def test_snooze_ends_with_a_closed_alert(self, desk, clock, how):
        desk.open(key="export", severity="P3", title="no rows")
        number = desk.find()[0].id
        desk.snooze(number, seconds=HOUR)
        clock.at = after(60)
        desk.resolve(number, by="me", note="done") if how == "closed" else desk.resolve("export")
        assert desk.silences() == []
        desk.open(key="export", severity="P3", title="no rows")
        assert self.sent(desk)[-1] == "opened"

    def test_snooze_ends_with_a_forgotten_alert(self, desk, clock):
        number = self.snoozed(desk, finding(persist=600.0))
        assert desk.get(number).status is AlertStatus.WAITING
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        assert desk.silences() == []

    def test_more_severe_alert_is_sent_with_reminders(self, desk, clock):
        self.snoozed(desk)
        clock.at = after(60)
        find(desk, finding(urgency=P1))
        assert (self.sent(desk), desk.silences()) == (["opened", "escalated"], [])
        look(desk, clock, 90)
        assert self.sent(desk) == ["opened", "escalated"]
        look(desk, clock, HOUR + 61)
        assert self.sent(desk) == ["opened", "escalated", "repeated"]

    def test_alert_is_sent_when_its_old_severity_returns(self, desk, clock):
        find(desk, finding(urgency=P1))
        desk.send_due()
        clock.at = after(60)
        self.snoozed(desk, finding(urgency=P3))
        look(desk, clock, 120)
        assert self.sent(desk) == ["opened"]
        find(desk, finding(urgency=P1))
        assert self.sent(desk) == ["opened", "repeated"]

    def test_less_severe_alert_stays_snoozed(self, desk, clock):
        self.snoozed(desk, finding(urgency=P1))
        clock.at = after(60)
        find(desk, finding(urgency=P3))
        look(desk, clock, 71 * HOUR)
        assert self.sent(desk) == ["opened"]

    def joined(self, name, urgency=P2):
        return finding(f"run:{name}:failed", urgency, key="cause:1", subject=Subject(kind="pipeline", name=name))

    def test_pipeline_that_joins_is_sent(self, desk, clock):
        self.snoozed(desk, self.joined("a"), self.joined("b"))
        clock.at = after(60)
        find(desk, self.joined("c"))
        assert (self.sent(desk), desk.silences()) == (["opened", "repeated"], [])

    def test_pipeline_that_fails_again_stays_snoozed(self, desk, clock):
        self.snoozed(desk, self.joined("a"), self.joined("b"))
        for second in range(10, 60, 10):
            clock.at = after(second)
            find(desk, gone=("run:b:failed",))
            clock.at = after(second + 5)
            find(desk, self.joined("b"))
        assert (self.sent(desk), len(desk.silences())) == (["opened"], 1)

    def test_pipeline_that_fails_on_a_snoozed_service_is_sent(self, desk, clock):
        bank, key = Subject(kind="service", name="bank"), "service:bank:down"
        self.snoozed(desk, finding("run:a:failed", P2, key=key, subject=bank))
        clock.at = after(60)
        find(desk, finding("level:down:bank", P2, key=key, subject=bank))
        assert self.sent(desk) == ["opened"]
        find(desk, finding("run:b:failed", P2, key=key, subject=bank))
        assert self.sent(desk) == ["opened", "repeated"]

    def test_acknowledged_alert_is_joined_in_silence(self, desk, clock):
        number = self.snoozed(desk, self.joined("a"))
        desk.acknowledge(number, by="me")
        clock.at = after(60)
        find(desk, self.joined("c"))
        assert self.sent(desk) == ["opened"]

    def test_silence_by_rule_holds_a_more_severe_alert(self, desk, clock):
        self.snoozed(desk)
        desk.silence(seconds=HOUR, reason="deploy", subject="vendor")
        clock.at = after(60)
        find(desk, finding(urgency=P1))
        look(desk, clock, HOUR - 1)
        assert self.sent(desk) == ["opened"]
        look(desk, clock, HOUR)
        assert self.sent(desk) == ["opened", "escalated"]

    def test_queued_message_of_a_worse_alert_is_sent(self, desk, clock):
        find(desk, self.joined("a"))
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        clock.at = after(60)
        find(desk, self.joined("c"))
        desk.send_due()
        assert [send.status for send in desk.sends(desk.find()[0].id)] == [SendStatus.SENT]

    def test_reminders_are_hourly_after_a_snooze(self, desk, clock):
        self.snoozed(desk, finding(urgency=P1), hours=1)
        for minute in range(60, 242):
            look(desk, clock, minute * 60)
            clock.at = after(minute * 60 + 2)
            desk.send_due()
        assert self.sent(desk) == ["opened", *["repeated"] * 4]

    def test_resolved_alert_names_the_message_before_the_snooze(self, desk, clock):
        number = self.snoozed(desk, finding(urgency=P2, condition="slow"))
        clock.at = after(60)
        find(desk, finding(urgency=P3, condition="too_long"))
        look(desk, clock, HOUR)
        find(desk, gone=("run:vendor:failed",))
        assert (desk.get(number).status, desk.get(number).condition) == (AlertStatus.RESOLVED, "slow")

    def test_listing_names_the_alert(self, desk):
        number = self.snoozed(desk)
        (snooze,) = desk.silences()
        assert (snooze.alert_id, snooze.about) == (number, f"alert {number} (run:vendor)")
        assert snooze.document()["alert_id"] == number

    @pytest.mark.parametrize("seed", range(12))
    def test_more_severe_alerts_are_sent_in_any_order(self, desk, clock, seed):
        chance, names, at = random.Random(seed), ("a", "b", "c"), 0
        known = {}  # by alert: the severity and the pipelines that an operator was told of, or saw when snoozing
        messages = {}
        for _ in range(60):
            at += chance.choice((1, 60, 1_800))
            clock.at = after(at)
            alert, what = (desk.find(status="open") or [None])[0], chance.randrange(4)
            if what == 0 and alert is not None:
                desk.snooze(alert.id, seconds=chance.choice((60, 2 * HOUR)))
                known[alert.id] = (alert.urgency, self.members(alert))
            elif what == 1:
                find(desk, gone=[f"run:{name}:failed" for name in names if chance.random() < 0.7])
            else:
                find(desk, self.joined(chance.choice(names), chance.choice((P1, P2, P3))))
            desk.pass_time()
            desk.send_due()
            for alert in desk.find(status="open"):
                count, seen = len(desk.sends(alert.id)), (alert.urgency, self.members(alert))
                if count > messages.get(alert.id, 0) or not desk.silenced_until([alert]):
                    assert count > 0
                    known[alert.id] = seen
                messages[alert.id] = count
                urgency, members = known[alert.id]
                assert not alert.urgency.outranks(urgency)
                assert self.members(alert) <= members

    def members(self, alert):
        return {evidence.split(":")[1] for evidence in alert.evidence}


class TestQueuedMessages:
    """Messages that wait for a channel, or for the end of quiet hours, when their alert is silenced."""

    @pytest.fixture
    def recorder(self):
        return Recorder()

    @pytest.fixture
    def make(self, store, clock, recorder):
        def make(*routes, **options):
            desk = Alerts(store.database, settings(*(routes or ("team",)), **options), clock=clock)
            desk.sender = Sender(store.database, desk.settings, deliver=recorder)
            desk.sender.wake = lambda: None  # the test decides when messages are sent
            return desk

        return make

    def send(self, desk, clock, seconds):
        clock.at = after(seconds)
        desk.send_due()

    def silence(self, desk, **options):
        return desk.silence(seconds=HOUR, reason="known", **(options or {"subject": "vendor"}))

    def test_silence_delays_queued_message_until_its_end(self, desk, clock, recorder):
        find(desk, finding())
        self.silence(desk)
        self.send(desk, clock, HOUR - 1)
        assert recorder.said() == []
        self.send(desk, clock, HOUR)
        assert recorder.said() == [("opened", "run:vendor")]

    def test_snooze_delays_queued_message_until_its_end(self, desk, clock, recorder):
        find(desk, finding())
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        self.send(desk, clock, HOUR - 1)
        assert recorder.said() == []
        self.send(desk, clock, HOUR)
        assert recorder.said() == [("opened", "run:vendor")]

    def test_maintenance_window_holds_queued_message(self, make, clock, recorder):
        desk = make(maintenance=(Maintenance(begins=after(60), ends=after(HOUR)),))
        find(desk, finding())
        self.send(desk, clock, 61)
        assert recorder.said() == []
        self.send(desk, clock, HOUR)
        assert recorder.said() == [("opened", "run:vendor")]

    def test_delayed_message_is_due_when_the_silence_ends(self, desk):
        find(desk, finding())
        self.silence(desk)
        due = Outbox(desk._database, desk.settings).due(now=NOON)
        assert due.channels == {"team": after(HOUR)}

    def test_silence_ended_early_releases_message(self, desk, clock, recorder):
        find(desk, finding())
        silence = self.silence(desk)
        clock.at = after(10)
        desk.end_silence(silence.id)
        self.send(desk, clock, 11)
        assert recorder.said() == [("opened", "run:vendor")]

    def test_other_alerts_are_sent_meanwhile(self, desk, clock, recorder):
        find(desk, finding(), finding("level:slot:a", key="slot:a", subject=Subject(kind="slot", name="a")))
        self.silence(desk)
        self.send(desk, clock, 1)
        assert recorder.said() == [("opened", "slot:a")]

    @pytest.mark.parametrize("claimed", [True, False], ids=["while silenced", "only after the silence"])
    def test_resolved_while_silenced_sends_nothing(self, make, clock, recorder, claimed):
        desk = make("team", "pager:pagerduty")
        find(desk, finding())
        self.silence(desk)
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        if claimed:
            self.send(desk, clock, 61)
        self.send(desk, clock, HOUR + 1)
        assert (recorder.said(), desk.unsent()) == ([], [])

    def test_resolved_before_the_silence_sends_nothing(self, desk, clock, recorder):
        find(desk, finding())
        find(desk, gone=("run:vendor:failed",))
        clock.at = after(1)
        self.silence(desk)
        self.send(desk, clock, HOUR + 2)
        assert recorder.said() == []

    def test_resolved_in_a_maintenance_window_sends_nothing(self, make, clock, recorder):
        desk = make(maintenance=(Maintenance(begins=after(60), ends=after(HOUR)),))
        find(desk, finding())
        clock.at = after(120)
        find(desk, gone=("run:vendor:failed",))
        self.send(desk, clock, HOUR)
        assert recorder.said() == []

    def test_resolved_after_the_silence_sends_both(self, desk, clock, recorder):
        find(desk, finding())
        self.silence(desk)
        clock.at = after(HOUR + 1)
        find(desk, gone=("run:vendor:failed",))
        self.send(desk, clock, HOUR + 2)
        assert [what for what, _ in recorder.said()] == ["opened", "resolved"]

    def test_channel_that_knows_the_alert_receives_its_end(self, make, clock, recorder):
        desk = make("team", "late")
        recorder.failing["late"] = raising(DeliveryFailed("down"))
        find(desk, finding())
        self.send(desk, clock, 1)
        self.silence(desk)
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        recorder.failing.clear()
        self.send(desk, clock, 2 * HOUR)
        assert recorder.said("team") == [("opened", "run:vendor"), ("resolved", "run:vendor")]
        assert recorder.said("late") == []

    def test_possibly_opened_incident_is_closed(self, make, clock, recorder):
        desk = make("pager:pagerduty")
        recorder.failing["pager"] = raising(DeliveryFailed("no answer"))
        find(desk, finding())
        self.send(desk, clock, 1)
        self.silence(desk)
        clock.at = after(60)
        find(desk, gone=("run:vendor:failed",))
        recorder.failing.clear()
        self.send(desk, clock, 2 * HOUR)
        assert recorder.said() == [("resolved", "run:vendor")]

    def test_acknowledged_while_silenced_sends_nothing(self, desk, clock, recorder):
        find(desk, finding())
        self.silence(desk)
        desk.acknowledge(desk.find()[0].id, by="me")
        self.send(desk, clock, HOUR + 1)
        assert recorder.said() == []

    def test_acknowledged_then_snoozed_is_sent_at_the_end(self, desk, clock, recorder):
        find(desk, finding())
        self.silence(desk)
        number = desk.find()[0].id
        desk.acknowledge(number, by="me")
        self.send(desk, clock, 1)
        desk.snooze(number, seconds=HOUR)
        look(desk, clock, HOUR + 2)
        self.send(desk, clock, HOUR + 3)
        assert recorder.said() == [("opened", "run:vendor")]

    def test_message_sent_at_the_end_has_no_immediate_reminder(self, make, clock, recorder):
        desk = make("team", "late")
        recorder.failing["late"] = raising(DeliveryFailed("down"))
        find(desk, finding())
        self.send(desk, clock, 1)
        recorder.failing.clear()
        self.silence(desk)
        self.send(desk, clock, HOUR + 1)
        look(desk, clock, HOUR + 2)
        self.send(desk, clock, HOUR + 3)
        assert recorder.said("late") == [("opened", "run:vendor")]
        assert recorder.said("team") == [("opened", "run:vendor"), ("repeated", "run:vendor")]
        look(desk, clock, 2 * HOUR + 3)
        self.send(desk, clock, 2 * HOUR + 4)
        assert recorder.said("late")[-1] == ("repeated", "run:vendor")

    def test_digest_of_quiet_hours_leaves_out_silenced_alerts(self, make, clock, recorder):
        desk = make(quiet=Quiet(time(11), time(13), ZoneInfo("UTC")))
        find(
            desk, finding(urgency=P3), finding("level:slot:a", P3, key="slot:a", subject=Subject(kind="slot", name="a"))
        )
        desk.silence(seconds=2 * HOUR, reason="known", subject="vendor")
        self.send(desk, clock, HOUR)
        assert recorder.said() == [("opened", "slot:a")]
        self.send(desk, clock, 2 * HOUR)
        assert recorder.said()[1:] == [("opened", "run:vendor")]

    def test_message_is_tried_for_its_time_after_the_silence(self, desk, clock, recorder):
        recorder.failing["team"] = raising(DeliveryFailed("down"))
        find(desk, finding(urgency=P3))
        desk.silence(seconds=10 * HOUR, reason="known", subject="vendor")
        self.send(desk, clock, 10 * HOUR)
        (send,) = desk.sends(1)
        assert (send.status, send.attempts) == (SendStatus.WAITING, 1)

    def test_test_message_is_sent_while_silenced(self, make, clock, recorder):
        desk = make("pager:pagerduty")
        desk.silence(seconds=HOUR, reason="known", pipeline="vendor")
        desk.ledger.put_test(P1, pipeline="vendor", now=NOON)
        self.send(desk, clock, 1)
        self.send(desk, clock, 61)
        assert [what for what, _ in recorder.said()] == ["test", "resolved"]


class TestWithoutWatch:
    """The next judgement, also one without findings, queues the messages of ended silences and snoozes."""

    def good(self, desk):
        find(desk, gone=("run:other:failed",))

    def deliver(self, desk):
        sender = Sender(desk._database, desk.settings, deliver=Recorder())
        sender.send_due(now=desk._now())

    def named(self, name, urgency=P2, kind="pipeline"):
        evidence = f"run:{'flow/' if kind == 'flow' else ''}{name}:failed"
        return finding(evidence, urgency, key="cause:1", subject=Subject(kind=kind, name=name))

    @pytest.mark.parametrize("kind", ["pipeline", "flow"])
    def test_joining_run_ends_the_snooze_and_is_sent(self, desk, clock, kind):
        rings = []
        desk.sender.wake = lambda: rings.append(sent(desk))
        find(desk, self.named("a", kind=kind))
        self.deliver(desk)
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        clock.at = after(60)
        desk.apply(judgement(self.named("b", kind=kind)))
        assert (rings, desk.silences()) == ([["opened", "repeated"]], [])

    @pytest.mark.parametrize("how", ["silence", "snooze"])
    @pytest.mark.parametrize("early", [False, True], ids=["over", "ended early"])
    def test_complete_run_sends_after_the_end(self, desk, clock, how, early):
        find(desk, finding())
        self.deliver(desk)
        number = desk.find()[0].id
        clock.at = after(1)
        if how == "silence":
            silence = desk.silence(seconds=HOUR, reason="deploy", subject="vendor")
        else:
            silence = desk.snooze(number, seconds=HOUR)
        clock.at = after(60)
        self.good(desk)
        assert sent(desk) == ["opened"]
        if early:
            desk.end_silence(silence.id)
        clock.at = after(61 if early else HOUR + 1)
        self.good(desk)
        self.good(desk)
        assert sent(desk) == ["opened", "repeated"]

    def test_failed_run_after_the_snooze_is_sent(self, desk, clock):
        find(desk, finding())
        self.deliver(desk)
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        clock.at = after(HOUR)
        find(desk, finding())
        find(desk, finding())
        assert sent(desk) == ["opened", "repeated"]

    def test_run_a_month_after_the_silence_sends_again(self, desk, clock):
        find(desk, finding())
        self.deliver(desk)
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        clock.at = after(31 * 24 * HOUR)
        self.good(desk)
        assert sent(desk) == ["opened", "repeated"]

    def test_escalation_in_a_window_is_sent_after_it(self, make, clock):
        desk = make(maintenance=(Maintenance(begins=after(60), ends=after(HOUR)),))
        find(desk, finding(urgency=P3))
        clock.at = after(90)
        find(desk, finding(urgency=P1))
        assert sent(desk) == ["opened"]
        clock.at = after(HOUR)
        self.good(desk)
        assert sent(desk)[-1] == "escalated"

    def test_acknowledged_alert_is_not_sent_again(self, desk, clock):
        find(desk, finding())
        self.deliver(desk)
        desk.snooze(desk.find()[0].id, seconds=HOUR)
        desk.acknowledge(desk.find()[0].id, by="me")
        clock.at = after(HOUR)
        self.good(desk)
        assert sent(desk) == ["opened"]

    def test_reminders_are_left_to_a_watch(self, desk, clock):
        find(desk, finding())
        self.deliver(desk)
        desk.silence(seconds=1, reason="other", subject="other")
        clock.at = after(10 * HOUR)
        self.good(desk)
        assert sent(desk) == ["opened"]

    def test_complete_run_resolves_no_unmeasured_level(self, store, desk, clock):
        find(desk, finding("level:slot:a", key="slot:a"))
        self.deliver(desk)
        find(desk, gone=("level:slot:a",))
        clock.at = after(HOUR)
        self.good(desk)
        assert (desk.find()[0].status, sent(desk)) == (AlertStatus.OPEN, ["opened"])


class TestSentByRun:
    """The process of a run sends due messages, whether or not the run opened an alert."""

    def run(self, kind, store, tmp_path, name, error=None):
        def source():
            yield {"id": 1}
            if error is not None:
                raise error

        if kind == "pipeline":
            sink = redrive.rows.parquet_dataset(tmp_path / name, key="id")
            runnable = redrive.Pipeline(name, source=redrive.rows.records(source), sink=sink, store=store, patience=0)
        else:
            runnable = redrive.Flow(name, store=store)

            @runnable.task(in_thread=True)
            def load():
                return list(source())

        if error is None:
            runnable.run()
        else:
            with pytest.raises((RunStopped, FlowStopped)):
                runnable.run()

    def sent(self, store):
        eventually(lambda: not store.alerts.unsent())
        return sent(store.alerts)

    @pytest.mark.parametrize("is_watched", [False, True], ids=["no watch", "watch"])
    @pytest.mark.parametrize("kind", ["pipeline", "flow"])
    def test_run_that_ends_a_snooze_sends_the_alert(self, store, tmp_path, kind, is_watched):
        if is_watched:
            watched(store, now=datetime.now(UTC))
        self.run(kind, store, tmp_path, "a", ValueError("schema bad"))
        assert self.sent(store) == ["opened"]
        store.alerts.snooze(store.alerts.find()[0].id, seconds=HOUR)
        self.run(kind, store, tmp_path, "b", ValueError("schema bad"))
        assert store.alerts.silences() == []
        assert self.sent(store) == ["opened", "repeated"]

    @pytest.mark.parametrize("kind", ["pipeline", "flow"])
    def test_good_run_sends_after_a_snooze(self, store, tmp_path, kind):
        self.run(kind, store, tmp_path, "a", ValueError("schema bad"))
        assert self.sent(store) == ["opened"]
        snooze = store.alerts.snooze(store.alerts.find()[0].id, seconds=HOUR)
        store.alerts.end_silence(snooze.id)
        self.run(kind, store, tmp_path, "z")
        assert self.sent(store) == ["opened", "repeated"]

    @pytest.mark.parametrize("kind", ["pipeline", "flow"])
    def test_complete_run_sends_messages_of_another_process(self, store, tmp_path, kind):
        desk = Alerts(store.database, store.alerts.settings)
        desk.sender.wake = lambda: None  # killed before it could send
        desk.apply(judgement(finding()))
        assert len(store.alerts.unsent()) == 1
        self.run(kind, store, tmp_path, "z")
        assert self.sent(store) == ["opened"]


class TestListing:
    def test_silences_are_listed_until_their_end(self, desk, clock):
        desk.silence(seconds=HOUR, reason="a", subject="x", by="me")
        desk.silence(seconds=60, reason="token=abcd1234efgh5678", pipeline="y", by="you")
        listed = desk.silences()
        assert [(one.reason[:6], one.created_by, str(one.only)) for one in listed] == [
            ("token=", "you", "pipeline y"),
            ("a", "me", "subject x"),
        ]
        assert "abcd1234" not in listed[0].reason
        clock.at = after(61)
        assert [one.reason for one in desk.silences()] == ["a"]
        assert len(desk.silences(ended=True)) == 2

    def test_old_silences_are_forgotten_with_old_alerts(self, desk, clock):
        desk.silence(seconds=60, reason="a", subject="x")
        clock.at = NOON + timedelta(days=desk.settings.keep_days + 1)
        desk.purge()
        assert desk.silences(ended=True) == []

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({}, "needs a subject, a condition or a pipeline"),
            ({"subject": "x", "seconds": 0}, "more than 0 seconds"),
            ({"subject": "x", "seconds": -5}, "more than 0 seconds"),
            ({"subject": "x", "seconds": 1e300}, "a year at most"),
            ({"subject": "x", "seconds": float("nan")}, "more than 0 seconds"),
            ({"subject": "x", "reason": " "}, "needs a reason"),
            ({"condition": "slwo"}, "no condition 'slwo'"),
        ],
    )
    def test_wrong_arguments_are_rejected(self, desk, wrong, says):
        with pytest.raises(AlertError, match=says):
            desk.silence(**{"seconds": HOUR, "reason": "known", **wrong})
        assert desk.silences(ended=True) == []


class TestMaintenance:
    def test_window_delays_messages_until_its_end(self, make, clock):
        window = Maintenance(only=AlertFilter(pipelines=("vendor",)), begins=after(-60), ends=after(HOUR))
        desk = make(maintenance=(window,))
        find(desk, finding(), finding("level:slot:a", key="slot:a", subject=Subject(kind="slot", name="a")))
        assert sent(desk) == ["opened"]
        assert list(desk.silenced_until(desk.find()).values()) == [after(HOUR)]
        look(desk, clock, HOUR)
        assert sent(desk) == ["opened", "opened"]

    @pytest.mark.parametrize(
        ("moment", "ends"),
        [
            (datetime(2027, 3, 6, 21, 30, tzinfo=UTC), datetime(2027, 3, 7, 1, 0, tzinfo=UTC)),  # Saturday night
            (datetime(2027, 3, 7, 0, 30, tzinfo=UTC), datetime(2027, 3, 7, 1, 0, tzinfo=UTC)),  # it began on Saturday
            (datetime(2027, 3, 7, 21, 30, tzinfo=UTC), None),  # Sunday night
            (datetime(2027, 3, 6, 12, 0, tzinfo=UTC), None),
        ],
    )
    def test_weekly_window_belongs_to_its_starting_day(self, moment, ends):
        hours = Quiet(time(22), time(2), ZoneInfo("Europe/Berlin"))
        assert Maintenance(hours=hours, days=frozenset({5})).until(moment) == ends
