"""Contents of objects that JSON has no place for: as plain Python where that is all they hold, else as their text.

An object that has keys is not a dict for that: those of a mail are its headers, and those of an XML element its
attributes, and the rest would be lost.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from collections import UserList, UserString
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_LONGEST_RANGE = 100_000  # a range has no size in memory, but its numbers have

# psycopg's, psycopg2's, asyncpg's and SQLAlchemy's.
_RANGES = frozenset({"Range", "NumericRange", "DateRange", "DateTimeRange", "DateTimeTZRange"})

# Those of sqlite3 and asyncpg, and of drivers like them.
_ROWS = frozenset({"Row", "Record"})

_TABLES = frozenset({"DataFrame", "Series"})

_ELEMENT_TREES = ("xml.etree.ElementTree", "lxml.etree")
_ELEMENTS = frozenset({"Element", "ElementTree", "_Element", "_ElementTree"})

# Classes of documents and what serializes them: what they hold is more than the mapping or list that they look like.
_DOCUMENTS: dict[tuple[str, str], Callable[[Any], str]] = {
    ("email.message", "Message"): lambda mail: mail.as_bytes().decode(errors="surrogateescape"),
    ("http.cookies", "Morsel"): str,
    ("xml.dom.minidom", "Node"): lambda node: node.toxml(),
}


def plain_of(value: Any) -> Any:
    """Return the value of a library's class as Python or the database writes it; other values unchanged."""
    kind = type(value)
    library, name = kind.__module__.partition(".")[0], kind.__name__
    if library == "pandas" and name in {"NAType", "NaTType"}:
        return None
    if _is_of_pandas(kind):
        pairs = list(value.items())
        fields = dict(pairs)
        return fields if len(fields) == len(pairs) else pairs
    if library == "ipaddress":
        return str(value)
    if name in _RANGES and hasattr(kind, "lower_inc"):
        return _range_text(value)
    if name == "Multirange":
        return "{" + ",".join(map(_range_text, value)) + "}"
    if library == "pyarrow" and hasattr(kind, "as_py"):
        return value.as_py()
    if library == "polars" and name == "Series":
        return value.to_list()
    if isinstance(value, UserList | UserString):
        return value.data
    if isinstance(value, _VIEWS) or (kind is range and len(value[: _LONGEST_RANGE + 1]) <= _LONGEST_RANGE):
        return list(value)
    if isinstance(value, array):
        return value.tolist()
    if kind is memoryview:
        return value.tobytes() if value.format in {"B", "c"} else value.tolist()
    return value


def out_of_numpy(value: Any) -> Any:
    """Return a scalar or an array of numpy as Python's numbers, texts and lists."""
    if str(value.dtype).endswith(("ns]", "ps]", "fs]", "as]")):  # dates finer than Python's would be bare ints
        return value.astype(str).tolist()
    plain = value.tolist()
    return str(value) if type(plain) is type(value) else plain  # a long double stays one


def is_mapping(value: Any) -> bool:
    """Return whether an object that is no Mapping has nothing but its items: keys, and by going through it the same."""
    kind = type(value)
    if not (hasattr(kind, "keys") and hasattr(kind, "__getitem__")):
        return False
    names = list(value.keys())
    # Without any, all of its content may be elsewhere.
    return bool(names) and (not hasattr(kind, "__iter__") or list(value) == names)


def is_row(kind: type) -> bool:
    """Return whether a class is the row of a result, which gives its values by going through it."""
    return hasattr(kind, "keys") and any(base.__name__ in _ROWS for base in kind.__mro__)


def grouped(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping that has a key several times as a dict with lists of their values; any other unchanged.

    These are multidict's, and those of HTTP libraries.
    """
    several: Any = value
    if hasattr(value, "lists"):  # werkzeug and Django
        pairs = [(key, each) for key, values in several.lists() for each in values]
    elif hasattr(value, "multi_items"):
        pairs = list(several.multi_items())
    elif hasattr(value, "getall"):
        pairs = list(value.items())
    else:
        return value
    groups: dict[Any, list[Any]] = {}
    for key, each in pairs:
        groups.setdefault(key, []).append(each)
    return {key: values[0] if len(values) == 1 else values for key, values in groups.items()}


def fields_of(value: Any) -> Any:
    """Return the fields of a model of pydantic or of a dataclass; other values unchanged."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump()
    if not dataclasses.is_dataclass(value):
        return value
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return {name: getattr(value, name) for name in names}


def listed(value: Any) -> list[Any] | None:
    """Return the rows or items of a table or a column, whose own text leaves most of them out; None where it is none.

    Those of pandas, polars, Arrow and torch.
    """
    for name in ("to_dicts", "to_pylist", "tolist"):
        if hasattr(type(value), name):
            items = getattr(value, name)()
            return items if isinstance(items, list) else None
    return None


def is_document(value: Any) -> bool:
    """Return whether an object is kept as its text, whatever collection it looks like."""
    return any((base.__module__, base.__name__) in _DOCUMENTS or _is_element(base) for base in type(value).__mro__)


def text_of(value: object) -> str:
    """Return the text of an object: a document whole, what has a text of its own by that, the rest by its repr."""
    for show in (_document_text, _own_text, repr):
        try:
            if text := show(value):
                return text
        except Exception:  # a user's class may raise anything
            continue
    return f"<{type(value).__name__} at {id(value):#x} that cannot be shown>"


def _document_text(value: Any) -> str:
    for base in type(value).__mro__:
        if (write := _DOCUMENTS.get((base.__module__, base.__name__))) is not None:
            return str(write(value))
        if _is_element(base):
            element = value.getroot() if base.__name__ == "ElementTree" else value
            return str(sys.modules[base.__module__].tostring(element, encoding="unicode")).strip()
    return ""


def _is_element(base: type) -> bool:
    return base.__module__ in _ELEMENT_TREES and base.__name__ in _ELEMENTS


def _own_text(value: object) -> str:
    # Exceptions and classes are described by their repr.
    has_text = type(value).__str__ is not object.__str__ and not isinstance(value, BaseException | type | str)
    return str(value) if has_text else ""


def _is_of_pandas(kind: type) -> bool:
    return any(base.__name__ in _TABLES and base.__module__.startswith("pandas.") for base in kind.__mro__)


def _range_text(value: Any) -> str:
    """Return a range as PostgreSQL writes and reads it."""
    if getattr(value, "isempty", False) or getattr(value, "empty", False) is True:
        return "empty"
    ends = ("" if end is None else _range_end(end) for end in (value.lower, value.upper))
    return f"{'[' if value.lower_inc else '('}{','.join(ends)}{']' if value.upper_inc else ')'}"


def _range_end(end: Any) -> str:
    text = end.isoformat(" ") if isinstance(end, datetime) else str(end)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
