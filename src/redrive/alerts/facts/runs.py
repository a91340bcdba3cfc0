"""A run as the rules look at it, from what is stored: its own process can judge it so, and any other one later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Table, exists, func, select, update

from redrive._internal.masking import mask
from redrive.alerts.facts.services import next_probes
from redrive.alerts.facts.snapshot import DeadTasks, DueTask, PastRun, RunSnapshot
from redrive.alerts.rules.runs import TIERS
from redrive.model.alerts import Alert, Subject
from redrive.model.calls import Kind
from redrive.model.letters import OPEN
from redrive.model.runs import RunStatus
from redrive.model.tasks import FlowStatus, State
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.encoding import encode
from redrive.store.process_identity import is_owner_dead
from redrive.store.repositories.known_runs import Runnable
from redrive.store.repositories.tasks import causes_of, counts_of, has_live_executor, time_at_work
from redrive.store.schema import causes, checkpoints, letters, pipelines, runs, task_runs, tasks

_REMEMBERED = 60  # runs that say what is usual
_SAMPLED = 10_000  # letters of a run that are looked at for what they have in common
_LONGEST_CHECKPOINT = 200
_MISSED_FOR = timedelta(days=7)  # for which a run that nobody resumes is waited for, as long as a daily deadline is
_ENDED_EARLY = (RunStatus.STOPPED, RunStatus.FAILED, RunStatus.ABORTED)
_UNFINISHED = (FlowStatus.RUNNING, FlowStatus.HELD)


class RunName(NamedTuple):
    """Which run is meant."""

    kind: Runnable
    run_id: UUID


def unjudged(connection: Connection, *, limit: int = 100) -> list[RunName]:
    """Runs that ended, and that nobody has judged since; the oldest first."""
    found: list[RunName] = []
    for kind, table in _TABLES.items():
        waiting = (
            select(table.c.run_id)
            .where(table.c.judged_at.is_(None), table.c.ended_at.is_not(None))
            .order_by(table.c.ended_at)
            .limit(limit)
        )
        found += [RunName(kind, row.run_id) for row in connection.execute(waiting)]
    return found


def mark_judged(connection: Connection, run: RunName, *, ended_at: datetime, now: datetime) -> bool:
    """Note that this end of a run is judged; False where it has gone on since, or another process was quicker."""
    table = _TABLES[run.kind]
    marked = (
        update(table)
        .where(table.c.run_id == run.run_id, table.c.judged_at.is_(None), table.c.ended_at == ended_at)
        .values(judged_at=now)
    )
    return connection.execute(marked).rowcount == 1


def still_runs(connection: Connection, run: RunName) -> bool:
    """Whether a run has not ended."""
    table = _TABLES[run.kind]
    running = select(table.c.run_id).where(table.c.run_id == run.run_id, table.c.ended_at.is_(None))
    return connection.execute(running).first() is not None


def picture_of(connection: Connection, run: RunName, now: datetime) -> RunSnapshot | None:
    """A run as it stands now; None where it is not there."""
    table = _TABLES[run.kind]
    row = connection.execute(select(table).where(table.c.run_id == run.run_id)).one_or_none()
    if row is None:
        return None
    return _pipeline(connection, row, now) if run.kind == "pipeline" else _flow(connection, row, now)


def under_way(connection: Connection, now: datetime) -> list[RunSnapshot]:
    """Runs that are not over: those that run or died, may miss their SLA, or wait for a person."""
    # The index of what is not judged yet leads to them.
    running = select(runs).where(runs.c.judged_at.is_(None), runs.c.status == RunStatus.RUNNING)
    # One that was stopped, by a deploy or a person, may have tasks that wait for somebody all the same.
    waiting = exists().where(tasks.c.run_id == task_runs.c.run_id, tasks.c.state == State.DEAD_LETTER)
    stopped = (task_runs.c.status == FlowStatus.STOPPED) & waiting
    # What is not finished is at a checkpoint, of which each pipeline has one.
    unfinished = select(runs).join(checkpoints, checkpoints.c.run_id == runs.c.run_id)
    unfinished = unfinished.where(runs.c.status.in_(_ENDED_EARLY), runs.c.sla > now - _MISSED_FOR)
    flowing = select(task_runs).where(task_runs.c.status.in_(_UNFINISHED) | stopped | _not_resumed(now))
    return [
        *(_pipeline(connection, row, now) for row in connection.execute(running).all()),
        *(_pipeline(connection, row, now) for row in connection.execute(unfinished).all()),
        *(_flow(connection, row, now) for row in connection.execute(flowing).all()),
    ]


def _not_resumed(now: datetime) -> ColumnElement[bool]:
    """Runs of flows that ended before they were complete, and are due: of each flow the one that was due first.

    One run for each flow is enough to raise its alert, however many runs of a backfill have failed. A complete run of
    the flow since then has taken its place.
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
    """The evidence of a run's rejected rows, if the alert is about such."""
    return f"run:{alert.subject.ident}:gate"


