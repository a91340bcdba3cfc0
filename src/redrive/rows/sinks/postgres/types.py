"""What PostgreSQL's own types would change: texts that are cut or padded, and values within arrays, ranges and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from redrive._internal.optional import require_extra
from redrive.rows.sinks.exact.capacity import ColumnCapacity
from redrive.rows.sinks.exact.values import change_of, unchecked
from redrive.rows.sinks.values import is_foreign, native
from redrive.rows.to_polars import values_of

with require_extra("rows"):
    import polars as pl

_NAME = 63  # bytes, unless the server was compiled otherwise
_SIZED = re.compile(r"(character varying|character|money)\((\d+)\)")
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)')
_BOUND = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\[\](){},"]+)')
_FIELD = re.compile(r'("(?:[^"\\]++|""|\\.)*+"|[^,"]*+)(,|$)')
_ESCAPED = re.compile(r'\\(.)|"(")')
_COORDINATE = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?")
_GEOMETRIC = ("point", "line", "lseg", "box", "path", "polygon", "circle")
_CURRENCY = r"[^\d\s.,()+-]+"
_FLOAT = ColumnCapacity.of("double precision")
# The server reads 1.5 as the network 1.5.0.0/16 and 010.0.0.1 as 10.0.0.1, and drops what stands after a macaddr8.
_BYTE = r"(?:0|[1-9]\d{0,2})"
_IPV6 = r"[0-9A-Fa-f:]*:[0-9A-Fa-f:]*(?:(?:\.\d+){3})?"
_NETWORK = rf"^\s*(?:{_BYTE}(?:\.{_BYTE}){{3}}(?:/\d+)?|{_BYTE}(?:\.{_BYTE}){{0,2}}/\d+|{_IPV6}(?:/\d+)?)\s*$"
_MAC = "^\\s*(?:{})\\s*$".format(
    "|".join(
        (
            r"[0-9A-Fa-f]{1,2}(?::[0-9A-Fa-f]{1,2}){5}",
            r"[0-9A-Fa-f]{1,2}(?:-[0-9A-Fa-f]{1,2}){5}",
            r"[0-9A-Fa-f]{6}[:-][0-9A-Fa-f]{6}",
            r"[0-9A-Fa-f]{4}(?:[.-][0-9A-Fa-f]{4}){2}",
            r"[0-9A-Fa-f]{12}",
        )
    )
)
_MAC8 = r"^\s*[0-9A-Fa-f]{2}(?:[:.-]?[0-9A-Fa-f]{2}){7}\s*$"
_ADDRESSES = {"cidr": _NETWORK, "inet": _NETWORK, "macaddr": _MAC, "macaddr8": _MAC8}
_WHY_ADDRESS = {
    **dict.fromkeys(("cidr", "inet"), "is not an address in full, such as 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32"),
    "macaddr": "is not an address of six bytes, such as 08:00:2b:01:02:03",
    "macaddr8": "is not an address of eight bytes, such as 08:00:2b:ff:fe:01:02:03",
}


@dataclass(frozen=True, slots=True)
class StoredType:
    """What the values of a column are made of. Domains are seen through."""

    type: str
    """As the server writes it: of an array, the type of its elements; of a range, that of its bounds."""
    is_array: bool = False
    is_range: bool = False
    fields: tuple[StoredType, ...] = ()
    """Of a composite type."""

    @property
    def as_key(self) -> StoredType:
        """The type in a key, where blanks at the end of a `char(n)`, or after a `varchar(n)`, do not count."""
        return StoredType("text") if self.is_plain and self.type.startswith("character") else self

    @property
    def is_plain(self) -> bool:
        """Return whether a value is one thing, which can be judged with its whole column."""
        return not (self.is_array or self.is_range or self.fields or self.type in _GEOMETRIC)


class _Limit(NamedTuple):
    """Texts that a type would change without an error."""

    is_changed: Callable[[pl.Series], pl.Series]
    why: str


def find_changes_by_type(values: pl.Series | Sequence[Any], stored: StoredType) -> Iterator[tuple[int, str]]:
    """Yield the place of each value that the server would cut, pad or round by a rule of its own, and why.

    The values are those that are sent, before they are escaped.
    """
    if stored.is_plain:
        if (limit := _limit(stored.type)) is None:
            return
        try:
            texts = _texts(values)
        except Exception:
            pass  # one by one it is seen which value has no text
        else:
            if texts is not None:
                for place in limit.is_changed(texts).fill_null(False).arg_true():
                    yield place, f"{texts[place]!r} {limit.why}"
            return
    for place, value in enumerate(values_of(values) if isinstance(values, pl.Series) else values):
        try:
            change = next(_changes(value, stored), None)
        except Exception as error:
            change = unchecked(value, stored.type, error)
        if change is not None:
            yield place, change


def _changes(value: Any, stored: StoredType) -> Iterator[str]:
    if isinstance(value, Enum):
        value = value.value
    if is_foreign(type(value)):
        value = native(value)
    if value is None:
        return
    if stored.is_array:
        part = StoredType(stored.type, is_range=stored.is_range, fields=stored.fields)
        for element in _elements(value):
            yield from _changes(element, stored if isinstance(element, list | tuple) else part)
    elif stored.is_range:
        for bound in _bounds(value):
            yield from _changes(bound, StoredType(stored.type))
    elif stored.fields:
        fields = _fields(value) if isinstance(value, str) else []
        if fields is None:
            yield f"{value!r} is not a row as PostgreSQL writes it: quote whole fields"
        for field, own in zip(fields or (), stored.fields, strict=False):
            yield from _changes(field, own)
    elif change := _change(value, stored.type):
        yield f"{str(value)!r} {change}"


def _change(value: Any, kind: str) -> str | None:
    if kind in _GEOMETRIC and _FLOAT is not None:
        changes = (change_of(number, _FLOAT) for number in _COORDINATE.findall(str(value)))
        return next((change for change in changes if change), None)
    if (capacity := ColumnCapacity.of(kind)) is not None:
        return change_of(value, capacity)
    if (limit := _limit(kind)) is None:
        return None
    texts = _texts([value])
    return limit.why if texts is not None and limit.is_changed(texts).fill_null(False).any() else None


def _elements(value: Any) -> Iterator[Any]:
    if isinstance(value, str):
        for result in _ELEMENT.finditer(value):
            quoted, plain = result.groups()
            if quoted is not None:
                yield _unescaped(quoted)
            elif plain.strip() and plain.strip().upper() != "NULL" and not plain.endswith("="):  # not "[1:2]="
                yield _unescaped(plain.strip())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value


def _bounds(value: Any) -> Iterator[Any]:
    if isinstance(value, str):
        for quoted, plain in _BOUND.findall(value):
            if plain.strip() not in ("", "empty") or quoted:
                yield _unescaped(quoted) or plain.strip()
    elif hasattr(value, "lower"):
        yield from (value.lower, value.upper)
    elif hasattr(value, "__iter__"):  # a multirange of the driver
        for part in value:
            yield from _bounds(part)


def _fields(value: str) -> list[str | None] | None:
    """Return the texts of a row's fields; None if it is written in another way than the server writes it."""
    text = value.strip().removeprefix("(").removesuffix(")")
    fields: list[str | None] = []
    at = 0
    while (match := _FIELD.match(text, at)) is not None:
        field, at = match[1], match.end()
        fields.append(_unescaped(field[1:-1]) if field.startswith('"') else field or None)
        if not match[2]:
            return fields
    return None


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: found[1] or found[2], text) if "\\" in text or '"' in text else text


