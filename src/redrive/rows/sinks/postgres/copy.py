"""Rows in the text format of COPY. It has one line for each row, so that the line of a fault is the row of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from io import BytesIO
from typing import Any
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.exact.capacity import ColumnCapacity, number_of
from redrive.rows.sinks.exact.columns import find_changes, is_no_time
from redrive.rows.sinks.exact.intervals import interval_text
from redrive.rows.sinks.postgres.types import StoredType, find_changes_by_type
from redrive.rows.sinks.table_schema import listed
from redrive.rows.sinks.values import (
    NESTED,
    Rules,
    adapt_columns,
    is_foreign,
    json_of_str,
    json_text,
    native,
    not_signaling,
)
from redrive.rows.to_polars import values_of

with require_extra("rows"):
    import polars as pl

with require_extra("postgres"):
    import psycopg

_SPECIAL = ["\\", "\n", "\r", "\t"]
_ESCAPED = ["\\\\", "\\n", "\\r", "\\t"]
_INTEGERS = ("int2", "int4", "int8")
_EXACT_SECONDS = 2.0**51 / 1_000_000  # up to 2041, a float of seconds rounds to the right microsecond
_NUMBERS = ("float4", "float8", "numeric")
_MOMENTS = ("timestamp", "timestamptz")
_JSON = ("json", "jsonb")
_TEXTS = ("text", "varchar", "bpchar", "citext", "name", "char")
_BYTES = (bytes, bytearray, memoryview)
_BYTEA = ("bytea",)
# Those that would read brackets and quotes as nothing, or as bytes.
_WITHOUT_PARTS = (*_BYTEA, *_MOMENTS, "date", "time", "timetz", "interval", "char")
_BASES = {
    **{"character varying": "varchar", "character": "bpchar", '"char"': "char", "boolean": "bool"},
    **{"smallint": "int2", "integer": "int4", "bigint": "int8"},
}
_IN_WORDS = {date, datetime, time, Decimal}
"""Types whose text is the same to Python, to the driver and to the server."""
_AS_THEY_ARE = {int: pl.Int64, float: pl.Float64, bool: pl.Boolean}
_WHOLE = 2.0**63
_FIRST_YEAR, _LAST_YEAR = 1, 9999
_FRAME_AT_ONCE = 4_096  # rows: the server reads one piece while we write the next

_UNSENDABLE = (psycopg.DataError, psycopg.ProgrammingError, TypeError, ValueError, OverflowError)


class UnsendableRow(Exception):
    """A row that the driver cannot put into words."""

    def __init__(self, place: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.place = place


class CopyText:
    """Rows as COPY takes them into columns of these types, as many at a time as asked for."""

    def __init__(self, rows: Outgoing, base_types: Sequence[str], types: Sequence[StoredType]) -> None:
        self.bad: dict[int, str] = {}
        """The rows that are not to be sent, by place, and why."""
        self.columns = rows.columns
        self._frame: pl.DataFrame | None = None
        self._tuples: Sequence[tuple[Any, ...]] = ()
        self._stored = dict(zip(rows.columns, types, strict=True))
        self._capacities = {
            name: ColumnCapacity.of(item.type) if item.is_plain else None for name, item in self._stored.items()
        }
        if rows.as_frame is not None:
            self._frame = self._textual(rows.as_frame, base_types, of_text=rows.of_text)
        if self._frame is None:
            columns: list[Sequence[Any]] = list(zip(*rows.tuples, strict=True))
            given = list(columns)
            rules = [_rules(*kinds, of_text=rows.of_text) for kinds in zip(base_types, types, strict=True)]
            self.bad = adapt_columns(columns, rules)
            words = [_format_values(*column) for column in zip(rows.columns, columns, base_types, strict=True)]
            for at, (name, base, series) in enumerate(zip(rows.columns, base_types, words, strict=True)):
                self._find_changed(name, base, columns[at] if series is None else series, given[at], columns[at])
            made = [series for series in words if series is not None]
            if len(made) == len(columns):
                self._frame = pl.DataFrame(made)
            else:
                self._tuples = list(zip(*columns, strict=True))

    def _textual(self, frame: pl.DataFrame, base_types: Sequence[str], *, of_text: bool) -> pl.DataFrame | None:
        """Return the frame with columns that are written as they are; None if it has values for the driver only.

        A value that is not of the column's own type is formatted by itself, so that a value has one text, whether it
        came in a frame or in a tuple.
        """
        made = []
        for series, base in zip(frame.get_columns(), base_types, strict=True):
            words: pl.Series | None
            sent: pl.Series | Sequence[Any] = series
            stored = self._stored[series.name]
            if series.dtype == pl.Object or (series.dtype.is_nested() and base == "array"):
                return None
            if _is_own(series.dtype, base) and (of_text or base not in _JSON):
                words = frame.select(_written(series, base).alias(series.name)).to_series()
            else:
                values: list[Sequence[Any]] = [_listed(series, self.bad)]
                self.bad.update(adapt_columns(values, [_rules(base, stored, of_text=of_text)]))
                sent = values[0]
                words = _format_values(series.name, sent, base)
            if words is None:
                return None
            # In words a moment is cut to what the server keeps.
            self._find_changed(series.name, base, words if words.dtype == pl.String else series, series, sent)
            made.append(words)
        return pl.DataFrame(made)

    def _find_changed(
        self,
        name: str,
        base: str,
        values: pl.Series | Sequence[Any],
        given: pl.Series | Sequence[Any],
        sent: pl.Series | Sequence[Any],
    ) -> None:
        """Reject values that the server would change.

        `given` are the same before they were put into words, `sent` before they were escaped.
        """
        capacity = self._capacities[name]
        is_float = isinstance(given, pl.Series) and given.dtype.is_float() and base in _INTEGERS
        if is_float or is_no_time(given, capacity):
            values = given
        elif _are_texts(sent):
            values = sent  # an escape such as "\\n" has a letter that the text has not
        for changes in (find_changes(values, capacity), find_changes_by_type(sent, self._stored[name])):
            for place, change in changes:
                self.bad.setdefault(place, f"{name}: {change}")

    def places(self, start: int, stop: int) -> Sequence[int]:
        """Return the rows of a range that are sent, one on each line."""
        return [place for place in range(start, stop) if place not in self.bad] if self.bad else range(start, stop)

    def with_nul(self) -> dict[int, str]:
        """Return the rows with the one character that no text of PostgreSQL can hold, by place."""
        message, bad = "a text of PostgreSQL cannot hold the character NUL", dict[int, str]()
        if self._frame is not None:
            for series in self._frame.get_columns():
                if series.dtype == pl.String:
                    for place in series.str.contains("\x00", literal=True).fill_null(False).arg_true():
                        bad.setdefault(place, f"{series.name}: {message}")
            return bad
        for place, row in enumerate(self._tuples):
            for name, value in zip(self.columns, row, strict=True):
                if isinstance(value, str) and "\x00" in value:
                    bad.setdefault(place, f"{name}: {message}")
        return bad

    def send(self, cursor: psycopg.Cursor[Any], into: str, start: int, stop: int, number: str | None = None) -> None:
        """Copy a range of the rows; `number` is the column that is to hold their numbers, where there is one."""
        columns = self.columns if number is None else (number, *self.columns)
        statement = f"COPY {into} ({listed(columns)}) FROM STDIN"
        if self._frame is None:
            with cursor.copy(statement) as copy:
                self._write_tuples(copy, self.places(start, stop), numbered=number is not None)
        else:
            with cursor.copy(f"{statement} (ENCODING 'UTF8')") as copy:
                self._write_frame(copy, self._frame, start, stop, number)

    def _write_tuples(self, copy: psycopg.Copy, places: Sequence[int], *, numbered: bool) -> None:
        for place in places:
            row = self._tuples[place]
            try:
                copy.write_row((place, *row) if numbered else row)
            except _UNSENDABLE as error:
                raise UnsendableRow(place, error) from error

    def _write_frame(self, copy: psycopg.Copy, frame: pl.DataFrame, start: int, stop: int, number: str | None) -> None:
        for first in range(start, stop, _FRAME_AT_ONCE):
            last = min(first + _FRAME_AT_ONCE, stop)
            piece = frame.slice(first, last - first)
            if number is not None:
                piece = piece.with_row_index(number, first)
            if self.bad:
                piece = piece[[place - first for place in self.places(first, last)]]
            copy.write(_lines(piece))


def _are_texts(values: pl.Series | Sequence[Any]) -> bool:
    if isinstance(values, pl.Series):
        return values.dtype in (pl.String, pl.Categorical, pl.Enum)
    return set(map(type, values)) <= {str, type(None)}


def _lines(frame: pl.DataFrame) -> bytes:
    lines = BytesIO()
    frame.write_csv(lines, include_header=False, separator="\t", quote_style="never", null_value="\\N")
    return lines.getvalue()


def _is_own(kind: pl.DataType, base: str) -> bool:
    """Return whether values of a frame's column are written exactly for a column of the table, or in Python's words."""
    if base in _BYTEA:
        return kind in (pl.Binary, pl.String, pl.Categorical, pl.Enum)
    if isinstance(kind, pl.Datetime):
        return base == "timestamptz" or (base == "timestamp" and kind.time_zone is None)
    if kind == pl.Date:
        return base == "date" or base in _MOMENTS
    if kind.is_float():
        return base in (*_INTEGERS, *_NUMBERS)
    for item, own in (
        (pl.Time, base == "time"),
        (pl.Binary, False),
        (pl.Decimal, base == "numeric"),
    ):
        if kind == item:
            return own
    return kind != pl.Duration and not kind.is_nested()


def _written(series: pl.Series, base: str) -> pl.Expr:
    kind, column = series.dtype, pl.lit(series)
    if kind in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String).str.replace_many(_SPECIAL, _ESCAPED)
    if kind == pl.Binary:
        return pl.lit("\\\\x") + column.bin.encode("hex")
    if kind == pl.Time:
        return (column.cast(pl.Int64) // 1_000 * 1_000).cast(pl.Time)  # the server would round what Python cuts off
    if kind == pl.Date or isinstance(kind, pl.Datetime):
        return _dated(series)
    if kind.is_float():
        column = column.cast(pl.Float64)
        if base in _INTEGERS:
            whole = (column == column.floor()) & (column.abs() < _WHOLE)
            number = column.cast(pl.Int64, strict=False).cast(pl.String)
            return pl.when(whole).then(number).otherwise(column.cast(pl.String))
    return column


def _dated(series: pl.Series) -> pl.Expr:
    """Days and moments; years of five digits and those before Christ as the server writes them itself."""
    form, zone = "-%m-%d", ""
    if isinstance(series.dtype, pl.Datetime):
        form += " %H:%M:%S%.6f"
        series = series.dt.cast_time_unit("us")
        if series.dtype.time_zone is not None:  # type: ignore[attr-defined]
            # An offset is written without its seconds, which old ones have.
            series, zone = series.dt.convert_time_zone("UTC"), "+00"
    column, year = pl.lit(series), series.dt.year()
    if ((year >= _FIRST_YEAR) & (year <= _LAST_YEAR)).all():
        return column
    number, rest = pl.lit(year), pl.lit(series.dt.strftime(form)) + pl.lit(zone)
    years = pl.when(number < _FIRST_YEAR).then(1 - number).otherwise(number)
    era = pl.when(number < _FIRST_YEAR).then(pl.lit(" BC")).otherwise(pl.lit(""))
    return years.cast(pl.String).str.zfill(4) + rest + era


def _listed(series: pl.Series, bad: dict[int, str]) -> list[Any]:
    """Return the values as Python has them; None for those it cannot have."""
    try:
        return values_of(series)
    except (ValueError, OverflowError):
        return [_value(series, place, bad) for place in range(len(series))]


def _value(series: pl.Series, place: int, bad: dict[int, str]) -> Any:
    try:
        return series[place]
    except (ValueError, OverflowError) as error:
        bad.setdefault(place, f"{series.name}: {error}")
        return None


def _format_values(name: str, values: Sequence[Any], base: str) -> pl.Series | None:
    """Plain values in words, three times as fast as the driver writes them; None if there are others."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1:
        return None
    (kind,) = kinds or {str}
    try:
        if kind is str:
            return pl.Series(name, values, dtype=pl.String).str.replace_many(_SPECIAL, _ESCAPED)
        if kind is datetime and base == "timestamptz" and (moments := _moments(name, values)) is not None:
            return moments
        if kind in _IN_WORDS or (kind is float and base not in _NUMBERS):
            return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
        if kind in _AS_THEY_ARE:
            return pl.Series(name, values, dtype=_AS_THEY_ARE[kind])
    except (TypeError, OverflowError, UnicodeEncodeError, pl.exceptions.PolarsError):
        pass  # an integer too large, half a character
    return None


