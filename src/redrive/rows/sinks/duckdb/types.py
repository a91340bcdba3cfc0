"""Types of DuckDB that accept only values of their own Python type, also within lists, structs and maps.

DuckDB would change others, such as the bytes `ü` to the text `\\xC3\\xBC`, some of them only beside certain rows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family
from redrive.rows.sinks.exact.values import change_of
from redrive.rows.sinks.table_schema import quoted
from redrive.rows.sinks.values import Convert, Rules, is_foreign, json_text, native

with require_extra("rows"):
    import duckdb
    import polars as pl

_BYTES = (bytes, bytearray, memoryview)
_OF_JSON = "what JSON has: texts, booleans, floats, integers of 64 bits, lists and objects"
_TIMES = (Family.DATE, Family.TIME, Family.TIMESTAMP, Family.INSTANT)
_OF_TEXT = ("UUID", "BIT", "ENUM", "GEOMETRY")
_CONTAINERS = ("list", "array", "struct", "map")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"", re.DOTALL)
_LOST_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[^'\"\\]")
_POSITIONAL = re.compile(r"(?:^|[\[{(,:=])\s*\(")
_SAME: dict[str, pl.DataType] = {
    "BOOLEAN": pl.Boolean(),
    "TINYINT": pl.Int8(),
    "SMALLINT": pl.Int16(),
    "INTEGER": pl.Int32(),
    "BIGINT": pl.Int64(),
    "FLOAT": pl.Float32(),
    "DOUBLE": pl.Float64(),
    "VARCHAR": pl.String(),
    "BLOB": pl.Binary(),
    "DATE": pl.Date(),
    "TIMESTAMP": pl.Datetime("us"),
    "TIMESTAMP_NS": pl.Datetime("ns"),
}


def capacity_of(kind: str) -> ColumnCapacity | None:
    """See `ColumnCapacity.of`. DuckDB reads `07/04/26` as a day of the year 7, and leaves out the PM of `05:30 PM`."""
    capacity = ColumnCapacity.of(kind)
    if capacity is not None and capacity.family is Family.INTERVAL:
        return replace(capacity, has_own_signs=True)
    if capacity is None or capacity.family not in _TIMES:
        return capacity
    return replace(capacity, iso_only=True)


def own_rules(kind: str) -> Rules | None:
    """Return what becomes of values in a column that takes those of its own type only; None for other columns."""
    if kind == "BLOB":
        return {object: _refusal(kind, "bytes"), **dict.fromkeys(_BYTES, bytes), str: _ascii, type(None): None}
    if kind.startswith(_OF_TEXT):
        bits: Convert | None = _bits if kind == "BIT" else None
        return {object: _refusal(kind, "text"), str: bits, UUID: str, type(None): None}
    return None


def text_rules(kind: str) -> Rules:
    """Return why bytes are rejected in a column of text: their encoding is not known."""
    return dict.fromkeys(_BYTES, _refusal(kind, "text; decode bytes in a transform")) if kind == "VARCHAR" else {}


def is_own(dtype: pl.DataType, kind: str) -> bool:
    """Return whether a column of a frame goes into a column of this type without a look at each value."""
    if kind == "BIGNUM":  # DuckDB casts neither decimals nor booleans to it
        return dtype == pl.String or dtype.is_integer()
    if kind == "VARCHAR":
        return dtype != pl.Binary
    if kind == "BLOB":
        return dtype == pl.Binary
    return not kind.startswith(_OF_TEXT) or (dtype == pl.String and kind != "BIT")


def change_within(value: Any, kind: str) -> str | None:
    """Return why a value within a list, struct or map would not be the same; None if it is."""
    rules = own_rules(kind) or {}
    convert = next((rules[base] for base in type(value).__mro__ if base in rules), None)
    if convert is not None:
        try:
            convert(value)
        except (TypeError, ValueError) as error:
            return f"cannot be stored: {error}"
    return None


def variant_rules() -> Rules:
    """Return what becomes of values in a column of the type VARIANT: JSON, of which DuckDB keeps the types.

    It would make a text of a number that stands beside a text.
    """
    plain = dict.fromkeys((dict, list, tuple, str, bool, int, float), _variant)
    return {object: _refusal("VARIANT", _OF_JSON), **plain, type(None): None}


def _variant(value: Any) -> str:
    _require_json(value)
    return json_text(value)


def _require_json(value: Any) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            _require_json(part)
            if not isinstance(name, str):
                raise TypeError(f"VARIANT takes {_OF_JSON}, not the key {name!r}")
    elif isinstance(value, list | tuple):
        for item in value:
            _require_json(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} would be a float")
    elif not (value is None or isinstance(value, str | int | float)) or isinstance(value, Enum):
        raise TypeError(f"VARIANT takes {_OF_JSON}, not {type(value).__name__}")


def _refusal(kind: str, own: str) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise TypeError(f"{kind.partition('(')[0]} takes {own}")

    return refuse


def _ascii(text: str) -> str:
    """Return a text whose characters are the bytes; DuckDB reads escapes, and rejects other characters."""
    if "\\" in text or not text.isascii():
        raise ValueError("BLOB takes bytes, or ASCII text without a backslash")
    return text


def _bits(text: str) -> str:
    if not text or text.strip("01"):
        raise ValueError("BIT takes a text of one or more digits 0 and 1")
    return text


def is_same(dtype: Any, kind: Any) -> bool:
    """Return whether DuckDB reads a nested type of polars as this type of its own, so that no value is cast."""
    if isinstance(dtype, pl.Struct) and kind.id == "struct":
        fields = [(field.name, field.dtype) for field in dtype.fields]
        return [name for name, _ in fields] == [name for name, _ in kind.children] and all(
            is_same(inner, own) for (_, inner), (_, own) in zip(fields, kind.children, strict=True)
        )
    if isinstance(dtype, pl.List) and kind.id == "list":
        return is_same(dtype.inner, kind.children[0][1])
    return bool(str(kind) in _SAME and dtype == _SAME[str(kind)])


def fitted(value: Any, kind: Any) -> Any:
    """Return a value with every field that its type has, as JSON is to have them.

    Raises `ValueError` if something would be lost or changed.
    """
    if isinstance(value, Enum):
        value = value.value
    if is_foreign(type(value)):
        value = native(value)
    if isinstance(value, Mapping) and kind.id == "struct":
        fields = dict(kind.children)
        if unknown := [name for name in value if name not in fields]:
            raise ValueError(f"{unknown[0]!r} is no field of {kind}")
        return {name: fitted(value.get(name), field) for name, field in fields.items()}
    if isinstance(value, Mapping) and kind.id == "map":
        key, item = (own for _, own in kind.children)
        return {_key(name, key): fitted(part, item) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and kind.id in ("list", "array"):
        return [fitted(entry, kind.children[0][1]) for entry in value]
    if kind.id == "union" and value is not None:
        return _member(value, kind)
    if change := _change(value, kind):
        raise ValueError(change)
    return _written(value, str(kind))


def _key(name: Any, kind: Any) -> Any:
    """Return the key of a map, which JSON has as a text."""
    if change := _change(name, kind):
        raise ValueError(change)
    return name


def _member(value: Any, kind: Any) -> dict[str, Any]:
    """Return a value of a union: DuckDB would choose its member by other values, so the row must name it."""
    members = dict(kind.children[1:])  # the first one is the tag
    texts = [name for name, own in members.items() if own.id == "varchar"]
    if isinstance(value, str) and len(texts) == 1:
        return {texts[0]: value}
    if isinstance(value, Mapping) and len(value) == 1 and (name := next(iter(value))) in members:
        return {name: fitted(value[name], members[name])}
    raise ValueError(f"{str(value)!r} names no member of {kind}: pass an object such as {{{next(iter(members))!r}: …}}")


def _change(value: Any, kind: Any) -> str | None:
    capacity = capacity_of(str(kind))
    change = change_within(value, str(kind)) if capacity is None else change_of(value, capacity)
    return None if change is None else f"{str(value)!r} {change}"


def _written(value: Any, kind: str) -> Any:
    """Return a value as JSON is to have it: a number that DuckDB would read as a float is a text."""
    if isinstance(value, dt.timedelta):
        return str(value).replace(",", "")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    capacity = capacity_of(kind)
    exact = kind == "VARCHAR" or (capacity is not None and capacity.family is Family.DECIMAL)
    return str(value) if exact or (isinstance(value, int) and abs(value) >= 2**63) else value


def changes_in_texts(texts: pl.Series, kind: Any) -> Iterator[tuple[int, str]]:
    """Yield the places of texts of a nested type that hold a value which would be changed, and why."""
    has_fields = has_members(kind, ("struct",))
    for place, text in enumerate(texts):
        if text is not None and (why := _change_of_notation(text, has_fields=has_fields)):
            yield place, f"{text!r} {why}"
    if _is_exact(kind):
        return
    if has_members(kind):
        why = f"would be read by DuckDB as it likes: pass an object or a list for {kind}"
        yield from ((place, f"{text!r} {why}") for place, text in enumerate(texts) if text is not None)
        return
    for place, value in enumerate(_parse_texts(texts, kind)):
        if change := next(_changes_within(value, kind), None):
            yield place, change


def _change_of_notation(text: str, *, has_fields: bool) -> str | None:
    """Return why DuckDB would drop something that the text of a list, struct or map has; None where it keeps all."""
    for found in _QUOTED.finditer(text):
        before, after = text[: found.start()].rstrip()[-1:], text[found.end() :].lstrip()[:1]
        if before not in ("", *"[{(,:=") or after not in ("", *"]}),:="):
            return "has quotes within a value, which DuckDB drops: quote the whole value, and write \\' in it"
        if _LOST_ESCAPE.search(found[0]):
            return "has a backslash in quotes, which DuckDB drops: write two"
    if not has_fields:
        return None
    if _POSITIONAL.search(_QUOTED.sub("''", text)):
        return "has values without the names of their fields"
    return "has a field twice" if _has_field_twice(text) else None


def _has_field_twice(text: str) -> bool:
    """Return whether a struct has a field twice; DuckDB drops the first."""
    names: list[set[str]] = []
    start: int | None = 0  # where the name of a field may begin
    at = 0
    while at < len(text):
        if (found := _QUOTED.match(text, at)) is not None:
            at = found.end()
            continue
        mark, at = text[at], at + 1
        if mark in "[{":
            names.append(set())
            start = at if mark == "{" else None
        elif mark in "]}" and names:
            names.pop()
            start = None
        elif mark == ",":
            start = at
        elif mark == ":" and start is not None and names:
            name = text[start : at - 1].strip().strip("'\"").lower()
            if name in names[-1]:
                return True
            names[-1].add(name)
            start = None
    return False


def has_members(kind: Any, sorts: Collection[str] = ("union", "variant")) -> bool:
    """Return whether a type has a union or a variant in it."""
    inner = (item for _, item in kind.children if not isinstance(item, int)) if kind.id in _CONTAINERS else ()
    return kind.id in sorts or any(has_members(entry, sorts) for entry in inner)


def _is_exact(kind: Any) -> bool:
    """Return whether nothing in a nested type could change, for example if it holds only texts."""
    if kind.id in ("union", "variant"):
        return False
    if kind.id in _CONTAINERS:
        return all(_is_exact(inner) for _, inner in kind.children if not isinstance(inner, int))
    return capacity_of(str(kind)) is None and own_rules(str(kind)) is None


def _parse_texts(texts: pl.Series, kind: Any) -> list[Any]:
    """Texts of a nested type, taken apart by DuckDB into lists, structs and maps of texts; None if it cannot."""
    with duckdb.connect() as connection:
        connection.register("redrive_texts", pl.DataFrame({"texts": texts}))
        rows = connection.execute(f"SELECT TRY_CAST(texts AS {_of_texts(kind)}) FROM redrive_texts").fetchall()
    return [value for (value,) in rows]


def _of_texts(kind: Any) -> str:
    """Return a type of the same structure that holds only texts."""
    if kind.id == "struct":
        return f"STRUCT({', '.join(f'{quoted(name)} {_of_texts(inner)}' for name, inner in kind.children)})"
    if kind.id == "map":
        (_, key), (_, value) = kind.children
        return f"MAP({_of_texts(key)}, {_of_texts(value)})"
    if kind.id in ("list", "array"):
        size = "" if kind.id == "list" else kind.children[1][1]
        return f"{_of_texts(kind.children[0][1])}[{size}]"
    return "VARCHAR"


def _changes_within(value: Any, kind: Any) -> Iterator[str]:
    if value is None:
        return
    parts: Sequence[tuple[Any, Any]] = ()
    if kind.id == "struct":
        parts = [(value.get(name), inner) for name, inner in kind.children]
    elif kind.id == "map":
        (_, key), (_, inner) = kind.children
        parts = [(part, own) for item in value.items() for part, own in zip(item, (key, inner), strict=True)]
    elif kind.id in ("list", "array"):
        parts = [(part, kind.children[0][1]) for part in value]
    elif change := _change(value, kind):
        yield change
    for part, own in parts:
        yield from _changes_within(part, own)
