"""HTTP responses and the exceptions of every HTTP client, from a real server."""

from __future__ import annotations

import http.client
import io
import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.message import Message

import aiohttp
import httpx
import pytest
import requests
import urllib3

from redrive import Classifier, classify
from redrive.classify.responses import is_response_type, response_status
from redrive.model.calls import Kind

NOW = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)


def httpx_response(url):
    return httpx.get(url)


def httpx_error(url):
    with pytest.raises(httpx.HTTPStatusError) as caught:
        httpx.get(url).raise_for_status()
    return caught.value


def requests_response(url):
    return requests.get(url, timeout=10)


def requests_error(url):
    with pytest.raises(requests.HTTPError) as caught:
        requests.get(url, timeout=10).raise_for_status()
    return caught.value


def urllib3_response(url):
    return urllib3.request("GET", url, retries=False)


def urllib_error(url):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, timeout=10)
    return caught.value


SYNC_CLIENTS = [httpx_response, httpx_error, requests_response, requests_error, urllib3_response, urllib_error]

QUOTA_BODY = json.dumps(
    {
        "error": {
            "code": 403,
            "message": "The request cannot be completed because you have exceeded your quota.",
            "errors": [{"domain": "youtube.quota", "reason": "quotaExceeded", "message": "Used up."}],
        }
    }
).encode()
INVALID_BODY = b'{"detail": [{"loc": ["body", "fee"], "msg": "Field required", "type": "missing"}]}'


@pytest.mark.parametrize("client", SYNC_CLIENTS, ids=lambda client: client.__name__)
@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "wait", "detail"),
    [
        (503, {}, b"down for maintenance", "transient", None, "down for maintenance"),
        (503, {"retry-after": "0"}, b"", "rate_limited", 0.0, None),
        (429, {"Retry-After": "7"}, b"", "rate_limited", 7.0, None),
        (403, {}, QUOTA_BODY, "quota", None, "exceeded your quota"),
        (422, {}, INVALID_BODY, "permanent", None, "body.fee: Field required"),
        (401, {}, b"", "auth", None, None),
    ],
)
def test_every_client_gets_the_same_verdict(answering, client, status, headers, body, kind, wait, detail):
    failure = client(answering(status, headers, body))
    verdict = classify(failure)
    assert (verdict.kind, verdict.status, verdict.retry_after) == (kind, status, wait)
    assert (detail in verdict.detail) if detail else (verdict.detail is None)
    if isinstance(failure, urllib.error.HTTPError):
        assert failure.read() == body, "the body must still be there for the caller"
        failure.close()


async def test_aiohttp_gets_the_same_verdict(answering):
    async with aiohttp.ClientSession() as session, session.get(answering(403, {"Retry-After": "9"}, QUOTA_BODY)) as got:
        await got.read()
        verdict = classify(got)
        assert (verdict.kind, verdict.retry_after, verdict.status) == ("quota", 9.0, 403)
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            got.raise_for_status()
    # aiohttp's error has the headers and not the body.
    verdict = classify(caught.value)
    assert (verdict.kind, verdict.retry_after, verdict.status) == ("rate_limited", 9.0, 403)


async def test_aiohttp_error_without_headers_is_judged_by_status():
    error = aiohttp.ClientResponseError(None, (), status=504, message="upstream silent")
    verdict = classify(error)
    assert (verdict.kind, verdict.status, verdict.detail) == ("transient", 504, "upstream silent")


def test_html_page_instead_of_json_is_judged_by_status():
    error = aiohttp.ContentTypeError(None, (), status=200, message="unexpected mimetype: text/html", headers={})
    assert classify(error).rule == "type.aiohttp.ContentTypeError"
    assert classify(error).kind is Kind.AMBIGUOUS


def test_response_of_the_standard_library_is_a_response(answering):
    url = answering(502, {}, b"")
    connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"))
    connection.request("GET", "/")
    response = connection.getresponse()
    assert classify(response).rule == "http.502"
    connection.close()
    response.close()


