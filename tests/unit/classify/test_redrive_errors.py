"""redrive's own errors: as a verdict stated by the program, or as the end of an inner call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from redrive import classify
from redrive.errors import (
    CircuitOpen,
    Discard,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Reject,
    RetriesExhausted,
    Transient,
)
from redrive.model.calls import Failure, Kind, Verdict

NOW = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("scope", ["call", "row", "task"])
@pytest.mark.parametrize(
    ("error", "kind", "wait"),
    [
        (Transient("bank sleeps"), "transient", None),
        (RateLimited("slow down", retry_after=12), "rate_limited", 12),
        (RateLimited("now", retry_after=0), "rate_limited", 0),
        (Permanent("no such contract"), "permanent", None),
        (Reject("fee is N/A"), "row", None),
        (Discard("test delivery"), "discard", None),
    ],
    ids=repr,
)
def test_stated_verdict_is_used(error, kind, wait, scope):
    verdict = classify(error, scope)
    assert (verdict.kind, verdict.retry_after, verdict.rule) == (kind, wait, f"stated.{kind}")
    assert verdict.reason == str(error)


def test_stated_verdict_outranks_the_cause():
    error = Permanent("gone for good")
    error.__cause__ = TimeoutError()
    assert classify(error).kind is Kind.PERMANENT


class VendorClosed(Transient, ValueError):
    pass


def test_users_subclass_inherits_the_stated_verdict():
    assert classify(VendorClosed()).kind is Kind.TRANSIENT


def test_open_circuit_of_another_service_has_its_probe_time():
    verdict = classify(CircuitOpen("bank is open", retry_in=17.5))
    assert (verdict.kind, verdict.retry_after) == (Kind.TRANSIENT, 17.5)


def test_exhausted_keys_have_their_reset_time():
    error = QuotaExhausted("all keys cool", resets_at=NOW + timedelta(hours=1))
    assert (classify(error, now=NOW).kind, classify(error, now=NOW).retry_after) == (Kind.QUOTA, 3600.0)
    assert classify(error, now=NOW + timedelta(days=1)).retry_after == 0.0
    assert classify(QuotaExhausted()).retry_after is None


@pytest.mark.parametrize("kind", ["transient", "auth", "quota", "row", "discard", "permanent"])
def test_exhausted_retries_are_judged_by_the_last_response(kind):
    last = Verdict(Kind(kind), "HTTP 503 Service Unavailable", "http.503", 9.0, "down", 503)
    failure = Failure("bank", "GET /", (), 1.0, last, "attempts spent", "Try later.")
    verdict = classify(RetriesExhausted(redrive=failure))
    assert (verdict.kind, verdict.retry_after, verdict.status, verdict.detail) == (kind, 9.0, 503, "down")
    assert verdict.reason == "retries of another service exhausted: HTTP 503 Service Unavailable"


def test_exhausted_retries_without_attempts_are_permanent():
    assert classify(RetriesExhausted("gave up")).kind is Kind.PERMANENT
