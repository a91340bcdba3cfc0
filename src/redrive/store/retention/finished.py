"""Retention of finished work: runs, flows with their tasks and results, resolved alerts, metrics of services.

What may still be resumed, decided or notified stays, and so does what alert rules compare with. Everything is removed
in small transactions, each whole or not at all: other processes work meanwhile, and a killed purge can be run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Connection, Table, delete, exists, func, or_, select

from redrive.model.letters import Status
from redrive.model.runs import RunStatus
from redrive.model.tasks import FlowStatus
from redrive.store.database import Database
from redrive.store.repositories.service_sums import EPOCH
from redrive.store.schema import (
    ALERT_IS_OPEN,
    alert_sends,
    alerts,
    checkpoints,
    gauges,
    letters,
    pipelines,
    run_key_blocks,
    run_keys,
    runs,
    service_rollups,
    task_executors,
    task_runs,
)
from redrive.store.sql import in_ids

T = TypeVar("T")

NEWEST = 60
"""Number of newest runs of each pipeline and flow that stay whatever their age: the usual values come from them."""
LEARNED = timedelta(days=22)
"""How long all runs of a pipeline or flow with an SLA stay: its days are learned from them."""
UNTOLD = timedelta(days=7)
"""How long runs without a notification and resolved alerts stay, so that nothing is notified twice."""
COMPARED = timedelta(days=9)
"""How long metrics of services stay: the last hour is compared with the same hours of seven days."""
BATCH = 500
_LONGEST_PAUSE = 0.2  # seconds
PURGING = "it is old, and is being purged"
"""The reason of a flow's run that was marked for removal, and may be removed in part."""

