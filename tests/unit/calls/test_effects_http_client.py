"""Requests that a program sends by http.client or urllib.request, without any other client."""

import contextlib
import http.client
import urllib.error
import urllib.parse
import urllib.request

import pytest

from redrive import Retry, Service
from redrive.testing import Answer, FaultyServer

QUICK = Retry(attempts=3, base=0.001, cap=0.002, rate_limit_wait=0.001)
FAULTS = {
    "reset": Answer(reset="before"),
    "no answer": Answer(hang=True),
    "cut body": Answer(200, body=b"x" * 50, reset="mid-body"),
}


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


def by_http_client(method, url, **headers):
    address = urllib.parse.urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(address.hostname, address.port, timeout=0.3)) as connection:
        connection.request(method, address.path, b"{}", headers)
        return connection.getresponse().read()


def by_urllib(method, url, **headers):
    request = urllib.request.Request(url, data=b"{}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=0.3) as response:
            return response.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def attempts_made(send, *args, **headers):
    with pytest.raises((OSError, http.client.HTTPException)) as caught:
        Service("bank", retry=QUICK, breaker=None).call(send, *args, **headers)
    return len(caught.value.redrive.attempts)


@pytest.mark.parametrize("send", [by_http_client, by_urllib])
class TestFaultAfterSending:
    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize(("method", "expected"), [("POST", 1), ("GET", 3), ("PUT", 3)])
    def test_retries_idempotent_methods_only(self, server, send, fault, method, expected):
        server.on("/pay", FAULTS[fault])
        assert attempts_made(send, method, f"{server.url}/pay") == expected

    def test_retries_a_post_that_was_never_sent(self, send):
        assert attempts_made(send, "POST", "http://127.0.0.1:9/pay") == 3


class TestUrllib:
    @pytest.mark.parametrize("fault", ["reset", "no answer"])
    def test_retries_a_post_with_a_key(self, server, fault):
        server.on("/pay", FAULTS[fault])
        assert attempts_made(by_urllib, "POST", f"{server.url}/pay", **{"Idempotency-Key": "order-7"}) == 3

    @pytest.mark.parametrize(("answer", "expected"), [(Answer(502), 1), (Answer(503, retry_after=0), 3)])
    def test_judges_an_http_error_by_its_request(self, server, answer, expected):
        server.on("/pay", answer)
        assert attempts_made(by_urllib, "POST", f"{server.url}/pay") == expected
        server.on("/pay", Answer(502))
        assert attempts_made(by_urllib, "POST", f"{server.url}/pay", **{"Idempotency-Key": "order-7"}) == 3
