"""Checks before a run is started or resumed, and their errors. Used by the checkpoint.

A run must not start if the gate aborted the last one, if rows would be appended twice, or if the source, the sink or
their options are others than those of the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from redrive.dlq.insert.row_builder import storable
from redrive.errors import GateAborted, PipelineError, RunStopped
from redrive.model.calls import Kind, format_duration
from redrive.model.runs import RunStatus
from redrive.rows.options import ComparedOptions, without_options
from redrive.rows.run_state import ENDED, is_claimed
from redrive.rows.sinks.sink import Appends
from redrive.rows.sources.source import Incremental, Replaceable, Source
from redrive.store.database import Database
from redrive.store.repositories.runs import report_of
from redrive.store.schema import checkpoints, runs


def aborted_error(last_run: Row[Any], position: Any) -> GateAborted:
    """Return the error for starting a run that the gate has aborted."""
    return GateAborted(
        f"{last_run.pipeline_name} stays aborted: {last_run.reason}. Fix the source or the validator, then restart "
        "with run(restart=True) or `redrive run --restart`, or accept the rejected rows and continue with "
        "run(override_gate=True) or `redrive run --override-gate`",
        report=report_of(last_run, position),
    )


def claimed_error(checkpoint: Row[Any], now: datetime) -> RunStopped:
    """Return the error for a pipeline that another process runs."""
    holder = json.loads(checkpoint.owner)
    wait = format_duration((checkpoint.owner_until - now).total_seconds())
    return RunStopped(
        f"pipeline {checkpoint.pipeline_name!r} is being run by process {holder['pid']} on {holder['host']}; "
        f"wait until it is done (if it is dead, the claim ends in {wait})",
        kind=Kind.TRANSIENT,
    )


def changed_options_error(pipeline: str, difference: str, *, is_finished: bool) -> PipelineError:
    """Return the error for options that are others than those that a checkpoint was taken with.

    Args:
        pipeline: The name of the pipeline.
        difference: What has changed, as a clause.
        is_finished: Whether the checkpoint is the watermark of a run that is complete.
    """
    if is_finished:
        state = "has a watermark that was taken with other options, so that rows before it may never have been read"
        way_back, way_on = "go back to those options", ', or always with rows.query(…, on_change="continue")'
    else:
        state = "has an unfinished run whose rows so far were read and written with other options"
        way_back, way_on = "finish it with those options", ""
    return PipelineError(
        f"pipeline {pipeline!r} {state}: {difference}; {way_back}, start over with run(restart=True) or `redrive run "
        "--restart`, or continue at the checkpoint with run(accept_changes=True) or `redrive run --accept-changes`"
        f"{way_on}"
    )


def has_rows(appending: Appends | None) -> bool:
    """Return whether the table of an appending sink has rows."""
    return appending is not None and not appending.is_empty()


def has_appended(appending: Appends | None, last_run: Row[Any]) -> bool:
    """Return whether rows of a run were appended to a table that still has rows."""
    if appending is None or appending.is_empty():
        return False
    return bool(last_run.rows_written) or appending.has_appended(str(last_run.run_id))


def double_append_error(last_run: Row[Any], sink: str, reason: str | None) -> PipelineError:
    """Return the error for a run that would append the rows of an earlier run a second time."""
    because = "a restart" if reason is None else f"starting over ({reason})"
    return PipelineError(
        f"run {str(last_run.run_id)[:8]} of pipeline {last_run.pipeline_name!r} has appended rows to {sink}, and "
        f"{because} would append them again: finish it by running without restart and over the same input; or delete "
        "its rows and begin under another name; or empty the table and begin with run(restart=True) or "
        "`redrive run --restart`"
    )


def explain_changed_input(source: Source, checkpoint: Row[Any], last_run: Row[Any]) -> str | None:
    """Return why an unfinished run cannot be resumed over the current input; None if it can.

    Only a source whose input may be replaced under the same name knows.
    """
    identity = without_options(checkpoint.identity)
    if not isinstance(source, Replaceable) or source.difference(identity):
        return None  # for another source, an error is raised later
    changed = source.changed(identity, checkpoint.position)
    if changed is None:
        return None
    return (
        f"{source.name} has other input than the unfinished run {str(last_run.run_id)[:8]}, which was abandoned "
        f"after {last_run.rows_read:,} rows: {changed}"
    )


def require_same_source(pipeline: str, source: Source, identity: Mapping[str, Any], state: str, advice: str) -> None:
    if difference := source.difference(without_options(identity)):
        raise PipelineError(
            f"pipeline {pipeline!r} {state}, and its checkpoint does not fit {source.name}: {difference}; "
            f"{advice}, or restart with run(restart=True) or `redrive run --restart`"
        )


def require_same_options(pipeline: str, compared: ComparedOptions, checkpoint: Row[Any], *, is_finished: bool) -> None:
    if difference := compared.difference(checkpoint.identity, of_writing=not is_finished):
        raise changed_options_error(pipeline, difference, is_finished=is_finished)


def require_same_sink(pipeline: str, last_run: Row[Any] | None, sink: str, *, is_sink_missing: bool) -> None:
    if last_run is not None and last_run.sink != storable(sink):
        raise PipelineError(
            f"pipeline {pipeline!r} has written to {last_run.sink} so far, and would continue in {sink}, where "
            "the rows before would be missing: go back to that sink, or restart with run(restart=True) or "
            "`redrive run --restart`"
        )
    if is_sink_missing:
        raise PipelineError(
            f"pipeline {pipeline!r} has written rows to {sink}, which does not exist any more, and would "
            "continue after them: restore it, or restart with run(restart=True) or `redrive run --restart`"
        )


def is_unfinished(database: Database, pipeline: str) -> bool:
    """Return whether the last run of a pipeline can be resumed."""
    mine = (checkpoints.c.pipeline_name == pipeline) & (checkpoints.c.run_id == runs.c.run_id)
    status = database.read(lambda connection: connection.execute(select(runs.c.status).where(mine)).scalar())
    return status is not None and RunStatus(status) not in ENDED


def is_sink_missing(database: Database, pipeline: str, source: Source, sink_exists: Callable[[], bool]) -> bool:
    """Return whether the sink is missing although it should have rows that the next run will not read again."""
    if not database.read(lambda connection: _has_written(connection, database, pipeline, source)):
        return False
    try:
        return not sink_exists()
    except Exception:
        return False  # it is not known; the run itself will get the error, and retry a transient one


def _has_written(connection: Connection, database: Database, pipeline: str, source: Source) -> bool:
    """Return whether rows before the checkpoint were written; False if another process runs the pipeline."""
    checkpoint = connection.execute(select(checkpoints).where(checkpoints.c.pipeline_name == pipeline)).one_or_none()
    if checkpoint is None or is_claimed(checkpoint, database.dialect.now(connection)):
        return False
    if isinstance(source, Incremental):  # it reads no row twice, neither of this run nor of earlier ones
        of_runs = runs.c.pipeline_name == pipeline
    else:
        of_runs = (runs.c.run_id == checkpoint.run_id) & runs.c.status.not_in(ENDED)
    written = runs.c.rows_written + runs.c.rows_duplicates > 0
    return connection.execute(select(runs.c.run_id).where(of_runs, written).limit(1)).first() is not None
