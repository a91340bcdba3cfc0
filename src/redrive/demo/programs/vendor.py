"""A vendor's weekly file into DuckDB; rejected rows wait as dead letters until they are fixed.

Run it: redrive run vendor.py
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

import redrive

NO_FEE = {"-"}  # what this vendor writes for a delivery without a fee


def priced(fee: object) -> object:
    """Return a fee in the form that the model parses."""
    return "0" if fee in NO_FEE else fee


class Delivery(BaseModel):
    """The columns that the rest of the company relies on."""

    delivery_id: str
    city: str
    delivered_at: datetime
    fee: Annotated[Decimal, BeforeValidator(priced)]


pipeline = redrive.Pipeline(
    "vendor",
    source=redrive.rows.csv("deliveries.csv"),
    validate=Delivery,
    sink=redrive.rows.table("duckdb:///warehouse.duckdb", "vendor_deliveries", key="delivery_id", create=True),
    gate=redrive.Gate(warn=0.01, page=0.05, abort=0.20),  # shares of rejected rows that alert, page and stop the run
)
