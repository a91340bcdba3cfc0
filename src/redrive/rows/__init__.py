"""The rows runtime: a pipeline moves rows from a source into a sink, and quarantines those that are rejected.

`pipeline` is the public class. It checks its `options`, takes the claim on its `checkpoint` after the `start_checks`,
and starts a `run`. A run reads a `batch` of a source (`sources`), and `prepare` passes it through the validator
(`validation`) and the `transform`. `write` removes duplicates, writes the rows to the sink (`sinks`), and saves letters
and checkpoint in one transaction of the store (`run_state`). The `gate` aborts a run with too many rejected rows, and
`retries` retries a batch after transient errors of user code. `replay` sends letters through the same steps.
`errors` describes errors for reports, `schema_drift` compares columns, and `to_polars` converts rows and frames.

Sources and sinks are imported when they are used, since each needs libraries of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.rows.sinks.parquet.sink import parquet_dataset
    from redrive.rows.sinks.table import table
    from redrive.rows.sources.csv.source import csv
    from redrive.rows.sources.ndjson.source import ndjson
    from redrive.rows.sources.pages.source import pages
    from redrive.rows.sources.parquet.source import parquet
    from redrive.rows.sources.query.source import query
    from redrive.rows.sources.records.source import records
    from redrive.rows.transform import per_frame

__all__ = ["csv", "ndjson", "pages", "parquet", "parquet_dataset", "per_frame", "query", "records", "table"]

_HOMES = {
    "csv": "sources.csv.source",
    "ndjson": "sources.ndjson.source",
    "pages": "sources.pages.source",
    "parquet": "sources.parquet.source",
    "parquet_dataset": "sinks.parquet.sink",
    "per_frame": "transform",
    "query": "sources.query.source",
    "records": "sources.records.source",
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
