"""Levels read from a store of each database: deadlines, running work, services, letters."""

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy.schema import DropTable

import redrive
from redrive.alerts.config.settings import AlertSettings, PipelineSettings
from redrive.alerts.facts.sla import SlaMonitor
from redrive.alerts.facts.snapshot import Window
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.alerts.rules.run_levels import freshness
from redrive.model.alerts import Subject
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.schema import runs, service_minutes, service_rollups
from tests.support.alerts import finding, judgement
from tests.support.run_history import DAY, HOUR, MINUTE, MONDAY, Books, levels_of, statements

SLA = TimeOfDay.of("sla", "06:30 UTC")


@pytest.fixture
def books(store):
    return Books(store)


@pytest.fixture
def levels(store):
    return partial(levels_of, store)


# ── due messages ──────────────────────────────────────────────────────────────────────────────────────────────────────


def due(levels, now, **settings):
    """What is due then, by name."""
    return {one.subject.name: one for one in levels(**settings).collect(now).due}


def test_run_that_never_started_is_missed_at_its_deadline(books, levels):
    books.known()
    books.ran_every_day()
    before = due(levels, MONDAY - MINUTE)["vendor"]
    assert (before.sla, before.done_at) == (MONDAY - DAY, MONDAY - DAY - HOUR / 2)
    missed = due(levels, MONDAY)["vendor"]
    assert (missed.sla, missed.done_at, missed.started, missed.run_id) == (MONDAY, None, False, None)
    assert missed.last_complete == MONDAY - DAY - HOUR / 2
    assert (missed.target, missed.daily) == ("silver.deliveries", SLA)


def test_complete_run_in_time_meets_the_deadline(books, levels):
    books.known()
    books.ran_every_day()
    run_id = books.ran(MONDAY - HOUR, MONDAY - MINUTE)
    kept = due(levels, MONDAY + MINUTE)["vendor"]
    assert (kept.sla, kept.done_at, kept.run_id) == (MONDAY, MONDAY - MINUTE, run_id)


def test_late_run_is_known_by_its_end(books, levels):
    books.known(last=MONDAY + HOUR)
    books.ran_every_day()
    books.ran(MONDAY + HOUR, MONDAY + 2 * HOUR)
    assert due(levels, MONDAY + 3 * HOUR)["vendor"].done_at == MONDAY + 2 * HOUR


@pytest.mark.parametrize("status", ["running", "failed", "aborted", "stopped"])
def test_running_run_at_its_deadline_is_named(books, levels, status):
    books.known()
    books.ran_every_day()
    run_id = books.ran(MONDAY - HOUR, status=status)
    found = due(levels, MONDAY)["vendor"]
    assert (found.done_at, found.started, found.run_id) == (None, True, run_id)


def test_yesterdays_late_run_does_not_meet_todays_deadline(books, levels):
    books.known(last=MONDAY - DAY - HOUR)
    books.ran_every_day(back=2)
    books.ran(MONDAY - DAY - HOUR, MONDAY - DAY + 2 * HOUR)
    found = due(levels, MONDAY)["vendor"]
    assert (found.done_at, found.started) == (None, False)


def test_yesterdays_run_resumed_today_meets_todays_deadline(books, levels):
    books.known(last=MONDAY - HOUR)
    books.ran_every_day(back=2)
    run_id = books.ran(MONDAY - DAY - HOUR, MONDAY - HOUR / 2)
    found = due(levels, MONDAY)["vendor"]
    assert (found.done_at, found.run_id) == (MONDAY - HOUR / 2, run_id)


