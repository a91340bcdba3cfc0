"""What a source is. The docstrings are the contract; one suite runs over every source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from redrive.rows.batch import Batch, Record


class Reading(Protocol):
    """A source that was opened at a position, on its way to its end."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that every row has, where that is known before the first row is read."""

    @property
    def total(self) -> int | None:
        """The size of the whole source in the units of `Batch.done`, where it is known."""

    def read(self, most: int) -> Batch | None:
        """The next rows, `most` of them at most; None at the end.

        What cannot be read is no reason to raise: it is handed out as `Unreadable`, and the reading goes on behind it.
        A batch may hold no row at all, only that. What makes all further reading impossible is raised: a `SourceError`
        where a person must act, an error that `redrive.classify` knows to be transient where it may heal.
        """

    def close(self) -> None:
        """Let go of files and connections; may be called twice."""


class Source(Protocol):
    """Where rows come from. Reading it again from a position gives the same rows from there on.

    After a transient error of reading, a run opens the source again at its position and retries. A source that retries
    by itself, or that cannot be opened twice, says so by an attribute `retries_reading = False`.
    """

    name: str
    """As a person knows it; letters and reports show it."""

    def identity(self) -> dict[str, Any]:
        """What tells this source from another, as JSON. Kept with the checkpoint when a run begins."""

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        """Why a checkpoint taken over `identity` cannot be used here, as a clause; None where it can."""

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> Reading:
        """Begin at `position`, the `next` of a batch, or at the start. `identity` is the one the run began with."""

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record | list[Record]:
        """The row, or rows, of something that was unreadable; raises what is wrong with it where it still is.

        A record is given back as it is.

        Args:
            raw: what an `Unreadable` held, or what an operator made of it.
            context: the `Unreadable.context` that was stored with it; None for a letter of an older version.
        """


Misfit = Callable[[Sequence[str]], str | None]
"""Says why rows of these columns cannot be checked or written, as a sentence; None where they can, or nobody knows."""


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
    """A source of which a new run reads only what came since the last one, as by a watermark; a file begins anew."""

    def start_of_next_run(self, position: Any) -> Any:
        """Where a new run begins behind one that ended at `position`."""


@runtime_checkable
class Replaceable(Protocol):
    """A source whose input may be another one under the same name, as a list or an API.

    A run that is not finished resumes only over the same input; over another one a new run starts, and says so.
    """

    def look(self) -> None:
        """Read the first items, and keep them for the next `open`. Called where a run is not finished."""

    def changed(self, identity: Mapping[str, Any], position: Any) -> str | None:
        """Return why the input is not the one of a checkpoint, as a clause; None where it is.

        Raises what kept the first items from being read, where nothing is known about the input.
        """

    def forget(self) -> None:
        """Close what was opened and no reading has taken over; may be called twice."""
