from decimal import Decimal

from pydantic import BaseModel

import redrive


class Delivery(BaseModel):
    delivery_id: str
    city: str
    fee: Decimal


pipeline = redrive.Pipeline(
    "vendor",
    source=redrive.rows.csv("deliveries.csv"),
    validate=Delivery,
    sink=redrive.rows.table("sqlite:///warehouse.db", "deliveries", key="delivery_id", create=True),
)
