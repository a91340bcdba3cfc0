"""The letters that the benchmark of the queue puts: 500 bytes of JSON each, three pipelines, fifty causes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import redrive

PIPELINES = ("orders", "payments", "deliveries")
NAMES = (
    *("amount", "fee", "tax", "discount", "weight", "height", "width", "quantity", "latitude", "longitude", "rating"),
    *("score", "price", "total", "balance", "volume", "duration", "distance", "margin", "rate", "limit", "quota"),
    *("deposit", "refund", "tip"),
)
CAUSES = (
    *((f"{name}: could not convert ", " to a number") for name in NAMES),
    *((f"{name}: field is required, the record has none", "") for name in NAMES),
)
WEIGHTS = [1 / (rank + 1) for rank in range(len(CAUSES))]
DRAWN = random.Random(7).choices(random.Random(3).sample(CAUSES, len(CAUSES)), WEIGHTS, k=8_191)
REMARK = "left with the neighbour on the second floor, please ring twice; the customer asked for a call before noon "

Given = tuple[dict[str, Any], str, str, str]
"""What a pipeline has in hand when it rejects a record: the record, the error, the key, its own name."""


def given(number: int) -> Given:
    before, after = DRAWN[number % len(DRAWN)]
    key = f"ORD-{number:09d}"
    record = {
        "order_id": key,
        "customer": {"id": number % 90_001, "name": "Zoë Müller", "email": f"customer{number % 90_001}@example.com"},
        "sku": f"SKU-{number % 7_001:05d}-BLACK-XL",
        "quantity": number % 12 + 1,
        "fee": f"N/A-{number}",
        "currency": "EUR",
        "paid": number % 2 == 0,
        "weight": number % 1_000 / 8,
        "ordered_at": "2026-07-01T12:00:00+02:00",
        "address": ["Hauptstraße 1", "10115", "Berlin", "DE"],
        "remark": REMARK + REMARK[number % 32 :],
    }
    error = f"{before}'N/A-{number}'{after}" if after else before
    return record, error, key, PIPELINES[number % 3]


def new_letters(ready: Sequence[Given]) -> Iterator[redrive.NewLetter]:
    for record, error, key, pipeline in ready:
        yield redrive.NewLetter(record, error, key=key, pipeline=pipeline)


def run_of(start: int) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"run {start}")
