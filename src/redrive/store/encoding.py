r"""Records as JSON text that decodes to the same value, through PostgreSQL's `jsonb` as through SQLite's text.

What JSON can hold is stored as itself, so that `raw_record->>'fee'` finds it. The rest is an object of one key:

| value                                       | stored as                                                            |
|---------------------------------------------|----------------------------------------------------------------------|
| str, bool, None, list, dict with str keys   | themselves                                                           |
| int of 64 bits, signed or unsigned          | itself                                                               |
| larger int                                  | `{"$int": "18446744073709551616"}`, in hex beyond 2,000 bits         |
| float                                       | itself: `12.5`                                                       |
| NaN, inf, -0.0, floats with an exponent     | `{"$float": "nan"}`, `{"$float": "1e+16"}`                           |
| complex                                     | `{"$complex": [1.5, -2.0]}`                                          |
| Decimal                                     | `{"$decimal": "19.90"}`                                              |
| bytes, bytearray, memoryview of bytes       | `{"$bytes": "/w=="}`, base64                                         |
| str with NUL or a lone surrogate            | `{"$text": "a\\u0000b"}`, in which a backslash is doubled            |
| datetime                                    | `{"$datetime": "2026-07-01T12:00:00+02:00[Europe/Berlin][fold=1]"}`  |
| date, time                                  | `{"$date": "2026-07-01"}`, `{"$time": "12:00:00"}`                   |
| timedelta                                   | `{"$timedelta": "-86400.500000"}`, in seconds                        |
| UUID                                        | `{"$uuid": "9f0c..."}`                                               |
| tuple, set, frozenset                       | `{"$tuple": [1, 2]}`, `{"$set": [...]}`, `{"$frozenset": [...]}`     |
| dict with other keys, or with a `$key`      | `{"$map": [[key, value], ...]}`                                      |

SQLite keeps text that is a number as a number in a column of JSON, and may change it. There a value that is nothing but
a float, or an int beyond 64 bits signed, is an object as well: `{"$float": "12.5"}`, `{"$int": "9223372036854775808"}`.

A datetime has its offset, zone and fold only where it has them: naive stays naive.

These are reduced to what they hold, and come back as that plain value: an Enum member (its value), a subclass of str,
int or another type above (that type), a dataclass, named tuple, pydantic model, mapping or row of a database (a dict),
a numpy scalar or array (number or list), an Arrow scalar or a polars Series (value or list), a table or column of
pandas, polars or Arrow (dict or list), a deque, a view of a dict, an array, a memoryview of other items than bytes or a
range of up to 100,000 numbers (list), a UserString, a path, an IP address or network (text), a range or multirange of
PostgreSQL (its text, as `["2026-01-01","2026-02-01")`), NA and NaT of pandas (None). A key that a mapping has several
times has the list of its values; a row with two columns of one name is a tuple.

Whatever is left becomes `{"$repr": "..."}` and comes back as that text, an `ObjectText`, which is `str(value)` where
its class has a text of its own: other objects, exceptions, the inner end of a cycle, what is nested deeper than 80
levels (250 where all are lists and dicts). A mail or an XML element is the whole of its text. Every value is accepted;
a caller that must know which values became text passes a list for their paths.

A document that others wrote is given back as it is wherever its tags are not ours or make no sense.
"""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from zoneinfo import ZoneInfo

import orjson

from redrive._internal.numbers import exact
from redrive.store.contents import (
    fields_of,
    grouped,
    is_document,
    is_mapping,
    is_row,
    listed,
    out_of_numpy,
    plain_of,
    text_of,
)

# A map takes three levels of JSON for one of its own, and orjson writes 254: the second depth always fits.
_DEPTHS = (250, 80)
_DECIMAL_INT_BITS = 2_000  # CPython prints no int of more digits than a limit that may be set as low as 640

TOO_DEEP = " nested too deep"
"""Ends the description of what lies deeper than a record is stored."""

_LOST = 10  # maximum number of descriptions that are reported

_SIMPLE = frozenset({str, int, bool, type(None)})

# A key that begins with `$`: it ends at a quote before a colon, or has escapes and is not worth a closer look.
_DOLLAR_KEY = re.compile(r'"\$[^"\\]*(?:\\|":)')
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_TO_ESCAPE = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|u[0-9a-f]{4})")
_ISO = re.compile(r"([^\[]+)(?:\[([^\]=]+)\])?(\[fold=1\])?")
# orjson reads an int beyond 64 bits as a float. Ours are tagged, but others write to these tables too.
_LONG_NUMBER = re.compile(r"[\s:,\[-][0-9]{19}")

_Json = dict[str, Any]


class ObjectText(str):
    """The text of an object that could not be stored as its fields."""

    __slots__ = ()


