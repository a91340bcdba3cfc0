"""The executor's end of one worker: its socket, the pipe of what it writes, and the job it has."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable
from math import inf
from typing import Any

from redrive.tasks.workers.messages import AttemptEnd, TaskJob
from redrive.tasks.workers.output import OutputCollector, drain
from redrive.tasks.workers.protocol import FrameReader, ProtocolError

_CHUNK = 1 << 18


class WorkerConnection:
    """One worker, from the order to fork it until it is dead."""

    __slots__ = (
        "_frames",
        "_hear",
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

    def __init__(self, number: int, selector: selectors.BaseSelector, hear: Callable[[WorkerConnection], None]) -> None:
        self.number = number
        self.pid: int | None = None
        """Known from its first word on."""
        self.job: TaskJob | None = None
        self.given = 0
        """How many jobs it has had."""
        self.since = 0.0
        self.deadline = inf
        """The moment at which something is to be done about it."""
        self.ending: AttemptEnd | None = None
        """Why its job is being ended, once that is decided: whatever it still says is not heard any more."""
        self.doomed = False
        """It gets no more jobs."""
        self.is_lost = False
        """It will never say anything again."""
        self.is_closed = False
        self.output: OutputCollector | None = OutputCollector()
        self._frames = FrameReader()
        self._unsent = b""
        self._selector = selector
        self._hear = hear

    def open(self) -> tuple[int, int]:
        """Make both its ends; those that the worker is to have are given away."""
        self.connection, theirs = socket.socketpair()
        try:
            self.pipe, written = os.pipe()
        except OSError:
            self.connection.close()
            theirs.close()
            raise
        self.connection.setblocking(False)
        os.set_blocking(self.pipe, False)
        self._selector.register(self.connection, selectors.EVENT_READ, self._turn)
        self._selector.register(self.pipe, selectors.EVENT_READ, self._read)
        return theirs.detach(), written

    def send(self, message: bytes) -> bool:
        """Send a message, later what does not fit now; False where the worker is gone."""
        try:
            sent = self.connection.send(message)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(message):
            self._unsent = message[sent:]
            self._selector.modify(self.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, self._turn)
        return True

    def _turn(self) -> None:
        if self.is_closed:  # in the same turn of the loop
            return
        if self._unsent:
            rest, self._unsent = self._unsent, b""
            self._selector.modify(self.connection, selectors.EVENT_READ, self._turn)
            self.send(rest)
        self._hear(self)

    def receive(self) -> list[Any]:
        """What it says; when it can say nothing any more, it is lost."""
        try:
            while data := self.connection.recv(_CHUNK):
                if found := self._frames.feed(data):
                    return found
        except BlockingIOError:
            return []
        except (OSError, ProtocolError):
            pass
        self.lose()
        return []

    def lose(self) -> None:
        """Listen to it no more."""
        self.is_lost = True
        with contextlib.suppress(KeyError):
            self._selector.unregister(self.connection)

    def _read(self) -> None:
        if not self.is_closed and not drain(self.pipe, self.output):
            self._selector.unregister(self.pipe)

    def last_output(self) -> str:
        """What the attempt has written, all of it that is there."""
        output = self.output
        if output is None:
            return ""
        drain(self.pipe, output)
        self.output = None
        return output.text()

    def dismiss(self) -> None:
        """Tell it that there will be nothing more to do."""
        with contextlib.suppress(OSError):  # it is gone already
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of everything."""
        self.is_closed = True
        for end in (self.connection, self.pipe):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
        self.connection.close()
        os.close(self.pipe)