def waits(connection: Connection, alert: Alert) -> bool:
    """Whether what an alert tells of rejected rows still holds, or may turn out to.

    A run that the gate aborted is aborted until it is complete or abandoned, whatever becomes of its letters. Letters
    of the other runs that were told of must not be open, pending or escalated, unless a newer row superseded them. A
    run that is under way takes over those letters whose rows it rejects again: nothing is certain until its end.
    """
    pipeline, run_id = alert.subject.name, alert.facts.run_id
    of_it = runs.c.pipeline_name == pipeline
    under_way = select(runs.c.run_id).where(runs.c.judged_at.is_(None), runs.c.status == RunStatus.RUNNING, of_it)
    told_of = of_it & ((runs.c.run_id == run_id) | (runs.c.ended_at >= alert.since))
    aborted = select(runs.c.run_id).where(told_of, runs.c.status == RunStatus.ABORTED)
    theirs = letters.c.pipeline_name == pipeline
    if run_id is not None:
        rejecting = runs.c.tier.in_(list(TIERS)) & (runs.c.status != RunStatus.ABANDONED)
        theirs &= letters.c.run_id.in_(select(runs.c.run_id).where(told_of, rejecting))
    quarantined = select(letters.c.id).where(theirs, letters.c.status.in_(OPEN), letters.c.superseded_at.is_(None))
    return any(connection.execute(one.limit(1)).first() is not None for one in (under_way, aborted, quarantined))


# ── pipelines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pipeline(connection: Connection, row: Row[Any], now: datetime) -> RunSnapshot:
    place = connection.execute(select(checkpoints).where(checkpoints.c.run_id == row.run_id)).first()
    same = runs.c.pipeline_name == row.pipeline_name
    running = row.status == RunStatus.RUNNING
    held = place is not None and place.owner is not None and place.owner_until > now and not is_owner_dead(place.owner)
    said = _letters(connection, row.run_id) if row.rows_rejected else _Letters()
    return RunSnapshot(
        subject=Subject(kind="pipeline", name=row.pipeline_name),
        run_id=row.run_id,
        status=row.status,
        lost=running and not held,
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
        checkpoint=None if place is None else _checkpoint(place.position),
        cause=said.cause,
        causes=said.causes,
        pending=said.pending,
        decided=bool(said.causes) and not said.pending,
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
        .limit(_REMEMBERED)
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


class _Letters(NamedTuple):
    """What is said of the letters of a run."""

    cause: str | None = None
    causes: int = 0
    pending: int = 0


def _letters(connection: Connection, run_id: UUID) -> _Letters:
    """What most letters of a run have in common, of how many causes they are, and how many wait for somebody."""
    some = select(letters.c.fingerprint).where(letters.c.run_id == run_id).limit(_SAMPLED).subquery()
    common = connection.execute(
        select(some.c.fingerprint, func.count()).group_by(some.c.fingerprint).order_by(func.count().desc())
    ).all()
    if not common:
        return _Letters()
    words = select(causes.c.template).where(causes.c.fingerprint == common[0].fingerprint)
    said = connection.execute(words).scalar()
    is_open = select(func.count()).where(
        letters.c.run_id == run_id, letters.c.status.in_(OPEN), letters.c.superseded_at.is_(None)
    )
    return _Letters(None if said is None else mask(said), len(common), int(connection.execute(is_open).scalar_one()))


def _checkpoint(position: Any) -> str | None:
    if position is None:
        return None
    text = mask(encode(position))
    return text if len(text) <= _LONGEST_CHECKPOINT else f"{text[:_LONGEST_CHECKPOINT]}…"


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _flow(connection: Connection, row: Row[Any], now: datetime) -> RunSnapshot:
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
        error_kind=_kind_of_all(one.kind for one in failed),
        tasks_done=counts.get(State.SUCCESS, 0),
        tasks_total=sum(counts.values()),
        dead=tuple(
            DeadTasks(
                task=one.task,
                cause=one.cause,
                reason=mask(one.error or ""),
                kind=one.kind,
                count=one.count,
                untried=one.untried,
            )
            for one in dead
        ),
        due_tasks=tuple(_due_tasks(connection, row.run_id)),
        next_retry=_next_retry(connection, row.run_id, now),
        failed=tuple(f"{one.sample}: {mask(one.error or '')}" for one in failed),
        failed_of=mask(failed[0].error or "") if failed else None,
        variant=variant_of(row.params),
        is_history=_has_successor(connection, task_runs, same, row),
        history=tuple(_past_flow(connection, row, now)),
        last_complete=_last_complete(connection, task_runs, same, row.run_id),
        any_complete=_last_complete(connection, task_runs, task_runs.c.flow_name == row.flow_name, row.run_id),
    )


