"""Values of Arrow tables that no Python record can hold: texts that are not UTF-8, maps with a key that comes twice.

Writers of Parquet check neither. polars would stop the process over such a text, and a dict would lose the first value
of such a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive._internal.optional import require_extra

with require_extra("rows"):
    import polars as pl
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import types

Unfit = dict[int, dict[str, Any]]
"""By the place of a row: its columns that do not fit, each with its value in a form that can be kept."""

TEXTS, MAPS = "not_utf_8", "repeated_keys"
REASONS = {TEXTS: "not UTF-8", MAPS: "a key comes twice in a map"}


def texts_not_utf_8(table: pa.Table) -> Unfit:
    """Find rows with a text that is not UTF-8; it is kept as bytes."""
    result: Unfit = {}
    for name in table.column_names:
        column = table[name]
        if not _holds_text(column.type) or _is_valid(column):
            continue
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        for place, value in enumerate(coarse(column.cast(_as_bytes(column.type))).to_pylist()):
            kept, is_bad = _kept(value, column.type)
            if is_bad:
                result.setdefault(place, {})[name] = kept
    return result


def maps_with_repeated_keys(table: pa.Table) -> Unfit:
    """Find rows with a map, however deep, in which a key comes twice; such maps are kept as lists of pairs."""
    result: Unfit = {}
    for field in table.schema:
        if not _holds_map(field.type):
            continue
        if not (suspects := _suspects(table[field.name])):
            continue
        column = coarse(table[field.name])
        for place in suspects:
            kept, is_bad = _kept_maps(column[place].as_py(), field.type)
            if is_bad:
                result.setdefault(place, {})[field.name] = kept
    return result


def _suspects(column: pa.ChunkedArray) -> Sequence[int]:
    """Return the rows to look at: of a plain map, those that polars finds at once; of others, all."""
    kind = column.type
    if not types.is_map(kind) or _holds_map(kind.item_type) or "decimal256" in str(kind):
        return range(len(column))
    value = pl.col("map")
    frame = pl.DataFrame(pl.from_arrow(pa.table({"map": column})))
    return frame.select(value.map.keys().list.n_unique() < value.map.len()).to_series().arg_true().to_list()


def _holds_map(kind: Any) -> bool:
    return types.is_map(kind) or any(_holds_map(kind.field(place).type) for place in range(kind.num_fields))


def _kept_maps(value: Any, kind: Any) -> tuple[Any, bool]:
    """Return a value as Arrow has it: objects for maps, but pairs where a key comes twice, and whether one does."""
    if value is None or not _holds_map(kind):
        return value, False
    if types.is_map(kind):
        items = [(key, *_kept_maps(item, kind.item_type)) for key, item in value]
        repeats = len({key for key, *_ in items}) < len(items)
        kept = [[key, item] for key, item, _ in items] if repeats else {key: item for key, item, _ in items}
        return kept, repeats or any(bad for *_, bad in items)
    if types.is_struct(kind):
        fields = {field.name: _kept_maps(value[field.name], field.type) for field in kind}
        return {name: element for name, (element, _) in fields.items()}, any(bad for _, bad in fields.values())
    parts = [_kept_maps(part, kind.value_type) for part in value]
    return [entry for entry, _ in parts], any(bad for _, bad in parts)


def require_edit(record: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    """Raise ValueError if a value that did not fit is still what it was."""
    for name in context.get(TEXTS, ()):
        if _has_bytes(record.get(name)):
            raise ValueError(f"{name} is not UTF-8: write the text that it should be into the letter, and replay it")
    for name in context.get(MAPS, ()):
        if _has_pairs(record.get(name)):
            raise ValueError(f"{name} is a map with a key that comes twice: write an object, and replay the letter")


def _holds_text(kind: Any) -> bool:
    if types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    if _is_text(kind):
        return True
    return any(_holds_text(kind.field(place).type) for place in range(kind.num_fields))


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _as_bytes(kind: Any) -> Any:
    """Return the type with bytes for texts."""
    if _is_text(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        made = pa.list_ if types.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(_as_bytes(kind.value_type)))
    return kind


def _kept(value: Any, kind: Any) -> tuple[Any, bool]:
    """Return a value that was read with bytes for texts: texts where they are UTF-8, and whether one is not."""
    if value is None:
        return None, False
    if _is_text(kind):
        try:
            return value.decode(), False
        except UnicodeDecodeError:
            return value, True
    if types.is_struct(kind):
        fields = {field.name: _kept(value[field.name], field.type) for field in kind}
        return {name: entry for name, (entry, _) in fields.items()}, any(bad for _, bad in fields.values())
    if types.is_map(kind):
        pairs = [(_kept(key, kind.key_type), _kept(item, kind.item_type)) for key, item in value]
        return [[key, item] for (key, _), (item, _) in pairs], any(key[1] or item[1] for key, item in pairs)
    if types.is_nested(kind):
        items = [_kept(part, kind.value_type) for part in value]
        return [element for element, _ in items], any(bad for _, bad in items)
    return value, False


def _has_bytes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_bytes, value.values()))
    return any(map(_has_bytes, value)) if isinstance(value, list) else isinstance(value, bytes)


def _has_pairs(value: Any) -> bool:
    """Return whether a value holds a map that is kept as pairs, because a key comes twice."""
    if isinstance(value, Mapping):
        return any(map(_has_pairs, value.values()))
    if not isinstance(value, list):
        return False
    keys = [repr(part[0]) for part in value if isinstance(part, list | tuple) and len(part) == 2]
    return (len(keys) == len(value) and len(set(keys)) < len(keys)) or any(map(_has_pairs, value))


def coarse(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with texts, or the number, for times of nanoseconds, which Python does not have."""
    kind = changed_type(column.type, _without_nanoseconds)
    # In UTC: the text of an offset has no seconds, which offsets of old times have.
    return column if kind == column.type else column.cast(changed_type(column.type, _in_utc)).cast(kind)


def _in_utc(kind: Any) -> Any:
    return pa.timestamp("ns", "UTC") if getattr(kind, "tz", None) and kind.unit == "ns" else kind


def _without_nanoseconds(kind: Any) -> Any:
    if getattr(kind, "unit", None) != "ns":
        return kind
    return pa.int64() if types.is_duration(kind) else pa.string()


def changed_type(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type, those that it is made of changed."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(changed_type(field.type, change)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(changed_type(kind.key_type, change), changed_type(kind.item_type, change))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(changed_type(kind.value_type, change)), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(changed_type(kind.value_type, change)))
    return change(kind)
