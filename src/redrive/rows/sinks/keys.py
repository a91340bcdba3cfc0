"""Keys of rows as a table compares them: `1` and `01` are one key of an integer column, `a` and `A` may be.

Values that are of the column's own type need nothing. Others are cast by polars where that is exact, and by the
database itself where it is not, so that the same key has the same value here, whatever batch or run it comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing

with require_extra("rows"):
    import polars as pl

_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_MOMENT = "%Y-%m-%d %H:%M:%S%.6f"
_ISO_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_ISO_ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})"


class KeyKind(StrEnum):
    """What values of a key column are known without asking the database."""

    INTEGER = "integer"
    """An integer is itself."""
    TEXT = "text"
    """A text is itself, and equals no other."""
    UUID = "uuid"
    DATE = "date"
    MOMENT = "moment"
    """A timestamp without a zone, with microseconds."""
    INSTANT = "instant"
    """A timestamp with its zone, with microseconds."""
    OTHER = "other"
    """None: the database is asked."""


Ask = Callable[[Outgoing], Sequence[Sequence[Any]]]
"""Returns the columns of rows with equal values for what the database takes for the same: integers as such, texts of
anything else. A value that the column does not take stays as it is."""


def compared(rows: Outgoing, kinds: Mapping[str, KeyKind], ask: Ask) -> Outgoing | None:
    """Return the key of rows as the table compares it; None where the rows have it so.

    Args:
        kinds: the kind of each column of the key.
    """
    own = {name: _own(rows, name, kind) for name, kind in kinds.items()}
    if all(values is True for values in own.values()):
        return None
    asked = [name for name, values in own.items() if values is None]
    answers = dict(zip(asked, ask(_only(rows, asked)), strict=True)) if asked else {}
    if rows.as_frame is not None and not asked:
        cast = [values for values in own.values() if isinstance(values, pl.Series)]
        return Outgoing.of_frame(rows.as_frame.select(list(kinds)).with_columns(cast), rows.origin)
    columns = [
        answers[name] if values is None else rows.values(name) if values is True else list(values)
        for name, values in own.items()
    ]
    return Outgoing(tuple(kinds), rows.origin, tuples=list(zip(*columns, strict=True)))


def _only(rows: Outgoing, names: Sequence[str]) -> Outgoing:
    """The rows with these columns, a frame where they are one."""
    if rows.as_frame is None:
        return rows.onto(names)
    made = Outgoing.of_frame(rows.as_frame.select(names), rows.origin)
    made.of_text = rows.of_text
    return made


def _own(rows: Outgoing, name: str, kind: KeyKind) -> pl.Series | list[str] | Literal[True] | None:
    """The values of a column where they need not be asked for: True where they are what they should be; or None."""
    if kind is KeyKind.OTHER:
        return None
    if rows.as_frame is not None:
        return _of_series(rows.as_frame.get_column(name), kind)
    values = rows.values(name)
    types = set(map(type, values))
    if len(types) != 1:
        return None
    (only,) = types
    if only is int:
        return True if kind is KeyKind.INTEGER else None
    if only is UUID and kind is KeyKind.UUID:
        return list(map(str, values))
    if only is date and kind is KeyKind.DATE:
        return [value.isoformat() for value in values]
    if only is str and kind is KeyKind.TEXT:
        return True
    if only not in (str, datetime):
        return None
    try:
        return _of_series(pl.Series(name, values), kind)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return None  # half a character, a time of another calendar


def _of_series(series: pl.Series, kind: KeyKind) -> pl.Series | Literal[True] | None:
    dtype = series.dtype
    if dtype in (pl.Categorical, pl.Enum):
        return series.cast(pl.String) if kind is KeyKind.TEXT else None
    if dtype == pl.String:
        if kind is KeyKind.TEXT:
            return True
        if kind is KeyKind.INTEGER and series.str.contains(_INTEGER).all():
            return series.cast(pl.Int64)
        if kind in (KeyKind.MOMENT, KeyKind.INSTANT):
            moments = _moments(series, has_zone=kind is KeyKind.INSTANT)
            return None if moments is None else _of_series(moments, kind)
        form = {KeyKind.UUID: _UUID, KeyKind.DATE: _DATE}.get(kind)
        return True if form is not None and series.str.contains(form).all() else None
    if dtype.is_integer():
        return True if kind is KeyKind.INTEGER else None
    if dtype == pl.Date and kind is KeyKind.DATE:
        return series.dt.strftime("%Y-%m-%d")
    if isinstance(dtype, pl.Datetime):
        if kind is KeyKind.MOMENT and dtype.time_zone is None:
            return series.dt.cast_time_unit("us").dt.strftime(_MOMENT)
        if kind is KeyKind.INSTANT and dtype.time_zone is not None:
            return series.dt.cast_time_unit("us").dt.convert_time_zone("UTC").dt.strftime(_MOMENT)
    return None


def _moments(texts: pl.Series, *, has_zone: bool) -> pl.Series | None:
    """The moments of texts that are all written by ISO 8601; None where only the database may be able to read some."""
    if not texts.str.contains(f"{_ISO_MOMENT}{_ISO_ZONE if has_zone else ''}$").all():
        return None
    plain, form = texts.str.replace(" ", "T", literal=True), "%Y-%m-%dT%H:%M:%S%.f"
    if has_zone:
        plain, form = plain.str.replace("Z", "+00:00", literal=True), f"{form}%:z"
    moments = plain.str.to_datetime(form, time_unit="us", strict=False)
    years = moments.dt.year()
    return None if moments.null_count() or not years.is_between(1, 9999).all() else moments
