"""HTTP/1.1 as bytes: framing, connections, and invalid input."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from itertools import pairwise

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from redrive.testing import Answer, FaultyServer
from redrive.testing.faulty_server.http1 import BadRequest, RequestParser

MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
    b"hello\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/2.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET  / HTTP/1.1\r\n\r\n",
    b"G\xc3\x84T / HTTP/1.1\r\n\r\n",
    b"GET nowhere HTTP/1.1\r\n\r\n",
    b"GET http://[broken/ HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\n\n",
    b"GET / HTTP/1.1\r\nHost: a\n\n",
    b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
    b"GET / HTTP/1.1\r\nSpace : x\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\x00c\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000,
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
]


@pytest.mark.parametrize("garbage", MALFORMED, ids=range(len(MALFORMED)))
def test_non_http_bytes_get_400_at_once_and_a_close(server, raw, read_all, garbage):
    raw.sendall(garbage)  # our side stays open: the server must not wait for more
    assert read_all(raw).startswith(b"HTTP/1.1 400 ")
    assert server.requests == []
    assert httpx.get(server.url).status_code == 404


@pytest.mark.parametrize(
    "part", [b"G", b"\r", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"]
)
def test_incomplete_request_is_rejected_and_not_counted(server, raw, read_all, part):
    raw.sendall(part)
    raw.shutdown(socket.SHUT_WR)
    assert read_all(raw).startswith(b"HTTP/1.1 400 ")
    assert server.requests == []


def test_client_that_keeps_sending_garbage_gets_the_reason(raw, read_all):
    raw.sendall(b"garbage\r\n\r\n" + b"x" * 1_000_000)
    raw.sendall(b"x")
    assert read_all(raw).endswith(b'"the first line is not METHOD TARGET HTTP/1.1"}')


@pytest.fixture(scope="module")
def standing_server():
    with FaultyServer() as server:
        yield server


@given(garbage=st.binary(min_size=1, max_size=300))
def test_garbage_never_kills_the_server(standing_server, garbage):
    port = int(standing_server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 400 ") or re.fullmatch(rb"(\r\n)*", garbage)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


FRAGMENTS = [
    b"GET",
    b"POST",
    b" ",
    b"/",
    b"*",
    b"http://[",
    b"?a=%zz&",
    b"%ff",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"\r\n",
    b"\r\n\r\n",
]
FRAGMENTS += [
    b"Content-Length",
    b"Transfer-Encoding",
    b"chunked",
    b"Expect: 100-continue",
    b": ",
    b"3",
    b"0",
    b";x",
    b"\n",
]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=3)), max_size=30), st.booleans())
def test_parser_returns_a_request_or_a_bad_request(fragments, is_started):
    parser = RequestParser()
    parser.feed(b"POST / HTTP/1.1\r\n" if is_started else b"")
    with contextlib.suppress(BadRequest):
        for fragment in fragments:
            parser.feed(fragment)
            while (message := parser.next()) is not None:
                assert message.path


STREAM = (
    b"GET /a%20b?x=1&x=2&y HTTP/1.1\r\nHost: h\r\nX-Twice: 1\r\nx-twice: 2\r\n\r\n"
    b"POST /sized HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello\r\n"
    b"POST /chunked HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    b"GET http://elsewhere/proxied?q=1 HTTP/1.0\r\n\r\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_requests_are_the_same_however_bytes_are_split(cuts):
    parser = RequestParser()
    messages = []
    edges = sorted({0, *cuts, len(STREAM)})
    for begin, end in pairwise(edges):
        parser.feed(STREAM[begin:end])
        while (message := parser.next()) is not None:
            messages.append(message)
    assert [(m.method, m.path, m.query, m.body, m.keep_alive) for m in messages] == [
        ("GET", "/a b", {"x": "2", "y": ""}, b"", True),
        ("POST", "/sized", {}, b"hello", True),
        ("POST", "/chunked", {}, b"abc0123456789", True),
        ("GET", "/proxied", {"q": "1"}, b"", False),
    ]
    assert messages[0].headers["X-TWICE"] == "1, 2"
    assert parser.pending == 0


def test_chunked_request_body_is_joined(server):
    server.on("/upload", lambda request: Answer(body=request.body))
    pieces = [b"one ", b"two ", b"x" * 100_000]
    assert httpx.post(server.url + "/upload", content=iter(pieces)).content == b"".join(pieces)
    assert requests.post(server.url + "/upload", data=iter(pieces), timeout=30).content == b"".join(pieces)
    assert {request.headers["transfer-encoding"] for request in server.requests} == {"chunked"}


def test_large_body_is_sent_both_ways(server):
    server.on("/echo", lambda request: Answer(body=request.body))
    body = bytes(range(256)) * 20_000
    assert httpx.post(server.url + "/echo", content=body).content == body


def test_one_connection_serves_many_requests(server):
    server.on("/*", Answer(json={}))
    with httpx.Client() as client:
        for page in range(5):
            client.get(f"{server.url}/pages/{page}")
    with requests.Session() as session:
        for page in range(5):
            session.get(f"{server.url}/pages/{page}", timeout=30)
    assert [request.connection for request in server.requests] == [1] * 5 + [2] * 5


def test_connection_is_closed_for_a_client_that_asks(server, raw, read_all):
    raw.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert b"\r\nConnection: close\r\n" in read_all(raw)


def test_http_1_0_connection_is_closed_after_the_answer(server, raw, read_all):
    raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert read_all(raw).startswith(b"HTTP/1.1 404 ")


def test_head_gets_the_headers_and_no_body(server, raw):
    server.on("/x", Answer(json={"rows": []}))
    reply = httpx.head(server.url + "/x")
    assert (reply.status_code, reply.headers["content-length"], reply.content) == (200, "12", b"")
    raw.sendall(b"HEAD /x HTTP/1.1\r\n\r\n")
    assert raw.recv(65536).endswith(b"\r\n\r\n")


def test_pipelined_requests_are_answered_in_order(server, raw, read_all):
    server.on("/slow", Answer(body=b"first;", delay=0.05))
    server.on("/drip", Answer(body=b"2nd;", drip=0.01))
    server.on("/fast", Answer(body=b"third;"))
    raw.sendall(b"GET /slow HTTP/1.1\r\n\r\nGET /drip HTTP/1.1\r\n\r\nGET /fast HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert re.findall(rb"\w+;", read_all(raw)) == [b"first;", b"2nd;", b"third;"]


def test_client_that_does_not_read_gets_only_its_buffers(server, raw, read_all):
    server.on("/big", Answer(body=b"x" * 100_000))
    raw.sendall(b"GET /big HTTP/1.1\r\n\r\n" * 299 + b"GET /big HTTP/1.1\r\nConnection: close\r\n\r\n")
    for _ in range(3):
        httpx.get(server.url + "/other")
    assert 0 < server.count("/big") < 300
    assert read_all(raw).count(b"x" * 100_000) == 300
    assert server.count("/big") == 300


def test_no_more_is_read_than_can_be_answered(server, raw):
    server.on("/hang", Answer(hang=True))
    raw.sendall(b"GET /hang HTTP/1.1\r\n\r\n")
    raw.settimeout(0.5)
    with pytest.raises(TimeoutError):
        raw.sendall(b"x" * 40_000_000)


def test_large_request_behind_a_slow_one_is_answered(server, raw, read_all):
    server.on("/slow", Answer(delay=0.1))
    server.on("/upload", lambda request: Answer(json=len(request.body)))
    raw.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
    raw.sendall(b"POST /upload HTTP/1.1\r\nConnection: close\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
    assert read_all(raw).endswith(b"\r\n\r\n20000000")


def test_client_that_waits_for_100_continue_gets_it(server, raw):
    server.on("/upload", lambda request: Answer(body=request.body))
    raw.sendall(b"POST /upload HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert raw.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.sendall(b"hello")
    assert raw.recv(65536).endswith(b"\r\n\r\nhello")


@pytest.mark.slow
async def test_200_concurrent_async_requests_are_all_answered(server):
    server.on("/pages/*", lambda request: Answer(json=request.path, delay=0.05))
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        replies = await asyncio.gather(*(client.get(f"{server.url}/pages/{page}") for page in range(200)))
    assert [reply.json() for reply in replies] == [f"/pages/{page}" for page in range(200)]
    assert server.count("/pages/*") == 200


def test_400_connections_are_open_at_once(server, connect):
    connections = [connect(server) for _ in range(400)]
    for connection in connections:
        connection.sendall(b"GET /x HTTP/1.1\r\n\r\n")
    for connection in connections:
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
    assert {request.connection for request in server.requests} == set(range(1, 401))
    for connection in connections:
        connection.close()
