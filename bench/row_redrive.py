"""redrive on the vendor's file: every row checked, every rejected one a letter, a checkpoint with every batch."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import dataframely as dy
from row_loop import Delivery
from vendor import KEY, TABLE

import redrive


class Deliveries(dy.Schema):
    delivery_id = dy.String(primary_key=True)
    order_id = dy.String()
    vendor = dy.String()
    city = dy.String(nullable=True)
    delivered_at = dy.Datetime(time_zone="UTC", nullable=True)
    distance_km = dy.Float64(min=0, nullable=True)
    fee = dy.Decimal(12, 2)
    status = dy.String(nullable=True)


logging.getLogger("redrive").addHandler(logging.NullHandler())  # a rate of 3 % is worth a warning, but not here

CHECKS = {"dataframely": Deliveries, "pydantic": Delivery}


def store_of(database: str, url: str) -> str:
    """The store's URL: the same database, so that all commits together; beside DuckDB, a file of its own."""
    return url.replace("duckdb:", "sqlite:") + ".letters" if database == "DuckDB" else url


def load(database: str, url: str, path: Path, *, check: str) -> float:
    """Load the file; seconds."""
    where = store_of(database, url)
    redrive.connect(where, migrate=True).close()  # once for all runs, as the table is made once
    began = time.perf_counter()
    with redrive.connect(where) as store:
        pipeline = redrive.Pipeline(
            "vendor",
            source=redrive.rows.csv(path),
            validate=CHECKS[check],
            sink=redrive.rows.table(url, TABLE, key=KEY),
            key=KEY,
            store=store,
        )
        pipeline.run()
    return time.perf_counter() - began


def letters(database: str, url: str) -> int:
    """How many rows were kept as letters."""
    with redrive.connect(store_of(database, url)) as store:
        return store.dlq.count()
