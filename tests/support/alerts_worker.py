"""Processes that open alerts and send messages, made to be killed: see `mortals`."""

import itertools
import os
import time
from pathlib import Path

import redrive
from redrive.alerts.ledger import AlertLedger
from redrive.alerts.outbox import Outbox
from redrive.alerts.picture import Judgement
from redrive.alerts.sender import Sender
from redrive.alerts.settings import AlertSettings, Channel
from redrive.notices import Finding, Subject, Urgency
from tests.support.killable import Doomed, serve, trace

CHANNELS = ("slack", "pager")
SETTINGS = AlertSettings(
    channels={name: Channel(name=name, kind="webhook", target="x", timeout=60) for name in CHANNELS},
    routes=dict.fromkeys(Urgency, CHANNELS),
    storm=1_000_000,
    exit_wait=60.0,
)


def is_over(number):
    """Whether the alert of a number ends."""
    return number % 10 != 0


def finding(number):
    """The cause of a number."""
    return Finding(
        key=f"run:{number}",
        condition="retries_exhausted",
        urgency=Urgency.P2,
        subject=Subject(kind="pipeline", name=str(number)),
        title=f"{number} has failed",
        evidence=f"run:{number}:failed",
    )


def sender_of(store, mouth, deliveries):
    """One that writes each message, and who sends it, into a file that all share; and says where it stands."""
    log = os.open(deliveries, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def deliver(channel, message):
        os.write(log, f"{os.getpid()} {channel.name} {message.what} {message.key}\n".encode())
        mouth.say("delivered")

    trace(Outbox, "claim", "claiming", "claimed", mouth)
    trace(Outbox, "sent", "marking", "marked", mouth)
    return Sender(store.database, SETTINGS, deliver=deliver)


# ── what a process can do ─────────────────────────────────────────────────────────────────────────────────────────────


def judge(mouth, *, url, deliveries, most=None, die_at=None):
    """Open alerts, one after the other from where the last one ended, close most of them, and send meanwhile."""
    mouth = Doomed(mouth, die_at=die_at)
    store = redrive.connect(url)
    ledger, sender = AlertLedger(store.database, SETTINGS), sender_of(store, mouth, deliveries)
    known = {alert.key: alert for alert in ledger.find(limit=100_000)}
    for number in itertools.count() if most is None else range(most):
        found = finding(number)
        if found.key not in known:
            mouth.say("storing")
            ledger.apply(Judgement(findings=(found,), judged=frozenset({found.evidence})))
            mouth.say("stored")
            sender.ring()
        if is_over(number) and (found.key not in known or not known[found.key].is_over):
            ledger.apply(Judgement(judged=frozenset({found.evidence})))
            mouth.say("ended")
            sender.ring()
        if number % 4 == 3:
            sender.close()  # who only opens alerts would leave all the sending to others, and these behind
    sender.close()


def send(mouth, *, url, deliveries, until, die_at=None):
    """Send what is due, until a file is there."""
    mouth = Doomed(mouth, die_at=die_at)
    store = redrive.connect(url)
    sender = sender_of(store, mouth, deliveries)
    while not Path(until).exists():
        mouth.say("looking")
        sender.send_due()
        time.sleep(0.01)
    sender.send_due()


# ── how it is told ────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(mouth, *, operation, **arguments):
    """Do one job."""
    {one.__name__: one for one in (judge, send)}[operation](mouth, **arguments)


if __name__ == "__main__":
    serve(perform)
