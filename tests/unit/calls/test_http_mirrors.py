"""httpx2, which mirrors httpx: the same transport serves it where it is installed."""

import asyncio

import pytest

from redrive import Retry, Service, Timeout
from redrive.testing import Answer, FaultyServer

QUICK = Retry(base=0.001, cap=0.002)


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


@pytest.fixture
def service():
    return Service("shipfast", retry=QUICK, timeout=Timeout(read=5, total=30))


class TestHttpx2:
    def test_client_is_served_sync_and_async(self, server, service):
        httpx2 = pytest.importorskip("httpx2")
        server.on("/sync", Answer(503), Answer(json=[1]))
        server.on("/async", Answer(503), Answer(json=[2]))
        with httpx2.Client(transport=service.httpx_transport(), base_url=server.url) as client:
            assert client.get("/sync").json() == [1]

        async def fetch():
            async with httpx2.AsyncClient(transport=service.httpx_transport(), base_url=server.url) as client:
                return await client.get("/async")

        response = asyncio.run(fetch())
        assert isinstance(response, httpx2.Response)
        assert response.json() == [2]

    def test_errors_are_of_httpx2(self, server):
        httpx2 = pytest.importorskip("httpx2")
        server.on("/hang", Answer(hang=True))
        once = Service("shipfast", retry=Retry(attempts=1), timeout=0.4)
        transport = once.httpx_transport(httpx2.HTTPTransport())
        with (
            httpx2.Client(transport=transport, base_url=server.url) as client,
            pytest.raises(httpx2.ReadTimeout) as caught,
        ):
            client.get("/hang")
        assert caught.value.redrive.verdict.kind == "transient"
