"""A vendor's weekly file: 180,000 deliveries, of which 5,400 have "N/A" for the fee.

What is good is loaded on time, the rest waits with its cause; when the parser is fixed, it is sent back.

Run it: python examples/vendor_file.py

Store and table are files in a temporary directory; a pipeline of your own would leave `store` out and keep them.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import sys
import tempfile
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

import redrive

DELIVERIES, UNPRICED = 180_000, 5_400

TABLE = """
    CREATE TABLE deliveries (
        delivery_id TEXT PRIMARY KEY, city TEXT NOT NULL, delivered_at TEXT NOT NULL, fee NUMERIC NOT NULL
    )"""


class Delivery(BaseModel):
    """How a delivery was understood when the file came."""

    delivery_id: str
    city: str
    delivered_at: datetime
    fee: Decimal = Field(ge=0)


class FixedDelivery(Delivery):
    """How it is understood after the fix: no fee is a fee of nothing."""

    @field_validator("fee", mode="before")
    @classmethod
    def _nothing(cls, value: Any) -> Any:
        return 0 if value == "N/A" else value


def write_vendor_file(path: Path) -> None:
    chance = random.Random(2026)
    unpriced = set(chance.sample(range(DELIVERIES), UNPRICED))
    with path.open("w") as file:
        file.write("delivery_id,city,delivered_at,fee\n")
        for number in range(DELIVERIES):
            fee = "N/A" if number in unpriced else f"{chance.randrange(90_000) / 100:.2f}"
            city = chance.choice(("Pune", "Delhi", "Chennai"))
            file.write(f"D-{number:06},{city},2026-11-{chance.randrange(1, 15):02}T12:00:00Z,{fee}\n")


def count(database: Path) -> tuple[int, int]:
    """Rows in the table, and distinct keys among them."""
    with sqlite3.connect(database) as connection:
        rows, keys = connection.execute("SELECT count(*), count(DISTINCT delivery_id) FROM deliveries").fetchone()
    return rows, keys


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="  [%(levelname)s] %(message)s")
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        file, database = here / "deliveries.csv", here / "warehouse.db"
        write_vendor_file(file)
        with sqlite3.connect(database) as connection:
            connection.execute(TABLE)
        with redrive.connect(here / "redrive.db") as store:
            return load_mend_and_redrive(file, database, store)


def load_mend_and_redrive(file: Path, database: Path, store: redrive.Store) -> int:
    def vendor(model: type[Delivery]) -> redrive.Pipeline:
        return redrive.Pipeline(
            "vendor_reconciliation",
            source=redrive.rows.csv(file),
            validate=model,
            sink=redrive.rows.table(f"sqlite:///{database}", "deliveries", key="delivery_id"),
            store=store,
        )

    print("the file arrives")
    print(vendor(Delivery).run())
    print("what is wrong")
    for cause in store.dlq.causes():
        print(f"  {cause.count:,} × {cause.message}")
    for alert in store.alerts.find(status="open"):
        print(f"  {alert.urgency}, within a day: {alert.title}")
    (letter, *_) = store.dlq.find(limit=1, newest_first=False)
    print(f"  for example {letter.position} of {Path(letter.source or '').name}: {letter.record}")

    print("the parser is fixed; first a rehearsal")
    fixed = vendor(FixedDelivery)
    rehearsal = store.dlq.replay(fixed, pipeline=fixed.name)
    print(f"  {rehearsal.reprocessed:,} of {rehearsal.selected:,} would pass; rows so far: {count(database)[0]:,}")
    print("then for real, a hundred first")
    report = store.dlq.replay(fixed, pipeline=fixed.name, dry_run=False, canary=100, note="N/A means no fee")
    print(f"  {report.reprocessed:,} reprocessed, {report.failed_again:,} failed again")

    rows, keys = count(database)
    pending = store.dlq.count(status="pending")
    print(f"  in the table: {rows:,} rows, {keys:,} keys; pending: {pending:,}")
    (alert,) = store.alerts.find()
    print(f"  the alert is {alert.status}")
    return 0 if rows == keys == DELIVERIES and not pending and alert.is_over else 1


if __name__ == "__main__":
    sys.exit(main())