def _moments(name: str, values: Sequence[datetime | None]) -> pl.Series | None:
    """Moments with a zone as polars writes them, five times as fast as Python; None if some are not to be had so."""
    if any(value is not None and value.tzinfo is None for value in values):
        return None
    seconds = pl.Series(name, [None if item is None else item.timestamp() for item in values], dtype=pl.Float64)
    if (seconds.abs() > _EXACT_SECONDS).any():
        return None
    return (seconds * 1_000_000).round().cast(pl.Int64).cast(pl.Datetime("us", "UTC"))


def _whole(value: float) -> int | float:
    if not value.is_integer():
        return value
    if number_of(value) != int(value):
        raise ValueError(f"{value} is {int(value)} as a float; pass it as an integer or a text")
    return int(value)


def _refusal(why: str) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise TypeError(why)

    return refuse


_UNDECODED = dict.fromkeys(_BYTES, _refusal("the column takes text; decode bytes in a transform"))
_NO_BYTES = dict.fromkeys(_BYTES, _refusal("the column takes no bytes; decode them in a transform"))
_NO_PARTS = dict.fromkeys(NESTED, _refusal("the column takes no lists and no objects"))


def _rules(base: str, stored: StoredType, *, of_text: bool) -> Rules:
    """Return what the driver would write in another way than the column reads it, or not at all."""
    if base in _JSON:
        return {object: json_text, str: str if of_text else json_of_str, type(None): lambda nothing: nothing}
    if base == "array" and stored.type in _JSON:
        return dict.fromkeys((list, tuple, set, frozenset), _json_elements)
    if base == "array":
        elements = _scalar_rules(_BASES.get(stored.type) or stored.type.partition("(")[0])
        return dict.fromkeys((list, tuple, set, frozenset), lambda value: _adapted(value, elements)) | {UUID: str}
    rules = {**NESTED, **_scalar_rules(base)}
    return rules | _NO_PARTS if stored.is_range or base in _WITHOUT_PARTS else rules


