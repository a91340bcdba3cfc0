"""HTTP adapters against a real server with faults; the numbers are those of docs/semantics.md."""

import asyncio
import io
import logging
import socket
import time
from urllib.parse import urlencode

import httpx
import pytest
import requests
from requests.auth import HTTPDigestAuth

import redrive
from redrive import CircuitOpen, Classifier, KeyPool, Retry, RetryBudget, Service, Token
from redrive.calls.adapters.outgoing import Origin
from redrive.testing import Answer, FaultyServer

QUICK = Retry(base=0.001, cap=0.002)


@pytest.fixture
def server():
    with FaultyServer() as server:
        yield server


class Client:
    """One way of sending requests through a service: by httpx, by httpx in a coroutine, or by requests."""

    def __init__(self, kind, url):
        self.kind, self.url = kind, url

    def send(self, service, method, path, *, apply="bearer", **options):
        if self.kind == "requests":
            if "content" in options:
                options["data"] = options.pop("content")
            with requests.Session() as session:
                session.mount("http://", service.requests_adapter(apply=apply))
                return session.request(method, self.url + path, **options)
        transport = service.httpx_transport(apply=apply)
        if self.kind == "httpx":
            with httpx.Client(transport=transport, base_url=self.url) as client:
                return client.request(method, path, **options)

        async def asend():
            async with httpx.AsyncClient(transport=transport, base_url=self.url) as client:
                return await client.request(method, path, **options)

        return asyncio.run(asend())


@pytest.fixture(params=["httpx", "async httpx", "requests"])
def client(request, server):
    return Client(request.param, server.url)


READ_TIMEOUTS = (httpx.ReadTimeout, requests.ReadTimeout)
CONNECT_ERRORS = (httpx.ConnectError, requests.ConnectionError)
SHORT = 0.4
SHORT_READ = redrive.Timeout(total=60, connect=30, read=SHORT)  # a busy machine may take long to connect


def requests_heard(server, path, expected):
    """Return the number of requests at the server once all have arrived: a client that times out is ahead of it."""
    for _ in range(2_000):
        if server.count(path) >= expected:
            break
        time.sleep(0.005)
    return server.count(path)


def test_failures_then_success_are_one_response_to_the_caller(client, server):
    server.on("/orders", *Answer(503).times(2), Answer(json={"ok": True}))
    response = client.send(Service("shipfast", retry=QUICK), "GET", "/orders")
    assert response.json() == {"ok": True}
    assert server.count("/orders") == 3


def test_last_bad_response_is_returned_with_its_attempts(client, server):
    server.on("/orders", Answer(503, json={"message": "down for maintenance"}))
    response = client.send(Service("shipfast", retry=Retry(attempts=3, base=0.001, cap=0.001)), "GET", "/orders")
    assert response.status_code == 503
    assert response.json() == {"message": "down for maintenance"}
    assert len(response.redrive.attempts) == 3
    assert "down for maintenance" in str(response.redrive)


def test_permanent_response_is_returned_unchanged_at_once(client, server):
    server.on("/orders", Answer(422, json={"detail": "fee must not be negative"}))
    response = client.send(Service("shipfast", retry=QUICK), "POST", "/orders", json={"fee": -1})
    assert response.status_code == 422
    assert response.redrive.verdict.kind == "permanent"
    assert response.redrive.verdict.detail == "fee must not be negative"
    assert server.count("/orders") == 1


@pytest.mark.parametrize("reset", ["before", "mid-body"])
def test_connection_broken_in_mid_body_is_retried(client, server, reset):
    server.on("/page", Answer(json=list(range(100)), reset=reset), Answer(json=[1]))
    assert client.send(Service("shipfast", retry=QUICK), "GET", "/page").json() == [1]
    assert server.count("/page") == 2


def test_hang_is_ended_by_the_attempt_timeout(client, server):
    server.on("/page", Answer(hang=True), Answer(json=[1]))
    assert client.send(Service("shipfast", retry=QUICK, timeout=0.7), "GET", "/page").json() == [1]
    assert server.count("/page") == 2


