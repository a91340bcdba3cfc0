"""Requests in the frames of an error, or of a task that is about to be cancelled: in flight, redirected, being read.

Errors that end a wait (a cancellation, a time limit, a body that is cut) carry no request. The frames they passed do.
Frames are looked at only after a failure, or when a time limit ends an attempt.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

from redrive.calls.context import EnclosingAttempt
from redrive.calls.effects.background import tasks_of_attempt, threads_of
from redrive.classify.error_codes import call_or_none
from redrive.classify.responses import attribute, header, is_response_type, response_status
from redrive.classify.type_names import libraries, type_names

_CARRIED = "_redrive_in_flight"
_MOST_FRAMES = 1_000
_MOST_TASKS = 1_000
_MOST_DEPTH = 3

# Functions that wait for the answer to a request, by library, and the local variable that has the request; urllib3 has
# none, but its method and headers.
_SENDING = {
    ("httpx", "_send_single_request"): "request",
    ("httpx2", "_send_single_request"): "request",
    ("aiohttp", "send"): "self",
    ("requests", "send"): "request",
    ("niquests", "send"): "request",
    ("urllib3", "_make_request"): None,
    ("redrive", "_send"): "request",
    ("redrive", "_asend"): "request",
}
# The same of http.client, where no other client sends by it.
_SENDING_ALONE = frozenset({("http", "endheaders"), ("http", "getresponse")})
# Functions below those in which nothing of the request has been sent yet.
_CONNECTING = frozenset(
    {
        ("httpcore", "_connect"),
        ("httpcore", "wait_for_connection"),
        ("httpcore2", "_connect"),
        ("httpcore2", "wait_for_connection"),
        ("aiohttp", "connect"),
        ("urllib3", "connect"),
        ("http", "connect"),
        # Of the adapters: `_send` is called for each attempt, below them.
        ("redrive", "handle_request"),
        ("redrive", "handle_async_request"),
        ("redrive", "send"),
    }
)
_READING = ("redrive", "_read")  # of the adapter for requests: it has the response whose body breaks
_CLIENTS = frozenset(library for library, _ in _SENDING) - {"redrive"}
# Redirects that turn a POST into a GET: the server may have acted. With 307 and 308 it asks for the same once more.
_ANSWERED_ELSEWHERE = frozenset({300, 301, 302, 303})


class SentRequest(NamedTuple):
    """A request that may have reached the server."""

    response: Any
    """The answer; None while there is none."""
    request: Any


class KnownRequest(NamedTuple):
    """What is kept of a request that was in flight when its attempt was ended."""

    method: str
    headers: dict[str, str]


def carry(error: BaseException, requests: Iterable[KnownRequest]) -> None:
    """Put what is known of requests in flight on an error whose frames do not tell of them."""
    if found := (*carried(error), *requests):
        with suppress(Exception):  # a foreign class may take no attributes
            setattr(error, _CARRIED, found)


def carried(error: BaseException) -> tuple[KnownRequest, ...]:
    """The requests that were put on an error."""
    # Not by attribute(): an error may answer every name with something.
    return vars(error).get(_CARRIED, ()) if hasattr(error, "__dict__") else ()


def attached(holder: Any) -> Any:
    """The request with its method, as httpx and requests attach it to errors and responses; aiohttp's info likewise."""
    for owner in (holder, attribute(holder, "response")):
        for name in ("request", "request_info"):
            request = attribute(owner, name)  # httpx's property refuses to answer while unset
            if isinstance(attribute(request, "method"), str):
                return request
    if "urllib3" in libraries(type(holder)) and is_response_type(type(holder)):
        return _by_method(attribute(holder, "_original_response"))
    return None


def answered(response: Any) -> Any:
    """The request of a response; also of http.client, which is what other clients read their answers by."""
    return attached(response) or _by_method(response)


def _by_method(response: Any) -> KnownRequest | None:
    """What an answer of http.client knows: not what headers it is the answer to, so that a key is not seen here."""
    method = attribute(response, "_method")
    return KnownRequest(method, {}) if isinstance(method, str) else None


def idempotency_key(request: Any) -> str | None:
    """The key that the request carries; an empty one counts as none."""
    return key_in(attribute(request, "headers"))


def key_in(headers: Any) -> str | None:
    """Return the idempotency key in headers; an empty one counts as none."""
    return (header(headers, "idempotency-key") or "").strip() or None


