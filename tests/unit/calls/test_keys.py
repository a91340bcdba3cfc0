"""A derived idempotency key protects a request only where the next attempt sends it with the same key."""

import asyncio
import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import requests

import redrive
from redrive import Permanent, Retry, Service
from redrive.testing import Answer, FaultyServer

QUICK = Retry(attempts=4, base=0.001, cap=0.002, rate_limit_wait=0.001)
LOST = Answer(reset="before")


class Bank:
    """A server that does what is sent with one key only once."""

    def __init__(self, server, name):
        self.service = Service("bank", retry=QUICK, breaker=None, budget=None, idempotent="key")
        self.url = f"{server.url}/{name}"
        self.effects = []
        self._server, self._path, self._keys = server, f"/{name}", set()
        self.answers()

    def answers(self, *script):
        rest = iter(script)

        def act(request):
            key, answer = request.headers.get("Idempotency-Key"), next(rest, Answer(201))
            if answer.status not in (401, 429) and (key is None or key not in self._keys):
                self._keys.add(key)
                self.effects.append(request.body)
            return answer

        self._server.on(self._path, act)


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


@pytest.fixture
def bank(server, request):
    return Bank(server, request.node.name.partition("[")[0])


@pytest.fixture(params=["httpx", "requests", "httpx async"])
def run(request, bank):
    """Runs a generator function in a call of the bank: it yields what is to be posted, and is given the responses."""

    def steps(function):
        with httpx.Client(transport=bank.service.httpx_transport()) as client, requests.Session() as session:
            session.mount("http://", bank.service.requests_adapter())
            parts, answer = function(), None
            with contextlib.suppress(StopIteration):
                while True:
                    body = parts.send(answer)
                    if request.param == "httpx":
                        answer = client.post(bank.url, content=body)
                    else:
                        answer = session.post(bank.url, data=body)
                    answer.raise_for_status()

    async def asteps(function):
        async with httpx.AsyncClient(transport=bank.service.httpx_transport()) as client:
            parts, answer = function(), None
            with contextlib.suppress(StopIteration):
                while True:
                    answer = await client.post(bank.url, content=parts.send(answer))
                    answer.raise_for_status()

    def call(function):
        if request.param == "httpx async":
            return asyncio.run(bank.service.acall(asteps, function))
        return bank.service.call(steps, function)

    return call


def stamped():
    times = itertools.count()

    def pay():
        yield b"5 at %d" % next(times)

    return pay


def tickets(number, *, body=b"ticket"):
    """Order tickets; a retry continues where the previous attempt ended."""
    left = [number]

    def order():
        while left[0]:
            yield body
            left[0] -= 1

    return order


class TestChangedRequest:
    @pytest.mark.parametrize("fault", [LOST, Answer(503)])
    def test_is_not_sent(self, bank, run, fault):
        bank.answers(fault)
        with pytest.raises(Permanent, match=r"the POST was not sent: .* Idempotency-Key of your own"):
            run(stamped())
        assert bank.effects == [b"5 at 0"]

    def test_is_sent_if_the_first_was_rejected(self, bank, run):
        bank.answers(Answer(429))
        run(stamped())
        assert bank.effects == [b"5 at 1"]

    def test_is_not_sent_in_a_block_either(self, bank):
        bank.answers(LOST)
        with httpx.Client(transport=bank.service.httpx_transport()) as client:

            def pay():
                for attempt in bank.service.attempts():
                    with attempt:
                        client.post(bank.url, content=b"%d" % attempt.number)

            with pytest.raises(Permanent):
                pay()
        assert bank.effects == [b"1"]

    def test_is_not_called_where_it_is_a_function(self, bank):
        sent = []

        def pay(at, *, idempotency_key):
            sent.append(at)
            raise TimeoutError

        times = itertools.count()
        with pytest.raises(Permanent, match="pay was not sent"):
            bank.service.call(lambda: bank.service.call(pay, next(times)))
        assert sent == [0]

    def test_is_sent_with_a_key_of_the_caller(self, bank):
        bank.answers(LOST)
        times = itertools.count()
        with httpx.Client(transport=bank.service.httpx_transport()) as client:

            def pay():
                client.post(bank.url, content=b"%d" % next(times), headers={"Idempotency-Key": "order-7"})

            bank.service.call(pay)
        assert bank.effects == [b"0"]

    def test_is_sent_after_the_first_was_retried(self, bank, run):
        left = [b"a", b"b", b"c"]

        def order():
            while left:
                yield left[0]
                left.pop(0)

        bank.answers(Answer(201), LOST)
        run(order)
        assert bank.effects == [b"a", b"b", b"c"]


