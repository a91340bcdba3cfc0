"""The connection of the pool to one worker: its socket, the pipe of its output, and its current job."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable
from math import inf
from typing import Any

from redrive.tasks.workers.output import OutputCollector, drain
from redrive.tasks.workers.protocol import AttemptEnd, FrameReader, ProtocolError, TaskJob

_CHUNK = 1 << 18


class WorkerConnection:
    """One worker, from the order to fork it until its death."""

    __slots__ = (
        "_frames",
        "_on_message",
        "_selector",
        "_unsent",
        "connection",
        "deadline",
        "doomed",
        "ending",
        "given",
        "is_closed",
        "is_lost",
        "job",
        "number",
        "output",
        "pid",
        "pipe",
        "since",
    )

    def __init__(
        self, number: int, selector: selectors.BaseSelector, on_message: Callable[[WorkerConnection], None]
    ) -> None:
        self.number = number
        self.pid: int | None = None
        """Known from its first message on."""
        self.job: TaskJob | None = None
        self.given = 0
        """How many jobs it was given."""
        self.since = 0.0
        self.deadline = inf
        """When the pool must act on it."""
        self.ending: AttemptEnd | None = None
        """Why its job is being ended; later answers are ignored."""
        self.doomed = False
        """Whether it will end; it gets no more jobs."""
        self.is_lost = False
        """Whether its socket is closed or broken."""
        self.is_closed = False
        self.output: OutputCollector | None = OutputCollector()
        self._frames = FrameReader()
        self._unsent = b""
        self._selector = selector
        self._on_message = on_message

    def open(self) -> tuple[int, int]:
        """Open the socket and the pipe; return the descriptors for the worker."""
        self.connection, theirs = socket.socketpair()
        try:
            self.pipe, written = os.pipe()
        except OSError:
            self.connection.close()
            theirs.close()
            raise
        self.connection.setblocking(False)
        os.set_blocking(self.pipe, False)
        self._selector.register(self.connection, selectors.EVENT_READ, self._handle_event)
        self._selector.register(self.pipe, selectors.EVENT_READ, self._read)
        return theirs.detach(), written

    def send(self, message: bytes) -> bool:
        """Send a message, the rest later if the buffer is full; return False if the worker is gone."""
        try:
            sent = self.connection.send(message)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(message):
            self._unsent = message[sent:]
            self._selector.modify(self.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, self._handle_event)
        return True

    def _handle_event(self) -> None:
        if self.is_closed:  # closed in the same step of the loop
            return
        if self._unsent:
            rest, self._unsent = self._unsent, b""
            self._selector.modify(self.connection, selectors.EVENT_READ, self._handle_event)
            self.send(rest)
        self._on_message(self)

    def receive(self) -> list[Any]:
        """Return new messages; mark the worker as lost if the socket has ended."""
        try:
            while data := self.connection.recv(_CHUNK):
                if documents := self._frames.feed(data):
                    return documents
        except BlockingIOError:
            return []
        except (OSError, ProtocolError):
            pass
        self.mark_lost()
        return []

    def mark_lost(self) -> None:
        """Stop reading from the worker."""
        self.is_lost = True
        with contextlib.suppress(KeyError):
            self._selector.unregister(self.connection)

    def _read(self) -> None:
        if not self.is_closed and not drain(self.pipe, self.output):
            self._selector.unregister(self.pipe)

    def take_output(self) -> str:
        """Return the whole output of the attempt, once."""
        output = self.output
        if output is None:
            return ""
        drain(self.pipe, output)
        self.output = None
        return output.text()

    def dismiss(self) -> None:
        """Close the sending side, so that the worker ends."""
        with contextlib.suppress(OSError):  # it is gone already
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket and the pipe."""
        self.is_closed = True
        for end in (self.connection, self.pipe):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
        self.connection.close()
        os.close(self.pipe)
