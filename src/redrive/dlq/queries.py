"""Reading letters: one, a page, all of a selection, one record's history."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Text, case, cast, func, null, select

from redrive.dlq.filters import Filter
from redrive.errors import LetterError
from redrive.model.letters import AuditEntry, CutRecord, Letter, Status
from redrive.store.schema import letter_audit, letters
from redrive.store.sql import in_ids

PAGE = 1_000
_STREAM = {"yield_per": 20_000}
_BEGINNING = 4_000  # characters that are read of what is too large: more than are shown, to see secrets whole
_HEAVY = ("raw_record", "edited_record", "context")


def fetch(connection: Connection, ids: Sequence[int], *, longest: int | None = None) -> list[Letter]:
    """Letters by id, oldest first; those that are not there are left out."""
    found = _letters(longest=longest).where(in_ids(letters.c.id, ids)).order_by(letters.c.id)
    return [as_letter(row) for row in connection.execute(found)]


def page(
    connection: Connection,
    chosen: Filter,
    *,
    limit: int,
    after: int | None,
    newest_first: bool,
    records: bool = True,
    longest: int | None = None,
) -> list[Letter]:
    """One page: a letter that comes or goes meanwhile does not shift the others."""
    order = letters.c.id.desc() if newest_first else letters.c.id
    # The ids first: an index holds them, where sorting whole letters would read every one of them.
    ids = select(letters.c.id).where(chosen.where()).order_by(order).limit(limit)
    if after is not None:
        ids = ids.where(letters.c.id < after if newest_first else letters.c.id > after)
    page_ids = list(connection.execute(ids).scalars())
    found = _letters(records=records, longest=longest).where(in_ids(letters.c.id, page_ids))
    rows = connection.execute(found.order_by(order))
    return [as_letter(row) for row in rows]


def snapshot(
    connection: Connection, *conditions: ColumnElement[bool], by: Sequence[ColumnElement[Any]] = (letters.c.id,)
) -> array[int]:
    """The ids of all letters that match now, oldest first: eight bytes each, however large the letters are.

    Args:
        by: the order, where the oldest is not the one that was put first.
    """
    ids = array("q")
    rows = connection.execute(select(letters.c.id).where(*conditions).order_by(*by), execution_options=_STREAM)
    for part in rows.scalars().partitions():
        ids.extend(part)
    return ids


def in_parts(ids: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the ids in lists of at most `size`."""
    for start in range(0, len(ids), size):
        yield list(ids[start : start + size])


def count(connection: Connection, chosen: Filter) -> int:
    """Return the number of letters that match."""
    return int(connection.execute(select(func.count()).select_from(letters).where(chosen.where())).scalar_one())


def by_status(connection: Connection, chosen: Filter) -> dict[str, int]:
    """Return how many letters match, by status."""
    counted = select(letters.c.status, func.count()).where(chosen.but(status=None).where()).group_by(letters.c.status)
    return {str(status): int(number) for status, number in connection.execute(counted)}


def by_target(connection: Connection, chosen: Filter) -> dict[str | None, int]:
    """Return how many letters match, by the target that rejected them; None for those that have none."""
    counted = select(letters.c.target, func.count()).where(chosen.where()).group_by(letters.c.target)
    return {row[0]: row[1] for row in connection.execute(counted.order_by(letters.c.target))}


def must_exist(connection: Connection, ids: tuple[int, ...]) -> None:
    """Refuse ids that no letter has."""
    there = set(connection.execute(select(letters.c.id).where(in_ids(letters.c.id, ids))).scalars())
    if missing := [one for one in ids if one not in there]:
        which = f"letter {missing[0]}" if len(missing) == 1 else f"letters {', '.join(map(str, missing[:5]))}"
        raise LetterError(f"there is no {which}; nothing was changed")


def audit(connection: Connection, ids: Sequence[int], *, longest: int | None = None) -> list[AuditEntry]:
    """Return the audit entries of these letters, oldest first."""
    light = [column for column in letter_audit.c if column.name not in ("id", "detail")]
    rows = connection.execute(
        select(*light, *_read(letter_audit.c.detail, longest))
        .where(in_ids(letter_audit.c.letter_id, ids))
        .order_by(letter_audit.c.id)
    )
    names = [column.name for column in light]
    return [AuditEntry(**{name: getattr(row, name) for name in names}, detail=_heavy(row, "detail")) for row in rows]


def _letters(*, records: bool = True, longest: int | None = None) -> Select[Any]:
    """Select letters; without their records, which may be large, those are None."""
    edited = letters.c.edited_record.is_not(None).label("edited")
    light = [column for column in letters.c if column.name not in _HEAVY]
    if not records:
        return select(*light, *(null().label(name) for name in _HEAVY), edited)
    return select(*light, *(part for name in _HEAVY for part in _read(letters.c[name], longest)), edited)


def _read(column: Column[Any], longest: int | None) -> Sequence[ColumnElement[Any]]:
    """Select a column of JSON; with a limit, of what is longer its size and its beginning, and nothing else."""
    if longest is None:
        return [column]
    written = cast(column, Text)
    size = func.length(written)
    return [
        case((size <= longest, column), else_=null()).label(column.name),
        case((size > longest, size), else_=null()).label(f"{column.name}_size"),
        case((size > longest, func.substr(written, 1, _BEGINNING)), else_=null()).label(f"{column.name}_start"),
    ]


def _heavy(row: Row[Any], name: str) -> Any:
    size = getattr(row, f"{name}_size", None)
    return getattr(row, name) if size is None else CutRecord(size, getattr(row, f"{name}_start"))


def as_letter(row: Row[Any]) -> Letter:
    """A row as the value users see."""
    return Letter(
        id=row.id,
        pipeline=row.pipeline_name,
        run_id=row.run_id,
        error_type=row.error_type,
        error_message=row.error_message,
        record=_heavy(row, "raw_record"),
        source=row.source_table,
        key=row.source_key,
        rejected_at=row.rejected_at,
        reprocess_count=row.reprocess_count,
        last_reprocess=row.last_reprocess,
        status=Status(row.status),
        note=row.resolution_note,
        position=row.position,
        fingerprint=row.fingerprint,
        seen=row.seen,
        last_seen=row.last_seen,
        attempts=row.attempts,
        edited=bool(row.edited),
        edited_record=_heavy(row, "edited_record"),
        last_error=row.last_error,
        settled_at=row.settled_at,
        context=_heavy(row, "context"),
        target=row.target,
        superseded_at=row.superseded_at,
        trace_id=row.trace_id,
    )
