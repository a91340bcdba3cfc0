"""The client of a fork server: the executor starts it and sends orders over one socket. Used by the pool."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redrive.errors import FlowError
from redrive.tasks.flow import Flow
from redrive.tasks.workers.import_flow import FlowLocation, refuse_within_import
from redrive.tasks.workers.protocol import END, FORK, ORDER, SIGNAL, FrameReader
from redrive.tasks.workers.supervisor import Supervisor

_CHUNK = 1 << 16


class _StartedAhead(threading.local):
    def __init__(self) -> None:
        self.supervisors: dict[Flow, Supervisor] = {}


_ahead = _StartedAhead()


@contextmanager
def launched(flow: Flow) -> Iterator[None]:
    """Start the fork server before the run of this thread: it imports the flow while the store is opened."""
    refuse_within_import()
    flow.graph.check()
    if flow in _ahead.supervisors or all(node.in_thread for node in flow.graph.nodes.values()):
        yield
        return
    _ahead.supervisors[flow] = _supervisor_of(flow)
    try:
        yield
    finally:
        unused = _ahead.supervisors.pop(flow, None)
        if unused is not None:
            unused.end(at_once=True)


def _supervisor_of(flow: Flow) -> Supervisor:
    launch = {"home": FlowLocation.of(flow).document(), "max_rss": flow.max_rss}
    try:
        return Supervisor("redrive.tasks.workers.fork_server", f"workers of flow {flow.name}", launch, is_quiet=True)
    except OSError as error:
        raise FlowError(f"no process can be started for workers: {error.strerror}") from None


class ForkServerClient:
    """One fork server, from its start to its end."""

    def __init__(self, flow: Flow, selector: selectors.BaseSelector, on_report: Callable[[], None]) -> None:
        self.home = FlowLocation.of(flow)
        self._selector = selector
        self._on_report = on_report
        self._frames = FrameReader()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        ahead = _ahead.supervisors.pop(flow, None)
        self._supervisor = _supervisor_of(flow) if ahead is None else ahead
        self._control = self._supervisor.control
        self.has_imported = False
        self._is_gone = False
        self._control.setblocking(False)
        selector.register(self._control, selectors.EVENT_READ, self._handle_event)

    def fileno(self) -> int:
        """Return the descriptor of the socket, for polling."""
        return self._control.fileno()

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fork(self, number: int, connection: int, output: int) -> None:
        """Order a worker; it takes over the two descriptors once they are sent."""
        self._put(ORDER.pack(FORK, number, 0), (connection, output))

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to a worker and all in its process group."""
        self._put(ORDER.pack(SIGNAL, number, which))

    def _put(self, order: bytes, descriptors: Sequence[int] = ()) -> None:
        self._unsent.append((order, descriptors))
        self._send()

    def _send(self) -> None:
        """Send queued orders; the rest is sent when the socket has room."""
        while self._unsent:
            order, descriptors = self._unsent[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._control, [order], descriptors)
                else:
                    sent = self._control.send(order)
            except BlockingIOError:
                break
            except OSError:  # the server is dead; reading the socket shows it
                sent = len(order)
            self._unsent.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
            if sent < len(order):
                self._unsent.appendleft((order[sent:], ()))
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._control).events != wanted:
            self._selector.modify(self._control, wanted, self._handle_event)

    def _handle_event(self) -> None:
        if self._control.fileno() < 0:  # closed in the same step of the loop
            return
        if self._unsent:
            self._send()
        self._on_report()

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def read_reports(self) -> list[Any] | None:
        """Return new reports; None if the server is gone."""
        try:
            data = self._control.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self._is_gone = not data
        return self._frames.feed(data) if data else None

    def end(self) -> int:
        """End the server and all workers; return its exit status. No process is left."""
        with contextlib.suppress(OSError):
            self._control.send(ORDER.pack(END, 0, 0))
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._control)
        return self._supervisor.end(at_once=not (self.has_imported or self._is_gone))
