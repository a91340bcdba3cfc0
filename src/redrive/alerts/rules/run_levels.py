"""Rules on runs under way, which the watch applies: deadlines, freshness, lost runs, durations and dead tasks.

The rules on SLAs at risk and on late tasks are applied to ended runs, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import (
    clock,
    command,
    counted,
    short,
    span,
    wall,
    whole,
)
from redrive.alerts.facts.run_history import due_by, facts_of, on_restart, short_id, stale, usual, zone_of
from redrive.alerts.facts.snapshot import (
    DueRun,
    DueTask,
    Freshness,
    Judgement,
    LevelSnapshot,
    RunSnapshot,
)
from redrive.alerts.rules.runs import dead, duration, is_kept, late
from redrive.model.alerts import Facts, Finding
from redrive.model.tasks import risk_begins

_LOOP_FAILURES = 3  # failures after which a resumed run counts as looping

# ── deadlines and lost runs ───────────────────────────────────────────────────────────────────────────────────────────


def deadlines(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return deadlines that have passed without a complete run. A late run ends the miss when it completes.

    A missed deadline stays missed on a following day without a deadline: Friday's missing run is still missing on
    Saturday. Within the grace period a new deadline is not judged, and an earlier miss stays as it is.
    """
    if "due" in snapshot.unknown:
        return Judgement()
    due = [due_run for due_run in snapshot.due if snapshot.knows("due", due_run.subject.ident)]
    grace = timedelta(seconds=settings.thresholds.sla_grace)
    is_there = {
        due_run.subject.ident
        for due_run in due
        if due_run.done_at is not None or (due_run.last_complete is not None and due_run.last_complete > due_run.sla)
    }
    missed = [
        due_run for due_run in due if snapshot.now > due_run.sla + grace and due_run.subject.ident not in is_there
    ]
    # A flow without a time of day may have runs with SLAs of their own: see `under_way`.
    inactive = {ident for ident in snapshot.inactive if snapshot.knows("running", ident)}
    names = is_there | {due_run.subject.ident for due_run in missed} | inactive
    return Judgement(
        findings=tuple(_missed_finding(due_run, snapshot, settings) for due_run in missed),
        judged=frozenset({f"sla:{name}" for name in names} | {f"sla_risk:{name}" for name in inactive}),
    )


