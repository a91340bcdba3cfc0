"""The requests and other effects behind a failure: of the error, of what it was raised for, of a group's members."""

from __future__ import annotations

import dis
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any

from redrive.calls.effects.beyond_http import effects_in
from redrive.calls.effects.in_flight import (
    frames_of_error,
    members,
    of_urllib_error,
    place_of,
    sent_in,
    wrapping,
)
from redrive.calls.effects.request import (
    KnownRequest,
    SentRequest,
    answered,
    attached,
    carried,
    redirected,
)
from redrive.classify.responses import attribute, is_response_type
from redrive.classify.type_names import libraries, type_names
from redrive.classify.unwrap import unwrap_chain

_MOST_ERRORS = 1_000

# Errors of the connect phase: the request provably never left.
NEVER_LEFT = frozenset(
    {
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx2.ConnectError",
        "httpx2.ConnectTimeout",
        "httpx2.PoolTimeout",
        "httpx2.UnsupportedProtocol",
        "niquests.ConnectTimeout",
        "requests.ConnectTimeout",
        "urllib3.ConnectTimeoutError",
        "urllib3.NameResolutionError",
        "urllib3.NewConnectionError",
        "aiohttp.ClientConnectorError",
        "aiohttp.ConnectionTimeoutError",
        "redrive.CircuitOpen",
        "ConnectionRefusedError",
        "socket.gaierror",
    }
)


def sent_requests(failure: Any, since: int = -1) -> Iterator[tuple[Any, Any]]:
    """Yield each request that may have left and each other effect, after the error or response that belongs to it.

    That is None for one of which nothing but its sending is known.

    Args:
        failure: the error or response.
        since: the instruction of the error's outermost frame at which the attempt began; -1 for a function.
    """
    if not isinstance(failure, BaseException):
        if (request := answered(failure)) is not None:
            yield failure, request
        yield from redirected(failure)
        return
    errors = list(_related(failure))
    frames = [frame for error in errors for frame in frames_of_error(error)]
    given = given_to_attempt(frames_of_error(failure), since)
    wrapped = {id(attribute(error, "orig")) for error in errors if "sqlalchemy" in libraries(type(error))}
    for error in errors:
        # A response of urllib3 does not have the headers of its request.
        own = wrapping(attribute(error, "response"), frames) or attached(error)
        own = own or _of_stripe(error) or of_urllib_error(error)
        unsent = never_left(error)
        if own is not None and not unsent:
            yield error, own
        yield from ((None, request) for request in carried(error))
        yield from ((None, effect) for effect in effects_in(error, wrapped))
        yield from redirected(error)
        sent = list(sent_in(frames_of_error(error), around=frames))
        if own is None:
            yield from _looked_at(
                error, given, of_client=unsent or any(not isinstance(request, KnownRequest) for _, request in sent)
            )
        for response, request in sent:
            # The request of an error is more reliable than the requests of its frames.
            if request is not own and (response is not None or (own is None and not unsent)):
                yield response, request


def _looked_at(error: BaseException, given: set[int], *, of_client: bool) -> Iterator[SentRequest]:
    """Yield the responses that code looked at before it raised an error of its own, or of a body that it cannot parse.

    The error of a client (`of_client`) is about another request than those that were answered before.
    """
    frames = list(frames_of_error(error))
    if of_client and not isinstance(error, ValueError):
        frames = frames[-1:]  # a program may raise the ConnectionRefusedError of a client itself
    if not any(place_of(frame)[0] == "botocore" for frame in frames):
        yield from answered_in(frames, given)


def _related(failure: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of groups, each once.

    The error that a caller was handling when it made this call is the context of this call's error, too; its requests
    are not those of this call.
    """
    handled = sys.exception()
    seen, waiting = {id(handled)} if handled is not failure else set(), [failure]
    while waiting and len(seen) < _MOST_ERRORS:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        waiting.extend(unwrap_chain(error)[1:])
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions[:_MOST_ERRORS])
        origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if origin is not None:
            waiting.append(origin)


def _of_stripe(error: BaseException) -> Any:
    """Return the request of stripe's client, by its arguments.

    Stripe sends a new Idempotency-Key with each call of a method, which makes only its own retries safe. A key that the
    program passes is the same in each attempt.
    """
    for frame in frames_of_error(error) if "stripe" in libraries(type(error)) else ():
        if str(frame.f_globals.get("__name__")).startswith("stripe.") and "options" in frame.f_code.co_varnames:
            method, options = frame.f_locals.get("method"), frame.f_locals.get("options")
            if isinstance(method, str):
                passed = isinstance(options, Mapping) and options.get("idempotency_key")
                return SimpleNamespace(method=method, headers={"Idempotency-Key": passed} if passed else {})
    return None


def never_left(error: BaseException) -> bool:
    """Return whether an error means that its request was not sent."""
    return any(not NEVER_LEFT.isdisjoint(type_names(type(inner))) for inner in unwrap_chain(error))


# ── responses in the variables of code that an error has passed ───────────────────────────────────────────────────────


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

    These are arguments of the function, and values that variables had before a block of `attempts()`.

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
    """Return the frames of other code than redrive's and the clients'.

    Frames of redrive that still run refer to the error, which would be a cycle. Those of clients are for `sent_in`.
    """
    return (frame for frame in frames if place_of(frame)[0] not in _OWN_WAYS)


def _variables(frame: FrameType) -> list[Any]:
    return list(frame.f_locals.values())


def _responses(value: Any) -> Iterator[Any]:
    """Yield the value itself, or the members of a collection, that are responses or futures with one."""
    for member in members(value):
        response = attribute(member, "_result") if hasattr(type(member), "set_result") else member
        if is_response_type(type(response)):
            yield response


def _in_attributes(value: Any, code: CodeType) -> Iterator[Any]:
    """Yield the responses in attributes of an object that the code names: others may be of earlier calls."""
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
    """Return the names of the variables that code assigns after an instruction."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.offset > since and "STORE_" in instruction.opname:
            # Python 3.13 and later have instructions for two variables, such as STORE_FAST_LOAD_FAST.
            touched = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            kinds = [part for part in instruction.opname.split("_") if part in ("STORE", "LOAD")]
            names.update(name for kind, name in zip(kinds, touched, strict=False) if kind == "STORE")
    return names