def encode(value: object, *, lost: list[str] | None = None) -> str:
    """Return the value as JSON text. Values that decode to a mere description are named in `lost`: "a socket"."""
    if (type(value) is dict or type(value) is list) and _is_plain(value):
        try:
            text = orjson.dumps(value).decode()
        except TypeError:  # a key that is no str, an int beyond 64 bits, a lone surrogate, a cycle
            pass
        else:
            # A search for one character is faster than for two, and most texts have neither of these.
            has_dollar_key = "$" in text and _DOLLAR_KEY.search(text)
            has_nul = "\\" in text and "\\u0000" in text
            if not has_dollar_key and not has_nul:
                return text
    for depth in _DEPTHS:
        nodes = _Nodes(depth)
        try:
            text = orjson.dumps(nodes.of(value)).decode()
        except TypeError:  # deeper than orjson goes
            continue
        if lost is not None:
            lost += nodes.lost
        return text
    if lost is not None:
        lost.append(_named(value) + TOO_DEEP)
    return orjson.dumps(_repr(value)).decode()


def decode(text: str | bytes, *, typed: bool = False) -> Any:
    """Return the value that was encoded; ValueError where the text is not JSON.

    typed  whether an operator typed it: its numbers may have more digits than a float, which what was encoded never has
    """
    if isinstance(text, bytes):
        text = text.decode()
    document = _parse(text, typed=typed)
    if "$" not in text or '"$' not in text:
        return document
    try:
        return _revive(document)
    except RecursionError:  # deeper than any text of `encode`
        return document


def canonical(text: str) -> str:
    """Return a text of `encode` with the fields of every object in alphabetical order, as records are compared.

    jsonb changes the order of fields, and a vendor may export columns in another order.
    """
    return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()


def is_same(text: str | None, other: str | None) -> bool:
    """Return whether two stored values are equal, whatever the order of their fields."""
    if text == other or text is None or other is None:
        return text == other
    try:
        documents = [orjson.dumps(_parse(stored, typed=False), option=orjson.OPT_SORT_KEYS) for stored in (text, other)]
    except (TypeError, ValueError):  # written by others: an int beyond 64 bits, nested too deep, not JSON
        return False
    return documents[0] == documents[1]


def _is_plain(container: Any) -> bool:
    """Return whether JSON can hold all the values in there, apart from characters of texts and the size of ints.

    orjson is no judge of that: it writes NaN as null, tuples, dates, UUIDs and subclasses its own way, and it has been
    seen to crash on a dataclass with an unset slot. Nothing else may reach it.
    """
    pending, seen = [container], set()
    for each in pending:
        for value in each.values() if type(each) is dict else each:
            kind = type(value)
            if kind in _SIMPLE:
                continue
            if kind is float:
                if not (1e-4 <= value < 1e16 or _keeps_its_digits(value)):
                    return False
            elif kind is not dict and kind is not list:
                return False
            elif id(value) not in seen:
                seen.add(id(value))
                pending.append(value)
    return True


def _keeps_its_digits(number: float) -> bool:
    """Return whether jsonb keeps the float: it writes exponents out, without a point, and drops the sign of zero."""
    return 1e-4 <= abs(number) < 1e16 or repr(number) == "0.0"


