"""Errors of unknown classes: judged by their attributes and their causes."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest

import redrive
from redrive import Classifier, Retry, Service, classify
from redrive.model.calls import Kind
from redrive.testing import FakeClock


class ApiError(Exception):
    """Of the user's own."""


class BankError(ApiError):
    pass


def raised(function):
    with pytest.raises(Exception) as caught:  # any
        function()
    return caught.value


class TestCause:
    def test_error_from_a_transient_one_is_transient(self):
        def fetch():
            try:
                raise httpx.ReadTimeout("slow")
            except httpx.ReadTimeout as error:
                raise ApiError("bank") from error

        verdict = classify(raised(fetch))
        assert (verdict.kind, verdict.rule) == (Kind.TRANSIENT, "type.httpx.ReadTimeout")
        assert verdict.reason == "ApiError for read timed out"
        assert verdict.detail == "bank"

    def test_error_raised_while_handling_another_is_judged_by_it(self):
        def fetch():
            try:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
            except OSError:
                raise ApiError("bank")  # noqa: B904

        assert classify(raised(fetch)).rule == "errno.ECONNREFUSED"

    def test_error_of_a_function_called_in_a_handler_is_independent(self):
        def handler():
            raise ApiError("job over its limit")

        def fetch():
            try:
                raise ConnectionResetError
            except OSError:
                handler()

        assert classify(raised(fetch)).rule == "unknown"

    def test_suppressed_context_does_not_count(self):
        def fetch():
            try:
                raise ConnectionResetError
            except OSError:
                raise ApiError("bank") from None

        assert classify(raised(fetch)).rule == "unknown"

    def test_chain_is_followed_to_the_first_known_error(self):
        error = ApiError("outer")
        error.__cause__ = BankError("inner")
        error.__cause__.__cause__ = OSError(errno.ENOSPC, "full")
        assert classify(error).rule == "errno.ENOSPC"

    def test_cyclic_causes_end(self):
        first, second = ApiError("first"), ApiError("second")
        first.__cause__, second.__cause__ = second, first
        assert classify(first).rule == "unknown"

    def test_known_class_outranks_its_cause(self):
        error = ValueError("bad value")
        error.__cause__ = TimeoutError()
        assert classify(error).rule == "type.ValueError"

    @pytest.mark.parametrize("named", [BankError, ApiError, Exception])
    def test_rule_outranks_the_cause(self, named):
        error = BankError("bank")
        error.__cause__ = TimeoutError()
        assert Classifier().rule(named, kind="row").classify(error).kind is Kind.ROW


class TestAttributes:
    @pytest.mark.parametrize("name", ["http_status", "status", "code", "http_code", "status_code"])
    @pytest.mark.parametrize(
        ("status", "kind"), [(503, "transient"), (401, "auth"), (429, "rate_limited"), (404, "row")]
    )
    def test_status_of_an_unknown_error_decides(self, name, status, kind):
        error = ApiError("bank")
        setattr(error, name, status)
        assert (classify(error).kind, classify(error).status) == (kind, status)

    @pytest.mark.parametrize("code", [200, 7, True, "503", 1205])
    def test_other_codes_are_ignored(self, code):
        error = ApiError("bank")
        error.code = code
        assert classify(error).rule == "unknown"

    @pytest.mark.parametrize("flag", ["retryable", "retriable", "is_retryable", "is_transient"])
    def test_error_marked_as_retryable_is_transient(self, flag):
        error = ApiError("bank")
        setattr(error, flag, True)
        assert (classify(error).kind, classify(error).rule) == (Kind.TRANSIENT, f"attribute.{flag}")
        setattr(error, flag, False)
        assert classify(error).rule == "unknown"

    @pytest.mark.parametrize("name", ["retry_after", "retry_after_s", "retry_after_seconds"])
    def test_error_with_a_wait_is_rate_limited(self, name):
        error = ApiError("bank")
        setattr(error, name, 7)
        assert (classify(error).kind, classify(error).retry_after) == (Kind.RATE_LIMITED, 7)

    @pytest.mark.parametrize("wait", [True, -1, "7", float("nan"), None])
    def test_invalid_wait_is_ignored(self, wait):
        error = ApiError("bank")
        error.retry_after = wait
        assert classify(error).rule == "unknown"

    @pytest.mark.parametrize("place", ["headers", "resp_headers", "meta"])
    def test_headers_are_found_where_clients_store_them(self, place):
        error = ApiError("bank")
        error.status_code = 429
        error.meta = None
        setattr(error, place, {"retry-after": "7"} if place != "meta" else Answer(429, {"retry-after": "7"}))
        assert classify(error).retry_after == 7

    def test_known_class_outranks_its_attributes(self):
        error = ValueError("bad value")
        error.code = 503
        assert classify(error).rule == "type.ValueError"


