"""Shared by tests of levels and of the watch: rows of runs at any time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, Table, event, insert

import redrive
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.collector import LevelCollector
from redrive.store.schema import pipelines, runs, task_runs

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
MONDAY = datetime(2026, 11, 16, 6, 30, tzinfo=UTC)
"""A deadline."""
QUICK = 20.0
"""Seconds to wait for what answers at once, on a machine that is busy."""


class Books:
    """Writes them."""

    def __init__(self, store: redrive.Store) -> None:
        self.store = store

    def put(self, table: Table, *rows: Any) -> None:
        self.store.database.write(lambda connection: connection.execute(insert(table), rows))

    def known(
        self,
        name: str = "vendor",
        *,
        kind: str = "pipeline",
        sla: str | None = "06:30 UTC",
        last: datetime = MONDAY - 60 * DAY,
    ) -> None:
        first = MONDAY - 60 * DAY
        self.put(pipelines, {"name": name, "kind": kind, "sla": sla, "first_seen": first, "last_started": last})

    def ran(
        self,
        started: datetime,
        ended: datetime | None = None,
        *,
        name: str = "vendor",
        status: str | None = None,
        judged: bool = True,
        **values: Any,
    ) -> uuid.UUID:
        run_id = uuid.uuid4()
        row = {
            "run_id": run_id,
            "pipeline_name": name,
            "status": status or ("running" if ended is None else "complete"),
            "source": "deliveries.csv",
            "sink": "silver.deliveries",
            "started_at": started,
            "updated_at": ended or started,
            "ended_at": ended,
            "judged_at": ended if judged else None,
        }
        self.put(runs, {**row, **values})
        return run_id

    def ran_every_day(self, until: datetime = MONDAY, *, name: str = "vendor", days: int = 14, back: int = 1) -> None:
        """In good time, so many days before."""
        for ago in range(back, back + days):
            self.ran(until - ago * DAY - HOUR, until - ago * DAY - HOUR / 2, name=name)

    def flowed(
        self, started: datetime, ended: datetime | None, *, name: str = "settlement", judged: bool = True, **values: Any
    ) -> uuid.UUID:
        run_id = uuid.uuid4()
        row = {
            "run_id": run_id,
            "flow_name": name,
            "status": "running" if ended is None else "complete",
            "params": "{}",
            "shape": "{}",
            "started_at": started,
            "updated_at": ended or started,
            "ended_at": ended,
            "judged_at": ended if judged else None,
        }
        self.put(task_runs, {**row, **values})
        return run_id


def levels_of(
    store: redrive.Store, *, probes: Any = None, figure_probes: Any = None, timeout: float = QUICK, **settings: Any
) -> LevelCollector:
    """Levels of a store with settings by name, as a process that starts anew has them."""
    return LevelCollector(
        store.database, AlertSettings(**settings), probes=probes, figure_probes=figure_probes, timeout=timeout
    )


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every statement that any engine is given within the block."""
    heard: list[str] = []

    def hear(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        heard.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        yield heard
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
