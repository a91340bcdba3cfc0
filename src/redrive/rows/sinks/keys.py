"""Compare values as a table compares them: keys of rows, and texts of the column that `newer` names.

`1` and `01` are one key of an integer column, and `a` and `A` may be one of a text column. Values of the column's own
type are used as they are. Others are cast by polars if that is exact, and by the database if it is not, so that a key
has the same value in every batch and run.

Texts can be compared by `newer` only if they sort by what they mean: dates and times of one format. Numbers do not: as
texts, "10" comes before "9".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Literal, NoReturn
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.errors import SinkMismatch
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table_schema import TableName

with require_extra("rows"):
    import polars as pl

_ISO = re.compile(
    r"(\d{4}-\d{2}-\d{2}|\d{8})"
    r"(?:([T ])(\d{2}:\d{2}(?::\d{2})?|\d{4}(?:\d{2})?)([.,]\d+)?( ?(?:Z|z|UTC|[+-]\d{2}(?::?\d{2})?))?)?"
)
_ADVICE = (
    "give the column a type of numbers, dates or timestamps, or write dates and times in one form, as "
    "2026-07-01T12:00:00Z"
)
_NUMBER = "number"
_SAMPLE = 1_000


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


KeyQuery = Callable[[Outgoing], Sequence[Sequence[Any]]]
"""Returns the columns of rows with equal values for what the database takes for the same: integers as such, texts of
anything else. A value that the column does not take stays as it is."""


def compared(rows: Outgoing, kinds: Mapping[str, KeyKind], ask: KeyQuery) -> Outgoing | None:
    """Return the key of rows as the table compares it; None if the rows have it so.

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
    """Return the rows with these columns, a frame where they are one."""
    if rows.as_frame is None:
        return rows.onto(names)
    made = Outgoing.of_frame(rows.as_frame.select(names), rows.origin)
    made.of_text = rows.of_text
    return made


def _own(rows: Outgoing, name: str, kind: KeyKind) -> pl.Series | list[str] | Literal[True] | None:
    """Return the values of a column where they need not be asked for: True if they are what they should be; or None."""
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
    """Return the moments of texts that are all of ISO 8601; None if only the database may be able to read some."""
    if not texts.str.contains(f"{_ISO_MOMENT}{_ISO_ZONE if has_zone else ''}$").all():
        return None
    plain, form = texts.str.replace(" ", "T", literal=True), "%Y-%m-%dT%H:%M:%S%.f"
    if has_zone:
        plain, form = plain.str.replace("Z", "+00:00", literal=True), f"{form}%:z"
    moments = plain.str.to_datetime(form, time_unit="us", strict=False)
    years = moments.dt.year()
    return None if moments.null_count() or not years.is_between(1, 9999).all() else moments


class TextOrder:
    """The values of a column that a row must have a greater one of to be newer."""

    def __init__(self, table: TableName, column: str) -> None:
        self._table, self._column = table, column
        self._form: str | None = None

    def faults(
        self,
        values: Sequence[Any],
        stored: Callable[[int], Sequence[Any]],
        replaced: Callable[[Sequence[int]], Mapping[int, Any]],
        *,
        takes_numbers: bool,
    ) -> dict[int, str]:
        """Return the values that cannot be compared as texts with the others, by place, and why.

        Args:
            stored: returns values that the table has, as many as asked for at most.
            replaced: returns the values that the table has for the keys of the rows at these places, by place.
            takes_numbers: whether the column keeps numbers as such.

        Raises:
            SinkMismatch: no value of the column can, or those of the table cannot.
        """
        forms = [None if value is None else _form(value, takes_numbers=takes_numbers) for value in values]
        if self._form is None and (some := stored(_SAMPLE)):
            # Which rows a table returns first is chance, so that most of them count. A row that replaces another is
            # compared with the form of that one below.
            known = Counter(form for value in some if (form := _form(_unpadded(value), takes_numbers=takes_numbers)))
            coming = Counter(forms)
            likely = sorted(known, key=lambda form: (-known[form], -coming[form], form))
            self._form = likely[0] if likely else self._refuse(some[0])
        given = [at for at, value in enumerate(values) if value is not None]
        if self._form is None and given:
            self._form = next((forms[at] for at in given if forms[at]), None) or self._refuse(values[given[0]])
        faults = {
            at: f"{self._column}: {values[at]!r} cannot be compared as a text with the values of other rows; {_ADVICE}"
            for at in given
            if forms[at] != self._form
        }
        for at, value in replaced([at for at in given if at not in faults]).items():
            if value is not None and _form(_unpadded(value), takes_numbers=takes_numbers) != self._form:
                faults[at] = (
                    f"{self._column}: {values[at]!r} cannot be compared as a text with {str(value)[:40]!r}, which the "
                    f"table has for this key; {_ADVICE}"
                )
        return faults

    def refuse_type(self, kind: str) -> NoReturn:
        """Raise for a column of a type whose values do not sort by what they mean."""
        raise SinkMismatch(
            f"{self._table} is updated where {self._column!r} is newer, and values of the type {kind} do not sort by "
            "what they mean: give the column a type of numbers, dates or timestamps"
        )

    def _refuse(self, value: Any) -> str:
        raise SinkMismatch(
            f"{self._table} is updated where {self._column!r} is newer, and texts such as {str(value)[:40]!r} do not "
            f"sort by what they mean: {_ADVICE}"
        )


def _unpadded(value: Any) -> Any:
    """Return a value of the table without the spaces with which CHAR(n) fills it up; they count in no comparison."""
    return value.rstrip(" ") if isinstance(value, str) else value


def _form(value: Any, *, takes_numbers: bool) -> str | None:
    """Return what values must have in common to sort as texts; None if a value never does."""
    if isinstance(value, int | float):
        return _NUMBER if takes_numbers else None
    match = _ISO.fullmatch(str(value)) if isinstance(value, str | date) else None
    if match is None:
        return None
    day, separator, clock, fraction, zone = (part or "" for part in match.groups())
    # A fraction sorts after none, and before an offset, but not before a letter.
    digits = len(fraction) if zone[-1:].isalpha() else 0
    zone = re.sub(r"^( ?[+-]\d{2}):?00$", r"\1", zone)  # databases write +00 for +00:00
    return re.sub(r"\d", "0", f"{day}{separator}{clock}") + f" {digits} {zone}"
