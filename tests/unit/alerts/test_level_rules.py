"""Rules for levels: each condition at its threshold, its text, and levels that could not be measured."""

import sqlite3
from datetime import timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.snapshot import DeadTasks, DueRun, Lag, PendingLetters, Slot, TableRows
from redrive.model.alerts import Severity, Subject
from redrive.policy.time_of_day import TimeOfDay
from tests.support.alert_snapshots import (
    DAY,
    HOUR,
    NOW,
    RUN,
    SECOND,
    a_flow,
    a_run,
    conditions,
    judged,
    levels,
    looked,
    past,
    the_one,
    with_thresholds,
)

DEAD = DeadTasks(task="settle", cause="ValueError@jobs:42", reason="no such merchant", count=1)
SETTLEMENT = Subject(kind="flow", name="settlement")


def due(ago=1.0, **told):
    """Return a missed deadline that passed this many seconds ago."""
    known = {"subject": SETTLEMENT, "sla": NOW - timedelta(seconds=ago), "done_at": None, "started": False}
    return levels(due=(DueRun(**{**known, **told}),))


# ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grace", [0.0, 900.0])
@pytest.mark.parametrize(("past_it", "found"), [(-1, False), (0, False), (1, True)])
def test_run_is_missed_once_its_deadline_has_passed(past_it, found, grace):
    judgement = looked(due(past_it + grace), with_thresholds(sla_grace=grace))
    assert conditions(judgement) == (["sla_missed"] if found else [])
    assert judgement.covers("sla:flow/settlement") is found  # before, the miss of another day still stands
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("sla:flow/settlement", "sla:flow/settlement")
        assert (finding.urgency, finding.persist) == (Severity.P1, 0.0)
        assert finding.since == NOW - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, True),
        ({"done_at": NOW - 2 * HOUR}, False),
        ({"done_at": NOW - SECOND}, False),  # late and complete: the delay is reported when the run ends
        ({"last_complete": NOW - DAY}, True),
        ({"last_complete": NOW - HOUR}, True),  # at the very deadline it is still of the day before
        ({"last_complete": NOW - HOUR + SECOND}, False),  # a run has completed since
    ],
)
def test_complete_run_meets_or_makes_up_a_deadline(told, found):
    assert bool(looked(due(3_600, **told)).findings) is found


def test_grace_period_does_not_close_the_miss_of_the_day_before():
    judgement = looked(due(60, last_complete=NOW - 3 * DAY), with_thresholds(sla_grace=300))
    assert not judgement.covers("sla:flow/settlement")
    there = looked(due(60, done_at=NOW - 2 * HOUR), with_thresholds(sla_grace=300))
    assert there.covers("sla:flow/settlement")


def test_run_that_never_started_is_reported_with_local_due_time():
    at_six_thirty = TimeOfDay(6, 30, ZoneInfo("Asia/Kolkata"))
    finding = the_one(looked(due(11 * 3_600, daily=at_six_thirty, last_complete=NOW - DAY, target="silver.settled")))
    assert finding.title == "settlement: nothing has run, and it was due at 06:30 IST (01:00 UTC)"
    assert finding.facts.impact == ("silver.settled is as of 2026-11-14 12:00 UTC; it was due by 06:30 IST (01:00 UTC)")
    assert finding.facts.commands == ("redrive runs ls --flow settlement",)
    assert finding.facts.measured == {"late by": 39_600.0, "threshold": 0.0}


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (None, "settlement is not done, and it was due at 11:00 UTC"),
        (a_flow("running"), "settlement still runs, and it was due at 11:00 UTC"),
        (a_flow("running", lost=True), "settlement is lost, and it was due at 11:00 UTC"),
        (a_flow("held"), "settlement is held, and it was due at 11:00 UTC"),
    ],
)
def test_started_run_is_reported_with_its_status(run, said):
    snapshot = due(3_600, started=True, run_id=RUN)
    snapshot = levels(due=snapshot.due, running=() if run is None else (run,))
    findings = [one for one in looked(snapshot).findings if one.condition == "sla_missed"]
    assert [one.title for one in findings] == [said]


