"""The watch: one process leads, all its state is in the store, and a failed step stops no other."""

import logging
import os
import re
import signal
import sqlite3
import subprocess
import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.schema import DropTable

import redrive
from redrive.alerts.config.settings import AlertSettings, PipelineSettings, WatchedTable
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.facts.runs import RunName
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.service import Alerts
from redrive.alerts.watch import LEASE, Watch
from redrive.alerts.watchers import AlertMoved, Leading, StandingBy, WatchProblem
from redrive.model.alerts import AlertStatus, Finding, Severity, Subject, What
from redrive.policy.time_of_day import TimeOfDay
from redrive.store import lease
from redrive.store.schema import alert_sends, alerts, runs, service_minutes, service_rollups, task_runs
from redrive.testing import FakeClock
from tests.support.flows import eventually
from tests.support.run_history import DAY, HOUR, MINUTE, MONDAY, Books
from tests.support.warm_python import cold_python, warm_python

EVERY = 120.0
"""Seconds between two looks: fewer than in real life, and enough."""
PATIENCE = 60.0
"""Seconds for a process to do what it is to do, on a machine that is busy."""


class Post(Books):
    """Watches of one store on a clock of the test, each in the state of a new process."""

    def __init__(self, store, **settings):
        super().__init__(store)
        self.settings = AlertSettings(**settings)
        self.clock = FakeClock(MONDAY - HOUR / 2)
        self.news = []
        self._running = None
        self._desks = []

    def desk(self):
        self._desks.append(Alerts(self.store.database, self.settings, clock=self.clock))
        return self._desks[-1]

    def close(self):
        for desk in self._desks:
            desk.close()

    def watch(self, **options):
        levels = LevelCollector(self.store.database, self.settings, probes=options.pop("probes", None))
        options.setdefault("news", self.news.append)
        return Watch(self.store.database, self.desk(), levels, clock=self.clock, **options)

    def look_until(self, moment, *, restarting=False):
        """Look again and again until then, with one watch, or with a new one each time."""
        while self.clock.now() < moment:
            if restarting or self._running is None:
                self._running = self.watch()
            self._running.check()
            if restarting:
                self._running.leave()
            self.clock.advance(EVERY)

    def known(self, name="vendor", **values):
        """A pipeline that ran every day until yesterday, in good time."""
        super().known(name, **values)
        self.ran_every_day(name=name)

    def told(self):
        """What was sent, in order."""
        of = alert_sends.c
        sent = select(of.what, of.urgency, alerts.c.condition, of.status).join(alerts, alerts.c.id == of.alert_id)

        def rows():
            return self.store.database.read(lambda connection: connection.execute(sent.order_by(of.id)).all())

        # A thread of the sender may have claimed a message just before the watch looked for what is due.
        eventually(lambda: {row.status for row in rows()} <= {"sent"})
        return [(row.what, row.urgency, row.condition) for row in rows()]

    def leader(self):
        return self.store.database.read(
            lambda connection: lease.holder(connection, self.store.database.dialect, "watch", now=self.clock.now())
        )


@pytest.fixture
def post(store):
    made = Post(store)
    yield made
    made.close()


# ── measurements ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("restarting", [False, True], ids=["one process", "killed after every look"])
def test_missed_run_is_one_page_and_one_resolution(post, restarting):
    post.known()
    post.look_until(MONDAY - MINUTE, restarting=restarting)
    assert post.told() == []
    post.look_until(MONDAY + 20 * MINUTE, restarting=restarting)
    assert post.told() == [("opened", "P1", "sla_missed")]
    post.ran(MONDAY + 20 * MINUTE, MONDAY + 25 * MINUTE, judged=False, sla=MONDAY + DAY)
    post.look_until(MONDAY + 40 * MINUTE, restarting=restarting)
    assert post.told() == [("opened", "P1", "sla_missed"), ("resolved", "P1", "sla_missed")]


