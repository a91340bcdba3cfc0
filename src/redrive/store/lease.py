"""Leases: what a process holds only for as long as it says again and again that it lives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection

from redrive.errors import StoreError
from redrive.store.database import Database


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