def _texts(values: pl.Series | Sequence[Any]) -> pl.Series | None:
    """Return the values as the texts that are sent; None for bytes, and for lone surrogates, which are rejected."""
    if isinstance(values, pl.Series):
        if values.dtype == pl.Binary:
            return None
        if values.dtype in (pl.String, pl.Categorical, pl.Enum):
            return values.cast(pl.String)
        values = values_of(values)
    return pl.Series([_text(value) for value in values], dtype=pl.String)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return None
    text = value if type(value) is str else str(value)
    return text.encode(errors="replace").decode() if not text.isascii() else text


@cache
def _limit(kind: str) -> _Limit | None:
    match = _SIZED.fullmatch(kind)
    if match is not None:
        return _sized(kind, match[1], int(match[2]))
    if kind == "name":
        return _Limit(lambda texts: texts.str.len_bytes() > _NAME, f"would be cut: name keeps {_NAME} bytes")
    if kind == '"char"':
        return _Limit(lambda texts: texts.str.len_bytes() > 1, 'would be cut: "char" keeps one byte')
    if kind in ("oid", "xid", "cid"):
        return _Limit(lambda texts: texts.str.contains("-", literal=True), f"is negative, which {kind} never is")
    if kind.startswith("bit"):
        return _Limit(lambda texts: ~texts.str.contains("^[01]*$"), f"is not made of 0 and 1, as {kind} is")
    if kind in _ADDRESSES:
        return _Limit(lambda texts: ~texts.str.contains(_ADDRESSES[kind]), _WHY_ADDRESS[kind])
    if kind == "bytea":
        return _Limit(
            lambda texts: texts.str.contains(r"[^\x00-\x7F]|\\") & ~texts.str.contains(r"^\\x(?:[0-9a-fA-F]{2})*$"),
            "is not bytes: bytea takes bytes, ASCII text without a backslash, or \\x and hexadecimal digits",
        )
    return None


def _sized(kind: str, base: str, size: int) -> _Limit:
    if base == "money":
        # As a number, or as the server itself writes it, with its own mark of the currency.
        plain = r"\d+(?:,\d{3})*" + (rf"(?:\.\d{{0,{size}}}0*)?" if size else "")
        number = rf"^\s*[+-]?(?:{_CURRENCY}\s*)?{plain}\s*$" + ("" if size else rf"|{_CURRENCY}")
        why = f"is not a number of at most {size} decimal places, as money has it"
        return _Limit(lambda texts: ~texts.str.contains(number), why)
    if base == "character varying":  # the server itself rejects what is more than blanks
        why = f"would be cut: {kind} keeps {size} characters"
        return _Limit(lambda texts: texts.str.ends_with(" ") & (texts.str.len_chars() > size), why)
    why = f"would have another number of blanks: {kind} pads to {size} characters"
    return _Limit(lambda texts: texts.str.ends_with(" ") & (texts.str.len_chars() != size), why)
