"""Transactions of operators: one decision about tasks of one run, with what all such decisions begin with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Row, select

from redrive.store.corrupt_rows import corrupt_row_as_store_error
from redrive.store.repositories.tasks import find_run, named, unknown_task_error
from redrive.store.schema import tasks
from redrive.store.store import Store
from redrive.tasks.state.run_handle import RunHandle

T = TypeVar("T")


def change_run(store: Store, run: UUID | str, work: Callable[[RunHandle, Connection, datetime], T]) -> T:
    """Do something about a run in one transaction, given its place in the store and the time there."""

    def within(connection: Connection) -> T:
        place = RunHandle.load(store, connection, find_run(connection, run))
        return work(place, connection, place.database.dialect.begin_bounded(connection))

    with corrupt_row_as_store_error("flows"):
        return store.database.write(within)


def rows_named(place: RunHandle, connection: Connection, name: str) -> list[Row[Any]]:
    """Lock and return the tasks of that name, of a fan-out its children; FlowError where there is none."""
    theirs = select(tasks).where(tasks.c.run_id == place.run_id, named(name), tasks.c.children.is_(None))
    rows = list(connection.execute(theirs.order_by(tasks.c.node, tasks.c.child).with_for_update()))
    if not rows:
        raise unknown_task_error(connection, place.run_id, name)
    return rows
