"""Webhooks: the message as JSON, or as Slack takes it. `post` sends it within a time and follows no redirect."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import redrive
from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed
from redrive.alerts.delivery.message import Message
from redrive.classify.detail import body_detail
from redrive.classify.responses import retry_after


def send_document(channel: Channel, message: Message) -> None:
    """Post the JSON document, signed where the channel has a key."""
    body = json.dumps(message.document(), ensure_ascii=False).encode()
    headers = {**channel.headers, **(signature(channel.signing_key, body) if channel.signing_key else {})}
    post(address(channel), body, seconds=channel.timeout, headers=headers)


def send_to_slack(channel: Channel, message: Message) -> None:
    """Post blocks to a Slack incoming webhook, or to one that takes the same, such as Mattermost's."""
    post(address(channel), json.dumps(message.slack(), ensure_ascii=False).encode(), seconds=channel.timeout)


def signature(key: bytes, body: bytes) -> Mapping[str, str]:
    """Return the headers that sign a body, as in Standard Webhooks; a message that is sent twice has one id."""
    name, at = f"msg_{hashlib.blake2b(body, digest_size=16).hexdigest()}", str(int(time.time()))
    signed = hmac.digest(key, b".".join((name.encode(), at.encode(), body)), "sha256")
    return {
        "webhook-id": name,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def address(channel: Channel) -> str:
    """Return the target, which is a text for every channel except a command."""
    return channel.target if isinstance(channel.target, str) else " ".join(channel.target)


_BODY = 16_384
"""Bytes of a response that are read: enough for the reason of a failure."""
# Statuses below 500 that may succeed when the request is retried.
_PASSING = frozenset({408, 425, 429})


def post(url: str, body: bytes, *, seconds: float, headers: Mapping[str, str] | None = None) -> None:
    """Post JSON in a thread, because neither a DNS lookup nor a slow server obeys the timeout of a socket.

    After the timeout the connection is closed and the thread is abandoned.

    Raises:
        DeliveryFailed: There was no answer 2xx within the timeout.
    """
    exchange = _Exchange(_read(url), body, headers or {}, seconds)
    threading.Thread(target=exchange.run, name="redrive alert", daemon=True).start()
    exchange.done.wait(seconds)
    failed = exchange.failure(seconds)
    exchange.abort()
    if failed is not None:
        raise failed


class _Connection(HTTPConnection):
    """A connection that can be closed from another thread, even during the TLS handshake."""

    def __init__(self, host: str, port: int, *, tls_name: str | None, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls_name = tls_name
        self.open_socket: socket.socket | None = None

    def connect(self) -> None:
        super().connect()  # through the proxy, if there is one
        self.open_socket = self.sock
        if self._tls_name is not None:
            secure = ssl.create_default_context().wrap_socket(
                self.sock, server_hostname=self._tls_name, do_handshake_on_connect=False
            )
            self.sock = self.open_socket = secure
            secure.do_handshake()


class _Exchange:
    """A request and its response so far."""

    def __init__(self, url: SplitResult, body: bytes, headers: Mapping[str, str], seconds: float) -> None:
        self._url, self._body, self._headers, self._seconds = url, body, headers, seconds
        self.done = threading.Event()
        self._connection: _Connection | None = None
        self._aborted = False
        self._error: Exception | None = None
        self._answer: HTTPResponse | None = None
        self._response_body = b""

    def run(self) -> None:
        """Make the request; an error is kept for `failure`."""
        try:
            self._connection, target, headers = _towards(self._url, self._seconds)
            if self._aborted:
                return
            self._connection.request("POST", target, self._body, {**headers, **self._headers})
            self._answer = self._connection.getresponse()
            if not _is_taken(self._answer.status):
                self._read_on(self._answer)
        except Exception as error:  # reported by `failure`, since this thread has no caller
            self._error = error
        finally:
            self.done.set()
            for opened in (self._answer, self._connection):  # the response takes over the socket of the connection
                if opened is not None:
                    opened.close()

    def _read_on(self, answer: HTTPResponse) -> None:
        while len(self._response_body) < _BODY and (more := answer.read1(_BODY)):
            self._response_body += more

    def abort(self) -> None:
        """Close the connection if it is still open."""
        self._aborted = True
        open_socket = self._connection.open_socket if self._connection is not None else None
        if open_socket is not None:
            with contextlib.suppress(OSError):
                # Not the method of a TLS socket, which the other thread may be reading from.
                socket.socket.shutdown(open_socket, socket.SHUT_RDWR)

    def failure(self, seconds: float) -> DeliveryFailed | None:
        """Return the failure; None if the request succeeded."""
        if self._answer is not None:
            return _check_answer(self._answer, self._response_body)
        if self._error is not None:
            return _connection_failure(self._error)
        return DeliveryFailed(f"the receiver has not answered within {seconds:.3g} s")


def _read(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise DeliveryFailed("the channel's URL cannot be read: it must be http://… or https://…", permanent=True)
    return parts


def _towards(url: SplitResult, seconds: float) -> tuple[_Connection, str, dict[str, str]]:
    """Return the connection, the request target and the headers; through the proxy of the environment, if any."""
    from urllib.request import getproxies, proxy_bypass

    host, secure = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if secure else 80)
    target = quote(url.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
        f"?{quote(url.query, safe='/%:@!$&()*+,;=~-._?')}" if url.query else ""
    )
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": f"redrive/{redrive.__version__}",
        "Connection": "close",
    }
    if url.username is not None:
        headers["Authorization"] = _basic(url)
    via = getproxies().get(url.scheme)
    if not via or proxy_bypass(host):
        return _Connection(host, port, tls_name=host if secure else None, timeout=seconds), target, headers
    proxy = urlsplit(via if "://" in via else f"http://{via}")
    connection = _Connection(proxy.hostname or "", proxy.port or 80, tls_name=host if secure else None, timeout=seconds)
    allowed = {"Proxy-Authorization": _basic(proxy)} if proxy.username is not None else {}
    if secure:
        connection.set_tunnel(host, port, allowed)
    else:
        place = f"[{host}]" if ":" in host else host
        target, headers = f"http://{place}:{port}{target}", {**headers, "Host": f"{place}:{port}", **allowed}
    return connection, target, headers


def _basic(url: SplitResult) -> str:
    words = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return "Basic " + base64.b64encode(words.encode()).decode()


def _is_taken(status: int) -> bool:
    return 200 <= status < 300


def _check_answer(answer: HTTPResponse, body: bytes) -> DeliveryFailed | None:
    status = answer.status
    if _is_taken(status):
        return None
    if 300 <= status < 400:
        return DeliveryFailed(
            f"the receiver answered {status}: a redirect is not followed, give the address itself", permanent=True
        )
    detail = body_detail(body.decode("utf-8", "replace"))
    reason = f"the receiver answered {status}" + (f": {detail}" if detail else "")
    passes = status >= 500 or status in _PASSING
    wait = retry_after(answer.headers, datetime.now(UTC)) if passes else None
    return DeliveryFailed(reason, permanent=not passes, retry_after=wait)


def _connection_failure(error: Exception) -> DeliveryFailed:
    """Return the failure to connect, which may be transient: the network, the receiver or the address is at fault."""
    explained: tuple[tuple[type[Exception], Callable[[Any], str]], ...] = (
        (socket.gaierror, lambda error: f"the receiver's name cannot be looked up: {error.strerror}"),
        (
            ssl.SSLCertVerificationError,
            lambda error: f"the receiver's certificate was rejected: {error.verify_message}",
        ),
        (ssl.SSLError, lambda error: f"no TLS connection: {error.reason or error.strerror}"),
        (TimeoutError, lambda error: "the receiver has not answered in time"),
        (OSError, lambda error: f"no connection: {error.strerror or error}"),
        (HTTPException, lambda error: f"the receiver does not answer in HTTP ({type(error).__name__})"),
    )
    for kind, words in explained:
        if isinstance(error, kind):
            return DeliveryFailed(words(error))
    return DeliveryFailed(f"{type(error).__name__}: {error}")
