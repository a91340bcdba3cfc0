"""Snapshots of runs, read from the store; used by `redrive.alerts.service` and by the collector of levels.

They need nothing but the store, so that any process can judge a run whose own process was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Table, exists, func, select, update

from redrive._internal.masking import mask
from redrive.alerts.conditions import TIERS
from redrive.alerts.facts.services import next_probes
from redrive.alerts.facts.snapshot import DeadTasks, DueTask, PastRun, RunSnapshot
from redrive.model.alerts import Alert, Subject
from redrive.model.calls import Event, Kind
from redrive.model.letters import OPEN
from redrive.model.runs import RunEnded, RunStatus
from redrive.model.tasks import FlowEnded, FlowStatus, SlaAtRisk, State, TaskFailed, TasksDead
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.encoding import encode
from redrive.store.lease import is_owner_dead
from redrive.store.repositories.runs import Runnable
from redrive.store.repositories.tasks import causes_of, counts_of, has_live_executor, time_at_work
from redrive.store.schema import causes, checkpoints, letters, pipelines, runs, task_runs, tasks

_HISTORY_RUNS = 60  # earlier runs that durations and row counts are compared with
_SAMPLED_LETTERS = 10_000  # letters of a run that are read to find their most frequent cause
_MAX_CHECKPOINT = 200
_MISSED_FOR = timedelta(days=7)  # how long the missed SLA of an unfinished run is reported, as for a daily deadline
_ENDED_EARLY = (RunStatus.STOPPED, RunStatus.FAILED, RunStatus.ABORTED)
_UNFINISHED = (FlowStatus.RUNNING, FlowStatus.HELD)


class RunName(NamedTuple):
    """The kind and id of a run."""

    kind: Runnable
    run_id: UUID


def run_of(event: Event) -> RunName | None:
    """Return the run that an event is about; None for events about something else."""
    match event:
        case RunEnded(report=report):
            return RunName("pipeline", report.run_id)
        case FlowEnded(report=report):
            return RunName("flow", report.run_id)
        case TasksDead(run_id=run_id) | TaskFailed(run_id=run_id) | SlaAtRisk(run_id=run_id):
            return RunName("flow", run_id)
    return None


def unjudged(connection: Connection, *, limit: int = 100) -> list[RunName]:
    """Return ended runs that are not judged yet, the oldest first."""
    names: list[RunName] = []
    for kind, table in _TABLES.items():
        waiting = (
            select(table.c.run_id)
            .where(table.c.judged_at.is_(None), table.c.ended_at.is_not(None))
            .order_by(table.c.ended_at)
            .limit(limit)
        )
        names += [RunName(kind, row.run_id) for row in connection.execute(waiting)]
    return names


def mark_judged(connection: Connection, run: RunName, *, ended_at: datetime, now: datetime) -> bool:
    """Mark an ended run as judged; return False if it was resumed or another process has judged it."""
    table = _TABLES[run.kind]
    marked = (
        update(table)
        .where(table.c.run_id == run.run_id, table.c.judged_at.is_(None), table.c.ended_at == ended_at)
        .values(judged_at=now)
    )
    return connection.execute(marked).rowcount == 1


def still_runs(connection: Connection, run: RunName) -> bool:
    """Return whether a run has not ended."""
    table = _TABLES[run.kind]
    running = select(table.c.run_id).where(table.c.run_id == run.run_id, table.c.ended_at.is_(None))
    return connection.execute(running).first() is not None


def read_snapshot(connection: Connection, run: RunName, now: datetime) -> RunSnapshot | None:
    """Return the snapshot of a run; None if it is not in the store."""
    table = _TABLES[run.kind]
    row = connection.execute(select(table).where(table.c.run_id == run.run_id)).one_or_none()
    if row is None:
        return None
    return _pipeline_snapshot(connection, row, now) if run.kind == "pipeline" else _flow_snapshot(connection, row, now)


def under_way(connection: Connection, now: datetime) -> list[RunSnapshot]:
    """Return runs that are running or lost, may miss their SLA, or wait for an operator."""
    # This condition matches the partial index of unjudged runs.
    running = select(runs).where(runs.c.judged_at.is_(None), runs.c.status == RunStatus.RUNNING)
    # A flow that was stopped, by a deploy or an operator, may still have dead tasks that wait for a decision.
    waiting = exists().where(tasks.c.run_id == task_runs.c.run_id, tasks.c.state == State.DEAD_LETTER)
    stopped = (task_runs.c.status == FlowStatus.STOPPED) & waiting
    # An unfinished run has a checkpoint, and each pipeline has one checkpoint at most.
    unfinished = select(runs).join(checkpoints, checkpoints.c.run_id == runs.c.run_id)
    unfinished = unfinished.where(runs.c.status.in_(_ENDED_EARLY), runs.c.sla > now - _MISSED_FOR)
    flowing = select(task_runs).where(task_runs.c.status.in_(_UNFINISHED) | stopped | _first_unfinished_runs(now))
    return [
        *(_pipeline_snapshot(connection, row, now) for row in connection.execute(running).all()),
        *(_pipeline_snapshot(connection, row, now) for row in connection.execute(unfinished).all()),
        *(_flow_snapshot(connection, row, now) for row in connection.execute(flowing).all()),
    ]


def _first_unfinished_runs(now: datetime) -> ColumnElement[bool]:
    """Return the condition that selects, for each flow, the first due of its runs that ended incomplete.

    One run for each flow is enough to open its alert, however many runs of a backfill have failed. A run is left out
    if another run of the flow has completed since.
    """
    done = task_runs.alias()
    replaced = exists().where(
        done.c.flow_name == task_runs.c.flow_name,
        done.c.status == FlowStatus.COMPLETE,
        done.c.ended_at > task_runs.c.ended_at,
    )
    order = func.row_number().over(
        partition_by=task_runs.c.flow_name, order_by=(task_runs.c.sla, task_runs.c.started_at, task_runs.c.run_id)
    )
    ended = select(task_runs.c.run_id, order.label("place")).where(
        task_runs.c.status.in_([FlowStatus.STOPPED, FlowStatus.FAILED]), task_runs.c.sla > now - _MISSED_FOR, ~replaced
    )
    first = ended.subquery()
    return task_runs.c.run_id.in_(select(first.c.run_id).where(first.c.place == 1))


def gate_of(alert: Alert) -> str:
    """Return the name of the evidence of rejected rows for the subject of an alert."""
    return f"run:{alert.subject.ident}:gate"


def has_open_letters(connection: Connection, alert: Alert) -> bool:
    """Return whether an alert about rejected rows must stay open.

    It stays open while its pipeline has a running run, which may reject the same rows; while a run of the alert is
    aborted; and while letters of its runs are open, unless a newer row superseded them.
    """
    pipeline, run_id = alert.subject.name, alert.facts.run_id
    of_pipeline = runs.c.pipeline_name == pipeline
    under_way = select(runs.c.run_id).where(runs.c.judged_at.is_(None), runs.c.status == RunStatus.RUNNING, of_pipeline)
    reported = of_pipeline & ((runs.c.run_id == run_id) | (runs.c.ended_at >= alert.since))
    aborted = select(runs.c.run_id).where(reported, runs.c.status == RunStatus.ABORTED)
    own_letters = letters.c.pipeline_name == pipeline
    if run_id is not None:
        rejecting = runs.c.tier.in_(list(TIERS)) & (runs.c.status != RunStatus.ABANDONED)
        own_letters &= letters.c.run_id.in_(select(runs.c.run_id).where(reported, rejecting))
    quarantined = select(letters.c.id).where(own_letters, letters.c.status.in_(OPEN), letters.c.superseded_at.is_(None))
    return any(connection.execute(query.limit(1)).first() is not None for query in (under_way, aborted, quarantined))


# ── pipelines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pipeline_snapshot(connection: Connection, row: Row[Any], now: datetime) -> RunSnapshot:
    checkpoint = connection.execute(select(checkpoints).where(checkpoints.c.run_id == row.run_id)).first()
    same = runs.c.pipeline_name == row.pipeline_name
    running = row.status == RunStatus.RUNNING
    is_owned = (
        checkpoint is not None
        and checkpoint.owner is not None
        and checkpoint.owner_until > now
        and not is_owner_dead(checkpoint.owner)
    )
    summary = _summarize_letters(connection, row.run_id) if row.rows_rejected else _LetterSummary()
    return RunSnapshot(
        subject=Subject(kind="pipeline", name=row.pipeline_name),
        run_id=row.run_id,
        status=row.status,
        lost=running and not is_owned,
        started_at=row.started_at,
        ended_at=row.ended_at,
        seconds=row.seconds + (_between(row.updated_at, now) if running else 0.0),
        sla=row.sla,
        daily=_daily(connection, "pipeline", row.pipeline_name),
        failures=row.failures,
        reason=row.reason,
        error_kind=row.error_kind,
        error_type=row.error_type,
        error_service=row.error_service,
        next_probe=_next_probe(connection, row.error_service, now),
        trace_id=row.trace_id,
        detail=row.detail,
        environment=row.environment or {},
        source_done=row.source_done,
        source_total=row.source_total,
        read=row.rows_read,
        written=row.rows_written,
        rejected=row.rows_rejected,
        tier=row.tier,
        target=row.sink,
        checkpoint=None if checkpoint is None else _checkpoint(checkpoint.position),
        cause=summary.cause,
        causes=summary.causes,
        pending=summary.pending,
        decided=bool(summary.causes) and not summary.pending,
        is_history=_has_successor(connection, runs, same, row),
        history=tuple(_past_pipeline(connection, row)),
        last_complete=_last_complete(connection, runs, same, row.run_id),
    )


def _next_probe(connection: Connection, service: str | None, now: datetime) -> datetime | None:
    return None if service is None else next_probes(connection, [service], now).get(service)


def _past_pipeline(connection: Connection, row: Row[Any]) -> Iterator[PastRun]:
    before = (
        select(runs)
        .where(runs.c.pipeline_name == row.pipeline_name, runs.c.started_at < row.started_at)
        .where(runs.c.status.in_([RunStatus.COMPLETE, RunStatus.ABORTED, RunStatus.FAILED]))
        .order_by(runs.c.started_at.desc())
        .limit(_HISTORY_RUNS)
    )
    for past in connection.execute(before):
        yield PastRun(
            status=past.status,
            started_at=past.started_at,
            ended_at=past.ended_at,
            seconds=past.seconds,
            read=past.rows_read,
            rejected=past.rows_rejected,
        )


class _LetterSummary(NamedTuple):
    """The letters of a run: their most frequent cause, the number of causes, and how many are open."""

    cause: str | None = None
    causes: int = 0
    pending: int = 0


def _summarize_letters(connection: Connection, run_id: UUID) -> _LetterSummary:
    """Return a summary of the letters of a run."""
    sample = select(letters.c.fingerprint).where(letters.c.run_id == run_id).limit(_SAMPLED_LETTERS).subquery()
    common = connection.execute(
        select(sample.c.fingerprint, func.count()).group_by(sample.c.fingerprint).order_by(func.count().desc())
    ).all()
    if not common:
        return _LetterSummary()
    query = select(causes.c.template).where(causes.c.fingerprint == common[0].fingerprint)
    cause_template = connection.execute(query).scalar()
    is_open = select(func.count()).where(
        letters.c.run_id == run_id, letters.c.status.in_(OPEN), letters.c.superseded_at.is_(None)
    )
    return _LetterSummary(
        None if cause_template is None else mask(cause_template),
        len(common),
        int(connection.execute(is_open).scalar_one()),
    )


def _checkpoint(position: Any) -> str | None:
    if position is None:
        return None
    text = mask(encode(position))
    return text if len(text) <= _MAX_CHECKPOINT else f"{text[:_MAX_CHECKPOINT]}…"


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _flow_snapshot(connection: Connection, row: Row[Any], now: datetime) -> RunSnapshot:
    same = (task_runs.c.flow_name == row.flow_name) & (task_runs.c.params == row.params)
    counts = counts_of(connection, row.run_id)
    dead = causes_of(connection, row.run_id, [State.DEAD_LETTER])
    failed = causes_of(connection, row.run_id, [State.FAILED])
    return RunSnapshot(
        subject=Subject(kind="flow", name=row.flow_name),
        run_id=row.run_id,
        status=row.status,
        lost=row.status == FlowStatus.RUNNING and not has_live_executor(connection, row.run_id, now),
        started_at=row.started_at,
        ended_at=row.ended_at,
        seconds=time_at_work(connection, [row.run_id], now).get(row.run_id, 0.0),
        sla=row.sla,
        daily=_daily(connection, "flow", row.flow_name),
        failures=row.failures,
        reason=row.reason,
        error_kind=_common_kind(group.kind for group in failed),
        tasks_done=counts.get(State.SUCCESS, 0),
        tasks_total=sum(counts.values()),
        dead=tuple(
            DeadTasks(
                task=group.task,
                cause=group.cause,
                reason=mask(group.error or ""),
                kind=group.kind,
                count=group.count,
                untried=group.untried,
            )
            for group in dead
        ),
        due_tasks=tuple(_due_tasks(connection, row.run_id)),
        next_retry=_next_retry(connection, row.run_id, now),
        failed=tuple(f"{group.sample}: {mask(group.error or '')}" for group in failed),
        failed_of=mask(failed[0].error or "") if failed else None,
        variant=variant_of(row.params),
        is_history=_has_successor(connection, task_runs, same, row),
        history=tuple(_past_flow(connection, row, now)),
        last_complete=_last_complete(connection, task_runs, same, row.run_id),
        any_complete=_last_complete(connection, task_runs, task_runs.c.flow_name == row.flow_name, row.run_id),
    )


def _next_retry(connection: Connection, run_id: UUID, now: datetime) -> datetime | None:
    is_waiting = (tasks.c.run_id == run_id) & (tasks.c.state == State.RETRYING) & (tasks.c.due_at > now)
    return connection.execute(select(func.min(tasks.c.due_at)).where(is_waiting)).scalar()


def _due_tasks(connection: Connection, run_id: UUID) -> Iterator[DueTask]:
    columns = select(tasks.c.name, tasks.c.sla, tasks.c.state).where(tasks.c.run_id == run_id, tasks.c.child == -1)
    not_done = tasks.c.state.not_in([State.SUCCESS, State.SKIPPED])
    for row in connection.execute(columns.where(tasks.c.sla.is_not(None), not_done).order_by(tasks.c.node)):
        yield DueTask(task=row.name, due=row.sla, state=row.state)


def _common_kind(kinds: Iterable[str | None]) -> str | None:
    """Return the kind that failed tasks have in common; a permanent error if they differ, so that it is reported."""
    distinct = set(kinds)
    if not distinct:
        return None
    return distinct.pop() if len(distinct) == 1 else str(Kind.PERMANENT)


def _past_flow(connection: Connection, row: Row[Any], now: datetime) -> Iterator[PastRun]:
    before = (
        select(task_runs)
        .where(task_runs.c.flow_name == row.flow_name, task_runs.c.started_at < row.started_at)
        .where(task_runs.c.status.in_([FlowStatus.COMPLETE, FlowStatus.FAILED]))
        .order_by(task_runs.c.started_at.desc())
        .limit(_HISTORY_RUNS)
    )
    past_runs = connection.execute(before).all()
    seconds_by_run = time_at_work(connection, [past_run.run_id for past_run in past_runs], now)
    for past_run in past_runs:
        seconds = seconds_by_run.get(past_run.run_id, 0.0)
        yield PastRun(
            status=past_run.status, started_at=past_run.started_at, ended_at=past_run.ended_at, seconds=seconds
        )


def variant_of(params: str) -> str:
    """Return a short digest of the parameters of a flow run, so that runs for different days are distinct."""
    return "" if params in ("", "{}") else sha256(params.encode()).hexdigest()[:8]


def _has_successor(connection: Connection, table: Table, same: Any, row: Row[Any]) -> bool:
    """Return whether another run has ended since this run ended."""
    if row.ended_at is None:
        return False
    later = select(table.c.run_id).where(same, table.c.ended_at > row.ended_at, table.c.status != "abandoned")
    return connection.execute(later.limit(1)).first() is not None


def _last_complete(connection: Connection, table: Table, same: Any, run_id: UUID) -> datetime | None:
    done = (
        select(table.c.ended_at)
        .where(same, table.c.status == "complete", table.c.run_id != run_id)
        .order_by(table.c.started_at.desc())
        .limit(1)
    )
    ended_at: datetime | None = connection.execute(done).scalar()
    return ended_at


def _daily(connection: Connection, kind: Runnable, name: str) -> TimeOfDay | None:
    """Return the daily deadline; None if there is none, or if its time zone is not known on this machine."""
    sla = connection.execute(select(pipelines.c.sla).where(pipelines.c.kind == kind, pipelines.c.name == name)).scalar()
    if sla is None:
        return None
    try:
        return TimeOfDay.of("sla", sla)
    except ValueError:
        return None


def _between(earlier: datetime, later: datetime) -> float:
    return max(0.0, (later - earlier).total_seconds())


_TABLES: dict[Runnable, Table] = {"pipeline": runs, "flow": task_runs}
