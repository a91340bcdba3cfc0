"""What the errors of client libraries mean: one table per library, by names and codes, without importing any.

A pack is data. To add one, write it in one of these modules, in the module's `PACKS`, and test it with the real
library: what it raises against a closed port, a reset, a timeout and a 503.
"""

from __future__ import annotations

from redrive.classify.packs import (
    apis,
    brokers,
    connections,
    databases,
    standard,
    warehouses,
)
from redrive.classify.packs.pack import Pack

PACKS: tuple[Pack, ...] = (
    *apis.PACKS,
    *brokers.PACKS,
    *connections.PACKS,
    *databases.PACKS,
    *standard.PACKS,
    *warehouses.PACKS,
)
