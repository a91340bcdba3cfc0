"""The effects rule for urllib3, used directly or below requests."""

import pytest
import requests
import urllib3

from redrive import Retry, Service
from redrive.testing import Answer, FaultyServer

QUICK = Retry(attempts=2, base=0.001, cap=0.002)
LOST = {
    "no answer": Answer(hang=True),
    "reset": Answer(reset="before"),
    "cut body": Answer(200, body=b"x" * 50, reset="mid-body"),
    "garbled body": Answer(200, body=b"garbage", headers={"Content-Encoding": "gzip"}),
    "503": Answer(503),
    "redirect to a reset": Answer(303, headers={"Location": "/broken"}),
}
KEY = {"Idempotency-Key": "order-7"}


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        server.on("/broken", Answer(reset="before"))
        yield server


@pytest.fixture(scope="module")
def pool():
    with urllib3.PoolManager(timeout=0.3) as pool:
        yield pool


def sent(server, path, function):
    before = server.count(path)
    with pytest.raises(Exception):  # noqa: B017  # the client's error, whichever it is
        Service("bank", retry=QUICK).call(function)
    return server.count(path) - before


class TestPoolManager:
    @pytest.mark.parametrize("lost", LOST)
    @pytest.mark.parametrize("retries", [False, 1])
    def test_post_is_sent_once(self, server, pool, lost, retries):
        server.on("/pay", LOST[lost])
        options = {} if lost.startswith("redirect") else {"retries": retries}
        assert sent(server, "/pay", lambda: pool.request("POST", f"{server.url}/pay", **options)) == 1

    def test_body_that_is_read_later_is_cut(self, server, pool):
        def pay():
            return pool.request("POST", f"{server.url}/pay", preload_content=False).read()

        server.on("/pay", LOST["cut body"])
        assert sent(server, "/pay", pay) == 1

    def test_post_with_a_key_is_retried_after_an_error(self, server, pool):
        server.on("/pay", LOST["reset"])
        assert sent(server, "/pay", lambda: pool.request("POST", f"{server.url}/pay", headers=KEY, retries=False)) == 2

    def test_rejected_post_is_retried(self, server, pool):
        server.on("/pay", Answer(503, retry_after=0))
        assert sent(server, "/pay", lambda: pool.request("POST", f"{server.url}/pay", retries=False)) == 2

    def test_post_that_was_never_sent_is_retried(self, pool):
        with pytest.raises(urllib3.exceptions.HTTPError) as caught:
            Service("bank", retry=QUICK).call(lambda: pool.request("POST", "http://127.0.0.1:9/", retries=False))
        assert len(caught.value.redrive.attempts) == 2

    def test_get_is_retried(self, server, pool):
        server.on("/read", LOST["reset"])
        assert sent(server, "/read", lambda: pool.request("GET", f"{server.url}/read", retries=False)) == 2


class TestRawBodyOfRequests:
    @pytest.mark.parametrize(("headers", "expected"), [({}, 1), (KEY, 2)])
    def test_is_the_post_of_its_response(self, server, headers, expected):
        def pay():
            with requests.post(f"{server.url}/pay", headers=headers, stream=True, timeout=5) as response:
                return response.raw.read()

        server.on("/pay", LOST["cut body"])
        assert sent(server, "/pay", pay) == expected

    def test_key_counts_where_requests_reads_the_body(self, server):
        server.on("/pay", LOST["cut body"])
        assert sent(server, "/pay", lambda: requests.post(f"{server.url}/pay", headers=KEY, timeout=5)) == 2
