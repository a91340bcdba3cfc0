"""Requests in the frames of an error, or of a task that is about to be cancelled: in flight, redirected, being read.

Errors that end a wait (a cancellation, a timeout, a truncated body) carry no request. The frames they passed do,
and those of tasks and threads that the attempt has started. Frames are looked at only after a failure, or when a time
limit ends an attempt.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context
from itertools import islice
from types import FrameType, MappingProxyType, SimpleNamespace
from typing import Any, cast

from redrive.calls.context import EnclosingAttempt, inside
from redrive.calls.effects.request import (
    KnownRequest,
    SentRequest,
    answered,
    attached,
    key_in,
    known,
    redirected,
    redirects_in,
)
from redrive.classify.error_codes import call_or_none
from redrive.classify.responses import attribute, is_response_type
from redrive.classify.type_names import libraries, type_names

_MOST_FRAMES = 1_000
_MOST_TASKS = 1_000
_MOST_THREADS_DEEP = 3

# Functions that wait for the response to a request, by library, and the local variable that has the request. urllib3
# has none, but its method and headers.
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
        # Of redrive's adapters, which call `_send` for each attempt.
        ("redrive", "handle_request"),
        ("redrive", "handle_async_request"),
        ("redrive", "send"),
    }
)
_READING = ("redrive", "_read")  # of redrive's adapter for requests: it has the response whose body breaks off
_CLIENTS = frozenset(library for library, _ in _SENDING) - {"redrive"}


def sent_in(frames: Iterable[FrameType], around: Iterable[FrameType] = (), depth: int = 0) -> Iterator[SentRequest]:
    """Yield the requests in the frames of one stack, the outermost first, and in the threads that these wait for.

    Args:
        frames: the stack.
        around: frames in which a response may be that wraps one of the stack's.
        depth: 0 for what the attempt has ended; more for its threads, and those that these wait for.
    """
    waiting: list[SentRequest] = []
    frames = list(frames)
    stack = [(place_of(frame), frame) for frame in frames]
    if any(library == "botocore" for (library, _), _ in stack):
        return  # AWS reads by POST, too, and botocore knows which of its calls it may retry
    alone = not any(library in _CLIENTS for (library, _), _ in stack)
    for place, frame in stack:
        if place in _CONNECTING:
            if depth == 0:  # a thread continues, and sends its request once it is connected
                waiting.clear()
            continue
        if place[0] in _CLIENTS:
            for value in list(frame.f_locals.values()):
                yield from redirects_in([value] if is_response_type(type(value)) else value)
        if "self" in frame.f_code.co_varnames or "self" in frame.f_code.co_freevars:
            owner = frame.f_locals.get("self")
            if is_response_type(type(owner)):
                yield from _answered_by(owner, frames, around, alone=alone)
        if place in _SENDING_ALONE and alone and (own := _by_http_client(frame, frames)) is not None:
            waiting.append(SentRequest(None, own))
        if place in _SENDING and (request := _request_of(frame, _SENDING[place])) is not None:
            waiting.append(SentRequest(None, request))
    yield from waiting
    threads = (
        threads_of(frame for (library, _), frame in stack if library != "redrive") if depth < _MOST_THREADS_DEEP else ()
    )
    for thread in threads:
        yield from sent_in(_stack(sys._current_frames().get(thread)), depth=depth + 1)


def _answered_by(
    response: Any, frames: list[FrameType], around: Iterable[FrameType], *, alone: bool
) -> Iterator[SentRequest]:
    """Yield the requests of a response that one of its own methods was reading."""
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
    """Return the request that a connection of http.client sends; with headers only where urllib.request made it."""
    if (request := _of_urllib(frames)) is not None:
        return request
    method = attribute(frame.f_locals.get("self"), "_method")
    return KnownRequest(method, {}) if isinstance(method, str) else None


def _of_urllib(frames: Iterable[FrameType]) -> KnownRequest | None:
    """Return the request that urllib.request is sending, or has sent."""
    for frame in frames:
        request = frame.f_locals.get("req") if frame.f_globals.get("__name__") == "urllib.request" else None
        if request is not None and isinstance(method := call_or_none(request, "get_method"), str):
            key = key_in({**request.headers, **request.unredirected_hdrs})
            return KnownRequest(method, {"Idempotency-Key": key} if key else {})
    return None


def of_urllib_error(error: BaseException) -> KnownRequest | None:
    """Return the request of an HTTPError of urllib.request."""
    return _of_urllib(frames_of_error(error)) if "urllib.HTTPError" in type_names(type(error)) else None


def wrapping(response: Any, frames: Iterable[FrameType]) -> Any:
    """Return the request of the requests.Response whose `raw` is this response of urllib3, where a frame has it."""
    if "urllib3" not in libraries(type(response)):
        return None
    for value in _variables(frames):
        if is_response_type(type(value)) and attribute(value, "raw") is response:
            return attached(value)
    return None


def _variables(frames: Iterable[FrameType]) -> Iterator[Any]:
    """Yield the local variables of frames, except redrive's own: these refer to the error, which would be a cycle."""
    for frame in frames:
        if place_of(frame)[0] != "redrive" or place_of(frame) == _READING:
            yield from list(frame.f_locals.values())


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def frames_of_error(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames that an error has passed, the outermost first."""
    step, count = error.__traceback__, 0
    while step is not None and count < _MOST_FRAMES:
        yield step.tb_frame
        step, count = step.tb_next, count + 1


def in_flight(awaitable: Any, waits_for: Any) -> list[KnownRequest]:
    """Return the requests in flight in what an attempt awaits, and in the tasks that it started and waits for.

    Args:
        awaitable: what the attempt's function returned.
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
    """Return the requests in flight in all other threads of this process, and in the tasks of their event loops."""
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
    """Return the frames of a thread, the outermost first."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _frames_of_coroutine(awaitable: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of those it awaits, the outermost first."""
    for _ in range(_MOST_FRAMES):
        for frame, below in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            if isinstance(found := attribute(awaitable, frame), FrameType):
                yield found
                awaitable = attribute(awaitable, below)
                break
        else:
            return


def _tasks_of(frames: Iterable[FrameType], futures: Iterable[Any]) -> Iterator[Any]:
    """Yield the tasks that are awaited, those in the variables of frames, and those of the groups there."""
    values: list[Any] = list(futures)
    for frame in frames:
        values += frame.f_locals.values()
    for value in values:
        # asyncio's and anyio's task groups know their tasks, and the future of gather() its own.
        for group in (value, attribute(value, "_tasks"), attribute(value, "_children")):
            candidates = list(group) if isinstance(group, list | tuple | set | frozenset) else [group]
            yield from (candidate for candidate in candidates[:_MOST_TASKS] if _is_task(candidate))


def _is_task(value: object) -> bool:
    return callable(getattr(type(value), "get_coro", None)) and not value.done()  # type: ignore[attr-defined]


# ── work that an attempt has started and that continues after it has failed ───────────────────────────────────────────


def tasks_of_attempt(attempt: EnclosingAttempt) -> Iterator[Any]:
    """Yield the pending tasks of the running event loop that were started inside an attempt, at any depth.

    A task copies the context when it is made: `asyncio.shield`, `asyncio.wait` and `as_completed` leave such tasks.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return
    current = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not current and _is_inside(task, attempt):
            yield task


def _is_inside(task: Any, attempt: EnclosingAttempt) -> bool:
    context = _context_of(task)
    mark = None if context is None else context.get(inside)
    while mark is not None and mark is not attempt:
        mark = mark.outer
    return mark is not None


def _context_of(task: Any) -> Context | None:
    if sys.version_info >= (3, 12) and hasattr(task, "get_context"):
        context: Context = task.get_context()
        return context
    return next((part for part in gc.get_referents(task) if isinstance(part, Context)), None)


def threads_of(frames: Iterable[FrameType]) -> set[int]:
    """Return the ids of other live threads that code has started and may wait for.

    These are threads, executors and pending futures in the variables of its frames, and `asyncio.to_thread`.
    """
    frames = list(frames)
    threads: set[int] = set()
    work: set[int] = set()
    for value in _workers_in(frames):
        if isinstance(value, threading.Thread):
            threads.add(value.ident or 0)
        elif hasattr(type(value), "submit"):
            threads.update(thread.ident for thread in list(value._threads))
        elif not value.done():
            work.add(id(value))
    work.update(id(frame.f_locals.get("func_call")) for frame in frames if frame.f_code.co_name == "to_thread")
    if work:
        threads.update(ident for ident, item in _working() if not work.isdisjoint(item))
    return threads - {threading.get_ident()}


def _workers_in(frames: list[FrameType]) -> Iterator[Any]:
    """Yield the threads, executors and futures in the variables of frames, or in collections there."""
    base, pools = sys.modules.get("concurrent.futures._base"), sys.modules.get("concurrent.futures.thread")
    wanted: tuple[type, ...] = (threading.Thread, *([base.Future] if base is not None else []))
    executors: tuple[type, ...] = () if pools is None else (pools.ThreadPoolExecutor,)
    # The results of `Executor.map` do not refer to the future that was waited for, and a map is often all there is.
    of_map = any(_module_and_function(frame) == ("concurrent.futures._base", "result_iterator") for frame in frames)
    for frame in frames:
        if _module_and_function(frame)[0] == "threading":  # where a thread refers to itself
            continue
        # The work of a shared executor may be that of other callers.
        shared = () if of_map else frame.f_code.co_freevars
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, executors) and name not in shared:
                yield value
            yield from (member for member in members(value) if isinstance(member, wanted))
        if of_map:
            named = (frame.f_globals.get(name) for name in frame.f_code.co_names)
            yield from (value for value in named if isinstance(value, executors))


def _working() -> Iterator[tuple[int, set[int]]]:
    """Yield the threads of executors, each with the ids of the future and the function that it works on."""
    for ident, frame in sys._current_frames().items():
        step: FrameType | None = frame
        while step is not None:
            if _module_and_function(step) == ("concurrent.futures.thread", "run"):
                item = step.f_locals.get("self")
                function = attribute(item, "fn") or next(iter(attribute(item, "task") or ()), None)  # from 3.14 on
                yield ident, {id(attribute(item, "future")), id(function)}
            step = step.f_back


def _module_and_function(frame: FrameType) -> tuple[object, str]:
    return frame.f_globals.get("__name__"), frame.f_code.co_name


# ── values in collections ─────────────────────────────────────────────────────────────────────────────────────────────


_MOST_MEMBERS = 10_000
_MOST_NESTED = 4
_MAPPINGS = (dict, MappingProxyType, ChainMap)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_COLLECTIONS: tuple[type, ...] = (list, tuple, set, frozenset, deque, *_VIEWS)


def members(value: Any) -> Iterator[Any]:
    """Yield a value, or what is in it if it is a collection, at most four deep and ten thousand in all.

    Generators and other iterators are skipped: to look into one would consume it.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    left = _MOST_MEMBERS
    while waiting and left > 0:
        value, depth = waiting.pop()
        left -= 1
        is_mapping = isinstance(value, _MAPPINGS)
        if depth == _MOST_NESTED or not (is_mapping or isinstance(value, _COLLECTIONS)):
            yield value
            continue
        inner = list(islice(cast("Iterable[Any]", value), left))
        if is_mapping:
            inner += islice(cast("Mapping[Any, Any]", value).values(), left)
        waiting += [(member, depth + 1) for member in reversed(inner)]
