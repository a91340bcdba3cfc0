"""The HTTP requests behind a failure: of the error itself, of what it was raised for, of the members of a group."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType, SimpleNamespace
from typing import Any

from redrive.classify.look_through import look_through
from redrive.classify.names import libraries, type_names
from redrive.classify.responses import attribute, is_response_type

_MOST_ERRORS = 1_000
_MOST_FRAMES = 1_000

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
        "ConnectionRefusedError",
        "socket.gaierror",
    }
)


def sent_requests(failure: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each error or response behind a failure whose request may have left, with that request."""
    if not isinstance(failure, BaseException):
        if (request := _attached(failure)) is not None:
            yield failure, request
        return
    for error in _related(failure):
        if (request := _attached(error)) is None:
            request = _of_stripe(error) or _being_read(error)
        if request is not None and not _never_left(error):
            yield error, request


def _related(failure: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups, each once.

    The error that a caller was handling when it made this call is the context of this call's error too; what that one
    sent is not for this call to judge.
    """
    handled = sys.exception()
    seen, waiting = {id(handled)} if handled is not failure else set(), [failure]
    while waiting and len(seen) < _MOST_ERRORS:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        waiting.extend(look_through(error)[1:])
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions[:_MOST_ERRORS])
        origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if origin is not None:
            waiting.append(origin)


def _attached(failure: Any) -> Any:
    """The request with its method, as httpx and requests attach it to errors and responses; aiohttp's info likewise."""
    for holder in (failure, attribute(failure, "response")):
        for name in ("request", "request_info"):
            request = attribute(holder, name)  # httpx's property refuses to answer while unset
            if isinstance(attribute(request, "method"), str):
                return request
    return None


def _being_read(error: BaseException) -> Any:
    """The request of the response in whose methods the error was raised.

    No client attaches it everywhere: requests not where a body is cut, garbled or not JSON, httpx not where it is not
    JSON, and aiohttp not where the connection is lost.
    """
    for frame in _frames(error):
        if "self" in frame.f_code.co_varnames or "self" in frame.f_code.co_freevars:
            owner = frame.f_locals.get("self")
            if is_response_type(type(owner)) and (request := _attached(owner)) is not None:
                return request
    return None


def _of_stripe(error: BaseException) -> Any:
    """The request of stripe's client, by its arguments.

    Stripe sends a new Idempotency-Key with each call of a method, which makes only its own retries safe. A key that the
    program passes is the same in each attempt.
    """
    for frame in _frames(error) if "stripe" in libraries(type(error)) else ():
        if str(frame.f_globals.get("__name__")).startswith("stripe.") and "options" in frame.f_code.co_varnames:
            method, options = frame.f_locals.get("method"), frame.f_locals.get("options")
            if isinstance(method, str):
                passed = isinstance(options, Mapping) and options.get("idempotency_key")
                return SimpleNamespace(method=method, headers={"Idempotency-Key": passed} if passed else {})
    return None


def _frames(error: BaseException) -> Iterator[FrameType]:
    step, count = error.__traceback__, 0
    while step is not None and count < _MOST_FRAMES:
        yield step.tb_frame
        step, count = step.tb_next, count + 1


def _never_left(error: BaseException) -> bool:
    return any(not NEVER_LEFT.isdisjoint(type_names(type(inner))) for inner in look_through(error))
