"""Errors of client libraries, raised by the real library against a closed port, a hang, a reset or a bad answer."""

from __future__ import annotations

import asyncio
import ftplib
import imaplib
import inspect
import smtplib
import socket
import threading
import warnings
from contextlib import contextmanager, suppress

import httpx2
import nats.errors
import nats.js.errors
import openai
import pymongo.errors
import pytest
import redis.exceptions
from google.auth.transport.requests import Request

from redrive import Service, classify
from redrive.classify.names import type_names
from redrive.classify.packs import PACKS
from redrive.classify.tables.types import TYPES
from redrive.model import Kind

with warnings.catch_warnings(action="ignore"):  # it would like to have grpcio-status
    import google.api_core.exceptions


# Some of the libraries leave a socket open where a connection fails.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@contextmanager
def server(greeting=b"", *answers, reset=False):
    """A port that says this, answers each line it reads with the next answer, and then hangs up or hangs."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve():
        with suppress(OSError):
            while not over.is_set():
                client, _ = listener.accept()
                with client, suppress(OSError):
                    client.sendall(greeting)
                    for answer in answers:
                        client.recv(4096)
                        client.sendall(answer)
                    if reset:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    else:
                        client.recv(4096)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        with suppress(OSError):
            socket.create_connection(listener.getsockname(), timeout=1).close()
        listener.close()
        thread.join(5)


def by_redis(port):
    redis.Redis(port=port, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0), socket_timeout=0.3).get("key")


def by_pymongo(port):
    options = {"serverSelectionTimeoutMS": 300, "connectTimeoutMS": 300, "socketTimeoutMS": 300}
    with pymongo.MongoClient("127.0.0.1", port, **options) as client:
        client.admin.command("ping")


def by_google_auth(port):
    Request()(f"http://127.0.0.1:{port}/token", timeout=0.3)


def by_openai(port):
    with openai.OpenAI(api_key="k", base_url=f"http://127.0.0.1:{port}", max_retries=0, timeout=0.3) as client:
        client.models.list()


def by_httpx2(port):
    httpx2.get(f"http://127.0.0.1:{port}/", timeout=0.3)


def by_nats(port):
    async def connect():
        async def quiet(_):
            pass

        await nats.connect(
            f"nats://127.0.0.1:{port}",
            connect_timeout=0.3,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=quiet,
        )

    asyncio.run(connect())


def by_smtplib(port):
    with smtplib.SMTP("127.0.0.1", port, timeout=0.3) as client:
        client.ehlo_or_helo_if_needed()


def by_ftplib(port):
    with ftplib.FTP() as client:
        client.connect("127.0.0.1", port, timeout=0.3)


def by_imaplib(port):
    imaplib.IMAP4("127.0.0.1", port, timeout=0.3)


CLIENTS = [by_redis, by_pymongo, by_google_auth, by_openai, by_httpx2, by_nats, by_smtplib, by_ftplib, by_imaplib]


def failure_of(call, port):
    with pytest.raises(Exception) as caught:
        call(port)
    return caught.value


@pytest.mark.parametrize("call", CLIENTS, ids=lambda call: call.__name__)
class TestNetwork:
    def test_closed_port_is_transient(self, call, refused_port):
        assert classify(failure_of(call, refused_port)).kind is Kind.TRANSIENT

    def test_server_that_hangs_is_transient(self, call):
        with server() as port:
            assert classify(failure_of(call, port)).kind is Kind.TRANSIENT

    def test_reset_is_transient(self, call):
        with server(reset=True) as port:
            assert classify(failure_of(call, port)).kind is Kind.TRANSIENT


def http(status, body=b"{}"):
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("call", "answers", "kind"),
    [
        (by_redis, [b"-LOADING Redis is loading the dataset in memory\r\n"], "transient"),
        (by_redis, [b"-NOAUTH Authentication required.\r\n"], "auth"),
        (by_redis, [b"-READONLY You can't write against a read only replica.\r\n"], "transient"),
        (by_redis, [b"-WRONGTYPE Operation against a key\r\n"], "permanent"),
        (by_openai, [http(503)], "transient"),
        (by_openai, [http(401)], "auth"),
        (by_openai, [http(429)], "rate_limited"),
        (by_openai, [http(429, b'{"error": {"code": "insufficient_quota"}}')], "quota"),
        (by_openai, [http(400)], "permanent"),
        (by_smtplib, [b"220 hello\r\n", b"421 try later\r\n", b"421 try later\r\n"], "transient"),
        (by_ftplib, [b"421 too many users\r\n"], "transient"),
        (by_ftplib, [b"530 not logged in\r\n"], "permanent"),
        (by_imaplib, [b"* BYE overloaded\r\n"], "permanent"),
    ],
)
def test_answer_of_a_server_is_judged(call, answers, kind):
    greeted = call in (by_smtplib, by_ftplib, by_imaplib)
    greeting, rest = (answers[0], answers[1:]) if greeted else (b"", answers)
    if call is by_redis:  # the handshake comes first
        rest = [answers[0]] * 4
    with server(greeting, *rest) as port:
        assert classify(failure_of(call, port)).kind == kind


def test_response_of_httpx2_that_says_the_service_failed_is_no_success(monkeypatch):
    service = Service("bank", retry=None)
    with pytest.raises(Exception, match="503"):
        service.call(lambda: httpx2.Response(503))
    assert service.stats().successes == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, "transient"), (429, "rate_limited"), (401, "auth"), (404, "row"), (409, "permanent"), (500, "ambiguous")],
)
def test_error_of_google_by_its_status(status, kind):
    assert classify(google.api_core.exceptions.from_http_status(status, "said")).kind == kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [(11000, "row"), (112, "retry_now"), (10107, "transient"), (18, "auth"), (16500, "rate_limited"), (2, "permanent")],
)
def test_code_of_mongodb_outranks_the_class(code, kind):
    assert classify(pymongo.errors.OperationFailure("said", code)).kind == kind


@pytest.mark.parametrize(("code", "kind"), [(451, "transient"), (550, "permanent"), (535, "auth")])
def test_code_of_a_mail_server_decides(code, kind):
    assert classify(smtplib.SMTPResponseException(code, b"said")).kind == kind


MODULES = {
    "redis": [redis.exceptions],
    "pymongo": [pymongo.errors],
    "google": [google.api_core.exceptions],
    "nats": [nats.errors, nats.js.errors],
    "ftplib": [ftplib],
    "smtplib": [smtplib],
}


@pytest.mark.parametrize("library", MODULES)
def test_every_exception_of_the_library_is_named_or_has_a_named_base(library):
    found = [
        cls
        for module in MODULES[library]
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Exception) and type_names(cls)[0].startswith(f"{library}.")
    ]
    assert found
    unknown = [cls.__name__ for cls in found if not any(name in TYPES for name in type_names(cls) if "." in name)]
    assert unknown == []


def test_packs_name_each_library_once():
    libraries = [pack.library for pack in PACKS]
    assert len(libraries) == len(set(libraries))
