"""What the variables of a function hold: values in collections of the standard library, also in nested ones."""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, cast

_MOST = 10_000
_MOST_DEPTH = 4
_MAPPINGS = (dict, MappingProxyType, ChainMap)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_COLLECTIONS: tuple[type, ...] = (list, tuple, set, frozenset, deque, *_VIEWS)


def members(value: Any) -> Iterator[Any]:
    """Yield a value, or what is in it if it is a collection, at most four deep and ten thousand in all.

    Generators and other iterators are left alone: to look into one would use it up.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    left = _MOST
    while waiting and left > 0:
        value, depth = waiting.pop()
        left -= 1
        is_mapping = isinstance(value, _MAPPINGS)
        if depth == _MOST_DEPTH or not (is_mapping or isinstance(value, _COLLECTIONS)):
            yield value
            continue
        inner = list(islice(cast("Iterable[Any]", value), left))
        if is_mapping:
            inner += islice(cast("Mapping[Any, Any]", value).values(), left)
        waiting += [(one, depth + 1) for one in reversed(inner)]
