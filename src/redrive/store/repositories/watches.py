"""Whether a watch will check an alert again: one that runs all the time, or one that cron starts."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, select

from redrive.store import lease
from redrive.store.dialects.dialect import Dialect
from redrive.store.lease import is_owner_dead
from redrive.store.schema import leases

WATCH = "watch"
"""The lease of the watch that leads."""
_SCHEDULED = "scheduled watch"  # a lease whose owner is the time of the last check
_EXPECTED = 3  # intervals until a scheduled watch is considered missing
_LONGEST = timedelta(minutes=20)  # longest interval of a watch that can notice a run that did not recover


def is_watched(connection: Connection, dialect: Dialect, *, now: datetime) -> bool:
    """Return whether a watch leads, or a scheduled one has checked recently.

    A watch that was killed on this machine does not come back, although its lease is still valid.
    """
    holder = lease.holder(connection, dialect, WATCH, now=now)
    if holder is not None and not is_owner_dead(holder):
        return True
    return lease.holder(connection, dialect, _SCHEDULED, now=now) is not None


def record_check(connection: Connection, dialect: Dialect, *, now: datetime) -> None:
    """Record a check of a scheduled watch. Its last two checks give its interval, and so when the next is due.

    A single check may be an operator's, without another one to follow.
    """
    before = connection.execute(select(leases.c.owner).where(leases.c.name == _SCHEDULED)).scalar()
    between = timedelta(0) if before is None else now - datetime.fromisoformat(before)
    until = now + (_EXPECTED * between if between <= _LONGEST else timedelta(0))
    mark = dialect.insert(leases).values(name=_SCHEDULED, owner=now.isoformat(), until=until)
    renewed = {"owner": mark.excluded.owner, "until": mark.excluded.until}
    connection.execute(mark.on_conflict_do_update(index_elements=["name"], set_=renewed))
