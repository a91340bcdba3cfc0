"""The data of a pipeline: rows as received from a source, rows for the sink, and rejected rows.

Sources, validators, transforms and sinks exchange these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redrive.model.letters import ErrorType

if TYPE_CHECKING:
    import polars as pl

Record = dict[str, Any]


class Received:
    """The rows of a batch, exactly as the source has them: a frame or a list of records.

    Each is converted into the other on first use: a vectorised validator reads a frame, a function reads records.
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
        """All columns, in the order of their first row."""
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
        """The types of the source's columns that contain a map."""
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
        """Return one row, as received."""
        if self._records is not None:
            return self._records[place]
        from redrive.rows.to_polars import records_of

        return records_of(self.frame.slice(place, 1))[0]

    def slice(self, start: int, length: int) -> Received:
        """Return `length` rows from `start`."""
        if self._records is not None:
            return Received(self._records[start : start + length])
        return Received(self.frame.slice(start, length))


@dataclass(slots=True)
class Unreadable:
    """A piece of the source that cannot be read as a row; it is quarantined as it is."""

    raw: Any
    """The piece as received: the bytes of a line, the body of a page."""
    error: str | BaseException
    position: str
    error_type: ErrorType = ErrorType.PARSE
    rows: int = 1
    """How many rows the piece counts as in the rate of rejected rows."""
    context: Mapping[str, Any] | None = None
    """What the source needs to read it again, as JSON, such as the header of a CSV line; stored with the letter."""


@dataclass(slots=True)
class Batch:
    """The rows that a source returns at a time; all of them from one file or table."""

    rows: Received
    position_of: Callable[[int], str]
    """Return where a row of this batch was in the source: "line 18"."""
    next: Any
    """Where the following batch begins, as JSON: a checkpoint."""
    source: str
    """The file, table or service, as a letter names it."""
    unreadable: list[Unreadable] = field(default_factory=list)
    done: int = 0
    """How much of the source has been read at the end of this batch, in the source's own units."""

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches of half the size. Only the second batch moves the checkpoint."""
        middle, position_of = len(self.rows) // 2, self.position_of
        first = Batch(self.rows.slice(0, middle), position_of, None, self.source, self.unreadable, self.done)
        rest = self.rows.slice(middle, len(self.rows) - middle)
        return first, Batch(rest, lambda place: position_of(middle + place), self.next, self.source, [], self.done)


class Outgoing:
    """Rows on their way to the sink, validated and transformed: a frame, or tuples.

    origin  the place of each row in its batch, so that a row that the sink rejects is quarantined as received
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
        """Whether the source has only text, as CSV has, so that a text may stand for a number or for JSON."""
        self.digits = digits or {}
        """By column: the maximum number of digits of its decimals, and of decimal places, if the model defines them."""
        self.maps = maps or {}
        """By column: its type in the source, if that contains a map. In a record, a map is an object."""
        self.keys = keys
        """The key columns as the sink compares them; None if it compares the values of the rows themselves."""
        self._frame = frame
        self._tuples = tuples

    @classmethod
    def of_frame(cls, frame: pl.DataFrame, origin: Sequence[int]) -> Outgoing:
        """Return the rows of a frame."""
        return cls(frame.columns, origin, frame=frame)

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]], origin: Sequence[int]) -> Outgoing:
        """Return the rows of records; a column that a record lacks is None there."""
        columns = tuple(dict.fromkeys(name for record in records for name in record))
        return cls(columns, origin, tuples=[tuple(map(record.get, columns)) for record in records], loose=True)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def keyed(self) -> Outgoing:
        """The rows with the key columns as the sink compares them."""
        return self if self.keys is None else self.keys

    @property
    def as_frame(self) -> pl.DataFrame | None:
        """The rows as a frame; None if they are tuples."""
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
        """Return the values of a column."""
        if self._frame is not None:
            from redrive.rows.to_polars import values_of

            return values_of(self._frame.get_column(column))
        place = self.columns.index(column)
        return [row[place] for row in self.tuples]

    def records(self) -> list[Record]:
        """Return the rows as records."""
        if self._frame is not None:
            from redrive.rows.to_polars import records_of

            return records_of(self._frame)
        return [dict(zip(self.columns, row, strict=True)) for row in self.tuples]

    def slice(self, start: int, length: int) -> Outgoing:
        """Return `length` rows from `start`."""
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
        """Return the rows at these places."""
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
        """Return the rows with exactly these columns; a column that they lack is None."""
        if tuple(columns) == self.columns:
            return self
        empty_column = [None] * len(self)
        values = [self.values(name) if name in self.columns else empty_column for name in columns]
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
    """A rejected row: its place among the rows that were passed in, and why it was rejected."""

    place: int
    error: str | BaseException
    error_type: ErrorType
    keyed: bool = True
    """Whether the key identifies the row. False for copies of a key, which are letters of their own."""
    batch: Sequence[Record] = ()
    """In a replay: all rows of the batch, if the error is one of the whole batch."""
