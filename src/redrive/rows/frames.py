"""Frames of records, without losing or bending a value."""

from __future__ import annotations

import json
from collections.abc import Sequence

from redrive.extras import needs
from redrive.rows.batch import Record

with needs("rows"):
    import polars as pl


def of_records(records: Sequence[Record]) -> pl.DataFrame:
    """A frame of records; values of several types in one column become text, as a CSV file would have them."""
    columns = dict.fromkeys(name for record in records for name in record)
    return pl.DataFrame([_series(name, [record.get(name) for record in records]) for name in columns])


def _series(name: str, values: list[object]) -> pl.Series:
    types = set(map(type, values)) - {type(None)}
    if len(types) <= 1 or bool not in types:  # polars takes True for 1
        try:
            series = pl.Series(name, values, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
        else:
            # Objects of several shapes would lose the fields that the first one lacks.
            if not series.dtype.is_nested() or series.to_list() == values:
                return series
    return pl.Series(name, [_text(value) for value in values], dtype=pl.String)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