def test_exhausted_read_timeout_is_the_librarys_own_error(client, server):
    server.on("/page", Answer(hang=True))
    shipfast = Service("shipfast", retry=Retry(attempts=2, base=0.001, cap=0.001), timeout=SHORT_READ)
    with pytest.raises(READ_TIMEOUTS) as caught:
        client.send(shipfast, "GET", "/page")
    assert "service 'shipfast', GET /page: 2 attempts" in caught.value.__notes__[0]


def test_slow_body_is_ended_by_the_attempt_timeout(client, server):
    server.on("/page", Answer(body="x" * 200, drip=0.02), Answer(json=[1]))
    assert client.send(Service("shipfast", retry=QUICK, timeout=0.7), "GET", "/page").json() == [1]


class TestTimeout:
    def test_read_limit_cuts_a_hang_below_the_total(self, client, server):
        server.on("/page", Answer(hang=True), Answer(json=[1]))
        limits = redrive.Timeout(total=60, connect=30, read=SHORT)
        assert client.send(Service("shipfast", retry=QUICK, timeout=limits), "GET", "/page").json() == [1]
        assert server.count("/page") == 2

    def test_each_phase_has_the_shorter_of_both_limits(self, server):
        asked = []

        class Asks(httpx.HTTPTransport):
            def handle_request(self, request):
                asked.append(request.extensions["timeout"])
                return super().handle_request(request)

        service = Service("shipfast", timeout=redrive.Timeout(connect=3, read=7))
        with httpx.Client(transport=service.httpx_transport(Asks()), timeout=5) as client:
            client.get(server.url)
            client.get(server.url, timeout=None)
        assert asked[0] == {"connect": 3, "read": 5, "write": 5, "pool": 3}
        assert asked[1] == {"connect": 3, "read": 7, "write": 7, "pool": 3}

    def test_requests_gets_both_limits(self, server):
        asked = []

        class Asks(requests.adapters.HTTPAdapter):
            def send(self, request, **options):
                asked.append(options["timeout"])
                return super().send(request, **options)

        service = Service("shipfast").with_options(timeout=redrive.Timeout(connect=3))
        with requests.Session() as session:
            session.mount("http://", service.requests_adapter(Asks()))
            session.get(server.url)
            session.get(server.url, timeout=(5, 2))
        assert asked == [(3, None), (3, 2)]

    def test_invalid_limits_are_rejected(self):
        with pytest.raises(ValueError, match=r"read of 9 s is longer than the total of 5 s"):
            redrive.Timeout(total=5, read=9)
        with pytest.raises(ValueError, match="needs total, connect or read"):
            redrive.Timeout()
        with pytest.raises(ValueError, match=r"a number of seconds or a redrive\.Timeout, not '5'"):
            Service("shipfast", timeout="5")


def test_open_circuit_sends_nothing(client, server):
    server.on("/page", Answer(503))
    shipfast = Service("shipfast", retry=Retry(attempts=5, base=0, cap=0))
    client.send(shipfast, "GET", "/page")
    with pytest.raises(CircuitOpen):
        client.send(shipfast, "GET", "/page")
    assert server.count("/page") == 5


def test_rules_may_reject_a_successful_response(client, server):
    server.on("/job", Answer(202), Answer(202), Answer(json={"state": "done"}))
    classifier = Classifier().rule(status=202, kind="transient", reason="not ready")
    response = client.send(Service("shipfast", retry=QUICK, classifier=classifier), "GET", "/job")
    assert response.json() == {"state": "done"}


# ── 10: unknown outcomes ─────────────────────────────────────────────────────────────────────────────────────────


def test_10_post_after_a_read_timeout_is_not_retried(client, server):
    server.on("/orders", Answer(hang=True))
    with pytest.raises(READ_TIMEOUTS) as caught:
        client.send(Service("shipfast", retry=QUICK, timeout=SHORT_READ), "POST", "/orders", json={"id": 7})
    assert requests_heard(server, "/orders", 1) == 1
    assert "a POST without an Idempotency-Key is not retried" in caught.value.redrive.why


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_10_post_with_ambiguous_response_is_not_retried(client, server, status):
    server.on("/orders", Answer(status))
    assert client.send(Service("shipfast", retry=QUICK), "POST", "/orders").status_code == status
    assert server.count("/orders") == 1


