"""The row runtime: sources, sinks and what they need, imported when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.rows.sinks.parquet import parquet_dataset
    from redrive.rows.sinks.table import table
    from redrive.rows.sources.csv import csv
    from redrive.rows.sources.ndjson import ndjson
    from redrive.rows.sources.pages import pages
    from redrive.rows.sources.parquet import parquet
    from redrive.rows.sources.query import query
    from redrive.rows.sources.records import records
    from redrive.rows.transform import per_frame

__all__ = ["csv", "ndjson", "pages", "parquet", "parquet_dataset", "per_frame", "query", "records", "table"]

_HOMES = {
    "csv": "sources.csv",
    "ndjson": "sources.ndjson",
    "pages": "sources.pages",
    "parquet": "sources.parquet",
    "parquet_dataset": "sinks.parquet",
    "per_frame": "transform",
    "query": "sources.query",
    "records": "sources.records",
    "table": "sinks.table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'redrive.rows' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"redrive.rows.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
