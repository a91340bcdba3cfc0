"""A request that may have arrived is not sent again, whichever error reports the failure."""

import asyncio
import json

import aiohttp
import httpx
import pytest
import requests

import redrive
from redrive import Retry, Service
from redrive.testing import Answer, FaultyServer

QUICK = Retry(attempts=3, base=0.001, cap=0.002, rate_limit_wait=0.001)
LOST = {
    "no answer": Answer(hang=True),
    "reset": Answer(reset="before"),
    "500": Answer(500),
    "502": Answer(502),
    "cut body": Answer(200, body=b"x" * 50, reset="mid-body"),
    "garbled body": Answer(200, body=b"garbage", headers={"Content-Encoding": "gzip"}),
    "no JSON": Answer(200, body="<html>"),
}


class PaymentError(Exception):
    pass


class Unavailable(Exception):
    status_code = 503


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


def by_httpx(method, url):
    httpx.request(method, url, timeout=0.3).raise_for_status().json()


def by_requests(method, url):
    response = requests.request(method, url, timeout=0.3)
    response.raise_for_status()
    response.json()


def raised_from(send):
    try:
        send()
    except Exception as error:
        raise PaymentError from error


def raised_in_handler(send):
    try:
        send()
    except Exception:
        raise PaymentError  # noqa: B904  # only the context shows it


def raised_twice(send):
    try:
        raised_in_handler(send)
    except PaymentError as error:
        raise PaymentError from error


def raised_with_status(send):
    try:
        send()
    except Exception as error:
        raise Unavailable from error


def stated_transient(send):
    try:
        send()
    except Exception as error:
        raise redrive.Transient("again") from error


def raised_in_group(send):
    try:
        send()
    except Exception as error:
        raise ExceptionGroup("two of them", [TimeoutError(), error]) from None


WRAPPERS = [raised_from, raised_in_handler, raised_twice, raised_with_status, stated_transient, raised_in_group]


def attempts_made(guard, function):
    with pytest.raises(Exception) as caught:
        guard.call(function)
    return len(caught.value.redrive.attempts), caught.value.redrive.why


class TestUnsafeRequestError:
    @pytest.mark.parametrize("send", [by_httpx, by_requests])
    @pytest.mark.parametrize("lost", LOST)
    def test_is_final_without_wrapper(self, server, send, lost):
        server.on("/pay", LOST[lost])
        made, why = attempts_made(Service("bank", retry=QUICK), lambda: send("POST", f"{server.url}/pay"))
        assert (made, why[:6]) == (1, "a POST")

    @pytest.mark.parametrize("wrap", WRAPPERS)
    @pytest.mark.parametrize("send", [by_httpx, by_requests])
    @pytest.mark.parametrize("lost", ["reset", "502", "cut body"])
    def test_is_final_inside_another_error(self, server, send, lost, wrap):
        server.on("/pay", LOST[lost])
        made, _ = attempts_made(Service("bank", retry=QUICK), lambda: wrap(lambda: send("POST", f"{server.url}/pay")))
        assert made == 1

    def test_is_final_with_aiohttp(self, server):
        async def pay():
            async with aiohttp.ClientSession() as session, session.post(f"{server.url}/pay") as response:
                await response.json()

        async def main(service):
            with pytest.raises(aiohttp.ClientError) as caught:
                await service.acall(pay)
            return len(caught.value.redrive.attempts)

        for lost in ("reset", "cut body"):
            server.on("/pay", LOST[lost])
            assert asyncio.run(main(Service("bank", retry=QUICK))) == 1, lost

    def test_is_final_with_stripe_unless_a_key_is_passed(self, server):
        stripe = pytest.importorskip("stripe")
        client = stripe.StripeClient(
            "sk_test_1", http_client=stripe.RequestsClient(), base_addresses={"api": server.url}, max_network_retries=0
        )
        for answer in (Answer(reset="before"), Answer(500, json={"error": {"message": "down"}})):
            server.on("/v1/charges", answer)
            for options, expected in ((None, 1), ({"idempotency_key": "order-7"}, 3)):
                service = Service(
                    "stripe", retry=Retry(attempts=3, base=0.001, cap=0.002, on=("transient", "ambiguous"))
                )
                made, _ = attempts_made(service, lambda: client.v1.charges.create({"amount": 5}, options))  # noqa: B023
                assert made == expected, (answer, options)

    @pytest.mark.parametrize("send", [httpx.post, requests.post])
    def test_is_final_where_the_program_parses_the_body(self, server, send):
        def pay():
            response = send(f"{server.url}/pay")
            return json.loads(response.text)

        server.on("/pay", LOST["no JSON"])
        assert attempts_made(Service("bank", retry=QUICK), pay)[0] == 1

    def test_is_found_in_a_cycle_of_causes(self):
        outer, inner = PaymentError(), httpx.ReadTimeout("", request=httpx.Request("POST", "http://bank/pay"))
        outer.__cause__, inner.__cause__ = inner, outer

        def pay():
            raise outer

        assert attempts_made(Service("bank", retry=QUICK), pay)[0] == 1


