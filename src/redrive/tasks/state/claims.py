"""Claiming: tasks that are due become this executor's, each with its attempt counted before the work begins."""

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
from redrive.store.process_identity import is_owner_dead
from redrive.store.schema import task_attempts, task_changes, task_executors, tasks
from redrive.store.sql import as_list, in_ids
from redrive.tasks.executor.decide import AttemptHistory
from redrive.tasks.state.executor_lease import ExecutorLease
from redrive.tasks.state.states import checked


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Tasks that somebody has room for: of these nodes, so many."""

    nodes: Sequence[int]
    limit: int
    in_thread: bool = False
    windowed: bool = False
    """More are not wanted now, even if there are."""
    only_retries: bool = False
    """Only those that were tried before: their siblings wait for what becomes of them."""
    service: str | None = None
    together: float = math.inf
    """How many tasks of the service this executor may begin, of whichever node and kind,"""
    concurrency: int | None = None
    """how many of them may run at once, whoever runs them,"""
    across_runs: bool = False
    """in all runs and flows of the store, or in this run alone,"""
    sharing: Collection[int] = ()
    """and which nodes they belong to."""


@dataclass(slots=True)
class ClaimedTask:
    """A task in this executor's hands."""

    id: int
    node: int
    child: int
    attempt: int
    past: AttemptHistory
    input: str | None
    revived: bool
    """A person has sent it back."""
    twin: int = 0
    """Of the children before it, how many have the same input."""


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


# Statements that are made once: making one takes longer than most of them do.


def _due_statement(*, one: bool, only_retries: bool) -> Select[Any]:
    # Of one node the index knows the order, however many children are due; of several, all that are due are sorted.
    node = tasks.c.node == bindparam("nodes") if one else in_ids(tasks.c.node, bindparam("nodes", type_=Text))
    due = (
        select(*_COLUMNS)
        .where(tasks.c.run_id == bindparam("run"), node, tasks.c.due_at <= bindparam("now"))
        .order_by(tasks.c.due_at, tasks.c.id)
        .limit(bindparam("most", type_=Integer))
        .with_for_update(skip_locked=True)
    )
    return due.where(tasks.c.state == State.RETRYING) if only_retries else due


_DUE = {
    (one, only_retries): _due_statement(one=one, only_retries=only_retries)
    for one in (True, False)
    for only_retries in (True, False)
}
_TAKE = (
    update(tasks)
    .where(in_ids(tasks.c.id, bindparam("ids", type_=Text)))
    .values(
        # A sensor that is asked remains one that senses.
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


def claim(ledger: ExecutorLease, connection: Connection, now: datetime, wanted: ClaimRequest) -> list[ClaimedTask]:
    """Take tasks that are due, the longest due first."""
    limit = wanted.limit
    if wanted.concurrency is not None:
        ledger.database.dialect.lock(connection, f"service {wanted.service}")
        running = _in_pool(ledger, connection, wanted) if wanted.across_runs else _running(ledger, connection, wanted)
        limit = min(limit, wanted.concurrency - running)
    if limit <= 0:
        return []
    found = _due(ledger, connection, now, limit, wanted)
    if not found:
        return []
    _take(ledger, connection, now, found, wanted.service if wanted.across_runs else None)
    return [_claimed(row, now) for row in found]


def _due(
    ledger: ExecutorLease, connection: Connection, now: datetime, limit: int, wanted: ClaimRequest
) -> list[Row[Any]]:
    one = len(wanted.nodes) == 1
    nodes = wanted.nodes[0] if one else as_list(wanted.nodes)
    given = {"run": ledger.run_id, "nodes": nodes, "now": now, "most": limit}
    return list(connection.execute(_DUE[one, wanted.only_retries], given))


def _take(
    ledger: ExecutorLease, connection: Connection, now: datetime, found: Sequence[Row[Any]], pool: str | None
) -> None:
    ids = as_list(row.id for row in found)
    connection.execute(_TAKE, {"ids": ids, "by": ledger.executor, "now": now, "in_pool": pool})
    attempts = [
        {"task_id": row.id, "attempt": row.attempt + 1, "executor": ledger.executor, "started_at": now} for row in found
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
        for row in found
        if row.state != State.SENSING
    ]
    if changes:
        connection.execute(CHANGE, changes)


def _claimed(row: Row[Any], now: datetime) -> ClaimedTask:
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


def _running(ledger: ExecutorLease, connection: Connection, wanted: ClaimRequest) -> int:
    count = select(func.count()).where(
        tasks.c.run_id == ledger.run_id, tasks.c.owner.is_not(None), in_ids(tasks.c.node, wanted.sharing)
    )
    return connection.execute(count).scalar_one()


def _in_pool(ledger: ExecutorLease, connection: Connection, wanted: ClaimRequest) -> int:
    """How many tasks of the service run in all runs and flows.

    What a killed executor had does not count: its workers died with it. That is known at once on its own machine, and
    on others when its lease has expired, whether or not somebody resumes its run.
    """
    of = task_executors.c
    running = (
        select(of.id, of.owner, of.until, func.count().label("tasks"))
        .join(tasks, tasks.c.owner == of.id)
        .where(tasks.c.pool == wanted.service, tasks.c.owner.is_not(None), of.ended_at.is_(None))
        .group_by(of.id, of.owner, of.until)
    )
    rows = connection.execute(running).all()
    now = ledger.database.dialect.now(connection) if rows else None
    return sum(
        row.tasks for row in rows if row.id == ledger.executor or (row.until >= now and not is_owner_dead(row.owner))
    )


def _of(nodes: Sequence[int]) -> ColumnElement[bool]:
    return tasks.c.node == nodes[0] if len(nodes) == 1 else in_ids(tasks.c.node, nodes)


def next_due(
    ledger: ExecutorLease, connection: Connection, *, nodes: Sequence[int], retries_of: Sequence[int]
) -> datetime | None:
    """When the next task of these nodes is due; of some of them, only those that were tried before."""
    moments = []
    for chosen, only_retries in ((nodes, False), (retries_of, True)):
        if chosen:
            first = select(func.min(tasks.c.due_at)).where(
                tasks.c.run_id == ledger.run_id, _of(chosen), tasks.c.due_at.is_not(None)
            )
            if only_retries:
                first = first.where(tasks.c.state == State.RETRYING)
            moments.append(connection.execute(first).scalar())
    return min((moment for moment in moments if moment is not None), default=None)


def active(ledger: ExecutorLease, connection: Connection) -> set[int]:
    """The nodes that have tasks to claim, now or later."""
    due = select(tasks.c.node).where(tasks.c.run_id == ledger.run_id, tasks.c.due_at.is_not(None)).distinct()
    return set(connection.execute(due).scalars())


def is_idle(ledger: ExecutorLease, connection: Connection) -> bool:
    """Whether nothing of the run is claimed by anybody, or to be claimed."""
    mine = select(tasks.c.id).where(tasks.c.run_id == ledger.run_id)
    # In one statement: between two, a task may go from somebody's hands to those that are due.
    held = mine.where(tasks.c.due_at.is_not(None)).exists() | mine.where(tasks.c.owner.is_not(None)).exists()
    return not connection.execute(select(held)).scalar_one()
