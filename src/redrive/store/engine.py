"""One SQLAlchemy engine per database and process: statements are compiled once, connections are pooled together."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import ClassVar

from sqlalchemy import Connection, Engine

from redrive.store.dialects.dialect import Dialect


class SharedEngine:
    """The engine that every `Database` of the same database uses; the last one closes its connections."""

    _by_key: ClassVar[weakref.WeakValueDictionary[Hashable, SharedEngine]] = weakref.WeakValueDictionary()

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._users: dict[int, None] = {}  # by id; setting and removing a key needs no lock

    @classmethod
    def of(cls, dialect: Dialect, patience: float) -> SharedEngine:
        """Return the engine for a database and a patience, so that a short wait never queues behind a long one.

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