def test_10_post_is_retried_where_the_server_did_not_act(client, server):
    server.on("/orders", Answer(429, retry_after=0), Answer(503, retry_after=0), Answer(201))
    assert client.send(Service("shipfast", retry=QUICK), "POST", "/orders").status_code == 201


def test_10_post_is_retried_with_a_key_of_the_caller(client, server):
    server.on("/orders", Answer(502), Answer(201))
    response = client.send(Service("shipfast", retry=QUICK), "POST", "/orders", headers={"Idempotency-Key": "order-17"})
    assert response.status_code == 201
    assert [request.headers.get("Idempotency-Key") for request in server.requests] == ["order-17"] * 2


def test_10_post_is_retried_for_an_idempotent_service(client, server):
    server.on("/search", Answer(502), Answer(json=[]))
    assert client.send(Service("shipfast", retry=QUICK, idempotent=True), "POST", "/search").status_code == 200


def test_10_post_is_retried_where_it_was_never_sent():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for kind in ("httpx", "async httpx", "requests"):
            with pytest.raises(CONNECT_ERRORS) as caught:
                Client(kind, url).send(Service("shipfast", retry=QUICK), "POST", "/orders", json={"id": 7})
            assert len(caught.value.redrive.attempts) == 5


def test_10_post_inside_a_guarded_function_has_the_same_rules(server):
    server.on("/orders", Answer(hang=True))
    shipfast = Service("shipfast", retry=QUICK)
    with (
        httpx.Client(base_url=server.url, timeout=httpx.Timeout(30, read=SHORT)) as client,
        pytest.raises(httpx.ReadTimeout),
    ):
        shipfast.call(client.post, "/orders")
    assert requests_heard(server, "/orders", 1) == 1


# ── 11: idempotency keys ─────────────────────────────────────────────────────────────────────────────────────────


def keys_seen(server, path="*"):
    return [request.headers.get("Idempotency-Key") for request in server.requests if path in ("*", request.path)]


@pytest.mark.parametrize("blank", ["", " \t"])
def test_11_empty_key_of_the_caller_is_replaced(client, server, blank):
    server.on("/orders", Answer(502), Answer(201))
    shipfast = Service("shipfast", retry=QUICK, idempotent="key")
    if blank and client.kind == "requests":
        blank = ""  # requests rejects a value that begins with a space
    assert client.send(shipfast, "POST", "/orders", headers={"Idempotency-Key": blank}).status_code == 201
    first, second = keys_seen(server)
    assert first == second
    assert first.strip()


@pytest.mark.parametrize("status", [307, 308])
def test_11_redirected_post_keeps_its_key(client, server, status):
    server.on("/orders", Answer(status, headers={"Location": "/v2/orders"}))
    server.on("/v2/orders", Answer(status, headers={"Location": "/v3/orders"}))
    server.on("/v3/orders", Answer(502), Answer(201))
    shipfast = Service("shipfast", retry=QUICK, idempotent="key")
    redirects = {"allow_redirects" if client.kind == "requests" else "follow_redirects": True}
    assert client.send(shipfast, "POST", "/orders", json={}, **redirects).status_code == 201
    first = keys_seen(server)
    assert len(first) == 4
    assert len(set(first)) == 1
    client.send(shipfast, "POST", "/orders", json={}, **redirects)
    assert keys_seen(server)[-1] not in first


def test_11_request_after_a_redirect_has_another_key(server):
    server.on("/orders", Answer(307, headers={"Location": "/v2/orders"}))
    server.on("/v2/orders", Answer(201))
    shipfast = Service("shipfast", retry=QUICK, idempotent="key")
    with httpx.Client(transport=shipfast.httpx_transport(), follow_redirects=True) as client:
        request = client.build_request("POST", f"{server.url}/orders", json={})
        for _ in range(2):
            client.send(request)
    with requests.Session() as session:
        session.mount("http://", shipfast.requests_adapter())
        prepared = session.prepare_request(requests.Request("POST", f"{server.url}/orders", json={}))
        for copy in (prepared, prepared, prepared.copy()):
            session.send(copy)
    keys = keys_seen(server)
    assert keys[::2] == keys[1::2]
    assert len(set(keys)) == 5