class _Nodes:
    """Turns values into what JSON can hold, down to a depth."""

    def __init__(self, deepest: int) -> None:
        self._deepest = deepest
        self._within: set[int] = set()
        self.lost: list[str] = []

    def of(self, value: Any) -> Any:
        kind = type(value)
        try:
            leaf = _LEAVES.get(kind)
            if leaf:
                return leaf(value)
            if id(value) in self._within:
                self.lost.append("itself")
                return {"$repr": "<cycle>"}
            if len(self._within) == self._deepest:
                return self._described(value, TOO_DEEP)
            self._within.add(id(value))
            try:
                write = _CONTAINERS.get(kind)
                return write(self, value) if write else self._other(value)
            finally:
                self._within.discard(id(value))
        except Exception:  # a user's class may raise anything, or the stack is too deep
            return self._described(value)

    def _described(self, value: Any, why: str = "") -> _Json:
        name = _named(value) + why
        if len(self.lost) < _LOST or (why == TOO_DEEP and name not in self.lost):
            self.lost.append(name)
        return _repr(value)

    def list_of(self, values: Iterable[Any]) -> list[Any]:
        return list(map(self.of, values))

    def tuple_of(self, values: Iterable[Any]) -> _Json:
        return {"$tuple": list(map(self.of, values))}

    def dict_of(self, values: dict[Any, Any]) -> _Json:
        if all(
            isinstance(key, str) and key[:1] != "$" and _is_clean(key) and type(key) is not ObjectText for key in values
        ):
            return dict(zip(map(str.__str__, values), map(self.of, values.values()), strict=True))
        return {"$map": list(map(list, zip(map(self._hashable, values), map(self.of, values.values()), strict=True)))}

    def set_of(self, values: Iterable[Any]) -> _Json:
        return {"$set": self._members(values)}

    def frozenset_of(self, values: Iterable[Any]) -> _Json:
        return {"$frozenset": self._members(values)}

    def _members(self, values: Iterable[Any]) -> list[Any]:
        # Sets have no stable order, and equal sets must give equal text.
        return sorted(map(self._hashable, values), key=orjson.dumps)

    def _hashable(self, value: Any) -> Any:
        """Encode a key or a member, which must be hashable when decoded: a frozen dataclass would become a dict."""
        node = self.tuple_of(value) if isinstance(value, tuple) else self.of(value)
        return node if _is_hashable(node) else self._described(value, " as a key or a member")

    def _other(self, value: Any) -> Any:
        """Reduce an object to its contents."""
        kind = type(value)
        library = kind.__module__.partition(".")[0]
        if isinstance(value, Enum):
            return self.of(value.value)
        if isinstance(value, BaseException | type) or is_document(value):
            return self._described(value)
        plain: Any = grouped(value) if isinstance(value, Mapping) else plain_of(value)
        if plain is not value:
            return self.of(plain)
        for base, leaf in _LEAVES.items():
            if isinstance(value, base):
                return leaf(value)
        if hasattr(kind, "_asdict"):  # a named tuple, or a row of SQLAlchemy
            return self._of_named(value._asdict(), value)
        for base, write in _CONTAINERS.items():
            if isinstance(value, base):
                return write(self, value)
        if library == "numpy":
            return self.of(out_of_numpy(value))
        fields = fields_of(value)
        if fields is not value:
            return self._of_fields(fields, value)
        if isinstance(value, Mapping) or is_mapping(value):
            return self.dict_of(dict(value))
        if is_row(kind):
            return self._of_named(dict(zip(value.keys(), value, strict=True)), value)
        items = listed(value)
        return self._described(value) if items is None else self.list_of(items)

    def _of_named(self, fields: dict[Any, Any], row: Any) -> Any:
        """Encode a row under its names; without them where two columns have the same one."""
        return self.dict_of(fields) if len(fields) == len(row) else self.tuple_of(row)

    def _of_fields(self, fields: Any, value: Any) -> Any:
        """Encode the fields of an object; one without any is known by its text alone."""
        if fields == {}:
            return self._described(value)
        return self.dict_of(fields) if type(fields) is dict else self.of(fields)


def _is_hashable(node: Any) -> bool:
    if type(node) is not dict:
        return type(node) is not list
    tag, payload = next(iter(node.items()), ("", []))
    if tag == "$tuple":
        return all(map(_is_hashable, payload))
    return tag == "$frozenset" or tag in _TEXT_READERS or tag == "$complex"


def _is_clean(text: str) -> bool:
    return "\0" not in text if text.isascii() else not _UNSTORABLE.search(text)


def _escape(found: re.Match[str]) -> str:
    return r"\\" if found[0] == "\\" else f"\\u{ord(found[0]):04x}"


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _repr(value: object) -> _Json:
    return _object_text(text_of(value))


def _object_text(text: str) -> _Json:
    return {"$repr": text if _is_clean(text) else _UNSTORABLE.sub(_escape, text)}


def _write_text(text: str) -> Any:
    text = str.__str__(text)
    return text if _is_clean(text) else {"$text": _TO_ESCAPE.sub(_escape, text)}


def _read_text(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), text)


def _write_int(number: int) -> Any:
    number = int.__index__(number)
    if -(2**63) <= number < 2**64:
        return number
    return {"$int": str(number) if number.bit_length() <= _DECIMAL_INT_BITS else hex(number)}


def _write_float(number: float) -> Any:
    number = float.__float__(number)
    return number if _keeps_its_digits(number) else {"$float": repr(number)}


def _write_complex(number: complex) -> Any:
    return {"$complex": [_write_float(number.real), _write_float(number.imag)]}


def _write_timedelta(span: timedelta) -> Any:
    microseconds = span // timedelta(microseconds=1)
    if type(span) is not timedelta and span != timedelta(microseconds=microseconds):
        raise ValueError("a subclass that holds more than its base")
    whole, rest = divmod(abs(microseconds), 1_000_000)
    return {"$timedelta": f"{'-' if microseconds < 0 else ''}{whole}.{rest:06d}"}