def _json_elements(values: Iterable[Any]) -> list[str | None]:
    """Return the elements of an array of JSON, each a text: a list among them is JSON, not a dimension of the array."""
    return [
        None if value is None else json_of_str(value) if isinstance(value, str) else json_text(value)
        for value in values
    ]


def _scalar_rules(base: str) -> Rules:
    if base in _BYTEA:
        return {object: _refusal("bytea takes bytes"), **dict.fromkeys((*_BYTES, str), _same), type(None): _same}
    rules: dict[type, Any] = {UUID: str, timedelta: interval_text if base.startswith("interval") else _length}
    if base != "bool":
        rules[bool] = json_text
    if base in _INTEGERS:
        rules[float] = _whole
    return rules | (_UNDECODED if base in _TEXTS else _NO_BYTES)  # as text, "\\x…", which some types read as a value


def _adapted(values: Iterable[Any], rules: Rules) -> list[Any]:
    """Return the elements of an array as the driver is to write them."""
    return [_adapted_element(value, rules) for value in values]


def _adapted_element(value: Any, rules: Rules) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if is_foreign(type(value)):
        value = native(value)
    if isinstance(value, list | tuple):
        return _adapted(value, rules)
    convert = next((rules[base] for base in type(not_signaling(value)).__mro__ if base in rules), None)
    return value if convert is None else convert(value)


def _length(value: timedelta) -> str:
    return str(value).replace(",", "")


def _same(value: Any) -> Any:
    return value


def faulty_line(context: str | None, table: str, columns: Sequence[str]) -> tuple[int, str | None] | None:
    """Return the line at which COPY failed, from 1, and the column if it is named, in any language of the server."""
    for line in (context or "").splitlines():
        _, separator, behind = line.partition(table)
        if separator and (number := re.search(r"\d+", behind)):
            place = behind[number.end() :].partition(": ")[0]
            named = sorted((name for name in columns if place.endswith(f" {name}")), key=len)
            return int(number[0]), named[-1] if named else None
    return None
