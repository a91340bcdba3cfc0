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
    """What became of the rows of one write: those that were refused, and how many of the others are not in the sink."""

    suppressed: int = 0
    """Rows that the database left out by its own rules, as a trigger does."""
    ignored: int = 0
    """Rows whose key is there and that did not change it, as `on_conflict="ignore"` and `newer` have it."""
    deleted: int = 0
    """Rows that stand for a deletion."""


class Sink(Protocol):
    """Where rows go. Writing the same rows twice leaves the same as writing them once: rows are known by their key.

    A sink without a key appends rows, see `Appends`: writing the same rows twice under one label is writing them once.
    """

    name: str
    """As a person knows it, without a password."""
    key: tuple[str, ...]
    """The columns that identify a row. No two rows of one `write` have the same key, and none of its parts is None.
    Empty where rows are appended."""

    @property
    def repeats(self) -> int:
        """How often something that heals had to be tried again, since it was made."""

    def exists(self) -> bool:
        """Whether what was written could be there: a table, a directory with files. Nothing is created."""

    def check(self, columns: Sequence[str]) -> None:
        """Raise `SinkMismatch` where rows of these columns cannot go in, before any is written."""

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """Write rows, durably. Those that the sink refuses for a fault of their own are given back, the others written.
        An `WriteResult` also says how many of the others were left out.

        What heals is repeated in here; any other error is raised, and then it is unknown which rows were written, so
        that all of them will be written again. `label` names this batch of this run: the same again after a crash.
        """

    def rehearse(self, rows: Outgoing) -> Sequence[Refused]:
        """The rows that a `write` would refuse; nothing is changed."""

    def close(self) -> None:
        """Let go of connections; it may be used again."""


@runtime_checkable
class SharesTransactions(Protocol):
    """A sink that can write in the store's own transaction where the two are one database."""

    patience: float
    """Seconds for which a database that restarts or is busy is waited for."""

    def lives_in(self, database: Database) -> bool:
        """Whether the rows go into this very database."""

    def write_within(self, connection: Connection, rows: Outgoing) -> Sequence[Refused]:
        """Like `write`, in a transaction that the caller commits. May be repeated as a whole."""


@runtime_checkable
class ChecksInOrder(Protocol):
    """A sink that can rehearse rows as if others had been written before."""

    def rehearse_after(self, earlier: Sequence[Outgoing], rows: Outgoing) -> Sequence[Refused]:
        """Like `rehearse`, after the earlier rows; nothing is changed."""


@runtime_checkable
class ComparesKeys(Protocol):
    """A sink that takes keys of different spelling for the same, as a column's type or collation has it."""

    def compared_keys(self, rows: Outgoing) -> Outgoing | None:
        """Return the key columns of rows, with values that are equal where the sink takes the keys for the same: in
        every batch and run. None where the rows' own values are such. A value that the sink does not take stays."""


@runtime_checkable
class Appends(Protocol):
    """A sink that can append rows. It does where its `key` is empty."""

    def append(self, rows: Outgoing, *, label: str, digest: str = "") -> Sequence[Refused]:
        """Like `write`. Where rows of this label were appended before, nothing is done, and the rows that were refused
        then are returned.

        Raises `SinkMismatch` where those had other places in their batch, or another `digest`: they were other rows.
        """

    def append_all(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        """Append rows that belong together: all of them, or none where some are refused, which are returned.

        None are appended either where the database leaves some out by a rule of its own; a `WriteResult` tells. Where
        rows of this label were appended before, nothing is done, and none is refused.
        """

    def has_appended(self, run_id: str) -> bool:
        """Whether a batch of this run was appended."""

    def is_empty(self) -> bool:
        """Whether the table has no rows, or does not exist."""


def isolate(count: int, probe: Probe[E]) -> list[tuple[int, E]]:
    """Find the bad rows among `count` that were refused together: the place of each, and what was said about it.

    `probe(start, stop)` applies these rows and gives None, or applies none of them and gives the error. Each good row
    is applied once, in order. For k bad rows that takes about k·log₂(count/k) + 2k probes. Where rows were refused
    together that are taken one by one, none of them is bad.
    """
    found: list[tuple[int, E]] = []
    start, error = _first(0, count, None, probe) if count else (0, None)
    apart = start  # how far the next bad row is expected, by the distances so far
    while True:
        if error is not None:
            before = found[-1][0] + 1 if found else 0
            apart = (apart + start - before) // 2
            found.append((start - 1, error))
        reach = max(apart, 1)
        while start < count and (error := probe(start, min(start + reach, count))) is None:
            start = min(start + reach, count)
            reach *= 2
        if start == count:
            return found
        start, error = _first(start, min(start + reach, count), error, probe)


def _first(start: int, stop: int, error: E | None, probe: Probe[E]) -> tuple[int, E | None]:
    """The place behind the first bad row of a refused range, and the error of that row; None where it is not bad.

    A half that was taken leaves the fault in the other one, which need not be asked.
    """
    alone = stop - start == 1 and error is not None
    while stop - start > 1:
        middle = (start + stop) // 2
        said = probe(start, middle)
        if said is None:
            start, alone = middle, False
        else:
            stop, error, alone = middle, said, middle - start == 1
    return stop, error if alone else probe(start, stop)
