"""When a run must end early: SIGTERM or SIGHUP, a deadline, a request of the program. It finishes its batch first.

A batch that cannot be finished is cancelled: `Cancellation` reaches the database statement that another thread runs.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any

from redrive._internal.interrupts import STOP_SIGNALS, raise_terminated
from redrive.model.calls import format_duration

_CANCEL_TIMEOUT = 3.0


class StopSignal:
    """Whether to stop, and why."""

    def __init__(self, deadline: float | None, *, on_stop: Callable[[], None] | None = None) -> None:
        self._deadline = deadline
        self._on_stop = on_stop
        self._ends = None if deadline is None else time.monotonic() + deadline
        self._reason: str | None = None
        self.interrupted = False
        """Whether it was a Ctrl-C."""

    @property
    def ends_at(self) -> float:
        """The moment of its deadline, by the monotonic clock."""
        return math.inf if self._ends is None else self._ends

    def request_stop(self, reason: str) -> None:
        """Ask for the end, from any thread or from a signal handler."""
        self._reason = self._reason or reason
        if self._on_stop is not None:
            self._on_stop()

    def reason(self) -> str | None:
        """Return why the run must end now; None if it need not."""
        if self._reason is not None:
            return self._reason
        if self._ends is not None and time.monotonic() >= self._ends:
            return f"its deadline of {format_duration(self._deadline or 0)} has passed"
        return None

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Take SIGTERM, and SIGHUP of a terminal that is closed, as a request to stop.

        A handler of the program's own stays in place, and so does what `nohup` has ignored.
        """
        main = threading.current_thread() is threading.main_thread()  # signals are the main thread's
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS if main}
        heeded = [number for number, handler in before.items() if handler in (signal.SIG_DFL, raise_terminated)]
        for number in heeded:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number in heeded:
                signal.signal(number, before[number])

    @contextmanager
    def heeding_sigint(self) -> Iterator[None]:
        """Take the first Ctrl-C as a word to stop, too: an exception could come between any two steps of what must not
        be torn apart. The second one is the interrupt it always was."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.request_stop("it was interrupted")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request_stop(signal.Signals(number).name)


class Cancellation:
    """Cancels the database work of one thread from another one.

    The working thread enters `active()`. Code that can block then registers how to end its wait (`during`), or waits by
    `wait` instead of sleeping, and checks `requested` before it tries something again.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._cancels: list[Callable[[], object]] = []

    @property
    def requested(self) -> bool:
        """Return whether the work must end now."""
        return self._requested.is_set()

    def cancel(self) -> None:
        """End the work. It may be called repeatedly: a cancel that arrives between two statements has no effect."""
        self._requested.set()
        with self._lock:
            cancels = list(self._cancels)
        for cancel in cancels:
            with suppress(Exception):  # the connection may be broken, or closed by now
                cancel()

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond a cancel."""
        self._requested.wait(seconds)

    @contextmanager
    def during(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Have `cancel` called when the work is cancelled within this block."""
        with self._lock:
            self._cancels.append(cancel)
        try:
            yield
        finally:
            with self._lock:
                self._cancels.remove(cancel)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the cancellation of what the current thread does in this block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @staticmethod
    def current() -> Cancellation:
        """Return the cancellation of the current thread; where it has none, one that is never requested."""
        return _current.get() or Cancellation()


_current: ContextVar[Cancellation | None] = ContextVar("redrive_cancellation", default=None)


class StepCancelled(BaseException):
    """Raised in the thread of a run, within a step that continues after the run was asked to stop.

    It is not an Exception, so that code of the user's that catches and retries everything is ended, too.
    """


class ThreadInterrupt:
    """Ends what one thread does from another one, by an exception.

    In the main thread a signal ends system calls that wait, too. In any other thread the exception is raised when the
    thread executes Python code: what waits in a system call cannot be ended.
    """

    _SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default, and used by hardly any program

    def __init__(self) -> None:
        """Make one for the current thread."""
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread() and self._SIGNAL is not None
        self._is_armed = False
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signal within this block."""
        if not self._is_main or self._SIGNAL is None:
            yield
            return
        before = signal.signal(self._SIGNAL, self._on_signal)
        try:
            yield
        finally:
            signal.signal(self._SIGNAL, signal.SIG_DFL if before is None else before)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let `interrupt` end this block."""
        self._is_armed = True
        try:
            yield
        finally:
            with self._lock:
                self._is_armed = False
                if not self._is_main:
                    _raise_in(self._thread, None)

    def interrupt(self) -> None:
        """Raise StepCancelled in the thread, if it is in an armed block."""
        with self._lock:
            if not self._is_armed:
                return
            if self._is_main and self._SIGNAL is not None:
                signal.pthread_kill(self._thread, self._SIGNAL)
            else:
                _raise_in(self._thread, StepCancelled)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed:  # it may arrive after the block has ended
            raise StepCancelled


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in another thread at its next step; None takes back one that has not been raised yet."""
    import ctypes

    given = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)


def cancel_statement(connection: Any) -> None:
    """Cancel the statement that another thread runs on a connection of a database driver, where the driver can."""
    if hasattr(connection, "cancel_safe"):  # psycopg
        try:
            connection.cancel_safe(timeout=_CANCEL_TIMEOUT)
        except Exception:  # the server does not answer: end the wait for it, and with it the connection
            with socket.socket(fileno=os.dup(connection.fileno())) as other:
                other.shutdown(socket.SHUT_RDWR)
        return
    for name in ("interrupt", "cancel"):  # sqlite3 and DuckDB; psycopg2, oracledb and others
        method = getattr(connection, name, None)
        if callable(method):
            method()
            return