@pytest.mark.parametrize("how", ["begun anew", "gone on with"])
def test_late_catch_up_does_not_meet_the_next_deadline(books, levels, how):
    again = MONDAY + HOUR
    books.known(last=again)
    books.ran_every_day()
    if how == "begun anew":
        books.ran(MONDAY - HOUR, MONDAY - HOUR / 2, status="abandoned")
        books.ran(again, again + 10 * MINUTE)
    else:
        books.ran(MONDAY - HOUR, again + 10 * MINUTE)
    late = due(levels, MONDAY + 2 * HOUR)["vendor"]
    assert (late.sla, late.done_at) == (MONDAY, again + 10 * MINUTE)
    missed = due(levels, MONDAY + DAY + 2 * HOUR)["vendor"]
    assert (missed.sla, missed.done_at, missed.started, missed.run_id) == (MONDAY + DAY, None, False, None)
    run_id = books.ran(MONDAY + DAY + 3 * HOUR, MONDAY + DAY + 4 * HOUR)
    assert due(levels, MONDAY + DAY + 5 * HOUR)["vendor"].run_id == run_id


def test_run_started_the_day_before_meets_deadline_after_a_miss(books, levels):
    books.known(last=MONDAY + 4 * HOUR)
    books.ran_every_day(MONDAY - 19 * HOUR)  # at half past ten, for the next morning
    assert due(levels, MONDAY)["vendor"].done_at is None
    run_id = books.ran(MONDAY + 4 * HOUR, MONDAY + 5 * HOUR)
    found = due(levels, MONDAY + DAY)["vendor"]
    assert (found.sla, found.done_at, found.run_id) == (MONDAY + DAY, MONDAY + 5 * HOUR, run_id)


def test_weekly_pipeline_with_catch_up_is_due_on_no_other_day(books, levels):
    books.known(last=MONDAY + HOUR)
    for week in (1, 2, 3):
        books.ran(MONDAY - week * 7 * DAY - HOUR, MONDAY - week * 7 * DAY - HOUR / 2)
    books.ran(MONDAY + HOUR, MONDAY + 2 * HOUR)
    for days in (0, 1, 3, 6):
        found = due(levels, MONDAY + days * DAY + 3 * HOUR)["vendor"]
        assert (found.sla, found.done_at) == (MONDAY, MONDAY + 2 * HOUR)
    assert due(levels, MONDAY + 7 * DAY)["vendor"].done_at is None


def test_weekly_pipeline_is_missed_from_its_day_on(books, levels):
    books.known()
    for week in (1, 2, 3):
        books.ran(MONDAY - week * 7 * DAY - HOUR, MONDAY - week * 7 * DAY - HOUR / 2)
    assert due(levels, MONDAY - MINUTE)["vendor"].done_at is not None  # Sunday: last Monday's is the last one
    assert due(levels, MONDAY + MINUTE)["vendor"].done_at is None
    later = due(levels, MONDAY + 2 * DAY)["vendor"]
    assert (later.sla, later.done_at) == (MONDAY, None)
    books.ran(MONDAY + 2 * DAY + HOUR, MONDAY + 2 * DAY + 2 * HOUR)
    assert due(levels, MONDAY + 2 * DAY + 3 * HOUR)["vendor"].done_at == MONDAY + 2 * DAY + 2 * HOUR


def test_frequent_pipeline_is_missed_as_well(books, levels):
    books.known()
    every = 20 * MINUTE
    row = {"pipeline_name": "vendor", "status": "complete", "source": "s", "sink": "t"}
    starts = [MONDAY - DAY - number * every for number in range(1, 700)]
    books.put(runs, *({**row, "run_id": uuid4(), "started_at": at, "updated_at": at, "ended_at": at} for at in starts))
    assert due(levels, MONDAY - MINUTE)["vendor"].done_at is not None
    assert due(levels, MONDAY)["vendor"].done_at is None
    assert due(levels, MONDAY + 5 * DAY)["vendor"].done_at is None


def test_pipeline_idle_for_weeks_is_not_due(books, levels):
    books.known()
    books.ran_every_day()
    snapshot = levels().collect(MONDAY + 20 * DAY)
    assert (snapshot.due, snapshot.inactive) == ((), ("vendor",))


