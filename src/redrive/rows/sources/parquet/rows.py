"""Rows of Arrow tables: as polars and Python can have them, and those that they cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.batch import Received, Unreadable
from redrive.rows.sources.parquet.unfit_values import (
    MAPS,
    REASONS,
    TEXTS,
    changed_type,
    coarse,
    maps_with_repeated_keys,
    texts_not_utf_8,
)
from redrive.rows.to_polars import values_of

with require_extra("rows"):
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]

_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_PER_DAY = {"ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def rows_of(table: pa.Table, first: int) -> tuple[Received, Sequence[int], list[Unreadable]]:
    """Return the rows of a table with their places in it, and those that hold a value which no record can hold.

    `first` is the place of the table's own first row in its file.
    """
    table = _in_known_zones(table)
    places: Sequence[int] = range(len(table))
    unreadable: list[Unreadable] = []
    for kind, find in ((TEXTS, texts_not_utf_8), (MAPS, maps_with_repeated_keys)):
        if unfit := find(table):
            unreadable += [_unfit(table, kind, place, unfit[place], first + places[place]) for place in unfit]
            table, places = _take(table, places, [place for place in range(len(table)) if place not in unfit])
    frame = _frame_of(table)
    beyond = _out_of_range(frame, table)
    if beyond is not None:
        bad = beyond.select(pl.any_horizontal(pl.all())).to_series()
        unreadable += [_unreadable(table, beyond, place, first + places[place]) for place in bad.arg_true()]
        frame = frame.filter(~bad)
        table, places = _take(table, places, (~bad).arg_true().to_list())
    return _received(frame, table), places, unreadable


def _take(table: pa.Table, places: Sequence[int], kept: list[int]) -> tuple[pa.Table, Sequence[int]]:
    return table.take(pa.array(kept, pa.int64())), [places[place] for place in kept]


def _frame_of(table: pa.Table) -> pl.DataFrame:
    """Return the columns that polars can have."""
    names = [field.name for field in table.schema if not _is_beyond_polars(field.type)]
    # Without the metadata of the fields: polars panics over one that is not UTF-8.
    table_of_polars = pa.table([table[name] for name in names], names)
    if "fixed_size_list" in str(table_of_polars.schema.types):
        # Of one that begins within an array polars takes the whole mask of nulls, and fails.
        table_of_polars = pa.concat_tables([table_of_polars.slice(0, 0), table_of_polars]).combine_chunks()
    frame = pl.from_arrow(table_of_polars)
    assert isinstance(frame, pl.DataFrame)
    uuids = [uuid_text(field.name) for field in table.schema if isinstance(field.type, pa.UuidType)]
    # Categories are how texts were packed.
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String), *uuids)


def uuid_text(name: str) -> pl.Expr:
    """Return the bytes of UUIDs as texts: polars has no such type, and every database takes the text."""
    digits = pl.col(name).bin.encode("hex")
    parts = [digits.str.slice(start, length) for start, length in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    return pl.concat_str(parts, separator="-").alias(name)


def _received(frame: pl.DataFrame, table: pa.Table) -> Received:
    names = table.column_names
    if frame.width == len(names):
        return Received(frame)
    columns = [values_of(frame[name]) if name in frame.columns else _listed(table[name]) for name in names]
    return Received([dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])


def _listed(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = coarse(column).to_pylist(maps_as_pydicts="strict")  # no key comes twice by now
    return values


def _is_beyond_polars(kind: Any) -> bool:
    """Return whether polars would stop the process over values of this type."""
    if pa.types.is_dictionary(kind):
        return _is_beyond_polars(kind.value_type)
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    # Arrow makes UUIDs of those within lists and objects; polars would make bytes of them.
    return bool(pa.types.is_decimal256(kind)) or any(
        isinstance(item, pa.UuidType) or _is_beyond_polars(item) for item in inner
    )


# ── values out of range ───────────────────────────────────────────────────────────────────────────────────────────────


def _out_of_range(frame: pl.DataFrame, table: pa.Table) -> pl.DataFrame | None:
    """For each column that holds such a value, which rows do; None if there is none."""
    tests = {name: _is_out_of_range(pl.col(name), dtype) for name, dtype in frame.schema.items()}
    tested = frame.select(test.fill_null(False).alias(name) for name, test in tests.items() if test is not None)
    flags = [flag for flag in tested.iter_columns() if flag.any()]
    # polars converts a time beyond 24 hours to null without an error.
    lost = [column for column in frame.iter_columns() if column.null_count() > table[column.name].null_count]
    flags += [column.is_null() & ~pl.Series(table[column.name].is_null()) for column in lost]
    return pl.DataFrame(flags) if flags else None


def _is_out_of_range(value: pl.Expr, dtype: pl.DataType) -> pl.Expr | None:
    """Return whether Python has no such value, as an expression; None if it has every value of the type."""
    match dtype:
        case pl.Date():
            return ~value.to_physical().is_between(_FIRST_DAY, _LAST_DAY)
        case pl.Datetime():
            return _is_no_moment(value, dtype)
        case pl.Duration(time_unit="ms"):
            most = timedelta.max.days * _PER_DAY["ms"]
            return ~value.to_physical().is_between(-most, most)
        case pl.List():
            inner = _is_out_of_range(pl.element(), _inner(dtype))
            return None if inner is None else value.list.eval(inner).list.any()
        case pl.Array():
            return _is_out_of_range(value.arr.to_list(), pl.List(_inner(dtype)))
        case pl.Map():
            entry = pl.Struct({"key": dtype.key, "value": dtype.value})
            return _is_out_of_range(value.map.entries(), pl.List(entry))
        case pl.Struct():
            tests = [_is_out_of_range(value.struct.field(field.name), _known(field.dtype)) for field in dtype.fields]
            some = [test for test in tests if test is not None]
            return pl.any_horizontal(some) if some else None
    return None


def _is_no_moment(value: pl.Expr, dtype: pl.Datetime) -> pl.Expr | None:
    if dtype.time_unit == "ns":
        return None
    day = _PER_DAY[dtype.time_unit]
    first, last = _FIRST_DAY * day, (_LAST_DAY + 1) * day - 1
    inside = value.to_physical().is_between(first, last)
    if dtype.time_zone is not None:
        # In the zone it may be the year 10000 already. Farther out polars would panic over the zone.
        there = pl.when(inside).then(value).dt.replace_time_zone(None)
        inside &= there.to_physical().is_between(first, last)
    return ~inside


def _inner(dtype: pl.List | pl.Array) -> pl.DataType:
    return _known(dtype.inner)


def _known(dtype: Any) -> pl.DataType:
    made: pl.DataType = dtype() if isinstance(dtype, type) else dtype
    return made


def _unreadable(table: pa.Table, beyond: pl.DataFrame, place: int, number: int) -> Unreadable:
    """Return a row with a value out of range, that value as a text; `number` is its place in the file."""
    names = [name for name in beyond.columns if beyond[name][place]]
    row = table.slice(place, 1)
    why = f"{', '.join(names)}: out of range; dates and times go from the year 1 to 9999"
    return Unreadable(_row(table, place, {name: _as_text(row[name]) for name in names}), why, f"row {number + 1}")


def _unfit(table: pa.Table, kind: str, place: int, values: Mapping[str, Any], number: int) -> Unreadable:
    """Return a row with values that no record can hold, as they can be kept; `number` is its place in the file."""
    why = f"{', '.join(values)}: {REASONS[kind]}"
    return Unreadable(_row(table, place, values), why, f"row {number + 1}", context={kind: list(values)})


def _row(table: pa.Table, place: int, instead: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as it was received, with some values in another form."""
    row = table.slice(place, 1)
    columns = {name: row.select([name]) for name in table.column_names if name not in instead}
    values = {name: _plain_value(name, column) for name, column in columns.items()}
    return {name: instead[name] if name in instead else values[name] for name in table.column_names}


