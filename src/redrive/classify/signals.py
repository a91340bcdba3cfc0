"""What is not a failure at all: signals to stop, and what a signal handler raises in the middle of other code."""

from __future__ import annotations

from redrive._internal.interrupts import is_from_signal_handler
from redrive.classify.replaced_stops import JOB_LIMITS, replaces_stop
from redrive.classify.type_names import type_names
from redrive.classify.unwrap import unwrap_chain

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