STATUS_KINDS = {
    "auth": [401],
    "permanent": [400, 402, 403, 405, 406, 407, 409, 411, 412, 413, 415, 418, 422, 431, 451, 499, 501, 505],
    "row": [404, 410],
    "transient": [408, 423, 425, 449, 502, 503, 504, 520, 521, 522, 523, 524, 529, 598, 599],
    "rate_limited": [420, 429, 430],
    "ambiguous": [500, 507, 508, 511],
}


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for kind, all_ in STATUS_KINDS.items() for status in all_])
@pytest.mark.parametrize("scope", ["call", "row", "task"])
def test_status_decides_in_every_scope(status, kind, scope):
    verdict = classify(httpx.Response(status), scope)
    assert (verdict.kind, verdict.status) == (kind, status)
    assert verdict.reason.startswith(f"HTTP {status}")


def test_rule_names_the_status_and_reason_its_phrase():
    assert classify(httpx.Response(503)).rule == "http.503"
    assert classify(httpx.Response(503)).reason == "HTTP 503 Service Unavailable"
    assert classify(httpx.Response(507)).rule == "http.5xx"
    assert classify(httpx.Response(418)).rule == "http.4xx"
    assert classify(httpx.Response(499)).reason == "HTTP 499"


@pytest.mark.parametrize("status", [403, 408, 413, 425, 429, 500, 502, 503, 504, 529])
def test_retry_after_counts_on_a_transient_response(status):
    verdict = classify(httpx.Response(status, headers={"retry-after": "3"}))
    assert (verdict.kind, verdict.retry_after, verdict.status) == (Kind.RATE_LIMITED, 3.0, status)


@pytest.mark.parametrize("status", [400, 401, 404, 405, 410, 422])
def test_retry_after_is_ignored_on_a_permanent_response(status):
    with_header = classify(httpx.Response(status, headers={"retry-after": "3"}))
    assert with_header == classify(httpx.Response(status))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_a_failure_only_with_retry_after(status):
    verdict = classify(httpx.Response(status, headers={"Retry-After": "1"}))
    assert (verdict.kind, verdict.retry_after) == (Kind.RATE_LIMITED, 1.0)
    with pytest.raises(ValueError, match=f"status {status} is not a failure"):
        classify(httpx.Response(status))


@pytest.mark.parametrize("status", [100, 200, 201, 204, 206, 304])
def test_success_is_not_a_failure(status):
    with pytest.raises(ValueError, match="is not a failure"):
        classify(httpx.Response(status))


def test_error_raised_for_a_redirect_is_permanent():
    request = httpx.Request("GET", "https://example.com/")
    with pytest.raises(httpx.HTTPStatusError) as caught:
        httpx.Response(302, request=request).raise_for_status()
    verdict = classify(caught.value)
    assert (verdict.kind, verdict.rule, verdict.status) == (Kind.PERMANENT, "http.3xx", 302)


def test_redirect_beside_another_error_is_not_its_cause():
    response = requests.Response()
    response.status_code = 302
    response.headers["Retry-After"] = "5"
    assert (
        classify(requests.TooManyRedirects("30 redirects", response=response)).rule == "type.requests.TooManyRedirects"
    )


def test_requests_error_without_a_response_is_judged_by_type():
    assert classify(requests.HTTPError("no response")).rule == "type.requests.HTTPError"


@pytest.mark.parametrize(
    "value", ["soon", "-5", "1e9999", "", "  ", "nan", "inf", "Infinity", "0x10", "١٢", "5 s", "3,4"]
)
def test_invalid_retry_after_is_ignored(value):
    headers = {"Retry-After": value.encode()}
    assert classify(httpx.Response(503, headers=headers)) == classify(httpx.Response(503))
    verdict = classify(httpx.Response(429, headers=headers))
    assert (verdict.kind, verdict.retry_after) == (Kind.RATE_LIMITED, None)


@pytest.mark.parametrize(
    "date", ["Wed, 01 May 2024 12:01:30 GMT", "Wednesday, 01-May-24 12:01:30 GMT", "Wed May  1 12:01:30 2024"]
)
def test_http_date_in_any_of_the_three_forms_is_read(date):
    verdict = classify(httpx.Response(503, headers={"Retry-After": date}), now=NOW)
    assert (verdict.kind, verdict.retry_after) == (Kind.RATE_LIMITED, 90.0)


