"""`Dialect`: the operations that must differ between the two databases."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, Table

from redrive.model.calls import Kind


class LetterRow(NamedTuple):
    """A new letter in the form that both drivers take: JSON and times as text, in the order of `PUT_COLUMNS`."""

    pipeline_name: str
    run_id: str | None
    error_type: str
    error_message: str
    raw_record: str
    source_table: str | None
    source_key: str | None
    rejected_at: str
    position: str | None
    fingerprint: str
    identity: bytes
    attempts: int
    last_seen: str
    context: str | None = None
    target: str | None = None
    sink_key: str | None = None
    trace_id: str | None = None


PUT_COLUMNS = LetterRow._fields


class RepeatedLetter(NamedTuple):
    """A record that failed again, counted at its decided letter."""

    letter_id: int
    times: int
    last_seen: str
    run_id: str | None
    source: str | None
    position: str | None


class Dialect(Protocol):
    """What a database must provide beyond the SQL that both understand."""

    where: str
    """The location of the database, without a password."""

    migrates_itself: bool
    """Whether connecting may migrate the schema: not where other programs share it."""

    is_remote: bool
    """Whether a server does the work, so that this process can prepare the next step meanwhile."""
    reading: Mapping[str, Any]
    writing: Mapping[str, Any]
    """Options of a connection that reads one snapshot, and of one that writes."""
    errors: tuple[type[Exception], ...]
    """Exceptions of the driver where it is used directly."""

    def engine_key(self) -> Hashable:
        """Return what databases must have in common to share an engine, and its pool of connections."""

    def engine(self) -> Engine:
        """Return a pool of connections whose transactions have the guarantees of `Database`."""

    def tighten(self) -> None:
        """Revoke rights to the data that an older version granted to others by default."""

    def insert(self, table: Table) -> Any:
        """Return an INSERT that supports ON CONFLICT."""

    def lock_schema(self, connection: Connection) -> None:
        """Let one process migrate at a time."""

    def lock_causes(self, connection: Connection) -> None:
        """Keep others from putting letters until the transaction ends."""

    def lock(self, connection: Connection, what: str) -> None:
        """Let one transaction at a time hold the lock of this name, until it ends."""

    def put_new(self, connection: Connection, rows: Sequence[LetterRow]) -> Collection[bytes]:
        """Add the letters whose identity has no open letter yet; return the identities that have one.

        Those letters are locked until the transaction ends.
        """

    def add_letters(self, connection: Connection, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert letters in bulk, and count them in their causes."""

    def see_again(self, connection: Connection, rows: Sequence[LetterRow], times: Sequence[int]) -> None:
        """Count further sightings of open letters, `times` of each row.

        The letter shows the newest sighting; the audit log keeps a raw record that differed. No identity comes twice. A
        call that was not sent, with 0 attempts, keeps the letter's error, cause and attempts: they may be of an attempt
        that reached the service.
        """

    def same_content(self, connection: Connection, rows: Sequence[LetterRow]) -> Sequence[tuple[int, int]]:
        """Return the letters with the identity, raw record and context of a row: the row's index, and the letter's id.

        Letters that were reprocessed or discarded are locked until the transaction ends.
        """

    def see_decided(self, connection: Connection, sightings: Sequence[RepeatedLetter]) -> None:
        """Count further sightings of letters that were reprocessed or discarded. No letter comes twice."""

    def now(self, connection: Connection) -> datetime:
        """Return the time by the clock that all processes of the database share."""

    def begin_bounded(self, connection: Connection, *, within: float = 600.0) -> datetime:
        """Return the time as `now` does, in a transaction that neither waits for others nor holds them up for long.

        Where the server supports it, the transaction is rolled back when its process falls silent, and at the latest
        after `within` seconds.
        """

    def place(self) -> object:
        """Return what distinguishes it from another database of the same name; None if it no longer exists."""

    def size(self, connection: Connection) -> int:
        """Return the bytes on disk."""

    def letters_size(self, connection: Connection) -> int | None:
        """Return the bytes on disk of the table of letters, with its indexes; None where that would take a scan."""

    def collided(self, error: BaseException) -> bool:
        """Return whether an error means that an identity already has an open letter."""

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        """Return what an operator can do about an error, if known."""
