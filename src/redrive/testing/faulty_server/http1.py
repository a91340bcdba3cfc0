"""An HTTP/1.1 parser: bytes in, whole requests out, `BadRequest` for anything else. No I/O here."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_HEAD = 64 * 1024
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([!-~]+) HTTP/1\.([01])")
_HEADER_NAME = re.compile(_TOKEN)
# Characters that two parsers could read differently: control characters and half line ends.
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class BadRequest(Exception):
    """The bytes are not an HTTP/1.1 request; the text is the reason."""


class Headers(Mapping[str, str]):
    """Header fields by name, whatever its case; fields of one name are joined with commas."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = {name.lower(): value for name, value in fields.items()}

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Headers({self._fields!r})"


@dataclass(slots=True)
class Request:
    """One request that reached the server."""

    method: str
    """`GET`, `POST` …"""
    path: str
    """Percent-decoded, without the query."""
    query: dict[str, str]
    """By name; of several values of one name, the last."""
    target: str
    """Path and query as they were sent."""
    headers: Headers
    """Header fields by name."""
    body: bytes = field(repr=False)
    """The whole body."""
    at: float
    """When the request had arrived in full, in seconds of `time.monotonic()`."""
    number: int
    """The number of the request among those to this path, from 1."""
    connection: int
    """The number of the connection to the server, from 1: equal numbers mean that a connection was reused."""
    status: int | str | None = None
    """The status of the answer, or `hang`, `reset before`, `reset mid-body`; None until that is decided."""

    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return json.loads(self.body)


class Message(NamedTuple):
    """A parsed request, before the server has counted it."""

    method: str
    path: str
    query: dict[str, str]
    target: str
    headers: Headers
    body: bytes
    keep_alive: bool


Parsing = Generator[Message | None, None, None]
Waiting = Generator[None, None, bytes]


class RequestParser:
    """Collects bytes and returns requests one by one, however the bytes were split."""

    def __init__(self) -> None:
        self.wants_continue = False
        """The client waits for `100 Continue` before it sends the body; cleared by the code that sends it."""
        self._buffer = bytearray()
        self._parsing = self._parse()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def pending(self) -> int:
        """The number of bytes that are not part of a returned request."""
        return len(self._buffer)

    def next(self) -> Message | None:
        """Return the next whole request, or None until more bytes are fed. BadRequest makes the parser unusable."""
        return next(self._parsing)

    def _parse(self) -> Parsing:
        while True:
            head = (yield from self._take_head()).decode("latin-1")
            if _FORBIDDEN.search(head):
                raise BadRequest("the head contains a control character or a bare line end")
            request_line, *lines = head.split("\r\n")
            method, target, minor = _split_request_line(request_line)
            fields = _read_fields(lines)
            path, query = _split_target(target)
            body = b""
            if "transfer-encoding" in fields or "content-length" in fields:
                self.wants_continue = fields.get("expect", "").lower() == "100-continue" and not self._buffer
                body = yield from self._take_body(fields)
                self.wants_continue = False
            options = fields.get("connection", "").lower()
            keep_alive = "close" not in options if minor == "1" else "keep-alive" in options
            yield Message(method, path, query, target, Headers(fields), body, keep_alive)

    def _take_head(self) -> Waiting:
        buffer = self._buffer
        searched = 0
        while True:
            while buffer.startswith(b"\r\n"):  # some clients end a body with an extra line
                del buffer[:2]
            end = buffer.find(b"\r\n\r\n", searched)
            if (len(buffer) if end < 0 else end) > MAX_HEAD:
                raise BadRequest(f"the head is longer than {MAX_HEAD} bytes")
            if end >= 0:
                return self._take(end, 4)
            _reject_early(buffer)
            searched = max(0, len(buffer) - 3)
            yield

    def _take_body(self, fields: dict[str, str]) -> Waiting:
        if "transfer-encoding" not in fields:
            return (yield from self._take_exactly(_parse_length(fields["content-length"])))
        if "content-length" in fields:
            raise BadRequest("both Content-Length and Transfer-Encoding are given")
        if fields["transfer-encoding"].lower() != "chunked":
            raise BadRequest("the only Transfer-Encoding understood is chunked")
        return (yield from self._take_chunks())

    def _take_chunks(self) -> Waiting:
        body = bytearray()
        while True:
            line = yield from self._take_line()
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise BadRequest("a chunk does not begin with its size")
            length = int(size[1], 16)
            if length == 0:
                break
            body += yield from self._take_exactly(length)
            if (yield from self._take_exactly(2)) != b"\r\n":
                raise BadRequest("a chunk is longer than its size")
        while (yield from self._take_line()):  # trailers are read and discarded
            pass
        return bytes(body)

    def _take_exactly(self, length: int) -> Waiting:
        while len(self._buffer) < length:
            yield
        return self._take(length, 0)

    def _take_line(self) -> Waiting:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BadRequest(f"a line of the body's framing is longer than {MAX_HEAD} bytes")
            yield
        return self._take(end, 2)

    def _take(self, length: int, separator: int) -> bytes:
        taken = bytes(self._buffer[:length])
        del self._buffer[: length + separator]
        return taken


def _reject_early(partial_head: bytearray) -> None:
    """Reject what can no longer become a request, rather than wait for an end that never comes."""
    request_line, line_end, _ = partial_head.partition(b"\n")
    if line_end:
        _split_request_line(request_line.removesuffix(b"\r").decode("latin-1"))
        if partial_head.count(b"\n") != partial_head.count(b"\r\n"):
            raise BadRequest("lines must end in CR LF")
    elif partial_head and partial_head != b"\r" and not _HEADER_NAME.match(chr(partial_head[0])):
        raise BadRequest("this is not HTTP")


def _split_request_line(line: str) -> tuple[str, str, str]:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise BadRequest("the first line is not METHOD TARGET HTTP/1.1")
    return match[1], match[2], match[3]


def _read_fields(lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise BadRequest("a header line is not NAME: VALUE")
        name, value = name.lower(), value.strip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _parse_length(content_length: str) -> int:
    if not _LENGTH.fullmatch(content_length):
        raise BadRequest("Content-Length is not one whole number")
    return int(content_length)


def _split_target(target: str) -> tuple[str, dict[str, str]]:
    if target[0] == "/":
        path, _, query = target.partition("?")
    elif target.lower().startswith("http://"):  # the form of a request to a proxy
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise BadRequest(f"the target is not a URL: {error}") from None
        path, query = parts.path or "/", parts.query
    elif target == "*":
        return target, {}
    else:
        raise BadRequest("the target does not begin with /")
    return unquote(path), dict(parse_qsl(query, keep_blank_values=True)) if query else {}
