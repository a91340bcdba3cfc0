"""What travels through a pipeline: rows as they were received, and rows as they are to be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redrive.model.letters import ErrorType

if TYPE_CHECKING:
    import polars as pl

Record = dict[str, Any]


class Received:
    """The rows of a batch, exactly as the source has them: a frame or a list of records, whichever the source makes.

    Each is made of the other where it is asked for: a vectorised check wants a frame, a function wants records.
    """

    __slots__ = ("_frame", "_records", "is_frame")

    def __init__(self, rows: pl.DataFrame | Sequence[Record]) -> None:
        self._frame: pl.DataFrame | None = None
        self._records: Sequence[Record] | None = None
        self.is_frame = not isinstance(rows, Sequence)
        """Whether the source made a frame, so that every row has the same columns."""
        if isinstance(rows, Sequence):
            self._records = rows
        else:
            self._frame = rows

    def __len__(self) -> int:
        return len(self._records) if self._records is not None else self.frame.height

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column, in the order in which they come up."""
        if self._frame is not None:
            return tuple(self._frame.columns)
        return tuple(dict.fromkeys(name for record in self._records or () for name in record))

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a frame."""
        if self._frame is None:
            from redrive.rows.to_polars import of_records

            self._frame = of_records(self._records or ())
        return self._frame

    @property
    def maps(self) -> dict[str, Any]:
        """The types of the source's columns that have a map in them."""
        if not self.is_frame:
            return {}
        return {name: dtype for name, dtype in self.frame.schema.items() if "Map(" in repr(dtype)}

    @property
    def records(self) -> Sequence[Record]:
        """The rows as records."""
        if self._records is None:
            from redrive.rows.to_polars import records_of

            self._records = records_of(self.frame)
        return self._records

    def record(self, place: int) -> Record:
        """One row, as it was received."""
        if self._records is not None:
            return self._records[place]
        from redrive.rows.to_polars import records_of

        return records_of(self.frame.slice(place, 1))[0]

    def slice(self, start: int, length: int) -> Received:
        """Some of the rows."""
        if self._records is not None:
            return Received(self._records[start : start + length])
        return Received(self.frame.slice(start, length))


@dataclass(slots=True)
class Unreadable:
    """A piece of the source that is no row: it goes to the quarantine as it is."""

    raw: Any
    """As it was received: the bytes of a line, the body of a page."""
    error: str | BaseException
    position: str
    error_type: ErrorType = ErrorType.PARSE
    rows: int = 1
    """How many rows it counts as in the rate of rejected rows."""
    context: Mapping[str, Any] | None = None
    """What the source needs to read it again, as JSON, such as the header of a CSV line; stored with the letter."""


