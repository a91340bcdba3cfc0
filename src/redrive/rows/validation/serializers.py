"""Serializers of a pydantic model: whether it has any, and the record that they make of a valid row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redrive._internal.optional import require_extra

with require_extra("rows"):
    from pydantic import TypeAdapter
    from pydantic.types import EncodedBytes, EncodedStr
    from pydantic_core import PydanticSerializationError

_CONDITION = "serialization_exclude_if"


def has_serializers(schema: Any) -> bool:
    """Return whether `model_dump()` gives other values than the attributes, anywhere in a core schema.

    Pydantic has serializers of its own for secrets, URLs, paths and others. Those do not count: in Python mode they
    keep the value, which `writable` handles. Those of base64 types encode, and count.
    """
    left, seen = [schema], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            if node.get(_CONDITION) is not None or _is_serializer(node.get("serialization")):
                return True
            left += [value for name, value in node.items() if name not in ("metadata", "default")]
        elif isinstance(node, list | tuple):
            left += node
    return False


def dump_with(adapter: TypeAdapter[Any]) -> Callable[[Any], Any]:
    """Return the function that dumps a valid value under the names of its fields, as `model_dump()` does."""
    to_python = adapter.serializer.to_python

    def dump(valid: Any) -> Any:
        try:
            return to_python(valid, by_alias=False, warnings=False)
        except PydanticSerializationError as error:
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from None  # pydantic wraps what a serializer raises, also bugs
            raise

    return dump


def _is_serializer(serialization: Any) -> bool:
    if not isinstance(serialization, Mapping) or not str(serialization.get("type")).startswith("function-"):
        return False
    if serialization.get("when_used") in ("json", "json-unless-none"):
        return False
    function = serialization.get("function")
    if isinstance(getattr(function, "__self__", None), EncodedBytes | EncodedStr):
        return True
    return str(getattr(function, "__module__", "")).partition(".")[0] != "pydantic"
