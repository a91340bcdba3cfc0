"""Rules on a single run. Each rule returns its findings and the evidence that it evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from redrive.alerts.conditions import TIERS, make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import clock, command, counted, letters_sql, percent, short, span, text, wall
from redrive.alerts.facts.run_history import (
    daily_of,
    due_by,
    facts_of,
    letter_commands,
    on_restart,
    short_id,
    sql_of_letters,
    usual,
    zone_of,
)
from redrive.alerts.facts.snapshot import DeadTasks, Judgement, RunSnapshot
from redrive.alerts.lifecycle.evidence import shared_cause
from redrive.model.alerts import Finding, Subject
from redrive.model.calls import Kind

RETRYABLE = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS, Kind.QUOTA})
"""Kinds of errors that may be gone when the run is restarted. All other kinds need an operator, including unknown
errors, a row error that ended a whole run, and too little memory for the smallest batch."""

_COUNTED = ("complete", "aborted")
_COMPARED = 10
_MOMENT = timedelta(microseconds=1)


def errors(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a failed run, or a flow with failed tasks whose retries are exhausted."""
    if run.status == "complete":
        return _no_finding(f"run:{run.ident}:failed", f"level:lost:{run.ident}")
    if run.status != "failed" and not run.failed and not _has_exited(run):
        return Judgement()
    if run.ended_at is not None and run.last_complete is not None and run.last_complete > run.ended_at:
        return Judgement()  # a later run has completed since
    # A task with a permanent error is a dead letter with its own alert, so a failed task has exhausted its retries.
    is_retryable = run.subject.kind == "flow" or run.error_kind in RETRYABLE
    finding = _retries_exhausted(run, settings, now) if is_retryable else _permanent_error(run, settings, now)
    return Judgement(findings=(finding,), judged=frozenset({finding.evidence}))


