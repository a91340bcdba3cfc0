"""What is not a failure at all: signals to stop, and what a signal handler raises in the middle of other code.

Another error may have replaced the order to stop: a clean-up failed, or a driver lost its connection meanwhile. Such an
error is the last one of its attempt: the order does not come a second time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator
from types import FrameType, TracebackType

from redrive._internal.interrupts import is_from_signal_handler, task_cancellations
from redrive.classify.type_names import type_names
from redrive.classify.unwrap import unwrap_chain
from redrive.errors import StatedVerdict

JOB_LIMITS = frozenset(
    {
        "airflow.AirflowTaskTimeout",
        "billiard.SoftTimeLimitExceeded",
        "billiard.Terminated",
        "rq.BaseTimeoutException",
    }
)
"""Time limits that job runners raise inside the job."""

_MOST_ERRORS = 1_000
# Code limits a part of its work by these, and catches them. Under trio a cancellation is raised again at each await.
_LIMITS_OF_PARTS = frozenset({"eventlet.Timeout", "gevent.Timeout", "trio.Cancelled"})
# Libraries that raise a TimeoutError for a cancellation that they have asked for themselves.
_TIMERS = frozenset({"aiohttp", "async_timeout", "asyncio", "redrive"})
_CANCELLED = "asyncio.CancelledError"
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


def replaces_stop(error: BaseException, since: int = -1) -> bool:
    """Return whether an order to stop, which arrived while this attempt was made, is among the origins of its error.

    A cancellation that the attempt has swallowed leaves no trace there, and is not seen.

    Args:
        error: the error of an attempt that was made by a caller of this function.
        since: the instruction of the error's outermost frame at which the attempt began; -1 for a function.
    """
    if not any(_is_order(origin, of, error) for origin, of in _origins(error)):
        return False
    origins = list(_origins(error, set(_running_frames()), since))
    orders = [origin for origin, of in origins if _is_order(origin, of, error)]
    if any(_CANCELLED not in type_names(type(order)) for order in orders):
        return True
    errors = [error, *(origin for origin, _ in origins)]
    return bool(orders) and task_cancellations() > sum(map(_leaves_cancelled, errors))


def _origins(
    error: BaseException, running: Collection[FrameType] = (), since: int = -1
) -> Iterator[tuple[BaseException, BaseException]]:
    """Yield the causes and contexts of an error and the members of groups, each with the error that it belongs to.

    An exception that a running frame handles was there before the attempt, and so was what lies behind it.
    """
    seen, waiting = {id(error)}, [error]
    own = None if error.__traceback__ is None else error.__traceback__.tb_frame
    while waiting and len(seen) < _MOST_ERRORS:
        of = waiting.pop()
        members = of.exceptions if isinstance(of, BaseExceptionGroup) else ()
        for origin in (of.__cause__, of.__context__, *members):
            if origin is None or id(origin) in seen or _is_handled(origin.__traceback__, running, own, since):
                continue
            seen.add(id(origin))
            yield origin, of
            waiting.append(origin)


def _is_handled(
    passed: TracebackType | None, running: Collection[FrameType], own: FrameType | None, since: int
) -> bool:
    if passed is None or passed.tb_frame not in running:
        return False
    return since < 0 or passed.tb_frame is not own or passed.tb_lasti <= since


def _running_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_order(origin: BaseException, of: BaseException, error: BaseException) -> bool:
    """Return whether an exception, of which `of` was raised, orders the whole attempt to stop."""
    names = type_names(type(origin))
    if isinstance(origin, Exception):
        is_stated = isinstance(of, StatedVerdict) and of.__cause__ is origin
        return not is_stated and (not JOB_LIMITS.isdisjoint(names) or is_from_signal_handler(origin))
    if _CANCELLED in names:
        return task_cancellations() > 0 and not _is_timer(of, origin)
    if isinstance(origin, GeneratorExit):
        return _ends_attempt(origin, error)
    return not isinstance(origin, BaseExceptionGroup) and _LIMITS_OF_PARTS.isdisjoint(names)


def _is_timer(of: BaseException, origin: BaseException) -> bool:
    """Return whether a time limit has made its error of the cancellation by which it ended its block."""
    frame = _last_frame(of)
    library = "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]
    return isinstance(of, TimeoutError) and of.__cause__ is origin and library in _TIMERS


def _leaves_cancelled(error: BaseException) -> bool:
    """Return whether a TaskGroup has cancelled its own task for a member's failure, and may not have taken it back.

    Python before 3.13 does not, where the task already waits for the end of the group.
    """
    if sys.version_info >= (3, 13) or not isinstance(error, BaseExceptionGroup):
        return False
    frame = _last_frame(error)
    return getattr(frame and frame.f_locals.get("self"), "_parent_cancel_requested", False) is True


def _ends_attempt(closing: GeneratorExit, error: BaseException) -> bool:
    """Return whether a coroutine is closed, or the generator that has a block of `attempts()` around a `yield`.

    Code may well close a generator that it has read from.
    """
    frame = _last_frame(closing)
    if frame is None or error.__traceback__ is None:
        return False
    return bool(frame.f_code.co_flags & _COROUTINE) or frame is error.__traceback__.tb_frame


def _last_frame(error: BaseException) -> FrameType | None:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return None if step is None else step.tb_frame


# Exceptions in form only: a cancelled future, and the time limits that job runners raise inside the job.
_STOP_TYPES = JOB_LIMITS | {"concurrent.CancelledError"}


def is_stop_signal(error: BaseException) -> bool:
    """Return whether the exception means "stop": cancellation, Ctrl-C, exit, a job's limit. It is never classified."""
    return is_stop_type(type(error))


def is_stop_type(cls: type[BaseException]) -> bool:
    """Return whether exceptions of the class mean "stop"."""
    return not issubclass(cls, Exception) or not _STOP_TYPES.isdisjoint(type_names(cls))


def is_interrupt(error: BaseException, since: int = -1) -> bool:
    """Return whether the exception must reach the caller at once: it is never retried and rejects no row.

    A client may have wrapped it: httpx makes a ReadTimeout of a handler's TimeoutError. Another error may have replaced
    it: psycopg raises OperationalError where the connection breaks while a cancelled query ends.

    Args:
        error: the exception.
        since: the instruction of its outermost frame at which a block of `attempts()` began; -1 for a function.
    """
    return is_stop_signal(error) or is_from_signal_handler(*unwrap_chain(error)) or replaces_stop(error, since)