def test_11_call_has_one_key_across_credentials(client, server):
    server.limit_keys({"key-aaaa": 0, "key-bbbb": None}, bearer=True)
    server.on("/orders", Answer(502), Answer(201))
    shipfast = Service("shipfast", retry=QUICK, idempotent="key", credentials=KeyPool(["key-aaaa", "key-bbbb"]))
    assert client.send(shipfast, "POST", "/orders", json={}).status_code == 201
    first = keys_seen(server)
    assert len(first) == 3
    assert len(set(first)) == 1
    assert first[0]
    client.send(shipfast, "POST", "/orders", json={})
    assert keys_seen(server)[-1] not in first


def test_11_function_may_have_a_key_parameter(service, flaky):
    outcome, seen = flaky(TimeoutError(), TimeoutError(), "done"), []

    def work(*, idempotency_key):
        seen.append(idempotency_key)
        return outcome()

    service().call(work)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    service().call(work)
    assert seen[-1] != seen[0]


def test_11_function_may_name_the_key_parameter(service):
    seen = []

    def work(*, idempotency_key):
        seen.append(idempotency_key)

    service().with_options(idempotency_key="order-17").call(work)
    assert seen == ["order-17"]


def test_11_requests_in_a_function_have_the_same_keys_on_retry(server):
    server.on("/orders", Answer(201))
    server.on("/payments", Answer(502), Answer(201))
    shipfast = Service("shipfast", retry=QUICK, idempotent="key")

    with httpx.Client(base_url=server.url, transport=shipfast.httpx_transport()) as client:

        @shipfast
        def order():
            client.post("/orders").raise_for_status()
            client.post("/payments").raise_for_status()

        order()
    (first, second), (third, fourth) = keys_seen(server, "/orders"), keys_seen(server, "/payments")
    assert first == second
    assert third == fourth
    assert first != third


# ── 12: bodies and responses ─────────────────────────────────────────────────────────────────────────────────────


def test_12_body_that_can_be_read_once_is_not_sent_again(client, server):
    server.on("/upload", Answer(503), Answer(200))

    def parts():
        yield b"one"

    async def aparts():
        yield b"one"

    body = aparts() if client.kind == "async httpx" else parts()
    response = client.send(Service("shipfast", retry=QUICK), "PUT", "/upload", content=body)
    assert response.status_code == 503
    assert "cannot be sent again" in response.redrive.why
    assert server.count("/upload") == 1


def test_12_bytes_and_files_are_sent_again_complete(client, server):
    server.on("/upload", *Answer(503).times(2), Answer(200))
    body = io.BytesIO(b"complete") if client.kind == "requests" else b"complete"
    assert client.send(Service("shipfast", retry=QUICK), "PUT", "/upload", content=body).status_code == 200
    assert [request.body for request in server.requests] == [b"complete"] * 3


def test_12_discarded_responses_release_their_connection(client, server):
    server.on("/page", *Answer(503, json=[0] * 1000).times(4), Answer(json=[1]))
    assert client.send(Service("shipfast", retry=QUICK), "GET", "/page").json() == [1]
    assert len({request.connection for request in server.requests}) == 1


def test_12_discarded_responses_of_a_function_release_theirs(server):
    server.on("/page", *Answer(503, json=[0] * 100_000).times(3), Answer(json=[1]))
    shipfast = Service("shipfast", retry=QUICK)
    discarded = []

    with httpx.Client(base_url=server.url) as client:

        def fetch():
            response = client.send(client.build_request("GET", "/page"), stream=True)
            discarded.append(response)
            return response

        response = shipfast.call(fetch)
        assert [old.is_closed for old in discarded] == [True, True, True, False]
        response.close()