def test_pipeline_without_a_deadline_is_not_due(books, levels):
    books.known(sla=None)
    books.ran_every_day()
    snapshot = levels().collect(MONDAY)
    assert (snapshot.due, snapshot.inactive) == ((), ("vendor",))


def test_flow_has_deadlines_like_a_pipeline(books, levels):
    books.known("settlement", kind="flow")
    for ago in range(1, 10):
        books.flowed(MONDAY - ago * DAY - HOUR, MONDAY - ago * DAY - HOUR / 2)
    found = due(levels, MONDAY)["settlement"]
    assert (found.subject.kind, found.done_at, found.last_complete) == ("flow", None, MONDAY - DAY - HOUR / 2)


def test_flow_and_pipeline_of_one_name_have_own_deadlines(store, store_url, levels):
    soon = datetime.now(UTC) + 12 * HOUR
    sla = f"{soon:%H:%M} UTC"
    flow = redrive.Flow("orders", store=store, sla=sla)

    @flow.task(in_thread=True)
    def load() -> int:
        sink = redrive.rows.table(store_url, "orders", key="id", create=True)
        return redrive.Pipeline("orders", source=redrive.rows.records([{"id": 1}]), sink=sink, store=store).run().read

    report = flow.run()
    snapshot = levels().collect(soon)
    (found,) = snapshot.due
    assert (found.subject.ident, found.run_id, found.done_at) == ("flow/orders", report.run_id, report.ended_at)
    assert snapshot.inactive == ("orders",)


def test_configured_deadline_applies_to_a_flow_once_it_runs(books, levels):
    new = {"audit": PipelineSettings(sla=SLA, days=frozenset(range(7)))}
    levels(pipelines=new).collect(MONDAY - DAY - HOUR)
    (missed,) = levels(pipelines=new).collect(MONDAY).due
    assert (missed.subject.ident, missed.done_at) == ("audit", None)
    books.known("audit", kind="flow", sla=None, last=MONDAY + HOUR)
    books.flowed(MONDAY + HOUR, MONDAY + 2 * HOUR, name="audit")
    snapshot = levels(pipelines=new).collect(MONDAY + 3 * HOUR)
    assert snapshot.inactive == ("audit",)
    assert [(one.subject.ident, one.done_at) for one in snapshot.due] == [("flow/audit", MONDAY + 2 * HOUR)]


def test_unknown_time_zone_hides_only_its_deadline(store, books, levels):
    books.known()
    books.ran_every_day()
    books.known("other", sla="06:30 Europe/Kyjiw")
    snapshot = levels().collect(MONDAY)
    assert [one.subject.name for one in snapshot.due] == ["vendor"]
    assert snapshot.inactive == ()
    promises = SlaMonitor(store.database, AlertSettings())
    promises.due(MONDAY)
    assert list(promises.unknown) == ["due:other"]
    assert "Europe/Kyjiw" in promises.unknown["due:other"]


def test_configured_deadline_overrides_that_of_the_program(books, levels):
    books.known()
    books.ran_every_day(MONDAY - 2 * HOUR)
    earlier = {"vendor": PipelineSettings(sla=TimeOfDay.of("sla", "05:00 UTC"))}
    assert "vendor" not in due(levels, MONDAY - DAY, pipelines=earlier)  # it is kept from when it was first seen
    found = due(levels, MONDAY - HOUR, pipelines=earlier)["vendor"]
    assert (found.sla, found.done_at) == (MONDAY - timedelta(minutes=90), None)


def test_pipeline_only_in_settings_misses_its_first_deadline(levels):
    new = {"audit": PipelineSettings(sla=SLA)}
    assert due(levels, MONDAY - 2 * HOUR, pipelines=new) == {}
    found = due(levels, MONDAY + MINUTE, pipelines=new)["audit"]  # another process by now
    assert (found.sla, found.started, found.last_complete) == (MONDAY, False, None)


