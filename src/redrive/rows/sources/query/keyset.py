"""The statements that read an SQL query page by page, each page behind the last row of the one before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    cast,
    column,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
)
from sqlalchemy import text as as_text
from sqlalchemy.types import NullType, TypeEngine

from redrive.rows.sources.query.places import comparison_type, is_exact, is_lost, unreadable, without_place

Columns = Mapping[str, TypeEngine[Any] | None]
"""The columns to select, with the type that each is cast to; None where it is selected as it is."""

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
        self._keyless: ColumnElement[bool] = or_(*(one.is_(None) for one in self._order[1:]))

        self._kind: Any = None
        self._casts: list[TypeEngine[Any] | None] = [None] * len(names)
        self._is_exact = False

    def typed(self, kinds: Mapping[str, Any]) -> Keyset:
        """Return the same rows in the order of columns of these types: some values of them have no place in it."""
        found = copy(self)
        watermark, *keys = zip(self.names, self._order, strict=True)
        found._kind = kinds[watermark[0]]
        found._casts = [comparison_type(self._backend, kinds[name]) for name in self.names]
        found._is_exact = all(is_exact(self._backend, kinds[name]) for name in self.names)
        others = without_place(self._backend, found._kind, watermark[1])
        if others is not None:
            found._placeless = or_(self._placeless, others)
        unread = (unreadable(self._backend, kinds[name], one) for name, one in keys if name != watermark[0])
        found._keyless = or_(self._keyless, *(one for one in unread if one is not None))
        return found

    def is_lost(self, watermark: Any) -> bool:
        """Whether a watermark can be no checkpoint."""
        return is_lost(self._backend, self._kind, watermark)

    def nothing(self) -> Select[Any]:
        """No row: what columns there are."""
        return self._all().limit(self._limit(0))

    def without_key(self, limit: int, columns: Columns | None = None) -> Select[Any]:
        """Return rows of which a part of the key is null, or cannot be read."""
        return self._all(columns).where(self._keyless).limit(self._limit(limit))

    def without_watermark(self, behind: Sequence[Any], limit: int, columns: Columns | None = None) -> Select[Any]:
        """Return rows whose watermark has no place, in the order of their key, behind a key or from the first."""
        keys = list(dict.fromkeys(self._order[1:]))
        found = self._all(columns).where(self._placeless, not_(self._keyless))
        if behind:
            found = found.where(self._compared(behind, "key"))
        return found.order_by(*keys).limit(self._limit(limit))

    def at_key(self, key: Sequence[Any], limit: int, columns: Columns | None = None) -> Select[Any]:
        """Return the rows of one key."""
        bound = [self._bound(f"redrive_key_{number}", value) for number, value in enumerate(key)]
        wanted = (one == value for one, value in zip(self._order[1:], bound, strict=True))
        return self._all(columns).where(*wanted).limit(self._limit(limit))

    def page(self, start: Any, behind: Sequence[Any] | None, limit: int) -> Select[Any]:
        """Rows behind a row; where there is none, from a watermark on; where there is none, from the first."""
        return self._sorted(self._all(), start, behind).limit(self._limit(limit))

    def newest(self) -> Select[Any]:
        """Return the greatest watermark."""
        watermark = self._order[0]
        found: Select[Any] = select(watermark).select_from(self._rows).where(not_(self._placeless))
        return found.order_by(watermark.desc()).limit(self._limit(1))

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
        """Return the first place behind another; both are of the watermark and the key, or of the key alone."""
        if len(place) == len(self.names):
            return self.places(None, place, 1)
        return self.without_watermark(place, 1, dict.fromkeys(self.names[1:]))

    def compared_places(
        self, start: Any, behind: Sequence[Any] | None, limit: int, place: Sequence[Any]
    ) -> Select[Any]:
        """Return the places of a page, and last of each whether it is behind `place` when the two are compared.

        All are of the watermark and the key, or of the key alone.
        """
        if len(place) == len(self.names):
            found = self.places(start, behind, limit)
        else:
            found = self.without_watermark(behind or (), limit, dict.fromkeys(self.names[1:]))
        is_behind = self._compared(place, "place")
        return found.add_columns(case((is_behind, 1), else_=0).label(IS_BEHIND))

    def _all(self, columns: Columns | None = None) -> Select[Any]:
        if columns is None:
            return select(literal_column("*")).select_from(self._rows)
        chosen = (
            (column(name) if form is None else cast(column(name), form)).label(name) for name, form in columns.items()
        )
        return select(*chosen).select_from(self._rows)

    def _sorted(self, rows: Select[Any], start: Any, behind: Sequence[Any] | None) -> Select[Any]:
        found = rows.where(not_(self._placeless), not_(self._keyless)).order_by(*self._order)
        if behind is not None:
            return found.where(self._compared(behind, "behind"))
        if start is None:
            return found
        # A number that is stepped back may be outside its type, and compares without it.
        as_type = self._casts[0] if isinstance(start, str | float) else None
        return found.where(self._order[0] >= self._bound("redrive_start", start, as_type))

    def _compared(self, place: Sequence[Any], name: str) -> ColumnElement[bool]:
        """What is true of rows behind a place, which is of the watermark and the key, or of the key alone."""
        columns = [*zip(self._order, self._casts, strict=True)][-len(place) :]
        terms = [
            (one, self._bound(f"redrive_{name}_{number}", value, as_type))
            for number, ((one, as_type), value) in enumerate(zip(columns, place, strict=True))
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
    """The SQL with every colon that begins no parameter escaped, ready to stand within parentheses."""
    named = set(_PARAMETER.findall(sql))
    unused = [name for name in parameters if name not in named]
    if unused:
        raise ValueError(f"the SQL has no :{unused[0]}, which parameters gives a value for")
    known = _PARAMETER.sub(lambda found: found[0] if found[1] in parameters else rf"\{found[0]}", sql)
    return known.rstrip(" \t\r\n;") + "\n"  # the last line may be a comment
