"""Messages are sent in the background: no channel delays or fails a run, and no message is lost."""

import gc
import threading
import time
import weakref
from dataclasses import replace
from datetime import timedelta

import pytest

import redrive
from redrive.alerts.config.settings import AlertSettings, Channel
from redrive.alerts.delivery import dispatcher
from redrive.alerts.delivery.channels import DeliveryFailed
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.errors import StoreError
from redrive.model.alerts import Facts, SendStatus, Severity
from redrive.store.database import Database
from redrive.testing import Answer, FaultyServer
from tests.support.alerts import Recorder, after, finding, judgement, many, raising, settings

LONG = 60.0  # seconds: longer than anything takes, a hang that is to end a test excepted


@pytest.fixture
def url(new_store):
    with new_store("sqlite") as url:
        yield url


@pytest.fixture
def store(url):
    with redrive.connect(url) as store:
        yield store


@pytest.fixture
def sending(store):
    """Makes senders, and ends them."""
    made = []

    def make(chosen, **options):
        made.append(Sender(store.database, chosen, **options))
        return AlertRepository(store.database, chosen), made[-1]

    yield make
    for sender in made:
        sender.close()


def eventually(is_so):
    """Wait until it is so."""
    ends = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < ends, "it has not become so"
        time.sleep(0.005)


def threads(name="redrive-alerts"):
    return [thread for thread in threading.enumerate() if thread.name == name]


def states(ledger):
    return {(send.channel, send.status) for alert in ledger.find() for send in ledger.sends(alert.id)}


class Gate:
    """A channel that hangs until it is let go."""

    def __init__(self):
        self.reached, self.opened = threading.Semaphore(0), threading.Event()

    def __call__(self):
        self.reached.release()
        assert self.opened.wait(LONG)


# ── trap 40 ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_40_failing_channel_fails_no_run_and_loses_no_alert(sending, store):
    """One channel raises, one hangs, one answers 500, one is not there, one works."""
    recorder, gate = Recorder(), Gate()
    recorder.failing = {"raises": raising(ZeroDivisionError("a bug")), "hangs": gate}
    with FaultyServer() as server:
        server.on("/down", Answer(500, body="out of order"))
        named = {
            "down": Channel(name="down", kind="webhook", target=f"{server.url}/down", timeout=5),
            "gone": Channel(name="gone", kind="webhook", target="http://127.0.0.1:1/gone", timeout=5),
            **{
                name: Channel(name=name, kind="webhook", target="x", timeout=0.1)
                for name in ("raises", "hangs", "works")
            },
        }
        chosen = AlertSettings(channels=named, routes={Severity.P1: tuple(named)}, exit_wait=LONG)

        def deliver(channel, message):
            if channel.name in ("down", "gone"):
                from redrive.alerts.delivery.channels import deliver as really

                really(channel, message)
            else:
                recorder(channel, message)

        ledger, sender = sending(chosen, deliver=deliver)
        ledger.apply(judgement(finding()))
        sender.wake()  # as a run does at its end: it continues at once, whatever the delivery does
        eventually(lambda: all(send.attempts for send in ledger.sends(1)))
        assert recorder.said() == [("opened", "run:vendor")]
        found = {send.channel: send for send in ledger.sends(1)}
        assert found["works"].status is SendStatus.SENT
        for name, reason in {
            "raises": "ZeroDivisionError: a bug",
            "hangs": "no answer within 1.1 s",
            "down": "out of order",
            "gone": "refused",
        }.items():
            assert found[name].status is SendStatus.WAITING
            assert reason in found[name].error
        # The store is back: nothing was lost.
        recorder.failing.clear()
        gate.opened.set()
        server.clear()
        server.on("/down", Answer(200))
        due = max(send.due_at for send in ledger.unsent()) + timedelta(seconds=120)
        later = Sender(store.database, chosen, deliver=recorder)
        assert later.send_due(now=due) == 4
    assert ledger.unsent() == []