def test_only_due_and_obsolete_deadlines_are_judged():
    judgement = looked(levels(due=due(3_600).due, inactive=("retired",)))
    assert judgement.covers("sla:flow/settlement")
    assert judgement.covers("sla:retired")
    assert not judgement.covers("sla:weekly")


def test_deadline_of_a_flow_is_not_that_of_a_pipeline():
    flow, pipeline = due().due[0], due(subject=Subject(kind="pipeline", name="settlement"), done_at=NOW).due[0]
    judgement = looked(levels(due=(flow, pipeline)))
    assert the_one(judgement).key == "sla:flow/settlement"
    assert judgement.covers("sla:settlement")


# ── runs under way ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("lost", "found"), [(False, []), (True, ["retries_exhausted"])])
def test_run_without_an_executor_has_time_to_be_resumed(lost, found):
    judgement = looked(levels(running=(a_run("running", lost=lost, written=12_000),)), AlertSettings(recovery=77.0))
    assert conditions(judgement) == found
    assert judgement.covers("level:lost:vendor")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("run:vendor", "level:lost:vendor")
        assert (finding.urgency, finding.persist) == (Severity.P2, 77.0)
        assert finding.title == ("vendor is lost: its executor was killed, or its lease expired (12,000 rows written)")
        assert finding.facts.status == "lost"


@pytest.mark.parametrize(
    ("failures", "found"), [(0, []), (2, []), (3, ["retries_exhausted"]), (1_000, ["retries_exhausted"])]
)
def test_run_that_crashes_repeatedly_is_lost_while_it_runs(failures, found):
    judgement = looked(levels(running=(a_run("running", failures=failures, written=12_000),)))
    assert conditions(judgement) == found
    assert judgement.covers("level:lost:vendor")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("run:vendor", "level:lost:vendor")
        assert (finding.urgency, finding.persist) == (Severity.P2, 600.0)
        assert (
            finding.title
            == f"vendor has failed or been killed {failures:,} times, and runs again (12,000 rows written)"
        )
        assert finding.facts.measured["failures"] == failures


def test_crash_loop_is_one_finding_until_the_run_is_complete():
    alive, dead = (a_run("running", failures=3, lost=lost) for lost in (False, True))
    one, other = (the_one(looked(levels(running=(run,)))) for run in (alive, dead))
    assert (one.key, one.evidence) == (other.key, other.evidence)
    complete = judged(a_run("complete", failures=3))
    assert complete.covers(one.evidence)
    assert conditions(complete) == ["recovered"]


@pytest.mark.parametrize("status", ["held", "stopped"])
def test_flow_waiting_for_an_operator_is_not_lost(status):
    assert looked(levels(running=(a_flow(status, failures=9),))).findings == ()


@pytest.mark.parametrize(
    ("seconds", "condition"),
    [(150.0, None), (150.1, "slow"), (200.0, "slow"), (200.1, "too_long")],
)
def test_running_run_can_be_too_long(seconds, condition):
    run = a_run("running", seconds=seconds, history=past(*[100.0] * 9))
    judgement = looked(levels(running=(run,)))
    assert conditions(judgement) == ([] if condition is None else [condition])
    assert judgement.covers("level:duration:vendor")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("duration:vendor", "level:duration:vendor")
        assert finding.persist == AlertSettings().persist
        assert "is not done" in finding.title


@pytest.mark.parametrize("told", [{"status": "held"}, {"status": "stopped"}, {"status": "running", "lost": True}])
def test_stopped_run_takes_no_time(told):
    run = a_flow(**told, seconds=9_000.0, history=past(*[100.0] * 9))
    assert not {"slow", "too_long"} & set(conditions(looked(levels(running=(run,)))))


def test_dead_tasks_are_reported_and_withdrawn_when_gone():
    judgement = looked(levels(running=(a_flow("held", dead=(DEAD,)), a_flow("running", run_id=UUID(int=7)))))
    finding = the_one(judgement)
    assert finding.key == "task:flow/settlement:ValueError@jobs:42"
    assert finding.evidence == f"dead:{RUN}:ValueError@jobs:42"
    assert finding.urgency is Severity.P1
    assert judgement.covers(f"dead:{UUID(int=9)}:KeyError@jobs:1")