def test_configured_weekdays_apply(books, levels):
    books.known()
    books.ran_every_day(back=3)
    on_mondays = {"vendor": PipelineSettings(days=frozenset({0}))}
    assert due(levels, MONDAY - MINUTE, pipelines=on_mondays)["vendor"].sla == MONDAY - 7 * DAY
    assert due(levels, MONDAY, pipelines=on_mondays)["vendor"].sla == MONDAY


def test_pipeline_stores_its_own_deadline(store, store_url, levels):
    soon = datetime.now(UTC) + 12 * HOUR
    sink = redrive.rows.table(store_url, "deliveries", key="id", create=True)
    source = redrive.rows.records([{"id": 1}])
    report = redrive.Pipeline("real", source=source, sink=sink, store=store, sla=f"{soon:%H:%M} UTC").run()
    found = due(levels, soon)["real"]
    assert (found.run_id, found.done_at, found.sla) == (report.run_id, report.ended_at, report.sla)


def test_quiet_snapshot_needs_few_queries_and_reads_no_letter(books, levels, put):
    for number in range(40):
        books.known(f"p{number}")
        books.ran_every_day(name=f"p{number}", days=3, back=0)
    put(50)
    watched = levels()
    assert len(watched.collect(MONDAY + HOUR).due) == 40
    with statements() as heard:
        assert len(watched.collect(MONDAY + HOUR + MINUTE).due) == 40
    assert len(heard) < 25
    reading = [one for one in heard if "dead_letter_queue" in one and "pg_total_relation_size" not in one]
    assert reading == []


# ── freshness ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def fresh(levels, now, **own):
    """Return the freshness of "vendor" then, and the conditions that are found."""
    settings = {"pipelines": {"vendor": PipelineSettings(fresh_within=5_400.0, **own)}}
    snapshot = levels(**settings).collect(now)
    return snapshot.fresh[0], [one.condition for one in freshness(snapshot, AlertSettings(**settings)).findings]


class TestFreshness:
    def test_hourly_pipeline_is_stale_after_its_limit(self, books, levels):
        run_id = books.ran(MONDAY - HOUR, MONDAY)
        books.ran(MONDAY + HOUR, MONDAY + HOUR + MINUTE, status="failed")
        assert fresh(levels, MONDAY + 90 * MINUTE)[1] == []
        measured, found = fresh(levels, MONDAY + 91 * MINUTE)
        assert (measured.last_complete, measured.age, measured.status) == (MONDAY, 91 * 60, "failed")
        assert (found, measured.target) == (["stale"], "silver.deliveries")
        assert measured.run_id != run_id

    def test_complete_run_resets_freshness(self, books, levels):
        books.ran(MONDAY - DAY, MONDAY - DAY)
        assert fresh(levels, MONDAY)[1] == ["stale"]
        books.ran(MONDAY, MONDAY + MINUTE)
        assert fresh(levels, MONDAY + 2 * MINUTE)[1] == []

    def test_pipeline_without_runs_is_stale_from_its_configuration(self, levels):
        assert fresh(levels, MONDAY)[1] == []
        measured, found = fresh(levels, MONDAY + 91 * MINUTE)
        assert (measured.last_complete, measured.status, found) == (None, None, ["stale"])

    def test_days_without_runs_do_not_count(self, books, levels):
        friday = MONDAY.replace(hour=23, minute=59) - 3 * DAY
        books.ran(friday - MINUTE, friday)
        monday = MONDAY.replace(hour=1, minute=0)
        assert fresh(levels, monday, days=frozenset(range(5)))[1] == []
        assert fresh(levels, monday)[1] == ["stale"]

    def test_flow_is_measured_by_its_own_runs(self, books, levels):
        books.flowed(MONDAY - HOUR, MONDAY, name="vendor")
        measured, found = fresh(levels, MONDAY + HOUR)
        assert (measured.subject.kind, measured.last_complete, found) == ("flow", MONDAY, [])