def test_receiver_that_fails_and_hangs_gets_alert_on_recovery(store):
    with FaultyServer() as server:
        server.on("/hook", Answer(500), Answer(hang=True), Answer(429, retry_after=100), Answer(200))
        hook = Channel(name="hook", kind="webhook", target=f"{server.url}/hook", timeout=0.5)
        chosen = AlertSettings(channels={"hook": hook}, routes={Severity.P1: ("hook",)})
        ledger, sender = AlertRepository(store.database, chosen), Sender(store.database, chosen)
        now = after(0)
        ledger.apply(judgement(finding()), now=now)
        for tries, waits in ((1, 15), (2, 30), (3, 100)):
            assert sender.send_due(now=now) == 0
            (send,) = ledger.sends(1)
            assert (send.attempts, send.status) == (tries, SendStatus.WAITING)
            now = max(send.due_at, now + timedelta(seconds=60))
            assert send.due_at >= after(100) or waits < 100
        assert sender.send_due(now=now) == 1
        assert server.count("/hook") == 4


# ── in the background ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_hanging_channel_does_not_delay_others(sending):
    recorder, gate = Recorder(), Gate()
    recorder.failing = {"slow": gate}
    ledger, sender = sending(slowly("slow", "quick"), deliver=recorder)
    ledger.apply(judgement(finding()))
    sender.wake()
    assert gate.reached.acquire(timeout=LONG)
    eventually(lambda: recorder.said("quick"))
    ledger.apply(judgement(*many(2)))
    sender.wake()
    eventually(lambda: len(recorder.said("quick")) == 3)
    assert recorder.said("slow") == []
    gate.opened.set()
    eventually(lambda: len(recorder.said("slow")) == 3)


def slowly(*names):
    """Settings whose channels have all the time in the world."""
    named = {name: Channel(name=name, kind="webhook", target="x", timeout=LONG) for name in names}
    return AlertSettings(channels=named, routes=dict.fromkeys(Severity, names), exit_wait=LONG, storm=99)


def test_idle_thread_ends_and_next_message_starts_another(sending):
    before, recorder = len(threads()), Recorder()
    ledger, sender = sending(settings("slack"), deliver=recorder)
    for times in (1, 2):
        ledger.apply(judgement(*many(1, start=times)))
        sender.wake()
        eventually(lambda times=times: len(recorder.messages) == times and len(threads()) == before)
    eventually(lambda: threads("redrive-to-slack") == [])


def test_failed_delivery_is_retried(sending, monkeypatch):
    monkeypatch.setattr("redrive.alerts.delivery.outbox.BASE", 0.01)
    monkeypatch.setattr(dispatcher, "PAUSE", 0.01)
    recorder, failures = Recorder(), iter([DeliveryFailed("503")] * 3)

    def deliver(channel, message):
        for failure in failures:
            raise failure
        recorder(channel, message)

    ledger, sender = sending(settings("slack"), deliver=deliver)
    ledger.apply(judgement(finding()))
    sender.wake()
    eventually(lambda: recorder.messages)
    eventually(lambda: states(ledger) == {("slack", SendStatus.SENT)})
    assert [send.attempts for send in ledger.sends(1)] == [4]


def test_failed_channel_gets_no_message_until_backoff_ends(sending):
    recorder, tries = Recorder(), []
    recorder.failing = {"slack": lambda: tries.append(1) or raising(DeliveryFailed("503"))()}
    ledger, sender = sending(settings("slack", "mail", storm=99), deliver=recorder)
    ledger.apply(judgement(*many(20)), now=after(0))
    assert sender.send_due(now=after(0)) == 20
    assert len(tries) == 1
    assert len(recorder.said("mail")) == 20
    for minute in range(1, 5):
        sender.send_due(now=after(60 * minute))
    assert len(tries) == 5


def test_backoff_of_a_channel_ignores_the_database_clock(sending, store, monkeypatch):
    monkeypatch.setattr(dispatcher, "PAUSE", 0.01)
    now = type(store.database.dialect).now
    slow = lambda dialect, connection: now(dialect, connection) - timedelta(minutes=10)  # noqa: E731
    monkeypatch.setattr(type(store.database.dialect), "now", slow)
    recorder, failures = Recorder(), iter([DeliveryFailed("503")])

    def deliver(channel, message):
        for failure in failures:
            raise failure
        recorder(channel, message)

    ledger, sender = sending(settings("slack"), deliver=deliver)
    ledger.apply(judgement(*many(1)))
    sender.wake()
    eventually(lambda: ledger.sends(1)[0].attempts == 1)
    ledger.apply(judgement(*many(1, start=1)))
    sender.wake()
    eventually(lambda: ("opened", "slot:1") in recorder.said())


