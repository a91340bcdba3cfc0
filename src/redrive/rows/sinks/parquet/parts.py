"""The files of a Parquet dataset: what each holds by its footer, and which rows of it have given keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from redrive._internal.optional import require_extra
from redrive.errors import SinkMismatch
from redrive.rows.sinks.parquet.columns import conformed
from redrive.rows.sinks.parquet.values import has_nulls, merged, plain_schema

with require_extra("rows"):
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyarrow import types

Range = tuple[Any, Any]

_ROW = "number of the row"


class DatasetFile(NamedTuple):
    """One file."""

    name: str
    stamp: tuple[int, int, int]
    """What distinguishes it from a file that replaced it."""
    schema: pa.Schema
    ranges: dict[str, Range]
    """The smallest and the largest value of key columns, if the footer has them."""


class BatchKeys:
    """The keys of a batch."""

    def __init__(self, table: pa.Table) -> None:
        self._schema = table.schema
        self._frame = _frame(table)
        self._ranges = {name: _smallest_and_largest(table.column(name)) for name in table.column_names}

    @property
    def columns(self) -> list[str]:
        """Their columns."""
        return list(self._schema.names)

    def may_be_in(self, part: DatasetFile) -> bool:
        """Return whether the file could hold one of them, by its footer."""
        return all(_overlap(part.ranges.get(name), result) for name, result in self._ranges.items())

    def others(self, table: pa.Table) -> Any:
        """Return the numbers of the rows that have none of these keys."""
        rows = _frame(conformed(table, self._schema)).with_row_index(_ROW)
        left = rows.join(self._frame, on=self.columns, how="anti", maintain_order="left")
        return left.get_column(_ROW).to_arrow()


class DatasetFiles:
    """The files that are there, known since they were last looked at."""

    def __init__(self, path: Path, key: tuple[str, ...]) -> None:
        self._path = path
        self._key = key
        self._parts: dict[str, DatasetFile] = {}
        self.schema: pa.Schema | None = None

    def look(self) -> None:
        """See which files there are; only the footers of new ones are read."""
        known, result = self._parts, {}
        for name, stamp in self._files():
            part = known.get(name)
            result[name] = part if part is not None and part.stamp == stamp else self._read(name, stamp)
        self._parts, self.schema = result, self._schema_of(result)

    def exist(self) -> bool:
        """Return whether there are any."""
        return bool(self._files())

    def forget(self) -> None:
        """Know nothing."""
        self._parts, self.schema = {}, None

    def named(self, name: str) -> DatasetFile | None:
        """Return the file of this name."""
        return self._parts.get(name)

    def others(self, name: str) -> list[DatasetFile]:
        """Return all files but the one of this name."""
        return [part for part in self._parts.values() if part.name != name]

    def hold(self, part: DatasetFile, keys: BatchKeys) -> bool:
        """Return whether a file holds one of these keys."""
        if not keys.may_be_in(part):
            return False
        return any(len(keys.others(piece)) < piece.num_rows for piece in self._read_pieces(part, keys.columns))

    def without(self, part: DatasetFile, keys: BatchKeys) -> Iterator[pa.Table]:
        """The rows of a file that have none of these keys, piece by piece."""
        for piece in self._read_pieces(part, None):
            yield piece.take(keys.others(piece))

    def _files(self) -> list[tuple[str, tuple[int, int, int]]]:
        try:
            with os.scandir(self._path) as entries:
                result = [
                    (entry.name, entry.stat())
                    for entry in entries
                    if entry.name.endswith(".parquet") and not entry.name.startswith((".", "_")) and entry.is_file()
                ]
        except FileNotFoundError:
            return []
        return sorted((name, (stat.st_ino, stat.st_size, stat.st_mtime_ns)) for name, stat in result)

    def _read(self, name: str, stamp: tuple[int, int, int]) -> DatasetFile:
        try:
            with pa.OSFile(str(self._path / name)) as data:
                file = pq.ParquetFile(data)
                schema, metadata = plain_schema(file.schema_arrow), file.metadata
        except (pa.ArrowInvalid, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise SinkMismatch(f"{self._path / name} is not a Parquet file, or not a whole one: {error}") from error
        missing = [column for column in self._key if column not in schema.names]
        if missing:
            raise SinkMismatch(f"{self._path / name} has no {', '.join(missing)}, which its rows should be known by")
        ranges = {column: _range(metadata, column, schema.field(column).type) for column in self._key}
        return DatasetFile(
            name, stamp, schema, {column: result for column, result in ranges.items() if result is not None}
        )

    def _schema_of(self, parts: dict[str, DatasetFile]) -> pa.Schema | None:
        result: dict[str, Any] = {}
        for part in parts.values():
            for field in part.schema:
                has = result.setdefault(field.name, field.type)
                exact = has == field.type or has_nulls(has) or has_nulls(field.type)
                kind = (merged(has, field.type) or merged(field.type, has)) if exact else None
                if kind is None:
                    raise SinkMismatch(
                        f"{self._path} is not of one kind: {part.name} holds {field.name!r} as {field.type}, "
                        f"other files as {has}"
                    )
                result[field.name] = kind
        return pa.schema(list(result.items())) if parts else None

    def _read_pieces(self, part: DatasetFile, columns: list[str] | None) -> Iterator[pa.Table]:
        with closing(pa.OSFile(str(self._path / part.name))) as data:
            file = pq.ParquetFile(data, pre_buffer=False)
            for group in range(file.num_row_groups):
                piece = file.read_row_group(group, columns=columns)
                yield piece if columns is None else piece.select(columns)


def require_plain_keys(keys: pa.Schema) -> None:
    """Raise where a key column holds lists or objects."""
    for field in keys:
        if types.is_nested(field.type):
            raise SinkMismatch(f"column {field.name!r} is {field.type}, and a key is a plain value")


def is_vague(part: DatasetFile, schema: pa.Schema) -> bool:
    """Return whether the file was written when some type was not known yet, so that readers take it for another."""
    return any(has_nulls(field.type) and field.type != schema.field(field.name).type for field in part.schema)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _smallest_and_largest(column: pa.ChunkedArray) -> Range | None:
    try:
        result = pc.min_max(column)
        return result["min"].as_py(), result["max"].as_py()
    except (pa.ArrowException, ValueError):  # a type without an order, or finer than Python's
        return None


def _range(metadata: Any, column: str, kind: pa.DataType) -> Range | None:
    """From the statistics of the row groups; None if some have none, or they leave something out, as NaN."""
    if types.is_floating(kind):
        return None
    names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    if column not in names:
        return None
    place = names.index(column)
    smallest, largest = [], []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        try:
            smallest.append(statistics.min)
            largest.append(statistics.max)
        except ValueError:  # a text that was cut in the middle of a character, nanoseconds
            return None
    return (min(smallest), max(largest)) if smallest else None


def _overlap(first: Range | None, other: Range | None) -> bool:
    """Return whether two ranges touch; what is not known may be anything."""
    if first is None or other is None:
        return True
    try:
        return bool(first[0] <= other[1] and other[0] <= first[1])
    except TypeError:
        return True