@pytest.mark.parametrize("restarting", [False, True], ids=["one process", "killed after every look"])
def test_outage_is_one_alert_and_one_resolution(post, restarting):
    began = post.clock.now()
    post.put(
        service_rollups,
        {"service": "shipfast", "at": began.replace(minute=30), "calls": 1, "attempts": 1, "successes": 1},
    )
    for minute in range(90):
        down = 5 <= minute < 20
        at = began + minute * MINUTE
        post.put(service_minutes, {"service": "shipfast", "at": at, "attempts": 10, "faults": 10 if down else 0})
        post.look_until(at + MINUTE, restarting=restarting)
    assert post.told() == [("opened", "P2", "service_down"), ("resolved", "P2", "service_down")]


def test_killed_run_is_judged(post):
    post.ran(
        MONDAY - 2 * HOUR, MONDAY - HOUR, status="failed", judged=False, reason="disk full", error_kind="permanent"
    )
    post.watch().once()
    assert post.told() == [("opened", "P1", "permanent_error")]
    judged = select(runs.c.judged_at)
    assert post.store.database.read(lambda connection: connection.execute(judged).scalar()) == post.clock.now()


class TestSlaInSeconds:
    def test_stopped_run_is_at_risk_then_late_until_complete(self, post, tmp_path):
        rows = [{"id": number} for number in range(40)]

        def source():
            yield from rows[:20]
            pipeline.stop("a deploy")
            yield from rows[20:]

        pipeline = redrive.Pipeline(
            "vendor",
            source=redrive.rows.records(source),
            sink=redrive.rows.parquet_dataset(tmp_path / "vendor", key="id"),
            batch=20,
            sla=3_600,
            store=post.store,
        )
        with pytest.raises(redrive.RunStopped) as stopped:
            pipeline.run()
        report = stopped.value.report
        assert report.sla - report.started_at == HOUR
        for ago, told in ((MINUTE, []), (50 * MINUTE, ["opened"]), (61 * MINUTE, ["opened", "escalated"])):
            post.clock = FakeClock(report.started_at + ago)
            post.watch().once()
            assert [what for what, *_ in post.told()] == told
        (alert,) = post.desk().find(status="open")
        assert (str(alert.urgency), alert.condition) == ("P1", "sla_missed")
        pipeline.run()
        post.watch().once()
        assert post.desk().find(status="open") == []

    @pytest.mark.parametrize("sla", [0, -1, True, "06:30", "1h"])
    def test_value_must_be_seconds_or_a_time_of_day(self, post, tmp_path, sla):
        sink = redrive.rows.parquet_dataset(tmp_path / "vendor", key="id")
        with pytest.raises(ValueError, match="sla must be"):
            redrive.Pipeline("vendor", source=redrive.rows.records([]), sink=sink, sla=sla, store=post.store)


class TestWatchByCron:
    def looks(self, post, times):
        for _ in range(times):
            post.watch().once()
            post.clock.advance(60)

    def fails(self, post):
        ended = post.clock.now()
        values = {"status": "failed", "judged": False, "reason": "away", "error_kind": "transient"}
        run_id = post.ran(ended - MINUTE, ended, **values)
        post.desk().judge(RunName("pipeline", run_id))
        return run_id

    def test_run_recovered_between_two_checks_is_one_p3(self, post):
        self.looks(post, 2)
        run_id = self.fails(post)
        assert [str(one.status) for one in post.desk().find()] == ["waiting"]
        self.looks(post, 2)
        recovers = update(runs).where(runs.c.run_id == run_id)
        complete = recovers.values(status="complete", ended_at=post.clock.now(), judged_at=None, error_kind=None)
        post.store.database.write(lambda connection: connection.execute(complete))
        self.looks(post, 2)
        assert post.told() == [("opened", "P3", "recovered")]

    def test_unrecovered_run_alerts_after_its_grace_period(self, post):
        self.looks(post, 2)
        self.fails(post)
        self.looks(post, 9)
        assert post.told() == []
        self.looks(post, 2)
        assert post.told() == [("opened", "P2", "retries_exhausted")]

    @pytest.mark.parametrize(("times", "minutes"), [(1, 0), (2, 5)], ids=["looked once", "comes no more"])
    def test_run_alerts_at_once_if_no_check_is_scheduled(self, post, times, minutes):
        self.looks(post, times)
        post.clock.advance(60 * minutes)
        self.fails(post)
        assert post.told() == [("opened", "P2", "retries_exhausted")]