def redirected(holder: Any) -> Iterator[SentRequest]:
    """The requests that were answered by a redirect before the one that this error or response belongs to."""
    for owner in (holder, attribute(holder, "response")):
        yield from _redirects(attribute(owner, "history"))


def sent_in(frames: Iterable[FrameType], around: Iterable[FrameType] = (), depth: int = 0) -> Iterator[SentRequest]:
    """The requests in the frames of one stack, the outermost frame first, and in the threads that these wait for.

    Args:
        frames: the stack.
        around: frames in which a response may be that wraps one of the stack's.
        depth: 0 for what the attempt has ended; more for its threads, and those that these wait for.
    """
    waiting: list[SentRequest] = []
    frames = list(frames)
    stack = [(place_of(frame), frame) for frame in frames]
    if any(library == "botocore" for (library, _), _ in stack):
        return  # AWS reads by POST, too, and botocore knows which of its calls it may repeat
    alone = not any(library in _CLIENTS for (library, _), _ in stack)
    for place, frame in stack:
        if place in _CONNECTING:
            if depth == 0:  # a thread goes on, and sends its request once it is connected
                waiting.clear()
            continue
        if place[0] in _CLIENTS:
            for value in list(frame.f_locals.values()):
                yield from _redirects([value] if is_response_type(type(value)) else value)
        if "self" in frame.f_code.co_varnames or "self" in frame.f_code.co_freevars:
            owner = frame.f_locals.get("self")
            if is_response_type(type(owner)):
                yield from _answered_by(owner, frames, around, alone=alone)
        if place in _SENDING_ALONE and alone and (own := _by_http_client(frame, frames)) is not None:
            waiting.append(SentRequest(None, own))
        if place in _SENDING and (request := _request_of(frame, _SENDING[place])) is not None:
            waiting.append(SentRequest(None, request))
    yield from waiting
    threads = threads_of(frame for (library, _), frame in stack if library != "redrive") if depth < _MOST_DEPTH else ()
    for thread in threads:
        yield from sent_in(_stack(sys._current_frames().get(thread)), depth=depth + 1)


def _answered_by(
    response: Any, frames: list[FrameType], around: Iterable[FrameType], *, alone: bool
) -> Iterator[SentRequest]:
    """The requests of a response that a method of its own was reading."""
    request = wrapping(response, [*frames, *around]) or attached(response)
    if request is None and alone:
        request = _of_urllib(frames) or answered(response)
    if request is not None:
        yield SentRequest(response, request)
        yield from redirected(response)


def place_of(frame: FrameType) -> tuple[str, str]:
    """Return the top-level package and the function of a frame."""
    return str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_name


def _request_of(frame: FrameType, name: str | None) -> Any:
    if name is None:
        request: Any = SimpleNamespace(method=frame.f_locals.get("method"), headers=frame.f_locals.get("headers"))
    else:
        request = frame.f_locals.get(name)
    return request if isinstance(attribute(request, "method"), str) else None


def _by_http_client(frame: FrameType, frames: Iterable[FrameType]) -> KnownRequest | None:
    """The request that a connection of http.client sends; its headers only where urllib.request has made it."""
    if (request := _of_urllib(frames)) is not None:
        return request
    method = attribute(frame.f_locals.get("self"), "_method")
    return KnownRequest(method, {}) if isinstance(method, str) else None


def _of_urllib(frames: Iterable[FrameType]) -> KnownRequest | None:
    """The request that urllib.request is sending, or has sent."""
    for frame in frames:
        request = frame.f_locals.get("req") if frame.f_globals.get("__name__") == "urllib.request" else None
        if request is not None and isinstance(method := call_or_none(request, "get_method"), str):
            key = key_in({**request.headers, **request.unredirected_hdrs})
            return KnownRequest(method, {"Idempotency-Key": key} if key else {})
    return None


def of_urllib_error(error: BaseException) -> KnownRequest | None:
    """The request that the HTTPError of urllib.request answers."""
    return _of_urllib(frames_of_error(error)) if "urllib.HTTPError" in type_names(type(error)) else None


def wrapping(response: Any, frames: Iterable[FrameType]) -> Any:
    """The request of the requests.Response that an answer of urllib3 is the `raw` of, where a frame holds it."""
    if "urllib3" not in libraries(type(response)):
        return None
    for value in _variables(frames):
        if is_response_type(type(value)) and attribute(value, "raw") is response:
            return attached(value)
    return None


