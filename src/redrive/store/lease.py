"""Named leases, renewed by heartbeat: they expire when their owner dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select

from redrive.errors import StoreError
from redrive.store.database import Database
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import leases


@contextmanager
def renewed(database: Database, renew: Callable[[Connection], None], *, lease: timedelta) -> Iterator[None]:
    """Renew a lease in the background for as long as the block runs."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(lease.total_seconds() / 3):
            try:
                database.write(renew)
            except StoreError:
                continue  # the store may be available again before the lease expires

    thread = threading.Thread(target=work, name="redrive-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(1)  # it may be waiting for a database that is gone


# ── leases of the table `leases`, by name ─────────────────────────────────────────────────────────────────────────────
# `now` is the database's clock where it is not given.


def take(
    connection: Connection, dialect: Dialect, name: str, owner: str, lease: timedelta, *, now: datetime | None = None
) -> bool:
    """Take or keep the lease of this name for `lease`; return whether the owner has it now."""
    moment = dialect.now(connection) if now is None else now
    wanted = dialect.insert(leases)
    taken = wanted.on_conflict_do_update(
        index_elements=["name"],
        set_={"owner": wanted.excluded.owner, "until": wanted.excluded.until},
        where=(leases.c.until <= moment) | (leases.c.owner == owner),
    ).returning(leases.c.owner)
    return connection.execute(taken, {"name": name, "owner": owner, "until": moment + lease}).first() is not None


def holder(connection: Connection, dialect: Dialect, name: str, *, now: datetime | None = None) -> str | None:
    """Return the owner of a lease; None if there is none, or it has expired."""
    moment = dialect.now(connection) if now is None else now
    held = select(leases.c.owner).where(leases.c.name == name, leases.c.until > moment)
    return connection.execute(held).scalar()


def release(connection: Connection, name: str, owner: str) -> bool:
    """Release a lease, so that another process need not wait; return whether the owner had it."""
    own = delete(leases).where(leases.c.name == name, leases.c.owner == owner)
    return connection.execute(own.returning(leases.c.name)).first() is not None