# ── credentials on the wire ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("apply", "gate"),
    [("bearer", {"bearer": True}), ("X-Api-Key", {"header": "X-Api-Key"}), ("query:key", {"query": "key"})],
)
def test_credential_is_applied_as_configured_and_rotated(client, server, apply, gate):
    server.limit_keys({"key-aaaa": 1, "key-bbbb": None}, **gate)
    server.on("/page", Answer(json=[1]))
    shipfast = Service("shipfast", retry=QUICK, credentials=KeyPool(["key-aaaa", "key-bbbb"]))
    for _ in range(3):
        assert client.send(shipfast, "GET", "/page?n=1", apply=apply).json() == [1]
    assert server.count("/page") == 4
    assert all(request.query["n"] == "1" for request in server.requests)


def test_expired_token_is_refreshed_below_the_client(client, server):
    server.require_token(uses=2)
    server.on("/page", Answer(json=[1]))
    shipfast = Service("shipfast", retry=QUICK, credentials=Token(server.issue_token))
    for _ in range(5):
        assert client.send(shipfast, "GET", "/page").json() == [1]
    assert server.count("/page") == 5 + 2


@pytest.mark.parametrize("apply", ["bearer", "X-Api-Key", "query:key"])
def test_credential_follows_a_redirect_to_the_same_host_only(client, server, apply):
    with FaultyServer() as abroad:
        abroad.on("/page", Answer(json=["abroad"]))
        server.on("/there", Answer(302, headers={"Location": "/here"}))
        server.on("/here", Answer(302, headers={"Location": abroad.url + "/page"}))
        shipfast = Service("shipfast", credentials=KeyPool(["key-aaaa"]))
        follow = {} if client.kind == "requests" else {"follow_redirects": True}
        assert client.send(shipfast, "GET", "/there", apply=apply, **follow).json() == ["abroad"]
        for request in server.requests:
            assert "key-aaaa" in f"{request.headers!r} {request.query!r}"
        (stranger,) = abroad.requests
        assert "key-aaaa" not in f"{stranger.headers!r} {stranger.query!r}"


@pytest.mark.parametrize("status", [302, 308])
def test_query_credential_is_removed_from_a_redirect(client, server, status, caplog):
    """Servers that normalise paths keep the query: the client would show the key, and send it abroad."""
    secret = "sk/secret+1=23"

    def keeping_query(base):
        return lambda request: Answer(status, headers={"Location": f"{base}?{urlencode(request.query)}&end=1"})

    caplog.set_level(logging.INFO)
    with FaultyServer() as abroad:
        abroad.on("/page", Answer(404))
        server.on("/there", keeping_query("/here"))
        server.on("/here", keeping_query(abroad.url + "/page"))
        shipfast = Service("shipfast", credentials=KeyPool([secret]))
        follow = {} if client.kind == "requests" else {"follow_redirects": True}
        response = client.send(shipfast, "GET", "/there?day=1", apply="query:key", **follow)
        (stranger,) = abroad.requests
    assert [request.query["key"] for request in server.requests] == [secret] * 2
    assert [request.target.count("key=") for request in server.requests] == [1, 1]
    assert stranger.query == {"day": "1", "end": "1"}
    assert "key=" not in f"{response.url} {response.request.url} {response.headers} {caplog.text}"


@pytest.mark.parametrize("apply", ["", "two words", "query:", "x:y"])
def test_invalid_way_of_applying_a_credential_is_rejected(apply):
    with pytest.raises(ValueError, match="apply must be"):
        Service("shipfast").httpx_transport(apply=apply)


# ── httpx alone ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_streamed_download_is_left_to_its_caller(server):
    server.on("/big", Answer(503, json={}), Answer(body=b"x" * 100_000))
    shipfast = Service("shipfast", retry=QUICK)
    with httpx.Client(transport=shipfast.httpx_transport(stream=True), base_url=server.url) as client:  # noqa: SIM117
        with client.stream("GET", "/big") as response:
            assert not response.is_stream_consumed
            assert sum(len(part) for part in response.iter_bytes()) == 100_000


