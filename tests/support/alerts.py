"""Shared by tests of alerts on a store: findings, settings, recording channels, a commit whose reply is lost."""

import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import psycopg

from redrive.alerts.config.settings import AlertSettings, Channel
from redrive.alerts.facts.snapshot import Judgement
from redrive.model.alerts import Finding, Severity, Subject
from redrive.store import lease
from redrive.store.lease import begin_work, new_owner

NOON = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
P1, P2, P3 = Severity.P1, Severity.P2, Severity.P3


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def finding(evidence="run:vendor:failed", urgency=P1, *, key="run:vendor", **options):
    options.setdefault("condition", "retries_exhausted")
    options.setdefault("subject", Subject(kind="pipeline", name="vendor"))
    options.setdefault("title", f"{key} is {urgency}")
    return Finding(key=key, evidence=evidence, urgency=urgency, **options)


def many(count, urgency=P2, start=0):
    """Findings of as many causes."""
    return [finding(f"level:slot:{n}", urgency, key=f"slot:{n}") for n in range(start, start + count)]


def judgement(*findings, judged=(), under=()):
    judged = frozenset({*judged, *(one.evidence for one in findings)})
    return Judgement(findings=findings, judged=judged, judged_under=frozenset(under))


EVERYTHING = ("",)
"""How all evidence begins."""


def settings(*routes, **options):
    """Settings in which everything goes to these channels, `name` or `name:kind`; those not named are webhooks."""
    made = {}
    for route in routes or ("slack:slack",):
        name, _, kind = route.partition(":")
        made[name] = Channel(name=name, kind=kind or "webhook", target="https://hooks.example/x", timeout=0.2)
    options.setdefault("routes", dict.fromkeys(Severity, tuple(made)))
    options.setdefault("exit_wait", 20.0)
    return AlertSettings(channels=made, **options)


def watched(store, now=NOON, hours=10_000):
    """Record an active watch for a long time and return its owner."""
    long, owner = timedelta(hours=hours), new_owner()
    begin_work(owner)
    assert store.database.write(
        lambda connection: lease.take(connection, store.database.dialect, "watch", owner, long, now=now)
    )
    return owner


class Recorder:
    """Record deliveries, and fail as configured for a channel."""

    def __init__(self):
        self.messages = []
        self.failing = {}
        self._lock = threading.Lock()

    def __call__(self, channel, message):
        if (fail := self.failing.get(channel.name)) is not None:
            fail()
        with self._lock:
            self.messages.append((channel.name, message))

    def said(self, channel=None):
        """The messages of a channel, with their severities."""
        return [
            (message.kind if message.kind != "alert" else str(message.what), message.key)
            for name, message in self.messages
            if channel in (None, name)
        ]


def raising(error):
    """A way to fail."""

    def fail():
        raise error

    return fail


class LostAnswers:
    """Commit a transaction and then break the connection, so that the reply is lost."""

    def __init__(self, database, monkeypatch):
        self.struck = 0
        self._run = database._run
        self._database = database
        monkeypatch.setattr(database, "_run", self._carry)
        self._left = None

    def strike(self, *, after=0):
        """Lose an answer to a commit, when so many more have passed."""
        self._left = after

    def _carry(self, work, *, writing):
        result = self._run(work, writing=writing)
        if writing and self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                self.struck += 1
                raise self._broken()
        return result

    def _broken(self):
        if self._database.dialect.is_remote:
            return psycopg.errors.AdminShutdown("terminating connection due to administrator command")
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
        return error