def test_dead_task_stays_dead_while_its_flow_is_stopped():
    judgement = looked(levels(running=(a_flow("stopped", dead=(DEAD,), seconds=9e9, history=past(*[100.0] * 9)),)))
    assert the_one(judgement).evidence == f"dead:{RUN}:ValueError@jobs:42"


def test_flows_of_other_parameters_and_pipelines_are_separate():
    pipeline = Subject(kind="pipeline", name="settlement")
    lost = (
        a_run("running", lost=True, subject=pipeline),
        *(a_flow("running", lost=True, variant=v) for v in ("", "5e1f")),
    )
    findings = looked(levels(running=lost)).findings
    idents = ["settlement", "flow/settlement", "flow/settlement#5e1f"]
    assert [one.evidence for one in findings] == [f"level:lost:{ident}" for ident in idents]
    assert [one.key for one in findings] == [f"run:{ident}" for ident in idents]


# ── letters ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("new", "limit", "found"),
    [(99, 100, False), (100, 100, True), (101, 100, True), (100, 101, False), (1, 1, True), (0, 1, False)],
)
def test_hundred_letters_of_a_pipeline_in_a_day_are_reported(new, limit, found):
    letters = PendingLetters(pipeline="vendor", pending=5_400, new_today=new, cause="fee is N/A")
    judgement = looked(levels(letters=(letters,)), with_thresholds(pending_day=limit))
    assert conditions(judgement) == (["pending_day"] if found else [])
    assert judgement.covers("level:pending:vendor")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("letters:vendor", "level:pending:vendor")
        assert (finding.urgency, finding.persist) == (Severity.P3, 300.0)


def test_pending_letters_are_reported_with_cause_and_command():
    letters = PendingLetters(pipeline="o'brien", pending=5_400, new_today=120, cause="fee is N/A")
    finding = the_one(looked(levels(letters=(letters,))))
    assert finding.title == "o'brien: 120 open letters of the last day, 5,400 in all: fee is N/A"
    assert finding.facts.commands == (
        """redrive dlq causes --pipeline 'o'"'"'brien' --since 1d""",
        """redrive dlq replay --pipeline 'o'"'"'brien'""",
    )
    assert "pipeline_name = 'o''brien'" in finding.facts.sql


@pytest.mark.parametrize(
    ("total", "limit", "found"),
    [(99_999, 100_000, False), (100_000, 100_000, True), (100_001, 100_000, True), (100_000, 100_001, False)],
)
def test_hundred_thousand_letters_in_all_are_a_p2(total, limit, found):
    letters = (PendingLetters(pipeline="vendor", pending=99_000, new_today=0),)
    judgement = looked(levels(letters=letters, pending_total=total), with_thresholds(pending_total=limit))
    assert conditions(judgement) == (["pending_total"] if found else [])
    assert judgement.covers("level:pending_total")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("letters:*", "level:pending_total")
        assert (finding.urgency, finding.persist) == (Severity.P2, 300.0)
        assert finding.title.endswith("open letters in all (100,000 are too many), 99,000 of them of vendor")


# ── tables, slots, consumers ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rows", "week_ago", "drop", "found"),
    [
        (801, 1_000, 0.20, False),
        (800, 1_000, 0.20, False),
        (799, 1_000, 0.20, True),
        (0, 1_000, 0.20, True),
        (2_000, 1_000, 0.20, False),
        (0, 0, 0.20, False),
        (901, 1_000, 0.10, False),
        (900, 1_000, 0.10, False),
        (899, 1_000, 0.10, True),
        (333_333, 1_000_000, 0.666_667, False),
        (333_332, 1_000_000, 0.666_667, True),
    ],
)
def test_table_down_by_over_a_fifth_since_last_week_is_reported(rows, week_ago, drop, found):
    table = TableRows(name="silver.orders", rows=rows, week_ago=week_ago, pipeline="orders")
    judgement = looked(levels(tables=(table,)), with_thresholds(row_drop=drop))
    assert conditions(judgement) == (["row_count"] if found else [])
    assert judgement.covers("level:rows:silver.orders")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("rows:silver.orders", "level:rows:silver.orders")
        assert (finding.urgency, finding.persist) == (Severity.P1, 300.0)
        assert finding.subject == Subject(kind="table", name="silver.orders")


