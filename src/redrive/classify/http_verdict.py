"""The verdict on an HTTP response, by its status, its Retry-After and the words of its body."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from redrive.classify.detail import body_detail
from redrive.classify.responses import Answer
from redrive.classify.retry_after import retry_after
from redrive.classify.tables.http import EXHAUSTED, EXHAUSTED_429, RETRY_AFTER_COUNTS, STATUS, STATUS_CLASS, TOO_FAST
from redrive.model.calls import Kind, Verdict


def _words(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])", re.IGNORECASE)


_BODY_WORDS = {
    403: (_words(EXHAUSTED), _words(TOO_FAST)),
    429: (_words(EXHAUSTED_429), None),
}
"""By status, what its body says where the credential is exhausted, and where it is too fast."""


def http_verdict(answer: Answer, now: datetime, requested: float | None = None) -> Verdict:
    """Return the verdict on a response.

    A Retry-After on a retryable response outranks the status; an exhausted credential outranks both.

    Args:
        requested: seconds that an exception names. Headers outrank them, and 0 is most often a default.
    """
    status = answer.status
    exhausted_words, too_fast_words = _BODY_WORDS.get(status, (None, None))
    exhausted = exhausted_words.search(answer.body or "") if exhausted_words else None
    too_fast = too_fast_words.search(answer.body or "") if too_fast_words else None
    limited = status == 429 or too_fast is not None
    wait = None
    if status in RETRY_AFTER_COUNTS:
        wait = retry_after(answer.headers, now, limited=limited)
        wait = (requested or None) if wait is None and not answer.headers else wait
    text = f"HTTP {status} {_phrase(status)}".rstrip()
    if exhausted:
        kind, rule, reason = Kind.QUOTA, f"http.{status}.quota", f"{text}: {exhausted[0]}"
    elif too_fast:
        kind, rule, reason = Kind.RATE_LIMITED, f"http.{status}.limit", f"{text}: {too_fast[0]}"
    elif wait is not None:
        kind, rule, reason = Kind.RATE_LIMITED, f"http.{status}.retry_after", f"{text}, Retry-After {wait:g} s"
    elif status in STATUS:
        kind, rule, reason = STATUS[status], f"http.{status}", text
    else:
        kind, rule, reason = STATUS_CLASS.get(status // 100, Kind.PERMANENT), f"http.{status // 100}xx", text
    return Verdict(kind, reason, rule, retry_after=wait, detail=body_detail(answer.body), status=status)


def _phrase(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def is_failure(answer: Answer, now: datetime) -> bool:
    """Return whether a response is a failure; a redirect is one only where it asks the client to wait."""
    if answer.status < 400:
        return answer.status >= 300 and retry_after(answer.headers, now) is not None
    return True
