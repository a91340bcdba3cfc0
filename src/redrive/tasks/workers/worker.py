"""The worker process: reads jobs from its socket, runs them, and restores the state of the process after each."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import socket
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from redrive.calls.metrics import publisher
from redrive.errors import TaskTimeout
from redrive.tasks.flow import Flow
from redrive.tasks.graph import followers_of
from redrive.tasks.workers import processes
from redrive.tasks.workers.protocol import FrameReader, answer_frame, frame, read_job
from redrive.tasks.workers.run_task import ENDING, perform

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


_CHUNK = 1 << 18
_ZOMBIES = 200  # attempts between checks for dead children, own or adopted, that no code waits for


def work(flow: Flow, connection: int, output: int, *, parent: int, max_rss: int | None) -> int:
    """Run as a worker until the socket is closed; return the exit status."""
    os.setsid()  # so that it can be killed with all its children
    processes.die_with_parent(parent)
    processes.adopt_orphans()
    run_exit_functions = disown_exit_functions()
    worker = Worker(flow, socket.socket(fileno=connection), output, max_rss)
    timed_out = False
    try:
        worker.serve()
    except TaskTimeout:
        timed_out = True
    except ConnectionError:
        pass  # the executor is gone
    if timed_out:
        publisher.flush()  # `atexit` does not run at this exit
        _end_by(signal.SIGTERM)
    if os.getpid() == worker.pid:
        run_exit_functions()
    publisher.flush()
    return 0


def _end_by(number: signal.Signals) -> NoReturn:
    """End as if the signal had not been caught, so that the exit status shows the signal."""
    _flush()
    faulthandler.unregister(number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pause()
    os._exit(1)


class Worker:
    """Runs the tasks of one flow, one attempt at a time."""

    def __init__(self, flow: Flow, connection: socket.socket, output: int, max_rss: int | None) -> None:
        self.pid = os.getpid()
        self._connection = connection
        connection.setblocking(True)
        connection.set_inheritable(False)
        self._nodes = flow.graph.nodes
        self._fanned_out = {node.each for node in self._nodes.values() if node.each is not None}
        self._followers = followers_of(self._nodes)
        self._max_rss = max_rss
        self._statm = _open("/proc/self/statm") if max_rss is not None else None
        self._attempts = 0
        self._output = self._redirect(output)
        self._streams = sys.stdout, sys.stderr
        self._stdin = sys.stdin
        faulthandler.enable(self._output)
        self._take_signals()
        _fork_ordinary_processes()
        self._surroundings = ProcessState(self._output)
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed()  # or all workers would draw the same numbers; Python reseeds its own after a fork

    def serve(self) -> None:
        """Run jobs until the socket is closed."""
        frames = FrameReader()
        self._connection.sendall(frame(os.getpid()))
        while data := self._connection.recv(_CHUNK):
            for document in frames.feed(data):
                job = read_job(document)
                fans_out, followers = job.task in self._fanned_out, self._followers[job.task]
                outcome = perform(self._nodes[job.task], job, fans_out=fans_out, followers=followers)
                _flush()
                if os.getpid() != self.pid:
                    os._exit(0)  # a child that the task forked, and let return from it
                self._connection.sendall(answer_frame(outcome, retire=not self._restored()))

    def _redirect(self, output: int) -> int:
        """Send all output of this process to the pipe; faulthandler gets a copy of the descriptor."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        os.close(nothing)
        os.set_inheritable(output, False)
        for name, number in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                stream = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
        return output

    def _take_signals(self) -> None:
        """On SIGTERM, dump the threads, even from within a C call; then let `finally` blocks run."""
        faulthandler.unregister(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _end)
        faulthandler.register(signal.SIGTERM, self._output, all_threads=True, chain=True)

    def _restored(self) -> bool:
        """Restore what a task may have changed; return whether this worker can run another task."""
        if signal.getsignal(signal.SIGTERM) is not _end:
            self._take_signals()
        sys.stdout, sys.stderr = self._streams
        sys.stdin = self._stdin
        if not self._surroundings.restore() or any(getattr(stream, "closed", False) for stream in self._streams):
            return False
        self._attempts += 1
        if self._attempts % _ZOMBIES == 0 and processes.has_zombie():
            return False
        return self._max_rss is None or processes.resident_bytes(self._statm) <= self._max_rss


def _fork_ordinary_processes() -> None:
    """Let what a task forks end by SIGTERM as any process does, instead of by the exception that ends a task.

    The signal is blocked meanwhile: one that comes before the child has its own handler would be lost in it.
    """

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def reset() -> None:
        if signal.getsignal(signal.SIGTERM) is _end:
            faulthandler.unregister(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def _end(number: int, where: FrameType | None) -> None:
    ENDING.is_requested = True
    raise TaskTimeout("its time is up")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a task may have put anything there; `suppress` would cost more than the rest of the loop
            continue