def test_table_is_reported_with_both_counts():
    table = TableRows(name="silver.orders", rows=700, week_ago=1_000, pipeline="orders")
    finding = the_one(looked(levels(tables=(table,))))
    assert finding.title == "silver.orders has 700 rows, 30.0 % fewer than the 1,000 of this hour last week"
    assert finding.facts.commands == ("redrive runs ls --pipeline orders",)
    assert finding.facts.sql == "SELECT count(*) FROM silver.orders"


def test_table_without_last_weeks_count_is_not_judged():
    new = TableRows(name="new", rows=1, week_ago=None)
    judgement = looked(levels(tables=(new, TableRows(name="old", rows=1, week_ago=1))))
    assert judgement.findings == ()
    assert not judgement.covers("level:rows:new")
    assert judgement.covers("level:rows:old")


@pytest.mark.parametrize(
    ("lag", "limit", "found"),
    [
        (9_999_999_999, 10e9, False),
        (10_000_000_000, 10e9, False),
        (10_000_000_001, 10e9, True),
        (10_000_000_001, 11e9, False),
    ],
)
def test_slot_lagging_by_over_ten_gigabytes_is_reported(lag, limit, found):
    judgement = looked(levels(slots=(Slot(name="cdc", lag_bytes=lag),)), with_thresholds(slot_bytes=limit))
    assert conditions(judgement) == (["slot_lag"] if found else [])
    assert judgement.covers("level:slot:cdc")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("slot:cdc", "level:slot:cdc")
        assert (finding.urgency, finding.persist) == (Severity.P1, 300.0)


@pytest.mark.parametrize(
    ("active", "reads"), [(True, "its consumer is too slow"), (False, "no consumer reads from it")]
)
def test_slot_is_reported_with_lag_and_whether_it_is_active(active, reads):
    finding = the_one(looked(levels(slots=(Slot(name="cdc", lag_bytes=12_300_000_000, active=active),))))
    assert finding.title == f"replication slot cdc is 12.3 GB behind (10.0 GB is the limit), and {reads}"
    assert "pg_replication_slots" in finding.facts.sql


@pytest.mark.parametrize(
    ("messages", "seconds", "said"),
    [
        (9_999, None, None),
        (10_000, None, None),
        (10_001, None, "by 10,001 messages (10,000 is the limit)"),
        (None, 299.9, None),
        (None, 300.0, None),
        (None, 300.1, "by 5 min (5 min is the limit)"),
        (10_001, 600.0, "by 10,001 messages (10,000 is the limit) and by 10 min (5 min is the limit)"),
        (0, 600.0, "by 10 min (5 min is the limit)"),
        (10_001, 0.0, "by 10,001 messages (10,000 is the limit)"),
    ],
)
def test_consumer_is_behind_by_messages_or_by_time(messages, seconds, said):
    judgement = looked(levels(lags=(Lag(consumer="billing", messages=messages, seconds=seconds),)))
    assert [one.title for one in judgement.findings] == ([] if said is None else [f"consumer billing is behind {said}"])
    assert judgement.covers("level:lag:billing")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("lag:billing", "level:lag:billing")
        assert (finding.urgency, finding.persist) == (Severity.P2, 300.0)


@pytest.mark.parametrize(
    ("thresholds", "found"),
    [
        ({"lag_messages": 499, "lag_seconds": 60.0}, True),
        ({"lag_messages": 500, "lag_seconds": 59.0}, True),
        ({"lag_messages": 500, "lag_seconds": 60.0}, False),
    ],
)
def test_consumer_lag_threshold_is_a_setting(thresholds, found):
    lag = Lag(consumer="billing", messages=500, seconds=60.0)
    assert bool(looked(levels(lags=(lag,)), with_thresholds(**thresholds)).findings) is found


