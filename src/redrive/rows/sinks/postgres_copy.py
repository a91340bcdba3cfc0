"""Rows in the text format of COPY. It has one line for each row, so that the line of a fault is the row of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

from redrive.extras import needs
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.shape import listed
from redrive.rows.sinks.values import NESTED, Rules, adapt_columns, json_text

with needs("rows"):
    import polars as pl
with needs("postgres"):
    import psycopg

_SPECIAL = ["\\", "\n", "\r", "\t"]
_ESCAPED = ["\\\\", "\\n", "\\r", "\\t"]
_INTEGERS = ("int2", "int4", "int8")
_NUMBERS = ("float4", "float8", "numeric")
_IN_WORDS = {date, datetime, Decimal, UUID}
"""Types whose text is the same to Python, to the driver and to the server."""
_AS_THEY_ARE = {int: pl.Int64, float: pl.Float64, bool: pl.Boolean}
_WHOLE = 2.0**63
_FRAME_AT_ONCE = 4_096  # rows: the server reads one piece while we write the next

_UNSENDABLE = (psycopg.DataError, psycopg.ProgrammingError, TypeError, ValueError, OverflowError)


class Unsendable(Exception):
    """A row that the driver cannot put into words."""

    def __init__(self, place: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.place = place


class CopyText:
    """Rows as COPY takes them into columns of these types, as many at a time as asked for."""

    def __init__(self, rows: Outgoing, base_types: Sequence[str]) -> None:
        self.bad: dict[int, str] = {}
        """The rows that are not to be sent, by place, and why."""
        self.columns = rows.columns
        self._frame = None if rows.as_frame is None else _textual(rows.as_frame, base_types)
        self._tuples: Sequence[tuple[Any, ...]] = ()
        if self._frame is None:
            columns: list[Sequence[Any]] = list(zip(*rows.tuples, strict=True))
            self.bad = adapt_columns(columns, [_rules(base) for base in base_types])
            self._frame = _frame_of(rows.columns, columns, base_types)
            if self._frame is None:
                self._tuples = list(zip(*columns, strict=True))

    def places(self, start: int, stop: int) -> Sequence[int]:
        """The rows of a range that are sent, one on each line."""
        return [place for place in range(start, stop) if place not in self.bad] if self.bad else range(start, stop)

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
                raise Unsendable(place, error) from error

    def _write_frame(self, copy: psycopg.Copy, frame: pl.DataFrame, start: int, stop: int, number: str | None) -> None:
        for first in range(start, stop, _FRAME_AT_ONCE):
            last = min(first + _FRAME_AT_ONCE, stop)
            piece = frame.slice(first, last - first)
            if number is not None:
                piece = piece.with_row_index(number, first)
            if self.bad:
                piece = piece[[place - first for place in self.places(first, last)]]
            copy.write(_lines(piece))


def _lines(frame: pl.DataFrame) -> bytes:
    lines = BytesIO()
    frame.write_csv(lines, include_header=False, separator="\t", quote_style="never", null_value="\\N")
    return lines.getvalue()


def _textual(frame: pl.DataFrame, base_types: Sequence[str]) -> pl.DataFrame | None:
    """The frame with columns that can be written as they are; None where it has values that only the driver knows."""
    made = []
    for series, base in zip(frame.get_columns(), base_types, strict=True):
        if series.dtype == pl.Object or (series.dtype.is_nested() and base == "array"):
            return None
        try:
            plain = _json(series) if series.dtype.is_nested() else series
        except (TypeError, ValueError):
            return None
        made.append(_written(pl.lit(plain), plain.dtype, base).alias(series.name))
    return frame.select(made)


def _frame_of(names: Sequence[str], columns: Sequence[Sequence[Any]], base_types: Sequence[str]) -> pl.DataFrame | None:
    """Columns of plain values in words, three times as fast as the driver writes them; None where there are others."""
    made = []
    for name, values, base in zip(names, columns, base_types, strict=True):
        kinds = set(map(type, values)) - {type(None)}
        if len(kinds) > 1:
            return None
        (kind,) = kinds or {str}
        try:
            if kind is str:
                texts = pl.Series(name, values, dtype=pl.String)
                made.append(texts.str.replace_many(_SPECIAL, _ESCAPED))
            elif kind in _IN_WORDS or (kind is float and base not in _NUMBERS):
                made.append(pl.Series(name, [None if one is None else str(one) for one in values], dtype=pl.String))
            elif kind in _AS_THEY_ARE:
                made.append(pl.Series(name, values, dtype=_AS_THEY_ARE[kind]))
            else:
                return None
        except (OverflowError, UnicodeEncodeError, pl.exceptions.PolarsError):  # an integer too large, half a character
            return None
    return pl.DataFrame(made)


def _json(series: pl.Series) -> pl.Series:
    texts = [None if value is None else json_text(value) for value in series.to_list()]
    return pl.Series(series.name, texts, dtype=pl.String)


def _written(column: pl.Expr, kind: pl.DataType, base: str) -> pl.Expr:
    if kind in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String).str.replace_many(_SPECIAL, _ESCAPED)
    if kind == pl.Binary:
        return pl.lit("\\\\x") + column.bin.encode("hex")
    if kind == pl.Duration:
        return column.dt.total_microseconds().cast(pl.String) + pl.lit(" microseconds")
    if isinstance(kind, pl.Datetime) and kind.time_zone is not None and base == "timestamptz":
        return column.dt.convert_time_zone("UTC")  # an offset is written without its seconds, which old ones have
    if kind.is_float() and base in _INTEGERS:
        whole = (column == column.floor()) & (column.abs() < _WHOLE)
        return (
            pl.when(whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column.cast(pl.String))
        )
    return column


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _rules(base: str) -> Rules:
    """What the driver would write in another way than the column reads it, or not at all."""
    if base in ("json", "jsonb"):
        return {object: json_text, str: str, type(None): lambda nothing: nothing}
    rules: dict[type, Any] = dict.fromkeys((tuple, set, frozenset), list) if base == "array" else dict(NESTED)
    if base != "bool":
        rules[bool] = json_text
    if base in _INTEGERS:
        rules[float] = _whole
    return rules


def faulty_line(context: str | None, table: str, columns: Sequence[str]) -> tuple[int, str | None] | None:
    """The line that COPY stumbled over, from 1, and the column where it is told; in whatever language that is said."""
    for told in (context or "").splitlines():
        _, found, behind = told.partition(table)
        if found and (number := re.search(r"\d+", behind)):
            place = behind[number.end() :].partition(": ")[0]
            named = sorted((name for name in columns if place.endswith(f" {name}")), key=len)
            return int(number[0]), named[-1] if named else None
    return None
