"""Idempotency keys, by which services recognize work that an earlier attempt or run has done. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from redrive.tasks.parameters import NO_PARAMS

_LENGTH = 8  # bytes of a digest, which is written in twice as many characters


class PreviousRun(NamedTuple):
    """The last run of the same work."""

    run_id: UUID
    prefix: str | None
    params: str
    is_complete: bool


def new_prefix(flow: str, params: str, run_id: UUID, previous: PreviousRun | None, *, new_keys: bool = False) -> str:
    """Return the prefix of the keys of a new run: the flow and its parameters.

    If an earlier run of the same work lacked some parameter, the new run keeps the keys of that run.

    Without parameters, nothing distinguishes one run of a flow from the next, so each run has keys of its own. If the
    previous run did not finish, the new run uses its keys, since it does the rest of the work.

    Args:
        flow: Name of the flow.
        params: Parameters as stored.
        run_id: Id of the new run.
        previous: The last run of the same work; None if there is none.
        new_keys: Whether the new run is other work, however the previous run ended.
    """
    finishes_previous = previous is not None and not previous.is_complete and not new_keys
    if previous is not None and previous.params == NO_PARAMS and finishes_previous:
        return previous.prefix or str(previous.run_id)
    if params == NO_PARAMS:
        return f"{flow}/{run_id}"
    if previous is not None and previous.params != NO_PARAMS and previous.prefix is not None:
        return previous.prefix
    return f"{flow}/{_digest(params)}"


def make_key(prefix: str, task: str, item: str | None, twin: int) -> str:
    """Return the key of a task; for a child of a fan-out, by its item, since its number may differ between runs.

    Args:
        prefix: Prefix of the run's keys.
        task: Name of the task.
        item: Item of the child as JSON text; None for a task that is not a child.
        twin: How many children before this one have the same item.
    """
    if item is None:
        return f"{prefix}/{task}"
    return f"{prefix}/{task}[{_digest(item)}{f'-{twin + 1}' if twin else ''}]"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_LENGTH).hexdigest()
