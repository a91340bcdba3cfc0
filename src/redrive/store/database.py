"""`Database`: transactions that are retried after transient errors, and errors that an operator can read."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, NoResultFound
from sqlalchemy.exc import TimeoutError as PoolExhausted

from redrive._internal.masking import mask
from redrive._internal.shutdown import Cancellation, cancel_statement
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.errors import RedriveError, SchemaMismatch, StoreError
from redrive.model.calls import Kind
from redrive.policy import backoff
from redrive.store import migrate
from redrive.store.dialects.dialect import Dialect

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds to wait for a database that restarts, or that another process keeps busy."""

_FORK_PATIENCE = 10.0
_RETRYABLE = {Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED}
# A statement timeout or a cancelled statement. The classifier calls it ambiguous, since it may never succeed; but the
# transaction was rolled back for certain, and another session's lock is often the cause.
_TIMED_OUT = "57014"
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
        self.retries = 0
        """How often a transaction was retried."""
        self._faults: tuple[type[Exception], ...] = (DBAPIError, PoolExhausted, *dialect.errors)
        self._engine = SharedEngine.of(dialect, patience)
        self._gate = threading.Condition()
        self._running = 0
        _open.add(self)
        # A store that is never closed must leave no connection open.
        weakref.finalize(self, self._engine.release, id(self))

    def __repr__(self) -> str:
        return f"<Database {self.name}>"

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one snapshot of the database."""
        return self._retry(lambda: self._run(work, writing=False))

    def write(
        self,
        work: Callable[[Connection], T],
        *,
        done: Callable[[Connection, T], bool] | None = None,
        patience: float | None = None,
    ) -> T:
        """Run `work` in one transaction that is committed as a whole, or not at all.

        If the connection breaks during the commit, the outcome is unknown, and `work` is retried.

        Args:
            done: returns whether the last result is committed already; for work that must not happen twice.
            patience: seconds to retry, instead of the database's own.
        """
        results: list[T] = []

        def once(connection: Connection) -> T:
            if results and done is not None and done(connection, results[-1]):
                return results[-1]
            results.append(work(connection))
            return results[-1]

        return self._retry(lambda: self._run(once, writing=True), patience)

    def prepare(self, *, migrating: bool) -> None:
        """Check that the schema is the one this program expects; migrate it where that is allowed.

        Raises:
            SchemaMismatch: the schema is older and must not be migrated, or it is newer.
        """
        version = self.read(migrate.version)
        if migrate.is_current(version, where=self.name):
            return
        if not migrating:
            raise self._not_migrated(version)
        self.migrate()

    def migrate(self) -> tuple[str | None, str]:
        """Migrate the schema; return the version before and after."""

        def work(connection: Connection) -> str | None:
            self.dialect.lock_schema(connection)
            version = migrate.version(connection)  # another process may have migrated meanwhile
            if not migrate.is_current(version, where=self.name):
                migrate.upgrade(connection)
            return version

        before = self.write(work)
        if before not in (None, migrate.VERSION):
            self.dialect.tighten()  # only once: rights that are granted later are meant
        return before, migrate.VERSION

    def _not_migrated(self, version: str | None) -> SchemaMismatch:
        state = "has no redrive schema" if version is None else f"has schema version {version}, not {migrate.VERSION}"
        return SchemaMismatch(
            f"{self.name} {state}: run `redrive store migrate`, or connect with migrate=True; nothing was changed"
        )

    def close(self) -> None:
        """Close the connections, unless another store of this process uses them; the next use opens new ones."""
        self._engine.release(id(self))

    # ── forks ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    # A child inherits SQLite's belief to hold locks that only its parent holds, and would write without any: nothing
    # may be open at the moment of a fork. A connection to PostgreSQL belongs to the parent, and the child drops it.

    def before_fork(self) -> None:
        """Wait for running transactions, block new ones, and close what must not be inherited."""
        self._gate.acquire()
        ends = time.monotonic() + _FORK_PATIENCE
        while self._running and time.monotonic() < ends:
            self._gate.wait(max(0.0, ends - time.monotonic()))
        if not self.dialect.is_remote:
            self._engine.close_idle()

    def after_fork(self, *, in_child: bool) -> None:
        """Allow transactions again."""
        if in_child:
            self._running = 0
            self._engine.forget()
        self._gate.release()

    def _run(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        options = self.dialect.writing if writing else self.dialect.reading
        with (
            self._counted(),
            self._engine.connect(id(self)) as connection,
            self._cancellable(connection),
            connection.execution_options(**options).begin(),
        ):
            return work(connection)

    @contextmanager
    def _cancellable(self, connection: Connection) -> Iterator[None]:
        driver = connection.connection.driver_connection
        with Cancellation.current().during(lambda: cancel_statement(driver)):
            yield

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._gate:
            self._running += 1
        try:
            yield
        finally:
            with self._gate:
                self._running -= 1
                self._gate.notify_all()

    def _retry(self, transaction: Callable[[], T], patience: float | None = None) -> T:
        ends, retry = time.monotonic() + (self.patience if patience is None else patience), 0
        cancellation = Cancellation.current()
        while True:
            try:
                return transaction()
            except self._faults as error:
                cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
                # Two writers made the same letter pending at the same moment: the second one tries again.
                collided = self.dialect.collided(cause)
                # A pool is exhausted when every connection of this process is at work.
                if isinstance(error, PoolExhausted) or _sqlstate(cause) == _TIMED_OUT:
                    kind = Kind.TRANSIENT
                else:
                    kind = Kind.RETRY_NOW if collided else _classifier.classify(error, scope="call").kind
                is_over = cancellation.requested or is_interrupt(error) or time.monotonic() >= ends
                if is_over or kind not in _RETRYABLE:
                    raise self._store_error(cause, kind) from error
            retry += 1
            self.retries += 1
            cancellation.wait(random.uniform(0, backoff.ceiling(retry, base=0.01, multiplier=2, cap=1)))

    def _store_error(self, error: BaseException, kind: Kind) -> StoreError:
        lines = mask(str(error)).strip().splitlines()
        advice = self.dialect.advice(error, kind)
        reason = lines[0] if lines else type(error).__name__
        return StoreError(f"{self.name}: {reason}{'; ' + advice if advice else ''}", kind=kind)


def _sqlstate(error: BaseException) -> str | None:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


class _Forks:
    """The fork handlers of all open databases."""

    def __init__(self) -> None:
        self._stopped: list[Database] = []

    def before(self) -> None:
        self._stopped = list(_open)
        for database in self._stopped:
            database.before_fork()

    def after(self, *, in_child: bool) -> None:
        for database in reversed(self._stopped):
            database.after_fork(in_child=in_child)
        self._stopped = []


_forks = _Forks()
os.register_at_fork(
    before=_forks.before,
    after_in_parent=lambda: _forks.after(in_child=False),
    after_in_child=lambda: _forks.after(in_child=True),
)


class SharedEngine:
    """The engine that every `Database` of the same database uses; the last one closes its connections."""

    _by_key: ClassVar[weakref.WeakValueDictionary[Hashable, SharedEngine]] = weakref.WeakValueDictionary()

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._users: dict[int, None] = {}  # by id; setting and removing a key needs no lock

    @classmethod
    def of(cls, dialect: Dialect, patience: float) -> SharedEngine:
        """Return the engine for a database and a timeout, so that a short wait never queues behind a long one.

        Two threads that open a database in the same instant may each create an engine.
        """
        key = (type(dialect), dialect.engine_key(), patience)
        shared = cls._by_key.get(key)
        if shared is None:
            shared = cls._by_key[key] = cls(dialect.engine())
        return shared

    def connect(self, user: int) -> Connection:
        """Check out a connection for a user; connections stay open while they have users."""
        self._users[user] = None
        return self._engine.connect()

    def release(self, user: int) -> None:
        """Close the idle connections unless another user needs them."""
        self._users.pop(user, None)
        if not self._users:
            self._engine.dispose()

    def close_idle(self) -> None:
        """Close the idle connections, even if they have users."""
        self._engine.dispose()

    def forget(self) -> None:
        """Drop the connections without closing them: in a forked child they belong to the parent."""
        self._engine.dispose(close=False)


@contextmanager
def corrupt_row_as_store_error(of: str) -> Iterator[None]:
    """Turn an error of decoding stored rows into a StoreError, with the error as its cause.

    Args:
        of: what the rows hold, for the message.
    """
    try:
        yield
    except RedriveError:
        raise
    except (ValueError, TypeError, LookupError, NoResultFound) as error:
        raise StoreError(
            f"the store's {of} cannot be decoded ({type(error).__name__}: {error}): a row was probably changed by "
            "hand; undo that change"
        ) from error
