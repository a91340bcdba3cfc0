"""What HTTP says about repeating a request: whether it may have had its effect, whether its body can be sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redrive._internal.masking import mask
from redrive.calls.context import current
from redrive.calls.effects.beyond_http import EFFECTS
from redrive.calls.effects.idempotency_keys import SentKeys
from redrive.calls.effects.in_flight import KnownRequest, carry, idempotency_key, key_in, known
from redrive.calls.effects.request_body import can_rewind, content_of
from redrive.calls.effects.sent import never_left, sent_requests
from redrive.calls.endpoints import route, shown_path
from redrive.calls.function import CalledFunction
from redrive.classify.error_codes import http_answer
from redrive.classify.responses import response_status, retry_after
from redrive.model.calls import Verdict
from redrive.policy import option_checks

if TYPE_CHECKING:
    from redrive.calls.fast_path import ServiceRunner

# By RFC 9110 and IANA's registry of methods, repeating these has the effect of sending them once.
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"}
IDEMPOTENT_METHODS = frozenset({*_SAFE_METHODS, "PUT", "DELETE"})

# Answers by which the server says that it did not act on the request.
REFUSALS = frozenset({401, 403, 408, 425, 429})

BODY_GONE = "the request's body was a stream that cannot be sent again; pass bytes or a seekable file"
KEY_SENT = "redrive.key_sent"
KEY = "redrive.key"
"""Where an adapter notes the key of the request that a redirect comes from."""
_REDIRECTED = "redrive.redirected"
# Redirects by which the server asks for the same request at another address.
_SAME_REQUEST = frozenset({307, 308})

_FILLED = (("credential", 1), ("timeout", 1))
_FILLED_WITH_KEY = (*_FILLED, ("idempotency_key", 1))


def http_target(request: Any, *, keyed: bool) -> CalledFunction:
    """What an HTTP adapter's own sending function is to the service; it takes one argument, the request."""
    method, url = request.method or "", str(request.url or "")
    parts = urlsplit(url)
    path = mask(parts.path)  # webhooks and bots have their secret there
    return CalledFunction(
        f"{method} {route(path)}",
        _FILLED_WITH_KEY if keyed else _FILLED,
        request=f"{method} {shown_path(path)}",
        returns_responses=True,
        # Only a key that is derived inside of an attempt is made of the content.
        content=_content(request, method, url) if keyed and current() is not None else None,
        limits_itself=True,
        server=parts.netloc.rpartition("@")[2] or None,  # without the user and password of a URL
    )


def put_key(headers: Any, key: str) -> None:
    """Send this key, unless the caller's own headers have one: an empty one protects nothing."""
    if key_in(headers) is None:
        headers["Idempotency-Key"] = key


def note_sent(notes: Any, request: Any, outgoing: Any) -> None:
    """Note the key that a request is sent with, unless it is the caller's own; before it is sent."""
    key, attempt = idempotency_key(outgoing), current()
    if key is None or key == idempotency_key(request):
        return
    if request.method.upper() in IDEMPOTENT_METHODS:
        if attempt is not None and attempt.keys is not None:
            attempt.keys.pass_by(key)
        return
    if attempt is not None:
        attempt.send(key, f"the {request.method.upper()}")
    notes[KEY_SENT] = key


def note_unprotected(request: Any) -> None:
    """Note that a request is sent without a key, since none can be derived from its body; before it is sent."""
    attempt = current()
    if request.method.upper() in IDEMPOTENT_METHODS or idempotency_key(request) is not None or attempt is None:
        return
    attempt.send_unprotected()


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


def warn_of_retries(runner: ServiceRunner, retries: object, instead: str) -> None:
    """Warn where what sends a request repeats it, too: the attempts of both multiply."""
    made = runner.core.retry.attempts
    if isinstance(retries, int) and retries > 0 and made > 1:
        option_checks.warn(
            f"service {runner.core.name!r}: up to {retries} retries below each of {made} attempts multiply to "
            f"{made * (retries + 1)} requests; pass {instead}"
        )