def test_decoding_and_elapsed_work_as_without_redrive(server):
    import gzip

    server.on("/page", Answer(body=gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"}))
    with httpx.Client(transport=Service("shipfast").httpx_transport(), base_url=server.url) as client:
        response = client.get("/page")
    assert response.json() == {"a": 1}
    assert response.elapsed.total_seconds() > 0


def test_one_transport_serves_both_clients_and_an_inner_one(server):
    server.on("/page", Answer(json=[1]))
    shipfast = Service("shipfast")
    transport = shipfast.httpx_transport(httpx.HTTPTransport(retries=0))
    with httpx.Client(transport=transport, base_url=server.url) as client:
        assert client.get("/page").json() == [1]

    async def misuse():
        async with httpx.AsyncClient(transport=transport, base_url=server.url) as client:
            await client.get("/page")

    with pytest.raises(TypeError, match=r"use it with httpx\.Client"):
        asyncio.run(misuse())


def test_09_guarded_client_and_function_do_not_multiply(server):
    server.on("/page", Answer(503))
    shipfast = Service("shipfast", retry=Retry(attempts=3, base=0.001, cap=0.001), breaker=None)
    with httpx.Client(transport=shipfast.httpx_transport(), base_url=server.url) as client:

        @shipfast
        def page():
            return client.get("/page").raise_for_status()

        with pytest.raises(httpx.HTTPStatusError):
            page()
    assert server.count("/page") == 3


# ── what must not happen ─────────────────────────────────────────────────────────────────────────────────────────


def test_10_post_with_a_truncated_response_is_not_retried(client, server):
    server.on("/orders", Answer(json=list(range(100)), reset="mid-body"))
    with pytest.raises((httpx.RequestError, requests.RequestException)):
        client.send(Service("shipfast", retry=QUICK), "POST", "/orders", json={})
    assert server.count("/orders") == 1


@pytest.mark.parametrize("status", [500, 502, 504])
def test_10_retry_after_counts_as_not_done_on_503_only(client, server, status):
    server.on("/orders", Answer(status, retry_after=0))
    client.send(Service("shipfast", retry=QUICK), "POST", "/orders", json={})
    assert server.count("/orders") == 1


def test_11_request_sent_twice_by_its_caller_has_two_keys(server):
    server.on("/orders", Answer(201))
    shipfast = Service("shipfast", idempotent="key")
    with httpx.Client(transport=shipfast.httpx_transport(), base_url=server.url) as client:
        request = client.build_request("POST", "/orders", json={"id": 1})
        client.send(request)
        client.send(request)
    assert len(set(keys_seen(server))) == 2


def test_11_attempt_that_skips_a_request_does_not_reuse_its_key(server):
    written = {}

    def deduplicating(request):
        key, row = request.headers["Idempotency-Key"], request.json()["row"]
        if row == "b" and request.number == 2:
            return Answer(503)
        return Answer(json={"row": written.setdefault(key, row)})

    server.on("/rows", deduplicating)
    shipfast, pending = Service("shipfast", retry=QUICK, idempotent="key"), ["a", "b", "c"]
    with httpx.Client(transport=shipfast.httpx_transport(), base_url=server.url) as client:

        @shipfast
        def flush():
            while pending:
                client.post("/rows", json={"row": pending[0]}).raise_for_status()
                pending.pop(0)

        flush()
    assert sorted(written.values()) == ["a", "b", "c"]


def test_11_key_of_another_service_does_not_make_a_retry_safe(client, server):
    server.on("/orders", Answer(hang=True))
    shipfast = Service("shipfast", retry=Retry(attempts=2, base=0, cap=0), timeout=SHORT_READ, idempotent="key")

    @redrive.retry(base=0, cap=0)
    def order():
        client.send(shipfast, "POST", "/orders", json={})

    with pytest.raises(READ_TIMEOUTS):
        order()
    assert requests_heard(server, "/orders", 2) == 2
    assert len(set(keys_seen(server))) == 1


def test_11_key_lost_in_a_redirect_does_not_make_a_retry_safe(server):
    with FaultyServer() as abroad:
        abroad.on("/orders", Answer(502))
        server.on("/orders", Answer(307, headers={"Location": abroad.url + "/orders"}))
        keyed, plain = Service("keyed", idempotent="key"), Service("plain", retry=QUICK)
        mounts = {server.url: keyed.httpx_transport(), abroad.url: plain.httpx_transport()}
        with httpx.Client(mounts=mounts, follow_redirects=True) as client:
            client.post(server.url + "/orders", json={})
        assert abroad.count("/orders") == 1


def test_11_requests_of_inner_blocks_have_the_same_keys(server):
    server.on("/rows", lambda request: Answer(502 if request.number == 2 else 201))
    shipfast, pending = Service("shipfast", retry=QUICK, idempotent="key"), ["a", "b", "c"]
    with httpx.Client(transport=shipfast.httpx_transport(), base_url=server.url) as client:

        @shipfast
        def flush():
            while pending:
                for attempt in shipfast.attempts():
                    with attempt:
                        assert attempt.idempotency_key is None
                        client.post("/rows", json={"row": pending[0]}).raise_for_status()
                pending.pop(0)

        flush()
    sent = [(request.json()["row"], request.headers["Idempotency-Key"]) for request in server.requests]
    assert [row for row, _ in sent] == ["a", "b", "b", "c"]
    assert len(set(sent)) == len({key for _, key in sent}) == 3


def test_25_retry_that_is_not_made_is_not_charged(client, server):
    server.on("/orders", Answer(502))
    server.on("/page", Answer(502), Answer(502), Answer(json=[1]))
    shipfast = Service("shipfast", retry=QUICK, breaker=None, budget=RetryBudget(ratio=0, reserve=2))
    for _ in range(5):
        client.send(shipfast, "POST", "/orders", json={})
    assert client.send(shipfast, "GET", "/page").json() == [1]


def test_token_expired_under_an_upload_is_fresh_for_the_next(client, server):
    server.require_token(uses=1)
    server.on("/upload", Answer(200))
    shipfast = Service("shipfast", retry=QUICK, credentials=Token(server.issue_token))

    def upload():
        async def aparts():
            yield b"part"

        body = aparts() if client.kind == "async httpx" else iter([b"part"])
        return client.send(shipfast, "PUT", "/upload", content=body).status_code

    assert [upload() for _ in range(4)] == [200, 401, 200, 401]


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_header_credential_is_sent_to_its_host_only(server, kind):
    with FaultyServer() as abroad:
        abroad.on("/page", Answer(json=["abroad"]))
        server.on("/here", Answer(302, headers={"Location": abroad.url + "/page"}))
        shipfast = Service("shipfast", credentials=KeyPool(["key-aaaa"]))
        if kind == "requests":
            with requests.Session() as session:
                session.mount(server.url, shipfast.requests_adapter(apply="X-Api-Key"))
                session.get(server.url + "/here")
        else:
            mounts = {server.url: shipfast.httpx_transport(apply="X-Api-Key")}
            with httpx.Client(mounts=mounts, follow_redirects=True) as client:
                client.get(server.url + "/here")
        assert "key-aaaa" in repr(server.requests[0].headers)
        assert "key-aaaa" not in repr(abroad.requests[0].headers)


def test_query_key_is_in_no_log_and_no_error(client, server, caplog):
    caplog.set_level("DEBUG")
    server.on("/page", Answer(404))
    server.on("/gone", Answer(reset="before"))
    shipfast = Service("shipfast", retry=Retry(attempts=1), credentials=KeyPool(["hunter2-aaaa"]))
    response = client.send(shipfast, "GET", "/page", apply="query:key")
    assert server.requests[0].query == {"key": "hunter2-aaaa"}
    with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)) as refused:
        response.raise_for_status()
    with pytest.raises((httpx.RequestError, requests.RequestException)) as broken:
        client.send(shipfast, "GET", "/gone", apply="query:key")
    ours_and_theirs = "".join(
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpcore", "urllib3"))
    )
    shown = f"{response.url} {refused.value} {broken.value} {broken.value.__notes__} {ours_and_theirs}"
    assert "hunter2" not in shown


