"""Idempotency keys: by which a service knows work that it has done already, whichever run asks for it again. Pure."""

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


def new_prefix(flow: str, params: str, run_id: UUID, before: PreviousRun | None, *, on_purpose: bool = False) -> str:
    """Return what the keys of a new run begin with: the flow and its parameters.

    Where an earlier run of the same work lacked some parameter, the new run keeps that one's keys.

    Without parameters nothing tells a run from the next one of the same flow: its keys are its own. They are those of
    the run before it where that one was not finished, since the new run then does the rest of its work.

    before      None where there is none
    on_purpose  the new run is to be another one, whatever became of the one before
    """
    does_the_rest = before is not None and not before.is_complete and not on_purpose
    if before is not None and before.params == NO_PARAMS and does_the_rest:
        return before.prefix or str(before.run_id)
    if params == NO_PARAMS:
        return f"{flow}/{run_id}"
    if before is not None and before.params != NO_PARAMS and before.prefix is not None:
        return before.prefix
    return f"{flow}/{_digest(params)}"


def key_of(prefix: str, task: str, item: str | None, twin: int) -> str:
    """Return the key of a task; a child of a fan-out is known by its item, since another run may number it otherwise.

    twin  how many children before this one have the same item
    """
    if item is None:
        return f"{prefix}/{task}"
    return f"{prefix}/{task}[{_digest(item)}{f'-{twin + 1}' if twin else ''}]"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_LENGTH).hexdigest()
