"""A service below a requests session."""

from __future__ import annotations

import functools
import time
from typing import Any
from urllib.parse import urlsplit

from redrive._internal.optional import require_extra
from redrive.calls.adapters.outgoing import (
    KEY,
    Apply,
    Origin,
    begin_key,
    http_target,
    note_redirect,
    note_sent,
    note_unprotected,
    put_key,
    scrub,
    shorter,
    too_slow,
    warn_of_retries,
)
from redrive.calls.effects.idempotency import KEY_SENT
from redrive.calls.fast_path import ServiceRunner
from redrive.classify.responses import attribute
from redrive.policy.retry import Timeout

with require_extra("requests"):
    import requests
    import urllib3
    from requests.adapters import BaseAdapter, HTTPAdapter
    from requests.utils import rewind_body


_ORIGIN = "redrive.origin"
_CHUNK = 1 << 16


class ServiceAdapter(BaseAdapter):
    """Sends requests through a service: `session.mount("https://", service.requests_adapter())`.

    Unless the caller streams, bodies are read inside the attempt, so that a connection that breaks in the middle of
    one is retried, too. The last failed response is returned like any other, with the failure as its attribute
    `redrive`. The credential does not follow a redirect to another host.
    """

    def __init__(self, runner: ServiceRunner, adapter: Any, *, apply: str) -> None:
        if adapter is not None and not isinstance(adapter, BaseAdapter):
            kind = f"{type(adapter).__module__}.{type(adapter).__name__}"
            raise TypeError(f"adapter must be a requests adapter or None, not {kind}")
        super().__init__()
        self._runner = runner
        self._inner: BaseAdapter = adapter or HTTPAdapter()
        warn_of_retries(runner, attribute(attribute(adapter, "max_retries"), "total"), "HTTPAdapter(max_retries=0)")
        self._apply = Apply.parse(apply)

    def send(  # type: ignore[override]  # BaseAdapter names the options one by one; they are passed on whole
        self, request: requests.PreparedRequest, **options: Any
    ) -> requests.Response:
        # A redirect shares the hooks of the first request, and with them its origin.
        request.hooks.setdefault(_ORIGIN, Origin.of(request.url or ""))
        request.hooks[KEY_SENT] = None
        if self._runner.keyed:
            begin_key(request.hooks, request)
        target = http_target(request, keyed=self._runner.keyed)
        limit = options.pop("timeout", None)
        send = functools.partial(self._send, limit=limit)
        response: requests.Response = self._runner.at(target.endpoint).guard(target, send)(request, **options)
        return response

    def _send(
        self,
        request: requests.PreparedRequest,
        *,
        limit: Any,
        credential: str | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> requests.Response:
        outgoing = self._outgoing(request, credential, idempotency_key)
        ends = None if timeout is None else time.monotonic() + timeout
        try:
            limits = _limits(limit, self._runner.options.limits, timeout)
            response = self._inner.send(outgoing, stream=stream, timeout=limits, **options)
            response.request, response.url = request, request.url or ""
            if idempotency_key is not None:
                note_redirect(request.hooks, request, response.status_code, outgoing)
            self._apply.remove_from_redirect(response, credential)
            response.connection = self  # type: ignore[assignment]  # auth flows send their second leg by it
            if not stream or response.status_code >= 400:
                _read(response, ends, timeout)
        except Exception as error:
            if isinstance(error, requests.RequestException):
                error.request = request
            scrub(error, credential)
            raise
        return response

    def _outgoing(
        self, request: requests.PreparedRequest, credential: str | None, key: str | None
    ) -> requests.PreparedRequest:
        """Return a copy to send, so that neither the caller's request nor a redirect shows what is put on it."""
        position = getattr(request, "_body_position", None)
        if isinstance(position, int) and request.body is not None and request.body.tell() != position:  # type: ignore[union-attr]
            rewind_body(request)  # a file that an earlier attempt has read
        outgoing = request.copy()
        url = urlsplit(request.url or "")
        if credential is not None and request.hooks[_ORIGIN].trusts(Origin.of(request.url or "")):
            outgoing.headers.update(self._apply.headers(credential))
            outgoing.url = url._replace(query=self._apply.with_query(url.query, credential)).geturl()
        if key is not None:
            put_key(outgoing.headers, request.hooks.get(KEY) or key)
            note_sent(request.hooks, request, outgoing)
        elif self._runner.keyed:
            note_unprotected(request)
        return outgoing

    def close(self) -> None:
        self._inner.close()


def _limits(given: Any, limits: Timeout | None, left: float | None) -> Any:
    """Return the shorter of the caller's and the service's limits, phase by phase."""
    if limits is None or not isinstance(given, int | float | tuple | None):
        return given  # a urllib3.Timeout is passed on as it is
    connect, read = given if isinstance(given, tuple) else (given, given)
    return shorter(connect, limits.phase("connect", left)), shorter(read, limits.phase("read", left))


def _read(response: requests.Response, ends: float | None, timeout: float | None) -> None:
    """Read the body; a slow one ends with the attempt, for which requests itself has no limit."""
    read1 = getattr(response.raw, "read1", None)
    if ends is None or read1 is None:
        response.content  # noqa: B018  # reads the body
        return
    parts = []
    try:
        while part := read1(_CHUNK, decode_content=True):
            parts.append(part)
            if time.monotonic() > ends:
                response.close()
                raise requests.ReadTimeout(too_slow(timeout or 0), response=response)
    except urllib3.exceptions.ProtocolError as error:  # as requests itself raises it
        raise requests.exceptions.ChunkedEncodingError(error) from error
    except urllib3.exceptions.DecodeError as error:
        raise requests.exceptions.ContentDecodingError(error) from error
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.ConnectionError(error) from error
    response._content = b"".join(parts)
    response._content_consumed = True  # type: ignore[attr-defined]  # as its own property does
