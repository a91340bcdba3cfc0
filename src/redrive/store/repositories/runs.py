"""`store.runs`: the runs of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, select, update

from redrive.errors import PipelineError
from redrive.model.runs import COUNTED, Counts, Report, RunStatus, Tier
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.database import Database, corrupt_row_as_store_error
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import checkpoints, pipelines, runs

_COLUMNS = {name: runs.c[name if name in {"batches", "retries"} else f"rows_{name}"] for name in COUNTED}
_DIGITS = 32
_SHORTEST = 4  # least number of characters that may stand for a run's id


class RunRepository:
    """The runs of all pipelines of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _read(self, work: Callable[[Connection], list[Report]]) -> list[Report]:
        with corrupt_row_as_store_error("runs"):
            return self._database.read(work)

    def find(
        self,
        *,
        pipeline: str | None = None,
        status: RunStatus | str | None = None,
        since: datetime | None = None,
        limit: int = 20,
    ) -> list[Report]:
        """Return runs, newest first."""
        wanted = _selected().order_by(runs.c.started_at.desc(), runs.c.run_id).limit(limit)
        if pipeline is not None:
            wanted = wanted.where(runs.c.pipeline_name == pipeline)
        if status is not None:
            wanted = wanted.where(runs.c.status == str(RunStatus(status)))
        if since is not None:
            wanted = wanted.where(runs.c.started_at >= since)
        return self._read(lambda connection: [report_of(row, row.position) for row in connection.execute(wanted)])

    def get(self, run_id: UUID | str) -> Report:
        """Return one run, by its id or the beginning of it; for a pipeline's name, its newest run."""
        matches = self.find_by_prefix(run_id)
        if not matches:
            raise PipelineError(f"there is no run {str(run_id)!r}; see `redrive runs ls`")
        if len(matches) > 1:
            raise PipelineError(f"several runs begin with {str(run_id)!r}; give more of the id")
        return matches[0]

    def find_by_prefix(self, run_id: UUID | str) -> list[Report]:
        """Return up to two runs that match: an id or the beginning of one, or a pipeline's name for its newest run."""
        text = str(run_id)

        def work(connection: Connection) -> list[Report]:
            if is_run(text.lower()):
                begins = of_run(runs.c.run_id, text.lower())
                if rows := connection.execute(_selected().where(begins).limit(2)).all():
                    return [report_of(row, row.position) for row in rows]
            named = _selected().where(runs.c.pipeline_name == text).order_by(runs.c.started_at.desc()).limit(1)
            return [report_of(row, row.position) for row in connection.execute(named)]

        return self._read(work)


def is_run(text: str) -> bool:
    """Return whether a text is a run's id, or long enough to be the beginning of one."""
    digits = text.replace("-", "")
    return _SHORTEST <= len(digits) <= _DIGITS and set(digits) <= set("0123456789abcdef")


def of_run(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    """Select the run of this id, or all whose ids begin so: a range of ids, which uses the index."""
    digits = text.replace("-", "")
    return column.between(UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f")))


def counts_of(row: Row[Any]) -> Counts:
    """Return the counts of a run."""
    return Counts(**{name: row._mapping[column] for name, column in _COLUMNS.items()})


def columns_of(counts: Counts) -> dict[str, int]:
    """Return the counts by the names of their columns."""
    return {column.name: getattr(counts, name) for name, column in _COLUMNS.items()}


def _selected() -> Any:
    return select(runs, checkpoints.c.position).outerjoin(checkpoints, checkpoints.c.run_id == runs.c.run_id)


def report_of(row: Row[Any], position: Any) -> Report:
    """Return the report of a run, from its row and the checkpoint of its pipeline."""
    counts = counts_of(row)
    return Report(
        pipeline=row.pipeline_name,
        run_id=row.run_id,
        status=RunStatus(row.status),
        source=row.source,
        sink=row.sink,
        started_at=row.started_at,
        seconds=row.seconds,
        **{name: getattr(counts, name) for name in COUNTED},
        tier=Tier(row.tier),
        checkpoint=position,
        reason=row.reason,
        sla=row.sla,
        ended_at=row.ended_at,
        gate_overridden=row.accepted is not None,
        source_done=row.source_done,
        source_total=row.source_total,
        detail=row.detail,
    )


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
