"""The seam between the rules and the two databases: the little that must differ."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, Table

from redrive.model.calls import Kind


class LetterRow(NamedTuple):
    """A new letter as both drivers take it: JSON and times as text, in the order of `PUT_COLUMNS`."""

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
    """A record that has come again, and was counted at the letter that decides it."""

    letter_id: int
    times: int
    last_seen: str
    run_id: str | None
    source: str | None
    position: str | None


class Dialect(Protocol):
    """What a database must be able to do beyond the SQL both understand."""

    where: str
    """The database as a person may see it: no password."""

    migrates_itself: bool
    """Whether connecting may change the schema unasked: not where others share it."""

    is_remote: bool
    """Whether another process does the work, while this one may prepare what comes next."""
    reading: Mapping[str, Any]
    writing: Mapping[str, Any]
    """The options of a connection that is to read one snapshot, and of one that is to write."""
    errors: tuple[type[Exception], ...]
    """What the driver raises where it is used directly."""

    def engine_key(self) -> Hashable:
        """Return what databases must have in common to share an engine, and its pool of connections."""

    def engine(self) -> Engine:
        """A pool of connections whose transactions keep the promises of `Database`."""

    def tighten(self) -> None:
        """Take rights to the data from others that an older version gave them unasked."""

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ON CONFLICT."""

    def lock_schema(self, connection: Connection) -> None:
        """Let one process migrate at a time."""

    def lock_causes(self, connection: Connection) -> None:
        """Keep others from putting letters until the transaction ends."""

    def lock(self, connection: Connection, what: str) -> None:
        """Let one transaction at a time do what has this name, until it ends."""

    def put_new(self, connection: Connection, rows: Sequence[LetterRow]) -> Collection[bytes]:
        """Add the letters whose identity has no open letter yet; the identities that have one are given back, and
        those letters are kept from changing until the transaction ends.
        """

    def add_letters(self, connection: Connection, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert letters in bulk, the fast way, and see that their causes are counted."""

    def see_again(self, connection: Connection, rows: Sequence[LetterRow], times: Sequence[int]) -> None:
        """Count further sightings of letters that are open, each of `rows` so many times; the letter shows the
        newest, the audit log keeps a raw record that differed. No identity comes twice.

        A call that was not sent, with 0 attempts, keeps the letter's error, cause and attempts: they may be of an
        attempt that reached the service.
        """

    def same_content(self, connection: Connection, rows: Sequence[LetterRow]) -> Sequence[tuple[int, int]]:
        """Return the letters that have the identity, raw record and context of a row: its place, and the letter's id.

        Those that were reprocessed or discarded are kept from changing until the transaction ends.
        """

    def see_decided(self, connection: Connection, sightings: Sequence[RepeatedLetter]) -> None:
        """Count further sightings of letters that were reprocessed or discarded. No letter comes twice."""

    def now(self, connection: Connection) -> datetime:
        """The time by the one clock that all who share the database have in common."""

    def begin_bounded(self, connection: Connection, *, within: float = 600.0) -> datetime:
        """The same, of a transaction that waits for others only so long, and that does not hold them up for ever: it is
        undone when its process falls silent, and at the latest after so many seconds, where the server can do that.
        """

    def place(self) -> object:
        """What tells it from another database that has come under its name since; None where there is none any more."""

    def size(self, connection: Connection) -> int:
        """Bytes on disk."""

    def letters_size(self, connection: Connection) -> int | None:
        """Bytes on disk of the table of letters, with its indexes; None where that takes a scan to find out."""

    def collided(self, error: BaseException) -> bool:
        """Whether it says that an identity has an open letter already."""

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        """What a person can do about an error, where that is known."""
