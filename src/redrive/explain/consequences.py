"""What a verdict leads to, in words: in a row, in a task, and for the people who might be told.

The row and the task runtime lie above this room; that these words are true of them is a matter of tests.
"""

from __future__ import annotations

from redrive.model.calls import Kind, Scope

HEALS = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS, Kind.QUOTA})
"""Kinds that may be gone when a run is started again."""

_STOPS = "stops the run; the next one goes on from its checkpoint"
_WAITS = f"a database that writes rows is waited for, up to a minute; anything else {_STOPS}"

ROWS: dict[Kind, str] = {
    Kind.RETRY_NOW: _WAITS,
    Kind.TRANSIENT: _WAITS,
    Kind.RATE_LIMITED: _STOPS,
    Kind.AMBIGUOUS: _STOPS,
    Kind.QUOTA: _STOPS,
    Kind.AUTH: _STOPS,
    Kind.PERMANENT: _STOPS,
    Kind.ROW: "the row becomes a dead letter, and the rest is loaded",
    Kind.DISCARD: "the row is dropped and counted, without a letter",
    Kind.RESOURCE: "the batch is halved and tried again",
}

_RETRIED = "RETRYING, and FAILED when its attempts are used"
_SUSPECT = "RETRYING, and DEAD_LETTER when it fails twice at the same place or its attempts are used"
_DEAD = "DEAD_LETTER at once; what comes after it is held"

TASKS: dict[Kind, str] = {
    Kind.RETRY_NOW: _RETRIED,
    Kind.TRANSIENT: _RETRIED,
    Kind.RATE_LIMITED: _RETRIED,
    Kind.AMBIGUOUS: _SUSPECT,
    Kind.QUOTA: _DEAD,
    Kind.AUTH: _DEAD,
    Kind.PERMANENT: _DEAD,
    Kind.ROW: _DEAD,
    Kind.DISCARD: "SUCCESS, without a result",
    Kind.RESOURCE: _SUSPECT,
}


def people(kind: Kind, scope: Scope, *, fault: bool, status: int | None) -> str:
    """Who would be told, where alerts are set up and nothing heals."""
    if kind is Kind.DISCARD:
        return "nobody"
    if scope == "row" and kind is Kind.ROW:
        return "P3 new_letters from 1 % of a run's rows, P1 rejected above 5 %"
    if scope == "task" and TASKS[kind] is not _RETRIED:
        return "P1 dead_task, once it is a dead letter"
    told = (
        "P2 retries_exhausted, where it ends a run that does not recover within ten minutes"
        if kind in HEALS
        else "P1 permanent_error, where it ends a run"
    )
    if kind is Kind.AUTH:
        told += "; P1 auth_refused, of a service with a store"
    elif fault:
        told += "; P2 service_down, where a service with a store fails so for five minutes"
    elif status is not None and 400 <= status < 500 and kind in (Kind.PERMANENT, Kind.ROW):
        told += "; P3 client_errors, of a service with a store"
    return told
