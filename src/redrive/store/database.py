"""The database behind a store: transactions that are repeated when they can heal, errors a person can read."""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from redrive.classify.classifier import Classifier
from redrive.errors import SchemaMismatch, StoreError
from redrive.masking import mask
from redrive.model import Kind
from redrive.policy import backoff
from redrive.store import migrate
from redrive.store.dialect import Collision, Dialect

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for which a database that restarts, or that another process keeps busy, is waited for."""

_HEALS = {Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED}
_classifier = Classifier()
_open: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """One database, SQLite or PostgreSQL, shared by the threads of a process.

    `read` and `write` run a function in one transaction. Where the database restarts, deadlocks or is busy, the whole
    function runs again, so it may only touch the connection it is given.
    """

    def __init__(self, dialect: Dialect, *, patience: float = PATIENCE) -> None:
        self.dialect = dialect
        self.name = dialect.where
        self.patience = patience
        self._faults: tuple[type[Exception], ...] = (DBAPIError, *dialect.errors)
        self._engine: Engine = dialect.engine()
        _open.add(self)

    def __repr__(self) -> str:
        return f"<Database {self.name}>"

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one snapshot of the database."""
        return self._steadily(lambda: self._within(work, writing=False))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction that is committed as a whole, or not at all."""
        return self._steadily(lambda: self._within(work, writing=True))

    def prepare(self, *, migrating: bool) -> None:
        """See that the schema is the one this program knows."""
        found = self.read(migrate.version)
        if migrate.is_current(found, where=self.name):
            return
        if not migrating:
            raise self._not_migrated(found)
        self.migrate()

    def migrate(self) -> tuple[str | None, str]:
        """Bring the schema up to date; the version before and after."""

        def work(connection: Connection) -> str | None:
            self.dialect.lock_schema(connection)
            found = migrate.version(connection)  # another process may have been first
            if not migrate.is_current(found, where=self.name):
                migrate.upgrade(connection)
            return found

        return self.write(work), migrate.VERSION

    def _not_migrated(self, found: str | None) -> SchemaMismatch:
        state = "has no redrive schema" if found is None else f"has schema version {found}, not {migrate.VERSION}"
        return SchemaMismatch(
            f"{self.name} {state}: run `redrive store migrate`, or connect with migrate=True; nothing was changed"
        )

    def close(self) -> None:
        """Close every connection; the next use opens new ones."""
        self._engine.dispose()

    def forget_connections(self) -> None:
        """In a forked child: the connections belong to the parent."""
        self._engine.dispose(close=False)

    def _within(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        options = self.dialect.writing if writing else self.dialect.reading
        with self._engine.connect() as connection, connection.execution_options(**options).begin():
            return work(connection)

    def _steadily(self, transaction: Callable[[], T]) -> T:
        ends, repeat = time.monotonic() + self.patience, 0
        while True:
            try:
                return transaction()
            except Collision as error:
                if time.monotonic() >= ends:
                    raise StoreError(f"{self.name}: other writers put the same letters all the time") from error
            except self._faults as error:
                cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
                kind = _classifier.classify(error, scope="call").kind
                if kind not in _HEALS or time.monotonic() >= ends:
                    raise self._explained(cause, kind) from error
            repeat += 1
            time.sleep(random.uniform(0, backoff.ceiling(repeat, base=0.01, multiplier=2, cap=1)))

    def _explained(self, error: BaseException, kind: Kind) -> StoreError:
        said = mask(str(error)).strip().splitlines()
        advice = self.dialect.advice(error, kind)
        reason = said[0] if said else type(error).__name__
        return StoreError(f"{self.name}: {reason}{'; ' + advice if advice else ''}", kind=kind)


def _after_fork() -> None:
    for database in _open:
        database.forget_connections()


os.register_at_fork(after_in_child=_after_fork)
