"""A listening port and its connections, with an event loop and a thread of their own; it can go down and up again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from email.utils import formatdate
from functools import lru_cache
from typing import Any, NamedTuple, cast

from redrive.testing.faulty_server.answer import Answer
from redrive.testing.faulty_server.http1 import BadRequest, Message, RequestParser

# Bytes of later, pipelined requests that are buffered while one is being answered.
_MAX_PENDING = 1024 * 1024
# Seconds that a client may take to notice that the server has closed the connection.
_LINGER = 5.0
# Time for the half answer to reach the client's program: a reset may overtake data not yet read.
_RESET_PAUSE = 0.02
# SO_LINGER with zero seconds: closing sends a reset instead of an orderly end.
_RESET_ON_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
HOST = "127.0.0.1"
# Hundreds of clients may connect at the same moment.
_BACKLOG = 4096


class Decision(NamedTuple):
    """What to do with a request: the answer, and how long to wait before it."""

    answer: Answer
    wait: float


Decide = Callable[[Message, "Connection"], Decision]


class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 on one socket, and registers itself in `open_connections` while it is open."""

    def __init__(self, *, number: int, decide: Decide, open_connections: set[Connection]) -> None:
        self.number = number
        self._decide = decide
        self._open = open_connections
        self._parser = RequestParser()
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False
        """Whether a request is being answered; the next one waits."""
        self._is_clogged = False
        """Whether the client does not read its answers; it gets no more of them until it does."""
        self._is_done = False
        """Whether all further input is ignored."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_done = True
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_done:
            return
        self._parser.feed(data)
        self._take_requests()
        if (self._is_busy or self._is_clogged) and self._parser.pending > _MAX_PENDING:
            self._transport.pause_reading()

    def eof_received(self) -> None:
        # The transport closes itself after this; what was written is sent first.
        if self._parser.pending and not self._is_busy and not self._is_done:
            self._transport.write(_bad_request_answer("the connection ended within a request"))

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._resume()

    def abort(self) -> None:
        """Drop the connection now."""
        self._is_done = True
        self._transport.abort()

    def reset(self) -> None:
        """Drop the connection so that the client sees `connection reset by peer`."""
        if not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the client has closed it already
                connected = self._transport.get_extra_info("socket")
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.abort()

    def _take_requests(self) -> None:
        while not (self._is_busy or self._is_clogged or self._is_done):
            try:
                message = self._parser.next()
            except BadRequest as error:
                self._transport.write(_bad_request_answer(str(error)))
                self._close()
                return
            if message is None:
                if self._parser.wants_continue:
                    self._parser.wants_continue = False
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            self._is_busy = True
            answer, wait = self._decide(message, self)
            if answer.hang:
                return
            if wait > 0:
                self._call_later(wait, self._answer_after_delay, message, answer)
            else:
                self._answer(message, answer)

    def _answer_after_delay(self, message: Message, answer: Answer) -> None:
        self._answer(message, answer)
        self._resume()

    def _answer(self, message: Message, answer: Answer) -> None:
        """Send the answer; where that takes time, stay busy until it is sent."""
        is_head = message.method == "HEAD"
        if self._is_done or answer.reset == "before" or (answer.reset and is_head):
            self.reset()
            return
        close = answer.closes or not message.keep_alive
        head = answer.head(date=_http_date(int(time.time())), close=close)
        payload = b"" if is_head else answer.payload
        if answer.reset == "mid-body":
            self._transport.write(head + payload[: len(payload) // 2])
            self._call_later(_RESET_PAUSE, self.reset)
        elif answer.drip is not None and payload:
            self._transport.write(head)
            self._call_later(answer.drip, self._drip, payload, answer.drip, close)
        else:
            self._transport.write(head + payload)
            self._finish(close)

    def _drip(self, payload: bytes, pause: float, close: bool, sent: int = 0) -> None:
        self._transport.write(payload[sent : sent + 1])
        if sent + 1 < len(payload):
            self._call_later(pause, self._drip, payload, pause, close, sent + 1)
        else:
            self._finish(close)
            self._resume()

    def _finish(self, close: bool) -> None:
        self._is_busy = False
        if close:
            self._close()

    def _resume(self) -> None:
        self._transport.resume_reading()
        self._take_requests()

    def _close(self) -> None:
        """Close the sending side and ignore further input: closing with unread bytes would reset the answer away."""
        self._is_done = True
        if not self._transport.is_closing():
            self._transport.write_eof()
            self._call_later(_LINGER, self._transport.abort)

    def _call_later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        def run_action() -> None:
            self._timer = None
            action(*args)

        self._timer = asyncio.get_running_loop().call_later(seconds, run_action)


@lru_cache(maxsize=2)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _bad_request_answer(why: str) -> bytes:
    answer = Answer(400, json={"error": why})
    return answer.head(date=_http_date(int(time.time())), close=True) + answer.payload


class Listener:
    """Listens from construction until `stop()`. Its sockets belong to its thread; other threads wait for it."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        # While the server is down, the port stays bound without listening, so that no other process gets it.
        self._parked: socket.socket | None = _bind(0)
        self._listening: socket.socket | None = None
        self.port: int = self._parked.getsockname()[1]
        self._connections: set[Connection] = set()
        self._joining: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-faulty-server", daemon=True)
        self._thread.start()
        self.up()

    def up(self) -> None:
        """Accept connections, on the same port as before."""
        self._on_thread(self._go_up)

    def down(self) -> None:
        """Reset every connection and refuse new ones."""
        self._on_thread(self._go_down)

    def stop(self) -> None:
        """Drop every connection, free the port and end the thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a handler cannot stop its server; down() refuses connections")
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_thread(self, action: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:  # called by a handler
            action()
            return
        done: Future[None] = Future()

        def run_action() -> None:
            try:
                action()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(run_action)
        done.result()

    def _go_up(self) -> None:
        if self._parked is not None:
            self._listening, self._parked = self._parked, None
            self._listening.listen(_BACKLOG)
            self._loop.add_reader(self._listening, self._accept, self._listening)

    def _go_down(self) -> None:
        self._stop_listening()
        if self._parked is None:
            self._parked = _bind(self.port)
        for connection in tuple(self._connections):
            connection.reset()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except (
                OSError
            ):  # no connection is waiting, or it was closed before it was accepted, or no file handle is free
                return
            client.setblocking(False)
            self._accepted += 1
            joining = self._loop.create_task(self._join(client, self._accepted, listening))
            self._joining.add(joining)
            joining.add_done_callback(self._joining.discard)

    async def _join(self, client: socket.socket, number: int, listening: socket.socket) -> None:
        connection = Connection(number=number, decide=self._decide, open_connections=self._connections)
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client)
        except OSError:  # the client has closed the connection already
            client.close()
        if self._listening is not listening and connection in self._connections:
            connection.reset()  # the server went down in between

    async def _shut_down(self) -> None:
        self._stop_listening()
        if self._parked is not None:
            self._parked.close()
        while self._joining or self._connections:
            for connection in tuple(self._connections):
                connection.abort()
            await asyncio.sleep(0)


def _bind(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere the option would let two servers share the port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind((HOST, port))
    except BaseException:
        bound.close()
        raise
    return bound
