"""What all tables have in common."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData

SCHEMA = "pipeline"

metadata = MetaData(schema=SCHEMA)
Id = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER is SQLite's rowid