_COMPARED = (RunStatus.COMPLETE, RunStatus.ABORTED, RunStatus.FAILED)
_UNSETTLED = (Status.PENDING, Status.ESCALATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePurged:
    """What a purge of the store removed, or would remove."""

    runs: int = 0
    """Runs of pipelines."""
    flows: int = 0
    """Runs of flows."""
    tasks: int = 0
    """Their tasks, each with its attempts and state changes."""
    files: int = 0
    """Files with results and arguments of these tasks."""
    elsewhere: int = 0
    """Results in files that were not found in the given directory."""
    alerts: int = 0
    """Resolved alerts, with their messages."""
    services: int = 0
    """Quarters of an hour of services; their sums stay."""
    kept: int = 0
    """Runs that began before the time and stay: not finished, waited for, or needed for the usual values."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RunKind:
    """Runs of one kind: of pipelines, or of flows."""

    kind: str
    table: Table
    name: Column[str]
    over: tuple[str, ...]
    """The statuses of runs that are not resumed."""


PIPELINES = RunKind("pipeline", runs, runs.c.pipeline_name, tuple(set(RunStatus) - {RunStatus.RUNNING}))
FLOWS = RunKind(
    "flow", task_runs, task_runs.c.flow_name, (FlowStatus.COMPLETE, FlowStatus.FAILED, FlowStatus.ABANDONED)
)


class Retention:
    """Which work of a store is old enough to be removed.

    before  the time before which it must have ended
    now     the time by the database's clock
    enough  called between two transactions: whether to leave the rest for another time
    """

    def __init__(
        self, database: Database, *, before: datetime, now: datetime, enough: Callable[[], bool] = lambda: False
    ) -> None:
        self.database, self.before, self.now, self.enough = database, before, now, enough

    # ── selection ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def groups(self, work: RunKind) -> list[list[ColumnElement[bool]]]:
        """Return the conditions that select old runs: of each pipeline or flow, and of each status, separately."""
        column = work.table.c
        old = select(work.name, column.status).where(column.status.in_(work.over), column.ended_at < self.before)
        names = self.database.read(lambda connection: connection.execute(old.distinct()).all())
        return [group for name, status in names if (group := self._group(work, name, status)) is not None]

    def _group(self, work: RunKind, name: str, status: str) -> list[ColumnElement[bool]] | None:
        column = work.table.c
        same = [work.name == name, column.status == status]
        newest = NEWEST if status in _COMPARED else 1
        last = select(column.started_at).where(*same).order_by(column.started_at.desc()).offset(newest - 1).limit(1)
        until: datetime | None = self.database.read(lambda connection: connection.execute(last).scalar())
        if until is None:
            return None
        if (work.kind, name) in self._with_program_sla or any(
            gauge.startswith(f"promise:{name}:") for gauge in self._with_settings_sla
        ):
            until = min(until, self.now - LEARNED)
        return [*same, column.started_at < until, *self._unneeded(work)]

    def _unneeded(self, work: RunKind) -> list[ColumnElement[bool]]:
        column = work.table.c
        rules = [
            column.ended_at < self.before,
            column.judged_at.is_not(None) | (column.ended_at < self.now - UNTOLD),
            ~exists().where(letters.c.run_id == column.run_id, letters.c.status.in_(_UNSETTLED)),
            ~exists().where(alerts.c.run_id == column.run_id, ALERT_IS_OPEN),
        ]
        if work is PIPELINES:  # the run that the next one resumes, or continues from
            return [*rules, ~exists().where(checkpoints.c.run_id == column.run_id)]
        at_work = (task_executors.c.run_id == column.run_id) & task_executors.c.ended_at.is_(None)
        at_work &= task_executors.c.until > self.now
        return [*rules, column.reason.is_distinct_from(PURGING), ~exists().where(at_work)]

    @cached_property
    def _with_program_sla(self) -> set[tuple[str, str]]:
        """The pipelines and flows with a daily SLA in their programs."""
        wanted = select(pipelines.c.kind, pipelines.c.name).where(pipelines.c.sla.is_not(None))
        return {(row.kind, row.name) for row in self.database.read(lambda connection: connection.execute(wanted).all())}

    @cached_property
    def _with_settings_sla(self) -> list[str]:
        """The daily SLAs of the settings, as the watch has recorded them: `promise:NAME:TIME`."""
        noted = select(gauges.c.name).distinct().where(gauges.c.name.startswith("promise:"))
        return self.database.read(lambda connection: list(connection.execute(noted).scalars()))

    def count(self, work: RunKind) -> int:
        """Return the number of runs to remove."""
        column = work.table.c
        counted = [select(func.count(column.run_id)).where(*group) for group in self.groups(work)]
        return self.database.read(lambda connection: sum(connection.execute(query).scalar_one() for query in counted))

    def pages(self, work: RunKind, size: int) -> Iterator[tuple[list[UUID], list[ColumnElement[bool]]]]:
        """Yield the runs to remove, `size` at a time, with their conditions, which the removal checks again.

        Each run comes once. Runs that another process holds, or that have changed meanwhile, are not waited for.
        """
        at, run_id = work.table.c.started_at, work.table.c.run_id
        for group in self.groups(work):
            page = first = select(at, run_id).where(*group).order_by(at, run_id).limit(size)
            while not self.enough() and (rows := self._read_page(page)):
                yield [row.run_id for row in rows], group
                last = rows[-1]
                page = first.where(at >= last.started_at, or_(at > last.started_at, run_id > last.run_id))

    def _read_page(self, page: Any) -> Sequence[Any]:
        return self.database.read(lambda connection: connection.execute(page).all())

    def remove(self, column: Column[T], work: Callable[[Connection], list[T]]) -> list[T]:
        """Remove rows in one transaction and return them, also where the confirmation of the commit was lost."""

        def is_done(connection: Connection, gone: list[T]) -> bool:
            left = select(column).where(column.in_(gone)).limit(1)
            return bool(gone) and connection.execute(left).first() is None

        def bounded(connection: Connection) -> list[T]:
            self.database.dialect.begin_bounded(connection)
            return work(connection)

        began = time.monotonic()
        removed = self.database.write(bounded, done=is_done)
        if not self.database.dialect.is_remote:
            # SQLite has one writer at a time, and a waiting writer only tries from time to time.
            time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE))
        return removed

    # ── removal ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def purge_runs(self, progress: Callable[[int], None]) -> int:
        """Remove runs of pipelines; return their number."""
        removed = 0
        for ids, group in self.pages(PIPELINES, BATCH):

            def work(connection: Connection, ids: list[UUID] = ids, why: Sequence[Any] = group) -> list[UUID]:
                still = select(runs.c.run_id).where(runs.c.run_id.in_(ids), *why).with_for_update(skip_locked=True)
                gone = list(connection.execute(still).scalars())
                for table in (run_keys, run_key_blocks):
                    connection.execute(delete(table).where(table.c.run_id.in_(gone)))
                connection.execute(delete(runs).where(runs.c.run_id.in_(gone)))
                return gone

            removed += len(self.remove(runs.c.run_id, work))
            progress(len(ids))
        return removed

    def purge_alerts(self, before: datetime) -> int:
        """Remove alerts that were resolved before then, and their messages; return their number."""
        old = select(alerts.c.id).where(~ALERT_IS_OPEN, alerts.c.resolved_at < before)
        some = old.order_by(alerts.c.id).limit(BATCH)

        def work(connection: Connection) -> list[int]:
            gone = list(connection.execute(some.with_for_update(skip_locked=True)).scalars())
            connection.execute(delete(alert_sends).where(in_ids(alert_sends.c.alert_id, gone)))
            connection.execute(delete(alerts).where(in_ids(alerts.c.id, gone)))
            return gone

        removed = 0
        while gone := self.remove(alerts.c.id, work):
            removed += len(gone)
        return removed

    def rest(self) -> StorePurged:
        """Count what is to be removed beside runs."""
        windows = service_rollups.c.at
        over = select(func.count(alerts.c.id)).where(~ALERT_IS_OPEN, alerts.c.resolved_at < self.alerts_before)
        past = select(func.count(windows)).where(windows > EPOCH, windows < self.services_before)
        return self.database.read(
            lambda connection: StorePurged(
                alerts=connection.execute(over).scalar_one(), services=connection.execute(past).scalar_one()
            )
        )

    @property
    def alerts_before(self) -> datetime:
        """The time before which resolved alerts are removed."""
        return min(self.before, self.now - UNTOLD)

    @property
    def services_before(self) -> datetime:
        """The time before which metrics of services are summed up."""
        return min(self.before, self.now - COMPARED)

    def begun(self) -> int:
        """Count the runs that began before the time."""
        began = [table.c.started_at for table in (runs, task_runs)]
        wanted = [select(func.count(column)).where(column < self.before) for column in began]
        return self.database.read(lambda connection: sum(connection.execute(query).scalar_one() for query in wanted))
