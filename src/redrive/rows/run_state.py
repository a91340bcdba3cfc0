"""A run as the store has it: the values of a started run, and the statements that read and change stored runs.

Used by the checkpoint."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, null, select, update

from redrive._internal.masking import mask_all, mask_start
from redrive.dlq.insert.row_builder import storable
from redrive.model.runs import Counts, RunStatus
from redrive.rows.errors import RunFault
from redrive.store.lease import is_owner_dead
from redrive.store.schema import letters, run_key_blocks, run_keys, runs

ENDED = {RunStatus.COMPLETE, RunStatus.ABANDONED}
_LONGEST_VARIABLE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedPipelineRun:
    """A run that was started or resumed."""

    run_id: uuid.UUID
    started_at: datetime
    identity: Mapping[str, Any]
    position: Any = None
    fields: tuple[str, ...] = ()
    """The fields of the records before the checkpoint."""
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    """Time spent in the earlier parts of the run."""
    resumed: bool = False
    started_over: str | None = None
    """Why an unfinished run was abandoned and this run reads from the start; None if no run was, or on a restart."""
    source_done: int | None = None
    source_total: int | None = None
    """How much of the source the earlier parts have read, and its size then."""
    sla: datetime | None = None
    judged_before: Counts = field(default_factory=Counts)
    """The rows of a gate's decision that an operator has overridden; the gate does not judge them again."""
    overridden: bool = False
    """Whether an operator overrode the gate, in this part of the run or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRefused:
    """A run that could not start."""

    run_id: uuid.UUID
    at: datetime
    sla: datetime | None


def fetch_run(connection: Connection, run_id: uuid.UUID) -> Row[Any] | None:
    return connection.execute(select(runs).where(runs.c.run_id == run_id)).one_or_none()


def accepted_counts(last_run: Row[Any]) -> Counts | None:
    """Return the counts of a run when an operator last overrode the gate; None if no operator has."""
    if last_run.accepted is None:
        return None
    return Counts(read=last_run.accepted["rows_read"], rejected=last_run.accepted["rows_rejected"])


def supersede_letters(connection: Connection, run_id: uuid.UUID, now: datetime) -> None:
    """Mark the letters of a run whose input is read again: without a key, a replay would append their rows twice."""
    mine = (letters.c.run_id == run_id) & letters.c.superseded_at.is_(None)
    connection.execute(update(letters).where(mine).values(superseded_at=now))


def forget_keys(connection: Connection, run_id: uuid.UUID) -> None:
    for table in (run_keys, run_key_blocks):
        connection.execute(delete(table).where(table.c.run_id == run_id))


def is_claimed(checkpoint: Row[Any], now: datetime) -> bool:
    """Return whether a live process has the claim."""
    return checkpoint.owner is not None and checkpoint.owner_until > now and not is_owner_dead(checkpoint.owner)


def count_failures(last_run: Row[Any]) -> int:
    """Return how often an unfinished run has failed. The process of a run that is still "running" has died."""
    return int(last_run.failures) + int(last_run.status in (RunStatus.FAILED, RunStatus.RUNNING))


def fault_columns(fault: RunFault | None) -> dict[str, Any]:
    return {
        "error_kind": None if fault is None else fault.kind,
        "error_type": None if fault is None else fault.name,
        "error_service": None if fault is None else fault.service,
        "detail": None if fault is None else fault.detail,
    }


def masked_variables(names: Sequence[str]) -> Any:
    """Return these environment variables, masked and shortened; NULL if none of them is set."""
    variables = {
        name: storable(mask_start(os.environ[name], _LONGEST_VARIABLE)) for name in names if os.environ.get(name)
    }
    return mask_all(variables) or null()  # values of variables with secret names are masked as well
