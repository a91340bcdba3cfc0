"""Rules on SLAs that are at risk, and on the SLAs of tasks; used by the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import clock, command, short, span, wall
from redrive.alerts.facts.run_history import due_by, facts_of, goes_on, short_id, usual, zone_of
from redrive.alerts.facts.snapshot import DueTask, Judgement, LevelSnapshot, RunSnapshot
from redrive.alerts.rules.runs import is_kept, late
from redrive.model.alerts import Finding
from redrive.model.tasks import risk_begins

_OVER = ("complete", "abandoned")
_STATES = {
    "PENDING": "has not started",
    "READY": "has not started",
    "RETRYING": "waits for its next attempt",
    "UPSTREAM_FAILED": "does not run, since a task above it failed",
    "DEAD_LETTER": "is a dead letter",
}


def at_risk(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a run that is not done although most of its time has passed. If it misses, the alert escalates."""
    evidence = f"sla_risk:{run.subject.ident}"
    if run.status in _OVER:
        return Judgement(judged=frozenset({evidence}))
    due, others = due_by(run, settings), run.last_of_all
    if due is None or not risk_begins(run.started_at, due) <= now < due or (others and others > run.started_at):
        return Judgement()
    if run.subject.kind == "pipeline" and (is_kept(run, settings, due) or _is_on_time(run, settings, due)):
        return Judgement()
    finding = make_finding(
        "sla_at_risk",
        run.subject,
        f"{short(run.subject.name)} is not complete, and is due at {wall(due, zone_of(run, settings), now)}, in "
        f"{span((due - now).total_seconds())}",
        facts_of(run, settings, now, next_step=_next_step(run, now)),
        key=f"sla:{run.subject.ident}",
        evidence=evidence,
        since=risk_begins(run.started_at, due),
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))


def _is_on_time(run: RunSnapshot, settings: AlertSettings, due: datetime) -> bool:
    """Return whether a running pipeline will meet its SLA if it takes no longer than 95 % of its runs took."""
    known = usual(run.history, settings.thresholds.history_least)
    if known is None or run.status != "running" or run.lost:
        return False
    return run.seconds <= known.p95 and run.started_at + timedelta(seconds=known.p95) <= due


def late_tasks(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return tasks of a flow that have missed their SLA, or are about to."""
    if run.subject.kind != "flow":
        return Judgement()
    due = () if run.status in _OVER else run.due_tasks
    findings = (_late_task(run, task, settings, now) for task in due)
    return Judgement(
        findings=tuple(finding for finding in findings if finding is not None),
        judged_under=frozenset({f"task_sla:{run.run_id}:"}),
    )


def _late_task(run: RunSnapshot, task: DueTask, settings: AlertSettings, now: datetime) -> Finding | None:
    missed = now > task.due + timedelta(seconds=settings.thresholds.sla_grace)
    begins = risk_begins(run.started_at, task.due)
    if not missed and now < begins:
        return None
    state = _STATES.get(task.state, f"is {task.state.lower()}")
    left = (task.due - now).total_seconds()
    when = f"in {span(left)}" if left > 0 else f"{span(-left)} ago"
    facts = facts_of(
        run,
        settings,
        now,
        next_step=_next_step(run, now),
        commands=(command("tasks", "show", task.task, "--run", short_id(run.run_id)),),
        measured={"late by": -left, "threshold": settings.thresholds.sla_grace} if missed else None,
    )
    return make_finding(
        "task_sla_missed" if missed else "sla_at_risk",
        run.subject,
        f"{short(run.subject.name)}: task {short(task.task)} {state}, and {'was' if left <= 0 else 'is'} due at "
        f"{wall(task.due, zone_of(run, settings), now)}, {when}",
        replace(facts, sla=task.due),
        key=f"task_sla:{run.ident}:{task.task}",
        evidence=f"task_sla:{run.run_id}:{task.task}",
        since=task.due if missed else begins,
    )


def _next_step(run: RunSnapshot, now: datetime) -> str:
    if run.status == "running" and not run.lost:
        retry = "" if run.next_retry is None else f"; the next retry of a task is at {clock(run.next_retry, now)}"
        return f"the run goes on until it is complete{retry}"
    return f"nothing but your scheduler starts it again: {goes_on(run)}"


def under_way(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return runs that are at risk or have missed their own SLA; their executors may be dead."""
    runs = [run for run in snapshot.running if snapshot.knows("running", run.subject.ident)]
    of_runs = sum((rule(run, settings, snapshot.now) for run in runs for rule in (at_risk, late_tasks)), Judgement())
    return of_runs + _missed(runs, snapshot, settings)


def _missed(runs: Sequence[RunSnapshot], snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return runs that missed an SLA in seconds from their start; `deadlines` judges times of day.

    Runs share one alert, which shows the run that was due first.
    """
    first: dict[str, Finding] = {}
    for run in runs:
        in_seconds = zone_of(run, settings) is None and snapshot.knows("due", run.subject.ident)
        if not in_seconds:
            continue
        for finding in late(run, settings, snapshot.now).findings:
            known = first.setdefault(finding.evidence, finding)
            first[finding.evidence] = min(known, finding, key=lambda finding: finding.since or snapshot.now)
    return Judgement(findings=tuple(first.values()), judged=frozenset(first))
