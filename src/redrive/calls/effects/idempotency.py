"""Whether requests of a failed attempt may be sent again: by their methods, their keys, and the server's answer.

A derived key protects a request only if the next attempt sends it with the same key. What is sent with another key, or
an equal request that is meant as a second one, is rejected before it is sent, or the call is not retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from redrive.calls.effects.beyond_http import EFFECTS
from redrive.calls.effects.request import (
    KnownRequest,
    can_rewind,
    carry,
    idempotency_key,
    known,
)
from redrive.calls.effects.sent import never_left, sent_requests
from redrive.classify.error_codes import http_answer
from redrive.classify.responses import response_status, retry_after
from redrive.errors import Permanent
from redrive.model.calls import Verdict

EQUAL_REQUESTS = (
    "equal requests were sent in one attempt, and it is not known whether another attempt would start over or "
    "continue; send each with an Idempotency-Key of your own"
)
NO_KEY = (
    "a request was sent without an Idempotency-Key, since its body cannot be read in advance, and another attempt may "
    "send it again; pass bytes, or an Idempotency-Key of your own"
)


class SentKeys:
    """Shared by all attempts of a call. Tracks derived keys of requests that are not idempotent."""

    def __init__(self) -> None:
        self.equal = False
        """Whether one attempt has sent equal requests, with a key each."""
        self._requests: dict[str, int] = {}  # derived key → hash of what it was derived from
        self._sent: set[str] = set()
        self._unknown: set[str] = set()  # sent, and neither answered nor rejected
        self._answered: set[str] = set()
        self._first: set[str] = set()  # what the first attempt began with: several keys where requests overlap
        self._begins = True
        self._numbers = count(1)
        self._unprotected: set[str] = set()  # requests without a key on which the server may have acted
        self._follows: set[str] = set()  # idempotent requests that an attempt first sent after one that was answered
        self._precedes: set[str] = set()  # and those that it sent before
        self.begin()

    def begin(self) -> None:
        """Start an attempt."""
        self._sent_before = set(self._sent)
        self._unknown_before = set(self._unknown)
        self._answered_before = set(self._answered)
        self._now: set[str] = set()
        self._equal_to: set[int] = set()
        self._turned_away: dict[int, list[str]] = {}
        self._resumes: bool | None = None

    def issued(self, key: str, request: int) -> None:
        """Note what a key was derived from."""
        self._requests[key] = request

    def reusable_key(self, request: int) -> str | None:
        """Return the key of an equal request of this attempt that the server did not act on: it is still unused."""
        keys = self._turned_away.get(request)
        return keys.pop() if keys else None

    def why_not_retried(self) -> str | None:
        """Return why the call must not be retried, whatever its error; None where it may."""
        return EQUAL_REQUESTS if self.equal else NO_KEY if self._unprotected else None

    def protects(self, key: object) -> bool:
        """Return whether this call has sent a request with that key, and would send it with the same key again."""
        return key in self._sent

    def send(self, key: str, what: str) -> None:
        """Note that a request is about to be sent.

        Raises:
            Permanent: the key would not protect the request, or would take it for one that was answered.
        """
        request = self._requests.get(key)
        if request is not None:  # else the caller chose the key, or it is that of the whole call
            self._reject_unsafe(key, what)
            if request in self._equal_to and key not in self._now:
                self.equal = True
            if self._begins:
                self._first.add(key)
            self._equal_to.add(request)
            self._now.add(key)
            self._answered.discard(key)
            self._unknown.add(key)
        self._sent.add(key)

    def send_unprotected(self) -> str:
        """Note that a request without a key is about to be sent; return its name for `ended`."""
        name = f"without a key {next(self._numbers)}"
        self._unprotected.add(name)
        return name

    def note_idempotent(self, key: str) -> None:
        """Note that an idempotent request is about to be sent: it shows where an attempt starts.

        An attempt that starts with what an earlier one first sent after its first response does not start over.
        """
        if self._now & self._answered:
            self._follows.add(key)
            return
        if self._now:
            return
        if self._resumes or (key in self._follows and key not in self._precedes):
            self._resumes = True
        else:
            self._precedes.add(key)

    def _reject_unsafe(self, key: str, what: str) -> None:
        if not self._sent_before:
            return
        if self._resumes is None:
            self._resumes = key not in self._first
        if key not in self._sent_before and not self._unknown_before <= self._now:
            _refuse(what, "an earlier attempt of the call sent a request whose outcome is unknown, not this one")
        if self._resumes and key in self._answered_before and key not in self._now:
            _refuse(what, "an equal request was answered in an earlier attempt, which this attempt continues")

    def ended(self, key: str, *, acted: bool | None, give_back: bool) -> None:
        """Note the outcome of a request.

        Args:
            acted: whether the server has acted on it; None where that is not known.
            give_back: whether an equal request of the same attempt reuses the key if the server did not act.
        """
        if acted is False:
            self._unprotected.discard(key)
        request = self._requests.get(key)
        if request is None:
            return
        self._begins = False
        if acted is None:
            return
        self._unknown.discard(key)
        if acted:
            self._answered.add(key)
        elif give_back:
            self._equal_to.discard(request)
            self._turned_away.setdefault(request, []).append(key)


def _refuse(what: str, why: str) -> NoReturn:
    raise Permanent(
        f"{what} was not sent: {why}. Send the same requests in every attempt, without times or random values in them, "
        "or pass an Idempotency-Key of your own"
    )


if TYPE_CHECKING:
    pass

# By RFC 9110 and IANA's registry of methods, to send these several times has the effect of sending them once.
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"}
IDEMPOTENT_METHODS = frozenset({*_SAFE_METHODS, "PUT", "DELETE"})

# Statuses by which the server reports that it did not act on the request.
REFUSALS = frozenset({401, 403, 408, 425, 429})

BODY_GONE = "the request's body was a stream that cannot be sent again; pass bytes or a seekable file"
KEY_SENT = "redrive.key_sent"


def why_not_retried(
    failure: Any,
    verdict: Verdict,
    *,
    keys: SentKeys | None,
    idempotent: bool,
    since: int = -1,
    beside: Callable[[], Iterable[Any]] = tuple,
) -> str | None:
    """Return why the requests behind an error or response must not be sent again; None where they may.

    `keys` are those of the call that would retry them: the next attempt of another call has other keys.
    `beside` finds requests that continue although the attempt has failed.
    `since` is the instruction at which a block of `attempts()` began.
    """
    for holder, request in sent_requests(failure, since):
        # A function that raises an error of its own makes a new body; an adapter would send this very one.
        if holder is failure and not _replayable(request):
            return BODY_GONE
        if idempotent or request.method.upper() in IDEMPOTENT_METHODS or _has_key(request, keys):
            continue
        if _was_not_executed(holder, verdict if holder is failure else None):
            continue
        return _without_key(request)
    for request in beside() if not idempotent else ():
        if request.method.upper() not in IDEMPOTENT_METHODS and not _has_key(request, keys):
            return _without_key(request)
    return None if keys is None else keys.why_not_retried()


def _without_key(request: Any) -> str:
    if request.method in EFFECTS:
        return (
            f"a {request.method} is not retried once it may have taken effect; declare the service idempotent if "
            "a second one does no harm"
        )
    return (
        f"a {request.method.upper()} without an Idempotency-Key is not retried once it may have reached the "
        'server; send one (Service(idempotent="key")) or declare the service idempotent'
    )


def mark_unprotected(error: BaseException, key: str, keys: SentKeys | None) -> None:
    """Mark the requests of a failed call as unprotected outside of it: its keys were made for it alone."""
    sent = [(request, idempotency_key(request)) for request in effects_of(error)]
    carry(
        error,
        [KnownRequest(request.method, {}) for request, own in sent if own == key or (keys and keys.protects(own))],
    )


def has_acted(ended: Any) -> bool | None:
    """Return whether the server has acted on the request of this error, response or value; None if not known."""
    if not isinstance(ended, BaseException):
        status = response_status(ended) or 0
        return None if status >= 500 and not _was_not_executed(ended, None) else status not in REFUSALS and status < 500
    answer = http_answer(ended)
    if _was_not_executed(ended, None) or (never_left(ended) and not effects_of(ended)):
        return False
    return True if answer is not None and answer.status < 500 else None


def effects_of(error: BaseException) -> list[KnownRequest]:
    """Return the requests behind an error on which the server may have acted."""
    return [known(request) for holder, request in sent_requests(error) if not _was_not_executed(holder, None)]


def _was_not_executed(holder: Any, verdict: Verdict | None) -> bool:
    """Return whether the server reports that it did not act on the request: by its response, not by a user's rule."""
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
