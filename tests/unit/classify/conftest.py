"""Servers on loopback that answer badly in a chosen way."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trustme

Serve = Callable[..., str]


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that hangs up is what these tests are about."""


@contextmanager
def running(server: http.server.HTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def answering() -> Iterator[Serve]:
    """`answering(status, headers, body)` starts a server that gives this answer to everything; returns its URL."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def serve(status: int, headers: dict[str, str], body: bytes = b"") -> str:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def log_message(self, format, *args):
                    """Test output is for tests."""

            server = Quiet(("127.0.0.1", 0), Handler)
            stack.enter_context(running(server))
            return f"http://127.0.0.1:{server.server_port}/"

        yield serve


@pytest.fixture
def untrusted_url() -> Iterator[str]:
    """A TLS server with a self-signed certificate."""
    server = Quiet(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with running(server):
        yield f"https://127.0.0.1:{server.server_port}/"


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A closed port that no other process can bind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]
