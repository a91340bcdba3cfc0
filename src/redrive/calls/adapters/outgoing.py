"""What both HTTP adapters put on a request: the credential, the idempotency key, the limits of time."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from redrive._internal.masking import mask
from redrive.calls.context import current
from redrive.calls.effects.idempotency import IDEMPOTENT_METHODS, KEY_SENT
from redrive.calls.effects.request import content_of, idempotency_key, key_in
from redrive.calls.function import CalledFunction, route, shown_path
from redrive.policy import option_checks

if TYPE_CHECKING:
    from redrive.calls.fast_path import ServiceRunner

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, urlencode, urlsplit

from redrive._internal.masking import MASK, last_four
from redrive.classify.responses import header
from redrive.classify.unwrap import unwrap_chain

_PORTS = {"http": 80, "https": 443}
_SENDABLE = re.compile(r"[\x20-\x7e]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class Apply:
    """Where the credential is sent: a header, with a prefix before the key, or a query parameter."""

    header: str | None = None
    prefix: str = ""
    query: str | None = None

    @classmethod
    def parse(cls, text: object) -> Apply:
        """Parse "bearer", a header's name, or "query:NAME"."""
        if not isinstance(text, str):
            raise TypeError(f'apply must be "bearer", a header\'s name or "query:NAME", not {text!r}')
        if text.lower() == "bearer":
            return cls(header="Authorization", prefix="Bearer ")
        kind, colon, name = text.partition(":")
        if colon and kind == "query" and name:
            return cls(query=name)
        if not _HEADER_NAME.fullmatch(text):
            raise ValueError(f'apply must be "bearer", a header\'s name or "query:NAME", not {text!r}')
        return cls(header=text)

    def headers(self, credential: str) -> dict[str, str]:
        """Return the header to send."""
        if self.header is None:
            return {}
        if not _SENDABLE.fullmatch(credential):
            # The library would reject it, too, with an error that shows all of it.
            raise ValueError(
                f"the credential …{last_four(credential)} cannot be sent in the header {self.header}: it has a "
                "character that is not printable ASCII, such as a dash that was copied from a document. Check "
                "the key"
            )
        return {self.header: self.prefix + credential}

    def with_query(self, query: str, credential: str) -> str:
        """Return the query to send; what the caller wrote stays unchanged."""
        if self.query is None:
            return query
        return "&".join(filter(None, [query, urlencode({self.query: credential})]))

    def remove_from_redirect(self, response: Any, credential: str | None) -> None:
        """Remove the credential from the address of a redirect that keeps the query.

        The client would log and show it, and send it to the target of the redirect. Where it may be sent, it is added
        again.
        """
        if self.query is None or credential is None or (location := header(response.headers, "location")) is None:
            return
        address, sharp, fragment = location.partition("#")
        path, _, query = address.partition("?")
        pair = [(self.query, credential)]
        kept = "&".join(part for part in query.split("&") if parse_qsl(part, keep_blank_values=True) != pair)
        if kept != query:
            response.headers["Location"] = path + ("?" + kept if kept else "") + sharp + fragment


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a URL: scheme, host and port."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> Origin:
        """Return the origin of a URL, with the port that its scheme implies."""
        parts = urlsplit(url)
        return cls(parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme))

    def trusts(self, other: Origin) -> bool:
        """Return whether a credential of this origin may be sent to another: the same, or the same host by https."""
        upgraded = (self.scheme, self.port, other.scheme, other.port) == ("http", 80, "https", 443)
        return self == other or (self.host == other.host and upgraded)


def scrub(error: Exception, secret: str | None) -> None:
    """Remove the secret from the texts of an error and of those it wraps: libraries put whole URLs there."""
    if secret is None:
        return
    forms = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
    for inner in unwrap_chain(error):
        if any(isinstance(part, str) and form in part for part in inner.args for form in forms):
            inner.args = tuple(_without(part, forms) for part in inner.args)


def _without(part: object, forms: set[str]) -> object:
    if isinstance(part, str):
        for form in sorted(forms, key=len, reverse=True):
            part = part.replace(form, MASK)
    return part


# ── the request as the service sees it, its key and its limits ────────────────────────────────────────────────────────

KEY = "redrive.key"
"""Where an adapter notes the key of the request that a redirect comes from."""
_REDIRECTED = "redrive.redirected"
# Redirects by which the server asks for the same request at another address.
_SAME_REQUEST = frozenset({307, 308})

_FILLED = (("credential", 1), ("timeout", 1))
_FILLED_WITH_KEY = (*_FILLED, ("idempotency_key", 1))


def http_target(request: Any, *, keyed: bool) -> CalledFunction:
    """Return what the service knows of an adapter's own sending function; its one argument is the request."""
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
    """Set this key, unless the caller's own headers have one; an empty one protects nothing."""
    if key_in(headers) is None:
        headers["Idempotency-Key"] = key


def note_sent(notes: Any, request: Any, outgoing: Any) -> None:
    """Note the key that a request is sent with, unless it is the caller's own; before it is sent."""
    key, attempt = idempotency_key(outgoing), current()
    if key is None or key == idempotency_key(request):
        return
    if request.method.upper() in IDEMPOTENT_METHODS:
        if attempt is not None and attempt.keys is not None:
            attempt.keys.note_idempotent(key)
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
    """Note the key of a request that the server redirects: the request that follows is the same logical call."""
    if status in _SAME_REQUEST and (key := idempotency_key(outgoing)) is not None:
        notes[_REDIRECTED] = request.method, str(request.url), key


def begin_key(notes: Any, request: Any) -> None:
    """Take over the key of the redirected request; a request to the same address is another call."""
    method, url, key = notes.pop(_REDIRECTED, None) or (None, None, None)
    notes[KEY] = key if method == request.method and url != str(request.url) else None


def too_slow(timeout: float) -> str:
    """Return the message of an attempt that did not end in time."""
    return f"no complete answer within the {timeout:g} s of one attempt"


def shorter(given: float | None, limit: float | None) -> float | None:
    """Return the shorter of two limits; None is no limit."""
    return min((seconds for seconds in (given, limit) if seconds is not None), default=None)


def warn_of_retries(runner: ServiceRunner, retries: object, instead: str) -> None:
    """Warn where the client below retries, too: the attempts of both multiply."""
    made = runner.core.retry.attempts
    if isinstance(retries, int) and retries > 0 and made > 1:
        option_checks.warn(
            f"service {runner.core.name!r}: up to {retries} retries below each of {made} attempts multiply to "
            f"{made * (retries + 1)} requests; pass {instead}"
        )


def _content(request: Any, method: str, url: str) -> str | None:
    content = content_of(request)
    return None if content is None else f"{method} {url} {sha256(content).hexdigest()}"