def test_abandoned_delivery_that_returns_late_changes_nothing(sending):
    recorder, gate = Recorder(), Gate()
    recorder.failing = {"slack": gate}
    ledger, sender = sending(settings("slack"), deliver=recorder)
    ledger.apply(judgement(finding()), now=after(0))
    assert sender.send_due(now=after(0)) == 0
    (send,) = ledger.sends(1)
    assert (send.attempts, send.error) == (1, "no answer within 1.2 s")
    gate.opened.set()
    eventually(lambda: recorder.messages)
    assert states(ledger) == {("slack", SendStatus.WAITING)}
    assert sender.send_due(now=after(100)) == 1


def test_hanging_channel_costs_a_bounded_number_of_threads(sending):
    recorder, gate = Recorder(), Gate()
    recorder.failing = {"slack": gate}
    ledger, sender = sending(settings("slack"), deliver=recorder)
    ledger.apply(judgement(*many(10)), now=after(0))
    for minute in range(6):
        sender.send_due(now=after(60 * minute))
    assert len(threads("redrive-to-slack")) == dispatcher.MAX_HANGING_DELIVERIES
    gate.opened.set()
    recorder.failing.clear()
    eventually(lambda: threads("redrive-to-slack") == [])
    for minute in range(60, 75):
        sender.send_due(now=after(60 * minute))
    assert ledger.unsent() == []


def test_close_waits_for_due_messages(sending):
    recorder = Recorder()
    ledger, sender = sending(settings("slack", storm=99), deliver=recorder)
    ledger.apply(judgement(*many(20)))
    sender.wake()
    sender.close()
    assert ledger.unsent() == []
    ledger.apply(judgement(finding()))
    sender.wake()  # it may be used again
    sender.close()
    assert len(recorder.messages) == 21


def test_close_does_not_wait_for_later_messages_or_forever(sending):
    gate = Gate()
    recorder = Recorder()
    recorder.failing = {"slow": gate}
    chosen = AlertSettings(
        channels={"slow": Channel(name="slow", kind="webhook", target="x", timeout=LONG)},
        routes=dict.fromkeys(Severity, ("slow",)),
        exit_wait=0.05,
    )
    ledger, sender = sending(chosen, deliver=recorder)
    ledger.apply(judgement(*many(2)))
    sender.wake()
    assert gate.reached.acquire(timeout=LONG)
    sender.close()
    assert recorder.messages == []
    gate.opened.set()
    eventually(lambda: threads() == [])
    assert len(recorder.messages) == 1, "what was on its way has arrived, nothing more was begun"
    assert sorted(status for _, status in states(ledger)) == [SendStatus.SENT, SendStatus.WAITING]


# ── when the store or the machine is in trouble ───────────────────────────────────────────────────────────────────────


def test_messages_wait_while_the_store_is_lost(sending, monkeypatch):
    recorder, read, lost = Recorder(), Database.read, []

    def unsteady(database, work):
        if len(lost) < 2:
            lost.append(1)
            raise StoreError("the server is gone")
        return read(database, work)

    ledger, sender = sending(settings("slack"), deliver=recorder)
    ledger.apply(judgement(finding()))
    with monkeypatch.context() as patched:
        patched.setattr(Database, "read", unsteady)
        sender.wake()
        eventually(lambda: recorder.messages)
    assert len(lost) == 2


def test_delivery_during_store_loss_is_marked_later_not_resent(sending, monkeypatch):
    recorder, sent, lost = Recorder(), Outbox.sent, []

    def unsteady(outbox, claim, **options):
        if not lost:
            lost.append(1)
            raise StoreError("the server is gone")
        sent(outbox, claim, **options)

    monkeypatch.setattr(Outbox, "sent", unsteady)
    ledger, sender = sending(settings("slack"), deliver=recorder)
    ledger.apply(judgement(*many(2)), now=after(0))
    assert sender.send_due(now=after(0)) == 2
    assert states(ledger) == {("slack", SendStatus.SENT)}
    assert len(recorder.messages) == 2


@pytest.mark.parametrize("mark", ["sent", "failed"])
def test_message_that_cannot_be_marked_does_not_block_others(sending, monkeypatch, mark):
    really, recorder = getattr(Outbox, mark), Recorder()

    def refuses_one(outbox, claim, *arguments, **options):
        if claim.messages[0][1].key == "slot:0":
            raise OverflowError("a bug")
        really(outbox, claim, *arguments, **options)

    def deliver(channel, message):
        recorder(channel, message)
        if mark == "failed" and message.key == "slot:0":
            raise DeliveryFailed("no", permanent=True)

    monkeypatch.setattr(Outbox, mark, refuses_one)
    ledger, sender = sending(settings("slack"), deliver=deliver)
    ledger.apply(judgement(*many(3)), now=after(0))
    sender.send_due(now=after(0))
    assert recorder.said() == [("opened", f"slot:{number}") for number in range(3)]
    assert [send.alert_id for send in ledger.unsent()] == [1]


