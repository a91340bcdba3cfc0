"""dlt on the vendor's file: merged on the key, rows without a fee left out, telemetry off, no network.

Two of its ways: Arrow tables, which it passes through without a look at any row, and rows that it validates with the
loop's own pydantic model, discarding what fails. Neither keeps what it leaves out. It makes its table by itself,
without a CHECK and, but for SQLite, without a primary key.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import dlt
import pyarrow
import pyarrow.csv
from row_loop import BATCH, Delivery
from vendor import COLUMNS, KEY, NO_FEE, TABLE

DATASET = {"PostgreSQL": "public", "SQLite": "main", "DuckDB": "main"}  # the schema that every new database has
# The faster of what each destination supports, where there is a choice.
STRATEGIES = {"PostgreSQL": "upsert", "SQLite": "delete-insert", "DuckDB": "upsert"}
FORMATS = {"PostgreSQL": "csv", "SQLite": "parquet", "DuckDB": "parquet"}

TYPES = dict.fromkeys(COLUMNS, pyarrow.string()) | {
    "delivered_at": pyarrow.timestamp("us", "UTC"),
    "distance_km": pyarrow.float64(),
    "fee": pyarrow.decimal128(12, 2),
}


def load(database: str, url: str, path: Path, *, validated: bool, compressed: bool) -> float:
    """Load the file; seconds."""
    warnings.filterwarnings("ignore", module=r"dlt\b")  # its own affair
    os.environ |= {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}
    # By default the files between its steps are compressed, at a price on PostgreSQL; its manual tells how not to.
    os.environ["DATA_WRITER__DISABLE_COMPRESSION"] = str(not compressed)
    merge = {"disposition": "merge", "strategy": STRATEGIES[database]}
    contract = {"columns": Delivery, "schema_contract": {"data_type": "discard_row"}} if validated else {}
    make = dlt.resource(rows if validated else tables, name=TABLE, primary_key=KEY, write_disposition=merge, **contract)
    with tempfile.TemporaryDirectory(prefix="redrive-dlt-") as scratch:
        began = time.perf_counter()
        pipeline = dlt.pipeline(
            "vendor", pipelines_dir=scratch, destination=destination(database, url), dataset_name=DATASET[database]
        )
        pipeline.run(make(path), loader_file_format=FORMATS[database])
        return time.perf_counter() - began


def destination(database: str, url: str) -> Any:
    if database == "PostgreSQL":
        return dlt.destinations.postgres(url)
    if database == "SQLite":  # without the key, a merge into a full table did not end in half an hour
        return dlt.destinations.sqlalchemy(url, create_primary_keys=True)
    return dlt.destinations.duckdb(url.removeprefix("duckdb:///"))


def tables(path: Path) -> Iterator[pyarrow.Table]:
    """Typed while they are read; what is no fee is none, and has no row."""
    convert = pyarrow.csv.ConvertOptions(column_types=TYPES, null_values=["", NO_FEE], strings_can_be_null=True)
    read = pyarrow.csv.ReadOptions(block_size=4 << 20)
    for batch in pyarrow.csv.open_csv(path, read_options=read, convert_options=convert):
        yield pyarrow.Table.from_batches([batch.filter(batch["fee"].is_valid())])


def rows(path: Path) -> Iterator[list[dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        while batch := list(islice(reader, BATCH)):
            yield batch
