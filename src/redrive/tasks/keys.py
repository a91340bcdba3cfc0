"""Idempotency keys: by which a service knows work that it has done already, whichever run asks for it again. Pure."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

_NO_PARAMS = "{}"
_LENGTH = 8  # bytes of a digest, which is written in twice as many characters


def new_prefix(flow: str, params: str, run_id: UUID, before: tuple[UUID, str | None, bool] | None) -> str:
    """Return what the keys of a new run begin with: the flow and its parameters.

    Without parameters nothing tells a run from the next one of the same flow: its keys are its own. They are those of
    the run before it where that one was not finished, since the new run then does the rest of its work.

    before  id and prefix of the last run of the same parameters, and whether it is complete; None where there is none,
            or where the new run is to be another one on purpose
    """
    if params != _NO_PARAMS:
        return f"{flow}/{_digest(params)}"
    if before is not None and not before[2]:
        return before[1] or str(before[0])
    return f"{flow}/{run_id}"


def key_of(prefix: str, task: str, item: str | None, twin: int) -> str:
    """Return the key of a task; a child of a fan-out is known by its item, since another run may number it otherwise.

    twin  how many children before this one have the same item
    """
    if item is None:
        return f"{prefix}/{task}"
    return f"{prefix}/{task}[{_digest(item)}{f'-{twin + 1}' if twin else ''}]"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_LENGTH).hexdigest()
