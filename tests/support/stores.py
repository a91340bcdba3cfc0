"""Empty stores for tests: a few databases per process, emptied between tests instead of created and dropped.

A test that needs a store borrows a slot. Emptying a slot takes a millisecond or two, where creating a database takes
thirty; and because its URL stays the same, SQLAlchemy compiles redrive's statements once per process.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg

import redrive

NewStore = Callable[..., contextlib.AbstractContextManager[str]]

OF_SLOTS = "redrive-test-slots"
"""The name of connections that tests do not count."""

OTHERS = f"""
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND application_name <> '{OF_SLOTS}'"""

# What migrations wrote.
_KEPT = {"redrive_schema", "letter_salt"}

# Everything that a test may have changed in redrive's own schema, apart from rows.
_POSTGRES_SCHEMA = """
    SELECT md5(string_agg(line, ',' ORDER BY line)) FROM (
        SELECT concat_ws(' ', c.oid, c.relname, c.relnatts, c.relacl, c.relrowsecurity) AS line FROM pg_class c
            WHERE c.relnamespace = 'pipeline'::regnamespace
        UNION ALL SELECT concat_ws(' ', t.oid, t.tgname, t.tgenabled) FROM pg_trigger t
            JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'pipeline'::regnamespace
        UNION ALL SELECT concat_ws(' ', p.oid, p.proname) FROM pg_proc p WHERE p.pronamespace = 'pipeline'::regnamespace
        UNION ALL SELECT concat_ws(' ', r.conname, r.convalidated) FROM pg_constraint r
            WHERE r.connamespace = 'pipeline'::regnamespace
        UNION ALL SELECT concat_ws(' ', s.setrole, s.setconfig) FROM pg_db_role_setting s
            JOIN pg_database d ON d.oid = s.setdatabase WHERE d.datname = current_database()
        UNION ALL SELECT version_num FROM pipeline.redrive_schema
    ) AS everything"""
_POSTGRES_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'pipeline'"
_POSTGRES_SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'pipeline'"
_POSTGRES_FOREIGN = """
    SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
        WHERE nspname NOT IN ('pipeline', 'information_schema') AND nspname !~ '^pg_'
        AND (nspname <> 'public' OR EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace
             UNION ALL SELECT FROM pg_proc WHERE pronamespace = 'public'::regnamespace
             UNION ALL SELECT FROM pg_type WHERE typnamespace = 'public'::regnamespace))"""

_SQLITE_SCHEMA = """
    SELECT type, name, sql FROM sqlite_master UNION ALL SELECT 'version', version_num, NULL FROM redrive_schema
    ORDER BY type, name"""


class Slot(Protocol):
    """One database that tests use one after the other."""

    url: str

    def reset(self) -> bool:
        """Empty it; return False where it is no longer what it was, and must not be used again."""

    def close(self) -> None:
        """Let it go."""


class PostgresSlot:
    """A database of the server that this process runs."""

    def __init__(self, server_url: str, name: str) -> None:
        self._server, self.url = server_url, f"{server_url.rpartition('/')[0]}/{name}"
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        self._store = redrive.connect(self.url, migrate=True)  # keeps its engine, and what that has compiled
        self._store.close()
        with psycopg.connect(self.url, autocommit=True) as connection:
            self._schema = connection.execute(_POSTGRES_SCHEMA).fetchone()
            tables = [name for (name,) in connection.execute(_POSTGRES_TABLES)]
            sequences = [name for (name,) in connection.execute(_POSTGRES_SEQUENCES)]
        self._empty = "; ".join(
            [
                "BEGIN; SET LOCAL session_replication_role = replica",
                *(f"DELETE FROM pipeline.{name}" for name in tables if name not in _KEPT),
                *(f"SELECT setval('pipeline.{name}', 1, false)" for name in sequences),
                "COMMIT",
            ]
        )

        self._connection: psycopg.Connection[Any] | None = None

    def reset(self) -> bool:
        # Over a connection that stays: to a new one all catalogs are new, which takes four times as long.
        for _ in range(2):  # a test may have ended all connections
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(self.url, autocommit=True, application_name=OF_SLOTS)
                return self._reset(self._connection)
            except psycopg.Error:
                self._disconnect()
        return False

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reset(self, connection: psycopg.Connection[Any]) -> bool:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        if connection.execute(_POSTGRES_SCHEMA).fetchone() != self._schema:
            return False
        for (statement,) in connection.execute(_POSTGRES_FOREIGN).fetchall():
            connection.execute(statement)
            if statement == "DROP SCHEMA public CASCADE":
                connection.execute("CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC")
        connection.execute(self._empty)
        return True

    def close(self) -> None:
        self._disconnect()
        self._store.close()


class SqliteSlot:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path, self.url = path, f"sqlite:///{path}"
        with redrive.connect(path):
            pass
        self._store = redrive.connect(path)  # keeps its engine, and what that has compiled
        self._store.close()
        self._schema = self._read_schema()

    def _read_schema(self) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(_SQLITE_SCHEMA).fetchall()

    def reset(self) -> bool:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=1, isolation_level=None)) as connection:
                return self._reset(connection)
        except sqlite3.Error:
            return False

    def _reset(self, connection: sqlite3.Connection) -> bool:
        found = connection.execute(_SQLITE_SCHEMA).fetchall()
        connection.execute("BEGIN IMMEDIATE")
        for kind, name, _ in (row for row in found if row not in self._schema and row[0] in {"table", "view"}):
            connection.execute(f'DROP {kind} "{name}"')
        if connection.execute(_SQLITE_SCHEMA).fetchall() != self._schema:
            return False
        for kind, name, _ in self._schema:
            if kind == "table" and name not in _KEPT:
                connection.execute(f'DELETE FROM "{name}"')
        connection.execute("COMMIT")
        return True

    def close(self) -> None:
        self._store.close()


class StoreSlots:
    """The slots of this process, made as tests need them."""

    def __init__(self, directory: Path, postgres_url: Callable[[], str]) -> None:
        self._directory, self._postgres_url = directory, postgres_url
        self._free: dict[str, list[Slot]] = {"sqlite": [], "postgresql": []}
        self._serial = itertools.count()

    @contextlib.contextmanager
    def lend(self, kind: str, *, fresh: bool = False) -> Iterator[str]:
        """Lend an empty store of this kind for the block; `fresh` for one whose size nothing before has changed."""
        slot = self._new(kind) if fresh else self._take(kind)
        try:
            yield slot.url
        finally:
            self._free[kind].append(slot)

    def _take(self, kind: str) -> Slot:
        while self._free[kind]:
            slot = self._free[kind].pop()
            if slot.reset():
                return slot
            slot.close()
        return self._new(kind)

    def _new(self, kind: str) -> Slot:
        name = f"store_{next(self._serial)}"
        return (
            SqliteSlot(self._directory / f"{name}.db") if kind == "sqlite" else PostgresSlot(self._postgres_url(), name)
        )

    def close(self) -> None:
        """Close what no test holds."""
        for slot in itertools.chain.from_iterable(self._free.values()):
            slot.close()
