"""Named leases, renewed by heartbeat, and the identity of the process that holds one: they expire when it dies."""

from __future__ import annotations

import functools
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

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


# ── the identity of a process, in the owner of a claim ────────────────────────────────────────────────────────────────

_at_work: set[str] = set()
"""The claims of this process that are still in use."""


def begin_work(owner: str) -> None:
    """Mark a claim of this process as in use."""
    _at_work.add(owner)


def end_work(owner: str) -> None:
    """Mark a claim of this process as no longer in use: what is left of it in the store is stale."""
    _at_work.discard(owner)


def new_owner() -> str:
    """Return a new owner name for a claim of this process; other processes find out by it whether this one lives."""
    pid = os.getpid()
    token = uuid.uuid4().hex
    return json.dumps(
        {
            "host": socket.gethostname(),
            "boot": _boot(),
            "space": _space(),
            "pid": pid,
            "began": _began(pid),
            "token": token,
        }
    )


def is_owner_dead(owner: str) -> bool:
    """Return whether the claim of this owner is stale, as far as this machine knows."""
    identity = json.loads(owner)
    if (identity["host"], identity.get("boot"), identity["space"]) != (socket.gethostname(), _boot(), _space()):
        return False
    if identity["pid"] == os.getpid() and identity["began"] == _began(os.getpid()):
        return owner not in _at_work  # a claim of this process that was not released
    try:
        os.kill(identity["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return bool(_began(identity["pid"]) != identity["began"])  # another process has the same number now


def is_owner_alive(owner: str) -> bool:
    """Return whether the claim of this owner is in use by a process of this machine, as far as that is known."""
    if not owner.startswith("{"):
        return False
    identity = json.loads(owner)
    is_here = (identity["host"], identity.get("boot"), identity["space"]) == (socket.gethostname(), _boot(), _space())
    return is_here and not is_owner_dead(owner)


@functools.cache
def _boot() -> str | None:
    """Return the id of the running kernel: two machines may have the same name, and the same process numbers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _space() -> str | None:
    """Return the namespace of process numbers: two containers may have the same host name, and each a process 1."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _began(pid: int) -> str | None:
    """Return when a process began, by the kernel's count; None if that is unknown, or the process is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else fields[18]
