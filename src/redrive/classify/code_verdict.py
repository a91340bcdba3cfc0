"""The verdict by code: the HTTP status of a response, the code that an error carries.

Codes decide before types, and types before message texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from redrive.classify.detail import body_detail, error_detail, match_text, message, shown
from redrive.classify.error_codes import (
    aws_code,
    aws_message,
    call_or_none,
    grpc_code,
    http_answer,
    kafka_error,
    mysql_code,
    os_errno,
    sqlite_code,
    sqlstate,
)
from redrive.classify.packs import PACKS
from redrive.classify.packs.pack import Codes
from redrive.classify.responses import Answer, attribute, requested_wait, retry_after
from redrive.classify.tables.entry import Entry
from redrive.classify.tables.http import EXHAUSTED, EXHAUSTED_429, RETRY_AFTER_COUNTS, STATUS, STATUS_CLASS, TOO_FAST
from redrive.classify.tables.services import AWS, GRPC, KAFKA
from redrive.classify.tables.sql import MYSQL, SQLITE, SQLSTATE, SQLSTATE_PHRASE
from redrive.classify.tables.system import ERRNO, RESOLVER_NUMBERS
from redrive.classify.tables.types import RESOLVER_TYPES, TYPES
from redrive.classify.type_names import type_names
from redrive.model.calls import Kind, Scope, Verdict


def _words(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])", re.IGNORECASE)


_BODY_WORDS = {
    403: (_words(EXHAUSTED), _words(TOO_FAST)),
    429: (_words(EXHAUSTED_429), None),
}
"""By status, the words of a body where the credential is exhausted, and where requests come too fast."""


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


# A service or an address family unknown to the resolver is a mistake of the request, not of the network.
_BAD_LOOKUPS = frozenset(RESOLVER_NUMBERS.values())
_BAD_LOOKUP = Entry(Kind.PERMANENT, "service or address family not known to the resolver")

_PACK_CODES: dict[str, list[Codes]] = {}
for _pack in PACKS:
    for _codes in _pack.codes:
        _PACK_CODES.setdefault(_codes.carrier, []).append(_codes)


def verdict_by_code(error: BaseException, scope: Scope, now: datetime) -> Verdict | None:
    """Return the verdict by the first known code of the error; None where it has none."""
    return (
        _by_pack(error, scope)
        or _by_response(error, now)
        or _by_mysql(error, scope)
        or _by_sqlstate(error, scope)
        or _by_sqlite(error, scope)
        or kafka_verdict(error)
        or _by_grpc(error)
        or _by_errno(error, scope)
        or _by_resolver(error, scope)
    )


def sqlstate_entry(code: str) -> tuple[str, Entry] | None:
    """Return the table's key and entry for a SQLSTATE: the code itself, else its class."""
    return next(((key, SQLSTATE[key]) for key in (code, f"{code[:2]}*") if key in SQLSTATE), None)


def kafka_verdict(failure: object) -> Verdict | None:
    """Return the verdict by the name of a Kafka error, else by what the library states about retrying it."""
    error = kafka_error(failure)
    name = call_or_none(error, "name")
    if not isinstance(name, str):
        return None
    kind = KAFKA.get(name) or (Kind.TRANSIENT if call_or_none(error, "retriable") else Kind.PERMANENT)
    if call_or_none(error, "fatal"):
        kind = Kind.PERMANENT
    text = call_or_none(error, "str")
    return Verdict(kind, f"Kafka {name}", f"kafka.{name}", detail=shown(text if isinstance(text, str) else ""))


def _by_response(error: BaseException, now: datetime) -> Verdict | None:
    answer, code = http_answer(error), aws_code(error)
    verdict = None
    if answer is not None:
        requested = requested_wait(error)
        verdict = http_verdict(answer, now, requested and requested.seconds)
        if verdict.detail is None and code is None:
            verdict = replace(verdict, detail=_message_beyond_status(error, verdict))
    if code is None:
        return verdict
    detail = shown(aws_message(error)) or (verdict.detail if verdict else None)
    if code in AWS:
        status, headers = (answer.status, answer.headers) if answer else (None, None)
        wait = retry_after(headers, now) if AWS[code] is Kind.RATE_LIMITED else None
        return Verdict(AWS[code], f"{code} from AWS", f"aws.{code}", wait, detail, status)
    return replace(verdict, reason=f"{verdict.reason}: {code}", detail=detail) if verdict else None