# ── runs, services, letters ───────────────────────────────────────────────────────────────────────────────────────────


def test_run_without_a_process_is_lost(books, levels):
    run_id = books.ran(MONDAY - HOUR)
    (found,) = levels().collect(MONDAY).running
    assert (found.run_id, found.lost) == (run_id, True)


def rollup(at, **sums):
    names = (
        "calls",
        "attempts",
        "successes",
        "retries",
        "calls_failed",
        "permanent",
        "row",
        "failed_4xx",
        "failed_auth",
    )
    return {"service": "shipfast", "at": at, **dict.fromkeys(names, 0), **sums}


def test_service_has_its_last_hour_by_quarters(books, levels):
    now = MONDAY.replace(hour=10, minute=20)
    quarter = now.replace(minute=15)
    books.put(
        service_rollups,
        rollup(quarter - 26 * HOUR, failed_auth=1),
        rollup(quarter - 25 * HOUR, successes=50, retries=5, failed_4xx=9, failed_auth=1),
        rollup(quarter - 2 * HOUR, successes=50, retries=5),
        rollup(quarter - HOUR, calls=40, calls_failed=9, permanent=3, row=1, failed_auth=0, successes=30, retries=3),
        rollup(quarter, successes=0, retries=4, failed_4xx=2),
        {**rollup(quarter, successes=1), "service": "bank"},
    )
    bank, found = levels().collect(now).services
    assert (bank.name, bank.hour.successes, bank.minutes) == ("bank", 1, ())
    assert found.quarters == (Window(calls=40, failed=5, successes=30, retries=3), Window(retries=4))
    assert (found.failed_4xx, found.failed_auth) == (2, 0)
    assert found.last_auth_failure == quarter - 25 * HOUR + 15 * MINUTE
    assert found.last_success == quarter - HOUR  # of windows without a time, the one that is sure


def test_last_rejection_and_success_are_exact_to_the_second(books, levels):
    now = MONDAY.replace(hour=10, minute=20)
    quarter, second = now.replace(minute=15), MINUTE / 60
    times = {"last_failed_auth": quarter + second, "last_success": quarter + 2 * second}
    books.put(service_rollups, rollup(quarter - HOUR, failed_auth=1, successes=1))
    books.put(service_rollups, rollup(quarter, failed_auth=1, successes=1, **times))
    (found,) = levels().collect(now).services
    assert (found.last_auth_failure, found.last_success) == (quarter + second, quarter + 2 * second)


class TestBaseline:
    """The last hour of a service is compared with the same hours of the days before."""

    NOW = MONDAY.replace(hour=10, minute=20)

    def put(self, books, successes=100, *, hours=(9, 10), days=range(1, 10)):
        books.put(
            service_rollups,
            rollup(self.NOW.replace(minute=15), successes=1),
            *(
                rollup(self.NOW.replace(hour=hour, minute=minute) - day * DAY, successes=successes, retries=day)
                for day in days
                for hour in hours
                for minute in (0, 15, 30, 45)
            ),
        )

    def usual(self, levels):
        (found,) = levels().collect(self.NOW).services
        return [(one.successes, one.retries) for one in found.usual]

    def alert(self, store, since, until, *, by=None, key="service:shipfast:down"):
        ledger = AlertRepository(store.database, AlertSettings(persist=0))
        subject = Subject(kind="service", name="shipfast")
        level = finding("level:down:shipfast", key=key, subject=subject)
        (alert,) = ledger.apply(judgement(level), now=since)
        if by is not None:
            ledger.close(alert.id, by=by, note="as it is to be", now=until)
        elif until is not None:
            ledger.apply(judgement(under=["level:"]), now=until)

    def test_is_the_same_hours_of_seven_days(self, books, levels):
        self.put(books, hours=(3, 9, 10, 17))
        assert self.usual(levels) == [(500, 5 * day) for day in range(1, 8)]

    def test_is_all_hours_where_these_have_few_calls(self, books, levels):
        self.put(books, successes=10, hours=(3, 9, 17), days=(1, 2))
        assert sum(successes for successes, _ in self.usual(levels)) == 240

    def test_leaves_out_when_an_alert_stood(self, books, levels, store):
        self.put(books)
        self.alert(store, self.NOW - 3 * DAY - HOUR, self.NOW - 2 * DAY - 5 * HOUR)
        assert self.usual(levels) == [(500, 5 * day) for day in (1, 2, 4, 5, 6, 7)]

    def test_leaves_out_the_time_of_an_alert_that_is_open(self, books, levels, store):
        self.put(books)
        self.alert(store, self.NOW - 4 * DAY - 12 * HOUR, None)
        assert self.usual(levels) == [(500, 5 * day) for day in (5, 6, 7)]

    def test_includes_hours_that_an_operator_accepted(self, books, levels, store):
        self.put(books)
        self.alert(store, self.NOW - 3 * DAY - HOUR, self.NOW - 2 * DAY - 5 * HOUR, by="ann")
        assert len(self.usual(levels)) == 7

    def test_counts_the_time_of_alerts_about_something_else(self, books, levels, store):
        self.put(books)
        self.alert(store, self.NOW - 3 * DAY - HOUR, self.NOW - 2 * DAY, key="service:shipfast:4xx")
        assert len(self.usual(levels)) == 7


