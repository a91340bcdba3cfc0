"""Letters of one key: the rows of several letters are one row in the sink, and the newest of them counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, case, func, literal, null, or_, select, update

from redrive.dlq.insert.identity import PREFIX
from redrive.dlq.insert.row_builder import REDACTED, as_key
from redrive.dlq.replay.target import TargetAnswer
from redrive.model.letters import Letter, Status
from redrive.store.schema import letter_claims, letters
from redrive.store.sql import in_ids

_AT_ONCE = 500

StoredTexts = Callable[[str], tuple[str, ...]]
"""The forms in which a key may be stored: unchanged, or as a digest if its record was masked."""


@dataclass(slots=True)
class _Written:
    """The letter whose row of a key counts now."""

    order: tuple[datetime, int]
    run_ids: set[UUID | None]
    """Runs of whose letters of this key no other counts."""


def held_siblings(
    connection: Connection, ids: Collection[int], owner: str, now: datetime, unsaved_runs: Sequence[str] = ()
) -> dict[int, datetime]:
    """Return those of these letters for whose key another replay has claimed a letter, and until when.

    The letters of all these keys are locked for the rest of the transaction, so that of two that claim letters of one
    key at the same moment, one sees the claim of the other.
    """
    if not ids:
        return {}
    column, claims = letters.c, letter_claims.c
    keyed = select(column.pipeline_name, column.sink_key).where(in_ids(column.id, ids), column.sink_key.is_not(None))
    by_pipeline: dict[str, list[str]] = defaultdict(list)
    for pipeline, key in connection.execute(keyed.distinct()):
        by_pipeline[pipeline].append(key)
    if not by_pipeline:
        return {}
    for pipeline in sorted(by_pipeline):
        for some in _parts(sorted(by_pipeline[pipeline])):
            lock = select(column.id).where(column.pipeline_name == pipeline, column.sink_key.in_(some))
            connection.execute(lock.order_by(column.id).with_for_update())
    sibling = letters.alias("sibling")
    same = (sibling.c.pipeline_name == column.pipeline_name) & (sibling.c.sink_key == column.sink_key)
    held = (
        select(column.id, func.max(claims.until))
        .join_from(letters, sibling, same)
        .join(letter_claims, claims.letter_id == sibling.c.id)
        .where(in_ids(column.id, ids), claims.owner != owner)
        .where((claims.until > now) | claims.owner.in_(unsaved_runs))
        .group_by(column.id)
    )
    return {row[0]: row[1] for row in connection.execute(held)}


def supersede(
    connection: Connection,
    written: Sequence[tuple[Letter, TargetAnswer]],
    *,
    pipeline: str | None,
    stored_texts: StoredTexts,
    now: datetime,
) -> None:
    """Mark the letters whose row was overwritten, or must not overwrite the one that is there: they are older.

    Closed letters as well, since they may be reopened.

    Args:
        written: letters whose rows are in the sink now.
        pipeline: the pipeline of the target, where it has one: letters of other pipelines may have been sent to it.
        stored_texts: how a key may be stored.
    """
    known = _keys(connection, written)
    by_pipeline: dict[str, dict[str, _Written]] = defaultdict(dict)
    for letter, answer in written:
        order = (letter.last_seen, letter.id)
        for name in {letter.pipeline, pipeline or letter.pipeline}:
            keys = known[letter.id] if answer.keys is None else _stored(answer.keys, stored_texts)
            for key in keys:
                newest = by_pipeline[name].setdefault(key, _Written(order, set()))
                newest.order = max(newest.order, order)
                if answer.one_per_run and letter.run_id is not None:
                    newest.run_ids.add(letter.run_id)
    sent = {letter.id for letter, _ in written}
    for name, newest_of in by_pipeline.items():
        for some in _parts(list(newest_of)):
            column = letters.c
            standing = select(column.id, column.sink_key, column.last_seen, column.run_id).where(
                column.pipeline_name == name, column.sink_key.in_(some), column.superseded_at.is_(None)
            )
            older = [
                row.id
                for row in connection.execute(standing)
                if (row.last_seen, row.id) < newest_of[row.sink_key].order
                or (row.run_id in newest_of[row.sink_key].run_ids and row.id not in sent)
            ]
            if older:
                connection.execute(update(letters).where(in_ids(column.id, older)).values(superseded_at=now))


def remember_keys(
    connection: Connection,
    written: Sequence[tuple[Letter, TargetAnswer]],
    *,
    stored_texts: StoredTexts,
    masks: bool,
    now: datetime,
) -> None:
    """Give letters without a key, such as those of lines, or with another one, the key of the row that was written.

    Later runs then see that they have replaced it. A record that became several rows has no one key.

    Args:
        masks: whether no masked value may be stored. A letter without a key, such as that of a page, then gets the
            digest, since its record does not show whether its rows have masked fields.
    """
    one_key: dict[int, str] = {}
    unseen: dict[int, str] = {}
    for letter, answer in written:
        if answer.keys is None or len(answer.keys) != 1:
            continue
        plain, *digests = stored_texts(as_key(next(iter(answer.keys))))
        if not (letter.context or {}).get(REDACTED):
            one_key[letter.id] = plain
            if masks and digests:
                unseen[letter.id] = digests[0]
        elif digests:  # otherwise this process does not mask, and must not store the key of a masked record
            one_key[letter.id] = digests[0]
    column = letters.c
    # Where the edit of a line is undone, its key is not known again.
    lines = [letter.id for letter, _ in written if letter.edited and not isinstance(letter.payload, Mapping)]
    received = literal({"sink_key": None, "superseded_at": None}, column.received_key.type)
    for some in _parts(list(one_key)):
        written_key: ColumnElement[Any] = case({one: one_key[one] for one in some}, value=column.id)
        if hidden := {one: unseen[one] for one in some if one in unseen}:
            has_digest = column.sink_key.startswith(PREFIX)  # from an earlier replay
            is_hidden = or_(column.sink_key.is_(None), has_digest) & in_ids(column.id, list(hidden))
            written_key = case((is_hidden, case(hidden, value=column.id)), else_=written_key)
        connection.execute(
            update(letters)
            .where(in_ids(column.id, some), column.received_key.is_(None), column.status == Status.REPROCESSED)
            .where(or_(column.sink_key.is_(None), column.sink_key != written_key))
            .values(
                sink_key=written_key,
                received_key=case((in_ids(column.id, lines), received)) if lines else null(),
                key_since=now,
            )
        )


def _keys(connection: Connection, written: Sequence[tuple[Letter, TargetAnswer]]) -> dict[int, tuple[str, ...]]:
    """Return the keys of letters for which the target does not report what it wrote."""
    asked = [letter.id for letter, answer in written if answer.keys is None]
    found: dict[int, tuple[str, ...]] = {letter.id: () for letter, _ in written}
    if asked:
        keyed = select(letters.c.id, letters.c.sink_key).where(
            in_ids(letters.c.id, asked), letters.c.sink_key.is_not(None)
        )
        found.update({row.id: (row.sink_key,) for row in connection.execute(keyed)})
    return found


def _stored(keys: Iterable[str], stored_texts: StoredTexts) -> list[str]:
    return [stored for key in keys for stored in stored_texts(as_key(key))]


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