class TestGroups:
    def test_group_of_transient_errors_is_transient(self):
        verdict = classify(ExceptionGroup("two", [ConnectionResetError(), TimeoutError()]))
        assert verdict.kind is Kind.TRANSIENT
        assert verdict.reason == "connection reset (the gravest of 2 errors)"

    def test_most_severe_error_decides(self):
        errors = [TimeoutError(), redrive.RateLimited(retry_after=7), ExceptionGroup("inner", [ApiError()])]
        assert classify(ExceptionGroup("three", errors)).rule == "unknown"
        verdict = classify(ExceptionGroup("two", errors[:2]))
        assert (verdict.kind, verdict.retry_after) == (Kind.RATE_LIMITED, 7)

    def test_rules_apply_to_a_group_and_to_its_errors(self):
        group = ExceptionGroup("two", [ApiError(), ApiError()])
        assert Classifier().rule(ApiError, kind="transient").classify(group).kind is Kind.TRANSIENT
        assert Classifier().rule(ExceptionGroup, kind="row").classify(group).kind is Kind.ROW

    def test_wide_and_deep_groups_are_judged(self):
        group = ExceptionGroup("many", [TimeoutError() for _ in range(10_000)])
        for _ in range(50):
            group = ExceptionGroup("deep", [group, TimeoutError()])
        assert classify(group).kind is Kind.TRANSIENT

    async def test_task_group_that_fails_twice_is_retried(self):
        attempts = []

        async def fetch():
            if len(attempts) < 3:
                raise ConnectionResetError

        async def both():
            attempts.append(1)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fetch())
                tasks.create_task(fetch())

        await Service("bank", clock=FakeClock(), retry=Retry(base=0, cap=0)).acall(both)
        assert len(attempts) == 3


class Answer:
    """A response of an unknown library."""

    def __init__(self, status_code, headers=()):
        self.status_code = status_code
        self.headers = dict(headers)


@dataclass
class Reply:
    """A response of another such library, which keeps no headers."""

    status_code: int | None


class TestResponseShape:
    def test_unknown_response_that_reports_a_failure_is_retried(self):
        answers = iter([Answer(503), Answer(500), Answer(200)])
        service = Service("bank", clock=FakeClock())
        assert service.call(lambda: next(answers)).status_code == 200
        assert service.stats().attempts == 3

    def test_unknown_response_that_stays_bad_is_no_success(self):
        service = Service("bank", clock=FakeClock())
        with pytest.raises(redrive.RetriesExhausted):
            service.call(lambda: Answer(503))
        assert service.stats().successes == 0

    def test_unknown_response_with_a_status_is_judged_by_it(self):
        answer = Answer(503)
        answer.status, answer.status_code = answer.status_code, None
        service = Service("bank", clock=FakeClock())
        with pytest.raises(redrive.RetriesExhausted):
            service.call(lambda: answer)
        assert service.stats().successes == 0

    @pytest.mark.parametrize("before", [200, None])
    def test_response_without_headers_is_judged_by_its_status(self, before):
        service = Service("bank", clock=FakeClock())
        assert service.call(lambda: Reply(before)).status_code == before
        answers = iter([Reply(503), Reply(200)])
        assert service.call(lambda: next(answers)).status_code == 200
        with pytest.raises(redrive.RetriesExhausted, match="HTTP 503"):
            service.call(lambda: Reply(503))

    @pytest.mark.parametrize("value", [{"status_code": 503}, SimpleNamespace(status=503)])
    def test_data_with_a_status_is_no_response(self, value):
        assert Service("bank").call(lambda: value) is value


def test_unknown_error_suggests_what_to_do():
    def fail():
        raise ApiError("bank")

    error = raised(lambda: Service("bank").call(fail))
    assert "Unknown error: redrive does not know whether a retry helps. If it does, add a rule" in str(error.redrive)
    assert "cannot help" not in str(error.redrive)


@pytest.mark.parametrize("status", [501, 505])
def test_invalid_request_is_not_blamed_on_the_service(status):
    service = Service("bank", clock=FakeClock(), breaker=redrive.Breaker(failures=1))
    for headers in ({}, {"Retry-After": "1"}):
        response = service.call(lambda headers=headers: httpx.Response(status, headers=headers))
        assert len(response.redrive.attempts) == 1
    assert service.circuit == "closed"


class TestErrorWait:
    @staticmethod
    def error(**attributes):
        error = ApiError("limited")
        vars(error).update(attributes)
        return error

    @pytest.mark.parametrize("name", ["status", "status_code", "http_status"])
    @pytest.mark.parametrize("status", [429, 503])
    def test_counts_beside_a_status(self, name, status):
        verdict = classify(self.error(**{name: status, "retry_after": 120}))
        assert (verdict.kind, verdict.status, verdict.retry_after) == (Kind.RATE_LIMITED, status, 120.0)

    def test_is_ignored_beside_headers_or_where_waiting_is_useless(self):
        assert classify(self.error(status=503, retry_after=120, headers={"Retry-After": "7"})).retry_after == 7.0
        assert classify(self.error(status=503, retry_after=120, headers={"Date": "today"})).retry_after is None
        assert classify(self.error(status=404, retry_after=120)).retry_after is None
        assert classify(self.error(status=503, retry_after=0)).kind == Kind.TRANSIENT

    @pytest.mark.parametrize("wait", [pytest.param(10**400, id="huge"), -1, float("nan"), float("inf"), True, "7"])
    def test_must_be_a_finite_number(self, wait):
        assert classify(self.error(retry_after=wait)).rule == "unknown"
        assert classify(self.error(retry_after=wait, status=503)).retry_after is None

    def test_beyond_every_float_is_rejected_where_it_is_stated(self):
        with pytest.raises(ValueError, match="retry_after must be a finite number"):
            redrive.RateLimited(retry_after=10**400)
        with pytest.raises(ValueError, match="retry_after must be a finite number"):
            Classifier().rule(status=409, kind="rate_limited", retry_after=10**400)

    def test_is_waited_for(self):
        clock = FakeClock()
        with pytest.raises(ApiError):
            Service("bank", clock=clock, retry=Retry(attempts=2, within=1000)).call(self.fail)
        assert min(clock.sleeps) >= 120

    def fail(self):
        raise self.error(status=503, retry_after=120)
