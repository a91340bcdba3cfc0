"""Column types with the same meaning on both databases, and the metadata that all tables share."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Integer, LargeBinary, MetaData, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

SCHEMA = "pipeline"

metadata = MetaData(schema=SCHEMA)
Id = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER is SQLite's rowid


def utc_text(moment: datetime) -> str:
    """Return a time as SQLite stores it: ISO 8601 in UTC, of one length, so that text sorts as time does."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class UtcTimestamp(TypeDecorator[datetime]):
    """A time in UTC with zone: timestamptz on PostgreSQL, ISO 8601 text on SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(TIMESTAMP(timezone=True) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return utc_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        # Values that were written into SQLite by hand may lack the zone: the column is UTC.
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


class RunId(TypeDecorator[uuid.UUID]):
    """uuid on PostgreSQL, its usual text on SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Uuid() if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: uuid.UUID | None, dialect: Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> uuid.UUID | None:
        return value if value is None or isinstance(value, uuid.UUID) else uuid.UUID(value)


class Digest(TypeDecorator[bytes]):
    """Sixteen bytes: a uuid on PostgreSQL, which indexes it well, a blob on SQLite."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Uuid() if dialect.name == "postgresql" else LargeBinary(16))

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        return value if value is None or dialect.name != "postgresql" else uuid.UUID(bytes=value)

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        return value.bytes if isinstance(value, uuid.UUID) else value


# Any value; None is JSON's null, and SQL's NULL means that there is no value. How values become JSON: `encoding`.
Value = JSON().with_variant(JSONB(), "postgresql")
