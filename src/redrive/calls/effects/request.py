"""What is known of a request of any HTTP client: its method, its idempotency key, its redirects and its body.

The body is read without consuming it: for dead letters and derived keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from redrive.classify.responses import attribute, header, is_response_type, response_status
from redrive.classify.type_names import libraries

_CARRIED = "_redrive_in_flight"
# Redirects that turn a POST into a GET: the server may have acted. With 307 and 308 it asks for the same once more.
_ANSWERED_ELSEWHERE = frozenset({300, 301, 302, 303})


class SentRequest(NamedTuple):
    """A request that may have reached the server."""

    response: Any
    """The response; None while there is none."""
    request: Any


class KnownRequest(NamedTuple):
    """What is kept of a request that was in flight when its attempt ended."""

    method: str
    headers: dict[str, str]


def carry(error: BaseException, requests: Iterable[KnownRequest]) -> None:
    """Attach requests in flight to an error whose frames do not show them."""
    if known_requests := (*carried(error), *requests):
        with suppress(Exception):  # a foreign class may take no attributes
            setattr(error, _CARRIED, known_requests)


def carried(error: BaseException) -> tuple[KnownRequest, ...]:
    """Return the requests that were attached to an error."""
    # Not by attribute(): an error may return something for every name.
    return vars(error).get(_CARRIED, ()) if hasattr(error, "__dict__") else ()


def attached(holder: Any) -> Any:
    """Return the request that httpx and requests attach to errors and responses, or the request info of aiohttp."""
    for owner in (holder, attribute(holder, "response")):
        for name in ("request", "request_info"):
            request = attribute(owner, name)  # httpx's property raises while unset
            if isinstance(attribute(request, "method"), str):
                return request
    if "urllib3" in libraries(type(holder)) and is_response_type(type(holder)):
        return _by_method(attribute(holder, "_original_response"))
    return None


def answered(response: Any) -> Any:
    """Return the request of a response; also of http.client, by which other clients read their responses."""
    return attached(response) or _by_method(response)


def _by_method(response: Any) -> KnownRequest | None:
    """Return the request of a response of http.client, which has its method only: a key is not seen here."""
    method = attribute(response, "_method")
    return KnownRequest(method, {}) if isinstance(method, str) else None


def idempotency_key(request: Any) -> str | None:
    """Return the key of a request; an empty one counts as none."""
    return key_in(attribute(request, "headers"))


def key_in(headers: Any) -> str | None:
    """Return the idempotency key in headers; an empty one counts as none."""
    return (header(headers, "idempotency-key") or "").strip() or None


def redirected(holder: Any) -> Iterator[SentRequest]:
    """Yield the requests that a redirect answered before the request of this error or response."""
    for owner in (holder, attribute(holder, "response")):
        yield from redirects_in(attribute(owner, "history"))


def redirects_in(responses: Any) -> Iterator[SentRequest]:
    """Yield the redirects among responses after which the server may have acted, with their requests."""
    for response in responses if isinstance(responses, list | tuple) else ():
        if not is_response_type(type(response)) or response_status(response) not in _ANSWERED_ELSEWHERE:
            continue
        if (request := attached(response)) is not None:
            yield SentRequest(response, request)


def known(request: Any) -> KnownRequest:
    """Return what is kept of a request."""
    key = idempotency_key(request)
    return KnownRequest(request.method, {"Idempotency-Key": key} if key else {})


# ── its body ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MOST_BYTES = 16 << 20
"""Of a file, or of a form with files, more is not read into memory. What is in memory anyway has no limit."""

_START = "redrive.body_start"

FIXED_BOUNDARY = b"redrive-7d1f2c0a9be84c6d"
"""The boundary of a multipart body in the record of a dead letter."""
_BOUNDARY = re.compile(r"multipart/[^;]{1,100};.{0,200}?\bboundary=\"?([^\";,\s]{1,200})", re.IGNORECASE)


class BodyMissing(Exception):
    """The body of a request cannot be read: it is sent as it comes, or it is too large."""


def body_of(request: Any) -> bytes | None:
    """Return the body of a request, also after it was sent; None for a request without one.

    A file is read from where its sending begins, and left at the position where it is.

    Raises:
        BodyMissing: with the reason.
    """
    body, start = _source(request)
    if isinstance(body, bytes | None):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):  # of requests
        return bytes(body)
    if isinstance(body, list | tuple):
        return b"".join(body)
    try:
        return _read(request, body, start)
    except BodyMissing:
        raise
    except Exception as error:  # of a closed file, or of an object of the caller's
        raise BodyMissing(f"the body cannot be read ({type(error).__name__})") from error


def content_of(request: Any) -> bytes | None:
    """Return what distinguishes the body of a request from others; None where that is not known.

    The boundary of a multipart body is random, and another one in the next attempt.
    """
    try:
        body = body_of(request) or b""
    except BodyMissing:
        return None
    boundary = _boundary(request)
    return body if boundary is None else body.replace(boundary, b"")


def with_fixed_boundary(request: Any, body: bytes) -> tuple[bytes, str | None]:
    """Return a body and its content type with the same boundary each time: that of a multipart body is random."""
    content_type, boundary = _header(request, "content-type") or None, _boundary(request)
    if boundary is None or content_type is None or FIXED_BOUNDARY in body:
        return body, content_type
    return body.replace(boundary, FIXED_BOUNDARY), content_type.replace(boundary.decode(), FIXED_BOUNDARY.decode())


def _boundary(request: Any) -> bytes | None:
    found = _BOUNDARY.match(_header(request, "content-type"))
    return None if found is None else found[1].encode()


def _source(request: Any) -> tuple[Any, int | None]:
    """Return what a body is sent from, and where in a file its sending begins."""
    stream = attribute(request, "stream")
    if stream is None:  # requests, which notes where the reading of a file has begun
        return attribute(request, "body"), attribute(request, "_body_position")
    kind = type(stream).__name__
    if kind == "ByteStream":
        return b"".join(stream), None
    if kind != "IteratorByteStream":
        return stream, None
    start = (attribute(request, "extensions") or {}).get(_START)
    return attribute(stream, "_stream"), start if isinstance(start, int) else 0


def note_start(request: Any) -> None:
    """Note on a request of httpx at which position of a file its body begins; before it is sent.

    A redirect has the extensions, and the file, of the request that it follows.
    """
    file = _file_of(request)
    if file is not None and (attribute(request.stream, "_is_stream_consumed") is not True):
        with suppress(Exception):  # a pipe has no position
            request.extensions[_START] = int(file.tell())


def rewind(request: Any) -> None:
    """Seek the file that is the body of a request of httpx to where its body begins."""
    file, start = _file_of(request), request.extensions.get(_START)
    if file is not None and start is not None and file.tell() != start:
        file.seek(start)


def can_rewind(request: Any) -> bool:
    """Return whether the body of a request of httpx is a file that can be sent again."""
    file = _file_of(request)
    return file is not None and _START in request.extensions and _is_seekable(file)


def _file_of(request: Any) -> Any:
    stream = attribute(request, "stream")
    if type(stream).__name__ != "IteratorByteStream":
        return None
    file = attribute(stream, "_stream")
    return file if callable(attribute(file, "read")) else None


def _read(request: Any, body: Any, start: int | None) -> bytes:
    """Read a file, or a form with files."""
    form = type(body).__name__ == "MultipartStream"
    files = [attribute(field, "file") for field in body.fields] if form else [body]
    files = [file for file in files if not isinstance(file, str | bytes | None)]
    if not (form or isinstance(start, int)) or not all(map(_is_seekable, files)):
        raise BodyMissing("the body was a stream that can be read only once")
    length = _header(request, "content-length")
    if not (length.isascii() and length.isdigit()):
        raise BodyMissing("the length of the body is not known")
    if int(length) > MOST_BYTES:
        raise BodyMissing(f"the body is larger than {MOST_BYTES >> 20} MiB")
    positions = [file.tell() for file in files]
    try:
        content = b"".join(body) if form else _read_file(body, start, int(length) + 1)
    finally:
        for file, position in zip(files, positions, strict=True):
            file.seek(position)
    if len(content) != int(length):
        raise BodyMissing("the file has changed since it was sent")
    return content


def _read_file(file: Any, start: int | None, most: int) -> bytes:
    file.seek(start)
    content = file.read(most)
    return content.encode() if isinstance(content, str) else bytes(content)


def _is_seekable(file: Any) -> bool:
    seekable: Callable[[], bool] | None = attribute(file, "seekable")
    return callable(seekable) and seekable() is True


def _header(request: Any, name: str) -> str:
    return str((attribute(request, "headers") or {}).get(name) or "")
