"""The types of a Parquet dataset: when those of two batches are the same, and what they are together."""

from __future__ import annotations

from redrive._internal.optional import require_extra

with require_extra("rows"):
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import types


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema by which batches and files are compared."""
    return pa.schema([(field.name, plain(field.type)) for field in schema])


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without what does not count: how values are packed, and the zone that an instant is shown in."""
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, None if kind.tz is None else "UTC")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, plain(field.type)) for field in kind])
    return kind


def merged(has: pa.DataType, brings: pa.DataType) -> pa.DataType | None:
    """The type of a column that has one type when rows of another come; None where they do not go together.

    It stays what it is, but for what was only null so far.
    """
    if has == brings or types.is_null(brings):
        return has
    if types.is_null(has):
        return brings
    if types.is_list(has) and types.is_list(brings):
        item = merged(has.value_type, brings.value_type)
        return None if item is None else pa.list_(item)
    if types.is_struct(has) and types.is_struct(brings):
        return _merged_fields(has, brings)
    return has if _may_become(brings, has) else None


def has_nulls(kind: pa.DataType) -> bool:
    """Whether some part of the type is not known yet."""
    if types.is_list(kind):
        return has_nulls(kind.value_type)
    if types.is_struct(kind):
        return any(has_nulls(field.type) for field in kind)
    return bool(types.is_null(kind))


def is_writable(kind: pa.DataType) -> bool:
    """Whether Parquet has such a type; it has no object without a field."""
    if types.is_list(kind):
        return is_writable(kind.value_type)
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(is_writable(field.type) for field in kind)
    return not types.is_interval(kind) and not types.is_union(kind)


def _merged_fields(has: pa.DataType, brings: pa.DataType) -> pa.DataType | None:
    known = {field.name: field.type for field in has}
    for field in brings:
        kind = merged(known[field.name], field.type) if field.name in known else None
        if kind is None:
            return None
        known[field.name] = kind
    return pa.struct(list(known.items()))


def _may_become(brings: pa.DataType, has: pa.DataType) -> bool:
    """Whether values of one type can be of the other as they are; a single one may still be too large for it."""
    if types.is_integer(brings):
        return bool(types.is_integer(has) or types.is_floating(has) or types.is_decimal(has))
    if types.is_timestamp(brings):
        return bool(types.is_timestamp(has)) and (brings.tz is None) == (has.tz is None)
    if types.is_floating(brings):
        return bool(types.is_floating(has)) and has.bit_width >= brings.bit_width
    return any(same(brings) and same(has) for same in (types.is_decimal, types.is_time, types.is_duration))
