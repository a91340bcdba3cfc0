"""One SQLAlchemy engine per database and process: statements are compiled once, connections are pooled together."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import ClassVar

from sqlalchemy import Connection, Engine

from redrive.store.dialects.dialect import Dialect


class SharedEngine:
    """The engine that every `Database` of the same database uses; the last one to close it closes the connections."""

    _by_key: ClassVar[weakref.WeakValueDictionary[Hashable, SharedEngine]] = weakref.WeakValueDictionary()

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._users: dict[int, None] = {}  # by id; setting and removing a key needs no lock

    @classmethod
    def of(cls, dialect: Dialect, patience: float) -> SharedEngine:
        """Return the engine for a database and this much patience, so that who waits little never queues behind who
        waits long. Two threads that open a database in the same instant may each create an engine.
        """
        key = (type(dialect), dialect.engine_key(), patience)
        shared = cls._by_key.get(key)
        if shared is None:
            shared = cls._by_key[key] = cls(dialect.engine())
        return shared

    def connect(self, user: int) -> Connection:
        """Check a connection out for a user, who is then one of those that the connections are kept for."""
        self._users[user] = None
        return self._engine.connect()

    def release(self, user: int) -> None:
        """Close the idle connections unless another user needs them."""
        self._users.pop(user, None)
        if not self._users:
            self._engine.dispose()

    def close_idle(self) -> None:
        """Close the idle connections, whoever uses them."""
        self._engine.dispose()

    def forget(self) -> None:
        """Drop the connections without closing them: in a forked child they are the parent's."""
        self._engine.dispose(close=False)
