"""Retention and size of the queue. Open letters are never purged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from redrive.dlq.filters import Filter
from redrive.dlq.queries import in_parts, snapshot
from redrive.dlq.status import actor
from redrive.errors import LetterError
from redrive.model.letters import Purged, QueueSize, Status
from redrive.store.database import Database
from redrive.store.schema import STATUSES, cause_hours, causes, letter_audit, letters
from redrive.store.sql import in_ids

BATCH = 2_000
_SETTLED = (Status.REPROCESSED, Status.DISCARDED)


def purge(
    database: Database,
    chosen: Filter,
    *,
    before: datetime,
    dry_run: bool,
    gone: Callable[[int], None],
    within: float = math.inf,
) -> Purged:
    """Remove letters that were reprocessed or discarded before a moment, batch by batch, each in one transaction.

    In the end `gone` is called with how many were removed, however it ended.

    within  seconds after which the rest is left for another time
    """
    if unsettled := set(chosen.status or ()) - set(_SETTLED):
        raise LetterError(
            f"a letter that is {min(unsettled)} is open and is never purged; discard it first, with a note"
        )
    if chosen.status is None:
        chosen = chosen.but(status=_SETTLED)
    column = letters.c
    # A record that still comes keeps its letter, and with it the decision.
    old = [chosen.where(), column.settled_at < before, column.last_seen < before]
    if dry_run:
        counted = select(func.count()).select_from(letters).where(*old)
        return Purged(int(database.read(lambda connection: connection.execute(counted).scalar_one())), dry_run=True)
    database.write(_begin_retention)
    removed, ends = 0, time.monotonic() + within
    try:
        for ids in in_parts(database.read(lambda connection: snapshot(connection, *old)), BATCH):

            def work(connection: Connection, ids: list[int] = ids) -> int:
                return _purge_batch(connection, [*old, in_ids(column.id, ids)], before)

            removed += database.write(work)
            if time.monotonic() > ends:
                break
    finally:
        gone(removed)
    database.write(lambda connection: _forget_causes(connection, database, before))
    return Purged(removed, dry_run=False)


def _begin_retention(connection: Connection) -> None:
    """Start the retention of letters that were closed by SQL: the time of that is not known."""
    unknown = letters.c.settled_at.is_(None)
    connection.execute(
        update(letters).where(letters.c.status.in_(_SETTLED), unknown).values(settled_at=datetime.now(UTC))
    )


def _purge_batch(connection: Connection, which: Sequence[ColumnElement[bool]], before: datetime) -> int:
    # A letter that was reopened meanwhile no longer matches; one that another purge has locked is left to it.
    still = select(letters.c.id).where(*which).order_by(letters.c.id)
    ids = list(connection.execute(still.with_for_update(skip_locked=True)).scalars())
    if not ids:
        return 0
    connection.execute(delete(letter_audit).where(in_ids(letter_audit.c.letter_id, ids)))
    connection.execute(delete(letters).where(in_ids(letters.c.id, ids)))
    connection.execute(
        letter_audit.insert().values(
            at=datetime.now(UTC),
            action="purged",
            actor=actor(),
            note=f"{len(ids)} letters that were closed before {before:%Y-%m-%d %H:%M} UTC",
        )
    )
    return len(ids)


def _forget_causes(connection: Connection, database: Database, before: datetime) -> None:
    """Drop hours that no letter is left of, and causes that no hour is left of."""
    database.dialect.lock_causes(connection)  # a letter that is just being put refers to a cause it found there
    column = cause_hours.c
    empty = sum((column[status] for status in STATUSES[1:]), start=column[STATUSES[0]]) == 0
    left = select(letters.c.id).where(
        letters.c.pipeline_name == column.pipeline_name,
        letters.c.status.in_(STATUSES),  # leads through the index
        letters.c.fingerprint == column.fingerprint,
    )
    # An hour without new letters may still count a letter of before that was seen again.
    connection.execute(delete(cause_hours).where(empty, column.hour < before, ~left.exists()))
    connection.execute(delete(causes).where(causes.c.fingerprint.not_in(select(column.fingerprint))))


def size(connection: Connection, database: Database, *, now: datetime) -> QueueSize:
    """Return the size of the queue, from the counts by cause and hour."""
    column = cause_hours.c
    totals = connection.execute(
        select(*(func.coalesce(func.sum(column[status]), 0).label(status) for status in STATUSES))
    ).one()
    by_status = {status: int(getattr(totals, status)) for status in STATUSES}
    pending = select(column.pipeline_name, func.sum(column.pending)).group_by(column.pipeline_name)
    undecided = select(column.pipeline_name, func.sum(column.pending + column.escalated)).group_by(column.pipeline_name)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    rejected = sum((column[status] for status in STATUSES[1:]), start=column[STATUSES[0]])
    fresh = select(column.pipeline_name, func.sum(rejected)).where(column.hour >= today).group_by(column.pipeline_name)
    return QueueSize(
        letters=sum(by_status.values()),
        by_status=by_status,
        pending_by_pipeline={name: int(count) for name, count in connection.execute(pending) if count},
        open_by_pipeline={name: int(count) for name, count in connection.execute(undecided) if count},
        new_today_by_pipeline={name: int(count) for name, count in connection.execute(fresh) if count},
        oldest_pending=_oldest_pending(connection),
        bytes=database.dialect.size(connection),
    )


def _oldest_pending(connection: Connection) -> datetime | None:
    hours = select(func.min(cause_hours.c.hour, type_=cause_hours.c.hour.type)).where(cause_hours.c.pending > 0)
    hour = connection.execute(hours).scalar()
    if hour is None:
        return None
    column = letters.c
    return connection.execute(
        select(column.rejected_at)
        .where(column.status == "pending", column.rejected_at >= hour, column.rejected_at < hour + timedelta(hours=1))
        .order_by(column.rejected_at)
        .limit(1)
    ).scalar()