def _next_retry(connection: Connection, run_id: UUID, now: datetime) -> datetime | None:
    waits = (tasks.c.run_id == run_id) & (tasks.c.state == State.RETRYING) & (tasks.c.due_at > now)
    return connection.execute(select(func.min(tasks.c.due_at)).where(waits)).scalar()


def _due_tasks(connection: Connection, run_id: UUID) -> Iterator[DueTask]:
    columns = select(tasks.c.name, tasks.c.sla, tasks.c.state).where(tasks.c.run_id == run_id, tasks.c.child == -1)
    not_done = tasks.c.state.not_in([State.SUCCESS, State.SKIPPED])
    for row in connection.execute(columns.where(tasks.c.sla.is_not(None), not_done).order_by(tasks.c.node)):
        yield DueTask(task=row.name, due=row.sla, state=row.state)


def _kind_of_all(kinds: Iterable[str | None]) -> str | None:
    """What tasks failed of: the kind they have in common, else one that a person has to look at."""
    found = set(kinds)
    if not found:
        return None
    return found.pop() if len(found) == 1 else str(Kind.PERMANENT)


def _past_flow(connection: Connection, row: Row[Any], now: datetime) -> Iterator[PastRun]:
    before = (
        select(task_runs)
        .where(task_runs.c.flow_name == row.flow_name, task_runs.c.started_at < row.started_at)
        .where(task_runs.c.status.in_([FlowStatus.COMPLETE, FlowStatus.FAILED]))
        .order_by(task_runs.c.started_at.desc())
        .limit(_REMEMBERED)
    )
    past = connection.execute(before).all()
    took = time_at_work(connection, [one.run_id for one in past], now)
    for one in past:
        seconds = took.get(one.run_id, 0.0)
        yield PastRun(status=one.status, started_at=one.started_at, ended_at=one.ended_at, seconds=seconds)


def variant_of(params: str) -> str:
    """What tells runs apart that have parameters: those of one day are not mended by those of the next."""
    return "" if params in ("", "{}") else sha256(params.encode()).hexdigest()[:8]


def _has_successor(connection: Connection, table: Table, same: Any, row: Row[Any]) -> bool:
    """Whether another run has ended since this one did."""
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
    found: datetime | None = connection.execute(done).scalar()
    return found


def _daily(connection: Connection, kind: Runnable, name: str) -> TimeOfDay | None:
    """When it is to be done every day; None where it has promised nothing, or a zone is not known here."""
    promised = connection.execute(
        select(pipelines.c.sla).where(pipelines.c.kind == kind, pipelines.c.name == name)
    ).scalar()
    if promised is None:
        return None
    try:
        return TimeOfDay.of("sla", promised)
    except ValueError:
        return None


def _between(earlier: datetime, later: datetime) -> float:
    return max(0.0, (later - earlier).total_seconds())


_TABLES: dict[Runnable, Table] = {"pipeline": runs, "flow": task_runs}
