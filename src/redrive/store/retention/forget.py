"""Forget a retired pipeline, flow or service: remove all that is stored of it, except for its letters.

What still runs, or has open letters, is not forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, Table, delete, func, or_, select

from redrive.errors import StoreError
from redrive.model.letters import OPEN
from redrive.store.database import Database
from redrive.store.lease import is_owner_dead
from redrive.store.repositories.runs import Runnable
from redrive.store.repositories.tasks import has_live_executor
from redrive.store.retention.finished import BATCH, Retention
from redrive.store.retention.flows import FlowRetention
from redrive.store.schema import (
    breakers,
    checkpoints,
    credentials,
    gauges,
    letters,
    pipelines,
    replayed_rows,
    run_key_blocks,
    run_keys,
    runs,
    service_endpoints,
    service_latencies,
    service_minutes,
    service_rollups,
    task_runs,
)

_OF_SERVICES: tuple[Table, ...] = (
    service_minutes,
    service_latencies,
    service_endpoints,
    service_rollups,
    breakers,
    credentials,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReport:
    """What was forgotten of a pipeline or flow, or would be."""

    name: str
    kinds: tuple[Runnable, ...] = ()
    """What has this name; empty if the store has no such pipeline or flow."""
    runs: int = 0
    unfinished: str | None = None
    """The status of a run that could be resumed, and is forgotten with its checkpoint."""
    run_ids: tuple[UUID, ...] = ()
    """Number of tasks of a flow."""
    params: tuple[str, ...] = ()
    """The parameters of a flow's runs."""
    letters: int = 0
    """Decided letters, which stay."""


def find_work(database: Database, name: str) -> ForgetReport:
    """Return what is stored of a pipeline or flow.

    Raises:
        StoreError: A process is at work on it, or letters of it are open.
    """
    return database.read(lambda connection: _read_report(database, connection, name))


def forget_work(database: Database, name: str, *, files: Path) -> ForgetReport:
    """Forget a pipeline or flow: its deadline, checkpoint, runs and gauges.

    Args:
        name: Its name.
        files: The directory in which results of flows are.

    Raises:
        StoreError: A process is at work on it, or letters of it are open; nothing was changed.
    """

    def work(connection: Connection) -> ForgetReport:
        report = _read_report(database, connection, name)
        own = select(runs.c.run_id).where(runs.c.pipeline_name == name)
        for table in (run_keys, run_key_blocks):
            connection.execute(delete(table).where(table.c.run_id.in_(own)))
        connection.execute(delete(checkpoints).where(checkpoints.c.pipeline_name == name))
        connection.execute(delete(runs).where(runs.c.pipeline_name == name))
        connection.execute(delete(pipelines).where(pipelines.c.name == name))
        _forget_replays(connection, name)
        noted = or_(gauges.c.name.startswith(f"promise:{name}:", autoescape=True), gauges.c.name == f"fresh:{name}")
        connection.execute(delete(gauges).where(noted))
        return report

    report = database.write(work)
    if report.run_ids:
        now = database.read(database.dialect.now)
        flows = FlowRetention(Retention(database, before=now, now=now), files)
        for start in range(0, len(report.run_ids), BATCH):
            flows.remove(report.run_ids[start : start + BATCH])
    return report


def _forget_replays(connection: Connection, name: str) -> None:
    """Remove the records of replayed rows, except for those that other pipelines need before they overwrite rows."""
    column = replayed_rows.c
    undecided = select(letters.c.pipeline_name).where(letters.c.status.in_(OPEN))
    others = select(pipelines.c.name).where(pipelines.c.name != name).union(undecided)
    own = or_(column.letters_of == name, column.pipeline_name == name)
    unneeded = column.letters_of.not_in(others) & column.pipeline_name.not_in(others)
    connection.execute(delete(replayed_rows).where(own, unneeded))


def _read_report(database: Database, connection: Connection, name: str) -> ForgetReport:
    now = database.dialect.now(connection)
    place = connection.execute(select(checkpoints).where(checkpoints.c.pipeline_name == name)).first()
    if place is not None and place.owner is not None and place.owner_until > now and not is_owner_dead(place.owner):
        raise StoreError(f"pipeline {name!r} is running: stop it first. Nothing was changed.")
    flows = connection.execute(
        select(task_runs.c.run_id, task_runs.c.params).where(task_runs.c.flow_name == name)
    ).all()
    if any(has_live_executor(connection, row.run_id, now) for row in flows):
        raise StoreError(f"flow {name!r} is running: stop its executors first. Nothing was changed.")
    of_it = select(func.count(letters.c.id)).where(letters.c.pipeline_name == name)
    undecided = connection.execute(of_it.where(letters.c.status.in_(OPEN))).scalar_one()
    if undecided:
        raise StoreError(
            f"{name!r} has {undecided:,} open {'letter' if undecided == 1 else 'letters'}: replay or discard them "
            f"first, see `redrive dlq ls --pipeline {name}`. Nothing was changed."
        )
    count = connection.execute(select(func.count(runs.c.run_id)).where(runs.c.pipeline_name == name)).scalar_one()
    known = select(pipelines.c.kind).where(pipelines.c.name == name)
    kinds = {*connection.execute(known).scalars(), *(["pipeline"] if count else []), *(["flow"] if flows else [])}
    report = ForgetReport(
        name=name,
        kinds=tuple(sorted(kinds)),
        runs=count + len(flows),
        run_ids=tuple(row.run_id for row in flows),
        params=tuple({row.params for row in flows}),
        letters=connection.execute(of_it).scalar_one(),
    )
    if place is None:
        return report
    last = connection.execute(select(runs.c.status).where(runs.c.run_id == place.run_id)).scalar()
    return report if last in (None, "complete", "abandoned") else replace(report, unfinished=last)


def count_service(database: Database, name: str) -> int:
    """Return how many rows are stored of a service."""

    def work(connection: Connection) -> int:
        counted = [select(func.count()).select_from(table).where(table.c.service == name) for table in _OF_SERVICES]
        return sum(connection.execute(query).scalar_one() for query in counted)

    return database.read(work)


def forget_service(database: Database, name: str) -> int:
    """Forget the figures, circuits and keys of a service; return how many rows there were."""

    def work(connection: Connection) -> int:
        return sum(connection.execute(delete(table).where(table.c.service == name)).rowcount for table in _OF_SERVICES)

    return database.write(work)