def _read_timedelta(text: str) -> timedelta:
    whole, _, rest = text.partition(".")
    sign = -1 if whole.startswith("-") else 1
    return timedelta(seconds=int(whole), microseconds=sign * int(f"{rest:0<6.6}"))


def _iso(base: type[datetime] | type[date] | type[time], moment: Any) -> str:
    """Return ISO 8601, with the zone and fold it cannot express in brackets, as RFC 9557 has it."""
    text = base.isoformat(moment)
    if type(moment) is not base and moment.isoformat() != text:
        raise ValueError("a subclass that holds more than its base, as pandas' nanoseconds")
    zone = getattr(moment, "tzinfo", None)
    if isinstance(zone, ZoneInfo) and zone.key:
        text += f"[{zone.key}]"
    return text + "[fold=1]" if getattr(moment, "fold", 0) else text


def _read_iso(base: type[datetime] | type[time], text: str) -> Any:
    match = _ISO.fullmatch(text)
    if not match:
        raise ValueError(text)
    moment = base.fromisoformat(match[1])
    if match[2]:
        with suppress(KeyError, ValueError, OSError):  # this machine lacks the zone; the offset is enough
            moment = moment.replace(tzinfo=ZoneInfo(match[2]))
    return moment.replace(fold=1) if match[3] else moment


_LEAVES: dict[type, Callable[[Any], Any]] = {
    str: _write_text,
    bool: lambda flag: flag,
    int: _write_int,
    float: _write_float,
    type(None): lambda none: none,
    Decimal: lambda number: {"$decimal": Decimal.__str__(number)},
    datetime: lambda moment: {"$datetime": _iso(datetime, moment)},
    date: lambda day: {"$date": _iso(date, day)},
    time: lambda moment: {"$time": _iso(time, moment)},
    timedelta: _write_timedelta,
    uuid.UUID: lambda identifier: {"$uuid": str(identifier)},
    bytes: lambda data: {"$bytes": b64encode(data).decode()},
    bytearray: lambda data: {"$bytes": b64encode(data).decode()},
    complex: _write_complex,
    ObjectText: lambda text: _object_text(str.__str__(text)),
    PurePath: lambda path: _write_text(str(path)),
}

_CONTAINERS: dict[type, Callable[[_Nodes, Any], Any]] = {
    dict: _Nodes.dict_of,
    list: _Nodes.list_of,
    tuple: _Nodes.tuple_of,
    set: _Nodes.set_of,
    frozenset: _Nodes.frozenset_of,
    deque: _Nodes.list_of,
}


def _parse(text: str, *, typed: bool) -> Any:
    if not (typed or _LONG_NUMBER.search(text) or text[:1].isdigit()):
        try:
            return orjson.loads(text)
        except ValueError:  # also for what JSON lacks but others write: NaN, lone surrogates
            pass
    try:
        return json.loads(text, parse_int=_read_long_int, parse_float=exact if typed else float)
    except RecursionError:
        raise ValueError("the document is nested too deeply to be read") from None


def _read_long_int(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:  # more digits than CPython converts
        return Decimal(digits)


def _revive(node: Any) -> Any:
    if type(node) is list:
        return list(map(_revive, node))
    if type(node) is not dict:
        return node
    if len(node) == 1:
        [(tag, payload)] = node.items()
        read = (
            _TEXT_READERS.get(tag)
            if type(payload) is str
            else _LIST_READERS.get(tag)
            if type(payload) is list
            else None
        )
        if read:
            try:
                return read(payload)
            except (ValueError, TypeError, ArithmeticError):
                return node
    return dict(zip(node, map(_revive, node.values()), strict=True))


def _read_map(pairs: list[Any]) -> dict[Any, Any]:
    if not all(type(pair) is list for pair in pairs):
        raise ValueError("a map is made of pairs")
    return {_revive(key): _revive(value) for key, value in pairs}


_TEXT_READERS: dict[str, Callable[[str], Any]] = {
    "$int": lambda text: int(text, 0),
    "$float": float,
    "$decimal": Decimal,
    "$bytes": lambda text: b64decode(text, validate=True),
    "$text": _read_text,
    "$datetime": lambda text: _read_iso(datetime, text),
    "$date": date.fromisoformat,
    "$time": lambda text: _read_iso(time, text),
    "$timedelta": _read_timedelta,
    "$uuid": uuid.UUID,
    "$repr": ObjectText,
}

_LIST_READERS: dict[str, Callable[[list[Any]], Any]] = {
    "$complex": lambda parts: complex(*map(_revive, parts)),
    "$tuple": lambda nodes: tuple(map(_revive, nodes)),
    "$set": lambda nodes: set(map(_revive, nodes)),
    "$frozenset": lambda nodes: frozenset(map(_revive, nodes)),
    "$map": _read_map,
}