def test_required_duration_of_a_level_survives_restarts(post, put):
    put(150)  # letters, of which 100 within a day are worth telling
    post.clock = FakeClock(datetime.now(UTC))
    began = post.clock.now()
    post.look_until(began + 5 * MINUTE, restarting=True)
    assert post.told() == []
    post.look_until(began + 7 * MINUTE, restarting=True)
    assert post.told() == [("opened", "P3", "pending_day")]


def test_hanging_probe_delays_no_message(store, post):
    hang = threading.Event()
    post.known()
    post.clock.advance(HOUR.total_seconds())
    levels = LevelCollector(store.database, post.settings, probes={"slow": lambda: hang.wait() and ()}, timeout=0.05)
    Watch(store.database, post.desk(), levels, clock=post.clock).once()
    hang.set()
    assert post.told() == [("opened", "P1", "sla_missed")]


def test_probe_that_hangs_longer_than_the_lease_hides_no_alert(store, post):
    hang = threading.Event()
    post.settings = AlertSettings(persist=60.0)
    post.known()
    post.clock.advance(HOUR.total_seconds())

    def hanging():
        post.clock.advance(61.0)
        hang.wait()

    for _ in range(2):
        levels = LevelCollector(store.database, post.settings, probes={"slow": hanging}, timeout=0.05)
        watch = Watch(store.database, post.desk(), levels, clock=post.clock)
        assert watch.once()
        assert watch.failed == []
        assert list(watch.unmeasured) == ["lags:slow"]
    hang.set()
    assert post.told() == [("opened", "P1", "sla_missed"), ("opened", "P2", "monitor_failed")]


def test_overtaken_check_is_not_recorded(store, post):
    post.known()
    post.clock.advance(HOUR.total_seconds())
    other = post.watch()

    def overtaken():
        post.clock.advance(61.0)
        assert other._hold()
        return ()

    watch = post.watch(probes={"slow": overtaken})
    watch.check()
    assert "lost the lead" in str(watch.failed[0])
    assert post.desk().find() == []


def test_missed_deadline_resolves_when_removed_from_settings(post):
    named = {"late": PipelineSettings(sla=TimeOfDay.of("sla", "06:30 UTC")), "also": PipelineSettings()}
    post.settings = AlertSettings(pipelines=named)
    post.watch().once()
    post.clock.advance(24 * HOUR.total_seconds())
    post.watch().once()
    (missed,) = post.desk().find(status="open", condition="sla_missed")
    post.watch().once()
    assert not post.desk().get(missed.id).is_over
    post.settings = AlertSettings()
    post.watch().once()
    assert "no longer configured" in post.desk().get(missed.id).resolution
    assert post.told() == [("opened", "P1", "sla_missed"), ("resolved", "P1", "sla_missed")]


@pytest.mark.parametrize(
    "evidence", ["level:condition:queue", "level:rows:silver.orders", "level:stale_table:silver.orders"]
)
def test_alert_of_a_removed_setting_resolves_with_its_reason(post, evidence):
    found = Finding(
        key=evidence.removeprefix("level:"),
        condition="queue",
        urgency=Severity.P2,
        subject=Subject(kind="custom", name="queue"),
        title="queue: 3 is above 2",
        evidence=evidence,
    )
    post.desk().apply(Judgement(findings=(found,), judged=frozenset({evidence})))
    (alert,) = post.desk().find(status="open")
    post.watch().once()
    assert post.desk().get(alert.id).resolution == "closed by redrive watch: no longer configured"


def test_second_check_at_one_time_changes_nothing(post):
    post.known()
    post.clock.advance(HOUR.total_seconds())
    everything = select(alerts.c.id, alerts.c.status, alerts.c.urgency, alerts.c.opened_at, alerts.c.told_at)
    post.watch().once()
    before = post.store.database.read(lambda connection: connection.execute(everything).all())
    assert len(before) == 1
    post.watch().once()
    assert post.store.database.read(lambda connection: connection.execute(everything).all()) == before
    assert post.told() == [("opened", "P1", "sla_missed")]


