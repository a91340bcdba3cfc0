"""What the errors of client libraries mean: one table per library, by names and codes, without importing any.

A pack is data. To add one, write a module beside these with a `PACK`, name it in `PACKS`, and test it with the real
library: what it raises against a closed port, a reset, a timeout and a 503.
"""

from __future__ import annotations

from redrive.classify.packs import (
    apis,
    brokers,
    connections,
    databases,
    google,
    http_mirrors,
    mongo,
    nats,
    openai,
    redis,
    standard,
    warehouses,
)
from redrive.classify.packs.pack import Pack

PACKS: tuple[Pack, ...] = (
    *apis.PACKS,
    *brokers.PACKS,
    *connections.PACKS,
    *databases.PACKS,
    google.PACK,
    *http_mirrors.PACKS,
    mongo.PACK,
    nats.PACK,
    *openai.PACKS,
    redis.PACK,
    *standard.PACKS,
    *warehouses.PACKS,
)