class TestRuleWithRetryAfter:
    """A rule of the program sets the wait; it does not state that the server did not act."""

    @pytest.mark.parametrize("kind", ["transient", "rate_limited", "retry_now", "ambiguous"])
    def test_does_not_retry_a_post(self, server, kind):
        server.on("/pay", Answer(503))
        classifier = redrive.Classifier().rule(status=503, kind=kind, retry_after=0.001)
        service = Service("bank", retry=QUICK, breaker=None, classifier=classifier)
        with (
            httpx.Client(transport=service.httpx_transport(), base_url=server.url) as client,
            requests.Session() as session,
        ):
            session.mount(server.url, service.requests_adapter())
            sends = [
                lambda: client.post("/pay"),
                lambda: session.post(f"{server.url}/pay"),
                lambda: attempts_made(service, lambda: httpx.post(f"{server.url}/pay")),
                lambda: attempts_made(service, lambda: by_requests("POST", f"{server.url}/pay")),
            ]
            for send in sends:
                before = server.count("/pay")
                send()
                assert server.count("/pay") - before == 1

    def test_retries_a_get(self, server):
        server.on("/read", Answer(503))
        classifier = redrive.Classifier().rule(status=503, kind="rate_limited", retry_after=0.001)
        service = Service("bank", retry=QUICK, classifier=classifier)
        assert attempts_made(service, lambda: by_httpx("GET", f"{server.url}/read"))[0] == 3


class TestRetryableWrappedError:
    @pytest.mark.parametrize("send", [by_httpx, by_requests])
    @pytest.mark.parametrize("wrap", [raised_from, raised_in_group])
    def test_get_is_retried(self, server, send, wrap):
        server.on("/read", Answer(502))
        made, _ = attempts_made(Service("bank", retry=QUICK), lambda: wrap(lambda: send("GET", f"{server.url}/read")))
        assert made == 3

    @pytest.mark.parametrize("send", [by_httpx, by_requests])
    @pytest.mark.parametrize("answer", [Answer(429), Answer(503, retry_after=0)])
    def test_rejected_post_is_retried(self, server, send, answer):
        server.on("/pay", answer)
        made, _ = attempts_made(
            Service("bank", retry=QUICK), lambda: raised_from(lambda: send("POST", f"{server.url}/pay"))
        )
        assert made == 3

    @pytest.mark.parametrize("send", [by_httpx, by_requests])
    def test_unsent_post_is_retried(self, send):
        made, _ = attempts_made(
            Service("bank", retry=QUICK), lambda: raised_from(lambda: send("POST", "http://127.0.0.1:9/"))
        )
        assert made == 3

    def test_post_of_an_idempotent_service_is_retried(self, server):
        server.on("/pay", Answer(502))
        service = Service("bank", retry=QUICK, idempotent=True)
        assert attempts_made(service, lambda: raised_from(lambda: by_httpx("POST", f"{server.url}/pay")))[0] == 3

    def test_get_made_while_a_post_error_is_handled_is_retried(self, server):
        server.on("/pay", Answer(502))
        server.on("/read", Answer(502))
        try:
            by_httpx("POST", f"{server.url}/pay")
        except httpx.HTTPStatusError:
            made, _ = attempts_made(Service("bank", retry=QUICK), lambda: by_httpx("GET", f"{server.url}/read"))
        assert made == 3


class TestIdempotencyKey:
    @pytest.mark.parametrize("send", [httpx.post, requests.post])
    @pytest.mark.parametrize(("key", "expected"), [("order-7", 3), ("", 1)])
    def test_counts_unless_it_is_empty(self, server, send, key, expected):
        server.on("/pay", Answer(502))
        made, _ = attempts_made(
            Service("bank", retry=QUICK), lambda: send(f"{server.url}/pay", headers={"Idempotency-Key": key})
        )
        assert made == expected


@pytest.mark.parametrize(
    "answer", [object(), "x", 503, None, lambda: 1], ids=["object", "text", "number", "None", "function"]
)
def test_error_with_every_attribute_reaches_the_caller(answer):
    class Odd(Exception):
        def __getattr__(self, name):
            return answer

    classifier = redrive.Classifier().rule(Odd, kind="transient")
    service = redrive.Service("bank", retry=redrive.Retry(attempts=2, base=0.001, cap=0.001), classifier=classifier)
    calls = []

    def pay():
        calls.append(1)
        raise Odd("boom")

    with pytest.raises(Odd):
        service.call(pay)
    assert len(calls) == 2
