"""What a function gave back, told by its type: a plain value, something to await, a response, a generator."""

from __future__ import annotations

from enum import Enum, auto
from types import AsyncGeneratorType, GeneratorType, NoneType

from redrive.classify.responses import has_status, is_response


class ResultKind(Enum):
    """What has to be done with a result."""

    PLAIN = auto()
    AWAITABLE = auto()
    RESPONSE = auto()
    GENERATOR = auto()


# Types that need no second look; read in every call. Bounded, since programs can make types without end.
plain_types: set[type] = {NoneType, bool, int, float, str, bytes, tuple, list, dict, set}
_MOST_TYPES = 2_000


def nature_of(value: object) -> ResultKind:
    """Look at a result; types of plain ones are remembered."""
    cls = value.__class__
    if issubclass(cls, GeneratorType | AsyncGeneratorType):
        return ResultKind.GENERATOR
    if hasattr(cls, "__await__"):
        return ResultKind.AWAITABLE
    if is_response(value):
        return ResultKind.RESPONSE
    # The next object of a class with a status may hold a 503 where this one holds None.
    if len(plain_types) < _MOST_TYPES and not has_status(value):
        plain_types.add(cls)
    return ResultKind.PLAIN
