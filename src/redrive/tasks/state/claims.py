"""Claims: an executor takes due tasks; each claim counts an attempt before the work starts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    case,
    func,
    insert,
    null,
    select,
    update,
)

from redrive.model.tasks import State
from redrive.store.lease import is_owner_dead
from redrive.store.schema import task_attempts, task_changes, task_executors, tasks
from redrive.store.sql import as_list, in_ids
from redrive.tasks.executor.decide import AttemptHistory
from redrive.tasks.state.executor_lease import ExecutorLease
from redrive.tasks.state.run_handle import checked


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A request for tasks of some nodes, up to a limit."""

    nodes: Sequence[int]
    limit: int
    in_thread: bool = False
    windowed: bool = False
    """The limit comes from the siblings, not from free slots: more are not requested even if they are due."""
    only_retries: bool = False
    """Claim only retries: untried siblings wait for their results."""
    service: str | None = None
    together: float = math.inf
    """Maximum number of tasks of the service that this executor may start, over all nodes."""
    concurrency: int | None = None
    """Maximum number of tasks of the service that may run at once, over all executors."""
    across_runs: bool = False
    """Whether the concurrency counts over all runs and flows of the store, or in this run."""
    sharing: Collection[int] = ()
    """The nodes that belong to the service."""


@dataclass(slots=True)
class ClaimedTask:
    """A task that this executor has claimed."""

    id: int
    node: int
    child: int
    attempt: int
    past: AttemptHistory
    input: str | None
    revived: bool
    """Whether an operator has sent it back."""
    twin: int = 0
    """How many children before it have the same input."""


_COLUMNS = (
    tasks.c.id,
    tasks.c.node,
    tasks.c.child,
    tasks.c.state,
    tasks.c.attempt,
    tasks.c.failures,
    tasks.c.same,
    tasks.c.fingerprint,
    tasks.c.wait,
    tasks.c.input,
    tasks.c.since,
    tasks.c.note,
    tasks.c.twin,
    tasks.c.lost,
)


# Statements are built once: building one takes longer than most of them run.


def _due_statement(*, is_single: bool, only_retries: bool) -> Select[Any]:
    # For one node the index gives the order, however many children are due; for several nodes all due rows are sorted.
    node = tasks.c.node == bindparam("nodes") if is_single else in_ids(tasks.c.node, bindparam("nodes", type_=Text))
    due = (
        select(*_COLUMNS)
        .where(tasks.c.run_id == bindparam("run"), node, tasks.c.due_at <= bindparam("now"))
        .order_by(tasks.c.due_at, tasks.c.id)
        .limit(bindparam("most", type_=Integer))
        .with_for_update(skip_locked=True)
    )
    return due.where(tasks.c.state == State.RETRYING) if only_retries else due


_DUE = {
    (is_single, only_retries): _due_statement(is_single=is_single, only_retries=only_retries)
    for is_single in (True, False)
    for only_retries in (True, False)
}
_CLAIM = (
    update(tasks)
    .where(in_ids(tasks.c.id, bindparam("ids", type_=Text)))
    .values(
        # A poll does not change the state of a sensor.
        state=case((tasks.c.state == State.SENSING, State.SENSING), else_=State.RUNNING),
        due_at=null(),
        owner=bindparam("by"),
        pool=bindparam("in_pool", type_=Text),
        attempt=tasks.c.attempt + 1,
        started_at=bindparam("now"),
        since=func.coalesce(tasks.c.since, bindparam("now", type_=tasks.c.since.type)),
    )
)
_ATTEMPT = insert(task_attempts)
CHANGE = insert(task_changes)


def claim_tasks(
    lease: ExecutorLease, connection: Connection, now: datetime, request: ClaimRequest
) -> list[ClaimedTask]:
    """Claim tasks that are due, the longest due first."""
    limit = request.limit
    if request.concurrency is not None:
        lease.database.dialect.lock(connection, f"service {request.service}")
        running = (
            _count_running_across_runs(lease, connection, request)
            if request.across_runs
            else _count_running(lease, connection, request)
        )
        limit = min(limit, request.concurrency - running)
    if limit <= 0:
        return []
    rows = _select_due(lease, connection, now, limit, request)
    if not rows:
        return []
    _mark_claimed(lease, connection, now, rows, request.service if request.across_runs else None)
    return [_as_claimed_task(row, now) for row in rows]


def _select_due(
    lease: ExecutorLease, connection: Connection, now: datetime, limit: int, request: ClaimRequest
) -> list[Row[Any]]:
    is_single = len(request.nodes) == 1
    nodes = request.nodes[0] if is_single else as_list(request.nodes)
    values = {"run": lease.run_id, "nodes": nodes, "now": now, "most": limit}
    return list(connection.execute(_DUE[is_single, request.only_retries], values))


