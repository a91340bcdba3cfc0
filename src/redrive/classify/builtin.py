"""The built-in verdict on an exception: redrive's own errors, then codes, then types, then "unknown"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from redrive.classify.code_verdict import http_verdict, verdict_by_code
from redrive.classify.detail import error_detail, match_text, message, shown
from redrive.classify.responses import Answer, attribute, body_in_memory, headers_of, requested_wait
from redrive.classify.signals import is_interrupt
from redrive.classify.tables.types import CERTIFICATE, CERTIFICATE_TYPES, TEXTS, TYPES
from redrive.classify.type_names import type_names
from redrive.classify.unwrap import is_wrapper, origin_of, unwrap_chain
from redrive.errors import (
    CircuitOpen,
    QuotaExhausted,
    ReplayStopped,
    RetriesExhausted,
    RunStopped,
    Skip,
    StatedVerdict,
    StoreError,
)
from redrive.model.calls import Kind, Scope, Verdict

SKIP = "stated.skip"
"""The rule of verdicts on `Skip`."""
NO_LIST = "stated.no_list"
"""The rule of verdicts on pages that arrived as JSON and hold no list of records."""


def redrive_verdict(error: BaseException, now: datetime) -> Verdict | None:
    """Return the verdict on an error of redrive's; None for every other error."""
    if isinstance(error, StatedVerdict):
        kind = Kind(error.kind)
        rule = SKIP if isinstance(error, Skip) else error.verdict_rule or f"stated.{kind}"
        return Verdict(kind, shown(message(error)) or str(kind), rule, retry_after=error.retry_after)
    if isinstance(error, CircuitOpen):
        return Verdict(
            Kind.TRANSIENT,
            "circuit of another service open",
            "redrive.CircuitOpen",
            retry_after=error.retry_in,
            detail=shown(message(error)),
        )
    if isinstance(error, QuotaExhausted):
        return Verdict(
            Kind.QUOTA,
            "every key of another service exhausted",
            "redrive.QuotaExhausted",
            retry_after=_seconds_until(error.resets_at, now),
            detail=shown(message(error)),
        )
    if isinstance(error, RetriesExhausted):
        return _exhausted_verdict(error)
    if isinstance(error, StoreError | RunStopped | ReplayStopped):
        # The kind was decided where the error was raised.
        return Verdict(error.kind, shown(message(error)) or str(error.kind), f"redrive.{type(error).__name__}")
    return None


def _exhausted_verdict(error: RetriesExhausted) -> Verdict:
    """Return the verdict on the last response, as if another service had re-raised it as an exception."""
    rule, reason = "redrive.RetriesExhausted", "retries of another service exhausted"
    if error.redrive is None:
        return Verdict(Kind.PERMANENT, reason, rule, detail=shown(message(error)))
    last = error.redrive.verdict
    return Verdict(last.kind, f"{reason}: {last.reason}", rule, last.retry_after, last.detail, last.status)


def _seconds_until(moment: datetime | None, now: datetime) -> float | None:
    if moment is None:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


_STATUS_ATTRIBUTES = ("http_status", "http_status_code", "status", "code", "http_code")
_RETRY_FLAGS = ("retryable", "retriable", "is_retryable", "is_transient", "transient")
_DEPTH = 10


@dataclass(frozen=True, slots=True)
class BuiltinVerdict:
    """A verdict of the built-in tables, and what it is based on."""

    verdict: Verdict
    basis: Literal["code", "type", "origin", "unknown"]
    """`origin`: the error itself is unknown; its own attributes, or what it was raised for, decide."""
    level: int = 0
    """How far below the error the decisive error lies; 0 is the error itself."""
    nearness: int = 0
    """How far up its ancestors the decisive class is; 0 is the class itself."""


def find(error: BaseException, scope: Scope, now: datetime, unknown: Kind | None) -> BuiltinVerdict:
    """Return the built-in verdict on an exception."""
    if own_verdict := redrive_verdict(error, now):
        # As with a code, only a rule on the error's own class outranks this verdict.
        return BuiltinVerdict(own_verdict, "code")
    chain = unwrap_chain(error)
    return (
        _by_certificate(chain, scope)
        or _by_code(chain, scope, now)
        or _by_lost_connection(error)
        or _by_type(chain, scope)
        or _by_attributes(error, now)
        or _by_origin(error, scope, now)
        or _unknown(error, scope, unknown)
    )


