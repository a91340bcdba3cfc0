"""The loop most teams have: read a row, validate it, INSERT and COMMIT it if it is bad, collect it if it is good."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
from pydantic import BaseModel, Field, ValidationError
from vendor import COLUMNS, KEY, REJECTS, TABLE, UPSERT, connected

BATCH = 5_000


class Delivery(BaseModel):
    delivery_id: str
    order_id: str
    vendor: str
    city: str | None
    delivered_at: datetime | None
    distance_km: float | None = Field(ge=0)
    fee: Decimal = Field(max_digits=12, decimal_places=2)
    status: str | None


def load(database: str, url: str, path: Path) -> float:
    """Load the file; seconds."""
    began = time.perf_counter()
    with closing(connected(database, url)) as connection:
        target = {"PostgreSQL": Target, "SQLite": Sqlite, "DuckDB": DuckDb}[database](connection)
        batch: list[Delivery] = []
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                try:
                    batch.append(Delivery.model_validate(row))
                except ValidationError as error:
                    target.reject((row[KEY], json.dumps(row), str(error)))
                    continue
                if len(batch) == BATCH:
                    target.write(batch)
                    batch.clear()
        target.write(batch)
    return time.perf_counter() - began


class Target:
    """The two statements of the loop, as PostgreSQL takes them."""

    mark = "%s"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._insert_reject = f"INSERT INTO {REJECTS} VALUES ({', '.join([self.mark] * 3)})"
        self._upsert = f"INSERT INTO {TABLE} VALUES ({', '.join([self.mark] * len(COLUMNS))}) {UPSERT}"

    def reject(self, values: Sequence[str]) -> None:
        self._connection.execute(self._insert_reject, values)
        self._connection.commit()

    def write(self, batch: Sequence[Delivery]) -> None:
        self._connection.cursor().executemany(self._upsert, [self.row(one) for one in batch])
        self._connection.commit()

    def row(self, one: Delivery) -> Sequence[Any]:
        return tuple(one.__dict__.values())


class Sqlite(Target):
    """Its driver knows neither moments nor decimals."""

    mark = "?"

    def row(self, one: Delivery) -> Sequence[Any]:
        at = one.delivered_at.isoformat() if one.delivered_at else None
        return tuple((one.__dict__ | {"delivered_at": at, "fee": str(one.fee)}).values())


class DuckDb(Target):
    """Batches go in as Arrow tables, as its manual says: executemany would take 1.6 ms for each row."""

    mark = "?"

    def reject(self, values: Sequence[str]) -> None:
        self._connection.execute(self._insert_reject, values)  # which is a transaction by itself

    def write(self, batch: Sequence[Delivery]) -> None:
        if batch:
            self._connection.register("batch", pyarrow.Table.from_pylist([one.__dict__ for one in batch]))
            self._connection.execute(f"INSERT INTO {TABLE} SELECT {', '.join(COLUMNS)} FROM batch {UPSERT}")
