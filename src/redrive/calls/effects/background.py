"""Work that an attempt has started and that continues after the attempt has failed: asyncio tasks and threads.

Looked at only after a failure, where the call would be repeated.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from contextvars import Context
from types import FrameType
from typing import Any

from redrive.calls.context import EnclosingAttempt, inside
from redrive.calls.effects.members import members
from redrive.classify.responses import attribute


def tasks_of_attempt(attempt: EnclosingAttempt) -> Iterator[Any]:
    """The pending tasks of the running event loop that were started inside an attempt, at any depth.

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
    """The ids of other live threads that code has started and may wait for.

    These are threads, executors and pending futures in the variables of its frames, and `asyncio.to_thread`.
    """
    frames = list(frames)
    threads: set[int] = set()
    work: set[int] = set()
    for value in _variables(frames):
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


def _variables(frames: list[FrameType]) -> Iterator[Any]:
    """The threads, executors and futures in the variables of frames, or in collections there."""
    base, pools = sys.modules.get("concurrent.futures._base"), sys.modules.get("concurrent.futures.thread")
    wanted: tuple[type, ...] = (threading.Thread, *([base.Future] if base is not None else []))
    executors: tuple[type, ...] = () if pools is None else (pools.ThreadPoolExecutor,)
    # The results of `Executor.map` have forgotten the future that was waited for, and a map is often all there is.
    of_map = any(_place(frame) == ("concurrent.futures._base", "result_iterator") for frame in frames)
    for frame in frames:
        if _place(frame)[0] == "threading":  # where a thread has itself
            continue
        # An executor that others use, too, does not tell whose work it does.
        shared = () if of_map else frame.f_code.co_freevars
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, executors) and name not in shared:
                yield value
            yield from (member for member in members(value) if isinstance(member, wanted))
        if of_map:
            named = (frame.f_globals.get(name) for name in frame.f_code.co_names)
            yield from (value for value in named if isinstance(value, executors))


def _working() -> Iterator[tuple[int, set[int]]]:
    """The threads of executors, each with the ids of the future and the function that it works on."""
    for ident, frame in sys._current_frames().items():
        step: FrameType | None = frame
        while step is not None:
            if _place(step) == ("concurrent.futures.thread", "run"):
                item = step.f_locals.get("self")
                function = attribute(item, "fn") or next(iter(attribute(item, "task") or ()), None)  # from 3.14 on
                yield ident, {id(attribute(item, "future")), id(function)}
            step = step.f_back


def _place(frame: FrameType) -> tuple[object, str]:
    return frame.f_globals.get("__name__"), frame.f_code.co_name
