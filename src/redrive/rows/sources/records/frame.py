"""Rows of a frame: polars, pandas, an Arrow table, or whatever else gives its columns by Arrow's C interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from redrive._internal.optional import require_extra
from redrive.classify.type_names import type_names
from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record
from redrive.rows.sources.records.first_items import FirstItems, difference_of, difference_of_declared, digest_of

if TYPE_CHECKING:
    import polars as pl

_LONGEST = 38  # digits of a decimal of polars
# These give columns by the same interface, or can be iterated, and hold no rows.
_NO_ROWS = {
    "polars.Series": "a polars Series",
    "pandas.Series": "a pandas Series",
    "pyarrow.Array": "an Arrow array",
    "pyarrow.ChunkedArray": "an Arrow array",
    "numpy.ndarray": "a numpy array",
}


class ArrowStream(Protocol):
    """A frame of any library that has Arrow's C interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the capsule that holds the stream."""


def frame_of(value: Any) -> pl.DataFrame | None:
    """Return the frame that a value is, as polars has it; None if it is none.

    Raises `TypeError` for what looks like a frame and holds no rows that could be read.
    """
    names = type_names(type(value))
    if "polars.LazyFrame" in names:
        raise TypeError("records takes a frame that is there, not a LazyFrame: call collect() on it first")
    for name, words in _NO_ROWS.items():
        if name in names:
            raise TypeError(f"records takes many mappings or a frame, not {words}: make a frame of it, with a name")
    is_pandas = "pandas.DataFrame" in names
    if not is_pandas and not hasattr(type(value), "__arrow_c_stream__"):
        return None
    with require_extra("rows"):
        import polars as pl
    try:
        if is_pandas and not hasattr(type(value), "__arrow_c_stream__"):
            return pl.from_pandas(value)
        return value if isinstance(value, pl.DataFrame) else _of_stream(value)
    except Exception as error:
        raise TypeError(f"records cannot read this {type(value).__name__} as a frame: {error}") from error


def _of_stream(value: Any) -> pl.DataFrame:
    """Return the frame of any library that has Arrow's C interface."""
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]

    from redrive.rows.sources.parquet.rows import uuid_text

    stream = pa.RecordBatchReader.from_stream(value)
    uuids = [field.name for field in stream.schema if isinstance(field.type, pa.UuidType)]
    for field in stream.schema:
        if field.name not in uuids and _is_within(field.type, lambda kind: isinstance(kind, pa.UuidType)):
            raise TypeError(f"{field.name} has UUIDs within it, and a frame would have their bytes: make texts of them")
        if _is_within(field.type, lambda kind: pa.types.is_interval(kind) or pa.types.is_union(kind)):
            raise TypeError(f"{field.name} is of type {field.type}, which no frame has: cast it to text, or drop it")
    return pl.DataFrame(_narrowed(stream)).with_columns(*map(uuid_text, uuids))


def _narrowed(stream: Any) -> Any:
    """Return the frame with types that polars has for what it would change, or panic over.

    Decimals of more than 38 digits are decimals of 38 where all values of the column have no more, and texts otherwise.
    A date64 is a date.
    """
    import pyarrow as pa

    from redrive.rows.sources.parquet.unfit_values import changed_type

    def narrow(kind: Any) -> Any:
        if pa.types.is_date64(kind):
            return pa.date32()
        return pa.decimal128(_LONGEST, kind.scale) if pa.types.is_decimal256(kind) else kind

    def text(kind: Any) -> Any:
        return pa.string() if pa.types.is_decimal256(kind) else narrow(kind)

    def is_changed(kind: Any) -> bool:
        return bool(pa.types.is_date64(kind) or pa.types.is_decimal256(kind))

    changed = [place for place, field in enumerate(stream.schema) if _is_within(field.type, is_changed)]
    if not changed:
        return stream
    table = stream.read_all()
    for place in changed:
        field, column = table.schema.field(place), table.column(place)
        try:
            column = column.cast(changed_type(field.type, narrow))
        except (pa.ArrowException, ValueError):
            column = column.cast(changed_type(field.type, text))
        table = table.set_column(place, field.name, column)
    return table


def _is_within(kind: Any, is_meant: Callable[[Any], bool]) -> bool:
    """Return whether a type, or one that it is made of, is one that is meant."""
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return is_meant(kind) or any(_is_within(item, is_meant) for item in inner)


class FrameRecords:
    """See `Source` and `Replaceable`."""

    def __init__(self, frame: pl.DataFrame, name: str, identity: str | None) -> None:
        self.name = name
        self._frame = frame
        self._declared = identity

    def __repr__(self) -> str:
        return f"<records {self.name!r}, a frame of {self._frame.height:,} rows>"

    def identity(self) -> dict[str, Any]:
        known = {"kind": "records", "name": self.name}
        return (
            {**known, "declared": self._declared} if self._declared is not None else {**known, "first": self._first()}
        )

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        if identity.get("kind") == "records" and identity.get("name") == self.name:
            return None
        return f"it was taken over {identity.get('kind')} {identity.get('name')!r}, not over records {self.name!r}"

    def look(self) -> None:
        """Nothing to read: the frame is there."""

    def changed(self, identity: Mapping[str, Any], position: Any) -> str | None:
        if self._declared is not None or identity.get("declared") is not None:
            return difference_of_declared(identity, self._declared)
        return difference_of(identity.get("first"), self._first(), "records")

    def forget(self) -> None:
        """Nothing was opened."""

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> FrameReading:
        start = 0 if position is None else int(position["row"])
        if start > self._frame.height:
            raise SourceError(f"{self.name} has {self._frame.height:,} rows, and the checkpoint is at row {start:,}")
        last = None if position is None or self._declared is not None else position.get("last")
        if start and last is not None and digest_of(self._frame.row(start - 1, named=True)) != last:
            raise SourceError(
                f"row {start:,} of {self.name} is not the row that the checkpoint was taken at: other records cannot "
                "be resumed; start over with run(restart=True) or `redrive run --restart`"
            )
        return FrameReading(self._frame, self.name, start)

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record:
        if not isinstance(raw, Mapping):
            raise TypeError(f"a record is a mapping, not a {type(raw).__name__}")
        return dict(raw)

    def _first(self) -> dict[str, Any]:
        first_items = FirstItems()
        for row in self._frame.iter_rows(named=True):
            if first_items.is_enough:
                break
            first_items.add(row)
        return first_items.document(length=self._frame.height)


class FrameReading:
    """See `Reading`."""

    def __init__(self, frame: pl.DataFrame, name: str, start: int) -> None:
        self.columns: tuple[str, ...] | None = tuple(frame.columns)
        self.total: int | None = frame.height
        self._frame = frame
        self._name = name
        self._read = start

    def read(self, most: int) -> Batch | None:
        first, rows = self._read, self._frame.slice(self._read, most)
        if not rows.height:
            return None
        self._read += rows.height
        position = {"row": self._read, "last": digest_of(rows.row(-1, named=True))}
        return Batch(Received(rows), lambda place: f"row {first + place + 1}", position, self._name, done=self._read)

    def close(self) -> None:
        """Nothing is open."""
