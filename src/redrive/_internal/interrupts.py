"""Exceptions that a signal handler of the program raises, in the middle of whatever the main thread does."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Container
from contextlib import suppress
from types import CodeType, FrameType

# The signals by which programs limit, end or wake a job.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(BaseException):
    """SIGTERM or SIGHUP asked the command to end while no run was active that could stop in order."""


_INTERRUPTS = (KeyboardInterrupt, Terminated)
_installed_in: list[int] = []


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP raise `Terminated` from now on, until a run takes them as a request to stop.

    What `nohup` has ignored stays ignored.
    """
    _installed_in[:] = [os.getpid()]
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, raise_terminated)


def raise_terminated(number: int, frame: FrameType | None) -> None:
    """Handle a signal; a process that the program has forked ends by it as any process does."""
    if os.getpid() in _installed_in:
        raise Terminated(signal.Signals(number).name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end_at_once(code: int) -> None:
    """Let signals end the process with this exit code from now on: the command is done, and only closes connections.

    An exception would be raised in the middle of an `atexit` function, which shows a traceback. Handlers that the
    program has set itself stay in place.
    """
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # the reader is gone, or the signal came in the middle of a flush
                    stream.flush()
            os._exit(code)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGINT, *STOP_SIGNALS):
        if signal.getsignal(number) in (signal.default_int_handler, raise_terminated):
            signal.signal(number, end)


def interrupt_behind(error: BaseException) -> BaseException | None:
    """Return the interrupt that Python has wrapped into an error, as before 3.12 one within a class that is being made.

    Errors that code raises of its own accord after an interrupt are not looked through.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if type(at) in (RuntimeError, SystemError, ImportError) and isinstance(at.__cause__, _INTERRUPTS):
            return at.__cause__
        at = at.__cause__ or at.__context__
    return None


def is_from_signal_handler(*errors: BaseException) -> bool:
    """Return whether a signal handler that is installed now has raised one of the exceptions.

    A function that limits its own time installs a handler and restores the one before: its timeout is its own.
    """
    if threading.get_ident() != threading.main_thread().ident:  # Python runs handlers in the main thread alone
        return False
    handlers = {code for number in _SIGNALS if (code := _code_of(signal.getsignal(number))) is not None}
    return bool(handlers) and any(_passes_through(error, handlers) for error in errors)


def task_cancellations() -> int:
    """Return the number of cancellations that the current task of asyncio has not taken back; 0 outside of one."""
    asyncio = sys.modules.get("asyncio")  # 30 ms that a synchronous program need not pay
    if asyncio is None or asyncio._get_running_loop() is None:
        return 0
    cancelling = getattr(asyncio.current_task(), "cancelling", None)  # a task of another event loop may have none
    return int(cancelling()) if cancelling is not None else 0


def _passes_through(error: BaseException, functions: Container[CodeType]) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in functions:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    if not callable(handler) or handler is signal.default_int_handler:
        return None
    while isinstance(handler, functools.partial):
        handler = handler.func
    method = getattr(type(handler), "__call__", None)  # noqa: B004  # its code is wanted
    for function in (handler, getattr(handler, "__func__", None), method):
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            return code
    return None