def test_date_in_the_past_means_now_not_never():
    verdict = classify(httpx.Response(503, headers={"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}), now=NOW)
    assert (verdict.kind, verdict.retry_after) == (Kind.RATE_LIMITED, 0.0)


def test_date_is_compared_with_the_servers_own_clock():
    headers = {"Retry-After": "Wed, 01 May 2024 10:00:30 GMT", "Date": "Wed, 01 May 2024 10:00:00 GMT"}
    assert classify(httpx.Response(503, headers=headers), now=NOW).retry_after == 30.0
    headers["Date"] = "yesterday"
    assert classify(httpx.Response(503, headers=headers), now=NOW).retry_after == 0.0


def test_present_time_is_used_without_a_server_date():
    verdict = classify(httpx.Response(503, headers={"Retry-After": "Wed, 01 Jan 2800 00:00:00 GMT"}))
    assert verdict.retry_after > 3600 * 24 * 365 * 100


@pytest.mark.parametrize(
    "headers",
    [
        {"RETRY-AFTER": "4"},
        {b"retry-after": b"4"},
        [("Retry-After", "4")],
        httpx.Headers({"Retry-After": "4"}),
        requests.structures.CaseInsensitiveDict({"Retry-After": "4"}),
        urllib3.HTTPHeaderDict({"Retry-After": "4"}),
    ],
    ids=lambda headers: f"{type(headers).__name__} {headers}",
)
def test_headers_are_found_in_any_mapping_and_any_case(headers):
    class Response:
        status_code = 503

    response = Response()
    response.headers = headers
    assert classify(response).retry_after == 4.0


def test_headers_that_cannot_be_iterated_are_ignored():
    class Response:
        status = 503
        headers = 17

    assert classify(Response()).rule == "http.503"


@pytest.mark.parametrize(
    "reason",
    [
        *("quotaExceeded", "dailyLimitExceeded", "insufficient_quota", "RESOURCE_EXHAUSTED"),
    ],
)
def test_403_that_names_an_exhausted_credential_is_quota(reason):
    body = json.dumps({"error": {"status": reason}})
    verdict = classify(httpx.Response(403, text=body))
    assert (verdict.kind, verdict.rule) == (Kind.QUOTA, "http.403.quota")
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "said",
    [
        *(
            "rateLimitExceeded",
            "userRateLimitExceeded",
            "RATE_LIMIT_EXCEEDED",
            "concurrentLimitExceeded",
            "backendError",
        ),
        *("API rate limit exceeded for 203.0.113.7.", "You have exceeded a secondary rate limit."),
    ],
)
def test_403_that_asks_to_slow_down_is_rate_limited(said):
    verdict = classify(httpx.Response(403, json={"message": said}))
    assert (verdict.kind, verdict.rule, verdict.status) == (Kind.RATE_LIMITED, "http.403.limit", 403)


def test_429_that_names_an_exhausted_credential_is_quota():
    verdict = classify(httpx.Response(429, json={"error": {"code": "insufficient_quota"}}))
    assert (verdict.kind, verdict.rule) == (Kind.QUOTA, "http.429.quota")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"x-ms-retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"RateLimit-Reset": "42"}, 42),
        ({"X-RateLimit-Reset": "1735689660"}, 60),
        ({"Retry-After": "7", "X-RateLimit-Reset": "1735689660"}, 7),
        ({"Retry-After": "10, 20"}, 10),
        ({"Retry-After": "1735689630"}, 30),
        ({"Retry-After": "Wed, 01 Jan 2025 00:00:20 +0000"}, 20),
        ({"Retry-After": "Wed, 01 Jan 2025 00:00:20"}, 20),
        ({"retry-after-ms": "soon"}, None),
    ],
)
def test_wait_of_a_rate_limit_is_read_in_every_usual_form(headers, wait):
    now = datetime(2025, 1, 1, tzinfo=UTC)
    assert Classifier().classify(httpx.Response(429, headers=headers), now=now).retry_after == wait


def test_end_of_a_period_counts_only_for_a_limit():
    assert classify(httpx.Response(503, headers={"X-RateLimit-Reset": "3000"})).retry_after is None


def test_quota_with_retry_after_stays_quota_with_the_wait():
    verdict = classify(httpx.Response(403, text='{"reason": "quotaExceeded"}', headers={"Retry-After": "60"}))
    assert (verdict.kind, verdict.retry_after) == (Kind.QUOTA, 60.0)


