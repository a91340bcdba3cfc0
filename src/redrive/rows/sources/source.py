"""The protocols of a source. The docstrings are the contract; one test suite runs over every source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from redrive.rows.batch import Batch, Record


class Reading(Protocol):
    """A source that is being read from a position to its end."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that every row has, if they are known before the first row is read."""

    @property
    def total(self) -> int | None:
        """The size of the whole source in the units of `Batch.done`, if it is known."""

    def read(self, most: int) -> Batch | None:
        """Return the next rows, `most` of them at most; None at the end.

        Data that cannot be read is returned as `Unreadable`, and reading continues after it. A batch may have no row at
        all, only that. An error that makes all further reading impossible is raised: a `SourceError` if an operator
        must act, or an error that `redrive.classify` knows to be transient.
        """

    def close(self) -> None:
        """Close files and connections; may be called twice."""


class Source(Protocol):
    """Where rows come from. Reading it again from a position gives the same rows from there on.

    After a transient error of reading, a run opens the source again at its position and retries. A source that retries
    by itself, or that cannot be opened twice, has an attribute `retries_reading = False`.
    """

    name: str
    """The name in letters and reports."""

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this source from another, as JSON. Stored with the checkpoint when a run starts."""

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        """Return why a checkpoint taken over `identity` cannot be used here, as a clause; None if it can."""

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> Reading:
        """Begin at `position`, the `next` of a batch, or at the start. `identity` is the one the run began with."""

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record | list[Record]:
        """Return the row, or rows, of data that was unreadable; raise an error if it still is.

        A record is returned as it is.

        Args:
            raw: the data of an `Unreadable`, or what an operator changed it to.
            context: the `Unreadable.context` that was stored with it; None for a letter of an older version.
        """


Misfit = Callable[[Sequence[str]], str | None]
"""Returns why rows of these columns cannot be validated or written; None if they can, or if that is not known."""


@runtime_checkable
class SetsFilesAside(Protocol):
    """A source of files with columns. One of several that does not fit is set aside, and the others are read."""

    def open_fitting(self, position: Any | None, identity: Mapping[str, Any], misfit: Misfit) -> Reading:
        """Like `Source.open`. Where no file fits, none is set aside for it: the run meets the error."""


@dataclass(frozen=True, slots=True)
class Secret:
    """An option of which only a digest may be stored."""

    value: Any


@runtime_checkable
class ComparesOptions(Protocol):
    """A source with options by which other rows, or other values, would be read from the same position.

    A checkpoint is not used where they have changed. What makes no difference to the rows, and what an operator changes
    to read rows that became letters, is no part of them.
    """

    def compared_options(self) -> Mapping[str, Any]:
        """Return these options by name: values that JSON can hold, `Secret`, or a mapping of such."""


@runtime_checkable
class Incremental(Protocol):
    """A source of which a new run reads only new rows, by a watermark; a run over a file reads all rows."""

    def start_of_next_run(self, position: Any) -> Any:
        """Return where a new run begins after one that ended at `position`."""


@runtime_checkable
class Replaceable(Protocol):
    """A source whose input may be another one under the same name, as a list or an API.

    An unfinished run resumes only over the same input; over other input a new run starts, and reports why.
    """

    def look(self) -> None:
        """Read the first items, and keep them for the next `open`. Called where a run is not finished."""

    def changed(self, identity: Mapping[str, Any], position: Any) -> str | None:
        """Return why the input is not the one of a checkpoint, as a clause; None if it is.

        Raises what kept the first items from being read, where nothing is known about the input.
        """

    def forget(self) -> None:
        """Close what was opened and no reading has taken over; may be called twice."""
