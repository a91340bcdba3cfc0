"""The executor's end of its fork server: started as a fresh interpreter, ordered about over one socket."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from secrets import token_hex
from typing import Any

from redrive.calls import testmode
from redrive.errors import FlowError
from redrive.tasks import processes
from redrive.tasks.flow import Flow
from redrive.tasks.importing import Home
from redrive.tasks.wire import END, FORK, ORDER, SIGNAL, Frames

# The path of the executor comes last until our own modules are there: a user's json.py is not for us.
_PROGRAM = """
import sys
path = {path!r}
sys.path = [entry for entry in sys.path if entry] + path
from redrive.tasks.forkserver import main
sys.path[:] = path
main({descriptor})
"""
_MARK = "REDRIVE_FORK_SERVER"  # in the environment of everything that comes of it
_CHUNK = 1 << 16
_TO_END = 20.0  # seconds


class Server:
    """A fork server, from its start to its end."""

    def __init__(self, flow: Flow, selector: selectors.BaseSelector, heard: Callable[[], None]) -> None:
        self.home = Home.of(flow)
        self._selector = selector
        self._heard = heard
        self._mark = token_hex(8)
        self._frames = Frames()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._control, theirs = socket.socketpair()
        try:
            self._process = self._start(flow, theirs.fileno())
        except OSError as error:
            self._control.close()
            raise FlowError(f"no process can be started for workers: {error.strerror}") from None
        finally:
            theirs.close()
        self.has_imported = False
        self._is_gone = False
        launch = {
            "executor": os.getpid(),
            "argv": sys.argv,
            "home": self.home.document(),
            "max_rss": flow.max_rss,
            "testing": asdict(testmode.active()),
        }
        with contextlib.suppress(ConnectionError):  # a start that failed is noticed by who waits for it
            self._control.sendall(json.dumps(launch).encode() + b"\n")
        self._control.setblocking(False)
        selector.register(self._control, selectors.EVENT_READ, self._turn)

    def _start(self, flow: Flow, descriptor: int) -> subprocess.Popen[bytes]:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        return subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-c",
                _PROGRAM.format(path=path, descriptor=descriptor),
                f"workers of flow {flow.name}",  # for those who look at the list of processes
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, _MARK: self._mark},
            pass_fds=(descriptor,),
            start_new_session=True,  # a Ctrl-C is the executor's business
        )

    def fileno(self) -> int:
        """The socket's, for who wants to wait for it."""
        return self._control.fileno()

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fork(self, number: int, connection: int, output: int) -> None:
        """Have a worker forked; it takes these two descriptors over, once they have been sent."""
        self._put(ORDER.pack(FORK, number, 0), (connection, output))

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to a worker and all in its process group."""
        self._put(ORDER.pack(SIGNAL, number, which))

    def _put(self, order: bytes, descriptors: Sequence[int] = ()) -> None:
        self._unsent.append((order, descriptors))
        self._send()

    def _send(self) -> None:
        """Send what there is to send; what does not fit now, when there is room."""
        while self._unsent:
            order, descriptors = self._unsent[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._control, [order], descriptors)
                else:
                    sent = self._control.send(order)
            except BlockingIOError:
                break
            except OSError:  # it is dead; that is read from the socket
                sent = len(order)
            self._unsent.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
            if sent < len(order):
                self._unsent.appendleft((order[sent:], ()))
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._control).events != wanted:
            self._selector.modify(self._control, wanted, self._turn)

    def _turn(self) -> None:
        if self._control.fileno() < 0:  # closed in the same turn of the loop
            return
        if self._unsent:
            self._send()
        self._heard()

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def reports(self) -> list[Any] | None:
        """What it has reported; None when it is gone."""
        try:
            data = self._control.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self._is_gone = not data
        return self._frames.feed(data) if data else None

    def end(self) -> int | None:
        """Have it kill all workers and end; the status it ended with. Nothing is left of it after this."""
        with contextlib.suppress(OSError):
            self._control.send(ORDER.pack(END, 0, 0))
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        if not (self.has_imported or self._is_gone):  # it listens to nobody, and has no workers yet
            self._process.kill()
        try:
            self._process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            for _, descriptors in self._unsent:
                for descriptor in descriptors:
                    os.close(descriptor)
            self._unsent.clear()
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._control)
            self._control.close()
        if self._process.returncode != 0:  # it could not see to its workers and what they have started
            processes.kill_marked(f"{_MARK}={self._mark}")
        return self._process.returncode
