"""The figures of a store: one snapshot, for all processes that share it. Read by metrics and by alert conditions.

`limit_names` limits the names in metrics, so that a program that generates names does not fill the memory of
Prometheus. The names that are kept are: pipelines and flows with the newest runs, services with the most calls, and
otherwise those with the most letters, tasks and alerts. Gauges of the other names are added up under `other`. Counters
of the others are left out: a sum would decrease when a service moves out of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Select, case, func, select

from redrive.config import ConfigError
from redrive.model.runs import COUNTED, RunStatus
from redrive.model.tasks import FlowStatus
from redrive.store import migrate
from redrive.store.database import Database
from redrive.store.repositories.runs import counts_of
from redrive.store.repositories.service_state import ServiceState, ServiceStateRepository
from redrive.store.repositories.services import EndpointSums, ServiceRepository, ServiceWindow
from redrive.store.repositories.watches import is_watched
from redrive.store.schema import STATUSES, alert_sends, alerts, cause_hours, pipelines, runs, task_runs, tasks

_DAY = timedelta(days=1)
_UNFINISHED = (FlowStatus.RUNNING, FlowStatus.STOPPED, FlowStatus.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFigures:
    """The letters of a pipeline."""

    pipeline: str
    by_status: Mapping[str, int]
    oldest_pending: datetime | None = None
    """To the hour: when the oldest of them was rejected, or a decided letter of the same hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The newest run of a pipeline or a flow."""

    name: str
    status: str
    started_at: datetime
    seconds: float
    last_success: datetime | None = None
    running: int = 0
    """Runs that are under way, or whose process died without a report."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of a pipeline's run by outcome, and `read`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures of a store."""

    database: str
    schema_version: str
    services: tuple[ServiceWindow, ...] = ()
    endpoints: tuple[EndpointSums, ...] = ()
    """Totals of each endpoint."""
    circuits: tuple[ServiceState, ...] = ()
    letters: tuple[LetterFigures, ...] = ()
    pipelines: tuple[RunFigures, ...] = ()
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Rows of all runs of each pipeline, purged ones included: `read`, `written`, `rejected`."""
    flows: tuple[RunFigures, ...] = ()
    tasks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Tasks of runs that are not finished, by flow and state."""
    alerts: Mapping[tuple[str, str, str, str], int] = field(default_factory=dict)
    """Alerts that are not resolved, by status, severity, the kind of their subject and its name."""
    monitors: Mapping[str, bool] = field(default_factory=dict)
    """Measurements of the watch that have ever failed, and whether each succeeds now."""
    sends: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Messages that are not delivered, by channel and status."""
    store_bytes: int | None = None
    """Size of the store on disk."""
    letters_bytes: int | None = None
    """Size of the table of letters, with its indexes; None where it is not known."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Names that are left out because there are too many, by kind."""
    watched: bool = False
    """Whether some process watches the levels."""