def _missed_finding(due: DueRun, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding:
    name, zone, now = short(due.subject.name), zone_of(due, settings), snapshot.now
    run = next((running for running in snapshot.running if running.run_id == due.run_id), None)
    ago = (now - due.sla).total_seconds()
    at = wall(due.sla, zone, now)
    measured = {"late by": ago, "threshold": settings.thresholds.sla_grace}
    if run is not None:
        title, facts = _under_way(run, at, settings, snapshot)
        facts = replace(facts, measured={**facts.measured, **measured})
    else:
        kind = "--flow" if due.subject.kind == "flow" else "--pipeline"
        title = (
            f"{name} is not done, and it was due at {at}"
            if due.started
            else f"{name}: nothing has run, and it was due at {at}"
        )
        facts = Facts(
            status="not done" if due.started else "not started",
            run_id=due.run_id,
            measured=measured,
            affected=(due.subject.name,),
            commands=(command("runs", "ls", kind, due.subject.name),),
            next_step=(
                "nothing starts it but your scheduler: see why that did not, and run it"
                if not due.started
                else "it does not resume by itself: see why it ended, and run it again"
            ),
        )
    facts = replace(facts, impact=stale(due, due.sla, zone, now), sla=due.sla)
    return make_finding(
        "sla_missed",
        due.subject,
        title,
        facts,
        key=f"sla:{due.subject.ident}",
        evidence=f"sla:{due.subject.ident}",
        since=due.sla + timedelta(seconds=settings.thresholds.sla_grace),
    )


def _under_way(run: RunSnapshot, at: str, settings: AlertSettings, snapshot: LevelSnapshot) -> tuple[str, Facts]:
    name = short(run.subject.name)
    if run.status == "running" and not run.lost:
        title, step = f"{name} still runs, and it was due at {at}", "it continues until it is complete"
    else:
        how = "is lost" if run.lost else f"is {run.status}"
        title, step = (
            f"{name} {how}, and it was due at {at}",
            f"nothing but your scheduler starts it again: {on_restart(run)}",
        )
    return title, facts_of(run, settings, snapshot.now, next_step=step)


def lost(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return runs that are running by their status but have no live executor, or one that is failing repeatedly."""
    runs = _known_running(snapshot)
    findings = [_lost_finding(run, snapshot, settings) for run in runs if run.lost or _is_looping(run)]
    return Judgement(findings=tuple(findings)) + snapshot.judged("running", "level:lost:", (run.ident for run in runs))


def _is_looping(run: RunSnapshot) -> bool:
    """Return whether a run fails each time it is resumed."""
    return run.status == "running" and run.failures >= _LOOP_FAILURES


def _lost_finding(run: RunSnapshot, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding:
    name = short(run.subject.name)
    done = f"{run.tasks_done:,} of {counted(run.tasks_total, 'task')}" if run.tasks_total else None
    done = done or f"{counted(run.written, 'row')} written"
    if run.lost:
        title = f"{name} is lost: its executor was killed, or its lease expired ({done})"
        step = f"nothing but your scheduler starts it again: {on_restart(run)}"
    else:
        title = f"{name} has failed or been killed {run.failures:,} times, and runs again ({done})"
        step = "it continues until it is complete, or fails as before: see what kills it, memory first"
    return make_finding(
        "retries_exhausted",
        run.subject,
        title,
        facts_of(run, settings, snapshot.now, next_step=step, measured={"failures": run.failures}),
        key=f"run:{run.ident}",
        evidence=f"level:lost:{run.ident}",
        persist=settings.recovery,
    )


def durations(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return running runs that take longer than usual."""
    runs = _known_running(snapshot)
    findings = [
        duration(run, settings, snapshot.now, evidence=f"level:duration:{run.subject.ident}", persist=settings.persist)
        for run in runs
        if run.status == "running" and not run.lost
    ]
    judged = snapshot.judged("running", "level:duration:", (run.subject.ident for run in runs))
    return Judgement(findings=tuple(finding for finding in findings if finding is not None)) + judged


def dead_tasks(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return dead tasks that wait for an operator, in all flows that are not over."""
    of_runs = sum((dead(run, settings, snapshot.now) for run in _known_running(snapshot)), Judgement())
    return of_runs + snapshot.judged("running", "dead:", ())


def _known_running(snapshot: LevelSnapshot) -> list[RunSnapshot]:
    return [run for run in snapshot.running if snapshot.knows("running", run.subject.ident)]


# ── SLAs at risk ──────────────────────────────────────────────────────────────────────────────────────────────────────

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
        return f"the run continues until it is complete{retry}"
    return f"nothing but your scheduler starts it again: {on_restart(run)}"


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


# ── freshness ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def freshness(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return pipelines and flows whose last complete run is older than their `fresh_within`."""
    findings = tuple(_stale(fresh, settings) for fresh in snapshot.fresh if fresh.age > fresh.within)
    return Judgement(findings=findings) + snapshot.judged("fresh", "level:stale:", ())


def _stale(fresh: Freshness, settings: AlertSettings) -> Finding:
    name, kind = fresh.subject.name, "--flow" if fresh.subject.kind == "flow" else "--pipeline"
    since = "has never been complete" if fresh.last_complete is None else f"is stale since {whole(fresh.last_complete)}"
    newest = "no run has started" if fresh.status is None else f"its newest run is {fresh.status}"
    facts = Facts(
        status=fresh.status or "not started",
        run_id=fresh.run_id,
        impact=f"{fresh.target or f'what {name} makes'} {since}",
        measured={"age": fresh.age, "threshold": fresh.within},
        affected=(name,),
        commands=(command("runs", "ls", kind, name),),
        next_step=f"{newest}; check the scheduler that starts it, and run it",
    )
    return make_finding(
        "stale",
        fresh.subject,
        f"{short(name)} {since}; it must be complete every {span(fresh.within)}",
        facts,
        key=f"stale:{fresh.subject.ident}",
        evidence=f"level:stale:{fresh.subject.ident}",
    )
