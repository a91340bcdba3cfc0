"""What HTTP says about repeating a request: whether it may have had its effect, whether its body can be sent again."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redrive.calls.in_flight import Known, idempotency_key, key_in, known
from redrive.calls.routes import route, shown_path
from redrive.calls.sent import sent_requests
from redrive.calls.target import Target
from redrive.classify.read import http_answer
from redrive.classify.retry_after import retry_after
from redrive.masking import mask
from redrive.model import Verdict
from redrive.policy import checks

if TYPE_CHECKING:
    from redrive.calls.runner import Runner

# By RFC 9110 and IANA's registry of methods, repeating these has the effect of sending them once.
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"}
IDEMPOTENT_METHODS = frozenset({*_SAFE_METHODS, "PUT", "DELETE"})

# Answers by which the server says that it did not act on the request.
REFUSALS = frozenset({401, 403, 408, 425, 429})

KEY_SENT = "redrive.key_sent"
KEY = "redrive.key"
"""Where an adapter notes the key of the request that a redirect comes from."""
_REDIRECTED = "redrive.redirected"
# Redirects by which the server asks for the same request at another address.
_SAME_REQUEST = frozenset({307, 308})

_FILLED = (("credential", 1), ("timeout", 1))
_FILLED_WITH_KEY = (*_FILLED, ("idempotency_key", 1))


def http_target(method: str, url: str, body: object, *, keyed: bool) -> Target:
    """What an HTTP adapter's own sending function is to the service; it takes one argument, the request."""
    parts = urlsplit(url)
    path = mask(parts.path)  # webhooks and bots have their secret there
    return Target(
        f"{method} {route(path)}",
        _FILLED_WITH_KEY if keyed else _FILLED,
        request=f"{method} {shown_path(path)}",
        returns_responses=True,
        content=_content(method, url, body) if keyed else None,
        limits_itself=True,
        server=parts.netloc.rpartition("@")[2] or None,  # without the user and password of a URL
    )


def put_key(headers: Any, key: str) -> None:
    """Send this key, unless the caller's own headers have one: an empty one protects nothing."""
    if key_in(headers) is None:
        headers["Idempotency-Key"] = key


def note_redirect(notes: Any, request: Any, status: int, outgoing: Any) -> None:
    """Note the key of a request that the server asks to have elsewhere: what follows is the same logical call."""
    if status in _SAME_REQUEST and (key := idempotency_key(outgoing)) is not None:
        notes[_REDIRECTED] = request.method, str(request.url), key


def begin_key(notes: Any, request: Any) -> None:
    """Take over the key of the request that this one follows; one that is sent to the same address is another call."""
    method, url, key = notes.pop(_REDIRECTED, None) or (None, None, None)
    notes[KEY] = key if method == request.method and url != str(request.url) else None


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
    """Why the requests behind an error or response must not be sent again; None where they may, or there are none.

    `sender` is the service that would repeat them: a key that another one has made would not be the same next time.
    """
    for holder, request in sent_requests(failure):
        # A function that raises an error of its own makes the body anew; an adapter would send this very one.
        if holder is failure and not _replayable(request):
            return "the request's body was a stream that cannot be sent again; pass bytes instead"
        if idempotent or request.method.upper() in IDEMPOTENT_METHODS or _has_key(request, sender):
            continue
        if _says_not_done(holder, verdict if holder is failure else None):
            continue
        return (
            f"a {request.method.upper()} without an Idempotency-Key is not repeated once it may have reached the "
            'server; send one (Service(idempotent="key")) or declare the service idempotent'
        )
    return None


def effects_of(error: BaseException) -> list[Known]:
    """The requests behind an error on which the server may have acted."""
    return [known(request) for holder, request in sent_requests(error) if not _says_not_done(holder, None)]


def _says_not_done(holder: Any, verdict: Verdict | None) -> bool:
    """Whether the server's answer says that it did not act on the request."""
    if verdict is not None:
        status, wait = verdict.status, verdict.retry_after
    elif (answer := http_answer(holder)) is not None:
        status, wait = answer.status, retry_after(answer.headers, datetime.now(UTC))
    else:
        return False
    return status in REFUSALS or (status == 503 and wait is not None)


def _has_key(request: Any, sender: object) -> bool:
    # The adapters send their key on a copy of the request, and leave a note on the request itself.
    for notes in (getattr(request, "extensions", None), getattr(request, "hooks", None)):
        if isinstance(notes, dict) and notes.get(KEY_SENT) is sender:
            return True
    return idempotency_key(request) is not None


def _replayable(request: Any) -> bool:
    if hasattr(request, "stream"):
        # httpx: bytes in memory, or a multipart form of seekable files, whose length is known.
        kind = type(request.stream).__name__
        return kind == "ByteStream" or (kind == "MultipartStream" and "content-length" in request.headers)
    # requests: bytes in memory, or a file, of which it notes where its reading began.
    body = getattr(request, "body", None)
    return body is None or isinstance(body, bytes | str) or isinstance(getattr(request, "_body_position", None), int)
