"""The statements that read an SQL query page by page, each page after the last row of the one before.

They depend on which values of watermark and key have a place in the order, and how they compare, by the type of their
column. No row ever follows a checkpoint of NaN or infinity, and a time that Python cannot hold can be no checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    REAL,
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
)
from sqlalchemy import text as as_text
from sqlalchemy.types import NullType, TypeEngine, UserDefinedType

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
Columns = Mapping[str, TypeEngine[Any] | None]
"""The columns to select, with the type that each is cast to; None if it is selected as it is."""
IS_BEHIND = "redrive_is_behind"
"""The last column of `Keyset.compared_places`."""
# How SQLAlchemy finds the parameters of a text.
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
# These compare whole rows, and so walk an index on watermark and key, however many rows share one watermark.
_COMPARE_ROWS = {"postgresql", "sqlite"}
# Values that a database keeps, gives and compares without rounding, whatever the type of their column is. SQLite has
# none but these and texts.
_EXACT_VALUES: dict[str, set[type]] = {"sqlite": {int, float, bytes}}
_INTEGERS: set[type] = {int}


class _Type(UserDefinedType[Any]):
    """A type by the name that a database has for it."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


def comparison_type(backend: str, kind: Any) -> TypeEngine[Any] | None:
    """Return the type that a value is cast to before it is compared with its column; None if it needs no cast.

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
    """Return what is true of watermarks that are no checkpoint, besides null; None if the type has no such value.

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
    """Return what is true of values of a key that the driver cannot hold; None if there are none."""
    if backend == "duckdb" and kind not in _INSTANTS[backend]:
        return None  # they are read as texts
    return _outside_python(backend, kind, column)


def is_lost(backend: str, kind: Any, watermark: Any) -> bool:
    """Return whether the watermark of a checkpoint, which an earlier version has saved, has no place in the order."""
    if isinstance(watermark, float | Decimal):
        return not Decimal(watermark).is_finite()
    if not isinstance(watermark, str) or backend != "duckdb":
        return False
    return kind in _TIMES[backend] | _INSTANTS[backend] or (kind == _NANOSECONDS and "infinity" in watermark)


