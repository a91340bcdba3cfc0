"""Frames of records, without losing or bending a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.extras import needs
from redrive.rows.batch import Record

with needs("rows"):
    import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable


def of_records(records: Sequence[Record]) -> pl.DataFrame:
    """A frame of records; values of several types in one column become text, as a CSV file would have them."""
    columns = dict.fromkeys(name for record in records for name in record)
    return pl.DataFrame([_series(name, [record.get(name) for record in records]) for name in columns])


def _series(name: str, values: Iterable[object]) -> pl.Series:
    values = list(values)
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        texts = [value if value is None or isinstance(value, str) else str(value) for value in values]
        return pl.Series(name, texts, dtype=pl.String)
