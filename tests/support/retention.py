"""Shared by tests of retention: runs of any age, and a count of all rows of a store."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select, update

import redrive
from redrive.store.schema import metadata, runs, task_runs

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


def put(store: redrive.Store, table: Any, *rows: Any) -> None:
    store.database.write(lambda connection: connection.execute(insert(table), list(rows)))


def ran(store: redrive.Store, *ages: float, name: str = "vendor", status: str = "complete", **values: Any) -> list[Any]:
    """Runs that ended so many days ago; their ids."""
    rows = [
        {
            "run_id": uuid.uuid4(),
            "pipeline_name": name,
            "status": status,
            "source": "deliveries.csv",
            "sink": "silver.deliveries",
            "started_at": NOW - age * DAY - DAY / 24,
            "updated_at": NOW - age * DAY,
            "ended_at": NOW - age * DAY,
            "judged_at": NOW - age * DAY,
            **values,
        }
        for age in ages
    ]
    put(store, runs, *rows)
    return [row["run_id"] for row in rows]


def left(store: redrive.Store) -> set[Any]:
    """The runs of pipelines that are there."""
    return ids(store, runs)


def ids(store: redrive.Store, table: Any) -> set[Any]:
    return store.database.read(lambda connection: set(connection.execute(select(table.c.run_id)).scalars()))


def aged(store: redrive.Store, days: float, *run_ids: Any) -> None:
    """Let runs of flows be so much older, and judged."""

    def work(connection: Any) -> None:
        column = task_runs.c
        for row in connection.execute(select(task_runs).where(column.run_id.in_(run_ids))).all():
            then = {
                "started_at": row.started_at - days * DAY,
                "ended_at": None if row.ended_at is None else row.ended_at - days * DAY,
                "judged_at": NOW,
            }
            connection.execute(update(task_runs).where(column.run_id == row.run_id).values(then))

    store.database.write(work)


def holds(store: redrive.Store, *without: str) -> dict[str, int]:
    """How many rows each table has, but for those that have none and those that are not meant."""

    def work(connection: Any) -> dict[str, int]:
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
        }
        return {name: count for name, count in sorted(counts.items()) if count and name not in without}

    return store.database.read(work)