def _outside_python(backend: str, kind: Any, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
    """Return what is true of infinite times, and of those that are not of the years 1 to 9999."""
    is_instant = kind in _INSTANTS.get(backend, ())
    if not is_instant and kind not in _TIMES.get(backend, ()):
        return None
    # A moment has a year in the zone of the session, in which it is read, and one in UTC, in which it is kept.
    zones = ("", " 00:00:00+00") if is_instant else ("",)
    early = (column < literal_column(f"'0001-01-01{zone}'") for zone in zones)
    late = (column >= literal_column(f"'10000-01-01{zone}'") for zone in zones)
    return or_(*early, *late)


class Keyset:
    """A query's rows in the order of its watermark and key.

    names  the columns of that order, the watermark first
    """

    def __init__(self, sql: str, parameters: Mapping[str, Any], names: Sequence[str], *, backend: str) -> None:
        self.names = tuple(names)
        self._backend = backend
        self._rows = (
            as_text(_only_known(sql, parameters))
            .bindparams(*(self._parameter(name, value) for name, value in parameters.items()))
            .columns(*(column(name) for name in dict.fromkeys(names)))
            .subquery("redrive_rows")
        )
        self._order: list[ColumnElement[Any]] = [self._rows.c[name] for name in names]
        self._placeless: ColumnElement[bool] = self._order[0].is_(None)
        self._keyless: ColumnElement[bool] = or_(*(item.is_(None) for item in self._order[1:]))

        self._kind: Any = None
        self._casts: list[TypeEngine[Any] | None] = [None] * len(names)
        self._is_exact = False

    def typed(self, kinds: Mapping[str, Any]) -> Keyset:
        """Return the same rows in the order of columns of these types: some values of them have no place in it."""
        keyset = copy(self)
        watermark, *keys = zip(self.names, self._order, strict=True)
        keyset._kind = kinds[watermark[0]]
        keyset._casts = [comparison_type(self._backend, kinds[name]) for name in self.names]
        keyset._is_exact = all(is_exact(self._backend, kinds[name]) for name in self.names)
        others = without_place(self._backend, keyset._kind, watermark[1])
        if others is not None:
            keyset._placeless = or_(self._placeless, others)
        unread = (unreadable(self._backend, kinds[name], key) for name, key in keys if name != watermark[0])
        keyset._keyless = or_(self._keyless, *(item for item in unread if item is not None))
        return keyset

    def is_lost(self, watermark: Any) -> bool:
        """Return whether a watermark can be no checkpoint."""
        return is_lost(self._backend, self._kind, watermark)

    def nothing(self) -> Select[Any]:
        """No row: what columns there are."""
        return self._all().limit(self._limit(0))

    def without_key(self, limit: int, columns: Columns | None = None) -> Select[Any]:
        """Return rows of which a part of the key is null, or cannot be read."""
        return self._all(columns).where(self._keyless).limit(self._limit(limit))

    def without_watermark(self, behind: Sequence[Any], limit: int, columns: Columns | None = None) -> Select[Any]:
        """Return rows whose watermark has no place, in the order of their key, after a key or from the first."""
        keys = list(dict.fromkeys(self._order[1:]))
        statement = self._all(columns).where(self._placeless, not_(self._keyless))
        if behind:
            statement = statement.where(self._compared(behind, "key"))
        return statement.order_by(*keys).limit(self._limit(limit))

    def at_key(self, key: Sequence[Any], limit: int, columns: Columns | None = None) -> Select[Any]:
        """Return the rows of one key."""
        bound = [self._bound(f"redrive_key_{number}", value) for number, value in enumerate(key)]
        wanted = (item == value for item, value in zip(self._order[1:], bound, strict=True))
        return self._all(columns).where(*wanted).limit(self._limit(limit))

    def page(self, start: Any, behind: Sequence[Any] | None, limit: int) -> Select[Any]:
        """Return rows after a row; where there is none, from a watermark on; where there is none, from the first."""
        return self._sorted(self._all(), start, behind).limit(self._limit(limit))

    def newest(self) -> Select[Any]:
        """Return the greatest watermark."""
        watermark = self._order[0]
        statement: Select[Any] = select(watermark).select_from(self._rows).where(not_(self._placeless))
        return statement.order_by(watermark.desc()).limit(self._limit(1))

    def places(self, start: Any, behind: Sequence[Any] | None, limit: int) -> Select[Any]:
        """Like `page`, watermark and key only."""
        places = select(*dict.fromkeys(self._order)).select_from(self._rows)
        return self._sorted(places, start, behind).limit(self._limit(limit))

    def between(
        self, start: Any, behind: Sequence[Any] | None, last: Sequence[Any], columns: Columns | None = None
    ) -> Select[Any]:
        """Like `page`, up to a row, which belongs to it."""
        return self._sorted(self._all(columns), start, behind).where(not_(self._compared(last, "last")))

    def is_sure(self, *places: Sequence[Any]) -> bool:
        """Return whether it needs no check that the database compares these places as it sorts them."""
        exact = _EXACT_VALUES.get(self._backend, _INTEGERS)
        return self._is_exact or all(type(value) in exact for place in places for value in place)

    def following(self, place: Sequence[Any]) -> Select[Any]:
        """Return the first place after another; both are of the watermark and the key, or of the key alone."""
        if len(place) == len(self.names):
            return self.places(None, place, 1)
        return self.without_watermark(place, 1, dict.fromkeys(self.names[1:]))

    def compared_places(
        self, start: Any, behind: Sequence[Any] | None, limit: int, place: Sequence[Any]
    ) -> Select[Any]:
        """Return the places of a page, and last of each whether it is after `place` when the two are compared.

        All are of the watermark and the key, or of the key alone.
        """
        if len(place) == len(self.names):
            statement = self.places(start, behind, limit)
        else:
            statement = self.without_watermark(behind or (), limit, dict.fromkeys(self.names[1:]))
        is_behind = self._compared(place, "place")
        return statement.add_columns(case((is_behind, 1), else_=0).label(IS_BEHIND))

    def _all(self, columns: Columns | None = None) -> Select[Any]:
        if columns is None:
            return select(literal_column("*")).select_from(self._rows)
        chosen = (
            (column(name) if form is None else cast(column(name), form)).label(name) for name, form in columns.items()
        )
        return select(*chosen).select_from(self._rows)

    def _sorted(self, rows: Select[Any], start: Any, behind: Sequence[Any] | None) -> Select[Any]:
        statement = rows.where(not_(self._placeless), not_(self._keyless)).order_by(*self._order)
        if behind is not None:
            return statement.where(self._compared(behind, "behind"))
        if start is None:
            return statement
        # A number that is stepped back may be outside its type, and compares without it.
        as_type = self._casts[0] if isinstance(start, str | float) else None
        return statement.where(self._order[0] >= self._bound("redrive_start", start, as_type))

    def _compared(self, place: Sequence[Any], name: str) -> ColumnElement[bool]:
        """Return what is true of rows after a place, which is of the watermark and the key, or of the key alone."""
        columns = [*zip(self._order, self._casts, strict=True)][-len(place) :]
        terms = [
            (item, self._bound(f"redrive_{name}_{number}", value, as_type))
            for number, ((item, as_type), value) in enumerate(zip(columns, place, strict=True))
        ]
        order, bound = zip(*terms, strict=True)
        if self._backend in _COMPARE_ROWS:
            return tuple_(*order) > tuple_(*bound)
        return _row_by_row(order, bound)

    def _limit(self, rows: int) -> Any:
        return bindparam("redrive_limit", rows)

    def _bound(self, name: str, value: Any, as_type: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
        made = self._parameter(name, value)
        return made if as_type is None else cast(made, as_type)

    def _parameter(self, name: str, value: Any) -> BindParameter[Any]:
        if self._backend == "sqlite" and isinstance(value, date):  # it has no times, only texts of them
            value = value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
        # Without a type a value is sent as what the driver takes it for, and compares with a column of any type.
        return bindparam(name, value, type_=NullType())


def _row_by_row(order: Sequence[ColumnElement[Any]], values: Sequence[Any]) -> ColumnElement[bool]:
    """(a, b, c) > (x, y, z), for databases that cannot compare rows; the first condition can use an index."""
    larger: ColumnElement[bool] = order[0] > values[0]
    if len(order) == 1:
        return larger
    return and_(order[0] >= values[0], or_(larger, _row_by_row(order[1:], values[1:])))


def _only_known(sql: str, parameters: Mapping[str, Any]) -> str:
    """Return the SQL with every colon that begins no parameter escaped, ready to stand within parentheses."""
    named = set(_PARAMETER.findall(sql))
    unused = [name for name in parameters if name not in named]
    if unused:
        raise ValueError(f"the SQL has no :{unused[0]}, which parameters gives a value for")
    known = _PARAMETER.sub(lambda found: found[0] if found[1] in parameters else rf"\{found[0]}", sql)
    return known.rstrip(" \t\r\n;") + "\n"  # the last line may be a comment