def _message_beyond_status(error: BaseException, verdict: Verdict) -> str | None:
    """Return the `message` of aiohttp's errors, unless it is only the status line once more."""
    text = attribute(error, "message")
    if isinstance(text, str) and text and text not in verdict.reason:
        return shown(text)
    return None


def _by_pack(error: BaseException, scope: Scope) -> Verdict | None:
    for name in type_names(type(error)):
        for codes in _PACK_CODES.get(name, ()):
            code = _read_code(error, codes.attribute)
            if (entry := _find_entry(error, codes, code) if isinstance(code, int | str) else None) is not None:
                library = name.partition(".")[0]
                reason = f"{entry.phrase} ({library} {code})"
                return Verdict(entry.kind(scope), reason, f"{library}.{code}", detail=error_detail(error))
    return None


def _find_entry(error: BaseException, codes: Codes, code: int | str) -> Entry | None:
    return match_text(codes.patterns.get(code), error) or codes.table.get(code)


def _read_code(error: BaseException, path: str) -> object:
    value: object = error
    for part in path.split("."):
        if isinstance(value, dict):
            value = next(iter(value.values()), None) if part == "*" else value.get(part)
        elif isinstance(value, tuple):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else None
        else:
            value = attribute(value, part)
    return value


def _by_mysql(error: BaseException, scope: Scope) -> Verdict | None:
    code = mysql_code(error)
    if code is None or code not in MYSQL:
        return None
    text = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], str) else message(error)
    entry = MYSQL[code]
    return Verdict(entry.kind(scope), f"{entry.phrase} (MySQL error {code})", f"mysql.{code}", detail=shown(text))


def _by_sqlstate(error: BaseException, scope: Scope) -> Verdict | None:
    code = sqlstate(error)
    known = sqlstate_entry(code) if code else None
    if code is None or known is None:
        return None
    key, entry = known
    reason = f"{SQLSTATE_PHRASE.get(code, entry.phrase)} (SQLSTATE {code})"
    return Verdict(entry.kind(scope), reason, f"sqlstate.{key}", detail=error_detail(error))


def _by_sqlite(error: BaseException, scope: Scope) -> Verdict | None:
    code = sqlite_code(error)
    known = None if code is None else SQLITE.get(code) or SQLITE.get(code & 0xFF)
    if known is None:
        return None
    name, entry = known
    return Verdict(entry.kind(scope), f"{entry.phrase} (SQLITE_{name})", f"sqlite.{name}", detail=shown(message(error)))


def _by_grpc(error: BaseException) -> Verdict | None:
    name = grpc_code(error)
    if name not in GRPC:
        return None
    text = call_or_none(error, "details")
    return Verdict(GRPC[name], f"gRPC {name}", f"grpc.{name}", detail=shown(text if isinstance(text, str) else ""))


def _by_errno(error: BaseException, scope: Scope) -> Verdict | None:
    number = os_errno(error)
    if number is None or number not in ERRNO:
        return None
    name, entry = ERRNO[number]
    return Verdict(entry.kind(scope), entry.phrase, f"errno.{name}", detail=shown(message(error)))


def _by_resolver(error: BaseException, scope: Scope) -> Verdict | None:
    """Return the verdict on an error of the resolver.

    The numbers differ between systems, so the class decides, except for two numbers that blame the request.
    """
    names = type_names(type(error))
    name = next((name for name in RESOLVER_TYPES if name in names), None)
    if name is None:
        return None
    entry = _BAD_LOOKUP if attribute(error, "errno") in _BAD_LOOKUPS else TYPES[name]
    return Verdict(entry.kind(scope), entry.phrase, f"type.{name}", detail=shown(message(error)))