def test_service_has_its_last_three_hours_oldest_first(books, levels):
    books.put(service_rollups, rollup(MONDAY - HOUR, successes=1, retries=0, failed_4xx=0, failed_auth=0))
    minutes = [MONDAY - 181 * MINUTE, MONDAY - MINUTE, MONDAY - 179 * MINUTE]
    books.put(service_minutes, *({"service": "shipfast", "at": at, "attempts": 3, "faults": 2} for at in minutes))
    (found,) = levels().collect(MONDAY).services
    assert [one.at for one in found.minutes] == [MONDAY - 179 * MINUTE, MONDAY - MINUTE]
    assert {(one.attempts, one.faults) for one in found.minutes} == {(3, 2)}


def test_service_is_linked_to_the_pipelines_that_it_failed(books, levels):
    books.put(service_rollups, rollup(MONDAY - HOUR, successes=1, retries=0, failed_4xx=0, failed_auth=0))
    books.ran(MONDAY - HOUR, MONDAY - HOUR / 2, status="failed", error_service="shipfast")
    (found,) = levels().collect(MONDAY).services
    assert found.used_by == ("vendor",)


def test_pending_letters_are_counted_with_their_main_cause(put, levels, dlq):
    put(5)
    put(2, start=10, error="city: unknown")
    put(3, pipeline="orders", error="id: missing")
    dlq.discard(ids=[1], note="not ours")
    now = datetime.now(UTC)
    snapshot = levels().collect(now)
    orders, vendor = snapshot.letters
    assert (vendor.pipeline, vendor.pending, vendor.new_today) == ("vendor", 6, 6)
    assert vendor.cause == "fee: not a number"
    assert (orders.pipeline, orders.pending, snapshot.pending_total) == ("orders", 3, 9)
    (_, later) = levels().collect(now + 26 * HOUR).letters
    assert (later.pending, later.new_today) == (6, 0)
    dlq.discard(pipeline=["vendor", "orders"], note="enough")
    assert levels().collect(now).letters == ()


def test_secret_in_a_cause_is_not_in_the_snapshot(put, levels):
    put(1, error="refused: password='hunter2 three'")
    (found,) = levels().collect(datetime.now(UTC)).letters
    assert "hunter2" not in str(found)


def test_failed_query_makes_only_its_level_unknown(store, put, levels):
    put(3)
    store.database.write(lambda connection: connection.execute(DropTable(service_rollups)))
    snapshot = levels().collect(datetime.now(UTC))
    assert snapshot.unknown["services"]
    assert snapshot.pending_total == 3
