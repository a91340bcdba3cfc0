"""The verdict comes from the original error below an error of a library."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import urllib.request
from itertools import pairwise

import aiohttp
import httpx
import pytest
import requests
import urllib3
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError

from redrive import classify
from redrive.classify.unwrap import unwrap_chain
from redrive.model.calls import Kind


def get_by_httpx(url):
    httpx.get(url)


def get_by_async_httpx(url):
    async def get():
        async with httpx.AsyncClient() as client:
            await client.get(url)

    asyncio.run(get())


def get_by_requests(url):
    requests.get(url, timeout=10)


def get_by_urllib(url):
    urllib.request.urlopen(url, timeout=10)


def get_by_urllib3(url):
    with urllib3.PoolManager() as pool:
        pool.request("GET", url, retries=urllib3.Retry(1, backoff_factor=0))


def get_by_aiohttp(url):
    async def get():
        async with aiohttp.ClientSession() as session:
            await session.get(url)

    asyncio.run(get())


CLIENTS = [get_by_httpx, get_by_async_httpx, get_by_requests, get_by_urllib, get_by_urllib3, get_by_aiohttp]


def failure_of(get, url):
    with pytest.raises(Exception) as caught:
        get(url)
    return caught.value


@pytest.mark.parametrize("get", CLIENTS, ids=lambda get: get.__name__)
def test_closed_port_is_transient_and_named(get, refused_port):
    verdict = classify(failure_of(get, f"http://127.0.0.1:{refused_port}/"))
    assert (verdict.kind, verdict.rule, verdict.reason) == (Kind.TRANSIENT, "errno.ECONNREFUSED", "connection refused")


@pytest.mark.parametrize("get", CLIENTS, ids=lambda get: get.__name__)
def test_untrusted_certificate_is_permanent_and_named(get, untrusted_url):
    verdict = classify(failure_of(get, untrusted_url))
    assert (verdict.kind, verdict.reason) == (Kind.PERMANENT, "certificate check failed")
    assert "unable to get local issuer certificate" in verdict.detail


@pytest.mark.parametrize("get", CLIENTS, ids=lambda get: get.__name__)
def test_plain_http_on_a_tls_port_is_no_bad_certificate(get, answering):
    verdict = classify(failure_of(get, answering(200, {}).replace("http:", "https:")))
    assert verdict.kind is not Kind.PERMANENT
    assert "certificate" not in verdict.reason


def chained(*errors):
    for outer, inner in pairwise(errors):
        outer.__cause__ = inner
    return errors[0]


RESOLVER = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.mark.parametrize(
    ("error", "kind", "rule"),
    [
        (chained(httpx.ConnectError("x"), RESOLVER), "transient", "type.socket.gaierror"),
        (chained(httpx.ReadTimeout("x"), TimeoutError()), "transient", "type.httpx.ReadTimeout"),
        (chained(httpx.ReadError("x"), OSError(errno.ENOSPC, "full")), "permanent", "errno.ENOSPC"),
        (
            requests.ConnectionError(ProtocolError("aborted", ConnectionResetError(errno.ECONNRESET, "reset"))),
            "transient",
            "errno.ECONNRESET",
        ),
        (requests.ConnectionError(MaxRetryError(None, "/", RESOLVER)), "transient", "type.socket.gaierror"),
        (MaxRetryError(None, "/", RESOLVER), "transient", "type.socket.gaierror"),
        (
            MaxRetryError(None, "/", urllib3.exceptions.LocationParseError("x")),
            "permanent",
            "type.urllib3.LocationParseError",
        ),
        (
            requests.ReadTimeout(urllib3.exceptions.ReadTimeoutError(None, "/", "x")),
            "transient",
            "type.requests.ReadTimeout",
        ),
        (aiohttp.ClientOSError(errno.EPIPE, "pipe"), "transient", "errno.EPIPE"),
        (aiohttp.ServerDisconnectedError(), "transient", "type.aiohttp.ServerDisconnectedError"),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_inner_code_outranks_outer_type_but_inner_type_does_not(error, kind, rule):
    verdict = classify(error)
    assert (verdict.kind, verdict.rule) == (kind, rule)


def test_unresolved_name_is_the_reason():
    assert classify(chained(httpx.ConnectError("x"), RESOLVER)).reason == "host name not resolved"


def test_certificate_error_is_found_at_any_depth():
    bad = ssl.SSLCertVerificationError(1, "hostname mismatch")
    error = requests.exceptions.SSLError(MaxRetryError(None, "/", urllib3.exceptions.SSLError(bad)))
    assert classify(error).reason == "certificate check failed"


def test_cyclic_chain_ends():
    first, second = httpx.ConnectError("a"), httpx.ConnectError("b")
    first.__cause__, second.__cause__ = second, first
    assert unwrap_chain(first) == (first, second)
    assert classify(first).kind is Kind.TRANSIENT


def test_endless_chain_is_cut():
    chain = [httpx.ConnectError(str(number)) for number in range(1000)]
    assert len(unwrap_chain(chained(*chain))) < 20


def test_new_connection_errors_name_their_cause(refused_port):
    with pytest.raises(NewConnectionError) as caught:
        urllib3.request("GET", f"http://127.0.0.1:{refused_port}/", retries=False)
    assert classify(caught.value).rule == "errno.ECONNREFUSED"
