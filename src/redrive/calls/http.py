"""What HTTP says about repeating a request: whether it may have had its effect, whether its body can be sent again."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redrive.calls.routes import route
from redrive.calls.target import Target
from redrive.classify.look_through import look_through
from redrive.classify.names import type_names
from redrive.classify.responses import attribute
from redrive.masking import mask
from redrive.model import Verdict
from redrive.policy import checks

if TYPE_CHECKING:
    from redrive.calls.runner import Runner

# By RFC 9110, repeating these has the effect of sending them once.
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

# Answers by which the server says that it did not act on the request.
REFUSALS = frozenset({401, 403, 408, 425, 429})

KEY_SENT = "redrive.key_sent"

# Errors of the connect phase: the request provably never left.
NEVER_LEFT = frozenset(
    {
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx2.ConnectError",
        "httpx2.ConnectTimeout",
        "httpx2.PoolTimeout",
        "httpx2.UnsupportedProtocol",
        "niquests.ConnectTimeout",
        "requests.ConnectTimeout",
        "urllib3.ConnectTimeoutError",
        "urllib3.NameResolutionError",
        "urllib3.NewConnectionError",
        "aiohttp.ClientConnectorError",
        "aiohttp.ConnectionTimeoutError",
        "ConnectionRefusedError",
        "socket.gaierror",
    }
)


def http_target(method: str, url: str, body: object, *, keyed: bool) -> Target:
    """What an HTTP adapter's own sending function is to the service; it takes one argument, the request."""
    filled = ("credential", "timeout", "idempotency_key") if keyed else ("credential", "timeout")
    return Target(
        f"{method} {route(mask(urlsplit(url).path))}",  # webhooks and bots have their secret in the path
        tuple((name, 1) for name in filled),
        returns_responses=True,
        content=_content(method, url, body) if keyed else None,
        limits_itself=True,
    )


def too_slow(timeout: float) -> str:
    """Say that an attempt did not end in time."""
    return f"no complete answer within the {timeout:g} s of one attempt"


def shorter(given: float | None, limit: float | None) -> float | None:
    """Return the shorter of two limits, of which any may be None, for none."""
    return min((one for one in (given, limit) if one is not None), default=None)


def warn_of_retries(runner: Runner, retries: object, instead: str) -> None:
    """Warn where what sends a request repeats it, too: the attempts of both multiply."""
    made = runner.core.retry.attempts
    if isinstance(retries, int) and retries > 0 and made > 1:
        checks.warn(
            f"service {runner.core.name!r}: up to {retries} retries below each of {made} attempts multiply to "
            f"{made * (retries + 1)} requests; pass {instead}"
        )


def _content(method: str, url: str, body: object) -> str | None:
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes | None):
        return None
    return f"{method} {url} {sha256(body or b'').hexdigest()}"


def why_not_again(failure: Any, verdict: Verdict, *, sender: object, idempotent: bool) -> str | None:
    """Why the request behind an error or response must not be sent again; None where it may, or there is none.

    `sender` is the service that would repeat it: a key that another one has made would not be the same next time.
    """
    request = _request_of(failure)
    if request is None or _never_left(failure):
        return None
    if not _replayable(request):
        return "the request's body was a stream that cannot be sent again; pass bytes instead"
    if idempotent or request.method.upper() in IDEMPOTENT_METHODS or _has_key(request, sender):
        return None
    if verdict.status in REFUSALS or (verdict.status == 503 and verdict.retry_after is not None):
        return None
    return (
        f"a {request.method.upper()} without an Idempotency-Key is not repeated once it may have reached the server; "
        'send one (Service(idempotent="key")) or declare the service idempotent'
    )


def _request_of(failure: Any) -> Any:
    """The request with its method, as httpx and requests attach it to errors and responses; aiohttp's info likewise."""
    for holder in (failure, attribute(failure, "response")):
        for name in ("request", "request_info"):
            request = attribute(holder, name)  # httpx's property refuses to answer while unset
            if isinstance(attribute(request, "method"), str):
                return request
    return None


def _has_key(request: Any, sender: object) -> bool:
    # The adapters send their key on a copy of the request, and leave a note on the request itself.
    for notes in (getattr(request, "extensions", None), getattr(request, "hooks", None)):
        if isinstance(notes, dict) and notes.get(KEY_SENT) is sender:
            return True
    return any(str(name).lower() == "idempotency-key" for name in getattr(request, "headers", None) or ())


def _never_left(failure: Any) -> bool:
    if not isinstance(failure, BaseException):
        return False
    return any(not NEVER_LEFT.isdisjoint(type_names(type(inner))) for inner in look_through(failure))


def _replayable(request: Any) -> bool:
    if hasattr(request, "stream"):
        # httpx: bytes in memory, or a multipart form of seekable files, whose length is known.
        kind = type(request.stream).__name__
        return kind == "ByteStream" or (kind == "MultipartStream" and "content-length" in request.headers)
    # requests: bytes in memory, or a file, of which it notes where its reading began.
    body = getattr(request, "body", None)
    return body is None or isinstance(body, bytes | str) or isinstance(getattr(request, "_body_position", None), int)