class Reader:
    """Reads the figures of one database, any number of times."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shared = ServiceStateRepository(database)
        self._services = ServiceRepository(database)

    def read(self) -> Figures:
        """Return the current figures."""
        services, circuits = tuple(self._services.totals()), tuple(self._shared.services())
        rest = self._database.read(self._within)
        endpoints = tuple(self._services.endpoints())
        return replace(rest, services=services, endpoints=endpoints, circuits=circuits)

    def _within(self, connection: Connection) -> Figures:
        dialect = self._database.dialect
        now = dialect.now(connection)
        return Figures(
            database=connection.dialect.name,
            schema_version=migrate.version(connection) or "",
            letters=_letters(connection),
            pipelines=_pipelines(connection),
            rows=_rows(connection),
            flows=_flows(connection, now),
            tasks=_tasks(connection),
            alerts=_alerts(connection),
            monitors=_monitors(connection),
            sends=_sends(connection),
            store_bytes=dialect.size(connection),
            letters_bytes=dialect.letters_size(connection),
            watched=is_watched(connection, dialect, now=now),
        )


def _letters(connection: Connection) -> tuple[LetterFigures, ...]:
    column = cause_hours.c
    counted = select(
        column.pipeline_name,
        *(func.sum(column[status]).label(status) for status in STATUSES),
        func.min(column.first_seen, type_=column.first_seen.type).filter(column.pending > 0).label("oldest"),
    ).group_by(column.pipeline_name)
    return tuple(
        LetterFigures(
            pipeline=row.pipeline_name,
            by_status={status: int(getattr(row, status)) for status in STATUSES},
            oldest_pending=row.oldest,
        )
        for row in connection.execute(counted)
    )


def _pipelines(connection: Connection) -> tuple[RunFigures, ...]:
    successes, running = _successes(connection, runs.c.pipeline_name), _running(connection, runs.c.pipeline_name)
    by_name = {}
    for row in connection.execute(_newest(runs.c.pipeline_name)):
        counts = counts_of(row)
        by_name[row.pipeline_name] = RunFigures(
            name=row.pipeline_name,
            status=row.status,
            started_at=row.started_at,
            seconds=row.seconds,
            last_success=successes.get(row.pipeline_name),
            running=running.get(row.pipeline_name, 0),
            rows={name: getattr(counts, name) for name in COUNTED if name not in {"batches", "retries"}},
        )
    return tuple(by_name.values())


def _rows(connection: Connection) -> dict[str, dict[str, int]]:
    column = pipelines.c
    counted = {"read": column.rows_read, "written": column.rows_written, "rejected": column.rows_rejected}
    ever = select(column.name, *counted.values()).where(column.kind == "pipeline").order_by(column.name)
    return {row[0]: dict(zip(counted, row[1:], strict=True)) for row in connection.execute(ever)}


def _flows(connection: Connection, now: datetime) -> tuple[RunFigures, ...]:
    name = task_runs.c.flow_name
    successes, running = _successes(connection, name), _running(connection, name)
    by_name = {}
    for row in connection.execute(_newest(name)):
        by_name[row.flow_name] = RunFigures(
            name=row.flow_name,
            status=row.status,
            started_at=row.started_at,
            seconds=max(0.0, ((row.ended_at or now) - row.started_at).total_seconds()),
            last_success=successes.get(row.flow_name),
            running=running.get(row.flow_name, 0),
        )
    return tuple(by_name.values())


def _newest(name: Column[str]) -> Select[Any]:
    """Select the newest run of each name; of two that began at the same time, both."""
    table = name.table
    last = select(name.label("name"), func.max(table.c.started_at).label("at")).group_by(name).subquery()
    return select(table).join(last, (name == last.c.name) & (table.c.started_at == last.c.at)).order_by(name)


def _successes(connection: Connection, name: Column[str]) -> dict[str, datetime]:
    ended = name.table.c.ended_at
    complete = select(name, func.max(ended, type_=ended.type)).where(name.table.c.status == RunStatus.COMPLETE)
    return {row[0]: row[1] for row in connection.execute(complete.group_by(name)) if row[1] is not None}


def _running(connection: Connection, name: Column[str]) -> dict[str, int]:
    under_way = select(name, func.count()).where(name.table.c.status == RunStatus.RUNNING).group_by(name)
    return {row[0]: int(row[1]) for row in connection.execute(under_way)}


def _tasks(connection: Connection) -> dict[tuple[str, str], int]:
    """Count tasks by flow and state; a fan-out counts by its children, or as one while it has none."""
    counted = (
        select(task_runs.c.flow_name, tasks.c.state, func.count())
        .join(tasks, tasks.c.run_id == task_runs.c.run_id)
        .where(task_runs.c.status.in_(_UNFINISHED), func.coalesce(tasks.c.children, 0) == 0)
        .group_by(task_runs.c.flow_name, tasks.c.state)
    )
    return {(row[0], row[1]): int(row[2]) for row in connection.execute(counted)}


def _alerts(connection: Connection) -> dict[tuple[str, str, str, str], int]:
    by = (alerts.c.status, alerts.c.urgency, alerts.c.subject_kind, alerts.c.subject)
    counted = select(*by, func.count()).where(alerts.c.status != "resolved").group_by(*by)
    return {(row[0], row[1], row[2], row[3]): int(row[4]) for row in connection.execute(counted)}


def _monitors(connection: Connection) -> dict[str, bool]:
    column = alerts.c
    failing = case((column.status == "resolved", 0), (column.gone_since.is_not(None), 0), else_=1)
    failed = select(column.subject, func.max(failing)).where(column.condition == "monitor_failed")
    return {row[0]: not row[1] for row in connection.execute(failed.group_by(column.subject))}


def _sends(connection: Connection) -> dict[tuple[str, str], int]:
    """Count messages that should have arrived: no tests, and none that wait for the morning.

    Failed messages count for a day, so that a rule on them clears.
    """
    column = alert_sends.c
    by = (column.channel, column.status)
    late = (column.status == "waiting") & ((column.digest == 0) | (column.attempts > 0))
    failed = (column.status == "failed") & (column.created_at >= datetime.now(UTC) - _DAY)
    counted = select(*by, func.count()).where(column.what != "test", late | failed).group_by(*by)
    return {(row[0], row[1]): int(row[2]) for row in connection.execute(counted)}


# ── a limit on names ──────────────────────────────────────────────────────────────────────────────────────────────────

VARIABLE = "REDRIVE_MAX_METRIC_NAMES"
"""Variable: the maximum number of names of each kind."""
OTHER = "other"
_MOST = 1_000

Key = TypeVar("Key", bound=tuple[str, ...])


def most_names() -> int:
    """Return the limit from the environment, or the default."""
    limit = os.environ.get(VARIABLE, "")
    if not limit:
        return _MOST
    if not limit.isdecimal() or int(limit) < 1:
        raise ConfigError(f"{VARIABLE} must be a whole number of 1 or more, not {limit!r}")
    return int(limit)


def limit_names(figures: Figures, most: int) -> Figures:
    """Return the figures with at most `most` names of each kind."""
    pipelines, flows = _newest_runs(figures.pipelines, most), _newest_runs(figures.flows, most)
    calls = Counter({window.service: window.calls for window in figures.services})
    calls.update({state.service: 0 for state in figures.circuits})
    services = _largest(calls, most)
    letters = Counter({by_pipeline.pipeline: sum(by_pipeline.by_status.values()) for by_pipeline in figures.letters})
    with_letters = _largest(letters, most)
    with_tasks = _largest(_by_name(figures.tasks, 0), most)
    subjects = _by_name(figures.alerts, 3)
    with_alerts = _largest(subjects, most)
    left_out = {
        "pipeline": max(len(figures.pipelines) - len(pipelines), len(letters) - len(with_letters)),
        "flow": len(figures.flows) - len(flows),
        "service": len(calls) - len(services),
        "subject": len(subjects) - len(with_alerts),
    }
    return replace(
        figures,
        left_out=left_out,
        pipelines=pipelines,
        flows=flows,
        services=tuple(window for window in figures.services if window.service in services),
        endpoints=tuple(sums for sums in figures.endpoints if sums.service in services),
        circuits=tuple(state for state in figures.circuits if state.service in services),
        letters=_limit_letters(figures.letters, with_letters),
        tasks=_renamed(figures.tasks, 0, with_tasks),
        alerts=_renamed(figures.alerts, 3, with_alerts),
    )


def _newest_runs(runs: tuple[RunFigures, ...], most: int) -> tuple[RunFigures, ...]:
    return tuple(sorted(runs, key=lambda run: run.started_at, reverse=True)[:most])


def _largest(counts: Mapping[str, int], most: int) -> set[str]:
    return set(sorted(counts, key=lambda name: (-counts[name], name))[:most])


def _by_name(counts: Mapping[Any, int], position: int) -> Counter[str]:
    totals: Counter[str] = Counter()
    for key, count in counts.items():
        totals[key[position]] += count
    return totals


def _renamed(counts: Mapping[Key, int], position: int, kept: set[str]) -> Mapping[Key, int]:
    totals: Counter[Any] = Counter()
    for key, count in counts.items():
        totals[key if key[position] in kept else (*key[:position], OTHER, *key[position + 1 :])] += count
    return totals


def _limit_letters(letters: Iterable[LetterFigures], kept: set[str]) -> tuple[LetterFigures, ...]:
    listed = list(letters)
    others = [figures for figures in listed if figures.pipeline not in kept]
    if not others:
        return tuple(listed)
    by_status: Counter[str] = Counter()
    for figures in others:
        by_status.update(figures.by_status)
    oldest = min((figures.oldest_pending for figures in others if figures.oldest_pending is not None), default=None)
    together = LetterFigures(pipeline=OTHER, by_status=by_status, oldest_pending=oldest)
    return (*(figures for figures in listed if figures.pipeline in kept), together)
