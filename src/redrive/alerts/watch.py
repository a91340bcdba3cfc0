"""The watch: one process of all that share a store checks what no run can report.

It finds runs that never started, services that are down, and tables that lost rows. It opens alerts whose condition has
lasted for long enough, sends open alerts again, and retries messages. Its state is in the store, so it may be killed at
any moment, and another watch takes over.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue

from sqlalchemy import Connection

from redrive._internal.shutdown import StopSignal
from redrive.alerts.conditions import SETTINGS_DIFFER
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.facts.probes import why
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle.queries import OPEN
from redrive.alerts.service import Alerts
from redrive.alerts.watchers import (
    AlertMoved,
    Leading,
    News,
    SettingsDiffer,
    StandingBy,
    Unconfigured,
    WatchProblem,
    WatchRegistry,
    change_of,
)
from redrive.classify.signals import is_interrupt
from redrive.clock import Clock
from redrive.errors import AlertError, StoreError
from redrive.model.alerts import Alert
from redrive.model.calls import Kind
from redrive.store import lease
from redrive.store.database import Database
from redrive.store.lease import begin_work, end_work, is_owner_dead, new_owner
from redrive.store.repositories.watches import WATCH, record_check

LOG = logging.getLogger("redrive.watch")

LEASE = timedelta(seconds=60)
"""Duration of the lead of a watch without a renewal; then another watch takes over."""
_RENEWED = 15.0  # seconds between two renewals: a check may take three times as long before the lead ends
_PURGE = "purge"
_DAY = timedelta(days=1)
_FIND_LEADER = "find out which watch leads"
_MOST = 1_000  # alerts that are compared with those of the last check, to report what changed
_TRANSIENT = {Kind.TRANSIENT, Kind.RETRY_NOW, Kind.RATE_LIMITED}
_MEASURE = "measure "
_LEVELS = "measure the levels"
_BEAT = "send the heartbeat"
_HEARTBEAT = 5.0  # timeout of the request in seconds
_MISSED = 3  # checks in a row; then the watch is unhealthy


class Watch:
    """Check the store repeatedly while this watch leads; otherwise stand by.

    Args:
        database: The store.
        alerts: The alerts of the store.
        levels: Collects the levels.
        every: Seconds between two checks; the settings decide by default.
        clock: The clock; that of the database by default.
        purges: Work for once a day, besides deleting old alerts.
        periodic: Work for each round, whether this watch leads or not, by a name such as "write the metrics".
        news: Called with each change, to show it to an operator.
    """

    def __init__(
        self,
        database: Database,
        alerts: Alerts,
        levels: LevelCollector,
        *,
        every: float | None = None,
        clock: Clock | None = None,
        purges: Sequence[Callable[[], object]] = (),
        periodic: Mapping[str, Callable[[], object]] | None = None,
        news: Callable[[News], None] = lambda news: None,
    ) -> None:
        self._database, self._alerts, self._levels = database, alerts, levels
        self._file = database.dialect.place()
        self._every = alerts.settings.every if every is None else every
        self._clock = clock
        self._purges, self._periodic = (alerts.purge, *purges), periodic or {}
        self._report = news
        self._owner = new_owner()
        self._watchers = WatchRegistry(database.dialect, alerts.settings, self._owner)
        self._differing: tuple[str, ...] = ()
        self._unconfigured: dict[str, tuple[int, ...]] = {}
        self._checked_at: float | None = None
        self._leader: str | None = None
        self._runs = False
        self._known: dict[int, Alert] | None = None
        self._reported_until: datetime | None = None
        self._problems: dict[str, str] = {}
        """Steps of the watch that fail now, each with the type of the error."""
        self._wake_ups: SimpleQueue[None] = SimpleQueue()  # a signal handler may put one
        self._stopping = StopSignal(None, on_stop=lambda: self._wake_ups.put(None))
        self.failed: list[Exception] = []
        """The errors of the last check."""
        self.unmeasured: dict[str, str] = {}
        """Measurements that failed in the last check, with the reason."""

    # ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Check until `stop`, SIGTERM or Ctrl-C; raise `StoreError` if the file of the store was replaced."""
        due, self._runs = time.monotonic(), True
        with self._stopping.heeding_signals(), self._stopping.heeding_sigint():
            try:
                while self._stopping.reason() is None:
                    self.failed = []
                    self._ensure_same_file()
                    if not self._hold():
                        due = time.monotonic()  # a watch that takes over checks at once
                        self._stand_by()
                    elif time.monotonic() >= due:
                        due = time.monotonic() + self._every
                        self._check()
                    self._run_periodic()
                    left = due - time.monotonic()
                    self._wait(min(_RENEWED, left if left > 0 else self._every))
            finally:
                self.leave()

    def _ensure_same_file(self) -> None:
        """Raise if the file was removed or replaced: this process would still have the old file open."""
        file = self._database.dialect.place()
        if file != self._file:
            was = "removed" if file is None else "replaced by another file"
            raise StoreError(
                f"{self._database.name} was {was} while it was watched; start the watch again", kind=Kind.TRANSIENT
            )

    def stop(self) -> None:
        """Stop `run`; may be called from any thread."""
        self._stopping.request_stop("it was asked to")

    def once(self) -> bool:
        """Check once, for cron, and note that another check will follow; return False if another watch leads."""
        try:
            led = self.check()
            if led:
                self._can("record the check", lambda: self._database.write(self._record_check))
            self._run_periodic()
            return led
        finally:
            self.leave()

    def _record_check(self, connection: Connection) -> None:
        dialect = self._database.dialect
        record_check(connection, dialect, now=self._now() or dialect.now(connection))

    def check(self) -> bool:
        """Take or keep the lead, and check; return False if another watch leads."""
        self.failed = []
        led = self._hold()
        if led:
            self._check()
        else:
            self._stand_by()
        return led

    def leave(self) -> None:
        """Release the lead, so that another watch does not wait for it."""
        end_work(self._owner)
        self._leader = None
        try:
            self._database.write(self._release)
        except StoreError as error:
            LOG.warning("the lead could not be released and expires within a minute: %s", why(error))

    def _release(self, connection: Connection) -> None:
        self._watchers.leave(connection)
        lease.release(connection, WATCH, self._owner)

    def _stand_by(self) -> None:
        """Compare the settings with those of the leader, and send to channels that only this watch can reach."""
        if self._leader is not None and _FIND_LEADER not in self._problems:
            self._can("compare settings with the leader", self._compare)
            self._can("send messages", self._send)

    def _compare(self) -> None:
        leader = self._leader
        assert leader is not None
        differing = self._database.read(
            lambda connection: self._watchers.differing(connection, leader, now=self._now())
        )
        if differing:
            finding = self._watchers.finding(differing)
            self._alerts.apply(Judgement(findings=(finding,), judged=frozenset({finding.evidence})))
        if differing != self._differing:
            self._differing = differing
            self._news(SettingsDiffer(differing))

    def _resolve_settings_alerts(self) -> None:
        """Resolve alerts about watches that have stopped, or that have the settings of this watch now."""
        alerts = self._alerts.find(status=OPEN, condition=SETTINGS_DIFFER, limit=_MOST)
        if alerts:
            differing = self._database.read(lambda connection: self._watchers.evidence(connection, now=self._now()))
            over = frozenset(name for alert in alerts for name in alert.evidence) - differing
            if over:
                self._alerts.apply(Judgement(judged=over))

    def _check(self) -> None:
        if self._known is None:  # alerts that were open before this check are reported as found
            self._can("read open alerts", self._report_changes)
        steps: dict[str, Callable[[], object]] = {
            "judge runs that ended": self._alerts.judge_ended,
            _LEVELS: self._check_levels,
            "compare the settings of watches": self._resolve_settings_alerts,
            "update alerts that are due": self._alerts.pass_time,
            "send messages": self._send,
            "find messages for other processes": self._find_unconfigured,
            "delete old records": self._purge,
            "report what changed": self._report_changes,
        }
        for what, step in steps.items():
            if not self._can(what, step) and _is_down(self.failed[-1]):
                return  # each further step would wait for the store as long as this one did
        if _LEVELS not in self._problems:
            self._checked_at = time.monotonic()
            self._beat()

    def health(self) -> tuple[bool, str]:
        """Return whether a watch is checking, and which one, in a sentence: this watch, or the leader."""
        if self._leader is None:
            return False, "the watch does not know yet which watch leads"
        if self._leader != self._owner:
            leader = json.loads(self._leader)
            differs = f"; its settings differ from those of this watch: {', '.join(self._differing)}" * bool(
                self._differing
            )
            return True, f"ok: stands by, process {leader['pid']} on {leader['host']} leads{differs}"
        if self._checked_at is None:
            return False, "the watch leads and has not completed a check yet"
        age = time.monotonic() - self._checked_at
        if age > max(LEASE.total_seconds(), _MISSED * self._every):
            return False, f"the watch has not completed a check for {age:.0f} s"
        cannot = "".join(f"; it cannot {what}" for what in list(self._problems))
        return True, f"ok: leads, last check {age:.0f} s ago{cannot}"

    def _beat(self) -> None:
        """Post to the heartbeat URL, whose receiver raises an alarm when no heartbeat comes. A failure is not fatal."""
        if not self._alerts.settings.heartbeat:
            return
        from redrive.alerts.delivery.channels.webhook import post

        try:
            post(self._alerts.settings.heartbeat, b"{}", seconds=_HEARTBEAT)
        except Exception as error:
            if is_interrupt(error):
                raise
            self._note_problem(_BEAT, type(error).__name__, why(error))
        else:
            self._end_problem(_BEAT)

    def _send(self) -> None:
        """Send due messages, in `run` in a thread: a channel that hangs must delay neither checks nor the lead."""
        if self._runs:
            self._alerts.sender.wake()
        else:
            self._alerts.send_due()

    def _find_unconfigured(self) -> None:
        """Report messages for channels that this watch does not have: a channel may have been renamed or removed."""
        waiting: dict[str, tuple[int, ...]] = {}
        for send in self._alerts.unconfigured():
            waiting[send.channel] = tuple(dict.fromkeys((*waiting.get(send.channel, ()), send.alert_id)))
        if waiting != self._unconfigured:
            self._unconfigured = waiting
            self._news(Unconfigured(waiting))

    def _check_levels(self) -> None:
        snapshot = self._levels.collect(self._now())
        if not self._hold():  # a database that does not answer may take longer than the lead lasts
            raise AlertError("this watch lost the lead during the check, which was not recorded")
        self.unmeasured = dict(snapshot.unknown)
        for name, reason in snapshot.unknown.items():
            self._note_problem(f"{_MEASURE}{name}", "unknown", reason)
        measured = {f"{_MEASURE}{name}" for name in snapshot.unknown}
        for what in [known for known in self._problems if known.startswith(_MEASURE) and known not in measured]:
            self._end_problem(what)
        self._alerts.close_unconfigured()
        self._alerts.apply_levels(snapshot, only_if=self._still_leads)
        self._alerts.close_unwatched(snapshot)

    def _still_leads(self, connection: Connection) -> bool:
        """Return whether this watch still leads. After a pause its facts may be outdated, and another one may lead."""
        return lease.holder(connection, self._database.dialect, WATCH, now=self._now()) == self._owner

    def _purge(self) -> None:
        def is_due(connection: Connection) -> bool:
            """Return True once a day, whichever watch leads: the day is a lease that is never released."""
            now, dialect = self._now(), self._database.dialect
            if lease.holder(connection, dialect, _PURGE, now=now) is not None:
                return False
            return lease.take(connection, dialect, _PURGE, self._owner, _DAY, now=now)

        if self._database.write(is_due):
            done = [self._can(f"delete old records ({number})", purge) for number, purge in enumerate(self._purges, 1)]
            if not all(done):  # the next check tries again
                self._database.write(lambda connection: lease.release(connection, _PURGE, self._owner))

    def _run_periodic(self) -> None:
        for what, step in self._periodic.items():
            self._can(what, step)

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._wake_ups.get(timeout=seconds)

    def _now(self) -> datetime | None:
        """Return the time of the configured clock; None to use the clock of the database."""
        return None if self._clock is None else self._clock.now()

    # ── the lead ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self) -> bool:
        begin_work(self._owner)
        leader: list[str | None] = []
        if not self._can(_FIND_LEADER, lambda: leader.append(self._database.write(self._take_lead))):
            return False
        if leader[0] != self._leader:
            self._leader = leader[0]
            self._report_leader()
        return self._leader == self._owner

    def _take_lead(self, connection: Connection) -> str | None:
        """Take the lead if possible; return the owner of the watch that leads."""
        now, dialect = self._now(), self._database.dialect
        self._watchers.register(connection, LEASE, now=now)
        holder = lease.holder(connection, dialect, WATCH, now=now)
        if holder not in (None, self._owner) and is_owner_dead(holder):
            lease.release(connection, WATCH, holder)  # a watch that was killed on this machine
        if lease.take(connection, dialect, WATCH, self._owner, LEASE, now=now):
            return self._owner
        return lease.holder(connection, dialect, WATCH, now=now)

    def _news(self, news: News) -> None:
        with suppress(OSError):  # the output is closed, which must not stop the checks
            self._report(news)

    def _report_leader(self) -> None:
        if self._leader == self._owner:
            self._differing = ()
            self._news(Leading())
        elif self._leader is not None:
            self._known = self._reported_until = None
            leader = json.loads(self._leader)
            self._news(StandingBy(leader["pid"], leader["host"]))

    # ── news for operators ────────────────────────────────────────────────────────────────────────────────────────────

    def _report_changes(self) -> None:
        known, since = self._known, self._reported_until
        self._reported_until = self._now() or self._database.read(self._database.dialect.now)
        current = self._alerts.find(status=OPEN, limit=_MOST)
        if since is not None:  # alerts that opened and were resolved since
            current += self._alerts.find(since=since, limit=_MOST)
        alerts = {alert.id: alert for alert in current}
        for before in (known or {}).values():
            if before.id not in alerts and not before.is_over:
                with suppress(AlertError):  # it was deleted before it was sent
                    alerts[before.id] = self._alerts.get(before.id)
        self._known = alerts
        for alert in sorted(alerts.values(), key=lambda alert: alert.id):
            known_alert = None if known is None else known.get(alert.id)
            if what := change_of(alert, known_alert, first=known is None):
                self._news(AlertMoved(what, alert))

    def _can(self, what: str, step: Callable[[], object]) -> bool:
        """Run a step and return whether it succeeded; a failure is reported once and does not stop other steps."""
        try:
            step()
        except Exception as error:
            if is_interrupt(error):
                raise
            self.failed.append(error)
            self._note_problem(what, type(error).__name__, why(error))
            return False
        self._end_problem(what)
        return True

    def _note_problem(self, what: str, kind: str, reason: str) -> None:
        if self._problems.get(what) != kind:
            self._problems[what] = kind
            LOG.warning("the watch cannot %s: %s", what, reason)
            self._news(WatchProblem(what, reason))

    def _end_problem(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            LOG.info("the watch can %s again", what)
            self._news(WatchProblem(what, None))


def _is_down(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.kind in _TRANSIENT
