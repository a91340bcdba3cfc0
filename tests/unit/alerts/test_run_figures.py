"""Findings from the figures of a run: rejected rows and their growth, its duration, and its dead tasks."""

from dataclasses import replace

import pytest

from redrive.alerts.facts.snapshot import DeadTasks
from redrive.model.alerts import Severity
from tests.support.alert_snapshots import (
    RUN,
    a_flow,
    a_run,
    conditions,
    judged,
    past,
    read_before,
    rejected_before,
    rejecting,
    the_one,
    with_thresholds,
)

DEAD = DeadTasks(task="settle", cause="ValueError@jobs:42", reason="ValueError: no such merchant", count=3, untried=2)

# ── rejected rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rejected", "condition", "urgency"),
    [
        (0, None, None),
        (1_799, None, None),
        (1_800, "new_letters", Severity.P3),
        (1_801, "new_letters", Severity.P3),
        (8_999, "new_letters", Severity.P3),
        (9_000, "new_letters", Severity.P3),
        (9_001, "rejected", Severity.P1),
        (35_999, "rejected", Severity.P1),
        (36_000, "rejected", Severity.P1),
        (36_001, "gate_abort", Severity.P1),
    ],
)
def test_rejected_rows_are_judged_by_the_gate(rejected, condition, urgency):
    judgement = judged(rejecting(rejected))
    assert conditions(judgement) == ([] if condition is None else [condition])
    # A run with few rejected rows does not judge those of earlier runs: their alert stays until they are closed.
    assert judgement.covers("run:vendor:gate") == (condition is not None)
    for finding in judgement.findings:
        assert (finding.urgency, finding.key, finding.evidence) == (urgency, "letters:vendor", "run:vendor:gate")
        assert finding.persist == 0


def test_vendor_file_is_one_p3_with_figures_and_commands():
    run = rejecting(5_400, cause="fee: Input should be a valid decimal", causes=1, pending=5_400)
    finding = the_one(judged(run))
    assert finding.urgency is Severity.P3
    assert finding.title == (
        "vendor: 5,400 of 180,000 rows rejected (3.0 %), all for one cause: fee: Input should be a valid decimal"
    )
    facts = finding.facts
    assert (facts.letters, facts.rate, facts.cause) == (5_400, 0.03, "fee: Input should be a valid decimal")
    assert facts.impact == "5,400 rows short: silver.vendor is as of 2026-11-15 12:00 UTC"
    assert facts.commands[:2] == (
        f"redrive dlq causes --run {str(RUN)[:8]}",
        f"redrive dlq replay --run {str(RUN)[:8]}",
    )
    assert f"run_id = '{RUN}'" in facts.sql


def test_replayed_letters_are_not_counted_as_missing():
    facts = the_one(judged(rejecting(5_400, pending=400))).facts
    assert (facts.letters, facts.rate) == (400, 0.03)
    assert facts.impact.startswith("400 rows short: ")


def test_run_without_letters_has_no_letter_rate():
    facts = the_one(judged(a_run(failures=1))).facts
    assert (facts.letters, facts.rate, facts.measured) == (None, None, {"failures": 1})


@pytest.mark.parametrize(
    ("cause", "causes", "said"),
    [
        (None, 0, "(3.0 %)"),
        ("fee is N/A", 0, "(3.0 %), most of them: fee is N/A"),
        ("fee is N/A", 1, "(3.0 %), all for one cause: fee is N/A"),
        ("fee is N/A", 7, "(3.0 %), for 7 causes, most of them: fee is N/A"),
    ],
)
def test_unknown_part_of_a_cause_is_left_out(cause, causes, said):
    assert the_one(judged(rejecting(5_400, cause=cause, causes=causes))).title.endswith(said)


def test_run_stopped_by_its_gate_keeps_its_position():
    finding = the_one(judged(rejecting(40_000)))
    assert finding.title.startswith("vendor was aborted by its gate: 40,000 of 180,000 rows rejected (22.2 %)")
    assert finding.facts.next_step.startswith("it stays aborted")
    assert finding.facts.status == "aborted"


@pytest.mark.parametrize("status", ["failed", "stopped", "running"])
def test_rows_of_a_running_run_are_judged_when_it_is_complete(status):
    judgement = judged(rejecting(9_001, status=status, error_kind="transient"))
    assert not judgement.covers("run:vendor:gate")
    assert "rejected" not in conditions(judgement)


