"""The process state that tasks share, which a worker restores after each task."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import contextlib
import fcntl
import os
import resource
import signal
import socket
import weakref
from collections.abc import Callable
from typing import Any

# The functions of the module `signal` wrap every value in an enumeration, which takes ten times as long.
_getsignal, _pthread_sigmask = _signal.getsignal, _signal.pthread_sigmask
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
# Signals that make tasks fail; checking all signals takes longer than the rest of the work.
_LIMITS = tuple(
    getattr(resource, f"RLIMIT_{name}")
    for name in ("AS", "CPU", "FSIZE", "NOFILE")
    if hasattr(resource, f"RLIMIT_{name}")
)
_SETTABLE = tuple(map(int, sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})))


class ProcessState:
    """The state of this process that code in it changes for everybody: taken once, put back after each task.

    Module variables are not part of it: they are how a task keeps something for the next one.
    """

    def __init__(self, *descriptors: int) -> None:
        """descriptors  those that the worker needs itself, which must remain what they are"""
        self._directory = _open(".")
        self._needed = (*descriptors, *(() if self._directory is None else (self._directory,)))
        self._descriptors = self._identities()
        self._handlers = [_getsignal(number) for number in _SETTABLE]
        self._environ = self._variables()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._socket_timeout = socket.getdefaulttimeout()
        self._priority = os.getpriority(os.PRIO_PROCESS, 0)
        self._limits = _limits()

    @staticmethod
    def _variables() -> dict[Any, Any]:
        return dict(os.environ._data)  # type: ignore[attr-defined] # as bytes: decoding takes longer

    def _identities(self) -> list[tuple[int, int]]:
        """Return which files the standard streams and the worker's own descriptors are, and how they are open."""
        standard = [(fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)) for number in (0, 1, 2)]
        return standard + [_file_of(number) for number in (0, 1, 2, *self._needed)]

    def _has_descriptors(self) -> bool:
        # A descriptor that a task closed is what the next `open` returns, and prints would land in that file. It is not
        # put back: a file that the task left open may have its number.
        try:
            return self._identities() == self._descriptors
        except OSError:
            return False

    def restore(self) -> bool:
        """Restore everything; return False if that fails, so that the process must not run another task."""
        if not self._has_descriptors():
            return False
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        _pthread_sigmask(_signal.SIG_SETMASK, ())
        if [_getsignal(number) for number in _SETTABLE] != self._handlers and not self._restore_handlers():
            return False
        if self._directory is not None:
            os.fchdir(self._directory)
        if os.environ._data != self._environ:  # type: ignore[attr-defined]
            self._restore_environ()
        os.umask(self._umask)
        socket.setdefaulttimeout(self._socket_timeout)
        # Dropped privileges cannot be restored.
        return _limits() == self._limits and os.getpriority(os.PRIO_PROCESS, 0) == self._priority

    def _restore_handlers(self) -> bool:
        for number, handler in zip(_SETTABLE, self._handlers, strict=True):
            if _getsignal(number) != handler:
                if handler is None:  # the handler of a C library, which Python cannot set
                    return False
                signal.signal(number, handler)
        return True

    def _restore_environ(self) -> None:
        now = self._variables()
        for name in now.keys() - self._environ.keys():
            del os.environb[name]
        for name, value in self._environ.items():
            if now.get(name) != value:
                os.environb[name] = value


def _file_of(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(limit) for limit in _LIMITS]


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def disown_exit_functions() -> Callable[[], None]:
    """Leave what the module has registered for its end to the process that imported it; what tasks of this process
    register from now on, temporary directories included, is done by calling the function that is returned.
    """
    atexit._clear()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined] # the next one registers itself

    def run() -> None:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()

    return run
