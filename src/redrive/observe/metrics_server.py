"""A small HTTP server for metrics and health checks: GET and HEAD, one answer per connection, everything bounded."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self

from redrive._internal.masked_errors import masked_traceback
from redrive._internal.masking import mask
from redrive.config import ConfigError

LARGEST = 16 << 10
"""Maximum size of a request in bytes."""
TIMEOUT = 5.0
"""Seconds that a client has to send its request, and again to take the answer."""
_AT_ONCE = 16  # connections; further ones are closed
_LOOKS = 0.1  # seconds between two checks whether the server has to end

_log = logging.getLogger("redrive.http")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response to a request."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    @classmethod
    def sentence(cls, status: int, text: str) -> HttpAnswer:
        """Return an answer of one sentence, secrets masked."""
        line = " ".join(mask(text).split())
        return cls(status, f"{line}\n".encode(errors="replace"))


Ask = Callable[[str, str], HttpAnswer]
"""Returns the answer for a path and an Accept header."""


class MetricsServer:
    """Listens from construction until it is closed; answers in threads of its own."""

    def __init__(self, listen: str, ask: Ask, *, closed: Callable[[], None] = lambda: None) -> None:
        self._listener = _listen(listen, ask)
        self._closed = closed
        host, port = self._listener.server_address[:2]
        self.address = f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"
        """Where it listens: with the port that the system chose, if port 0 was requested."""
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": _LOOKS}, name="redrive-http", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"<MetricsServer {self.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        return f"http://{self.address}"

    def close(self) -> None:
        """Stop listening, without waiting for answers that are under way."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()
        self._closed()


def _listen(listen: str, ask: Ask) -> _Listener:
    host, port = _parse_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError):
        raise ConfigError(f"cannot listen on {listen}: the address {host!r} is unknown") from None
    try:
        return _Listener(family, address, ask)
    except OSError as error:
        why = {
            errno.EADDRINUSE: "another program listens there already; stop it, or choose another port",
            errno.EADDRNOTAVAIL: "it is not an address of this machine",
            errno.EACCES: "permission denied; choose a port from 1024 up",
        }.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise ConfigError(f"cannot listen on {listen}: {why}") from None


def _parse_address(listen: str) -> tuple[str, int]:
    host, _, port = listen.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    plain = ":" not in bare or host == f"[{bare}]"  # without brackets, the port of an IPv6 address is ambiguous
    if not bare or not plain or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ConfigError(
            f"the address to listen on must be a host and a port, such as 127.0.0.1:9464, not {mask(listen)[:100]!r}"
        )
    return bare, int(port)


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = os.name == "posix"  # for a port that was just closed; elsewhere it would share an open one
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, family: int, address: Any, ask: Ask) -> None:
        self.address_family = family
        self.ask = ask
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at DEBUG only: the client has gone, or was too slow."""
        if (error := sys.exception()) is not None:
            _log.debug("a request ended early\n%s", masked_traceback(error))


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    server_version, sys_version = "redrive", ""
    timeout = TIMEOUT

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(self._head())

    def _head(self) -> bytes:
        """Read the whole head within one deadline: the library would wait for each byte as long as they trickle."""
        head, ends = b"", time.monotonic() + TIMEOUT
        while b"\r\n\r\n" not in head and len(head) <= LARGEST:
            self.connection.settimeout(max(0.001, ends - time.monotonic()))
            got = self.connection.recv(4_096)
            if not got:
                break
            head += got
        self.connection.settimeout(TIMEOUT)
        return head

    def handle(self) -> None:
        assert isinstance(self.rfile, io.BytesIO)
        if self.rfile.getbuffer().nbytes > LARGEST:
            self.requestline = self.command = ""
            self.request_version = self.protocol_version
            self._send(HttpAnswer.sentence(431, f"a request has {LARGEST:,} bytes at most"))
            return
        super().handle()

    def do_GET(self) -> None:
        """Answer a GET or HEAD request."""
        try:
            answer = self.server.ask(self.path.partition("?")[0], self.headers.get("Accept", ""))
        except Exception as error:
            _log.error("a request failed\n%s", masked_traceback(error))
            answer = HttpAnswer.sentence(500, f"this request failed: {type(error).__name__}: {error}")
        self._send(answer)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the library rejects: a request that it cannot parse, or another method."""
        if code == 501:
            self._send(HttpAnswer.sentence(405, "only GET and HEAD are answered here"))
        else:
            self._send(HttpAnswer.sentence(code, "this request cannot be read"))

    def _send(self, answer: HttpAnswer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: scrapes come every few seconds."""
