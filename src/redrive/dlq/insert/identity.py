"""The identity of a letter: digests that stand for masked values, and the numbers of equal rows.

Digests are used where a store masks fields (`store_redacted`): equal values have equal digests, and a digest reveals
nothing else. A key that holds a masked value is stored as its digest, so that the same record is recognized when it
comes again; the digest of the whole record shows whether it has changed. The digests are keyed with a random salt of
the store: they cannot be compared with those of another store, nor looked up in a table that was computed before. Who
can read the store can read the salt, and can find a value that has few possibilities by trying them all.

The letters of n equal rows are numbered: the first has the identity of the content, the others have one that is made of
it and of their number. A run gives its copies the numbers in order, so it has used those from 1 to m, and m is found
by bisection: a run with many equal rows does not read all their letters with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

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
        """Return a digest of 12 characters, to distinguish texts that look the same when they are masked."""
        return self._hash(value.encode(errors="backslashreplace")).hex()[:12]

    def identity(self, identity: bytes) -> bytes:
        """Return the digest of the identity of a letter that comes from another store."""
        return self._hash(identity)

    def _hash(self, value: bytes) -> bytes:
        return blake2b(value, digest_size=16, key=self._salt).digest()


def salt_id(database: Database) -> str | None:
    """Return an id of the store's salt that does not reveal it; None where the store has none."""
    salt = _salt(database)
    return None if salt is None else blake2b(salt, digest_size=8).hexdigest()


def _salt(database: Database) -> bytes | None:
    def read(connection: Connection) -> bytes | None:
        return connection.execute(select(letter_salt.c.salt).order_by(letter_salt.c.id).limit(1)).scalar()

    return database.read(read)


Place = tuple[str | None, str | None]
"""The source and the position of a row: with its run, they identify it."""


class KnownLetter(NamedTuple):
    """A letter that is in the store."""

    id: int
    identity: bytes
    is_open: bool
    is_superseded: bool
    is_decided: bool
    """Whether its decision holds for a record that comes again unchanged."""
    written_at: datetime | None
    """When it was reprocessed, where it was."""
    run_id: UUID | None
    source: str | None
    position: str | None
    written_key: str | None
    """The key of the row that was written, where it was reprocessed."""

    @property
    def place(self) -> Place:
        """Return the position of its record when it was last seen."""
        return self.source, self.position


class LetterIdentity(NamedTuple):
    """By what the letter of a row may be known."""

    keys: tuple[bytes, ...]
    """The identity by its key, then that of older versions, which knew a row by its source as well; or none."""
    content: bytes
    position: bytes
    """With the content. So letters of older versions are known, and those of records that only name work."""
    is_key_sure: bool
    """Whether a letter of the key is that of the row, whatever it holds; otherwise only if it has its content."""
    is_numbered: bool
    """Whether further rows of the content are known by their number, otherwise by their position."""

    @property
    def certain(self) -> tuple[bytes, ...]:
        """The identities without a number."""
        return (*self.keys, self.content, self.position)


class KnownLetters:
    """The letters of identities, read as they are asked for."""

    def __init__(self, run: UUID | None, read: Callable[[Iterable[bytes]], Mapping[bytes, list[KnownLetter]]]) -> None:
        self.letters: dict[bytes, list[KnownLetter]] = {}
        self._run = run
        self._read = read
        self._asked: set[bytes] = set()

    def load(self, identities: Iterable[bytes]) -> None:
        """Read the letters of identities that were not asked for yet."""
        new = set(identities) - self._asked
        if new:
            self._asked |= new
            self.letters.update(self._read(new))

    def of_this_run(self) -> list[KnownLetter]:
        """Return the letters that were seen in this run."""
        return [one for identity in self.letters for one in self.seen(identity)]

    def seen(self, identity: bytes) -> list[KnownLetter]:
        """Return the letters of an identity that were seen in this run."""
        if self._run is None:
            return []
        return [one for one in self.letters.get(identity, ()) if one.run_id == self._run]


class Copies:
    """The numbers of equal rows."""

    def __init__(self, known: KnownLetters, groups: Mapping[bytes, Sequence[Place]]) -> None:
        """Find the numbers that rows before these have in the run.

        Args:
            groups: the places of equal rows, by the identity of their content.
        """
        self._known = known
        self._groups = groups
        self._before = dict.fromkeys(groups, 0)
        # One number more than there are rows: a copy whose letter was decided and purged leaves a gap.
        known.load(numbered(content, n) for content, rows in groups.items() for n in range(2, len(rows) + 2))
        again = [
            content for content, places in groups.items() if any(one.place not in places for one in known.seen(content))
        ]
        if not again:
            return
        last = self._last(again)
        known.load(identity for content in again for identity in self._window(content, last[content]))
        for content in again:
            # A batch that was put before a crash is put again: its rows have the last of these numbers.
            ours = set(groups[content])
            put = [any(one.place in ours for one in known.seen(i)) for i in self._window(content, last[content])]
            self._before[content] = last[content] - sum(put)

    def near(self, content: bytes) -> list[bytes]:
        """Return the identities that the next rows of a content may have."""
        if content not in self._groups:
            return []
        before = self._before[content]
        return [numbered(content, n) for n in range(before + 1, before + len(self._groups[content]) + 2)]

    def from_next(self, content: bytes) -> Iterator[bytes]:
        """Return the identities of a content from the next number on."""
        while True:
            self._before[content] += 1
            yield numbered(content, self._before[content])

    def _window(self, content: bytes, last: int) -> list[bytes]:
        """Return the identities around the last number that the run has used."""
        count = len(self._groups[content])
        return [numbered(content, n) for n in range(max(1, last - count + 1), last + count + 2)]

    def _last(self, contents: Iterable[bytes]) -> dict[bytes, int]:
        """Return the last number that the run has used of each content; it has used the first."""
        last: dict[bytes, int] = {}
        bounds: dict[bytes, tuple[int, int | None]] = dict.fromkeys(contents, (1, None))
        while bounds:
            probes = {
                content: low * 2 if high is None else (low + high) // 2 for content, (low, high) in bounds.items()
            }
            self._known.load(numbered(content, probe) for content, probe in probes.items())
            for content, probe in probes.items():
                low, high = bounds[content]
                low, high = (probe, high) if self._known.seen(numbered(content, probe)) else (low, probe)
                bounds[content] = low, high
                if high is not None and high - low == 1:
                    last[content] = low
                    del bounds[content]
        return last


def numbered(content: bytes, number: int) -> bytes:
    """Return the identity of the copy of a row that has this number."""
    if number == 1:
        return content
    return content[:8] + blake2b(content + number.to_bytes(8, "big"), digest_size=8).digest()
