"""A vendor's weekly file into DuckDB; what is bad waits as dead letters until it is mended.

Run it: redrive run vendor.py
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

import redrive

NO_FEE = {"-"}  # how this vendor writes that a delivery was free


def priced(fee: object) -> object:
    """A fee as the model reads it."""
    return "0" if fee in NO_FEE else fee


class Delivery(BaseModel):
    """What the rest of the company relies on."""

    delivery_id: str
    city: str
    delivered_at: datetime
    fee: Annotated[Decimal, BeforeValidator(priced)]


pipeline = redrive.Pipeline(
    "vendor",
    source=redrive.rows.csv("deliveries.csv"),
    validate=Delivery,
    sink=redrive.rows.table("duckdb:///warehouse.duckdb", "vendor_deliveries", key="delivery_id", create=True),
    gate=redrive.Gate(warn=0.01, page=0.05, abort=0.20),  # from when on people are told, woken, the run stopped
)
