"""Exceptions that are not an attempt's: orders to stop, and what a signal handler raises in the middle of a call."""

from __future__ import annotations

import functools
import signal
import threading
from types import CodeType

from redrive.classify.signals import is_stop_signal

# The signals by which programs limit, end or wake a job.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


def is_interrupt(error: BaseException) -> bool:
    """Return whether the exception must reach the caller at once, whichever line of the call it arrived at."""
    return is_stop_signal(error) or is_from_signal_handler(error)


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler that is installed now has raised the exception.

    A function that limits its own time installs a handler and restores the one before: its timeout is the attempt's.
    """
    if threading.get_ident() != threading.main_thread().ident:  # Python runs handlers in the main thread alone
        return False
    handlers = {code for number in _SIGNALS if (code := _code_of(signal.getsignal(number))) is not None}
    if not handlers:
        return False
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    method = getattr(type(handler), "__call__", None)  # noqa: B004  # its code is wanted
    for function in (handler, getattr(handler, "__func__", None), method):
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            return code
    return None
