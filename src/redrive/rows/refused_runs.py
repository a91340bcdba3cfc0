"""Why a run does not begin: the gate has aborted the last one, or its rows would be appended twice."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from redrive.errors import GateAborted, PipelineError
from redrive.rows.sinks.sink import Appends
from redrive.store.repositories.runs import report_of


def still_aborted(last: Row[Any], position: Any) -> GateAborted:
    """The error of a run that was started again although the gate had aborted it."""
    return GateAborted(
        f"{last.pipeline_name} stays aborted: {last.reason}. Fix the source or the check, then begin again with "
        "run(restart=True) or `redrive run --restart`, or accept the rejected rows and continue with "
        "run(override_gate=True) or `redrive run --override-gate`",
        report=report_of(last, position),
    )


def has_rows(appending: Appends | None) -> bool:
    """Whether the table that rows are appended to has some."""
    return appending is not None and not appending.is_empty()


def has_appended(appending: Appends | None, last: Row[Any]) -> bool:
    """Whether rows of a run were appended to a table that still has rows."""
    if appending is None or appending.is_empty():
        return False
    return bool(last.rows_written) or appending.has_appended(str(last.run_id))


def would_double(last: Row[Any], sink: str, why: str | None) -> PipelineError:
    """The error of a run that would append again what an earlier one has appended."""
    because = "a restart" if why is None else f"starting over ({why})"
    return PipelineError(
        f"run {str(last.run_id)[:8]} of pipeline {last.pipeline_name!r} has appended rows to {sink}, and {because} "
        "would append them again: finish it by running without restart and over the same input; or delete its rows and "
        "begin under another name; or empty the table and begin with run(restart=True) or `redrive run --restart`"
    )
