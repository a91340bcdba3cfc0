"""The key of an edited letter: runs and newer letters supersede it by the key that its edited record has.

An edit knows nothing of the sink, which may take "03" and "3" for the same key. So a run and a replay, which have it,
spell the keys of edited letters as the sink does before they go by them.

Which keys earlier runs have written is not kept. So a letter whose key was changed may overwrite a row that was written
before the edit: `key_since` is the time from which its key is watched, and a replay counts such letters
(`key_unknown`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, null, or_, select, update

from redrive.dlq.edit.corrections import diff
from redrive.dlq.insert.identity import PREFIX
from redrive.dlq.insert.row_builder import key_text
from redrive.model.letters import ABSENT, Letter, Status
from redrive.store.database import Database
from redrive.store.schema import letters, runs
from redrive.store.schema.columns import utc_text
from redrive.store.sql import in_ids

StoredTexts = Callable[[str], tuple[str, ...]]
"""The forms in which a key may be stored: unchanged, or as a digest if its record was masked."""

KeysOf = Callable[[Sequence[Any]], Sequence[str | None]]
"""Returns the keys of records as the sink compares them, None where one has none."""


class NormalizedKey(NamedTuple):
    """A letter whose edited key the sink spells in another way."""

    id: int
    key: str
    superseded_at: datetime | None


def find_edited(connection: Connection, pipeline: str, since: datetime | None = None) -> Sequence[Any]:
    """Return the letters of a pipeline whose key was edited, and that are not superseded."""
    column = letters.c
    edited = select(
        column.id,
        column.pipeline_name,
        column.last_seen,
        column.sink_key,
        column.received_key,
        column.edited_record,
    ).where(
        column.pipeline_name == pipeline,
        column.received_key.is_not(None),
        column.sink_key.is_not(None),
        column.superseded_at.is_(None),
    )
    return connection.execute(edited if since is None else edited.where(column.key_since > since)).all()


def respelled(
    connection: Connection,
    edited: Sequence[Any],
    keys: Sequence[str | None],
    *,
    stored_texts: StoredTexts,
    now: datetime,
) -> list[NormalizedKey]:
    """Return the edited letters that have another key for the sink than their record was given.

    Args:
        edited: from `find_edited`.
        keys: those of their records, as the sink compares them.
    """
    changes = []
    for row, text in zip(edited, keys, strict=True):
        if text is None or row.sink_key in stored_texts(text):
            continue
        # In the form that the letter has: a digest where its record was masked.
        key = stored_texts(text)[-1 if row.sink_key.startswith(PREFIX) else 0]
        before = row.received_key
        if key == before["sink_key"]:  # the edit has not changed it
            moment = before["superseded_at"]
            superseded = None if moment is None else datetime.fromisoformat(moment)
        else:
            superseded = now if _has_newer(connection, row.pipeline_name, (row.last_seen, row.id), key) else None
        changes.append(NormalizedKey(row.id, key, superseded))
    return changes


def respell_all(
    database: Database, pipeline: str, keys_of: KeysOf, *, stored_texts: StoredTexts, dry_run: bool
) -> list[NormalizedKey]:
    """Give all edited letters of a pipeline the key that the sink has for them; in a dry run, only find them."""
    edited = database.read(lambda connection: find_edited(connection, pipeline))
    if not edited:
        return []
    keys = keys_of([row.edited_record for row in edited])  # here, since the sink is asked, which may take a while

    def work(connection: Connection) -> list[NormalizedKey]:
        now = database.dialect.now(connection)
        changes = respelled(connection, edited, keys, stored_texts=stored_texts, now=now)
        if not dry_run:
            respell(connection, changes)
        return changes

    return database.read(work) if dry_run else database.write(work)


def respell(connection: Connection, changes: Sequence[NormalizedKey]) -> None:
    """Give letters the key that the sink has for them."""
    for change in changes:
        values = {"sink_key": change.key, "superseded_at": change.superseded_at}
        connection.execute(update(letters).where(letters.c.id == change.id).values(values))


def rekey(
    connection: Connection,
    made: Sequence[tuple[Letter, Any]],
    *,
    undo: bool,
    stored_texts: StoredTexts,
    now: datetime,
) -> None:
    """Give edited letters the key of their edited record, and let go of what superseded the old one.

    Args:
        made: letters as they were before the edit, each with what a replay sends from now on.
        undo: whether they go back to the record as received, and to its key.
        stored_texts: how a key may be stored.
    """
    column = letters.c
    of_keys = select(column.id, column.sink_key, column.superseded_at, column.received_key).where(
        in_ids(column.id, [letter.id for letter, _ in made]),
        or_(column.sink_key.is_not(None), column.received_key.is_not(None)),
    )
    keyed = {row.id: row for row in connection.execute(of_keys)}
    fields: dict[str, Sequence[str]] = {}
    for letter, after in made:
        row = keyed.get(letter.id)
        if row is None:
            continue
        if letter.pipeline not in fields:
            fields[letter.pipeline] = _key_fields(connection, letter.pipeline)
        received = row.received_key or {"sink_key": row.sink_key, "superseded_at": _text(row.superseded_at)}
        key = received["sink_key"]
        is_sure = True
        if not undo:
            key, is_sure = _key_after(letter.record, after, fields[letter.pipeline], key, stored_texts)
        values = {} if key == row.sink_key else _values(connection, letter, received, key, now)
        if not is_sure:
            values["key_since"] = now
        if values:
            connection.execute(update(letters).where(column.id == letter.id).values(values))


def _values(
    connection: Connection, letter: Letter, received: Mapping[str, Any], key: str | None, now: datetime
) -> dict[str, Any]:
    """Return the columns of a letter that gets another key."""
    if key == received["sink_key"]:
        before = received["superseded_at"]
        superseded = None if before is None else datetime.fromisoformat(before)
        return {"sink_key": key, "superseded_at": superseded, "received_key": null(), "key_since": now}
    order = letter.last_seen, letter.id
    superseded = now if key is not None and _has_newer(connection, letter.pipeline, order, key) else None
    return {"sink_key": key, "superseded_at": superseded, "received_key": dict(received), "key_since": now}


def _key_fields(connection: Connection, pipeline: str) -> Sequence[str]:
    """Return the key of the sink that the pipeline writes to; nothing where no run has stored it."""
    newest = (
        select(runs.c.key_fields)
        .where(runs.c.pipeline_name == pipeline, runs.c.key_fields.is_not(None))
        .order_by(runs.c.started_at.desc())
        .limit(1)
    )
    return connection.execute(newest).scalar() or ()


def _key_after(
    record: Any, after: Any, fields: Sequence[str], key: str, stored_texts: StoredTexts
) -> tuple[str | None, bool]:
    """Return the key of an edited record as it is stored, None where that is not known; and whether it is sure.

    Args:
        record: as it was received, with this `key`.
    """
    if not fields or not isinstance(record, Mapping) or not isinstance(after, Mapping):
        return None, True
    before, edited = (key_text([one.get(name) for name in fields]) for one in (record, after))
    stored = () if before is None else stored_texts(before)
    if edited is not None and key.startswith(PREFIX) and stored_texts(edited)[-1] == key:
        return key, True  # what was masked is as it was received
    if key not in stored:
        # The pipeline or the sink made the key of something else, such as other fields, or another spelling.
        is_touched = before != edited or any(_is_in(change.before, key) for change in diff(record, after))
        return (None, True) if is_touched else (key, False)
    return (None if edited is None else stored_texts(edited)[stored.index(key)]), True


def _is_in(value: Any, key: str) -> bool:
    """Return whether a key may have been made of this value."""
    return value is not ABSENT and value is not None and str(value) in key


def _has_newer(connection: Connection, pipeline: str, order: tuple[datetime, int], key: str) -> bool:
    """Return whether the sink has the row of a newer letter of this key; `order` is a time and an id."""
    column, (last_seen, letter_id) = letters.c, order
    newer = or_(column.last_seen > last_seen, and_(column.last_seen == last_seen, column.id > letter_id))
    there = select(column.id).where(
        column.pipeline_name == pipeline, column.sink_key == key, column.status == Status.REPROCESSED, newer
    )
    return connection.execute(there.limit(1)).first() is not None


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else utc_text(moment)
