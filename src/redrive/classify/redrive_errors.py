"""The verdict on redrive's own errors: those by which users state it, and those of a service called further in."""

from __future__ import annotations

from datetime import UTC, datetime

from redrive.classify.detail import message, shown
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
from redrive.model.calls import Kind, Verdict

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
