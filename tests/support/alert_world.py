"""A service, its callers and the watch on a clock that does not wait: what an on-call is sent in hours or days.

The service, its rollups, the rules and the life of alerts are the real ones; the store is left out, which makes days
quick. Made up are the time, and what the service answers.
"""

import heapq
import random
from collections import namedtuple
from datetime import timedelta
from itertools import count
from uuid import UUID

import redrive
from redrive.alerts.facts.services import FEW, SPAN, last_hour, usual_windows
from redrive.alerts.facts.snapshot import Minute, Window
from redrive.alerts.lifecycle import state_machine
from redrive.calls.metrics.publisher import MetricsRecord
from redrive.calls.metrics.window import MINUTES_KEPT, MetricsWindow
from redrive.model.alerts import AlertStatus, What
from redrive.testing import FakeClock
from tests.support.alert_snapshots import DAY, MINUTE, a_run, a_service, judged, levels, looked
from tests.support.alert_state import NOON, SETTINGS, Books

NAME = "shipfast"
Sent = namedtuple("Sent", ["at", "what", "condition", "urgency", "title"])
"""A message: when, since the beginning, and what it says."""


class Down(ConnectionError):
    """The service does not answer."""


class World:
    """A service that fails as often as `fails` says of a moment, and an on-call who acknowledges after 20 minutes."""

    def __init__(self, fails, *, seed=7):
        self.clock, self.chance = FakeClock(NOON), random.Random(seed)
        self.service = redrive.Service(NAME, clock=self.clock, random=self.chance)
        self.books, self.sent = Books(), []
        self.failed_calls, self.failed_runs = [], []
        self._fails = fails
        self._record, self._book = MetricsRecord(self.service.core), MetricsWindow()
        self._past = []  # quarters before the last hour
        self._agenda, self._order, self._runs = [], count(), count(1)

    @property
    def elapsed(self):
        return self.clock.now() - NOON

    @property
    def incidents(self):
        """What was opened and resolved, without reminders and acknowledgements."""
        return [one for one in self.sent if one.what in (What.OPENED, What.RESOLVED)]

    def at(self, moment, work):
        """Do it when this much time has passed."""
        heapq.heappush(self._agenda, (moment, next(self._order), work))

    def every(self, pause, work, *, begins=timedelta()):
        """Do it again and again."""

        def again(moment):
            work()
            self.at(moment + pause, lambda: again(moment + pause))

        self.at(begins, lambda: again(begins))

    def go(self, until):
        """Do what is on the agenda until this much time has passed."""
        while self._agenda[0][0] <= until:
            moment, _, work = heapq.heappop(self._agenda)
            self.clock.advance(max(0.0, (moment - self.elapsed).total_seconds()))
            work()

    # ── callers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self):
        self.clock.advance(0.2)
        if self.chance.random() < self._fails(self.elapsed):
            raise Down("no answer")

    def call(self):
        """Make one call, as a program does that goes on after a failure."""
        try:
            self.service.call(self._answer)
        except (Down, redrive.RedriveError):
            self.failed_calls.append(self.elapsed)

    def traffic(self, per_hour, *, begins=timedelta()):
        """Call at random, so many times an hour; `per_hour` is a number, or a function of the time."""
        rate = per_hour if callable(per_hour) else lambda elapsed: per_hour

        def calls():
            for _ in range(min(60, self._drawn(rate(self.elapsed) / 60))):
                self.call()

        self.every(MINUTE, calls, begins=begins)

    def _drawn(self, mean):
        """Draw how many calls come in a minute."""
        found, left = -1, 0.0
        while left < mean:
            left += self.chance.expovariate(1.0)
            found += 1
        return found

    def pipeline(self, *, every=10 * MINUTE, retried_after=5 * MINUTE, calls=30):
        """Run a pipeline that calls the service; its scheduler runs it once more where it has failed."""

        def run(run_id, failures):
            try:
                for _ in range(calls):
                    self.service.call(self._answer)
            except (Down, redrive.RedriveError):
                self.failed_runs.append(self.elapsed)
                error = {"error_kind": "transient", "error_service": NAME, "reason": "Down: no answer"}
                self._judge_run("failed", run_id, failures, **error)
                if not failures:
                    self.at(self.elapsed + retried_after, lambda: run(run_id, 1))
                return
            self._judge_run("complete", run_id, failures)

        self.every(every, lambda: run(UUID(int=next(self._runs)), 0))

    def _judge_run(self, status, run_id, failures, **error):
        now = self.clock.now()
        snapshot = a_run(status, run_id=run_id, failures=failures, started_at=now, ended_at=now, **error)
        self._take(judged(snapshot, SETTINGS, now))

    # ── the watch ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self):
        """Look as the watch does."""
        self._record.collect()
        self._book.add(self._record.take())
        now = self.clock.now()
        self._take(looked(levels(now=now, services=(self._seen(now),)), SETTINGS))
        self._note(self.books.pass_time, self.elapsed.total_seconds())
        for key, case in list(self.books.cases.items()):
            alert = case.alert
            if alert.status is AlertStatus.OPEN and now - alert.opened_at >= 20 * MINUTE:
                self.books.decide(key, state_machine.acknowledge, self.elapsed.total_seconds(), by="on-call", note=None)

    def _take(self, judgement):
        under = judgement.judged_under
        at = self.elapsed.total_seconds()
        self._note(self.books.judge, *judgement.findings, judged=judgement.judged, under=under, at=at)

    def _note(self, step, *arguments, **options):
        told = len(self.books.told)
        step(*arguments, **options)
        alerts = {one.id: one for one in self.books.over} | {
            case.alert.id: case.alert for case in self.books.cases.values()
        }
        for alert_id, what, _ in self.books.told[told:]:
            alert = alerts[alert_id]
            self.sent.append(Sent(self.elapsed, what, alert.condition, alert.urgency, alert.title))

    def _seen(self, now):
        """Return the service as the store would have it."""
        hour = last_hour(now)
        self._book.forget_minutes(now.timestamp() - MINUTES_KEPT)
        minutes = tuple(
            Minute(at=_moment(at), attempts=one.attempts, faults=one.faults)
            for at, one in sorted(self._book.minutes.items())
        )
        begins = hour.timestamp()
        for at in [one for one in self._book.quarters if one < begins]:
            self._past.append((_moment(at), _window(self._book.quarters.pop(at).counts)))
        past = self._past = [(at, one) for at, one in self._past if at >= hour - 7 * DAY]
        troubles = self.books.troubles(f"service:{NAME}:down", now)
        usual = usual_windows([(at, one) for at, one in past if (at - hour) % DAY < SPAN], hour, troubles)
        if sum(one.successes for one in usual) < FEW:
            usual = usual_windows(past, hour, troubles)
        late = [self._book.quarters[at].counts for at in sorted(self._book.quarters)]
        return a_service(
            name=NAME,
            minutes=minutes,
            quarters=tuple(_window(counts) for counts in late),
            usual=usual,
            streaks_5xx=sum(counts["streaks_5xx"] for counts in late),
        )


def _moment(seconds):
    return NOON + timedelta(seconds=seconds - NOON.timestamp())


def _window(counts):
    failed = counts["calls_failed"] - sum(counts[name] for name in ("permanent", "row", "resource", "failed_auth"))
    return Window(calls=counts["calls"], failed=failed, successes=counts["successes"], retries=counts["retries"])
