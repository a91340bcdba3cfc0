"""Findings from the end of a run: errors, deadlines, recovery, and what is withdrawn."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from redrive.alerts.config.settings import AlertSettings, DaysOff, PipelineSettings
from redrive.model.alerts import Severity, Subject
from redrive.model.calls import Kind
from redrive.policy.time_of_day import TimeOfDay
from tests.support.alert_snapshots import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    RUN,
    SECOND,
    a_flow,
    a_run,
    conditions,
    judged,
    past,
    the_one,
    with_thresholds,
)

SIX_THIRTY = TimeOfDay(6, 30, ZoneInfo("Asia/Kolkata"))

# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "condition", "urgency", "persist"),
    [
        (Kind.AUTH, "permanent_error", Severity.P1, 0.0),
        (Kind.PERMANENT, "permanent_error", Severity.P1, 0.0),
        (Kind.ROW, "permanent_error", Severity.P1, 0.0),
        (Kind.DISCARD, "permanent_error", Severity.P1, 0.0),
        (Kind.RESOURCE, "permanent_error", Severity.P1, 0.0),
        (None, "permanent_error", Severity.P1, 0.0),
        ("a kind of a later version", "permanent_error", Severity.P1, 0.0),
        (Kind.TRANSIENT, "retries_exhausted", Severity.P2, 600.0),
        (Kind.RATE_LIMITED, "retries_exhausted", Severity.P2, 600.0),
        (Kind.AMBIGUOUS, "retries_exhausted", Severity.P2, 600.0),
        (Kind.RETRY_NOW, "retries_exhausted", Severity.P2, 600.0),
        (Kind.QUOTA, "retries_exhausted", Severity.P2, 600.0),
    ],
)
def test_permanent_error_is_immediate_and_transient_has_grace(kind, condition, urgency, persist):
    run = a_run("failed", error_kind=None if kind is None else str(kind), reason="it broke")
    finding = the_one(judged(run))
    assert (finding.condition, finding.urgency, finding.persist) == (condition, urgency, persist)
    assert (finding.key, finding.evidence) == ("run:vendor", "run:vendor:failed")


def test_every_kind_of_error_is_transient_or_permanent():
    for kind in Kind:
        assert conditions(judged(a_run("failed", error_kind=str(kind)))) in (["permanent_error"], ["retries_exhausted"])


@pytest.mark.parametrize("recovery", [0.0, 60.0, 7_200.0])
def test_grace_period_is_a_setting(recovery):
    settings = AlertSettings(recovery=recovery)
    assert the_one(judged(a_run("failed", error_kind="transient"), settings)).persist == recovery


@pytest.mark.parametrize(
    ("kind", "service", "key", "subject"),
    [
        ("auth", "shipfast", "service:shipfast:auth", Subject(kind="service", name="shipfast")),
        ("auth", None, "run:vendor", Subject(kind="pipeline", name="vendor")),
        ("permanent", "shipfast", "run:vendor", Subject(kind="pipeline", name="vendor")),
        ("transient", "shipfast", "service:shipfast:down", Subject(kind="service", name="shipfast")),
        ("transient", None, "run:vendor", Subject(kind="pipeline", name="vendor")),
    ],
)
def test_runs_failing_for_one_service_are_one_cause(kind, service, key, subject):
    finding = the_one(judged(a_run("failed", error_kind=kind, error_service=service)))
    assert (finding.key, finding.subject, finding.evidence) == (key, subject, "run:vendor:failed")
    assert finding.facts.affected == ("vendor",)


def test_failed_run_reports_reason_progress_and_next_step():
    run = a_run(
        "failed",
        error_kind="permanent",
        error_type="UndefinedColumn",
        reason='UndefinedColumn: column "fee" does not exist',
        read=90_000,
        written=90_000,
        last_complete=NOW - DAY,
        sla=NOW + HOUR,
        history=past(500, 500, 520, 480, 510),
    )
    finding = the_one(judged(run))
    assert finding.title == ('vendor has failed, a permanent error: UndefinedColumn: column "fee" does not exist')
    facts = finding.facts
    assert facts.status == "failed"
    assert facts.error_type == "UndefinedColumn"
    assert facts.impact == "silver.vendor is stale since 2026-11-14 12:00 UTC; it is due by 13:00 UTC"
    assert (facts.rows_done, facts.rows_total, facts.checkpoint) == (90_000, 90_000, '{"line": 180001}')
    assert (facts.seconds, facts.usual_seconds) == (600.0, 500)
    assert facts.commands == (f"redrive runs show {str(RUN)[:8]}",)
    assert "running vendor again resumes from its checkpoint" in facts.next_step
    assert finding.since == run.ended_at


def test_run_that_read_nothing_is_reported_as_restarting():
    finding = the_one(judged(a_run("failed", error_kind="transient", read=0, written=0)))
    assert "running vendor again starts from the beginning" in finding.facts.next_step


def test_failure_of_a_service_names_the_command_for_it():
    finding = the_one(judged(a_run("failed", error_kind="transient", error_service="shipfast", reason="503")))
    assert finding.title == "vendor has failed, and its retries are exhausted: 503"
    assert finding.facts.commands[0] == "redrive services show shipfast"
    assert "probes" in finding.facts.next_step


def test_next_step_has_the_next_probe_and_the_end_of_the_grace():
    run = a_run("failed", error_kind="transient", error_service="shipfast", next_probe=NOW + timedelta(minutes=3))
    step = the_one(judged(run, AlertSettings(recovery=600))).facts.next_step
    assert "until it is back, the next at 12:03 UTC" in step
    assert f"grace period for its recovery: until {run.ended_at + timedelta(minutes=10):%H:%M} UTC" in step


def test_share_of_the_source_is_known_until_the_run_is_complete():
    for status, share in (("failed", 0.62), ("complete", None)):
        run = a_run(status, error_kind="permanent", source_done=62, source_total=100, read=100, rejected=30, tier="P1")
        assert judged(run).findings[0].facts.source_share == share


def test_exhausted_tasks_are_reported_while_the_flow_runs():
    failed = ("settle[17]: ReadTimeout: no answer",)
    running = the_one(judged(a_flow("running", failed=failed)))
    assert running.title == (
        "settlement: tasks have failed, and their retries are exhausted: settle[17]: ReadTimeout: no answer"
    )
    ended = the_one(judged(a_flow("failed", failed=failed, error_kind="permanent")))
    assert "running settlement again continues where it stopped" in running.facts.next_step
    resumes = "running settlement again resumes this run and retries what failed; dead letters wait for a decision"
    assert resumes in ended.facts.next_step
    for finding in (running, ended):
        assert finding.facts.commands[0] == f"redrive tasks retry --run {str(RUN)[:8]} TASK"
        assert (finding.condition, finding.key) == ("retries_exhausted", "run:flow/settlement")
        assert (finding.evidence, finding.persist) == ("run:flow/settlement:failed", 600.0)


def test_late_judged_failure_before_a_complete_run_is_ignored():
    late = {"ended_at": NOW - HOUR, "error_kind": "permanent"}
    assert conditions(judged(a_run("failed", **late, last_complete=NOW - HOUR))) == ["permanent_error"]
    assert judged(a_run("failed", **late, last_complete=NOW - HOUR + SECOND)).findings == ()


@pytest.mark.parametrize("status", ["stopped", "abandoned", "running"])
def test_stopped_or_cancelled_run_is_no_alert(status):
    run = a_run(status, reason="SIGTERM", error_kind="transient", rejected=90_000, tier="P1", sla=NOW + HOUR)
    judgement = judged(run)
    assert judgement.findings == ()
    for evidence in ("run:vendor:failed", "run:vendor:gate", "run:vendor:growing", "run:vendor:duration", "sla:vendor"):
        assert not judgement.covers(evidence)


# ── trap 41 ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_41_run_with_retried_attempts_is_no_alert():
    # Retries within a run leave no mark on how it ended.
    assert judged(a_run("complete", failures=0)).findings == ()
    assert judged(a_flow("running", tasks_done=3, tasks_total=9)).findings == ()


def test_41_recovered_run_is_one_p3_and_withdraws_its_alerts():
    failed = judged(a_run("failed", error_kind="transient"))
    recovered = judged(a_run("complete", failures=1))
    assert recovered.covers(the_one(failed).evidence)
    finding = the_one(recovered)
    assert (finding.condition, finding.urgency) == ("recovered", Severity.P3)
    assert finding.key == finding.evidence == "recovered:vendor"
    assert finding.momentary
    assert finding.title == "vendor is complete after it had failed once"


@pytest.mark.parametrize(("failures", "found"), [(0, []), (1, ["recovered"]), (2, ["recovered"])])
def test_run_that_never_failed_did_not_recover(failures, found):
    assert conditions(judged(a_run(failures=failures))) == found


# ── what is withdrawn ─────────────────────────────────────────────────────────────────────────────────────────────────

OF_VENDOR = {
    "run:vendor:failed",
    "level:lost:vendor",
    "run:vendor:gate",
    "run:vendor:growing",
    "run:vendor:few_rows",
    "run:vendor:duration",
    "level:duration:vendor",
    "sla:vendor",
}


@pytest.mark.parametrize(
    ("status", "weighed"),
    [
        ("complete", OF_VENDOR - {"run:vendor:gate"}),
        ("failed", {"run:vendor:failed", "level:duration:vendor"}),
        ("aborted", {"run:vendor:gate", "run:vendor:growing", "level:duration:vendor"}),
        ("stopped", {"level:duration:vendor"}),
        ("running", set()),
        ("abandoned", set()),
        ("a status of a later version", set()),
    ],
)
def test_run_withdraws_only_what_it_can_judge(status, weighed):
    judgement = judged(a_run(status))
    assert {evidence for evidence in OF_VENDOR if judgement.covers(evidence)} == weighed
    assert not judgement.covers("run:orders:failed")


@pytest.mark.parametrize("status", ["complete", "failed", "held", "stopped", "running", "abandoned"])
def test_every_judgement_of_a_flow_lists_its_dead_tasks(status):
    judgement = judged(a_flow(status))
    assert judgement.covers(f"dead:{RUN}:ValueError@jobs:42")
    assert not judgement.covers(f"dead:{UUID(int=1)}:ValueError@jobs:42")


def test_flow_and_pipeline_of_one_name_are_independent():
    pipeline = Subject(kind="pipeline", name="settlement")
    failed = {"error_kind": "permanent", "sla": NOW - HOUR, "failed": ("settle: no answer",)}
    told = {"seconds": 9_000.0, "history": past(*[100.0] * 9)}
    of_flow = [*judged(a_flow("failed", **failed)).findings, *judged(a_flow(**told)).findings]
    of_pipeline = [
        *judged(a_run("failed", **failed, subject=pipeline)).findings,
        *judged(a_run(**told, subject=pipeline)).findings,
    ]
    assert len(of_flow) == len(of_pipeline) == 3
    assert not {one.key for one in of_flow} & {one.key for one in of_pipeline}
    assert not any(judged(a_run(subject=pipeline)).covers(one.evidence) for one in of_flow)
    assert not any(judged(a_flow()).covers(one.evidence) for one in of_pipeline)
    assert all(judged(a_flow()).covers(one.evidence) for one in of_flow)


def test_flow_with_other_parameters_resolves_nothing():
    failed = a_flow("failed", variant="5e1f0a2b", failed=("settle: no answer",))
    finding = the_one(judged(failed))
    assert (finding.key, finding.evidence) == ("run:flow/settlement#5e1f0a2b", "run:flow/settlement#5e1f0a2b:failed")
    assert finding.title.startswith("settlement has failed")
    for variant, mended in (("5e1f0a2b", True), ("00c0ffee", False), ("", False)):
        complete = judged(a_flow(variant=variant))
        assert complete.covers(finding.evidence) is mended
        assert complete.covers("level:lost:flow/settlement#5e1f0a2b") is mended


def test_deadline_and_pace_of_a_flow_cover_all_parameters():
    complete = judged(a_flow(variant="5e1f0a2b"))
    for evidence in ("sla:flow/settlement", "run:flow/settlement:duration", "level:duration:flow/settlement"):
        assert complete.covers(evidence)


@pytest.mark.parametrize("name", ["*", "vendor*", "ven*"])
def test_name_that_looks_like_a_pattern_is_a_name(name):
    subject = Subject(kind="pipeline", name=name)
    complete = judged(a_run(subject=subject))
    assert complete.covers(f"run:{name}:failed")
    assert {evidence for evidence in OF_VENDOR if complete.covers(evidence)} == set()
    assert not complete.covers("level:lost:vendor_b")


# ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", ["failed", "aborted", "stopped", "running", "held"])
@pytest.mark.parametrize(("past_it", "found"), [(-1, False), (0, False), (1, True)])
@pytest.mark.parametrize("grace", [0.0, 900.0])
def test_deadline_is_missed_when_passed_and_run_is_incomplete(status, past_it, found, grace):
    run = a_run(status, sla=NOW - timedelta(seconds=past_it + grace), error_kind="transient")
    judgement = judged(run, with_thresholds(sla_grace=grace))
    missed = [one for one in judgement.findings if one.condition == "sla_missed"]
    assert bool(missed) is found
    assert judgement.covers("sla:vendor") is found
    for finding in missed:
        assert (finding.key, finding.evidence, finding.urgency) == ("sla:vendor", "sla:vendor", Severity.P1)
        assert not finding.momentary
        assert finding.persist == 0
        assert finding.since == run.sla + timedelta(seconds=grace)


@pytest.mark.parametrize(("late", "found"), [(-1, False), (0, False), (1, True)])
def test_run_completed_late_is_reported_once_and_resolved(late, found):
    judgement = judged(a_run(sla=NOW - timedelta(seconds=late)))
    assert conditions(judgement) == (["sla_missed"] if found else [])
    # A run on time withdraws the alert; a late run closes it by its own finding.
    assert judgement.covers("sla:vendor") is not found
    assert all(finding.momentary for finding in judgement.findings)


def test_late_run_on_a_holiday_is_no_alert_for_weekday_pipeline():
    daily = TimeOfDay(11, 0, ZoneInfo("UTC"))
    run = a_run(sla=NOW - HOUR, daily=daily)
    off = DaysOff(dates=frozenset({NOW.date()}))
    weekdays = {"vendor": PipelineSettings(days=frozenset(range(5)))}
    assert conditions(judged(run, AlertSettings(pipelines=weekdays))) == ["sla_missed"]
    assert conditions(judged(run, AlertSettings(pipelines=weekdays, holidays=off))) == []
    assert conditions(judged(run, AlertSettings(holidays=off))) == ["sla_missed"]  # it may run on any day


def test_run_in_time_stays_in_time_however_late_it_is_judged():
    run = a_run(ended_at=NOW - 2 * HOUR, sla=NOW - HOUR, failures=1)
    finding = the_one(judged(run))
    assert finding.condition == "recovered"
    assert finding.facts.impact == "silver.vendor is as of 2026-11-15 10:00 UTC; it was due by 11:00 UTC"


def test_complete_run_without_a_deadline_missed_none():
    assert judged(a_run(sla=None)).covers("sla:vendor")


def test_old_resumed_run_is_not_late_after_a_newer_complete_run():
    held_for_days = {"sla": NOW - 3 * DAY, "started_at": NOW - 4 * DAY}
    assert conditions(judged(a_run(**held_for_days))) == ["sla_missed"]
    assert conditions(judged(a_run(**held_for_days, last_complete=NOW - 3 * DAY))) == ["sla_missed"]
    assert judged(a_run(**held_for_days, last_complete=NOW - 2 * DAY)).findings == ()
    assert judged(a_run(**held_for_days, last_complete=NOW - 2 * DAY)).covers("sla:vendor")


def test_flow_of_older_day_is_not_late_after_a_later_day():
    monday = a_flow(variant="5e1f0a2b", sla=NOW - 3 * DAY, started_at=NOW - 4 * DAY)
    assert conditions(judged(monday)) == ["sla_missed"]
    assert judged(replace(monday, any_complete=NOW - 2 * DAY)).findings == ()


def test_freshness_of_a_flow_is_its_last_complete_run():
    failed = a_flow("failed", failed=("settle: no answer",), variant="5e1f0a2b", last_complete=NOW - 3 * DAY)
    assert the_one(judged(replace(failed, any_complete=NOW - DAY))).facts.impact == (
        "what settlement makes is stale since 2026-11-14 12:00 UTC"
    )
    assert the_one(judged(failed)).facts.impact == "what settlement makes is stale since 2026-11-12 12:00 UTC"


def test_deadline_met_by_another_run_is_not_missed():
    stuck = a_run("running", started_at=NOW - 5 * HOUR, sla=NOW - HOUR)
    assert conditions(judged(stuck)) == ["sla_missed"]
    assert conditions(judged(replace(stuck, last_complete=NOW - 5 * HOUR))) == ["sla_missed"]
    assert judged(replace(stuck, last_complete=NOW - 2 * HOUR)).findings == ()


def test_deadline_is_shown_in_its_local_time():
    run = a_run("failed", error_kind="transient", daily=SIX_THIRTY, sla=datetime(2026, 11, 15, 1, 0, tzinfo=UTC))
    finding = next(one for one in judged(run).findings if one.condition == "sla_missed")
    assert finding.title == "vendor is failed, and was due at 06:30 IST (01:00 UTC), 11 h ago"
    assert finding.facts.impact.endswith("it was due by 06:30 IST (01:00 UTC)")
    assert finding.facts.measured == {"late by": 39_600.0, "threshold": 0.0}


def test_configured_deadline_overrides_the_programs():
    settings = AlertSettings(pipelines={"vendor": PipelineSettings(sla=TimeOfDay(17, 25, ZoneInfo("Asia/Kolkata")))})
    run = a_run(started_at=NOW - 10 * MINUTE, sla=NOW + HOUR)
    assert judged(run).findings == ()
    assert the_one(judged(run, settings)).title == (
        "vendor is complete, 5 min late: it was due at 17:25 IST (11:55 UTC)"
    )
