"""Leases: what a process holds only for as long as it says again and again that it lives."""

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
                continue  # what the store cannot do now, it may be able to do in time

    thread = threading.Thread(target=work, name="redrive-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(1)  # it may be waiting for a database that is gone


# ── what one process of all holds, by its name ────────────────────────────────────────────────────────────────────────
# `now` is the database's clock where it is not given.


def take(
    connection: Connection, dialect: Dialect, name: str, owner: str, lease: timedelta, *, now: datetime | None = None
) -> bool:
    """Take what has this name, or keep it, for so long; whether it is the owner's now."""
    moment = dialect.now(connection) if now is None else now
    wanted = dialect.insert(leases)
    taken = wanted.on_conflict_do_update(
        index_elements=["name"],
        set_={"owner": wanted.excluded.owner, "until": wanted.excluded.until},
        where=(leases.c.until <= moment) | (leases.c.owner == owner),
    ).returning(leases.c.owner)
    return connection.execute(taken, {"name": name, "owner": owner, "until": moment + lease}).first() is not None


def holder(connection: Connection, dialect: Dialect, name: str, *, now: datetime | None = None) -> str | None:
    """Who holds it; None where nobody does, or nobody who still says that he lives."""
    moment = dialect.now(connection) if now is None else now
    held = select(leases.c.owner).where(leases.c.name == name, leases.c.until > moment)
    return connection.execute(held).scalar()


def give_back(connection: Connection, name: str, owner: str) -> bool:
    """Let go of it, so that another one need not wait; whether it was the owner's."""
    ours = delete(leases).where(leases.c.name == name, leases.c.owner == owner)
    return connection.execute(ours.returning(leases.c.name)).first() is not None
