"""The fork server: a process that imports the flow once, forks workers from it, and reports their deaths.

Only the fork server signals workers, since only a parent knows that a process id still belongs to its child. It adopts
and kills the orphans of workers that end. When its executor is gone, it kills all workers.
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

_ORPHANS_END_WITHIN = 1.0  # seconds that the report of a death waits for orphans, which SIGKILL may not end at once
_DISMISSED_END_WITHIN = 8.0
_ALL_END_WITHIN = 5.0
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def main(descriptor: int) -> None:
    """Import the flow, report to the executor, and serve it until it is gone."""
    # Modules for flows are imported here, since a killable call is served without them.
    from redrive.tasks.workers import import_flow
    from redrive.tasks.workers.fingerprint import storable
    from redrive.tasks.workers.worker import work

    control, launch = open_control(descriptor)
    executor: int = launch["executor"]
    for stream in (sys.stdout, sys.stderr):
        # Workers use the same stream objects on other descriptors, since log handlers may keep references to them.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    processes.die_with_parent(executor)  # orders are not read during the import
    import_flow.becomes("import")
    try:
        flow = import_flow.FlowLocation(**launch["home"]).visit()
    except FlowError as error:
        _send_report(control, BROKEN, storable(str(error)))
        os._exit(0)
    _warm(flow)
    _send_report(control, READY, None if flow is None else list(flow.graph.nodes), processes.threads())
    processes.outlive_parent()
    if flow is None:
        os._exit(0)
    import_flow.becomes("task")
    serve(ForkServer(control, executor, partial(work, flow, parent=os.getpid(), max_rss=launch["max_rss"])))


def open_control(descriptor: int) -> tuple[socket.socket, Any]:
    """Take over the socket for orders; its first line holds the launch parameters."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # do not inherit the blocked signals of the executor
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    launch = _read_launch(control)
    sys.argv = launch["argv"]
    testmode.activate(testmode.TestMode(**launch["testing"]))  # test mode applies to the services of tasks, too
    return control, launch


def _send_report(control: socket.socket, *report: Any) -> None:
    try:
        control.sendall(frame(report))
    except OSError:  # the executor is gone, or the user's module has closed the socket
        os._exit(1)


def serve(server: ForkServer) -> NoReturn:
    """Serve, then exit directly: threads of the user's module must not keep the process alive."""
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
    """Import what every worker needs, and freeze the garbage collector so that memory stays shared."""
    from redrive.classify.classifier import Classifier

    Classifier().classify(ValueError(), "task")
    if flow and any(inspect.iscoroutinefunction(node.function) for node in flow.graph.nodes.values()):
        import asyncio  # noqa: F401
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # or each worker would write the buffered text, too
    # The executor warns once about the threads; Python would warn at every fork.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    gc.collect()
    gc.freeze()


class ForkServer:
    """Forks and signals workers, reaps them and reports their deaths."""

    def __init__(self, control: socket.socket, executor: int, work: Callable[..., int], *, takes: int = 2) -> None:
        """Read orders from `control`. A worker calls `work` with its `takes` descriptors, and exits with its result."""
        self._control = control
        self._executor = executor
        self._work = work
        self._takes = takes
        self._pids: dict[int, int] = {}  # of live workers, by number
        self._numbers: dict[int, int] = {}  # of live workers, by process id
        self._dead: list[tuple[int, int, float]] = []  # number, status, time limit for its orphans
        self._unreported = bytearray()
        self._ended = False
        self.is_orderly = False
        """Whether it ended by an order of the executor."""
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._pidfd: int | None = None
        self._adopts = processes.adopt_orphans()
        self._own = set(processes.children())  # children that the user's module has started, such as a resource tracker

    def serve(self) -> None:
        """Serve until the executor orders the end or is gone; then kill all processes."""
        try:
            self._listen()
            self._loop()
        finally:
            self._kill_all()

    def _loop(self) -> None:
        while not self._ended:
            timeout = max(0.0, self._dead[0][2] - time.monotonic()) if self._dead else None
            for key, mask in self._selector.select(timeout):
                key.data(mask)
            self._report_deaths()
            self._send()

    def _listen(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)  # only the executor ends this process
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ, self._read_order)
        self._selector.register(self._woken, selectors.EVENT_READ, self._handle_child)
        if hasattr(os, "pidfd_open"):
            # A process forked by the executor may keep the control socket open after the executor died.
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self._executor)
                self._selector.register(self._pidfd, selectors.EVENT_READ, self._executor_died)
        if os.getppid() != self._executor:
            self._ended = True
        self._reap()

    def _executor_died(self, _: int) -> None:
        self._ended = True

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_order(self, mask: int) -> None:
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
        """Fork a worker, which takes over these descriptors."""
        try:
            if len(descriptors) != self._takes:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = os.fork()
        except OSError as error:
            self._queue_report(UNFORKED, number, f"no process can be made for them ({error.strerror})")
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

    def _handle_child(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4_096):
                pass
        self._reap()

    def _reap(self) -> None:
        """Reap dead children. A group is killed before its worker is reaped, while the process id is still taken."""
        while buried := processes.bury(self._kill_group):
            pid, status = buried
            self._own.discard(pid)
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._pids[number]
                self._dead.append((number, status, time.monotonic() + _ORPHANS_END_WITHIN))

    def _kill_group(self, pid: int) -> None:
        if pid in self._numbers:
            processes.kill_group(pid, signal.SIGKILL)

    def _report_deaths(self) -> None:
        """Report deaths when all orphans have ended: a retry must not run beside its earlier attempt."""
        if not self._dead:
            return
        now = time.monotonic()
        no_orphans = not self._kill_orphans()
        while self._dead and (no_orphans or self._dead[0][2] <= now):
            number, status, _ = self._dead.pop(0)
            self._queue_report(DEAD, number, status)

    def _kill_orphans(self) -> bool:
        """Kill orphans of dead workers; return whether there are any.

        A worker adopts the orphans below itself, so this process adopts them only when the worker dies. Children of an
        orphan follow when the orphan dies, and that death wakes this process.
        """
        if not self._adopts:
            return False
        orphans = [pid for pid in processes.children() if pid not in self._numbers and pid not in self._own]
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:  # the process has changed its user
                self._own.add(pid)
        return bool(orphans)

    def _kill_all(self) -> None:
        """End all workers: dismissed workers have some seconds to end by themselves, the others are killed."""
        if self.is_orderly:
            self._wait_for_dismissed()
        for pid in self._numbers:
            self._kill_group(pid)
        self._woken.settimeout(_ALL_END_WITHIN)
        self._reap()
        with contextlib.suppress(OSError):
            while self._numbers or self._kill_orphans():
                self._woken.recv(4_096)
                self._reap()
        for pid in self._own:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def _wait_for_dismissed(self) -> None:
        until = time.monotonic() + _DISMISSED_END_WITHIN
        self._reap()
        with contextlib.suppress(OSError):
            while self._numbers and (left := until - time.monotonic()) > 0:
                self._woken.settimeout(left)
                self._woken.recv(4_096)
                self._reap()

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _queue_report(self, *report: Any) -> None:
        self._unreported += frame(report)

    def _send(self) -> None:
        """Send queued reports without waiting for a busy executor."""
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
                self._selector.modify(self._control, wanted, self._read_order)