def test_reminder_is_sent_by_the_current_leader(post):
    post.known()
    post.look_until(MONDAY + 10 * MINUTE)
    first = post._running
    first.leave()
    post._running = None
    post.look_until(MONDAY + HOUR + 10 * MINUTE)
    assert post.told() == [("opened", "P1", "sla_missed"), ("repeated", "P1", "sla_missed")]


def test_retention_runs_daily_on_the_leader(post):
    post.known()
    post.look_until(MONDAY + 3 * MINUTE)
    (alert,) = post.desk().find()
    post.desk().resolve(alert.id, by="anna", note="gone")
    closed = update(alerts).values(resolved_at=MONDAY - 91 * DAY)
    post.store.database.write(lambda connection: connection.execute(closed))
    purged = []
    for _ in range(3):  # the first look of this day was before
        post.watch(purges=[lambda: purged.append(post.clock.now())]).once()
        post.clock.advance(MINUTE.total_seconds())
    assert (purged, len(post.desk().find(status="resolved"))) == ([], 1)
    post.clock.advance(DAY.total_seconds())
    for _ in range(3):
        post.watch(purges=[lambda: purged.append(post.clock.now())]).once()
    assert (len(purged), post.desk().find(status="resolved")) == (1, [])


def test_failed_retention_is_retried_at_the_next_check(post):
    tried = []

    def purge():
        tried.append(post.clock.now())
        if len(tried) == 1:
            raise OSError("no room left")

    watch = post.watch(purges=[purge])
    for _ in range(3):
        watch.check()
        post.clock.advance(60)
    assert len(tried) == 2


def test_suspended_leader_sends_nothing_after_takeover(post):
    for minute in range(1, 12):
        at = post.clock.now() - minute * MINUTE
        post.put(service_minutes, {"service": "api", "at": at, "attempts": 20, "faults": 20})
    frozen, other = post.watch(), post.watch()
    measured = frozen._levels.collect

    def stood_still(now=None):
        snapshot = measured(now)
        post.clock.advance(2 * LEASE.total_seconds())
        post.store.database.write(lambda connection: connection.execute(delete(service_minutes)))
        assert other.check()
        return snapshot

    frozen._levels.collect = stood_still
    frozen.check()
    assert post.desk().find() == []


# ── leadership ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_standby_names_the_leader(post):
    first, second = post.watch(), post.watch()
    assert first.check()
    assert not second.check()
    assert post.news == [Leading(), StandingBy(os.getpid(), os.uname().nodename)]
    assert first.check()
    assert not second.check()
    assert len(post.news) == 2


def test_standby_takes_over_at_once_when_the_leader_ends(post):
    first, second = post.watch(), post.watch()
    first.check()
    second.check()
    first.leave()
    assert second.check()
    assert not first.check()


def test_standby_takes_over_when_the_lease_expires(post):
    first, second = post.watch(), post.watch()
    first.check()
    post.clock.advance(LEASE.total_seconds() - 1)
    assert not second.check()
    post.clock.advance(1)
    assert second.check()
    assert not first.check()


def test_standby_does_not_repeat_messages_of_the_first(post):
    post.known()
    first, second = post.watch(), post.watch()
    post.clock.advance(HOUR.total_seconds())
    first.check()
    post.clock.advance(LEASE.total_seconds())
    second.check()
    assert post.told() == [("opened", "P1", "sla_missed")]
    assert [one.what for one in post.news if isinstance(one, AlertMoved)] == ["opened", "found"]


def test_single_check_takes_no_lead_and_defers_to_a_leader(post):
    leader = post.watch()
    post.clock.advance(HOUR.total_seconds())
    leader.check()
    post.known()
    assert not post.watch().once()
    assert post.told() == []
    leader.leave()
    assert post.watch().once()
    assert post.told() == [("opened", "P1", "sla_missed")]
    assert post.leader() is None


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_step_is_logged_once_and_blocks_no_other(post, caplog):
    post.known()
    post.store.database.write(lambda connection: connection.execute(DropTable(task_runs)))
    post.clock.advance(HOUR.total_seconds())
    watch = post.watch()
    for _ in range(3):
        assert watch.check()
        post.clock.advance(EVERY)
    assert post.told() == [("opened", "P1", "sla_missed")]
    warned = [record.getMessage() for record in caplog.records if record.name == "redrive.watch"]
    assert [one.partition(":")[0] for one in warned] == [
        "the watch cannot judge runs that ended",
        "the watch cannot measure running",
    ]
    assert watch.failed != []


