"""Deciding about letters: discard, escalate, reopen. Each change is in the audit log."""

from __future__ import annotations

import functools
import getpass
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, literal, select, update
from sqlalchemy.sql.elements import ColumnElement

from redrive._internal.masking import mask
from redrive.dlq.filters import Filter
from redrive.dlq.insert.row_builder import storable
from redrive.errors import LetterError
from redrive.model.letters import OPEN, Changed, Status
from redrive.store.schema import letter_audit, letter_claims, letters
from redrive.store.sql import in_ids

BATCH = 5_000
_LONGEST_NOTE = 4_000

# The statuses that a decision may start from: a closed letter is reopened before another decision.
STARTS: Mapping[Status, tuple[Status, ...]] = {
    Status.DISCARDED: OPEN,
    Status.ESCALATED: (Status.PENDING,),
    Status.PENDING: (Status.DISCARDED, Status.ESCALATED, Status.REPROCESSED),
}
ACTIONS: Mapping[Status, str] = {
    Status.DISCARDED: "discarded",
    Status.ESCALATED: "escalated",
    Status.PENDING: "reopened",
}


def checked_note(note: str | None, action: str) -> str:
    """Return a note that is not empty."""
    if not isinstance(note, str) or not note.strip():
        raise LetterError(f"to {action} a letter needs a note with the reason; nothing was changed")
    return as_note(note)


def as_note(note: str) -> str:
    """A note that both databases can hold, without secrets: it is shown wherever the letter is."""
    if not isinstance(note, str):
        raise LetterError(f"a note must be a text, not {note!r}")
    return storable(mask(note.strip())[:_LONGEST_NOTE])


@functools.cache
def actor() -> str:
    """Return the name of the current user or process, for the audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def settle_batch(
    connection: Connection, chosen: Filter, ids: Sequence[int], *, target: Status, note: str | None, now: datetime
) -> Changed:
    """Change one batch of a selection."""
    still = select(letters.c.id).where(chosen.where(), in_ids(letters.c.id, ids)).order_by(letters.c.id)
    there = list(connection.execute(still.with_for_update()).scalars())
    held = held_letters(connection, there, now)
    free = [one for one in there if one not in held]
    changed = _settle(connection, free, target, note, now) if free else 0
    return Changed(changed, len(free) - changed, len(held))


def settle_within(
    connection: Connection, which: ColumnElement[bool], *, target: Status, note: str, now: datetime
) -> None:
    """Close the letters of something that was closed itself, in the caller's transaction.

    What succeeded after all is reprocessed, also where its letter was discarded before.
    """
    starts = (*OPEN, Status.DISCARDED) if target is Status.REPROCESSED else OPEN
    fit = [which, letters.c.status.in_(starts)]
    log(connection, fit, action=str(target), after=target, note=as_note(note), now=now)
    values = {"status": target, "resolution_note": as_note(note), "settled_at": now}
    connection.execute(update(letters).where(*fit).values(values))


def reopen_within(connection: Connection, which: ColumnElement[bool], *, note: str, now: datetime) -> None:
    """Reopen the discarded letters of something that is open again itself, in the caller's transaction."""
    theirs = select(letters.c.id).where(which, letters.c.status == Status.DISCARDED)
    _settle(connection, list(connection.execute(theirs).scalars()), Status.PENDING, as_note(note), now)


def held_letters(connection: Connection, ids: Sequence[int], now: datetime) -> set[int]:
    """Return those of these letters that a replay has claimed."""
    claims = letter_claims.c
    return set(
        connection.execute(select(claims.letter_id).where(in_ids(claims.letter_id, ids), claims.until > now)).scalars()
    )


def _settle(connection: Connection, ids: Sequence[int], target: Status, note: str | None, now: datetime) -> int:
    fit: list[ColumnElement[bool]] = [in_ids(letters.c.id, ids), letters.c.status.in_(STARTS[target])]
    if target is Status.PENDING:
        fit.append(_stands_alone(ids))
    # The log first: it copies the status that the update is about to overwrite.
    log(connection, fit, action=ACTIONS[target], after=target, note=note, now=now)
    settled = None if target is Status.PENDING else now
    values: dict[str, Any] = {"status": target, "resolution_note": note, "settled_at": settled}
    return connection.execute(update(letters).where(*fit).values(values)).rowcount


def _stands_alone(ids: Sequence[int]) -> ColumnElement[bool]:
    """No other open letter of the same identity, and of several resolved ones only the newest is reopened."""
    other = letters.alias("other_one")
    newest = letters.alias("newer_one")
    return ~(
        select(literal(1))
        .where(other.c.identity == letters.c.identity, other.c.status.in_(OPEN), other.c.id != letters.c.id)
        .exists()
        | select(literal(1))
        .where(newest.c.identity == letters.c.identity, newest.c.id > letters.c.id, in_ids(newest.c.id, ids))
        .exists()
    )


def log(
    connection: Connection,
    which: Sequence[ColumnElement[bool]],
    *,
    action: str,
    after: str | None,
    note: str | None,
    now: datetime,
) -> None:
    """Write a line of the audit log for each of these letters."""
    columns = letter_audit.c
    connection.execute(
        letter_audit.insert().from_select(
            ["letter_id", "at", "action", "status_before", "status_after", "actor", "note"],
            select(
                letters.c.id,
                literal(now, columns.at.type),
                literal(action),
                letters.c.status,
                literal(after) if after else letters.c.status,
                literal(actor()),
                literal(note, columns.note.type),
            ).where(*which),
        )
    )
