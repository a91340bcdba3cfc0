"""Reading an HTTP response of any library: its status, its headers, and its body if that is in memory already."""

from __future__ import annotations

from typing import Any, NamedTuple

from redrive.classify.type_names import type_names

_RESPONSE_TYPES: frozenset[str] = frozenset(
    {
        "aiohttp.ClientResponse",
        "botocore.AWSResponse",
        "http.HTTPResponse",
        "httpx.Response",
        "httpx2.Response",
        "niquests.Response",
        "requests.Response",
        "urllib.addinfourl",
        "urllib3.BaseHTTPResponse",
        "urllib3.HTTPResponse",
    }
)

# Where the libraries keep a body they have read; `False` or `None` while they have not.
_BODY_ATTRIBUTES = ("_content", "_body")

_BODY_LIMIT = 1_000_000


class Answer(NamedTuple):
    """What a server answered, as far as it is known without reading from the network."""

    status: int
    headers: object = None
    body: str | None = None


def is_response(value: object) -> bool:
    """Return whether a value is a response: of a library redrive knows, or by its shape, see `status_of`."""
    if is_response_type(type(value)):
        return True
    return not isinstance(value, BaseException | dict) and status_of(value) is not None


def has_status(value: object) -> bool:
    """Return whether a value has an attribute for a status, whatever it holds now."""
    try:
        return hasattr(value, "status_code") or hasattr(value, "status")
    except Exception:
        # A property that raises is an attribute all the same.
        return True


def is_response_type(cls: type) -> bool:
    """Return whether instances of the class are responses of a library redrive knows."""
    return not issubclass(cls, BaseException) and not _RESPONSE_TYPES.isdisjoint(type_names(cls))


def response_status(value: object) -> int | None:
    """Return the HTTP status of a response of any library; None for anything else."""
    return None if isinstance(value, BaseException) else status_of(value)


def read_response(value: object) -> Answer | None:
    """Return the content of a response. Nothing is read from the network and no stream is consumed."""
    status = response_status(value)
    if status is None:
        return None
    return Answer(status, attribute(value, "headers"), body_in_memory(value))


def status_of(value: object) -> int | None:
    """Return an integer `status_code`, or an integer `status` of a value that has headers."""
    status = attribute(value, "status_code")
    if not _is_status(status):
        status = attribute(value, "status")
        if not _is_status(status) or attribute(value, "headers") is None:
            return None
    return int(status)


def header(headers: object, name: str) -> str | None:
    """Return the first value of a header, whatever the case of its name and the kind of mapping."""
    items = attribute(headers, "items")
    try:
        pairs: Any = items() if callable(items) else headers
        for key, value in pairs:
            if _text(key).lower() == name:
                return _text(value)
    except Exception:
        # Headers are foreign objects; those that cannot be iterated are treated as empty.
        return None
    return None


def headers_of(error: object) -> object:
    """Return the headers that an exception keeps of its response: its own, or those of its `meta`."""
    for holder, name in ((error, "headers"), (error, "resp_headers"), (attribute(error, "meta"), "headers")):
        if (headers := attribute(holder, name)) is not None:
            return headers
    return None


def body_in_memory(value: object) -> str | None:
    """Return the body as text, if the library holds it already."""
    for name in _BODY_ATTRIBUTES:
        body = attribute(value, name)
        if isinstance(body, str | bytes | bytearray):
            return _text(body[:_BODY_LIMIT])
    return None


def attribute(value: object, name: str) -> Any:
    """Return an attribute, or None: foreign objects may raise any exception on access."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 999


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)
