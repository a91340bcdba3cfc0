"""SLAs of flows and their tasks: a warning before the miss, an alert at the miss, resolved when the task is done."""

from dataclasses import replace

import pytest

from redrive.alerts.facts.snapshot import DueTask
from redrive.policy.time_of_day import TimeOfDay
from tests.support.alert_snapshots import (
    HOUR,
    MINUTE,
    NOW,
    RUN,
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

# A run of `a_flow` began ten minutes ago.
TASK = DueTask(task="load", due=NOW, state="RUNNING")


class TestRun:
    @pytest.mark.parametrize(
        ("left", "found"), [(3 * MINUTE, []), (2 * MINUTE, ["sla_at_risk"]), (MINUTE, ["sla_at_risk"])]
    )
    def test_run_is_at_risk_in_the_last_fifth_of_its_time(self, left, found):
        assert conditions(judged(a_flow("running", sla=NOW + left))) == found

    def test_miss_is_the_same_alert_with_higher_severity(self):
        risk = the_one(judged(a_flow("running", sla=NOW + MINUTE)))
        missed = the_one(judged(a_flow("running", sla=NOW - MINUTE)))
        assert (missed.condition, missed.key) == ("sla_missed", risk.key)
        assert missed.urgency.outranks(risk.urgency)

    def test_title_has_the_due_time(self):
        title = the_one(judged(a_flow("running", sla=NOW + MINUTE))).title
        assert title == "settlement is not complete, and is due at 12:01 UTC, in 60 s"

    @pytest.mark.parametrize("status", ["complete", "abandoned"])
    def test_finished_run_is_not_at_risk(self, status):
        assert judged(a_flow(status, sla=NOW + MINUTE)).covers("sla_risk:flow/settlement")

    def test_run_with_time_left_withdraws_no_other_alert(self):
        assert not judged(a_flow("running", sla=NOW + HOUR)).covers("sla_risk:flow/settlement")

    def test_watch_finds_the_run_that_was_due_first(self):
        early, late = (a_flow("failed", sla=NOW - ago) for ago in (2 * MINUTE, MINUTE))
        finding = the_one(looked(levels(running=(late, early), inactive=("flow/settlement",))))
        assert (finding.condition, finding.facts.sla) == ("sla_missed", NOW - 2 * MINUTE)

    def test_time_of_day_is_left_to_the_deadlines(self):
        daily = a_flow("failed", sla=NOW - MINUTE, daily=TimeOfDay.of("sla", "11:59 UTC"))
        assert conditions(looked(levels(running=(daily,)))) == []

    @pytest.mark.parametrize("unknown", ["running", "due:flow/settlement"])
    def test_watch_does_not_judge_runs_it_could_not_read(self, unknown):
        late = a_flow("failed", sla=NOW - MINUTE)
        running, inactive = ((), ("flow/settlement",)) if unknown == "running" else ((late,), ())
        judgement = looked(levels(running=running, inactive=inactive, unknown={unknown: "no answer"}))
        assert conditions(judgement) == ["monitor_failed"]
        assert not judgement.covers("sla:flow/settlement")

    def test_running_pipeline_is_at_risk(self):
        finding = the_one(looked(levels(running=(a_run("running", sla=NOW + MINUTE),))))
        assert (finding.condition, finding.key) == ("sla_at_risk", "sla:vendor")
        assert finding.title == "vendor is not complete, and is due at 12:01 UTC, in 60 s"

    @pytest.mark.parametrize(("usual", "found"), [(660.0, []), (601.0, []), (599.0, ["sla_at_risk"])])
    def test_pipeline_that_usually_takes_as_long_is_not_at_risk(self, usual, found):
        run = a_run("running", sla=NOW + MINUTE, history=past(*[usual] * 6))
        assert conditions(looked(levels(running=(run,)))) == found

    def test_deadline_met_by_an_earlier_run_is_not_at_risk(self):
        daily = TimeOfDay.of("sla", "12:01 UTC")
        run = a_run("running", sla=NOW + MINUTE, daily=daily, last_complete=NOW - HOUR)
        assert conditions(looked(levels(running=(run,)))) == []


class TestTask:
    @pytest.mark.parametrize(
        ("left", "condition"),
        [(MINUTE, "sla_at_risk"), (-MINUTE, "task_sla_missed"), (-10 * MINUTE, "task_sla_missed")],
    )
    @pytest.mark.parametrize("status", ["running", "held"])
    def test_task_is_at_risk_then_late(self, left, condition, status):
        finding = the_one(judged(a_flow(status, due_tasks=(replace(TASK, due=NOW + left),))))
        assert finding.condition == condition
        assert (finding.key, finding.evidence) == ("task_sla:flow/settlement:load", f"task_sla:{RUN}:load")
        assert finding.facts.sla == NOW + left

    def test_task_with_time_left_is_no_alert(self):
        judgement = judged(a_flow("running", due_tasks=(replace(TASK, due=NOW + HOUR),)))
        assert conditions(judgement) == []
        assert judgement.covers(f"task_sla:{RUN}:load")

    @pytest.mark.parametrize(
        ("state", "words"),
        [
            ("RUNNING", "is running"),
            ("PENDING", "has not started"),
            ("RETRYING", "waits for its next attempt"),
            ("DEAD_LETTER", "is a dead letter"),
        ],
    )
    def test_title_has_the_status_of_the_task(self, state, words):
        finding = the_one(judged(a_flow("running", due_tasks=(replace(TASK, due=NOW - MINUTE, state=state),))))
        assert finding.title == f"settlement: task load {words}, and was due at 11:59 UTC, 60 s ago"

    def test_task_is_at_risk_within_the_grace_period(self):
        late = a_flow("running", due_tasks=(replace(TASK, due=NOW - MINUTE),))
        assert conditions(judged(late, with_thresholds(sla_grace=300))) == ["sla_at_risk"]

    @pytest.mark.parametrize("status", ["complete", "abandoned"])
    def test_finished_run_has_no_late_task(self, status):
        judgement = judged(a_flow(status, due_tasks=(TASK,)))
        assert conditions(judgement) == []
        assert judgement.covers(f"task_sla:{RUN}:load")

    @pytest.mark.parametrize("status", ["failed", "stopped"])
    def test_alert_stays_while_the_run_waits_to_be_resumed(self, status):
        assert not judged(a_flow(status, due_tasks=(TASK,))).covers(f"task_sla:{RUN}:load")

    def test_watch_finds_a_task_after_its_executor_died(self):
        late = a_flow("running", lost=True, due_tasks=(replace(TASK, due=NOW - MINUTE),))
        assert "task_sla_missed" in conditions(looked(levels(running=(late,))))

    def test_watch_does_not_judge_tasks_it_could_not_read(self):
        late = a_flow("running", due_tasks=(replace(TASK, due=NOW - MINUTE),))
        judgement = looked(levels(running=(late,), unknown={"running": "no answer"}))
        assert conditions(judgement) == ["monitor_failed"]
        assert not judgement.covers(f"task_sla:{RUN}:load")
