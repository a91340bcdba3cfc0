"""Digests that stand for values that must not be stored: equal values have equal digests, and nothing else is told.

Used where a store masks fields (`store_redacted`). A key that holds a masked value is stored as its digest, so that the
same record is recognized when it comes again; the digest of the whole record tells whether it has changed.

The digests are keyed with a random salt of the store: they cannot be compared with those of another store, nor looked
up in a table that was computed before. Who can read the store can read the salt, and can find a value that has few
possibilities by trying them all.
"""

from __future__ import annotations

from hashlib import blake2b

from sqlalchemy import Connection, select

from redrive.errors import StoreError
from redrive.store.database import Database
from redrive.store.schema import letter_salt

PREFIX = "redacted:"


class Digests:
    """The digests of one store."""

    __slots__ = ("_salt",)

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    @classmethod
    def of(cls, database: Database) -> Digests:
        """Return the digests of a store, with the salt that its migration wrote."""

        salt = _salt(database)
        if salt is None:
            raise StoreError(
                f"{database.name} has no salt for masked values: the table letter_salt is empty. Insert a row with 32 "
                "random bytes; letters that were masked with the old salt are not recognized again"
            )
        return cls(salt)

    @classmethod
    def found(cls, database: Database) -> Digests | None:
        """Return the digests of a store; None where it has no salt."""
        salt = _salt(database)
        return None if salt is None else cls(salt)

    def text(self, value: str) -> str:
        """Return the digest of a text, marked as one."""
        return value if value.startswith(PREFIX) else f"{PREFIX}{self._hash(value.encode()).hex()}"

    def short(self, value: str) -> str:
        """Return a digest of 12 characters, to tell apart texts that look the same when they are masked."""
        return self._hash(value.encode(errors="backslashreplace")).hex()[:12]

    def identity(self, identity: bytes) -> bytes:
        """Return the digest of the identity of a letter that comes from another store."""
        return self._hash(identity)

    def _hash(self, value: bytes) -> bytes:
        return blake2b(value, digest_size=16, key=self._salt).digest()


def salt_id(database: Database) -> str | None:
    """Return what tells the salt of a store from that of another, and not what it is; None where it has none."""
    salt = _salt(database)
    return None if salt is None else blake2b(salt, digest_size=8).hexdigest()


def _salt(database: Database) -> bytes | None:
    def read(connection: Connection) -> bytes | None:
        return connection.execute(select(letter_salt.c.salt).order_by(letter_salt.c.id).limit(1)).scalar()

    return database.read(read)