def _permanent_error(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Finding:
    name, service = short(run.subject.name), run.error_service
    refused = run.error_kind == Kind.AUTH
    what = "a credential was refused" if refused else "a permanent error"
    title, group_title = f"{name} has failed, {what}: {_why(run)}", f"have failed, {what}: {_cause(run)}"
    if _has_exited(run):
        title, group_title = f"{name} was stopped: {_exit(_why(run))}", f"were stopped: {_exit(_cause(run))}"
    facts = facts_of(
        run,
        settings,
        now,
        next_step=f"a retry cannot help, so nothing is retried. Once the cause is fixed, {on_restart(run)}",
        commands=() if service is None else (command("services", "show", service),),
    )
    return make_finding(
        "permanent_error",
        Subject(kind="service", name=service) if refused and service is not None else run.subject,
        title,
        facts,
        key=f"service:{service}:auth" if refused and service is not None else f"run:{run.ident}",
        evidence=f"run:{run.ident}:failed",
        since=run.ended_at,
        group=None if refused and service is not None else _group(run, settings),
        group_title=group_title,
    )


def exited(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a run that was stopped by its own code."""
    return errors(run, settings, now) if _has_exited(run) else Judgement()


def _has_exited(run: RunSnapshot) -> bool:
    """Return whether code of the pipeline ended the run with sys.exit."""
    return run.status == "stopped" and run.error_type == "SystemExit"


def _exit(reason: str) -> str:
    return reason.removeprefix("interrupted: ")


def _retries_exhausted(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Finding:
    name, service = short(run.subject.name), run.error_service
    step = f"nothing but your scheduler starts it again: {on_restart(run)}"
    commands: tuple[str, ...] = ()
    if service is not None:
        probe = "" if run.next_probe is None else f", the next at {clock(run.next_probe, now)}"
        step = f"the circuit of {short(service)} lets probes through until it is back{probe}; {step}"
        commands = (command("services", "show", service),)
    elif run.subject.kind == "flow":
        commands = (f"{command('tasks', 'retry', '--run', short_id(run.run_id))} TASK",)
    if run.ended_at is not None and settings.recovery:
        grace = run.ended_at + timedelta(seconds=settings.recovery)
        step += f"; grace period for its recovery: until {clock(grace, now)}"
    title = f"{name} has failed, and its retries are exhausted: {_why(run)}"
    if run.status != "failed":
        title = f"{name}: tasks have failed, and their retries are exhausted: {_why(run)}"
    return make_finding(
        "retries_exhausted",
        run.subject if service is None else Subject(kind="service", name=service),
        title,
        replace(facts_of(run, settings, now, next_step=step, commands=commands), error=_why(run)),
        key=f"run:{run.ident}" if service is None else f"service:{service}:down",
        evidence=f"run:{run.ident}:failed",
        since=run.ended_at,
        persist=settings.recovery,
        group=_group(run, settings) if service is None else None,
        group_title=f"have failed, and their retries are exhausted: {_cause(run)}",
    )


def _group(run: RunSnapshot, settings: AlertSettings) -> str | None:
    """Return the key of the alert shared by all runs with the same cause; None for failed tasks of several causes."""
    if len(run.failed) > 1:
        return None
    return shared_cause(_cause(run), kind=run.error_kind, subject=run.subject, settings=settings, target=run.target)


def _cause(run: RunSnapshot) -> str:
    return run.failed_of or run.reason or run.error_type or ""


def _why(run: RunSnapshot) -> str:
    causes = "; ".join(run.failed)
    return causes or run.reason or run.error_type or "it gives no reason"


def late(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a run that missed its deadline. The alert opens when the miss is certain and ends when a run completes."""
    evidence, complete = f"sla:{run.subject.ident}", run.status == "complete"
    sla, name = due_by(run, settings), short(run.subject.name)
    if sla is None:
        return _no_finding(evidence) if complete else Judgement()
    limit = sla + timedelta(seconds=settings.thresholds.sla_grace)
    done = (run.ended_at or now) if complete else now
    others = run.last_of_all
    if complete and (done <= limit or (others is not None and others > sla)):
        return _no_finding(evidence)
    if done <= limit or (others is not None and others > (run.ended_at or run.started_at)):
        return Judgement()  # there is time left, or another run was complete since
    if not complete and is_kept(run, settings, sla):
        return Judgement()
    due = wall(sla, zone_of(run, settings), now)
    missed = span((done - sla).total_seconds())
    step = f"it was due, and does not restart by itself: {on_restart(run)}"
    if complete:
        title, step = f"{name} is complete, {missed} late: it was due at {due}", "it is complete: nothing is left to do"
    elif run.status == "running" and not run.lost:
        title, step = f"{name} still runs, and was due at {due}, {missed} ago", "it continues until it is complete"
    else:
        title = f"{name} is {'lost' if run.lost else run.status}, and was due at {due}, {missed} ago"
    measured = {"late by": (done - sla).total_seconds(), "threshold": settings.thresholds.sla_grace}
    finding = make_finding(
        "sla_missed",
        run.subject,
        title,
        facts_of(run, settings, now, next_step=step, measured=measured),
        key=evidence,
        evidence=evidence,
        since=limit,
        momentary=complete,
    )
    # A momentary finding resolves the alert, so its evidence is not withdrawn as well.
    return Judgement(findings=(finding,), judged=frozenset() if complete else frozenset({evidence}))


def is_kept(run: RunSnapshot, settings: AlertSettings, deadline: datetime) -> bool:
    """Return whether an earlier run met a daily deadline, because it completed after the deadline before."""
    daily, others = daily_of(run, settings), run.last_of_all
    return daily is not None and others is not None and others > daily.before(deadline - _MOMENT)


def rejects(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return the finding on rejected rows by the tier of the gate, at the end of a run.

    A run with few rejected rows does not resolve the alert of an earlier run, whose rows are still quarantined.
    `Alerts.resolve_handled_letters` resolves it.
    """
    if run.subject.kind == "flow":
        return Judgement()
    evidence = f"run:{run.subject.ident}:gate"
    stopped = run.status == "aborted"
    condition = "gate_abort" if stopped else TIERS.get(run.tier)
    if condition is None or (run.status == "complete" and run.decided):
        return Judgement()
    rate = run.rejected / run.read if run.read else 0.0
    summary = f"{run.rejected:,} of {counted(run.read, 'row')} rejected ({percent(rate)}){_common(run)}"
    if stopped:
        if run.reason and not run.rejected:  # too few rows were read
            summary = run.reason.partition(": ")[2].partition(";")[0]
        title = f"{short(run.subject.name)} was aborted by its gate: {summary}"
        step = (
            "it stays aborted, the good rows written and the rejected ones quarantined. Fix the source or the check, "
            "then run it with --restart, or accept the rejected rows with --override-gate"
        )
    else:
        title = f"{short(run.subject.name)}: {summary}"
        step = "the other rows are written, and the run is complete; the rejected ones wait to be replayed or discarded"
    facts = facts_of(
        run,
        settings,
        now,
        next_step=step,
        commands=letter_commands(run),
        sql=sql_of_letters(run.run_id),
        measured={"rejected": run.rejected, "read": run.read},
    )
    short_rows = run.pending or run.rejected
    finding = make_finding(
        condition,
        run.subject,
        title,
        replace(facts, impact=f"{counted(short_rows, 'row')} short: {facts.impact}") if short_rows else facts,
        key=f"letters:{run.subject.ident}",
        evidence=evidence,
        since=run.ended_at,
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))


def _common(run: RunSnapshot) -> str:
    cause = f": {run.cause}" if run.cause else ""
    if run.causes == 1:
        return f", all for one cause{cause}"
    if run.causes > 1:
        return f", for {run.causes:,} causes" + (f", most of them{cause}" if cause else "")
    return f", most of them{cause}" if cause else ""


def few_rows(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a run that read far fewer rows than each of its last runs; its source is probably incomplete."""
    if run.subject.kind == "flow":
        return Judgement()
    evidence, limits = f"run:{run.subject.ident}:few_rows", settings.thresholds
    past = [past_run.read for past_run in run.history if past_run.status == "complete"][:_COMPARED]
    if not past or len(past) < limits.history_least or run.read >= limits.few_rows * min(past):
        return _no_finding(evidence)
    finding = make_finding(
        "few_rows",
        run.subject,
        f"{short(run.subject.name)} read {counted(run.read, 'row')}; its last {len(past)} runs read "
        f"{min(past):,} to {max(past):,}",
        facts_of(
            run,
            settings,
            now,
            next_step="what was read is written. Compare the source with what its owner sent, then run it again",
            commands=(command("runs", "ls", "--pipeline", run.subject.name),),
            measured={"read": run.read, "threshold": limits.few_rows * min(past)},
        ),
        key=f"few_rows:{run.subject.ident}",
        evidence=evidence,
        since=run.ended_at,
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))


def growing(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a pipeline that rejects more rows with each run."""
    if run.subject.kind == "flow":
        return Judgement()
    evidence, limits = f"run:{run.subject.ident}:growing", settings.thresholds
    runs = max(2, limits.growing_runs)
    past = [past_run.rejected for past_run in run.history if past_run.status in _COUNTED]
    counts = [*reversed(past[: runs - 1]), run.rejected]
    rises = len(counts) == runs and all(before < after for before, after in pairwise(counts))
    if not rises or run.rejected < limits.growing_least or run.rejected < limits.growing_rise * counts[0]:
        return _no_finding(evidence)
    finding = make_finding(
        "letters_growing",
        run.subject,
        f"{short(run.subject.name)} rejects more rows with every run: "
        f"{', '.join(f'{count:,}' for count in counts[:-1])}, now {run.rejected:,}{_common(run)}",
        facts_of(
            run,
            settings,
            now,
            next_step="runs continue and quarantine the rejected rows; find what changed in the source or the checks",
            commands=letter_commands(run),
            sql=sql_of_letters(run.run_id),
            measured={"rising over runs": runs, "threshold": limits.growing_runs},
        ),
        key=f"growing:{run.subject.ident}",
        evidence=evidence,
        since=run.ended_at,
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))


def took(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a complete run that took longer than usual; any ended run withdraws the level of its duration."""
    level = f"level:duration:{run.subject.ident}"
    if run.status != "complete":
        return _no_finding(level)
    evidence = f"run:{run.subject.ident}:duration"
    finding = duration(run, settings, now, evidence=evidence, persist=0.0)
    return Judgement(findings=() if finding is None else (finding,), judged=frozenset({evidence, level}))


def duration(
    run: RunSnapshot, settings: AlertSettings, now: datetime, *, evidence: str, persist: float
) -> Finding | None:
    """Return a finding if a run takes, or took, longer than usual."""
    limits = settings.thresholds
    known = usual(run.history, limits.history_least)
    if known is None or run.seconds < limits.duration_least:
        return None
    if run.seconds > limits.too_long * known.p95:
        condition, limit, past = "too_long", limits.too_long * known.p95, f"95 % of its runs took {span(known.p95)}"
    elif run.seconds > limits.slow * known.median:
        condition, limit, past = "slow", limits.slow * known.median, f"half of its runs took {span(known.median)}"
    else:
        return None
    runs = run.status == "running"
    name, so_long = short(run.subject.name), span(run.seconds)
    title = f"{name} has run for {so_long}, and is not done" if runs else f"{name} took {so_long}"
    return make_finding(
        condition,
        run.subject,
        f"{title}: {past} or less",
        facts_of(
            run,
            settings,
            now,
            next_step="it continues until it is done" if runs else "it is complete: check why it took longer",
            measured={"seconds": run.seconds, "threshold": limit},
        ),
        key=f"duration:{run.subject.ident}",
        evidence=evidence,
        since=None if runs else run.ended_at,
        persist=persist,
    )


def dead(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return dead tasks that wait for an operator."""
    if run.subject.kind != "flow":
        return Judgement()
    findings = () if run.status == "abandoned" else tuple(_dead(run, settings, now))
    return Judgement(findings=findings, judged_under=frozenset({f"dead:{run.run_id}:"}))


def _dead(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Iterator[Finding]:
    by_cause: dict[str, list[DeadTasks]] = {}
    for group in run.dead:
        by_cause.setdefault(group.cause, []).append(group)
    for cause, groups in by_cause.items():
        count, untried = sum(group.count for group in groups), sum(group.untried for group in groups)
        tasks = ", ".join(dict.fromkeys(group.task for group in groups))
        not_tried = f", {untried:,} of them not tried" if untried else ""
        many = f" ({counted(count, 'task')}{not_tried})" if count != 1 else ""
        facts = facts_of(
            run,
            settings,
            now,
            next_step=(
                "it is not retried, and the tasks after it are blocked; everything else continues. "
                "When the cause is fixed, retry it, or accept it as it is, and run the flow again"
            ),
            commands=(
                command("tasks", "retry", "--cause", cause, "--run", short_id(run.run_id)),
                f"{command('tasks', 'accept', '--cause', cause, '--run', short_id(run.run_id))} --note WHY",
            ),
            sql=letters_sql(f"run_id = {text(run.run_id)} AND error_type = 'task'"),
        )
        yield make_finding(
            "dead_task",
            run.subject,
            f"{short(run.subject.name)}: {short(tasks)}{many} waits for an operator: {groups[0].reason}",
            replace(facts, error=groups[0].reason, cause=cause, letters=count),
            key=f"task:{run.subject.ident}:{cause}",
            evidence=f"dead:{run.run_id}:{cause}",
            since=run.ended_at,
            group=shared_cause(groups[0].reason, kind=groups[0].kind, subject=run.subject, settings=settings),
            group_title=f"have tasks that wait for an operator: {groups[0].reason}",
        )


def recovered(run: RunSnapshot, settings: AlertSettings, now: datetime) -> Judgement:
    """Return a complete run that had failed before."""
    if run.failures <= 0:
        return Judgement()
    evidence = f"recovered:{run.subject.ident}"
    often = {1: "once", 2: "twice"}.get(run.failures, f"{run.failures:,} times")
    finding = make_finding(
        "recovered",
        run.subject,
        f"{short(run.subject.name)} is complete after it had failed {often}",
        facts_of(
            run,
            settings,
            now,
            next_step="it is complete: nothing is left to do",
            measured={"failures": run.failures},
        ),
        key=evidence,
        evidence=evidence,
        since=run.ended_at,
        momentary=True,
    )
    return Judgement(findings=(finding,))


def _no_finding(*evidence: str) -> Judgement:
    """Return a judgement that evaluated this evidence without a finding."""
    return Judgement(judged=frozenset(evidence))
