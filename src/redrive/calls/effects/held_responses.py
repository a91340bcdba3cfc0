"""Responses that the code an error has passed holds in its variables: answers to requests that this code has sent.

An error of the program's own ("the bank answered 503") carries no request. The function that raises it still has the
response that it looked at. Frames are looked at only after a failure.
"""

from __future__ import annotations

import dis
from collections.abc import Container, Iterable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

from redrive.calls.effects.in_flight import SentRequest, answered, place_of, redirected
from redrive.calls.effects.members import members
from redrive.classify.responses import attribute, is_response_type

_MOST_STEPS = 3
"""Attributes of attributes that are followed: `self.state.response` takes two."""
_OWN_WAYS = frozenset({"redrive", "aiohttp", "http", "httpx", "httpx2", "niquests", "requests", "urllib3"})


def answered_in(frames: Iterable[FrameType], given: Container[int]) -> Iterator[SentRequest]:
    """Yield the responses that frames hold, with their requests.

    Args:
        frames: the code that an error has passed.
        given: ids of responses that the attempt was given, see `given_to_attempt`.
    """
    for frame in _foreign(frames):
        for value in _variables(frame):
            for response in (*_responses(value), *_in_attributes(value, frame.f_code)):
                if id(response) in given:
                    continue
                if (request := answered(response)) is not None:
                    yield SentRequest(response, request)
                yield from redirected(response)


def given_to_attempt(frames: Iterable[FrameType], since: int) -> set[int]:
    """Return the ids of responses that an attempt did not receive itself: to retry it does not send their requests.

    These are arguments of the function, and what a variable around a block of `attempts()` held before the block.

    Args:
        frames: those of the attempt's error, the outermost first.
        since: the instruction of the outermost frame at which the attempt began; -1 for a function.
    """
    outermost = next(_foreign(frames), None)
    if outermost is None or not any(True for value in _variables(outermost) for _ in _responses(value)):
        return set()
    assigned = _assigned(outermost.f_code, since)
    given = [value for name, value in list(outermost.f_locals.items()) if name not in assigned]
    return {id(response) for value in given for response in _responses(value)}


def _foreign(frames: Iterable[FrameType]) -> Iterator[FrameType]:
    """The frames of other code than ours and the clients'.

    Frames of ours that still run hold the error: a look would make that a cycle. Those of clients are for `sent_in`.
    """
    return (frame for frame in frames if place_of(frame)[0] not in _OWN_WAYS)


def _variables(frame: FrameType) -> list[Any]:
    return list(frame.f_locals.values())


def _responses(value: Any) -> Iterator[Any]:
    """The value itself, or the members of a collection, as far as they are responses or futures with one."""
    for member in members(value):
        found = attribute(member, "_result") if hasattr(type(member), "set_result") else member
        if is_response_type(type(found)):
            yield found


def _in_attributes(value: Any, code: CodeType) -> Iterator[Any]:
    """The responses in attributes of an object that the code names: others may be of earlier calls."""
    waiting = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        attributes = attribute(value, "__dict__")
        if not isinstance(attributes, dict) or is_response_type(type(value)) or isinstance(value, type | ModuleType):
            continue
        for inner in (attributes[name] for name in code.co_names if name in attributes):
            yield from _responses(inner)
            if depth < _MOST_STEPS:
                waiting.append((inner, depth + 1))


def _assigned(code: CodeType, since: int) -> set[str]:
    """The names of the variables that code assigns after an instruction."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.offset > since and "STORE_" in instruction.opname:
            # Python 3.13 and later have instructions for two variables, such as STORE_FAST_LOAD_FAST.
            touched = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            kinds = [part for part in instruction.opname.split("_") if part in ("STORE", "LOAD")]
            names.update(name for kind, name in zip(kinds, touched, strict=False) if kind == "STORE")
    return names
