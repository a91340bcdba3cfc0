"""Facts about a run for its alerts, with usual durations, deadlines and commands; used by the rules on runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from statistics import median
from uuid import UUID

from redrive.alerts.config.settings import WEEKEND, AlertSettings
from redrive.alerts.delivery.format import command, letters_sql, short, text, wall, whole
from redrive.alerts.facts.snapshot import DueRun, PastRun, RunSnapshot
from redrive.model.alerts import Facts
from redrive.model.runs import share_of
from redrive.policy.time_of_day import TimeOfDay


@dataclass(frozen=True, slots=True)
class UsualDuration:
    """The median and the 95th percentile of the durations of complete runs, in seconds."""

    median: float
    p95: float


def usual(history: Sequence[PastRun], least: int) -> UsualDuration | None:
    """Return the usual duration; None if there were too few complete runs."""
    took = sorted(past.seconds for past in history if past.status == "complete")
    if len(took) < max(1, least):
        return None
    position = 0.95 * (len(took) - 1)  # interpolated between two runs, like percentile_cont of PostgreSQL
    below = int(position)
    above = min(below + 1, len(took) - 1)
    return UsualDuration(median(took), took[below] + (took[above] - took[below]) * (position - below))


def due_by(run: RunSnapshot, settings: AlertSettings) -> datetime | None:
    """Return the deadline of a run, by `redrive.toml` or else by its program; None on a day off."""
    own = settings.pipelines.get(run.subject.name)
    due = own.sla.after(run.started_at) if own is not None and own.sla is not None else run.sla
    zone = zone_of(run, settings)
    if due is None or zone is None:
        return due
    on_weekends = not run.history or any(past.started_at.astimezone(zone).weekday() in WEEKEND for past in run.history)
    off = settings.days_off(run.subject.name, on_weekends=on_weekends)
    return None if due.astimezone(zone).date() in off else due


def zone_of(one: RunSnapshot | DueRun, settings: AlertSettings) -> tzinfo | None:
    """Return the time zone of the deadline."""
    daily = daily_of(one, settings)
    return None if daily is None else daily.zone


def daily_of(one: RunSnapshot | DueRun, settings: AlertSettings) -> TimeOfDay | None:
    """Return the time of day of the deadline, by `redrive.toml` or else by the program."""
    own = settings.pipelines.get(one.subject.name)
    return own.sla if own is not None and own.sla is not None else one.daily


def facts_of(
    run: RunSnapshot,
    settings: AlertSettings,
    now: datetime,
    *,
    next_step: str,
    commands: Sequence[str] = (),
    sql: str | None = None,
    measured: Mapping[str, float] | None = None,
) -> Facts:
    """Return the facts about a run, with the next step and commands."""
    is_flow = run.subject.kind == "flow"
    sla = due_by(run, settings)
    known = usual(run.history, settings.thresholds.history_least)
    tasks = {"tasks done": run.tasks_done, "tasks": run.tasks_total} if is_flow and run.tasks_total else {}
    return Facts(
        status="lost" if run.lost else run.status,
        run_id=run.run_id,
        error=run.reason,
        error_type=run.error_type or run.error_kind,
        impact=stale(run, sla, zone_of(run, settings), now),
        sla=sla,
        rows_done=None if is_flow else run.written,
        rows_total=None if is_flow else run.read,
        source_share=None if run.status == "complete" else share_of(run.source_done, run.source_total),
        detail=run.detail,
        trace_id=run.trace_id,
        environment=run.environment,
        checkpoint=run.checkpoint,
        letters=run.pending or run.rejected or None,
        rate=run.rejected / run.read if run.read and run.rejected else None,
        cause=run.cause,
        seconds=run.seconds,
        usual_seconds=None if known is None else known.median,
        measured={**(measured or {}), **tasks},
        affected=(run.subject.name,),
        commands=(*commands, *show_commands(run)),
        sql=sql,
        next_step=next_step,
    )


def stale(one: RunSnapshot | DueRun, sla: datetime | None, zone: tzinfo | None, now: datetime) -> str:
    """Return which data is stale since when, and the SLA that is at risk."""
    what = one.target or f"what {one.subject.name} makes"
    since = one.last_complete
    if isinstance(one, RunSnapshot):
        since = (one.ended_at or now) if one.status == "complete" else one.last_of_all
    is_old = isinstance(one, RunSnapshot) and one.status not in ("complete", "running")
    age = "stale since" if is_old else "as of"
    state = f"{what} has never been complete" if since is None else f"{what} is {age} {whole(since)}"
    if sla is None:
        return state
    return f"{state}; it {'was due' if sla < now else 'is due'} by {wall(sla, zone, now)}"


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def show_commands(run: RunSnapshot) -> tuple[str, ...]:
    """Return the commands that show the run."""
    run_id = short_id(run.run_id)
    shown = command("runs", "show", run_id)
    return (command("tasks", "ls", "--run", run_id), shown) if run.subject.kind == "flow" else (shown,)


def short_id(run_id: UUID) -> str:
    """Return the beginning of a run's id, which commands accept."""
    return str(run_id)[:8]


def letter_commands(run: RunSnapshot) -> tuple[str, ...]:
    """Return the commands that show and replay the letters of the run."""
    return (
        command("dlq", "causes", "--run", short_id(run.run_id)),
        command("dlq", "replay", "--run", short_id(run.run_id)),
    )


def sql_of_letters(run_id: UUID) -> str:
    """Return SQL that selects the letters of a run."""
    return letters_sql(f"run_id = {text(run_id)}")


def on_restart(run: RunSnapshot) -> str:
    """Return what running it again does."""
    name = short(run.subject.name)
    if run.subject.kind == "flow":
        if run.status in ("running", "stopped"):
            return f"running {name} again continues where it stopped"
        return f"running {name} again resumes this run and retries what failed; dead letters wait for a decision"
    if run.read:
        return f"running {name} again resumes from its checkpoint"
    return f"running {name} again starts from the beginning"