class TestEqualRequests:
    @pytest.mark.parametrize("fault", [LOST, Answer(503), Answer(429)])
    def test_of_one_attempt_end_the_call_with_its_error(self, bank, run, fault):
        bank.answers(Answer(201), fault)
        with pytest.raises((httpx.HTTPError, requests.RequestException)) as caught:
            run(tickets(3))
        assert caught.value.redrive.why.startswith("equal requests were sent in one attempt")
        assert len(caught.value.redrive.attempts) == 1

    def test_are_sent_after_the_first_was_retried(self, bank, run):
        bank.answers(LOST)
        run(tickets(3))
        assert len(bank.effects) == 3

    def test_of_an_earlier_attempt_are_rejected(self, bank, run):
        left = [b"a", b"b", b"a"]

        def order():
            while left:
                yield left[0]
                left.pop(0)

        bank.answers(Answer(201), LOST)
        with pytest.raises(Permanent, match="an equal request was answered in an earlier attempt"):
            run(order)
        assert bank.effects == [b"a", b"b"]

    def test_keep_their_key_after_one_was_rejected(self, bank):
        bank.answers(Answer(401), LOST)
        seen = []

        with httpx.Client(transport=bank.service.httpx_transport()) as client:

            def pay():
                seen.append(client.post(bank.url, content=b"x").status_code)
                if seen[-1] == 401:
                    client.post(bank.url, content=b"x")

            bank.service.call(pay)
        assert bank.effects == [b"x"]

    def test_of_a_get_are_retried(self, bank):
        bank.answers(Answer(200), Answer(503))
        polls = []
        with httpx.Client(transport=bank.service.httpx_transport()) as client:

            def poll():
                polls.append(client.get(bank.url))
                polls.append(client.get(bank.url).raise_for_status())

            bank.service.call(poll)
        assert len(polls) == 3


class TestKeyOfAnotherCall:
    """The outer call would not send it again."""

    @pytest.mark.parametrize("fault", [LOST, Answer(503)])
    def test_does_not_protect_a_request_of_a_thread(self, bank, fault):
        bank.answers(*[fault] * 8)
        with ThreadPoolExecutor(1) as threads, httpx.Client(transport=bank.service.httpx_transport()) as client:

            def pay():
                threads.submit(client.post, bank.url, content=b"5").result().raise_for_status()

            async def apay():
                loop = asyncio.get_running_loop()
                response = await loop.run_in_executor(threads, lambda: client.post(bank.url, content=b"5"))
                response.raise_for_status()

            for call in (lambda: bank.service.call(pay), lambda: asyncio.run(bank.service.acall(apay))):
                bank.effects.clear()
                with pytest.raises(httpx.HTTPError):
                    call()
                assert bank.effects == [b"5"]

    @pytest.mark.parametrize("inner", ["same service", "other service", "block"])
    def test_does_not_protect_requests_of_a_function(self, bank, inner):
        bank.answers(*[Answer(503)] * 8)
        plain, other = (Service(name, retry=QUICK, breaker=None) for name in ("plain", "other"))

        def pay(*, idempotency_key):
            requests.post(bank.url, data=b"5", headers={"Idempotency-Key": idempotency_key}).raise_for_status()

        def in_block():
            for attempt in plain.attempts():
                with attempt:
                    pay(idempotency_key=attempt.idempotency_key)

        calls = {
            "same service": lambda: plain.call(lambda: plain.call(pay)),
            "other service": lambda: other.call(lambda: plain.call(pay)),
            "block": lambda: other.call(in_block),
        }
        with pytest.raises(requests.HTTPError):
            calls[inner]()
        assert bank.effects == [b"5"]

    def test_protects_if_the_caller_chose_the_key(self, bank):
        bank.answers(*[Answer(503)] * 3)
        service = redrive.Service("plain", retry=QUICK, breaker=None)

        def pay(*, idempotency_key):
            requests.post(bank.url, data=b"5", headers={"Idempotency-Key": idempotency_key}).raise_for_status()

        service.call(lambda: service.with_options(idempotency_key="order-7").call(pay))
        assert bank.effects == [b"5"]