def _variables(frames: Iterable[FrameType]) -> Iterator[Any]:
    """The local variables of frames. Frames of ours that still run hold the error: a look would make that a cycle."""
    for frame in frames:
        if place_of(frame)[0] != "redrive" or place_of(frame) == _READING:
            yield from list(frame.f_locals.values())


def _redirects(responses: Any) -> Iterator[SentRequest]:
    for response in responses if isinstance(responses, list | tuple) else ():
        if not is_response_type(type(response)) or response_status(response) not in _ANSWERED_ELSEWHERE:
            continue
        if (request := attached(response)) is not None:
            yield SentRequest(response, request)


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def frames_of_error(error: BaseException) -> Iterator[FrameType]:
    """The frames that an error has passed, the outermost first."""
    step, count = error.__traceback__, 0
    while step is not None and count < _MOST_FRAMES:
        yield step.tb_frame
        step, count = step.tb_next, count + 1


def in_flight(awaitable: Any, waits_for: Any) -> list[KnownRequest]:
    """The requests in flight in what an attempt awaits, and in the tasks that it has started and still waits for.

    Args:
        awaitable: what the attempt's function gave.
        waits_for: the future that the attempt's own task waits for.
    """
    return [known(request) for request in _requests_in(awaitable, waits_for, depth=0)]


def _requests_in(awaitable: Any, waits_for: Any, depth: int) -> list[Any]:
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, Any]] = [(awaitable, waits_for)]
    while waiting and len(seen) < _MOST_TASKS:
        coroutine, future = waiting.pop()
        frames = list(_frames_of_coroutine(coroutine))
        found += [sent.request for sent in sent_in(frames, depth=depth)]
        for task in _tasks_of(frames, [coroutine, future]):
            if id(task) not in seen:
                seen.add(id(task))
                waiting.append((attribute(task, "get_coro")(), attribute(task, "_fut_waiter")))
    return found


def left_in_flight(attempt: EnclosingAttempt) -> list[Any]:
    """Return the requests of tasks that an attempt has started and that continue although it has failed."""
    requests: list[Any] = []
    for task in islice(tasks_of_attempt(attempt), _MOST_TASKS):
        # One that is not cancelled sends its request once it is connected, like a thread.
        depth = 0 if call_or_none(task, "cancelling") else 1
        requests += _requests_in(task.get_coro(), attribute(task, "_fut_waiter"), depth)
    return requests


def in_flight_in_process() -> list[KnownRequest]:
    """The requests in flight in all other threads of this process, and in the tasks of their event loops."""
    found: list[KnownRequest] = []
    for thread, frame in sys._current_frames().items():
        if thread == threading.get_ident():
            continue
        stack = _stack(frame)
        found += [known(sent.request) for sent in sent_in(stack)]
        for loop in (frame.f_locals.get("self") for frame in stack if frame.f_code.co_name == "run_forever"):
            for task in sys.modules["asyncio"].all_tasks(loop) if "asyncio" in sys.modules else ():
                found += in_flight(task.get_coro(), attribute(task, "_fut_waiter"))
    return found


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, the outermost first."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _frames_of_coroutine(awaitable: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of those it awaits, the outermost first."""
    for _ in range(_MOST_FRAMES):
        for frame, below in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            if isinstance(found := attribute(awaitable, frame), FrameType):
                yield found
                awaitable = attribute(awaitable, below)
                break
        else:
            return


def _tasks_of(frames: Iterable[FrameType], futures: Iterable[Any]) -> Iterator[Any]:
    """The tasks that are awaited, that frames hold, and that the groups in them hold."""
    held: list[Any] = list(futures)
    for frame in frames:
        held += frame.f_locals.values()
    for value in held:
        # asyncio's and anyio's task groups know their tasks, and the future of gather() its own.
        for group in (value, attribute(value, "_tasks"), attribute(value, "_children")):
            members = list(group) if isinstance(group, list | tuple | set | frozenset) else [group]
            yield from (member for member in members[:_MOST_TASKS] if _is_task(member))


def _is_task(value: object) -> bool:
    return callable(getattr(type(value), "get_coro", None)) and not value.done()  # type: ignore[attr-defined]


def known(request: Any) -> KnownRequest:
    """What is kept of a request."""
    key = idempotency_key(request)
    return KnownRequest(request.method, {"Idempotency-Key": key} if key else {})
