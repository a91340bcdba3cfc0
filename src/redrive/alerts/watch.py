"""The watch: one process of all that share a store sees to what no run can tell of itself.

A run that never began, a service that is down, a table that has lost its rows; what has held for long enough, what is
to be said again, what could not be delivered. All that it knows is in the store: it may be killed at any moment, and
the next one goes on.
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
    became,
)
from redrive.classify.signals import is_interrupt
from redrive.clock import Clock
from redrive.errors import AlertError, StoreError
from redrive.model.alerts import Alert
from redrive.model.calls import Kind
from redrive.store import lease
from redrive.store.database import Database
from redrive.store.process_identity import begin_work, end_work, is_owner_dead, new_owner
from redrive.store.repositories.watches import WATCH, record_check

LOG = logging.getLogger("redrive.watch")

LEASE = timedelta(seconds=60)
"""After which another one leads where the leader has fallen silent."""
_RENEWED = 15.0  # seconds: a look may take three times as long before the lead is in danger
_PURGE = "purge"
_DAY = timedelta(days=1)
_LEARN = "learn who leads"
_MOST = 1_000  # alerts that are compared with those of the look before, to tell what changed
_HEALS = {Kind.TRANSIENT, Kind.RETRY_NOW, Kind.RATE_LIMITED}
_MEASURE = "measure "
_LEVELS = "look at levels"
_BEAT = "send the heartbeat"
_HEARTBEAT = 5.0  # seconds for which its answer is waited for
_MISSED = 3  # looks after which nobody seems to look


class Watch:
    """Looks, again and again.

    every   seconds between two looks; else as the settings say
    purges  what is to be done once a day, beside forgetting old alerts
    beside  what is to be done again and again, whoever leads: by words such as "write the metrics"
    news    is called with each change, for a person who looks on
    """

    def __init__(
        self,
        database: Database,
        desk: Alerts,
        levels: LevelCollector,
        *,
        every: float | None = None,
        clock: Clock | None = None,
        purges: Sequence[Callable[[], object]] = (),
        beside: Mapping[str, Callable[[], object]] | None = None,
        news: Callable[[News], None] = lambda news: None,
    ) -> None:
        self._database, self._alerts, self._levels = database, desk, levels
        self._place = database.dialect.place()
        self._every = desk.settings.every if every is None else every
        self._clock = clock
        self._purges, self._beside = (desk.purge, *purges), beside or {}
        self._tell = news
        self._owner = new_owner()
        self._watchers = WatchRegistry(database.dialect, desk.settings, self._owner)
        self._differing: tuple[str, ...] = ()
        self._unconfigured: dict[str, tuple[int, ...]] = {}
        self._looked_at: float | None = None
        self._leader: str | None = None
        self._runs = False
        self._known: dict[int, Alert] | None = None
        self._told_until: datetime | None = None
        self._standing: dict[str, str] = {}
        """What cannot be done, and the kind of error that said so."""
        self._bell: SimpleQueue[None] = SimpleQueue()  # may be rung by a signal handler
        self._stopping = StopSignal(None, told=lambda: self._bell.put(None))
        self.failed: list[Exception] = []
        """What went wrong in the last look."""
        self.unmeasured: dict[str, str] = {}
        """What the last look could not measure, and why."""

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Look until told to stop: by `stop`, SIGTERM or Ctrl-C; or until the store is another one."""
        due, self._runs = time.monotonic(), True
        with self._stopping.heeding_signals(), self._stopping.heeding_sigint():
            try:
                while self._stopping.reason() is None:
                    self.failed = []
                    self._see_that_it_is_the_same()
                    if not self._hold():
                        due = time.monotonic()  # who takes over looks at once
                        self._stand_by()
                    elif time.monotonic() >= due:
                        due = time.monotonic() + self._every
                        self._look()
                    self._do_beside()
                    rest = due - time.monotonic()
                    self._wait(min(_RENEWED, rest if rest > 0 else self._every))
            finally:
                self.leave()

    def _see_that_it_is_the_same(self) -> None:
        """A file that was removed is still there for who has it open: he would watch what nobody writes to."""
        place = self._database.dialect.place()
        if place != self._place:
            was = "removed" if place is None else "replaced by another file"
            raise StoreError(
                f"{self._database.name} was {was} while it was watched; start the watch again", kind=Kind.TRANSIENT
            )

    def stop(self) -> None:
        """End `run`, from any thread."""
        self._stopping.request_stop("it was asked to")

    def once(self) -> bool:
        """Look once, for cron, and be expected again; False where another one leads, which looks anyway."""
        try:
            led = self.look()
            if led:
                self._can("note the look", lambda: self._database.write(self._expected_again))
            self._do_beside()
            return led
        finally:
            self.leave()

    def _expected_again(self, connection: Connection) -> None:
        dialect = self._database.dialect
        record_check(connection, dialect, now=self._now() or dialect.now(connection))

    def look(self) -> bool:
        """Take the lead, or keep it, and look; False where another one has it."""
        self.failed = []
        led = self._hold()
        if led:
            self._look()
        else:
            self._stand_by()
        return led

    def leave(self) -> None:
        """Give the lead back, so that another one need not wait for it."""
        end_work(self._owner)
        self._leader = None
        try:
            self._database.write(self._left)
        except StoreError as error:
            LOG.warning("the lead could not be given back, and ends by itself within a minute: %s", why(error))

    def _left(self, connection: Connection) -> None:
        self._watchers.leave(connection)
        lease.release(connection, WATCH, self._owner)

    def _stand_by(self) -> None:
        """See that the leader has the same settings, and send what only this one has the address for."""
        if self._leader is not None and _LEARN not in self._standing:
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

    def _see_who_differs(self) -> None:
        """Withdraw what was told of watches that have ended, or have the settings of this one now."""
        told = self._alerts.find(status=OPEN, condition=SETTINGS_DIFFER, limit=_MOST)
        if told:
            void = self._database.read(lambda connection: self._watchers.void(connection, now=self._now()))
            over = frozenset(name for one in told for name in one.evidence) - void
            if over:
                self._alerts.apply(Judgement(judged=over))

    def _look(self) -> None:
        if self._known is None:  # what was open before this look is no news of it
            self._can("see what is open", self._tell_what_changed)
        steps: dict[str, Callable[[], object]] = {
            "judge runs that ended": self._alerts.judge_ended,
            _LEVELS: self._look_at_levels,
            "see whether watches differ": self._see_who_differs,
            "let time pass": self._alerts.pass_time,
            "send messages": self._send,
            "see what waits for other processes": self._see_what_waits,
            "forget what is old": self._purge,
            "see what changed": self._tell_what_changed,
        }
        for what, step in steps.items():
            if not self._can(what, step) and _is_down(self.failed[-1]):
                return  # every further step would wait for the store as long as this one has
        if _LEVELS not in self._standing:
            self._looked_at = time.monotonic()
            self._beat()

    def health(self) -> tuple[bool, str]:
        """Return whether somebody looks, and who, in a sentence: this watch, or the one that it stands by for."""
        if self._leader is None:
            return False, "the watch does not know who leads yet"
        if self._leader != self._owner:
            who = json.loads(self._leader)
            differs = f"; its settings are not those of this one: {', '.join(self._differing)}" * bool(self._differing)
            return True, f"ok: stands by, process {who['pid']} on {who['host']} leads{differs}"
        if self._looked_at is None:
            return False, "the watch leads, and has not completed a look yet"
        age = time.monotonic() - self._looked_at
        if age > max(LEASE.total_seconds(), _MISSED * self._every):
            return False, f"the watch has not completed a look for {age:.0f} s"
        cannot = "".join(f"; it cannot {what}" for what in list(self._standing))
        return True, f"ok: leads, last look {age:.0f} s ago{cannot}"

    def _beat(self) -> None:
        """Say that somebody looks, to who raises an alarm when nobody does. That must not keep the watch from it."""
        if not self._alerts.settings.heartbeat:
            return
        from redrive.alerts.delivery.channels.webhook import post

        try:
            post(self._alerts.settings.heartbeat, b"{}", seconds=_HEARTBEAT)
        except Exception as error:
            if is_interrupt(error):
                raise
            self._begins(_BEAT, type(error).__name__, why(error))
        else:
            self._is_over(_BEAT)

    def _send(self) -> None:
        """By a thread: a channel that does not answer must not keep the watch from looking, nor from leading on."""
        if self._runs:
            self._alerts.sender.ring()
        else:
            self._alerts.send_due()

    def _see_what_waits(self) -> None:
        """Say which messages no channel of this watch takes: a channel may have been renamed or removed."""
        waiting: dict[str, tuple[int, ...]] = {}
        for send in self._alerts.unconfigured():
            waiting[send.channel] = tuple(dict.fromkeys((*waiting.get(send.channel, ()), send.alert_id)))
        if waiting != self._unconfigured:
            self._unconfigured = waiting
            self._news(Unconfigured(waiting))

    def _look_at_levels(self) -> None:
        snapshot = self._levels.collect(self._now())
        if not self._hold():  # what does not answer may be waited for longer than the lead lasts
            raise AlertError("this watch lost the lead during the look, which was not recorded")
        self.unmeasured = dict(snapshot.unknown)
        for name, reason in snapshot.unknown.items():
            self._begins(f"{_MEASURE}{name}", "unknown", reason)
        measured = {f"{_MEASURE}{name}" for name in snapshot.unknown}
        for what in [one for one in self._standing if one.startswith(_MEASURE) and one not in measured]:
            self._is_over(what)
        self._alerts.close_unconfigured()
        self._alerts.apply_levels(snapshot, only_if=self._still_leads)
        self._alerts.close_unwatched(snapshot)

    def _still_leads(self, connection: Connection) -> bool:
        """Who stood still for a while may have seen what is not so any more, and another one leads meanwhile."""
        return lease.holder(connection, self._database.dialect, WATCH, now=self._now()) == self._owner

    def _purge(self) -> None:
        def is_due(connection: Connection) -> bool:
            """Once a day, whoever leads: the day is a lease that nobody gives back."""
            now, dialect = self._now(), self._database.dialect
            if lease.holder(connection, dialect, _PURGE, now=now) is not None:
                return False
            return lease.take(connection, dialect, _PURGE, self._owner, _DAY, now=now)

        if self._database.write(is_due):
            done = [self._can(f"forget what is old ({place + 1})", one) for place, one in enumerate(self._purges)]
            if not all(done):  # it is tried again at the next look
                self._database.write(lambda connection: lease.release(connection, _PURGE, self._owner))

    def _do_beside(self) -> None:
        for what, step in self._beside.items():
            self._can(what, step)

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._bell.get(timeout=seconds)

    def _now(self) -> datetime | None:
        """The clock that was given; None for the database's own."""
        return None if self._clock is None else self._clock.now()

    # ── the lead ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self) -> bool:
        begin_work(self._owner)
        leader: list[str | None] = []
        if not self._can(_LEARN, lambda: leader.append(self._database.write(self._taken))):
            return False
        if leader[0] != self._leader:
            self._leader = leader[0]
            self._tell_who_leads()
        return self._leader == self._owner

    def _taken(self, connection: Connection) -> str | None:
        """Who leads: this one, if it can."""
        now, dialect = self._now(), self._database.dialect
        self._watchers.register(connection, LEASE, now=now)
        holder = lease.holder(connection, dialect, WATCH, now=now)
        if holder not in (None, self._owner) and is_owner_dead(holder):
            lease.release(connection, WATCH, holder)  # who was killed on this machine is not waited for
        if lease.take(connection, dialect, WATCH, self._owner, LEASE, now=now):
            return self._owner
        return lease.holder(connection, dialect, WATCH, now=now)

    def _news(self, news: News) -> None:
        with suppress(OSError):  # whoever looked on is gone; that is no reason not to look any more
            self._tell(news)

    def _tell_who_leads(self) -> None:
        if self._leader == self._owner:
            self._differing = ()
            self._news(Leading())
        elif self._leader is not None:
            self._known = self._told_until = None
            who = json.loads(self._leader)
            self._news(StandingBy(who["pid"], who["host"]))

    # ── what a person sees ────────────────────────────────────────────────────────────────────────────────────────────

    def _tell_what_changed(self) -> None:
        known, since = self._known, self._told_until
        self._told_until = self._now() or self._database.read(self._database.dialect.now)
        found = self._alerts.find(status=OPEN, limit=_MOST)
        if since is not None:  # and what has begun and ended since
            found += self._alerts.find(since=since, limit=_MOST)
        alerts = {one.id: one for one in found}
        for before in (known or {}).values():
            if before.id not in alerts and not before.is_over:
                with suppress(AlertError):  # it went away before anybody was told
                    alerts[before.id] = self._alerts.get(before.id)
        self._known = alerts
        for alert in sorted(alerts.values(), key=lambda one: one.id):
            before_that = None if known is None else known.get(alert.id)
            if what := became(alert, before_that, first=known is None):
                self._news(AlertMoved(what, alert))

    def _can(self, what: str, step: Callable[[], object]) -> bool:
        """Do it; what fails is said once, and keeps nothing else from being done."""
        try:
            step()
        except Exception as error:
            if is_interrupt(error):
                raise
            self.failed.append(error)
            self._begins(what, type(error).__name__, why(error))
            return False
        self._is_over(what)
        return True

    def _begins(self, what: str, kind: str, reason: str) -> None:
        if self._standing.get(what) != kind:
            self._standing[what] = kind
            LOG.warning("the watch cannot %s: %s", what, reason)
            self._news(WatchProblem(what, reason))

    def _is_over(self, what: str) -> None:
        if self._standing.pop(what, None) is not None:
            LOG.info("the watch can %s again", what)
            self._news(WatchProblem(what, None))


def _is_down(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.kind in _HEALS
