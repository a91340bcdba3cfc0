"""The classes of PEP 249, for the packs of drivers that have them."""

from __future__ import annotations

from redrive.classify.tables.drivers import DBAPI
from redrive.classify.tables.entry import Entry


def dbapi(**others: Entry) -> dict[str, Entry]:
    """Return the entries of the classes that every driver has, with those that one driver adds or overrides."""
    return {**DBAPI, **others}
