"""Errors of a run that must not start, used by the checkpoint: the gate aborted the last run, or rows would double."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from redrive.errors import GateAborted, PipelineError
from redrive.rows.sinks.sink import Appends
from redrive.store.repositories.runs import report_of


def aborted_error(last_run: Row[Any], position: Any) -> GateAborted:
    """Return the error for starting a run that the gate has aborted."""
    return GateAborted(
        f"{last_run.pipeline_name} stays aborted: {last_run.reason}. Fix the source or the check, then begin again "
        "with run(restart=True) or `redrive run --restart`, or accept the rejected rows and continue with "
        "run(override_gate=True) or `redrive run --override-gate`",
        report=report_of(last_run, position),
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
