"""HTTP adapters and the settings of clients: proxies of the environment, endless bodies, retries below, secrets."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter

from redrive import PolicyWarning, Retry, Service
from redrive.testing import Answer, FaultyServer


@contextmanager
def serving(answer):
    """A server on loopback whose GETs are answered by the function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class TestProxies:
    @pytest.fixture
    def proxy(self, monkeypatch):
        """A proxy that answers every request itself, with the address it was asked for."""
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)

        def answer(request):
            body = request.path.encode()
            request.send_response(200)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

        with serving(answer) as url:
            monkeypatch.setenv("HTTP_PROXY", url)
            yield url

    def test_httpx_uses_the_proxy_of_the_environment(self, proxy):
        with httpx.Client(transport=Service("bank").httpx_transport()) as client:
            assert client.get("http://bank.invalid/rates").text == "http://bank.invalid/rates"

    async def test_async_httpx_uses_the_proxy_of_the_environment(self, proxy):
        async with httpx.AsyncClient(transport=Service("bank").httpx_transport()) as client:
            assert (await client.get("http://bank.invalid/rates")).text == "http://bank.invalid/rates"

    def test_requests_uses_the_proxy_of_the_environment(self, proxy):
        with requests.Session() as session:
            session.mount("http://", Service("bank").requests_adapter())
            assert session.get("http://bank.invalid/rates", timeout=20).text == "http://bank.invalid/rates"

    def test_proxy_without_a_scheme_is_http(self, proxy, monkeypatch):
        monkeypatch.setenv("HTTP_PROXY", proxy.removeprefix("http://"))
        with httpx.Client(transport=Service("bank").httpx_transport()) as client:
            assert client.get("http://bank.invalid/rates").status_code == 200

    def test_no_proxy_is_honoured(self, proxy, monkeypatch):
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with FaultyServer() as server, httpx.Client(transport=Service("bank").httpx_transport()) as client:
            server.on("/rates", Answer(200, body="direct"))
            assert client.get(f"{server.url}/rates").text == "direct"

    def test_passed_transport_decides_for_itself(self, proxy):
        with FaultyServer() as server:
            server.on("/rates", Answer(200, body="direct"))
            transport = Service("bank").httpx_transport(httpx.HTTPTransport())
            with httpx.Client(transport=transport) as client:
                assert client.get(f"{server.url}/rates").text == "direct"


class TestEvents:
    @pytest.fixture
    def events(self):
        """A server that sends one event, and its end only once the test has seen it."""
        seen = threading.Event()

        def answer(request):
            request.send_response(200)
            request.send_header("Content-Type", "text/event-stream; charset=utf-8")
            request.end_headers()
            request.wfile.write(b"data: first\n\n")
            request.wfile.flush()
            seen.wait(60)

        with serving(answer) as url:
            yield url, seen
            seen.set()

    def test_event_is_forwarded_as_it_arrives(self, events):
        url, seen = events
        with httpx.Client(transport=Service("bank").httpx_transport()) as client, client.stream("GET", url) as response:
            assert next(response.iter_lines()) == "data: first"
            seen.set()

    async def test_event_is_forwarded_as_it_arrives_to_a_coroutine(self, events):
        url, seen = events
        transport = Service("bank").httpx_transport()
        async with httpx.AsyncClient(transport=transport) as client, client.stream("GET", url) as response:
            async for line in response.aiter_lines():
                assert line == "data: first"
                seen.set()
                break


class TestRetriesBelow:
    def test_requests_adapter_with_retries_warns(self):
        with pytest.warns(PolicyWarning, match="up to 2 retries below each of 5 attempts multiply to 15 requests"):
            Service("bank").requests_adapter(HTTPAdapter(max_retries=2))

    def test_httpx_transport_with_retries_warns(self):
        with httpx.HTTPTransport(retries=2) as transport, pytest.warns(PolicyWarning, match="multiply to 15 requests"):
            Service("bank").httpx_transport(transport)

    def test_service_without_retries_leaves_them_to_the_adapter(self):
        Service("bank", retry=None).requests_adapter(HTTPAdapter(max_retries=2))


SECRET = "XXXXXXXXXXXXXXXXXXXXXXXX"


@pytest.mark.parametrize("path", [f"/services/T00000000/B00000000/{SECRET}", f"/rates;token={SECRET}"])
@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_secret_in_a_path_is_shown_nowhere(kind, path, caplog):
    seen = []
    service = Service("bank", retry=Retry(attempts=2, base=0, cap=0), on_event=seen.append)
    with FaultyServer() as server:
        server.on(path, Answer(503))
        if kind == "httpx":
            with httpx.Client(transport=service.httpx_transport()) as client:
                response = client.get(server.url + path)
        else:
            with requests.Session() as session:
                session.mount("http://", service.requests_adapter())
                response = session.get(server.url + path, timeout=20)
    assert response.redrive.endpoint.startswith("GET /")
    for text in (caplog.text, str(seen), str(response.redrive)):
        assert SECRET not in text
