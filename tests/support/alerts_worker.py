"""Processes that open alerts and send messages, made to be killed: see `mortals`."""

import contextlib
import itertools
import os
import sys
import time
from pathlib import Path

import redrive
from redrive.alerts.config.settings import AlertSettings, Channel
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.alerts.service import Alerts
from redrive.alerts.watch import Watch
from redrive.model.alerts import Finding, Severity, Subject
from tests.support.killable import Doomed, serve, trace

CHANNELS = ("slack", "pager")
SETTINGS = AlertSettings(
    channels={name: Channel(name=name, kind="webhook", target="x", timeout=60) for name in CHANNELS},
    routes=dict.fromkeys(Severity, CHANNELS),
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
        urgency=Severity.P2,
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


# ── limits of a process ───────────────────────────────────────────────────────────────────────────────────────────────


def judge(mouth, *, url, deliveries, most=None, die_at=None):
    """Open alerts, one after the other from where the last one ended, close most of them, and send meanwhile."""
    mouth = Doomed(mouth, die_at=die_at)
    store = redrive.connect(url)
    ledger, sender = AlertRepository(store.database, SETTINGS), sender_of(store, mouth, deliveries)
    known = {alert.key: alert for alert in ledger.find(limit=100_000)}
    for number in itertools.count() if most is None else range(most):
        found = finding(number)
        if found.key not in known:
            mouth.say("storing")
            ledger.apply(Judgement(findings=(found,), judged=frozenset({found.evidence})))
            mouth.say("stored")
            sender.wake()
        if is_over(number) and (found.key not in known or not known[found.key].is_over):
            ledger.apply(Judgement(judged=frozenset({found.evidence})))
            mouth.say("ended")
            sender.wake()
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


# ── real runs, and the real watch ─────────────────────────────────────────────────────────────────────────────────────


def word(number):
    """A name for a number, in letters: errors that differ in numbers alone have one cause."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def watch(mouth, *, directory, die_at=None):
    """Run `redrive watch`, as the `redrive.toml` of the directory says."""
    _at_home(Doomed(mouth, die_at=die_at), directory)
    from redrive.cli import main

    sys.argv = ["redrive", "watch"]
    os.dup2(os.open("watch.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)  # ours is where jobs are answered
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def load(mouth, *, directory, most=None, die_at=None):
    """Run pipelines, one after the other from where the last process was killed: each fails, most are then fixed."""
    mouth = Doomed(mouth, die_at=die_at)
    store = _at_home(mouth, directory)

    def run(number, *, fails):
        def rows():
            yield {"id": 1}
            mouth.say("reading")
            if fails:
                raise redrive.Permanent(f'no relation "{word(number)}" in database "{word(number)}"')

        pipeline = redrive.Pipeline(
            f"load-{number}",
            source=redrive.rows.records(rows, name="rows", identity="rows"),
            sink=redrive.rows.table("sqlite:///warehouse.db", "loaded", key="id", create=True),
            store=store,
            patience=5,
        )
        try:
            pipeline.run()
        except redrive.RunStopped:
            assert fails

    _run_all(mouth, directory, "load", run, most)
    store.close()


def flow(mouth, *, directory, most=None, die_at=None):
    """Run flows in the same way: a task of each is a dead letter, and most are then fixed and sent back."""
    mouth = Doomed(mouth, die_at=die_at)
    store = _at_home(mouth, directory)

    def run(number, *, fails):
        made = redrive.Flow(f"flow-{number}", store=store)

        @made.task(in_thread=True)
        def step():
            mouth.say("working")
            if fails:
                raise redrive.Permanent(f'no relation "{word(number)}" in database "{word(number)}"')

        if not fails:
            with contextlib.suppress(redrive.FlowError):  # sent back by a process that was killed since
                made.retry(step, note="fixed")
        try:
            made.run()
        except redrive.FlowStopped:
            assert fails

    _run_all(mouth, directory, "flow", run, most)
    store.close()


def _run_all(mouth, directory, kind, run, most):
    """Run each number until it has failed, and once more without failing if it is one that ends; note both."""
    for number in itertools.count() if most is None else range(most):
        for what in ("failed", "over") if is_over(number) else ("failed",):
            mark = Path(directory) / f"{kind}-{number}.{what}"
            if not mark.exists():
                mouth.say("starting")
                run(number, fails=what == "failed")
                mark.touch()
                mouth.say(what)


def _at_home(mouth, directory):
    """Go where `redrive.toml` is, and say where the alerts stand."""
    os.chdir(directory)
    trace(Outbox, "claim", "claiming", "claimed", mouth)
    trace(Outbox, "sent", "marking", "marked", mouth)
    trace(Alerts, "judge", "judging", "judged", mouth)
    trace(Alerts, "pass_time", "passing time", "passed time", mouth)
    trace(Watch, "_hold", "taking the lead", "leading", mouth)
    return redrive.connect()


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(mouth, *, operation, **arguments):
    """Do one job."""
    {one.__name__: one for one in (judge, send, watch, load, flow)}[operation](mouth, **arguments)


if __name__ == "__main__":
    serve(perform)