def _plain_value(name: str, column: pa.Table) -> Any:
    if unfit := maps_with_repeated_keys(column):
        return unfit[0][name]
    frame = _frame_of(column)
    beyond = _out_of_range(frame, column)
    return _as_text(column[name]) if beyond is not None else _received(frame, column).records[0][name]


def _as_text(column: pa.ChunkedArray) -> Any:
    """Return the only value of a column, all dates and times in it as texts, on the clock of UTC."""
    # Cast by itself: of a type with a zone, UTC or another, Arrow writes other years so far out.
    on_one_clock = column.cast(
        changed_type(column.type, lambda kind: pa.timestamp(kind.unit) if _has_zone(kind) else kind)
    )
    return on_one_clock.cast(changed_type(on_one_clock.type, _text_type)).to_pylist()[0]


def _text_type(kind: Any) -> Any:
    return pa.string() if pa.types.is_temporal(kind) else kind


# ── time zones ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_known_zones(table: pa.Table) -> pa.Table:
    """Return the table with the same moments in UTC where polars does not know their zone, such as "+05:30"."""
    kinds = [changed_type(field.type, _in_known_zone) for field in table.schema]
    if kinds == table.schema.types:
        return table
    return table.cast(pa.schema([field.with_type(kind) for field, kind in zip(table.schema, kinds, strict=True)]))


def _in_known_zone(kind: Any) -> Any:
    return pa.timestamp(kind.unit, "UTC") if _has_zone(kind) and not _is_known(kind.tz) else kind


def _has_zone(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


@cache
def _is_known(zone: str) -> bool:
    try:
        pl.Series([], dtype=pl.Datetime("us", zone))
    except pl.exceptions.PolarsError:
        return False
    return True