def test_run_that_read_nothing_reports_no_letters():
    assert judged(a_run(read=0, written=0, tier="log", pending=3)).findings == ()


# ── few rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ((1_000,) * 5, 0, True),
        ((1_000,) * 5, 499, True),
        ((1_000,) * 5, 500, False),
        ((1_000,) * 4, 0, False),  # four runs are too few
        ((1_000, 1_000, 0, 1_000, 1_000), 0, False),  # it has read nothing before
        ((1_000,) * 10 + (0,), 400, True),  # long ago
    ],
)
def test_run_with_far_fewer_rows_than_before_is_reported(before, now, found):
    judgement = judged(a_run(read=now, written=now, history=read_before(*before)))
    assert (conditions(judgement) == ["few_rows"]) is found
    assert judgement.covers("run:vendor:few_rows")


def test_few_rows_are_compared_with_complete_runs_only():
    history = read_before(*[1_000] * 5) + read_before(0, status="failed")
    finding = the_one(judged(a_run(read=3, written=3, history=history)))
    assert finding.title == "vendor read 3 rows; its last 5 runs read 1,000 to 1,000"
    assert finding.urgency is Severity.P1


# ── growing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ((30, 20), 40, True),
        ((30, 20), 31, True),
        ((30, 20), 30, False),  # not more than the run before
        ((30, 20), 29, False),
        ((20, 20), 40, False),
        ((30, 21), 31, False),  # a rise by less than half in all is chance
        ((20, 30), 40, False),
        ((30,), 40, False),  # two runs are too few
        ((), 40, False),
        ((8, 7), 9, False),  # too few to speak of
        ((8, 7), 10, False),
        ((8, 6), 10, True),
        ((1, 0), 10, True),
        ((30, 20, 900), 40, True),
    ],
)
def test_growth_of_rejected_rows_needs_three_runs_in_a_row(before, now, found):
    judgement = judged(a_run(rejected=now, history=rejected_before(*before)))
    assert (conditions(judgement) == ["letters_growing"]) is found
    assert judgement.covers("run:vendor:growing")


def test_growth_is_reported_with_its_figures():
    finding = the_one(judged(a_run(rejected=400, history=rejected_before(90, 20))))
    assert finding.title == "vendor rejects more rows with every run: 20, 90, now 400"
    assert (finding.key, finding.evidence) == ("growing:vendor", "run:vendor:growing")
    assert (finding.urgency, finding.persist) == (Severity.P2, 0.0)


def test_failed_runs_are_ignored_and_aborted_runs_count():
    history = (*rejected_before(5, status="failed"), *rejected_before(30), *rejected_before(20, status="aborted"))
    assert conditions(judged(a_run(rejected=40, history=history))) == ["letters_growing"]
    aborted = a_run("aborted", rejected=40, history=history)
    assert set(conditions(judged(aborted))) == {"gate_abort", "letters_growing"}


@pytest.mark.parametrize(
    ("thresholds", "found"),
    [
        ({"growing_runs": 2, "growing_rise": 1.3}, True),
        ({"growing_runs": 2, "growing_rise": 1.4}, False),
        ({"growing_runs": 4}, False),
        ({"growing_rise": 2.0}, True),
        ({"growing_rise": 2.1}, False),
        ({"growing_least": 40}, True),
        ({"growing_least": 41}, False),
    ],
)
def test_growth_threshold_is_a_setting(thresholds, found):
    run = a_run(rejected=40, history=rejected_before(30, 20))
    assert bool(judged(run, with_thresholds(**thresholds)).findings) is found


# ── duration ──────────────────────────────────────────────────────────────────────────────────────────────────────────

USUAL = past(*[100.0] * 10, *[120.0] * 10)  # the median is 110, the 95th percentile 120


@pytest.mark.parametrize(
    ("seconds", "condition"),
    [
        (164.9, None),
        (165.0, None),
        (165.1, "slow"),
        (239.9, "slow"),
        (240.0, "slow"),
        (240.1, "too_long"),
    ],
)
def test_duration_is_compared_with_median_and_95th_percentile(seconds, condition):
    judgement = judged(a_run(seconds=seconds, history=USUAL))
    assert conditions(judgement) == ([] if condition is None else [condition])
    assert judgement.covers("run:vendor:duration")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence, finding.persist) == ("duration:vendor", "run:vendor:duration", 0.0)
        assert finding.urgency is (Severity.P2 if condition == "too_long" else Severity.P3)
        assert finding.facts.measured["threshold"] == pytest.approx(240 if condition == "too_long" else 165)


