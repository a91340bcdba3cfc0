"""The footer of a Parquet file: its schema and row groups, and whether it is sound.

Arrow ends the process if the metadata of a column is requested and damaged, and polars uses parts that it does not
check. So the footer is checked first: reading the column raises an error before a byte of it is read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Container, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from redrive._internal.optional import require_extra
from redrive.errors import SourceError
from redrive.rows.sources.csv.header import unique_names
from redrive.rows.sources.files.identity import content
from redrive.rows.sources.files.unfit_files import is_odd

with require_extra("rows"):
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]


def footer_fault(metadata: Any, group: int) -> str | None:
    """Return what is wrong with the metadata of a row group; None if it is sound."""
    for place in range(metadata.num_columns):
        file = pq.ParquetFile(pa.PythonFile(_NoFile(), "r"), metadata=metadata)
        try:
            next(file.iter_batches(1, row_groups=[group], columns=[metadata.schema.column(place).path]), None)
        except _Reached:
            continue
        except (pa.ArrowException, OSError, UnicodeError) as error:
            return str(error)
    return None


def check_names(schema: Any) -> None:
    """Raise UnicodeDecodeError where a name is not UTF-8, or metadata within a column, over which polars panics."""
    for field in schema:
        _check_names(field.type)


def _check_names(kind: Any) -> None:
    getattr(kind, "tz", None)  # decodes it
    for place in range(kind.num_fields):
        field = kind.field(place)
        for text in (field.name.encode(), *(part for item in (field.metadata or {}).items() for part in item)):
            text.decode()
        _check_names(field.type)


class _Reached(Exception):
    """Bytes of a column were asked for."""


class _NoFile(io.RawIOBase):
    """A file of any size, of which no byte can be read."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset

    def tell(self) -> int:
        return 1 << 62

    def read(self, size: int = -1) -> bytes:
        raise _Reached


_SAMPLES = 256

_REPLACE = "Replace the file by a whole one"


class ParquetFooter(NamedTuple):
    """The schema and the size of a file."""

    name: str
    columns: tuple[str, ...]
    """Those that are wanted."""
    rows: int
    whole: bool
    """Whether they are all there are."""
    renamed: tuple[str, ...] | None = None
    """What all columns are called here, where one of them has no name."""
    odd: SourceError | None = None
    """Why the file is set aside."""
    version: os.stat_result | None = None
    """The file as it was when the footer was read."""


def read_footer(name: str, columns: tuple[str, ...] | None, *, besides: Container[str] = ()) -> ParquetFooter:
    """Read the footer of a file; of the requested `columns` it may lack those that are `besides`."""
    try:
        version = os.stat(name)
        with open_bytes(name) as data:
            file = pq.ParquetFile(data)
            names, rows = file.schema_arrow.names, file.metadata.num_rows
            check_names(file.schema_arrow)
            of_groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    except FileNotFoundError:
        raise SourceError(f"there is no file {name}") from None
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise
        raise SourceError(f"{name} is not a Parquet file, or not a whole one: {first_line(error)}") from error
    except UnicodeDecodeError:
        raise SourceError(f"{name} has a damaged footer: a name in it is not UTF-8. {_REPLACE}") from None
    if sum(of_groups) != rows or min(of_groups, default=0) < 0:
        raise SourceError(
            f"{name} has a damaged footer: {rows:,} rows, and {sum(of_groups):,} in row groups. {_REPLACE}"
        )
    for column in names:
        if names.count(column) > 1:
            raise SourceError(f"{name} has the column {column} twice")
    renamed = unique_names(names) if "" in names else None  # as the columns of a CSV file are
    names = renamed or names
    if columns is not None:
        columns = tuple(column for column in columns if column in names or column not in besides)
        if not columns:
            raise SourceError(f"columns must name one that is in {name} itself, such as {names[0]}")
    for column in columns or ():
        if column not in names:
            raise SourceError(f"{name} has no column {column}; its columns are {', '.join(names)}")
    return ParquetFooter(name, columns or tuple(names), rows, columns is None, renamed, version=version)


def is_damage(error: BaseException) -> bool:
    """Return whether an error is the fault of a file, not of the disk or of the memory."""
    return not isinstance(error, MemoryError) and getattr(error, "errno", None) is None


def check_row_group(name: str, metadata: Any, group: int) -> None:
    if fault := footer_fault(metadata, group):
        raise SourceError(f"{name} has a damaged footer: {first_line(fault)}. {_REPLACE}")


def identity_without(name: str, metadata: Any, damaged: Sequence[int]) -> dict[str, Any]:
    """Return the identity of a file, without its damaged row groups."""
    size = os.stat(name).st_size
    ranges = [_bytes_of_group(metadata, group) for group in damaged]
    return {
        "size": size,
        "footer": _footer_digest(name),
        "rest": content(name, size, samples=_SAMPLES, without=ranges),
    }


def _bytes_of_group(metadata: Any, group: int) -> tuple[int, int]:
    columns = [metadata.row_group(group).column(place) for place in range(metadata.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    ends = [start + item.total_compressed_size for start, item in zip(starts, columns, strict=True)]
    return min(starts, default=0), max(ends, default=0)


def _footer_digest(name: str) -> str:
    """Digest the footer, which holds sizes, places and statistics of all row groups."""
    with open(name, "rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return blake2b(file.read(length), digest_size=16).hexdigest()


def check_same_file(raw: Mapping[str, Any], context: Mapping[str, Any] | None) -> None:
    """Raise ValueError unless the file is the one of which a row group was damaged."""
    name, expected = raw["file"], (context or {}).get("file")
    if not isinstance(expected, Mapping):
        raise ValueError(
            f"the letter does not identify {name}, because an older version wrote it: run the pipeline over "
            "the file of that day, then discard the letter"
        )
    read_footer(name, None)  # there is such a file, and it is one of Parquet
    with open_bytes(name) as data:
        metadata = pq.ParquetFile(data).metadata
    damaged = expected.get("without", [raw["row_group"]])  # a letter of an older version, or the only one
    if _footer_digest(name) == expected.get("footer") and max(damaged) < metadata.num_row_groups:
        for group in damaged:
            check_row_group(name, metadata, group)
        result = identity_without(name, metadata, damaged)
        if result == {key: value for key, value in expected.items() if key != "without"}:
            return
    raise ValueError(
        f"{name} is another file than the one whose row group {raw['row_group']} was damaged: put a whole copy of "
        "that file there and replay again. If the sink has a key, you can also run the pipeline over the file and "
        "discard the letter; a sink that appends would get the other rows of it twice"
    )


def footer_or_unfit(name: str, look: Callable[[str], ParquetFooter], names: Sequence[str]) -> ParquetFooter:
    try:
        return look(name)
    except SourceError as error:
        if not is_odd(name, error, names):
            raise
        return ParquetFooter(name, (), 0, whole=True, odd=error)


def open_bytes(name: str) -> Any:
    return pa.OSFile(name)  # a name alone might be taken for a URL


def first_line(error: BaseException | str) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