def _by_certificate(chain: tuple[BaseException, ...], scope: Scope) -> BuiltinVerdict | None:
    for level, error in enumerate(chain):
        names = type_names(type(error))
        if name := next((name for name in CERTIFICATE_TYPES if name in names), None):
            verdict = Verdict(CERTIFICATE.kind(scope), CERTIFICATE.phrase, f"type.{name}", detail=error_detail(error))
            return BuiltinVerdict(verdict, "code", level)
    return None


def _by_code(chain: tuple[BaseException, ...], scope: Scope, now: datetime) -> BuiltinVerdict | None:
    for level, error in enumerate(chain):
        if verdict := verdict_by_code(error, scope, now):
            return BuiltinVerdict(verdict, "code", level)
    return None


def _by_lost_connection(error: BaseException) -> BuiltinVerdict | None:
    """Return the verdict on a lost connection: SQLAlchemy knows how each driver reports it."""
    if attribute(error, "connection_invalidated") is not True:
        return None
    rule, reason = "sqlalchemy.connection_invalidated", "database connection lost"
    return BuiltinVerdict(Verdict(Kind.TRANSIENT, reason, rule, detail=error_detail(error)), "code")


def _by_type(chain: tuple[BaseException, ...], scope: Scope) -> BuiltinVerdict | None:
    """Return the verdict by the nearest class in the table, from the innermost error that matters outwards."""
    start = 0
    while start + 1 < len(chain) and is_wrapper(chain[start]):
        start += 1
    for level in range(start, -1, -1):
        if builtin := _type_of(chain[level], level, scope):
            return builtin
    return None


def _type_of(error: BaseException, level: int, scope: Scope) -> BuiltinVerdict | None:
    cls = type(error)
    for nearness, name in enumerate(type_names(cls)):
        entry, rule = match_text(TEXTS.get(name), error), f"text.{name}"
        if entry is None:
            entry, rule = TYPES.get(name), f"type.{name}"
        if entry is not None:
            reason = entry.phrase if nearness == 0 else f"{entry.phrase} ({cls.__name__})"
            verdict = Verdict(entry.kind(scope), reason, rule, detail=error_detail(error))
            return BuiltinVerdict(verdict, "type", level, nearness)
    return None


def _by_attributes(error: BaseException, now: datetime) -> BuiltinVerdict | None:
    """Return the verdict on an unknown class by the error's own attributes: an HTTP status, a wait, or a flag."""
    requested = requested_wait(error)
    for name in _STATUS_ATTRIBUTES:
        status = attribute(error, name)
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
            answer = Answer(int(status), headers_of(error), body_in_memory(error))
            verdict = http_verdict(answer, now, requested and requested.seconds)
            return BuiltinVerdict(replace(verdict, detail=verdict.detail or error_detail(error)), "origin")
    if requested:
        reason, rule = (
            f"{type(error).__name__} asks to wait {requested.seconds:g} s",
            f"attribute.{requested.attribute}",
        )
        return BuiltinVerdict(
            Verdict(Kind.RATE_LIMITED, reason, rule, requested.seconds, error_detail(error)), "origin"
        )
    if flag := next((name for name in _RETRY_FLAGS if attribute(error, name) is True), None):
        reason = f"{type(error).__name__} states that it can be retried"
        return BuiltinVerdict(
            Verdict(Kind.TRANSIENT, reason, f"attribute.{flag}", detail=error_detail(error)), "origin"
        )
    return None


def _by_origin(error: BaseException, scope: Scope, now: datetime, depth: int = 0) -> BuiltinVerdict | None:
    """Return the verdict on an error of an unknown class by the error it was raised for."""
    origin = origin_of(error)
    if origin is None or depth >= _DEPTH or is_interrupt(origin):
        return None
    chain = unwrap_chain(origin)
    own_verdict = redrive_verdict(origin, now)
    builtin = (
        (own_verdict and BuiltinVerdict(own_verdict, "code"))
        or _by_certificate(chain, scope)
        or _by_code(chain, scope, now)
        or _by_lost_connection(origin)
        or _by_type(chain, scope)
        or _by_attributes(origin, now)
    )
    if not builtin:
        return _by_origin(origin, scope, now, depth + 1)
    verdict = replace(builtin.verdict, reason=f"{type(error).__name__} for {builtin.verdict.reason}")
    return BuiltinVerdict(replace(verdict, detail=error_detail(error) or verdict.detail), "origin")


def _unknown(error: BaseException, scope: Scope, unknown: Kind | None) -> BuiltinVerdict:
    kind = unknown or (Kind.AMBIGUOUS if scope == "task" else Kind.PERMANENT)
    reason = f"unknown error {type(error).__name__}"
    return BuiltinVerdict(Verdict(kind, reason, "unknown", detail=error_detail(error)), "unknown")
