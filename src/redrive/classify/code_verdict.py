"""The verdict by code, where an error carries one: codes are firmer than types, and types than words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from redrive.classify.detail import error_detail, message, shown, text_entry
from redrive.classify.error_codes import (
    aws_code,
    aws_message,
    called,
    grpc_code,
    http_answer,
    kafka_error,
    mysql_code,
    os_errno,
    sqlite_code,
    sqlstate,
)
from redrive.classify.http_verdict import http_verdict
from redrive.classify.packs import PACKS
from redrive.classify.packs.pack import Codes
from redrive.classify.responses import attribute
from redrive.classify.retry_after import asked_wait, retry_after
from redrive.classify.tables.entry import Entry
from redrive.classify.tables.services import AWS, GRPC, KAFKA
from redrive.classify.tables.sql import MYSQL, SQLITE, SQLSTATE, SQLSTATE_PHRASE
from redrive.classify.tables.system import ERRNO, RESOLVER_NUMBERS
from redrive.classify.tables.types import RESOLVER_TYPES, TYPES
from redrive.classify.type_names import type_names
from redrive.model.calls import Kind, Scope, Verdict

# A service or an address family that the resolver does not know: the request is wrong, not the network.
_BAD_LOOKUPS = frozenset(RESOLVER_NUMBERS.values())
_BAD_LOOKUP = Entry(Kind.PERMANENT, "service or address family not known to the resolver")

_PACK_CODES: dict[str, list[Codes]] = {}
for _pack in PACKS:
    for _codes in _pack.codes:
        _PACK_CODES.setdefault(_codes.carrier, []).append(_codes)


def verdict_by_code(error: BaseException, scope: Scope, now: datetime) -> Verdict | None:
    """What the first known code of the error says."""
    return (
        _by_pack(error, scope)
        or _by_answer(error, now)
        or _by_mysql(error, scope)
        or _by_sqlstate(error, scope)
        or _by_sqlite(error, scope)
        or kafka_verdict(error)
        or _by_grpc(error)
        or _by_errno(error, scope)
        or _by_resolver(error, scope)
    )


def sqlstate_entry(code: str) -> tuple[str, Entry] | None:
    """The table's key and entry for a SQLSTATE: the code itself, else its class."""
    return next(((key, SQLSTATE[key]) for key in (code, f"{code[:2]}*") if key in SQLSTATE), None)


def kafka_verdict(failure: object) -> Verdict | None:
    """What the name of a Kafka error says, else what the library says about repeating it."""
    error = kafka_error(failure)
    name = called(error, "name")
    if not isinstance(name, str):
        return None
    kind = KAFKA.get(name) or (Kind.TRANSIENT if called(error, "retriable") else Kind.PERMANENT)
    if called(error, "fatal"):
        kind = Kind.PERMANENT
    text = called(error, "str")
    return Verdict(kind, f"Kafka {name}", f"kafka.{name}", detail=shown(text if isinstance(text, str) else ""))


def _by_answer(error: BaseException, now: datetime) -> Verdict | None:
    answer, code = http_answer(error), aws_code(error)
    verdict = None
    if answer is not None:
        asked = asked_wait(error)
        verdict = http_verdict(answer, now, asked and asked.seconds)
        if verdict.detail is None and code is None:
            verdict = replace(verdict, detail=_beyond_the_status(error, verdict))
    if code is None:
        return verdict
    detail = shown(aws_message(error)) or (verdict.detail if verdict else None)
    if code in AWS:
        status, headers = (answer.status, answer.headers) if answer else (None, None)
        wait = retry_after(headers, now) if AWS[code] is Kind.RATE_LIMITED else None
        return Verdict(AWS[code], f"{code} from AWS", f"aws.{code}", wait, detail, status)
    return replace(verdict, reason=f"{verdict.reason}: {code}", detail=detail) if verdict else None


def _beyond_the_status(error: BaseException, verdict: Verdict) -> str | None:
    """aiohttp's `message`, unless it only repeats the status line."""
    said = attribute(error, "message")
    if isinstance(said, str) and said and said not in verdict.reason:
        return shown(said)
    return None


def _by_pack(error: BaseException, scope: Scope) -> Verdict | None:
    for name in type_names(type(error)):
        for codes in _PACK_CODES.get(name, ()):
            code = _coded(error, codes.attribute)
            if (entry := _meaning(error, codes, code) if isinstance(code, int | str) else None) is not None:
                library = name.partition(".")[0]
                reason = f"{entry.phrase} ({library} {code})"
                return Verdict(entry.kind(scope), reason, f"{library}.{code}", detail=error_detail(error))
    return None


def _meaning(error: BaseException, codes: Codes, code: int | str) -> Entry | None:
    return text_entry(codes.told_apart.get(code), error) or codes.table.get(code)


def _coded(error: BaseException, place: str) -> object:
    value: object = error
    for part in place.split("."):
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
    said = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], str) else message(error)
    entry = MYSQL[code]
    return Verdict(entry.kind(scope), f"{entry.phrase} (MySQL error {code})", f"mysql.{code}", detail=shown(said))


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
    said = called(error, "details")
    return Verdict(GRPC[name], f"gRPC {name}", f"grpc.{name}", detail=shown(said if isinstance(said, str) else ""))


def _by_errno(error: BaseException, scope: Scope) -> Verdict | None:
    number = os_errno(error)
    if number is None or number not in ERRNO:
        return None
    name, entry = ERRNO[number]
    return Verdict(entry.kind(scope), entry.phrase, f"errno.{name}", detail=shown(message(error)))


def _by_resolver(error: BaseException, scope: Scope) -> Verdict | None:
    """The resolver's numbers differ between systems, and its class is enough but for two that blame the request."""
    names = type_names(type(error))
    name = next((name for name in RESOLVER_TYPES if name in names), None)
    if name is None:
        return None
    entry = _BAD_LOOKUP if attribute(error, "errno") in _BAD_LOOKUPS else TYPES[name]
    return Verdict(entry.kind(scope), entry.phrase, f"type.{name}", detail=shown(message(error)))
