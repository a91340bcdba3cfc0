"""Which letters a replay sends first: a sample of the selection, not only its oldest letters."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from redrive.store.schema import letters
from redrive.store.sql import in_ids

_STEP = 0.618  # its multiples are spread over the fractions of 1


def has_unknown_key(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> bool:
    """Return whether one of the selected letters may be a row of any key."""
    unknown = select(letters.c.id).where(letters.c.sink_key.is_(None), *conditions).limit(1)
    return connection.execute(unknown).first() is not None


def canary_first(
    connection: Connection, ids: Sequence[int], *, canary: int, of: int, conditions: Sequence[ColumnElement[bool]]
) -> Sequence[int]:
    """Return the letters with the canary in front, spread evenly from the oldest to the newest.

    Of several letters of one key, the oldest is taken: a canary that sent a newer one would let the older one overwrite
    it afterwards. Where keys are unknown, the order of the letters must not be changed at all.

    Args:
        ids: the selection in the order in which it is sent.
        canary: how many letters to send first.
        of: how many of the selection are sent at all.
        conditions: by which letters were selected.
    """
    if canary >= of:
        return ids
    # One of each stretch, and not at the same place of each: what fails may come at regular distances.
    spread = [ids[int((place + place * _STEP % 1) * of / canary)] for place in range(canary)]
    oldest = _oldest_of_their_key(connection, spread, conditions)
    first = dict.fromkeys(oldest.get(one, one) for one in spread)
    for one in ids[:canary]:  # where letters of one key were met twice
        if len(first) < canary:
            first.setdefault(one)
    return array("q", [*first, *(one for one in ids if one not in first)])


def _oldest_of_their_key(
    connection: Connection, ids: Sequence[int], conditions: Sequence[ColumnElement[bool]]
) -> dict[int, int]:
    """Return for each of these letters that has a key the oldest selected letter of the same key."""
    column = letters.c
    key = func.coalesce(column.sink_key, column.source_key)
    named = select(column.id, column.pipeline_name, key).where(in_ids(column.id, ids), key.is_not(None))
    keys = {row[0]: (row[1], row[2]) for row in connection.execute(named)}
    same = select(column.id, column.pipeline_name, key).where(*conditions, key.in_({one for _, one in keys.values()}))
    oldest: dict[tuple[str, str], int] = {}
    for letter_id, pipeline, text in connection.execute(same.order_by(column.last_seen, column.id)):
        oldest.setdefault((pipeline, text), letter_id)
    return {letter_id: oldest.get(known, letter_id) for letter_id, known in keys.items()}