def test_lost_store_is_an_error_only_for_manual_sending(sending, monkeypatch):
    ledger, sender = sending(settings("slack"), deliver=Recorder())
    ledger.apply(judgement(finding()))
    with monkeypatch.context() as patched:
        patched.setattr(Database, "read", lambda *_: raising(StoreError("gone"))())
        with pytest.raises(StoreError):
            sender.send_due()
        sender.wake()
        sender.close()


def test_run_does_not_fail_where_no_thread_can_start(sending, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    recorder = Recorder()
    ledger, sender = sending(settings("slack"), deliver=recorder)
    ledger.apply(judgement(finding()))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        sender.wake()
        assert sender.send_due() == 1, "who sends by hand does it himself"
    assert recorder.said() == [("opened", "run:vendor")]


def test_closed_unreferenced_sender_is_garbage_collected(store):
    AlertRepository(store.database, settings("slack")).apply(judgement(finding()))
    sender = Sender(store.database, settings("slack"), deliver=Recorder())
    sender.wake()
    sender.close()
    reference = weakref.ref(sender)
    del sender
    gc.collect()
    assert reference() is None


def test_unclosed_unreferenced_store_is_garbage_collected(url):
    recorder, chosen = Recorder(), settings("slack")
    store = redrive.connect(url)
    sender = Sender(store.database, chosen, deliver=recorder)
    AlertRepository(store.database, chosen).apply(judgement(finding()))
    sender.wake()
    eventually(lambda: recorder.messages)
    kept = [weakref.ref(sender), weakref.ref(store.database)]
    del sender, store
    eventually(lambda: gc.collect() is not None and [one() for one in kept] == [None, None])


# ── channels that cannot be used here ─────────────────────────────────────────────────────────────────────────────────


class TestUnusableChannel:
    def test_process_with_alerts_off_leaves_messages_to_others(self, sending):
        chosen = settings("pager:pagerduty", "team:slack")
        ledger, other = sending(chosen, deliver=Recorder())
        ledger.apply(judgement(finding()))
        _, off = sending(replace(chosen, enabled=False), deliver=Recorder())
        assert off.send_due() == 0
        assert states(ledger) == {("pager", SendStatus.WAITING), ("team", SendStatus.WAITING)}
        assert other.send_due() == 2

    def test_process_without_an_address_leaves_messages_to_others(self, sending):
        chosen = settings("pager:pagerduty", "team:slack")
        ledger, other = sending(chosen, deliver=Recorder())
        ledger.apply(judgement(finding()))
        lacking = {**chosen.channels, "pager": replace(chosen.channels["pager"], target="")}
        _, sender = sending(replace(chosen, channels=lacking), deliver=Recorder())
        assert sender.send_due() == 1
        assert states(ledger) == {("pager", SendStatus.WAITING), ("team", SendStatus.SENT)}
        assert other.send_due() == 1

    def test_acknowledgement_without_an_address_reaches_pagerduty(self, sending):
        chosen, recorder = settings("pager:pagerduty"), Recorder()
        ledger, other = sending(chosen, deliver=recorder)
        (alert,) = ledger.apply(judgement(finding()))
        assert other.send_due() == 1
        lacking = replace(chosen, channels={"pager": replace(chosen.channels["pager"], target="")})
        operator, sender = sending(lacking, deliver=recorder)
        operator.acknowledge(alert.id, by="op")
        assert sender.send_due() == 0
        assert other.send_due() == 1


def test_alert_that_cannot_be_rendered_is_sent_as_plain_text(sending):
    recorder = Recorder()
    ledger, sender = sending(settings("hub"), deliver=recorder)
    ledger.apply(judgement(finding(title="vendor has failed", facts=Facts(rows_done="many"))), now=after(0))
    assert sender.send_due(now=after(0)) == 1
    ((_, message),) = recorder.messages
    assert (message.headline, message.key) == ("P1 vendor has failed", "run:vendor")
    assert message.commands == ("redrive alerts show 1",)
    assert "cannot be shown" in message.plain()
    assert ledger.unsent() == []