def test_probe_may_name_a_command_for_its_consumer():
    lag = Lag(consumer="billing", messages=20_000, look="kafka-consumer-groups --describe --group billing")
    finding = the_one(looked(levels(lags=(lag,))))
    assert finding.facts.commands == ("kafka-consumer-groups --describe --group billing",)


def test_consumer_without_a_measurement_is_not_judged():
    judgement = looked(levels(lags=(Lag(consumer="billing"), Lag(consumer="orders", messages=1))))
    assert not judgement.covers("level:lag:billing")
    assert judgement.covers("level:lag:orders")


# ── what could not be measured ────────────────────────────────────────────────────────────────────────────────────────

ALL = {
    "services": {"level:down:x", "level:auth:x", "level:4xx:x", "level:5xx:x", "level:calls:x", "level:retries:x"},
    "running": {"level:lost:x", "level:duration:x", "dead:x:y"},
    "letters": {"level:pending:x", "level:pending_total"},
    "tables": {"level:rows:x"},
    "slots": {"level:slot:x"},
    "lags": {"level:lag:x"},
}


def test_missing_subject_is_withdrawn():
    judgement = looked(levels())
    assert [one for names in ALL.values() for one in names if not judgement.covers(one)] == []


@pytest.mark.parametrize("what", ALL)
def test_unmeasured_level_is_not_judged_but_others_are(what):
    judgement = looked(levels(unknown={what: "no connection"}))
    for name, evidence in ALL.items():
        assert {one for one in evidence if judgement.covers(one)} == (set() if name == what else evidence)


def test_unreadable_deadlines_are_not_judged():
    snapshot = levels(due=due().due, inactive=("retired",), unknown={"due": "no answer in time"})
    judgement = looked(snapshot)
    assert conditions(judgement) == ["monitor_failed"]
    assert not judgement.covers("sla:flow/settlement")
    assert not judgement.covers("sla:retired")


def test_unmeasured_subject_leaves_others_judged():
    shrunk = [TableRows(name=name, rows=1, week_ago=1_000) for name in ("orders", "refunds")]
    judgement = looked(levels(tables=tuple(shrunk), unknown={"tables:orders": "permission denied"}))
    assert [one.key for one in judgement.findings] == ["rows:refunds", "monitor:tables:orders"]
    assert judgement.covers("level:rows:refunds")
    assert not judgement.covers("level:rows:orders")
    assert not judgement.covers("level:rows:gone")
    assert judgement.covers("level:slot:cdc")


@pytest.mark.parametrize("name", ["*", "or*", "orders*"])
def test_name_is_never_read_as_a_pattern(name):
    tables = (TableRows(name=name, rows=9, week_ago=9), TableRows(name="refunds", rows=9, week_ago=9))
    judgement = looked(levels(tables=tables, unknown={"tables:orders": "permission denied"}))
    assert judgement.covers(f"level:rows:{name}")
    assert not judgement.covers("level:rows:orders")
    assert not judgement.covers("level:rows:orders_old")


def test_letter_queries_use_the_index_of_the_letters_table():
    snapshot = levels(
        letters=(PendingLetters(pipeline="o'brien", pending=100_000, new_today=100_000),), pending_total=100_000
    )
    core = (
        "id, pipeline_name, run_id, error_type, error_message, raw_record, source_table, source_key, rejected_at, "
        "reprocess_count, last_reprocess, status, resolution_note"
    )
    with sqlite3.connect(":memory:") as database:
        database.execute("ATTACH ':memory:' AS pipeline")
        database.execute(f"CREATE TABLE pipeline.dead_letter_queue ({core})")
        database.execute(
            "INSERT INTO pipeline.dead_letter_queue (id, pipeline_name, status, rejected_at) "
            "VALUES (1, 'o''brien', 'pending', '2026-11-15T11:00:00+00:00')"
        )
        for finding in looked(snapshot).findings:
            assert len(database.execute(finding.facts.sql).fetchall()) == 1
    database.close()
