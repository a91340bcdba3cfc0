"""Messages in a store: claimed by one sender, delivered in order, retried, and never lost."""

import itertools
import json
import subprocess
import threading
from datetime import time, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import update

import redrive
from redrive.alerts.config.settings import Quiet
from redrive.alerts.delivery import outbox as outboxes
from redrive.alerts.delivery.channels import DeliveryFailed
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.model.alerts import SendStatus, Severity, What
from redrive.store.schema import alert_sends
from tests.support.alerts import (
    EVERYTHING,
    NOON,
    P1,
    P2,
    P3,
    LostAnswers,
    Recorder,
    after,
    finding,
    judgement,
    many,
    raising,
    settings,
)
from tests.support.warm_python import warm_python

SLACK = settings(storm=99)
GONE = judgement(under=EVERYTHING)
NIGHT = Quiet(time(22), time(7), ZoneInfo("UTC"))
MIDNIGHT = after(12 * 3_600)
MORNING = after(19 * 3_600)


class Longest:
    """Chance that always draws the longest wait."""

    def uniform(self, low, high):
        return high


@pytest.fixture
def ledger(store):
    return AlertRepository(store.database, SLACK)


@pytest.fixture
def outbox(store):
    return Outbox(store.database, SLACK, chance=Longest())


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def sender(store, recorder):
    return Sender(store.database, SLACK, deliver=recorder)


def only(ledger, alert_id=1):
    (send,) = ledger.sends(alert_id)
    return send


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_claimed_message_is_exclusive_until_sent(ledger, outbox, store):
    ledger.apply(judgement(finding()), now=NOON)
    claim = outbox.claim("slack", now=NOON)
    assert [(what, alert.key) for what, alert in claim.messages] == [(What.OPENED, "run:vendor")]
    assert Outbox(store.database, SLACK).claim("slack", now=after(30)) is None
    outbox.sent(claim, now=after(31))
    assert outbox.claim("slack", now=after(9_999)) is None
    send = only(ledger)
    assert (send.status, send.sent_at, send.attempts) == (SendStatus.SENT, after(31), 1)
    assert ledger.unsent() == []


def test_expired_claim_is_free_and_its_late_result_ignored(ledger, outbox):
    ledger.apply(judgement(finding()), now=NOON)
    silent = outbox.claim("slack", now=NOON)
    assert outbox.claim("slack", now=after(61)) is None
    second = outbox.claim("slack", now=after(62))
    assert second is not None
    outbox.failed(silent, "too late", now=after(63))
    outbox.sent(silent, now=after(64))
    assert only(ledger).status is SendStatus.WAITING
    assert outbox.claim("slack", now=after(65)) is None, "it is in the hand of the second"
    outbox.sent(second, now=after(66))
    assert only(ledger).sent_at == after(66)


CLAIMS_AND_DIES = """
import os, sys, redrive
from datetime import datetime
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.config.settings import AlertSettings, Channel
store = redrive.connect(sys.argv[1])
channels = {"slack": Channel(name="slack", kind="slack", target="https://hooks.example/x", timeout=0.2)}
claim = Outbox(store.database, AlertSettings(channels=channels)).claim("slack", now=datetime.fromisoformat(sys.argv[2]))
print(len(claim.messages), flush=True)
os.kill(os.getpid(), 9)
"""


