"""An answered request is not sent again where the function judges the response and raises its own error."""

import asyncio
import contextlib
import http.client
from collections import ChainMap, deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import aiohttp
import httpx
import pytest
import requests
import urllib3

import redrive
from redrive import Classifier, Retry, Service
from redrive.testing import Answer, FaultyServer


class BankDown(Exception):
    pass


def make_bank(**options):
    retry = Retry(attempts=3, base=0.001, cap=0.002)
    return Service("bank", retry=retry, classifier=Classifier().rule(BankDown, kind="transient"), **options)


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        server.on("/pay", Answer(503))
        server.on("/busy", Answer(503, retry_after=0))
        server.on("/jobs", Answer(202))
        server.on("/jobs/7", Answer(200, body=b"running"))
        yield server


def by_http_client(url):
    address = urllib3.util.parse_url(url)
    connection = http.client.HTTPConnection(address.host, address.port)
    with contextlib.closing(connection):
        connection.request("POST", address.path)
        response = connection.getresponse()
        response.read()
    return response


def by_urllib3(url):
    return urllib3.request("POST", url, retries=False)


def sent_by(server, path, call):
    """Return how many requests a call that fails has sent, and its error."""
    before = server.count(path)
    with pytest.raises(Exception) as caught:
        call()
    return server.count(path) - before, caught.value


class TestOwnErrorAfterResponse:
    @pytest.mark.parametrize(
        "error", [BankDown, ConnectionError, ConnectionRefusedError, TimeoutError, redrive.Transient]
    )
    @pytest.mark.parametrize("post", [requests.post, httpx.post, by_urllib3, by_http_client])
    def test_is_final(self, server, post, error):
        def pay():
            response = post(f"{server.url}/pay")
            if response is not None:
                raise error("the bank is down")

        sent, raised = sent_by(server, "/pay", lambda: make_bank().call(pay))
        assert sent == 1
        assert "a POST without an Idempotency-Key is not retried" in raised.__notes__[0]

    def test_is_final_with_aiohttp(self, server):
        async def pay():
            async with aiohttp.ClientSession() as session, session.post(f"{server.url}/pay") as response:
                if response.status >= 500:
                    raise BankDown

        assert sent_by(server, "/pay", lambda: asyncio.run(make_bank(timeout=5.0).acall(pay)))[0] == 1

    def test_is_final_with_an_async_client(self, server):
        async def pay():
            async with httpx.AsyncClient() as client:
                response = await client.post(f"{server.url}/pay")
            if response.is_error:
                raise BankDown

        assert sent_by(server, "/pay", lambda: asyncio.run(make_bank().acall(pay)))[0] == 1

    def test_is_final_in_a_block(self, server):
        def pay():
            for attempt in make_bank().attempts():
                with attempt:
                    response = requests.post(f"{server.url}/pay")
                    if not response.ok:
                        raise BankDown

        assert sent_by(server, "/pay", pay)[0] == 1

    def test_is_final_where_another_function_judges(self, server):
        def check(response):
            if not response.ok:
                raise BankDown

        def pay():
            check(requests.post(f"{server.url}/pay"))

        assert sent_by(server, "/pay", lambda: make_bank().call(pay))[0] == 1

    def test_is_final_with_the_response_in_a_collection(self, server):
        def pay():
            answers = {"pay": requests.post(f"{server.url}/pay")}, "USD"
            responses = list(answers[0].values())
            del answers
            if responses:
                raise BankDown

        assert sent_by(server, "/pay", lambda: make_bank().call(pay))[0] == 1

    @pytest.mark.parametrize(
        "kept",
        [
            lambda answer: deque([answer]),
            lambda answer: [("order-1", answer)],
            lambda answer: [{"order": 1, "answer": answer}],
            lambda answer: {"orders": {1: [answer]}},
            lambda answer: {answer: "order-1"},
            lambda answer: ChainMap({}, {1: {2: answer}.values()}),
            lambda answer: [None] * 400 + [answer],
        ],
        ids=["deque", "pairs", "documents", "nested", "keys", "view", "end of a long list"],
    )
    def test_is_final_with_the_response_in_any_collection(self, server, kept):
        def pay():
            answers = kept(requests.post(f"{server.url}/pay"))
            if answers:
                raise BankDown

        assert sent_by(server, "/pay", lambda: make_bank().call(pay))[0] == 1

    def test_is_final_with_the_response_as_the_result_of_a_future(self, server):
        def pay():
            with ThreadPoolExecutor() as pool:
                futures = [(1, pool.submit(requests.post, f"{server.url}/pay"))]
            if futures:
                raise BankDown

        assert sent_by(server, "/pay", lambda: make_bank().call(pay))[0] == 1

    def test_is_final_with_the_response_in_a_nested_attribute(self, server):
        class Payment:
            state = None

            def pay(self):
                self.state = SimpleNamespace(response=requests.post(f"{server.url}/pay"))
                if not self.state.response.ok:
                    raise BankDown

        assert sent_by(server, "/pay", lambda: make_bank().call(Payment().pay))[0] == 1

    def test_is_final_with_the_response_in_an_attribute(self, server):
        class Payment:
            def send(self):
                self.response = requests.post(f"{server.url}/pay")

            def pay(self):
                self.send()
                if not self.response.ok:
                    raise BankDown

        assert sent_by(server, "/pay", lambda: make_bank().call(Payment().pay))[0] == 1


