"""The process that workers are forked from: it has imported the flow once, runs nothing, and knows who is alive.

It alone signals workers, since only a parent knows that a process is still the one it means. It adopts the orphans of
workers that end and kills them, too; and when its executor is gone, everybody.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import inspect
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from redrive.calls import testmode
from redrive.errors import FlowError
from redrive.tasks.workers import processes
from redrive.tasks.workers.protocol import BROKEN, DEAD, END, FORK, ORDER, READY, SIGNAL, UNFORKED, frame

if TYPE_CHECKING:
    from redrive.tasks.flow import Flow

_FOR_ORPHANS = 1.0  # seconds that the report of a death waits for orphans, which may be beyond the reach of a SIGKILL
_FOR_LAST_WORDS = 8.0
_FOR_ALL = 5.0
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def main(descriptor: int) -> None:
    """Import the flow, tell the executor, serve it until it is gone."""
    # What belongs to flows is imported here: a single call that can be killed is served without it.
    from redrive.tasks.workers import import_flow
    from redrive.tasks.workers.fingerprint import storable
    from redrive.tasks.workers.worker import work

    control, launch = open_control(descriptor)
    executor: int = launch["executor"]
    for stream in (sys.stdout, sys.stderr):
        # Those of the workers are these, on other descriptors: handlers of logs may have taken hold of them by then.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    processes.die_with_parent(executor)  # while the import goes on, nothing is listened to
    import_flow.becomes("import")
    try:
        flow = import_flow.FlowLocation(**launch["home"]).visit()
    except FlowError as error:
        _tell(control, BROKEN, storable(str(error)))
        os._exit(0)
    _warm(flow)
    _tell(control, READY, None if flow is None else list(flow.graph.nodes), processes.threads())
    processes.outlive_parent()
    if flow is None:
        os._exit(0)
    import_flow.becomes("task")
    serve(ForkServer(control, executor, partial(work, flow, parent=os.getpid(), max_rss=launch["max_rss"])))


def open_control(descriptor: int) -> tuple[socket.socket, Any]:
    """Take over the socket of orders; what is to be known for the launch is the first line that comes by it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the executor does not want to hear
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    launch = _read_launch(control)
    sys.argv = launch["argv"]
    testmode.activate(testmode.TestMode(**launch["testing"]))  # a test means the services of its tasks, too
    return control, launch


def _tell(control: socket.socket, *report: Any) -> None:
    try:
        control.sendall(frame(report))
    except OSError:  # the executor is gone, or the user's module has closed what is not its own
        os._exit(1)


def serve(server: ForkServer) -> NoReturn:
    """Serve, and end by the shortest way: what the user's module has started must not keep the process."""
    status = 1
    try:
        server.serve()
        if server.is_orderly:
            atexit._run_exitfuncs()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _read_launch(control: socket.socket) -> Any:
    text = b""
    while not text.endswith(b"\n"):
        data = control.recv(1 << 16)
        if not data:
            os._exit(1)
        text += data
    return json.loads(text)


def _warm(flow: Flow | None) -> None:
    """Load what every worker would need to load for itself, and keep the collector from touching what they share."""
    from redrive.classify.classifier import Classifier

    Classifier().classify(ValueError(), "task")
    if flow and any(inspect.iscoroutinefunction(node.function) for node in flow.graph.nodes.values()):
        import asyncio  # noqa: F401
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # or each worker would write it again
    # The executor says which threads they are, once; Python would at every fork.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    gc.collect()
    gc.freeze()