def test_403_for_another_reason_is_permanent():
    assert classify(httpx.Response(403, text='{"reason": "insufficientPermissions"}')).kind is Kind.PERMANENT
    assert classify(httpx.Response(403, text="myquotaExceededness")).kind is Kind.PERMANENT
    assert classify(httpx.Response(400, text='{"reason": "quotaExceeded"}')).kind is Kind.PERMANENT
    assert classify(httpx.Response(429, text='{"reason": "quotaExceeded"}')).kind is Kind.RATE_LIMITED


def never():
    raise AssertionError("the stream was read")
    yield b""


async def anever():
    raise AssertionError("the stream was read")
    yield b""


class NeverRead(io.RawIOBase):
    def readable(self):
        return True

    def readinto(self, buffer):
        raise AssertionError("the stream was read")


def unread_requests_response():
    response = requests.Response()
    response.status_code = 503
    response.raw = NeverRead()
    return response


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(503, content=never()),
        httpx.Response(503, content=anever()),
        unread_requests_response(),
        urllib3.HTTPResponse(NeverRead(), status=503, preload_content=False),
    ],
    ids=lambda response: type(response).__module__,
)
def test_unread_stream_is_not_read(response):
    verdict = classify(response)
    assert (verdict.kind, verdict.detail) == (Kind.TRANSIENT, None)


async def test_unread_aiohttp_body_stays_unread(answering):
    async with aiohttp.ClientSession() as session, session.get(answering(403, {}, QUOTA_BODY)) as got:
        assert classify(got).kind is Kind.PERMANENT
        assert await got.read() == QUOTA_BODY
        assert classify(got).kind is Kind.QUOTA


def test_http_error_body_in_memory_is_shown_and_stays_readable():
    body = io.BytesIO(b'xx{"reason": "quotaExceeded"}')
    body.read(2)
    error = urllib.error.HTTPError("https://example.com/", 403, "Forbidden", Message(), body)
    assert classify(error).kind is Kind.QUOTA
    assert error.read() == b'{"reason": "quotaExceeded"}'
    error.close()
    assert classify(error).kind is Kind.PERMANENT


def test_http_error_without_a_body_is_judged_by_status():
    error = urllib.error.HTTPError("https://example.com/", 410, "Gone", Message(), None)
    assert classify(error).rule == "http.410"
    error.close()


class ApiError(Exception):
    def __init__(self, status_code, body=None):
        self.status_code = status_code
        self.body = body


def test_api_clients_own_exception_is_judged_by_its_status():
    verdict = classify(ApiError(422, '{"message": "fee must be a number"}'))
    assert (verdict.kind, verdict.rule, verdict.detail) == (Kind.PERMANENT, "http.4xx", "fee must be a number")
    assert classify(ApiError(200)).rule == "unknown"
    assert classify(ApiError("503")).rule == "unknown"


def test_status_of_a_response_is_read_from_any_client():
    assert response_status(httpx.Response(204)) == 204
    assert response_status(urllib3.HTTPResponse(status=500)) == 500
    response = requests.Response()
    assert response_status(response) is None
    response.status_code = 201
    assert response_status(response) == 201


class Order:
    status = 3


class Job:
    status_code = True
    headers = ()


@pytest.mark.parametrize("value", [None, 200, "200", {"status_code": 200}, Order(), Job(), ApiError(500)])
def test_object_that_is_no_response_has_no_status(value):
    assert response_status(value) is None


def test_response_types_are_known_by_name():
    class Mine(httpx.Response):
        pass

    known = (httpx.Response, Mine, requests.Response, aiohttp.ClientResponse, urllib3.HTTPResponse)
    assert all(is_response_type(cls) for cls in (*known, http.client.HTTPResponse))
    assert not any(is_response_type(cls) for cls in (dict, str, Order, urllib.error.HTTPError, httpx.Request))


def test_classifier_can_call_a_success_a_failure():
    picky = Classifier().rule(status=200, body='"error"', kind="row")
    assert picky.classify(httpx.Response(200, text='{"error": "no such id"}')).kind is Kind.ROW
    with pytest.raises(ValueError, match="is not a failure"):
        picky.classify(httpx.Response(200, text="{}"))
