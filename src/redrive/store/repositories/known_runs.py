"""The pipelines and flows that ever ran in a store, with their SLAs: used to detect a run that did not start."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, update

from redrive.model.runs import Counts
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import pipelines

Runnable = Literal["pipeline", "flow"]


def register_start(
    connection: Connection, dialect: Dialect, kind: Runnable, name: str, *, sla: TimeOfDay | float | None, now: datetime
) -> None:
    """Record the start of a run, and its SLA if that is a time of day; an SLA in seconds belongs to each run."""
    known = dialect.insert(pipelines).values(
        name=name, kind=kind, sla=str(sla) if isinstance(sla, TimeOfDay) else None, first_seen=now, last_started=now
    )
    new = known.excluded
    connection.execute(
        known.on_conflict_do_update(
            index_elements=["kind", "name"], set_={"sla": new.sla, "last_started": new.last_started}
        )
    )


def count_rows(connection: Connection, pipeline: str, added: Counts) -> None:
    """Add the rows of a batch to the totals of a pipeline, which purging runs does not lower."""
    counted = pipelines.c
    connection.execute(
        update(pipelines)
        .where(counted.kind == "pipeline", counted.name == pipeline)
        .values(
            rows_read=counted.rows_read + added.read,
            rows_written=counted.rows_written + added.written,
            rows_rejected=counted.rows_rejected + added.rejected,
        )
    )