def test_query_key_in_another_encoding_is_in_no_log(client, server):
    server.on("/gone", Answer(reset="before"))
    shipfast = Service("shipfast", retry=Retry(attempts=1), credentials=KeyPool(["SeCr+et/Ab=="]))
    with pytest.raises((httpx.RequestError, requests.RequestException)) as broken:
        client.send(shipfast, "GET", "/gone", apply="query:key")
    assert "SeCr" not in f"{broken.value!r} {broken.value.__notes__}"


def test_second_leg_of_an_auth_flow_goes_through_the_service(server):
    challenge = {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'}
    server.on("/page", Answer(401, headers=challenge), Answer(503), Answer(json=[1]))
    shipfast = Service("shipfast", retry=QUICK)
    with requests.Session() as session:
        session.mount("http://", shipfast.requests_adapter())
        assert session.get(server.url + "/page", auth=HTTPDigestAuth("etl", "secret")).json() == [1]


def test_query_of_the_caller_is_sent_unchanged(client, server):
    server.on("/page", Answer(json=[1]))
    shipfast = Service("shipfast", credentials=KeyPool(["key-aaaa"]))
    client.send(shipfast, "GET", "/page?b=2&flag&a=%2F&b=1", apply="query:key")
    assert server.requests[0].target == "/page?b=2&flag&a=%2F&b=1&key=key-aaaa"


@pytest.mark.parametrize("given", [None, 5, (5, 5), (None, 5)])
def test_shorter_of_both_timeouts_applies_to_requests(server, given):
    server.on("/page", Answer(hang=True))
    shipfast = Service("shipfast", retry=Retry(attempts=1), timeout=SHORT)
    with requests.Session() as session:
        session.mount("http://", shipfast.requests_adapter())
        with pytest.raises(requests.ReadTimeout):
            session.get(server.url + "/page", timeout=given)


def test_fallback_does_not_replace_a_response(client, server):
    server.on("/page", Answer(503))
    shipfast = Service("shipfast", retry=Retry(attempts=5, base=0, cap=0), fallback={"cached": True})
    assert client.send(shipfast, "GET", "/page").status_code == 503
    with pytest.raises(CircuitOpen):
        client.send(shipfast, "GET", "/page")


def test_response_rejected_by_a_rule_is_returned_whole(client, server):
    server.on("/job", Answer(202, json={"state": "running"}))
    classifier = Classifier().rule(status=202, kind="transient")
    shipfast = Service("shipfast", retry=Retry(attempts=2, base=0, cap=0), classifier=classifier)
    assert client.send(shipfast, "GET", "/job").json() == {"state": "running"}


@pytest.mark.parametrize(
    ("here", "there", "trusted"),
    [
        ("https://api.example/a", "https://API.example:443/b", True),
        ("http://api.example/a", "https://api.example/b", True),
        ("https://api.example/a", "http://api.example/b", False),
        ("http://api.example:8080/", "https://api.example/", False),
        ("https://api.example/", "https://api.example:444/", False),
        ("https://api.example/", "https://evil.example/", False),
    ],
)
def test_origin_gets_a_credential_only_at_home(here, there, trusted):
    assert Origin.of(here).trusts(Origin.of(there)) is trusted


@pytest.mark.parametrize("nonsense", [5, "transport"])
def test_invalid_transport_or_adapter_is_rejected(nonsense):
    with pytest.raises(TypeError, match="transport must be an httpx transport"):
        Service("shipfast").httpx_transport(nonsense)
    with pytest.raises(TypeError, match="adapter must be a requests adapter"):
        Service("shipfast").requests_adapter(nonsense)


@pytest.mark.parametrize(
    ("method", "attempts"),
    [("PROPFIND", 2), ("REPORT", 2), ("SEARCH", 2), ("QUERY", 2), ("DELETE", 2), ("POST", 1), ("MKCOL", 1)],
)
def test_lost_request_is_retried_by_its_method(method, attempts):
    sent = []

    def answer(request):
        sent.append(request.method)
        raise httpx.ReadError("connection reset")

    bank = Service("bank", retry=Retry(attempts=2, base=0, cap=0))
    with (
        httpx.Client(transport=bank.httpx_transport(httpx.MockTransport(answer))) as client,
        pytest.raises(httpx.ReadError),
    ):
        client.request(method, "http://bank.example/orders")
    assert sent == [method] * attempts
