"""A listening port with an event loop and a thread of its own; it can refuse connections and accept them again."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from redrive.testing.faulty_server.connection import Connection, Decide

HOST = "127.0.0.1"
# Hundreds of clients may connect at the same moment.
_BACKLOG = 4096


class Listener:
    """Listens from construction until `stop()`. Its sockets belong to its thread; other threads wait for it."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        # While connections are refused, the port stays bound without listening, so that no other process gets it.
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
