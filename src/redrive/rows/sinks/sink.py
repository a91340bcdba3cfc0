"""The protocol of a sink, its result, and the bisection that finds rejected rows.

The docstrings are the contract; one test suite runs over every sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from sqlalchemy import Connection

from redrive.rows.batch import Outgoing, Refused
from redrive.store.database import Database

E = TypeVar("E")
Probe = Callable[[int, int], E | None]


class WriteResult(list[Refused]):
    """The outcome of a write: the rejected rows, and how many of the others are not in the sink."""

    suppressed: int = 0
    """Rows that the database left out by its own rules, as a trigger does."""
    ignored: int = 0
    """Rows whose key is there and that did not change it, as `on_conflict="ignore"` and `newer` have it."""
    deleted: int = 0
    """Rows that stand for a deletion."""


class Sink(Protocol):
    """Where rows are written. Writing the same rows twice is the same as writing them once: a key identifies a row.

    A sink without a key appends rows, see `Appends`: writing the same rows twice under one label is writing them once.
    """

    name: str
    """The name in reports and messages, without a password."""
    key: tuple[str, ...]
    """The columns that identify a row. No two rows of one `write` have the same key, and none of its parts is None.
    Empty where rows are appended."""

    @property
    def repeats(self) -> int:
        """Number of retries after transient errors since the sink was created."""

    def exists(self) -> bool:
        """Return whether the table, or the directory with files, exists. Nothing is created."""

    def check(self, columns: Sequence[str]) -> None:
        """Raise `SinkMismatch` if rows of these columns cannot be written, before any is written."""

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """Write rows, durably. Those that the sink rejects for a fault of their own are returned, the others written.
        A `WriteResult` also has the number of the others that were left out.

        Transient errors are retried here; any other error is raised, and then it is unknown which rows were written,
        so that all of them will be written again. `label` names this batch of this run: the same again after a crash.
        """

    def rehearse(self, rows: Outgoing) -> Sequence[Refused]:
        """Return the rows that a `write` would refuse; nothing is changed."""

    def close(self) -> None:
        """Close connections; the sink may be used again."""


@runtime_checkable
class SharesTransactions(Protocol):
    """A sink that can write in the store's own transaction if both are in one database."""

    patience: float
    """Seconds to wait for a database that restarts or is busy."""

    def lives_in(self, database: Database) -> bool:
        """Return whether the rows are written to this database."""

    def write_within(self, connection: Connection, rows: Outgoing) -> Sequence[Refused]:
        """Like `write`, in a transaction that the caller commits. May be retried as a whole."""


@runtime_checkable
class ChecksInOrder(Protocol):
    """A sink whose dry run can treat other rows as written before."""

    def rehearse_after(self, earlier: Sequence[Outgoing], rows: Outgoing) -> Sequence[Refused]:
        """Like `rehearse`, after the earlier rows; nothing is changed."""


@runtime_checkable
class ComparesKeys(Protocol):
    """A sink for which keys of different spelling are the same, by a column's type or collation."""

    def compared_keys(self, rows: Outgoing) -> Outgoing | None:
        """Return the key columns of rows, with values that are equal where the sink takes the keys for the same: in
        every batch and run. None if the rows' own values are such. A value that the sink does not take stays."""


@runtime_checkable
class Appends(Protocol):
    """A sink that can append rows. It does where its `key` is empty."""

    def append(self, rows: Outgoing, *, label: str, digest: str = "") -> Sequence[Refused]:
        """Like `write`. Where rows of this label were appended before, nothing is done, and the rows that were rejected
        then are returned.

        Raises `SinkMismatch` if those had other places in their batch, or another `digest`: they were other rows.
        """

    def append_all(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """Append rows that belong together: all of them, or none if some are rejected, which are returned.

        None are appended either if the database leaves some out by a rule of its own, as the `WriteResult` shows. If
        rows of this label were appended before, nothing is done, and none is rejected.
        """

    def has_appended(self, run_id: str) -> bool:
        """Return whether a batch of this run was appended."""

    def is_empty(self) -> bool:
        """Return whether the table has no rows, or does not exist."""


def isolate(count: int, probe: Probe[E]) -> list[tuple[int, E]]:
    """Find the rejected rows among `count` rows that failed together: the place of each, and its error.

    `probe(start, stop)` applies these rows and gives None, or applies none of them and gives the error. Each good row
    is applied once, in order. For k rejected rows that takes about k·log₂(count/k) + 2k probes. If rows fail only
    together, none of them is rejected.
    """
    failures: list[tuple[int, E]] = []
    start, error = _first(0, count, None, probe) if count else (0, None)
    apart = start  # how far the next rejected row is expected, by the distances so far
    while True:
        if error is not None:
            before = failures[-1][0] + 1 if failures else 0
            apart = (apart + start - before) // 2
            failures.append((start - 1, error))
        reach = max(apart, 1)
        while start < count and (error := probe(start, min(start + reach, count))) is None:
            start = min(start + reach, count)
            reach *= 2
        if start == count:
            return failures
        start, error = _first(start, min(start + reach, count), error, probe)


def _first(start: int, stop: int, error: E | None, probe: Probe[E]) -> tuple[int, E | None]:
    """Return the place after the first rejected row of a range, and its error; None if it is not rejected.

    A half that was taken leaves the fault in the other one, which need not be asked.
    """
    alone = stop - start == 1 and error is not None
    while stop - start > 1:
        middle = (start + stop) // 2
        outcome = probe(start, middle)
        if outcome is None:
            start, alone = middle, False
        else:
            stop, error, alone = middle, outcome, middle - start == 1
    return stop, error if alone else probe(start, stop)
