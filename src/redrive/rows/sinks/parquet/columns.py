"""Rows as columns of Parquet: the type of each, and the rows that do not fit it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from redrive._internal.optional import require_extra
from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.parquet.values import (
    has_nulls,
    is_writable,
    kinds_of,
    merged,
    misfits,
    plain,
    plain_values,
    type_of,
    type_of_most,
    with_pairs,
)
from redrive.rows.sinks.sink import isolate

with require_extra("rows"):
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]

_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def table_of(rows: Outgoing, known: pa.Schema | None, where: str) -> tuple[pa.Table, list[Refused]]:
    """Return a table of the known columns, or of those of the rows, and the rejected rows, which it does not have.

    Raises `SinkMismatch` if a column does not fit as a whole.
    """
    columns = _columns_of(rows)
    schema = _settled(columns, known, where)
    faults: dict[int, list[str]] = defaultdict(list)
    for name, column in columns.items():
        for place, fault in column.misfits(schema.field(name).type).items():
            faults[place].append(f"{name}: {fault}")
    kept = [place for place in range(len(rows)) if place not in faults]
    arrays = [
        columns[field.name].array(field.type, kept) if field.name in columns else pa.nulls(len(kept), field.type)
        for field in schema
    ]
    refused = [Refused(place, "; ".join(faults[place]), ErrorType.SINK) for place in sorted(faults)]
    return pa.Table.from_arrays(arrays, schema=schema), refused


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with exactly the columns of a schema; one that it lacks is null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _settled(columns: dict[str, _Column], known: pa.Schema | None, where: str) -> pa.Schema:
    """Return the schema of the table: known types stay; a column that was only null takes the type of the rows."""
    before = {} if known is None else {field.name: field.type for field in known}
    result = dict(before)
    for name, column in columns.items():
        has = before.get(name, pa.null())
        kind = column.settle(has)
        if kind is None:
            raise SinkMismatch(
                f"column {name!r} of {where} holds {has}, and these rows bring {column.brings}: "
                "transform it, or write to another dataset"
            )
        if not is_writable(kind):
            raise SinkMismatch(f"column {name!r} is {kind}, which Parquet cannot hold: transform it, or leave it out")
        result[name] = kind
    return pa.schema(list(result.items()))


def _columns_of(rows: Outgoing) -> dict[str, _Column]:
    frame = rows.as_frame
    if frame is None or any(_is_not_in_arrow(dtype) for dtype in frame.dtypes):
        return {name: _Values(rows.values(name), _map_type(rows.maps.get(name))) for name in rows.columns}
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    return {name: _Typed(table.column(name)) for name in table.column_names}


def _is_not_in_arrow(dtype: pl.DataType) -> bool:
    return dtype == pl.Object or "Int128" in repr(dtype)  # however deep


class _Column(Protocol):
    @property
    def brings(self) -> str:
        """Return what it holds, as messages name it."""

    def settle(self, has: pa.DataType) -> pa.DataType | None:
        """Return the type that it gets beside rows that have type `has`; None if they do not go together."""

    def misfits(self, kind: pa.DataType) -> dict[int, str]:
        """Return the places whose value this type cannot hold, and why."""

    def array(self, kind: pa.DataType, places: Sequence[int]) -> Any:
        """Return the values at these places."""


class _Typed:
    """A column of a frame: one type, known."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column.cast(plain(column.type))

    @property
    def brings(self) -> str:
        return str(self._column.type)

    def settle(self, has: pa.DataType) -> pa.DataType | None:
        return merged(has, self._column.type)

    def misfits(self, kind: pa.DataType) -> dict[int, str]:
        return _find_failures(len(self._column), lambda start, stop: self._column.slice(start, stop - start).cast(kind))

    def array(self, kind: pa.DataType, places: Sequence[int]) -> Any:
        fit = self._column if len(places) == len(self._column) else self._column.take(pa.array(places, pa.int64()))
        return fit.cast(kind)


class _Values:
    """A column of tuples: whatever came."""

    def __init__(self, values: Sequence[Any], map_type: pa.DataType | None = None) -> None:
        self._map_type = map_type
        self._values, self._deep = plain_values(values)
        self._kinds = kinds_of(self._values)

    @property
    def brings(self) -> str:
        return " and ".join(self._kinds)

    def settle(self, has: pa.DataType) -> pa.DataType | None:
        if not self._kinds:
            return has
        if pa.types.is_null(has) and self._map_type is not None:
            for kind in (self._map_type, self._map_of_values()):
                if kind is not None and not self.misfits(kind):
                    return kind
        if has_nulls(has):
            if {"float", "decimal"} <= self._kinds.keys():  # JSON numbers: a Decimal is one that no float holds
                self._use_decimals()
            result = merged(has, type_of_most(self._values, self._kinds))
            if result is not None:
                return result
        if pa.types.is_decimal(has) and "float" in self._kinds:
            self._use_decimals()
        return has  # the values that are something else are their rows' fault

    def _map_of_values(self) -> pa.DataType | None:
        """Return a map of what the values hold by now, such as texts for times with nanoseconds."""
        if self._map_type is None or not pa.types.is_map(self._map_type) or self._kinds.keys() != {"object"}:
            return None
        item = type_of([item for value in self._values if value is not None for item in value.values()])
        return None if item is None else pa.map_(self._map_type.key_type, item)

    def misfits(self, kind: pa.DataType) -> dict[int, str]:
        wrong = self._deep | misfits(self._values, self._kinds, kind)
        rest = (
            [None if place in wrong else value for place, value in enumerate(self._values)] if wrong else self._values
        )
        return wrong | _find_failures(len(rest), lambda start, stop: _array(rest[start:stop], kind))

    def array(self, kind: pa.DataType, places: Sequence[int]) -> Any:
        fit = self._values if len(places) == len(self._values) else [self._values[place] for place in places]
        return _array(fit, kind)

    def _use_decimals(self) -> None:
        """Write floats as the Decimals that they are written as."""
        self._values = [Decimal(repr(value)) if type(value) is float else value for value in self._values]
        self._kinds = kinds_of(self._values)


def _map_type(dtype: pl.DataType | None) -> pa.DataType | None:
    """Return the type of a column that has a map in it in the source, so that objects of a function stay a map."""
    if dtype is None:
        return None
    table = pl.DataFrame(schema={"map": dtype}).to_arrow(compat_level=pl.CompatLevel.oldest())
    return plain(table.schema.field("map").type)


def _array(values: Sequence[Any], kind: pa.DataType) -> Any:
    if "map<" in str(kind):
        values = [with_pairs(value, kind) for value in values]
    return pa.array(values, kind)


def _find_failures(count: int, convert: Callable[[int, int], Any]) -> dict[int, str]:
    """Return the places at which a conversion fails, looked for by halves where it fails at all."""

    def probe(start: int, stop: int) -> str | None:
        try:
            convert(start, stop)
        except MemoryError:
            raise
        except _UNFIT as error:
            return next(iter(str(error).strip().splitlines()), type(error).__name__)
        return None

    return {} if probe(0, count) is None else dict(isolate(count, probe))