@pytest.mark.parametrize(
    ("thresholds", "condition"),
    [({"slow": 1.7}, None), ({"slow": 1.5}, "slow"), ({"too_long": 1.4}, "too_long"), ({"too_long": 1.5}, "slow")],
)
def test_slowness_factor_is_a_setting(thresholds, condition):
    found = conditions(judged(a_run(seconds=180, history=USUAL), with_thresholds(**thresholds)))
    assert found == ([] if condition is None else [condition])


@pytest.mark.parametrize(("runs", "found"), [(4, False), (5, True), (6, True)])
def test_usual_duration_needs_several_runs(runs, found):
    assert bool(judged(a_run(seconds=1_000, history=past(*[100.0] * runs))).findings) is found
    failed = past(*[100.0] * 4) + past(100.0, 100.0, status="failed")
    assert judged(a_run(seconds=1_000, history=failed)).findings == ()


@pytest.mark.parametrize(("seconds", "found"), [(59.9, False), (60.0, True), (60.1, True)])
def test_run_under_a_minute_is_never_too_long(seconds, found):
    run = a_run(seconds=seconds, history=past(*[1.0] * 9))
    assert bool(judged(run).findings) is found
    assert judged(run, with_thresholds(duration_least=0.0)).findings


def test_duration_is_reported_with_the_usual_one():
    finding = the_one(judged(a_run(seconds=7_800, history=past(*[3_000.0] * 9))))
    assert finding.title == "vendor took 2 h 10 min: 95 % of its runs took 50 min or less"
    assert (finding.facts.seconds, finding.facts.usual_seconds) == (7_800, 3_000)


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize(("seconds", "found"), [(110.0, []), (10_000.0, ["too_long"])])
def test_duration_of_a_resumed_flow_is_its_working_time(failures, seconds, found):
    flow = a_flow(seconds=seconds, history=USUAL, failures=failures)
    assert conditions(judged(flow)) == [*found, *["recovered"] * failures]
    for finding in judged(flow).findings[: len(found)]:
        assert (finding.key, finding.evidence) == ("duration:flow/settlement", "run:flow/settlement:duration")


# ── dead tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", ["running", "held", "stopped"])
@pytest.mark.parametrize("count", [0, 1, 2, 10_000])
def test_dead_tasks_are_one_p1_per_cause(status, count):
    dead = (replace(DEAD, count=count),) if count else ()
    judgement = judged(a_flow(status, dead=dead))
    assert conditions(judgement) == ["dead_task"] * bool(count)
    for finding in judgement.findings:
        assert finding.key == "task:flow/settlement:ValueError@jobs:42"
        assert finding.evidence == f"dead:{RUN}:ValueError@jobs:42"
        assert (finding.urgency, finding.persist) == (Severity.P1, 0.0)


def test_one_cause_under_two_task_names_is_one_finding():
    dead = (DEAD, replace(DEAD, task="report", count=1, untried=0), replace(DEAD, cause="KeyError@jobs:7"))
    first, second = judged(a_flow("held", dead=dead)).findings
    assert first.title == (
        "settlement: settle, report (4 tasks, 2 of them not tried) waits for an operator: ValueError: no such merchant"
    )
    assert first.facts.letters == 4
    assert second.key == "task:flow/settlement:KeyError@jobs:7"


def test_dead_task_is_reported_with_retry_and_accept_commands():
    finding = the_one(judged(a_flow("held", dead=(replace(DEAD, cause="odd cause"),), tasks_done=5, tasks_total=9)))
    assert finding.facts.commands == (
        f"redrive tasks retry --cause 'odd cause' --run {str(RUN)[:8]}",
        f"redrive tasks accept --cause 'odd cause' --run {str(RUN)[:8]} --note WHY",
        f"redrive tasks ls --run {str(RUN)[:8]}",
        f"redrive runs show {str(RUN)[:8]}",
    )
    assert finding.facts.measured == {"tasks done": 5, "tasks": 9}
    assert "blocked" in finding.facts.next_step


def test_dead_tasks_of_a_cancelled_flow_are_no_alert():
    assert judged(a_flow("abandoned", dead=(DEAD,))).findings == ()