def _mark_claimed(
    lease: ExecutorLease, connection: Connection, now: datetime, rows: Sequence[Row[Any]], pool: str | None
) -> None:
    ids = as_list(row.id for row in rows)
    connection.execute(_CLAIM, {"ids": ids, "by": lease.executor, "now": now, "in_pool": pool})
    attempts = [
        {"task_id": row.id, "attempt": row.attempt + 1, "executor": lease.executor, "started_at": now} for row in rows
    ]
    connection.execute(_ATTEMPT, attempts)
    changes = [
        {
            "task_id": row.id,
            "at": now,
            "before": row.state,
            "after": checked(State(row.state), State.RUNNING),
            "cause": f"attempt {row.attempt + 1}",
        }
        for row in rows
        if row.state != State.SENSING
    ]
    if changes:
        connection.execute(CHANGE, changes)


def _as_claimed_task(row: Row[Any], now: datetime) -> ClaimedTask:
    elapsed = 0.0 if row.since is None else max(0.0, (now - row.since).total_seconds())
    return ClaimedTask(
        id=row.id,
        node=row.node,
        child=row.child,
        attempt=row.attempt + 1,
        past=AttemptHistory(row.failures, row.same, row.fingerprint, row.wait, elapsed, row.lost),
        input=row.input,
        revived=row.note is not None,
        twin=row.twin,
    )


def _count_running(lease: ExecutorLease, connection: Connection, request: ClaimRequest) -> int:
    count = select(func.count()).where(
        tasks.c.run_id == lease.run_id, tasks.c.owner.is_not(None), in_ids(tasks.c.node, request.sharing)
    )
    return connection.execute(count).scalar_one()


def _count_running_across_runs(lease: ExecutorLease, connection: Connection, request: ClaimRequest) -> int:
    """Return how many tasks of the service run in all runs and flows.

    Tasks of a killed executor do not count, since its workers died with it. This is known at once on its own machine,
    and on others when its lease has expired, even if its run is never resumed.
    """
    executors = task_executors.c
    running = (
        select(executors.id, executors.owner, executors.until, func.count().label("tasks"))
        .join(tasks, tasks.c.owner == executors.id)
        .where(tasks.c.pool == request.service, tasks.c.owner.is_not(None), executors.ended_at.is_(None))
        .group_by(executors.id, executors.owner, executors.until)
    )
    rows = connection.execute(running).all()
    now = lease.database.dialect.now(connection) if rows else None
    return sum(
        row.tasks for row in rows if row.id == lease.executor or (row.until >= now and not is_owner_dead(row.owner))
    )


def _of_nodes(nodes: Sequence[int]) -> ColumnElement[bool]:
    return tasks.c.node == nodes[0] if len(nodes) == 1 else in_ids(tasks.c.node, nodes)


def find_next_due(
    lease: ExecutorLease, connection: Connection, *, nodes: Sequence[int], retries_of: Sequence[int]
) -> datetime | None:
    """Return when the next task of `nodes` or the next retry of `retries_of` is due."""
    moments = []
    for node_numbers, only_retries in ((nodes, False), (retries_of, True)):
        if node_numbers:
            soonest = select(func.min(tasks.c.due_at)).where(
                tasks.c.run_id == lease.run_id, _of_nodes(node_numbers), tasks.c.due_at.is_not(None)
            )
            if only_retries:
                soonest = soonest.where(tasks.c.state == State.RETRYING)
            moments.append(connection.execute(soonest).scalar())
    return min((moment for moment in moments if moment is not None), default=None)


def find_active_nodes(lease: ExecutorLease, connection: Connection) -> set[int]:
    """Return the nodes that have tasks to claim, now or later."""
    due = select(tasks.c.node).where(tasks.c.run_id == lease.run_id, tasks.c.due_at.is_not(None)).distinct()
    return set(connection.execute(due).scalars())


def is_idle(lease: ExecutorLease, connection: Connection) -> bool:
    """Return whether no task of the run is claimed or can be claimed."""
    of_run = select(tasks.c.id).where(tasks.c.run_id == lease.run_id)
    # One statement: between two, a claimed task may become one that is due.
    claimed_or_due = (
        of_run.where(tasks.c.due_at.is_not(None)).exists() | of_run.where(tasks.c.owner.is_not(None)).exists()
    )
    return not connection.execute(select(claimed_or_due)).scalar_one()
