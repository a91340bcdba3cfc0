"""The verdict on an HTTP answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from redrive.classify.detail import body_detail
from redrive.classify.responses import Answer
from redrive.classify.retry_after import retry_after
from redrive.classify.tables.http import RETRY_AFTER_COUNTS, STATUS, STATUS_CLASS, TOO_FAST, USED_UP, USED_UP_429
from redrive.model.calls import Kind, Verdict


def _words(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])", re.IGNORECASE)


_SAID = {
    403: (_words(USED_UP), _words(TOO_FAST)),
    429: (_words(USED_UP_429), None),
}
"""By status, what its body says where the credential is used up, and where it is too fast."""


def http_verdict(answer: Answer, now: datetime, asked: float | None = None) -> Verdict:
    """A Retry-After on an answer that can heal outranks the status; a used-up credential outranks both.

    `asked` are the seconds that an exception names; where it has headers, they decide, and 0 is most often a default.
    """
    status = answer.status
    used_up_words, too_fast_words = _SAID.get(status, (None, None))
    used_up = used_up_words.search(answer.body or "") if used_up_words else None
    too_fast = too_fast_words.search(answer.body or "") if too_fast_words else None
    limited = status == 429 or too_fast is not None
    wait = None
    if status in RETRY_AFTER_COUNTS:
        wait = retry_after(answer.headers, now, limited=limited)
        wait = (asked or None) if wait is None and not answer.headers else wait
    said = f"HTTP {status} {_phrase(status)}".rstrip()
    if used_up:
        kind, rule, reason = Kind.QUOTA, f"http.{status}.quota", f"{said}: {used_up[0]}"
    elif too_fast:
        kind, rule, reason = Kind.RATE_LIMITED, f"http.{status}.limit", f"{said}: {too_fast[0]}"
    elif wait is not None:
        kind, rule, reason = Kind.RATE_LIMITED, f"http.{status}.retry_after", f"{said}, Retry-After {wait:g} s"
    elif status in STATUS:
        kind, rule, reason = STATUS[status], f"http.{status}", said
    else:
        kind, rule, reason = STATUS_CLASS.get(status // 100, Kind.PERMANENT), f"http.{status // 100}xx", said
    return Verdict(kind, reason, rule, retry_after=wait, detail=body_detail(answer.body), status=status)


def _phrase(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def is_failure(answer: Answer, now: datetime) -> bool:
    """A success, or a redirect that does not ask us to wait, is none."""
    if answer.status < 400:
        return answer.status >= 300 and retry_after(answer.headers, now) is not None
    return True