@dataclass(slots=True)
class Batch:
    """What a source hands out at a time; all of one file or table."""

    rows: Received
    position_of: Callable[[int], str]
    """Where a row of this batch stood: "line 18"."""
    next: Any
    """Where the following batch begins, as JSON: a checkpoint."""
    source: str
    """The file, table or service, as a letter names it."""
    unreadable: list[Unreadable] = field(default_factory=list)
    done: int = 0
    """How much of the source has been read when this batch has been, in the source's own units."""

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches of half the size. Only the second one moves the checkpoint."""
        middle, whole = len(self.rows) // 2, self.position_of
        first = Batch(self.rows.slice(0, middle), whole, None, self.source, self.unreadable, self.done)
        rest = self.rows.slice(middle, len(self.rows) - middle)
        return first, Batch(rest, lambda place: whole(middle + place), self.next, self.source, [], self.done)


class Outgoing:
    """Rows that passed every check, as the sink is to have them: a frame, or tuples.

    origin  the place of each row in its batch, so that a row the sink refuses is quarantined as it was received
    """

    __slots__ = ("_frame", "_tuples", "columns", "digits", "keys", "loose", "maps", "of_text", "origin")

    def __init__(
        self,
        columns: Sequence[str],
        origin: Sequence[int],
        *,
        frame: pl.DataFrame | None = None,
        tuples: Sequence[tuple[Any, ...]] | None = None,
        loose: bool = False,
        digits: Mapping[str, tuple[int, int]] | None = None,
        of_text: bool = False,
        keys: Outgoing | None = None,
        maps: Mapping[str, Any] | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self.origin = origin
        self.loose = loose
        """Whether other batches may have other columns, as records do."""
        self.of_text = of_text
        """Whether the source has nothing but text, as CSV, so that a text may stand for a number or for JSON."""
        self.digits = digits or {}
        """By column: how many digits its decimals have at most, and how many of them behind the point, where the model
        of the rows says so."""
        self.maps = maps or {}
        """By column: the type that it has in the source, where that has a map in it, which a record shows as an
        object."""
        self.keys = keys
        """The key of each row as the sink compares it, where that is not how the rows have it."""
        self._frame = frame
        self._tuples = tuples

    @classmethod
    def of_frame(cls, frame: pl.DataFrame, origin: Sequence[int]) -> Outgoing:
        """Rows that are a frame."""
        return cls(frame.columns, origin, frame=frame)

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]], origin: Sequence[int]) -> Outgoing:
        """Rows that are records; a column that a record lacks is None there."""
        columns = tuple(dict.fromkeys(name for record in records for name in record))
        return cls(columns, origin, tuples=[tuple(map(record.get, columns)) for record in records], loose=True)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def keyed(self) -> Outgoing:
        """Rows whose key columns compare as the sink compares them."""
        return self if self.keys is None else self.keys

    @property
    def as_frame(self) -> pl.DataFrame | None:
        """The rows as a frame, where they are one."""
        return self._frame

    @property
    def tuples(self) -> Sequence[tuple[Any, ...]]:
        """The rows as tuples, in the order of `columns`."""
        if self._tuples is None:
            from redrive.rows.to_polars import rows_of

            assert self._frame is not None
            self._tuples = rows_of(self._frame)
        return self._tuples

    def values(self, column: str) -> Sequence[Any]:
        """One column."""
        if self._frame is not None:
            from redrive.rows.to_polars import values_of

            return values_of(self._frame.get_column(column))
        place = self.columns.index(column)
        return [row[place] for row in self.tuples]

    def records(self) -> list[Record]:
        """The rows as records."""
        if self._frame is not None:
            from redrive.rows.to_polars import records_of

            return records_of(self._frame)
        return [dict(zip(self.columns, row, strict=True)) for row in self.tuples]

    def slice(self, start: int, length: int) -> Outgoing:
        """Some of the rows, one after the other."""
        return Outgoing(
            self.columns,
            self.origin[start : start + length],
            frame=None if self._frame is None else self._frame.slice(start, length),
            tuples=None if self._tuples is None else self._tuples[start : start + length],
            loose=self.loose,
            digits=self.digits,
            maps=self.maps,
            of_text=self.of_text,
            keys=None if self.keys is None else self.keys.slice(start, length),
        )

    def take(self, places: Sequence[int]) -> Outgoing:
        """The rows at these places."""
        return Outgoing(
            self.columns,
            [self.origin[place] for place in places],
            frame=None if self._frame is None else self._frame[list(places)],
            tuples=None if self._tuples is None else [self._tuples[place] for place in places],
            loose=self.loose,
            digits=self.digits,
            maps=self.maps,
            of_text=self.of_text,
            keys=None if self.keys is None else self.keys.take(places),
        )

    def onto(self, columns: Sequence[str]) -> Outgoing:
        """The rows with these columns: None for what they lack, and nothing else."""
        if tuple(columns) == self.columns:
            return self
        nothing = [None] * len(self)
        values = [self.values(name) if name in self.columns else nothing for name in columns]
        tuples = list(zip(*values, strict=True)) if values else [()] * len(self)
        return Outgoing(
            columns,
            self.origin,
            tuples=tuples,
            loose=self.loose,
            digits=self.digits,
            maps=self.maps,
            of_text=self.of_text,
            keys=self.keys,
        )


@dataclass(slots=True)
class Refused:
    """A row that is bad: its place among the rows it was judged with, and why."""

    place: int
    error: str | BaseException
    error_type: ErrorType
    keyed: bool = True
    """Whether its key tells it from other rows: copies of one key are letters of their own."""
    batch: Sequence[Record] = ()
    """In a replay: the rows that it was refused with, for an error of all of them."""
