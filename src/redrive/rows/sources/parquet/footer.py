"""See whether the footer of a Parquet file is sound, before Arrow and polars use parts of it that they do not check.

Arrow ends the process where the metadata of a column is asked for and damaged. Reading the column raises instead,
before a byte of it is read.
"""

from __future__ import annotations

import io
from typing import Any

from redrive._internal.optional import require_extra

with require_extra("rows"):
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]


def footer_fault(metadata: Any, group: int) -> str | None:
    """Return what is wrong with the metadata of a row group; None where it is sound."""
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
