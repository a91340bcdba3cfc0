"""Which values of a query's watermark and key have a place in its order, and how they compare, by their column's type.

Behind a checkpoint of NaN or infinity there is no row, ever. A time that Python cannot hold can be no checkpoint.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import REAL, ColumnElement, func, literal_column, not_, or_
from sqlalchemy.types import TypeEngine, UserDefinedType

# The types of PostgreSQL by their OID, those of DuckDB by name.
_FLOATS: dict[str, set[Any]] = {"postgresql": {700, 701, 1700}, "duckdb": {"FLOAT", "DOUBLE"}}
_TIMES: dict[str, set[Any]] = {
    "postgresql": {1082, 1114},
    "duckdb": {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"},
}
_INSTANTS: dict[str, set[Any]] = {"postgresql": {1184}, "duckdb": {"TIMESTAMP WITH TIME ZONE"}}
_NANOSECONDS = "TIMESTAMP_NS"
_TEXTS = {"VARCHAR"}
_REAL = 700
# No text, whose collation may take two for one, no interval, of which 30 days and a month are equal, and no float of
# PostgreSQL, which a setting may round. DuckDB gives and takes floats as they are.
_EXACT: dict[str, set[Any]] = {
    "postgresql": {16, 17, 20, 21, 23, 26, 1082, 1083, 1114, 1184, 1700, 2950},
    "duckdb": {
        *_FLOATS["duckdb"],
        *_TIMES["duckdb"],
        *_INSTANTS["duckdb"],
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
        *("BOOLEAN", "TIME", "UUID", "BLOB", _NANOSECONDS),
    },
}


class _Type(UserDefinedType[Any]):
    """A type by the name that a database has for it."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


def comparison_type(backend: str, kind: Any) -> TypeEngine[Any] | None:
    """Return the type that a value is cast to before it is compared with its column; None where it needs no cast.

    A column is sorted by the rules of its type. It would be compared by those of another one, where the driver sends
    the value as such: texts of an ENUM by their letters, 32-bit floats with 64-bit ones. PostgreSQL takes a text for
    the type of the column.
    """
    if backend == "postgresql":
        return REAL() if kind == _REAL else None
    return _Type(kind) if backend == "duckdb" and kind not in _TEXTS else None


def is_exact(backend: str, kind: Any) -> bool:
    """Return whether every value comes back as it was given, and equals no other."""
    if backend == "duckdb" and kind.startswith(("DECIMAL(", "ENUM(")):
        return True
    return kind in _EXACT.get(backend, ())


def without_place(backend: str, kind: Any, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
    """Return what is true of watermarks that are no checkpoint, besides null; None where the type has no such value.

    Args:
        backend: the database.
        kind: the type of the column, as its driver names it.
        column: the watermark.
    """
    if backend == "sqlite":  # a column has values of any type
        return column.in_([literal_column("9e999"), literal_column("-9e999")])
    if backend == "postgresql" and kind in _FLOATS[backend]:
        # Values, because a function of the column could not use its index.
        return column.in_([literal_column(f"'{value}'") for value in ("NaN", "Infinity", "-Infinity")])
    if backend == "duckdb" and (kind in _FLOATS[backend] or kind == _NANOSECONDS):
        return not_(func.isfinite(column))
    return _outside_python(backend, kind, column)


def unreadable(backend: str, kind: Any, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
    """Return what is true of values of a key that the driver cannot hold; None where there are none."""
    if backend == "duckdb" and kind not in _INSTANTS[backend]:
        return None  # they are read as texts
    return _outside_python(backend, kind, column)


def is_lost(backend: str, kind: Any, watermark: Any) -> bool:
    """Whether the watermark of a checkpoint, which an earlier version has saved, has no place in the order."""
    if isinstance(watermark, float | Decimal):
        return not Decimal(watermark).is_finite()
    if not isinstance(watermark, str) or backend != "duckdb":
        return False
    return kind in _TIMES[backend] | _INSTANTS[backend] or (kind == _NANOSECONDS and "infinity" in watermark)


def _outside_python(backend: str, kind: Any, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
    """What is true of infinite times, and of those that are not of the years 1 to 9999."""
    is_instant = kind in _INSTANTS.get(backend, ())
    if not is_instant and kind not in _TIMES.get(backend, ()):
        return None
    # A moment has a year in the zone of the session, in which it is read, and one in UTC, in which it is kept.
    zones = ("", " 00:00:00+00") if is_instant else ("",)
    early = (column < literal_column(f"'0001-01-01{zone}'") for zone in zones)
    late = (column >= literal_column(f"'10000-01-01{zone}'") for zone in zones)
    return or_(*early, *late)