def test_failed_measurement_is_reported_once_and_resolved(post, caplog, tmp_path):
    caplog.set_level(logging.INFO, "redrive.watch")
    file = tmp_path / "warehouse.db"
    post.settings = AlertSettings(tables=(WatchedTable(name="orders", url=f"sqlite:///{file}"),))
    watch = post.watch()
    for _ in range(3):
        watch.check()
        post.clock.advance(EVERY)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (id)")
    connection.close()
    post.clock.advance(5 * 60)
    watch.check()
    said = [record.getMessage() for record in caplog.records if record.name == "redrive.watch"]
    assert [one.partition(": ")[0] for one in said] == [
        "the watch cannot measure tables:orders",
        "the watch can measure tables:orders again",
    ]
    troubles = [one for one in post.news if isinstance(one, WatchProblem)]
    assert [(one.what, one.reason is None) for one in troubles] == [
        ("measure tables:orders", False),
        ("measure tables:orders", True),
    ]


def test_store_restart_is_logged_once_and_survived(mortal_postgres, caplog):
    mortal_postgres.start()
    with redrive.connect(mortal_postgres.url, migrate=True, patience=0.5) as store:
        post = Post(store)
        post.known()
        watch = post.watch()
        assert watch.check()
        mortal_postgres.stop()
        for _ in range(2):
            assert not watch.check()
        mortal_postgres.start()
        post.clock.advance(HOUR.total_seconds())
        assert watch.check()
        assert post.told() == [("opened", "P1", "sla_missed")]
        post.close()
    warned = [record for record in caplog.records if record.name == "redrive.watch"]
    assert [record.getMessage().partition(":")[0] for record in warned] == [
        "the watch cannot find out which watch leads"
    ]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def spawned(store_url, tmp_path):
    """Start `redrive watch` as a process, and wait for lines on its stderr."""
    begun = []

    def spawn(*words, python=warm_python):
        process = subprocess.Popen(
            python("-W", "error", "-m", "redrive.cli", "watch", "--store", store_url, "--every", "1s", *words),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield spawn
    for process in begun:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def hear(process, pattern):
    """Read until this line is printed."""
    for line in process.stderr:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended with {process.wait()}, and never said {pattern!r}")


def test_standby_takes_over_from_a_killed_leader(spawned):
    first = spawned(python=cold_python)  # its own pid is looked for
    hear(first, "^watching")
    second = spawned()
    assert str(first.pid) in hear(second, "^standing by")
    first.kill()
    hear(second, "^watching")


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_ends_watch_and_releases_the_lead(spawned, store, word):
    first = spawned()
    hear(first, "^watching")
    second = spawned()
    hear(second, "^standing by")
    first.send_signal(word)
    assert first.wait(PATIENCE) == 0
    hear(second, "^watching")
    second.send_signal(word)
    assert second.wait(PATIENCE) == 0
    gone = store.database.read(lambda connection: lease.holder(connection, store.database.dialect, "watch"))
    assert gone is None


def test_watch_killed_in_an_outage_does_not_page_again(spawned, store):
    failed = datetime.now(UTC) - HOUR
    Post(store).ran(failed - HOUR, failed, status="failed", judged=False, reason="disk full", error_kind="permanent")

    def opened():
        counted = select(func.count()).select_from(alert_sends).where(alert_sends.c.status == "sent")
        return store.database.read(lambda connection: connection.execute(counted).scalar_one())

    first = spawned()
    for line in first.stdout:
        if "opened" in line:
            break
    first.kill()
    first.wait()
    second = spawned()
    for line in second.stdout:
        if "found" in line:
            break
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0
    assert opened() == 1
    (alert,) = store.alerts.find()
    assert alert.status is AlertStatus.OPEN
    assert [send.what for send in store.alerts.sends(alert.id)] == [What.OPENED]