class TestRetryableOwnError:
    def test_post_of_an_idempotent_service_is_retried(self, server):
        def pay():
            response = requests.post(f"{server.url}/pay")
            raise BankDown(response.status_code)

        assert sent_by(server, "/pay", lambda: make_bank(idempotent=True).call(pay))[0] == 3

    @pytest.mark.parametrize("post", [requests.post, httpx.post])
    def test_post_with_a_key_is_retried(self, server, post):
        def pay():
            response = post(f"{server.url}/pay", headers={"Idempotency-Key": "k-1"})
            raise BankDown(response.status_code)

        assert sent_by(server, "/pay", lambda: make_bank().call(pay))[0] == 3

    @pytest.mark.parametrize("post", [requests.post, httpx.post, by_urllib3, by_http_client])
    def test_post_is_retried_where_the_server_did_not_act(self, server, post):
        def pay():
            response = post(f"{server.url}/busy")
            if response is not None:
                raise BankDown

        assert sent_by(server, "/busy", lambda: make_bank().call(pay))[0] == 3

    def test_get_is_retried(self, server):
        def read():
            response = requests.get(f"{server.url}/pay")
            raise BankDown(response.status_code)

        assert sent_by(server, "/pay", lambda: make_bank().call(read))[0] == 3


class TestEarlierResponse:
    """A job is submitted once, and polled in attempts."""

    def poll(self, server):
        response = requests.get(f"{server.url}/jobs/7")
        if response.text != "done":
            raise redrive.Transient("not done yet")

    def test_as_argument_does_not_count(self, server):
        def poll(job):
            assert job.status_code == 202
            self.poll(server)

        job = requests.post(f"{server.url}/jobs")
        assert sent_by(server, "/jobs/7", lambda: make_bank().call(poll, job))[0] == 3

    def test_as_forwarded_argument_does_not_count(self, server):
        def check(job, state):
            if state != "done":
                raise redrive.Transient(f"job of {job.status_code} is not done yet")

        def poll(job):
            check(job, requests.get(f"{server.url}/jobs/7").text)

        job = requests.post(f"{server.url}/jobs")
        assert sent_by(server, "/jobs/7", lambda: make_bank().call(poll, job))[0] == 3

    def test_before_a_block_does_not_count(self, server):
        def run():
            job = requests.post(f"{server.url}/jobs")
            for attempt in make_bank().attempts():
                with attempt:
                    assert job.status_code == 202
                    self.poll(server)

        assert sent_by(server, "/jobs/7", run)[0] == 3

    def test_in_an_attribute_of_other_code_does_not_count(self, server):
        class Client:
            def __init__(self):
                self.login = requests.post(f"{server.url}/jobs")

            def read(self):
                raise BankDown(self)

        client, calls = Client(), []
        with pytest.raises(BankDown):
            make_bank().call(lambda: (calls.append(1), client.read()))
        assert len(calls) == 3


@pytest.mark.parametrize("key", ["order-7", None])
def test_cut_body_with_a_key_is_retried_by_the_adapter(server, key):
    server.on("/pay", Answer(200, body=b"x" * 50, reset="mid-body"))
    service = redrive.Service("bank", retry=redrive.Retry(attempts=3, base=0.001, cap=0.001))

    def pay():
        with requests.Session() as session:
            session.mount("http://", service.requests_adapter())
            session.post(f"{server.url}/pay", headers={"Idempotency-Key": key})

    assert sent_by(server, "/pay", pay)[0] == (1 if key is None else 3)