class ForkServer:
    """Forks, signals, reaps and reports."""

    def __init__(self, control: socket.socket, executor: int, work: Callable[..., int], *, takes: int = 2) -> None:
        """Obey `control`. A worker calls `work` with its descriptors, `takes` of them, and exits with its result."""
        self._control = control
        self._executor = executor
        self._work = work
        self._takes = takes
        self._pids: dict[int, int] = {}  # of living workers, by number
        self._numbers: dict[int, int] = {}  # and the other way round
        self._dead: list[tuple[int, int, float]] = []  # number, status, until when its orphans are waited for
        self._unreported = bytearray()
        self._ended = False
        self.is_orderly = False
        """Whether it ended because the executor said so."""
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._pidfd: int | None = None
        self._adopts = processes.adopt_orphans()
        self._own = set(processes.children())  # of the user's module: somebody's server, a resource tracker

    def serve(self) -> None:
        """Go on until the executor says so or is gone; then nobody is left."""
        try:
            self._listen()
            self._loop()
        finally:
            self._end_all()

    def _loop(self) -> None:
        while not self._ended:
            timeout = max(0.0, self._dead[0][2] - time.monotonic()) if self._dead else None
            for key, mask in self._selector.select(timeout):
                key.data(mask)
            self._report_deaths()
            self._send()

    def _listen(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)  # the executor decides, and its end is the end
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ, self._obey)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)
        if hasattr(os, "pidfd_open"):
            # A process that the executor forked may hold its end of the control socket open beyond its death.
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self._executor)
                self._selector.register(self._pidfd, selectors.EVENT_READ, self._executor_died)
        if os.getppid() != self._executor:
            self._ended = True
        self._reap()

    def _executor_died(self, _: int) -> None:
        self._ended = True

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _obey(self, mask: int) -> None:
        if not mask & selectors.EVENT_READ:
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 2, _CLOEXEC)
            while data and len(data) < ORDER.size:
                rest = self._control.recv(ORDER.size - len(data))
                data = data + rest if rest else b""
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._ended = True
            return
        what, number, signalled = ORDER.unpack(data)
        if what == FORK:
            self.fork(number, descriptors)
        elif what == SIGNAL and number in self._pids:
            processes.kill_group(self._pids[number], signalled)
        elif what == END:
            self._ended = self.is_orderly = True

    def fork(self, number: int, descriptors: list[int]) -> None:
        """Fork a worker, which takes these descriptors over."""
        try:
            if len(descriptors) != self._takes:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = os.fork()
        except OSError as error:
            self._say(UNFORKED, number, f"no process can be made for them ({error.strerror})")
        else:
            if pid == 0:
                self._become_worker(descriptors)
            self._pids[number] = pid
            self._numbers[pid] = number
        for descriptor in descriptors:
            os.close(descriptor)

    def _become_worker(self, descriptors: list[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._selector.close()
            for end in (self._control, self._woken, self._waker):
                end.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
            status = self._work(*descriptors)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    # ── deaths ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _wake(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4_096):
                pass
        self._reap()

    def _reap(self) -> None:
        """Bury the dead. A worker's group is killed while the worker still has its number, so that it is its own."""
        while buried := processes.bury(self._kill_group):
            pid, status = buried
            self._own.discard(pid)
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._pids[number]
                self._dead.append((number, status, time.monotonic() + _FOR_ORPHANS))

    def _kill_group(self, pid: int) -> None:
        if pid in self._numbers:
            processes.kill_group(pid, signal.SIGKILL)

    def _report_deaths(self) -> None:
        """A death is told when nobody is left of the worker: what is tried again must not meet its own past."""
        if not self._dead:
            return
        now = time.monotonic()
        alone = not self._kill_orphans()
        while self._dead and (alone or self._dead[0][2] <= now):
            number, status, _ = self._dead.pop(0)
            self._say(DEAD, number, status)

    def _kill_orphans(self) -> bool:
        """Kill those who came to us when their worker died; whether there are any.

        A worker adopts the orphans below itself, so that they come to us only by its death. Those below an orphan come
        when it dies in turn, and its death wakes us.
        """
        if not self._adopts:
            return False
        orphans = [pid for pid in processes.children() if pid not in self._numbers and pid not in self._own]
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:  # it has become somebody else's
                self._own.add(pid)
        return bool(orphans)

    def _end_all(self) -> None:
        """See everybody dead: those who were dismissed have a moment to end by themselves, the others are killed."""
        if self.is_orderly:
            self._await_the_dismissed()
        for pid in self._numbers:
            self._kill_group(pid)
        self._woken.settimeout(_FOR_ALL)
        self._reap()
        with contextlib.suppress(OSError):
            while self._numbers or self._kill_orphans():
                self._woken.recv(4_096)
                self._reap()
        for pid in self._own:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def _await_the_dismissed(self) -> None:
        until = time.monotonic() + _FOR_LAST_WORDS
        self._reap()
        with contextlib.suppress(OSError):
            while self._numbers and (left := until - time.monotonic()) > 0:
                self._woken.settimeout(left)
                self._woken.recv(4_096)
                self._reap()

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _say(self, *report: Any) -> None:
        self._unreported += frame(report)

    def _send(self) -> None:
        """Send what there is to report, without ever waiting for a busy executor."""
        if self._unreported:
            try:
                sent = self._control.send(self._unreported, socket.MSG_DONTWAIT)
                del self._unreported[:sent]
            except BlockingIOError:
                pass
            except OSError:
                self._ended = True
                return
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unreported else 0)
            if self._selector.get_key(self._control).events != wanted:
                self._selector.modify(self._control, wanted, self._obey)
