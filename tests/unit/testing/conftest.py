"""The server under test, and the clients people meet it with."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx
import pytest
import requests

from redrive.testing import FaultyServer


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Callable[[], object]


class Client(NamedTuple):
    """One HTTP library: how it gets a page, with a timeout for reading it, and what it raises when that fails."""

    get: Callable[..., Reply]
    timeout: type[Exception]
    dropped: tuple[type[Exception], ...]
    refused: type[Exception]


def _lower(headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _httpx_get(url: str, timeout: float = 30) -> Reply:
    reply = httpx.get(url, timeout=httpx.Timeout(30, read=timeout))
    return Reply(reply.status_code, _lower(reply.headers), reply.json)


def _httpx_async_get(url: str, timeout: float = 30) -> Reply:
    async def get() -> httpx.Response:
        async with httpx.AsyncClient(timeout=httpx.Timeout(30, read=timeout)) as client:
            return await client.get(url)

    reply = asyncio.run(get())
    return Reply(reply.status_code, _lower(reply.headers), reply.json)


def _requests_get(url: str, timeout: float = 30) -> Reply:
    reply = requests.get(url, timeout=(30, timeout))
    return Reply(reply.status_code, _lower(reply.headers), reply.json)


CLIENTS = {
    "httpx": Client(_httpx_get, httpx.ReadTimeout, (httpx.ReadError,), httpx.ConnectError),
    "httpx-async": Client(_httpx_async_get, httpx.ReadTimeout, (httpx.ReadError,), httpx.ConnectError),
    "requests": Client(
        _requests_get,
        requests.ReadTimeout,
        (requests.ConnectionError, requests.exceptions.ChunkedEncodingError),
        requests.ConnectionError,
    ),
}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


def connect(server: FaultyServer) -> socket.socket:
    port = int(server.url.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server ends its side."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def raw(server: FaultyServer) -> Iterator[socket.socket]:
    """A connection to the server, to write bytes to that no library would."""
    with connect(server) as connection:
        yield connection


@pytest.fixture(name="connect")
def _connect() -> Callable[[FaultyServer], socket.socket]:
    return connect


@pytest.fixture(name="read_all")
def _read_all() -> Callable[[socket.socket], bytes]:
    return read_all
