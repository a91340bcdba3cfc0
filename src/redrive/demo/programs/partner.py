"""Deliveries from a partner's API, page by page, into DuckDB.

Run it: redrive run partner.py

`redrive demo` runs the partner's API, which answers only during the demo.
"""

from __future__ import annotations

import atexit
import os
from decimal import Decimal

import httpx
from pydantic import BaseModel

import redrive

PARTNER = os.environ.get("PARTNER_URL", "http://127.0.0.1:9")
client = httpx.Client(base_url=PARTNER)
atexit.register(client.close)
store = redrive.connect()  # .redrive/redrive.db, in this directory


class Delivery(BaseModel):
    """The columns that the rest of the company relies on."""

    delivery_id: str
    city: str
    weight_kg: Decimal


def log_in(account: str) -> str:
    """Return a token, which the partner may let expire at any time."""
    token: str = client.post("/token", json={"account": account}).raise_for_status().json()["token"]
    return token


partner = redrive.Service(
    "partner",
    retry=redrive.Retry(attempts=5, base=0.1, cap=2.0),  # transient errors are retried, with jitter
    credentials=redrive.KeyPool(  # an account whose quota is exhausted cools down until its reset; the other takes over
        [redrive.Token(lambda: log_in("north")), redrive.Token(lambda: log_in("south"))],
        resets="00:00 America/Los_Angeles",
    ),
    timeout=1.5,  # of one attempt
    store=store,  # `redrive services` shows what it did
)


def fetch(page: int, *, credential: str, timeout: float) -> httpx.Response:
    """Return one page; the service supplies the token and the timeout."""
    return client.get(f"/deliveries/{page}", headers={"Authorization": f"Bearer {credential}"}, timeout=timeout)


pipeline = redrive.Pipeline(
    "partner",
    source=redrive.rows.pages(partner, fetch, items="deliveries", in_flight=4, limit=400),
    validate=Delivery,
    sink=redrive.rows.table("duckdb:///warehouse.duckdb", "partner_deliveries", key="delivery_id", create=True),
    batch=1_000,
    store=store,
)
