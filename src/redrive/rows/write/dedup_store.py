"""The stored keys that a run has written, used by its writer if no key may be written twice."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.rows.batch import Outgoing
from redrive.store.database import Database
from redrive.store.schema import run_keys

_AT_ONCE = 500  # parameters of one statement: SQLite and PostgreSQL both take many more


def digest_of(key: tuple[Any, ...]) -> bytes:
    """Return a key as sixteen bytes."""
    # Numbers that are equal are one key, whatever type they have and however many zeros.
    normalized = tuple(_normalize(Decimal(part)) if isinstance(part, int | float | Decimal) else part for part in key)
    return blake2b(repr(normalized).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _normalize(number: Decimal) -> Decimal:
    return number.normalize() if number else Decimal(0)


class KeysSeen:
    """The keys of a run in the store, saved with the checkpoint, so that a resumed run knows them."""

    def __init__(self, database: Database, run_id: UUID, key: Sequence[str]) -> None:
        self._database = database
        self._run_id = run_id
        self._key = tuple(key)

    def digests(self, rows: Outgoing) -> list[bytes]:
        """Return the keys of rows, each as sixteen bytes."""
        rows = rows.keyed
        parts = zip(*(rows.values(name) for name in self._key), strict=True)
        return [digest_of(key) for key in parts]

    def known(self, connection: Connection, digests: Sequence[bytes]) -> set[bytes]:
        """Return the keys that the run has written before."""
        known_digests: set[bytes] = set()
        for start in range(0, len(digests), _AT_ONCE):
            is_listed = run_keys.c.key_digest.in_(digests[start : start + _AT_ONCE])
            known_digests.update(
                connection.execute(
                    select(run_keys.c.key_digest).where(run_keys.c.run_id == self._run_id, is_listed)
                ).scalars()
            )
        return known_digests

    def add(self, connection: Connection, digests: Sequence[bytes]) -> None:
        """Store keys, in the transaction that moves the checkpoint."""
        if digests:
            new = self._database.dialect.insert(run_keys).on_conflict_do_nothing()
            connection.execute(new, [{"run_id": self._run_id, "key_digest": digest} for digest in digests])
