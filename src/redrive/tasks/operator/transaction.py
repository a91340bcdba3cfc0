"""The transaction of an operator action on one run: find the run, then change it. Used by all actions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Row, select

from redrive.store.database import corrupt_row_as_store_error
from redrive.store.repositories.tasks import find_run, named, unknown_task_error
from redrive.store.schema import tasks
from redrive.store.store import Store
from redrive.tasks.state.run_handle import RunHandle

T = TypeVar("T")


def change_run(store: Store, run: UUID | str, work: Callable[[RunHandle, Connection, datetime], T]) -> T:
    """Change a run in one transaction; `work` gets the run handle, the connection and the time of the store."""

    def work_on_run(connection: Connection) -> T:
        handle = RunHandle.load(store, connection, find_run(connection, run))
        return work(handle, connection, handle.database.dialect.begin_bounded(connection))

    with corrupt_row_as_store_error("flows"):
        return store.database.write(work_on_run)


def lock_named(handle: RunHandle, connection: Connection, name: str) -> list[Row[Any]]:
    """Lock and return the tasks of a name; for a fan-out, its children. Raises FlowError if there are none."""
    query = select(tasks).where(tasks.c.run_id == handle.run_id, named(name), tasks.c.children.is_(None))
    rows = list(connection.execute(query.order_by(tasks.c.node, tasks.c.child).with_for_update()))
    if not rows:
        raise unknown_task_error(connection, handle.run_id, name)
    return rows
