"""The vendor's weekly file, generated and seeded, and the table it goes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = 180_000
COLUMNS = ("delivery_id", "order_id", "vendor", "city", "delivered_at", "distance_km", "fee", "status")
KEY = "delivery_id"
TABLE = "vendor_deliveries"
NO_FEE = "N/A"
REJECTS = "vendor_rejects"
CREATE_REJECTS = f"CREATE TABLE {REJECTS} (delivery_id text, record text, error text)"

_PIECE = 500_000
_TEXTS = {
    "vendor": ("shipfast", "parcelo", "swiftline"),
    "city": ("Pune", "Mumbai", "Delhi", "Chennai", "Kolkata", "Jaipur"),
    "status": ("delivered", "returned", "failed"),
}

# The same table everywhere, in each database's own words.
_POSTGRES = f"""CREATE TABLE {TABLE} (
    delivery_id text PRIMARY KEY,
    order_id text NOT NULL,
    vendor text NOT NULL,
    city text,
    delivered_at timestamptz,
    distance_km double precision CHECK (distance_km >= 0),
    fee numeric(12,2) NOT NULL,
    status text)"""
CREATE = {
    "PostgreSQL": _POSTGRES,
    "SQLite": _POSTGRES.replace("text PRIMARY KEY", "text NOT NULL PRIMARY KEY").replace("timestamptz", "text"),
    "DuckDB": _POSTGRES,
}
UPSERT = f"""ON CONFLICT ({KEY}) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in COLUMNS if column != KEY)}"""


def connected(database: str, url: str) -> Any:
    """A plain connection to one of the databases, as durable as redrive's."""
    if database == "PostgreSQL":
        import psycopg

        return psycopg.connect(url)
    path = url.partition(":///")[2]
    if database == "DuckDB":
        import duckdb

        return duckdb.connect(path)
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")  # which favours what commits often
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@dataclass(frozen=True, slots=True)
class File:
    """A generated file, and what a correct load makes of it."""

    path: Path
    rows: int
    good: int
    cents: int
    """The sum of all fees: a load that bends or mixes up values does not arrive at it."""

    @property
    def bad(self) -> int:
        return self.rows - self.good


def generated(path: Path, rows: int, seed: int = 7) -> File:
    """Write the file, piece by piece; 3 % of the rows have no fee, at random places, the same for the same seed."""
    import numpy as np
    import polars as pl

    random = np.random.default_rng(seed)
    without_fee = np.sort(random.choice(rows, rows * 3 // 100, replace=False))
    cents = 0
    with path.open("wb") as file:
        for start in range(0, rows, _PIECE):
            count = min(_PIECE, rows - start)
            here = without_fee[(without_fee >= start) & (without_fee < start + count)] - start
            fees = random.integers(100, 90_000, count)
            fees[here] = -1
            cents += int(fees[fees >= 0].sum())
            drawn = pl.DataFrame(
                {
                    "number": np.arange(start, start + count),
                    "order": random.integers(0, 10**9, count),
                    "minute": random.integers(0, 7 * 24 * 60, count),
                    "metres": random.integers(1, 4_000, count),
                    "cents": fees,
                    **{name: np.array(texts)[random.integers(0, len(texts), count)] for name, texts in _TEXTS.items()},
                }
            )
            drawn.select(_written()).write_csv(file, include_header=start == 0)
    return File(path, rows, rows - len(without_fee), cents)


def _written() -> list:
    """The columns as the vendor writes them."""
    from datetime import UTC, datetime

    import polars as pl

    def padded(name: str, width: int) -> pl.Expr:
        return pl.col(name).cast(pl.String).str.zfill(width)

    def hundredths(name: str) -> pl.Expr:
        return pl.format("{}.{}", pl.col(name) // 100, (pl.col(name) % 100).cast(pl.String).str.zfill(2))

    moment = pl.lit(datetime(2026, 11, 2, tzinfo=UTC)) + pl.duration(minutes="minute")
    return [
        pl.format("D-{}", padded("number", 8)).alias("delivery_id"),
        pl.format("O-{}", padded("order", 9)).alias("order_id"),
        *("vendor", "city"),
        moment.dt.strftime("%Y-%m-%dT%H:%M:%SZ").alias("delivered_at"),
        hundredths("metres").alias("distance_km"),
        pl.when(pl.col("cents") < 0).then(pl.lit(NO_FEE)).otherwise(hundredths("cents")).alias("fee"),
        "status",
    ]
