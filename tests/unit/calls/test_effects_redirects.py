"""A POST answered by a redirect is not sent again when the target of the redirect fails."""

import asyncio

import aiohttp
import httpx
import pytest
import requests

from redrive import Retry, Service
from redrive.testing import Answer, FaultyServer

QUICK = Retry(attempts=2, base=0.001, cap=0.002)
TAILS = {
    "no answer": Answer(hang=True),
    "reset": Answer(reset="before"),
    "503": Answer(503),
    "no JSON": Answer(200, body="<html>"),
    "cut body": Answer(200, body=b"x" * 50, reset="mid-body"),
}


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


def with_httpx(url):
    httpx.post(url, timeout=0.3, follow_redirects=True).raise_for_status().json()


def with_httpx_response(url):
    response = httpx.post(url, timeout=0.3, follow_redirects=True)
    return response if response.is_error else response.json()


def with_requests(url):
    response = requests.post(url, timeout=0.3)
    response.raise_for_status()
    response.json()


async def with_aiohttp(url):
    limit = aiohttp.ClientTimeout(total=0.3)
    async with aiohttp.ClientSession(timeout=limit) as session, session.post(url) as response:
        response.raise_for_status()
        await response.json(content_type=None)


def posts_sent(server, status, tail, call):
    server.on("/pay", Answer(status, headers={"Location": "/moved"}))
    server.on("/moved", Answer(302, headers={"Location": "/receipt"}))
    server.on("/receipt", tail)
    before = server.count("/pay")
    with pytest.raises(Exception):  # noqa: B017  # which error the client raises is not the point
        call(f"{server.url}/pay")
    return server.count("/pay") - before


@pytest.mark.parametrize("tail", TAILS)
class TestRedirectedPost:
    @pytest.mark.parametrize("send", [with_httpx, with_httpx_response, with_requests])
    def test_is_sent_once(self, server, send, tail):
        service = Service("bank", retry=QUICK)
        assert posts_sent(server, 303, TAILS[tail], lambda url: service.call(send, url)) == 1

    def test_is_sent_once_with_aiohttp(self, server, tail):
        service = Service("bank", retry=QUICK)
        assert posts_sent(server, 303, TAILS[tail], lambda url: asyncio.run(service.acall(with_aiohttp, url))) == 1

    def test_is_sent_once_by_the_adapters(self, server, tail):
        service = Service("bank", retry=QUICK, breaker=None)

        def by_transport(url):
            with httpx.Client(transport=service.httpx_transport(), timeout=0.3, follow_redirects=True) as client:
                client.post(url).raise_for_status().json()

        def by_adapter(url):
            with requests.Session() as session:
                session.mount("http://", service.requests_adapter())
                response = session.post(url, timeout=0.3)
                response.raise_for_status()
                response.json()

        for send in (by_transport, by_adapter):
            assert posts_sent(server, 303, TAILS[tail], send) == 1
            assert posts_sent(server, 303, TAILS[tail], lambda url: service.call(send, url)) == 1  # noqa: B023


@pytest.mark.parametrize("status", [301, 302])
@pytest.mark.parametrize("send", [with_httpx, with_requests])
def test_post_with_an_older_redirect_is_sent_once(server, send, status):
    service = Service("bank", retry=QUICK)
    assert posts_sent(server, status, Answer(503), lambda url: service.call(send, url)) == 1


def test_redirected_get_is_retried(server):
    server.on("/old", Answer(302, headers={"Location": "/new"}))
    server.on("/new", Answer(503))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        Service("bank", retry=QUICK).call(
            lambda: httpx.get(f"{server.url}/old", follow_redirects=True).raise_for_status()
        )
    assert len(caught.value.redrive.attempts) == 2


def test_token_fetched_by_an_auth_flow_is_no_redirect(server):
    """httpx puts the answers to an auth flow's own requests into the history, too."""

    class Login(httpx.Auth):
        def auth_flow(self, request):
            yield httpx.Request("POST", f"{server.url}/login")
            yield request

    server.on("/login", Answer(200))
    server.on("/data", Answer(503))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        Service("bank", retry=QUICK).call(lambda: httpx.get(f"{server.url}/data", auth=Login()).raise_for_status())
    assert len(caught.value.redrive.attempts) == 2
