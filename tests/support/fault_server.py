"""Ports on loopback that fail in a chosen way, for any client library: closed, reset, silent, or a canned answer."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

Talk = Callable[[socket.socket], None]
"""What a server does with one connection; the connection is closed afterwards."""


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


@contextmanager
def serving(talk: Talk) -> Iterator[int]:
    """A port whose connections are each given to `talk` in a thread of their own."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def handle(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            talk(client)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                connections.append(client)
                thread = threading.Thread(target=handle, args=(client,), daemon=True)
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for endpoint in (listener, *connections):
            # A shutdown, not a close, wakes a thread that waits in accept or recv.
            with contextlib.suppress(OSError):
                endpoint.shutdown(socket.SHUT_RDWR)
        for thread in (acceptor, *threads):
            thread.join(5)
        listener.close()


def stay_silent(client: socket.socket) -> None:
    """Read everything, answer nothing."""
    while client.recv(65_536):
        pass


def reset(client: socket.socket) -> None:
    """Read the first bytes if any come at once, then send a TCP reset."""
    client.settimeout(0.05)
    with contextlib.suppress(TimeoutError):
        client.recv(65_536)
    # Closing with a linger of 0 s sends RST instead of FIN.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def hang_up(client: socket.socket) -> None:
    """Read the first bytes if any come at once, then close the connection in good order."""
    client.settimeout(0.05)
    with contextlib.suppress(TimeoutError):
        client.recv(65_536)


def saying(greeting: bytes, *answers: bytes) -> Talk:
    """Send the greeting, then one answer for each thing read, the last one again and again."""

    def talk(client: socket.socket) -> None:
        client.sendall(greeting)
        position = 0
        while client.recv(65_536):
            if answers:
                client.sendall(answers[min(position, len(answers) - 1)])
                position += 1

    return talk


def answering(status: int, headers: dict[str, str] | None = None, body: bytes = b"{}", *, missing: int = 0) -> Talk:
    """Answer every HTTP request so; with `missing`, end the connection that many bytes before the end of the body."""
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"Content-Length: {len(body) + missing}", "", ""]
    head = "\r\n".join(lines).encode()

    def talk(client: socket.socket) -> None:
        while method := _read_request(client):
            client.sendall(head if method == b"HEAD" else head + body)
            if missing:
                return

    return talk


def _phrase(status: int) -> str:
    with contextlib.suppress(ValueError):
        return HTTPStatus(status).phrase
    return "Status"


def _read_request(client: socket.socket) -> bytes:
    """The method of the next request, which is read to its end; empty at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := client.recv(65_536)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    if b"100-continue" in head.lower():
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *([0-9]+)", head)
    due = int(length[1]) if length else 0
    chunked = b"transfer-encoding: chunked" in head.lower()
    while len(body) < due or (chunked and not body.endswith(b"0\r\n\r\n")):
        if not (more := client.recv(65_536)):
            return b""
        body += more
    return head.partition(b" ")[0]