def _content(request: Any, method: str, url: str) -> str | None:
    content = content_of(request)
    return None if content is None else f"{method} {url} {sha256(content).hexdigest()}"


def why_not_again(
    failure: Any,
    verdict: Verdict,
    *,
    keys: SentKeys | None,
    idempotent: bool,
    since: int = -1,
    beside: Callable[[], Iterable[Any]] = tuple,
) -> str | None:
    """Why the requests behind an error or response must not be sent again; None where they may, or there are none.

    `keys` are those of the call that would repeat them: a key that another one has made is not the same next time.
    `beside` finds requests that continue although the attempt has failed.
    `since` is the instruction at which a block of `attempts()` began.
    """
    for holder, request in sent_requests(failure, since):
        # A function that raises an error of its own makes the body anew; an adapter would send this very one.
        if holder is failure and not _replayable(request):
            return BODY_GONE
        if idempotent or request.method.upper() in IDEMPOTENT_METHODS or _has_key(request, keys):
            continue
        if _says_not_done(holder, verdict if holder is failure else None):
            continue
        return _without_key(request)
    for request in beside() if not idempotent else ():
        if request.method.upper() not in IDEMPOTENT_METHODS and not _has_key(request, keys):
            return _without_key(request)
    return None if keys is None else keys.why_not_again()


def _without_key(request: Any) -> str:
    if request.method in EFFECTS:
        return (
            f"a {request.method} is not retried once it may have taken effect; declare the service idempotent if "
            "a second one does no harm"
        )
    return (
        f"a {request.method.upper()} without an Idempotency-Key is not repeated once it may have reached the "
        'server; send one (Service(idempotent="key")) or declare the service idempotent'
    )


def disown(error: BaseException, key: str, keys: SentKeys | None) -> None:
    """Note on the error of a call that its requests are unprotected outside of it: its keys were made for it alone."""
    sent = [(request, idempotency_key(request)) for request in effects_of(error)]
    carry(
        error,
        [KnownRequest(request.method, {}) for request, own in sent if own == key or (keys and keys.protects(own))],
    )


def has_acted(ended: Any) -> bool | None:
    """Whether the server has acted on what ended in this error, response or value; None where that is not known."""
    if not isinstance(ended, BaseException):
        status = response_status(ended) or 0
        return None if status >= 500 and not _says_not_done(ended, None) else status not in REFUSALS and status < 500
    answer = http_answer(ended)
    if _says_not_done(ended, None) or (never_left(ended) and not effects_of(ended)):
        return False
    return True if answer is not None and answer.status < 500 else None


def effects_of(error: BaseException) -> list[KnownRequest]:
    """The requests behind an error on which the server may have acted."""
    return [known(request) for holder, request in sent_requests(error) if not _says_not_done(holder, None)]


def _says_not_done(holder: Any, verdict: Verdict | None) -> bool:
    """Whether the server says that it did not act on the request: by its answer, not by what a rule makes of it."""
    answer = http_answer(holder)
    if answer is None:
        return verdict is not None and verdict.status in REFUSALS
    if answer.status == 503:
        return retry_after(answer.headers, datetime.now(UTC)) is not None
    return answer.status in REFUSALS


def _has_key(request: Any, keys: SentKeys | None) -> bool:
    # The adapters send their key on a copy of the request, and leave a note on the request itself.
    for notes in (getattr(request, "extensions", None), getattr(request, "hooks", None)):
        if keys is not None and isinstance(notes, dict) and keys.protects(notes.get(KEY_SENT)):
            return True
    return idempotency_key(request) is not None


def _replayable(request: Any) -> bool:
    if hasattr(request, "stream"):
        # httpx: bytes in memory, a multipart form of seekable files, whose length is known, or a seekable file.
        kind = type(request.stream).__name__
        is_form = kind == "MultipartStream" and "content-length" in request.headers
        return kind == "ByteStream" or is_form or can_rewind(request)
    # requests: bytes in memory, or a file, of which it notes where its reading began.
    body = getattr(request, "body", None)
    in_memory = isinstance(body, bytes | str | bytearray | memoryview | None)
    return in_memory or isinstance(getattr(request, "_body_position", None), int)