def test_claim_of_a_killed_process_is_free_at_once(ledger, outbox, store_url):
    ledger.apply(judgement(finding()), now=NOON)
    dead = subprocess.run(
        warm_python("-c", CLAIMS_AND_DIES, store_url, NOON.isoformat()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (dead.returncode, dead.stdout) == (-9, "1\n"), dead.stderr
    assert outbox.claim("slack", now=after(1)) is not None


def test_message_is_not_claimed_before_it_is_due(store):
    ledger, outbox = AlertRepository(store.database, QUIET), Outbox(store.database, QUIET)
    ledger.apply(judgement(finding(urgency=P3)), now=MIDNIGHT)
    assert outbox.claim("slack", now=MORNING - timedelta(seconds=1)) is None
    assert outbox.due(now=MIDNIGHT).channels == {"slack": MORNING}


def test_message_for_an_unknown_channel_is_left_unclaimed(store, sender, recorder):
    ledger = AlertRepository(store.database, settings("slack", "elsewhere"))
    ledger.apply(judgement(finding()), now=NOON)
    assert sender.send_due(now=NOON) == 1
    assert recorder.said() == [("opened", "run:vendor")]
    assert [(send.channel, send.attempts) for send in ledger.unsent()] == [("elsewhere", 0)]
    there = Sender(store.database, settings("elsewhere"), deliver=recorder)
    assert there.send_due(now=NOON) == 1
    assert ledger.unsent() == []


def test_concurrent_senders_send_each_message_once(store_url, recorder):
    keys = {one.key for one in many(30)}
    with redrive.connect(store_url) as store:
        AlertRepository(store.database, SLACK).apply(judgement(*many(30)))
    gate, sent, errors = threading.Barrier(4), [], []

    def send():
        try:
            with redrive.connect(store_url) as store:
                sender = Sender(store.database, SLACK, deliver=recorder)
                gate.wait()
                sent.append(sender.send_due())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(sent) == 30
    assert sorted(key for _, key in recorder.said()) == sorted(keys)


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_resolved_message_waits_for_opened_message(ledger, outbox, sender, recorder):
    ledger.apply(judgement(finding()), now=NOON)
    first = outbox.claim("slack", now=NOON)
    ledger.apply(GONE, now=after(1))
    assert sender.send_due(now=after(1)) == 0
    outbox.failed(first, "503", now=after(2))
    assert sender.send_due(now=after(2)) == 0
    assert sender.send_due(now=after(60)) == 2
    assert recorder.said() == [("opened", "run:vendor"), ("resolved", "run:vendor")]


def test_failing_message_does_not_delay_other_alerts(ledger, store, recorder):
    ledger.apply(judgement(finding(urgency=P1), *many(2, P3)), now=NOON)

    def refuses_the_first(channel, message):
        if message.key == "run:vendor":
            raise DeliveryFailed("503")
        recorder(channel, message)

    sender = Sender(store.database, SLACK, deliver=refuses_the_first)
    for minute in range(5):
        sender.send_due(now=after(60 * minute))
    assert recorder.said() == [("opened", "slot:0"), ("opened", "slot:1")]


def test_channel_that_is_back_gets_open_alerts_first(ledger, outbox, sender, recorder):
    """A wait of minutes was drawn for the P1. It ends with the first message that the channel accepts."""
    ledger.apply(judgement(finding(urgency=P1)), now=NOON)
    for seconds in (0, 15, 45, 105, 225, 465, 945):
        outbox.failed(outbox.claim("slack", now=after(seconds)), "503", now=after(seconds))
    over = finding("run:crm:failed", P2, key="run:crm")
    ledger.apply(judgement(over), now=after(945))
    outbox.failed(outbox.claim("slack", now=after(945)), "503", now=after(945))
    ledger.apply(judgement(judged=[over.evidence]), now=after(950))
    ledger.apply(judgement(finding("run:geo:failed", P3, key="run:geo")), now=after(1_000))
    sender.send_due(now=after(1_000))
    assert recorder.said() == [
        ("opened", "run:geo"),
        ("opened", "run:vendor"),
        ("opened", "run:crm"),
        ("resolved", "run:crm"),
    ]


class TestReopenedKey:
    """An alert is resolved and opens again under its key: a channel must not get the old resolution last."""

    @pytest.fixture(params=["hub:webhook", "pd:pagerduty"])
    def world(self, request, store, recorder):
        chosen = settings(request.param, storm=99, quiet=NIGHT)
        ledger = AlertRepository(store.database, chosen)
        return (
            ledger,
            Outbox(store.database, chosen, chance=Longest()),
            Sender(store.database, chosen, deliver=recorder),
        )

    def _reopen(self, ledger, at, urgency=P1):
        ledger.apply(GONE, now=at)
        ledger.apply(judgement(finding(urgency=urgency)), now=at)

    def test_resolved_message_is_sent_before_the_newer_opened(self, world, recorder):
        ledger, _, sender = world
        ledger.apply(judgement(finding()), now=NOON)
        sender.send_due(now=NOON)
        self._reopen(ledger, after(1))
        sender.send_due(now=after(1))
        assert recorder.said() == [("opened", "run:vendor"), ("resolved", "run:vendor"), ("opened", "run:vendor")]

    def test_order_is_kept_after_an_outage_of_the_channel(self, world, recorder):
        ledger, outbox, sender = world
        (name,) = set(outbox.channels) - {"log"}
        ledger.apply(judgement(finding()), now=NOON)
        outbox.failed(outbox.claim(name, now=NOON), "500", now=NOON)
        self._reopen(ledger, after(60))
        sender.send_due(now=after(60))
        assert [what for what, _ in recorder.said()] == ["opened", "resolved", "opened"]
        assert ledger.unsent() == []

    def test_failed_resolved_message_does_not_affect_newer_alert(self, world, recorder):
        ledger, outbox, sender = world
        (name,) = set(outbox.channels) - {"log"}
        ledger.apply(judgement(finding()), now=NOON)
        sender.send_due(now=NOON)
        ledger.apply(GONE, now=after(1))
        claim = outbox.claim(name, now=after(1))
        ledger.apply(judgement(finding()), now=after(2))
        assert sender.send_due(now=after(2)) == 0  # the older message is on its way: it must not arrive later
        outbox.failed(claim, "500", now=after(3))
        assert sender.send_due(now=after(3)) == 1
        sender.send_due(now=after(3_600))
        assert [what for what, _ in recorder.said()] == ["opened", "opened"]
        assert ledger.unsent() == []

    def test_digest_names_the_open_alert(self, world, recorder):
        ledger, _, sender = world
        ledger.apply(judgement(finding(urgency=P3), finding("x", P3, key="x")), now=NOON)
        sender.send_due(now=NOON)
        self._reopen(ledger, MIDNIGHT, P3)
        ledger.apply(judgement(finding("y", P3, key="y")), now=MIDNIGHT)
        sender.send_due(now=MORNING)
        told = [(part.key, part.what) for _, message in recorder.messages[2:] for part in (message.parts or (message,))]
        assert [what for key, what in told if key == "run:vendor"][-1] is What.OPENED

    def test_more_severe_alert_ignores_quiet_hours(self, world, recorder):
        ledger, _, sender = world
        ledger.apply(judgement(finding(urgency=P3)), now=NOON)
        sender.send_due(now=NOON)
        self._reopen(ledger, MIDNIGHT, P1)
        assert sender.send_due(now=MIDNIGHT) == 1
        sender.send_due(now=MORNING)
        assert [what for what, _ in recorder.said()] == ["opened", "opened"]


# ── tries ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tried(ledger, outbox, *, times, urgency=P1, until=None, **failure):
    """The times of this many failed attempts."""
    ledger.apply(judgement(finding(urgency=urgency)), now=NOON)
    moments = []
    while len(moments) < times and only(ledger).status is SendStatus.WAITING:
        at = only(ledger).due_at
        moments.append((at - NOON).total_seconds())
        outbox.failed(outbox.claim("slack", now=at), "500 from the hook", now=at, **failure)
    return moments


def test_failed_delivery_is_retried_with_growing_waits(ledger, outbox):
    moments = tried(ledger, outbox, times=10)
    waits = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert waits == [15, 30, 60, 120, 240, 480, 900, 900, 900]
    send = only(ledger)
    assert (send.attempts, send.error, send.status) == (10, "500 from the hook", SendStatus.WAITING)


def test_waits_have_full_jitter(ledger, store):
    ledger.apply(judgement(*many(40)), now=NOON)
    outbox = Outbox(store.database, SLACK)
    while (claim := outbox.claim("slack", now=NOON)) is not None:
        outbox.failed(claim, "500", now=NOON)
    waits = [(send.due_at - NOON).total_seconds() for send in ledger.unsent()]
    assert all(0 <= wait <= 15 for wait in waits)
    assert min(waits) < 5 < 10 < max(waits)


def test_retry_after_of_a_channel_is_the_minimum_wait(ledger, outbox):
    assert tried(ledger, outbox, times=3, retry_after=100.0) == [0, 100, 200]


@pytest.mark.parametrize("ages", [1e20, float("inf")])
def test_very_long_retry_after_gets_a_last_attempt_at_expiry(ledger, outbox, ages):
    assert tried(ledger, outbox, times=9, retry_after=ages) == [0, 86_400]
    assert only(ledger).status is SendStatus.FAILED


@pytest.mark.parametrize(("urgency", "hours"), [(P1, 24), (P2, 12), (P3, 6)])
def test_message_is_dropped_after_last_attempt_and_kept_listed(ledger, outbox, urgency, hours):
    moments = tried(ledger, outbox, times=1_000, urgency=urgency)
    assert moments[-1] == hours * 3_600
    (send,) = ledger.unsent()
    assert (send.status, send.error, send.attempts) == (SendStatus.FAILED, "500 from the hook", len(moments))


def test_retry_after_beyond_expiry_gets_a_last_attempt(ledger, outbox):
    assert tried(ledger, outbox, times=9, retry_after=1e9) == [0, 86_400]


def test_permanent_failure_drops_message_with_its_reason(ledger, sender, recorder):
    recorder.failing["slack"] = raising(DeliveryFailed("404: no such hook", permanent=True))
    ledger.apply(judgement(finding()), now=NOON)
    assert sender.send_due(now=NOON) == 0
    (send,) = ledger.unsent()
    assert (send.status, send.error, send.attempts) == (SendStatus.FAILED, "404: no such hook", 1)


def test_failed_test_message_is_not_retried(ledger, sender, recorder):
    recorder.failing["slack"] = raising(DeliveryFailed("503"))
    alert = ledger.put_test(P1, now=NOON)
    sender.send_due(now=NOON, alert_id=alert.id)
    assert only(ledger, alert.id).status is SendStatus.FAILED


def test_delivery_errors_are_masked(ledger, sender, recorder):
    recorder.failing["slack"] = raising(RuntimeError("https://ann:hunter22@hooks.example refused password=hunter22"))
    ledger.apply(judgement(finding()), now=NOON)
    sender.send_due(now=NOON)
    assert "hunter22" not in only(ledger).error
    assert only(ledger).error.startswith("RuntimeError: https://ann:***@hooks.example")


# ── storms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_storm_is_summarized_and_later_messages_wait(store, recorder):
    five = settings("slack", storm=5, storm_window=300)
    ledger, sender = AlertRepository(store.database, five), Sender(store.database, five, deliver=recorder)
    ledger.apply(judgement(*many(60)), now=NOON)
    assert sender.send_due(now=NOON) == 6
    assert [what for what, _ in recorder.said()] == ["opened"] * 5 + ["summary"]
    assert len(recorder.messages[-1][1].parts) == 55
    assert ledger.unsent() == []
    ledger.apply(judgement(*many(7, start=100)), now=after(60))
    assert sender.send_due(now=after(299)) == 0
    assert sender.send_due(now=after(301)) == 1
    assert [what for what, _ in recorder.said()][6:] == ["summary"]


def test_consecutive_alerts_are_a_storm(store, recorder):
    three = settings("slack", storm=3, storm_window=300)
    ledger, sender = AlertRepository(store.database, three), Sender(store.database, three, deliver=recorder)
    for number in range(12):
        ledger.apply(judgement(*many(1, start=number)), now=after(10 * number))
        sender.send_due(now=after(10 * number))
    assert [what for what, _ in recorder.said()] == ["opened"] * 3
    sender.send_due(now=after(301))
    assert [what for what, _ in recorder.said()[3:]] == ["summary"], "one message, as soon as there may be one"
    for number in range(12, 40):
        ledger.apply(judgement(*many(1, start=number)), now=after(300 + 10 * number))
        sender.send_due(now=after(300 + 10 * number))
    assert [what for what, _ in recorder.said()[4:]] == ["summary"], "a storm that lasts is one summary in each window"


@pytest.mark.parametrize("raised", [False, True])
def test_storm_delays_no_more_severe_alert(store, recorder, raised):
    five = settings("slack", storm=5, storm_window=300)
    ledger, sender = AlertRepository(store.database, five), Sender(store.database, five, deliver=recorder)
    for number in range(8):
        ledger.apply(judgement(*many(1, start=number)), now=after(number))
        sender.send_due(now=after(number))
    assert len(recorder.messages) == 5
    key = "slot:7" if raised else "slot:99"
    ledger.apply(judgement(finding("run:vendor:later", P1, key=key)), now=after(9))
    sender.send_due(now=after(9))
    assert recorder.said()[5:] == [("escalated" if raised else "opened", key)]
    sender.send_due(now=after(301))
    assert [what for what, _ in recorder.said()[6:]] == ["summary"]


class TestFastClock:
    def test_waiting_message_is_sent_at_once(self, store, recorder):
        one = settings("slack")
        ledger, sender = AlertRepository(store.database, one), Sender(store.database, one, deliver=recorder)
        ledger.apply(judgement(*many(1)), now=after(86_400))
        assert sender.send_due(now=NOON) == 1

    def test_messages_sent_then_do_not_fill_the_window(self, store, recorder):
        two = settings("slack", storm=2)
        ledger, sender = AlertRepository(store.database, two), Sender(store.database, two, deliver=recorder)
        ledger.apply(judgement(*many(5)), now=after(86_400))
        assert sender.send_due(now=after(86_400)) == 3
        ledger.apply(judgement(*many(1, start=5)), now=NOON)
        assert sender.send_due(now=NOON) == 1

    def test_alert_is_sent_again_after_its_interval(self, store, recorder):
        one = settings("slack")
        ledger, sender = AlertRepository(store.database, one), Sender(store.database, one, deliver=recorder)
        ledger.apply(judgement(*many(1, P1)), now=after(86_400))
        sender.send_due(now=after(86_400))
        for seconds in (0, 3_599, 3_600):
            ledger.pass_time(now=after(seconds))
            sender.send_due(now=after(seconds))
        assert [what for what, _ in recorder.said()] == ["opened", "repeated"]


def test_storms_are_per_channel_except_pagerduty(store, recorder):
    both = settings("pager:pagerduty", "slack", storm=2)
    ledger, sender = AlertRepository(store.database, both), Sender(store.database, both, deliver=recorder)
    ledger.apply(judgement(*many(9)), now=NOON)
    sender.send_due(now=NOON)
    assert [what for what, _ in recorder.said("slack")] == ["opened", "opened", "summary"]
    assert recorder.said("pager") == [("opened", f"slot:{n}") for n in range(9)]


def test_failed_summary_is_sent_again_as_a_summary(store, recorder):
    none = settings("slack", storm=0)
    ledger, sender = AlertRepository(store.database, none), Sender(store.database, none, deliver=recorder)
    ledger.apply(judgement(*many(4)), now=NOON)
    recorder.failing["slack"] = raising(DeliveryFailed("503"))
    sender.send_due(now=NOON)
    assert {(send.attempts, send.error) for send in ledger.unsent()} == {(1, "503")}
    recorder.failing.clear()
    sender.send_due(now=after(60))
    assert [what for what, _ in recorder.said()] == ["summary"]


# ── quiet hours ───────────────────────────────────────────────────────────────────────────────────────────────────────

QUIET = settings("slack", quiet=NIGHT)


@pytest.fixture
def night(store, recorder):
    return AlertRepository(store.database, QUIET), Sender(store.database, QUIET, deliver=recorder)


def test_quiet_hours_collect_messages_into_one_digest(night, recorder):
    ledger, sender = night
    ledger.apply(judgement(*many(3, P3), finding(urgency=P2)), now=MIDNIGHT)
    assert sender.send_due(now=MIDNIGHT) == 1
    assert sender.send_due(now=MORNING - timedelta(seconds=1)) == 0
    assert sender.send_due(now=MORNING) == 1
    assert [what for what, _ in recorder.said()] == ["opened", "digest"]
    assert {send.sent_at for send in ledger.sends(2)} <= {MIDNIGHT, MORNING}


def test_alert_opened_and_over_in_quiet_hours_is_one_message(night, recorder):
    ledger, sender = night
    ledger.apply(judgement(finding(urgency=P3), finding("x", P3, key="x")), now=MIDNIGHT)
    ledger.apply(judgement(judged=["run:vendor:failed"]), now=MIDNIGHT + timedelta(hours=1))
    sender.send_due(now=MORNING)
    ((_, digest),) = recorder.messages
    assert sorted((part.key, part.what) for part in digest.parts) == [("run:vendor", What.RESOLVED), ("x", What.OPENED)]
    assert ledger.unsent() == []


def test_alert_resolved_in_quiet_hours_is_in_the_digest(night, recorder):
    ledger, sender = night
    ledger.apply(judgement(finding(urgency=P3)), now=NOON)
    sender.send_due(now=NOON)
    ledger.apply(GONE, now=MIDNIGHT)
    assert sender.send_due(now=MIDNIGHT) == 0
    assert sender.send_due(now=MORNING) == 1
    assert recorder.said() == [("opened", "run:vendor"), ("resolved", "run:vendor")]


def test_raised_severity_ignores_quiet_hours(night, recorder):
    ledger, sender = night
    ledger.apply(judgement(finding(urgency=P3)), now=MIDNIGHT)
    ledger.apply(judgement(finding(urgency=P1)), now=MIDNIGHT + timedelta(hours=1))
    assert sender.send_due(now=MIDNIGHT + timedelta(hours=1)) == 1
    assert sender.send_due(now=MORNING) == 0
    assert recorder.said() == [("escalated", "run:vendor")]


def test_resolution_of_a_page_ignores_quiet_hours(night, recorder):
    ledger, sender = night
    ledger.apply(judgement(finding(urgency=P2)), now=MIDNIGHT)
    ledger.apply(judgement(finding(urgency=P3)), now=MIDNIGHT)
    ledger.apply(GONE, now=MIDNIGHT)
    sender.send_due(now=MIDNIGHT)
    assert recorder.said() == [("opened", "run:vendor"), ("resolved", "run:vendor")]


def test_digest_expiry_counts_from_the_morning(night, store):
    ledger, _ = night
    ledger.apply(judgement(finding(urgency=P3)), now=MIDNIGHT)
    outbox = Outbox(store.database, QUIET, chance=Longest())
    for _ in range(1_000):
        send = only(ledger)
        if send.status is SendStatus.FAILED:
            break
        outbox.failed(outbox.claim("slack", now=send.due_at), "503", now=send.due_at)
    assert only(ledger).due_at == MORNING + outboxes.MAX_AGE[P3]


def test_test_message_ignores_quiet_hours(night, recorder):
    ledger, sender = night
    alert = ledger.put_test(P3, now=MIDNIGHT)
    assert sender.send_due(now=MIDNIGHT, alert_id=alert.id) == 1


# ── a commit whose answer was lost ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after_commits", range(4))
def test_lost_commit_answer_sends_no_message_twice(ledger, sender, store, recorder, monkeypatch, after_commits):
    ledger.apply(judgement(*many(2)), now=NOON)
    answers = LostAnswers(store.database, monkeypatch)
    answers.strike(after=after_commits)  # two claims, two marks
    assert sender.send_due(now=NOON) == 2
    assert answers.struck == 1
    assert recorder.said() == [("opened", "slot:0"), ("opened", "slot:1")]
    assert {send.attempts for send in (*ledger.sends(1), *ledger.sends(2))} == {1}


def test_lost_commit_answer_counts_a_failed_delivery_once(ledger, outbox, store, monkeypatch):
    ledger.apply(judgement(finding()), now=NOON)
    claim = outbox.claim("slack", now=NOON)
    answers = LostAnswers(store.database, monkeypatch)
    answers.strike()
    outbox.failed(claim, "503", now=NOON)
    assert only(ledger).attempts == 1


# ── manual changes of the store ───────────────────────────────────────────────────────────────────────────────────────


def test_claim_owner_is_stored(ledger, outbox, store):
    ledger.apply(judgement(finding()), now=NOON)
    outbox.claim("slack", now=NOON)
    held = store.database.read(lambda connection: connection.execute(alert_sends.select()).one())
    assert json.loads(held.owner)["pid"] > 0
    assert held.owner_until == after(61.2)


def test_released_message_is_sent_again(ledger, sender, recorder, store):
    ledger.apply(judgement(finding(urgency=Severity.P2)), now=NOON)
    recorder.failing["slack"] = raising(DeliveryFailed("404", permanent=True))
    sender.send_due(now=NOON)
    recorder.failing.clear()
    again = update(alert_sends).values(status="waiting")
    store.database.write(lambda connection: connection.execute(again))
    assert sender.send_due(now=after(1)) == 1
