"""A service below an httpx client, sync or async; httpx2, which has the same classes, is served likewise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar, cast
from urllib.request import getproxies, proxy_bypass_environment  # type: ignore[attr-defined]  # not in typeshed

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
from redrive.calls.effects.request import note_start, rewind
from redrive.calls.fast_path import ServiceRunner
from redrive.calls.function import CalledFunction
from redrive.classify.responses import attribute
from redrive.clock import time_limit

with require_extra("http"):
    import httpx


_ORIGIN = "redrive.origin"
# Bodies that are sent as events happen, and may never end.
_ENDLESS = frozenset({"text/event-stream", "application/stream+json", "multipart/x-mixed-replace"})

_LIBRARIES = frozenset({"httpx", "httpx2"})

T = TypeVar("T")


class ServiceTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Sends requests through a service; one object serves `httpx.Client` and `httpx.AsyncClient`.

    Bodies are read inside the attempt, so that a connection that breaks in the middle of one is retried, too. The last
    failed response is returned like any other, with the failure as its attribute `redrive`. The credential does not
    follow a redirect to another host.
    """

    def __init__(
        self,
        runner: ServiceRunner,
        transport: object,
        *,
        apply: str,
        stream: bool,
    ) -> None:
        if transport is not None and not (_is_sync(transport) or _is_async(transport)):
            raise TypeError(f"transport must be an httpx transport or None, not {type(transport).__name__}")
        self._runner = runner
        self._given = transport
        retries = attribute(attribute(transport, "_pool"), "_retries")
        warn_of_retries(runner, retries, "httpx.HTTPTransport(retries=0)")
        self._own: dict[tuple[str, str, str | None], Any] = {}
        self._proxies: dict[str, str] | None = None
        self._apply = Apply.parse(apply)
        self._stream = stream

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        target = self._guarded(request)
        response: httpx.Response = self._runner.at(target.endpoint).guard(target, self._send)(request)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        target = self._guarded(request)
        response: httpx.Response = await self._runner.at(target.endpoint).aguard(target, self._asend)(request)
        return response

    def _send(
        self,
        request: httpx.Request,
        *,
        credential: str | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> httpx.Response:
        outgoing = self._outgoing(request, credential, timeout, idempotency_key)
        began = time.monotonic()
        try:
            response = self._sync_transport(outgoing.url).handle_request(outgoing)
            response.request = request
            if idempotency_key is not None:
                note_redirect(request.extensions, request, response.status_code, outgoing)
            self._apply.remove_from_redirect(response, credential)
            if self._leaves_unread(response):
                return response
            parts = []
            try:
                for part in cast("httpx.SyncByteStream", response.stream):
                    parts.append(part)
                    # A socket's read timeout restarts with each byte of a slow body.
                    if timeout is not None and time.monotonic() - began > timeout:
                        raise _library(request).ReadTimeout(too_slow(timeout))
            finally:
                response.close()
        except Exception as error:
            _clean_error(error, request, credential)
            raise
        return _in_memory(response, b"".join(parts), request, began)

    async def _asend(
        self,
        request: httpx.Request,
        *,
        credential: str | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> httpx.Response:
        outgoing = self._outgoing(request, credential, timeout, idempotency_key)
        began = time.monotonic()
        try:
            # A little later than httpx's own timeouts, which know whether the request was sent.
            async with time_limit(None if timeout is None else timeout + min(0.1, timeout / 10)):
                response = await self._async_transport(outgoing.url).handle_async_request(outgoing)
                response.request = request
                if idempotency_key is not None:
                    note_redirect(request.extensions, request, response.status_code, outgoing)
                self._apply.remove_from_redirect(response, credential)
                if self._leaves_unread(response):
                    return response
                try:
                    parts = [part async for part in cast("httpx.AsyncByteStream", response.stream)]
                finally:
                    await response.aclose()
        except TimeoutError:
            if timeout is None:
                raise
            raise _library(request).ReadTimeout(too_slow(timeout), request=request) from None
        except Exception as error:
            _clean_error(error, request, credential)
            raise
        return _in_memory(response, b"".join(parts), request, began)

    def _leaves_unread(self, response: httpx.Response) -> bool:
        """Return whether the caller reads the body: with `stream=True`, or where the body may never end."""
        if response.status_code >= 400:
            return False
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return self._stream or media_type in _ENDLESS

    def _outgoing(
        self, request: httpx.Request, credential: str | None, timeout: float | None, key: str | None
    ) -> httpx.Request:
        """Return a copy to send, so that neither the caller's request nor a redirect shows what is put on it."""
        rewind(request)  # of a file that an earlier attempt has read
        headers, url, extensions = request.headers.copy(), request.url, dict(request.extensions)
        if credential is not None and extensions[_ORIGIN].trusts(Origin.of(str(url))):
            headers.update(self._apply.headers(credential))
            query = self._apply.with_query(url.query.decode("ascii"), credential)
            url = url.copy_with(query=query.encode("ascii")) if query else url
        if key is not None:
            put_key(headers, request.extensions.get(KEY) or key)
        if (limits := self._runner.options.limits) is not None:
            given = extensions.get("timeout", {})
            phases = ("connect", "read", "write", "pool")
            extensions["timeout"] = {phase: shorter(given.get(phase), limits.phase(phase, timeout)) for phase in phases}
        outgoing: httpx.Request = _library(request).Request(
            request.method, url, headers=headers, stream=request.stream, extensions=extensions
        )
        if key is not None:
            note_sent(request.extensions, request, outgoing)
        elif self._runner.keyed:
            note_unprotected(request)
        return outgoing

    def _guarded(self, request: httpx.Request) -> CalledFunction:
        # A redirect inherits the extensions of the first request, and with them its origin.
        request.extensions = {_ORIGIN: Origin.of(str(request.url)), **request.extensions, KEY_SENT: None}
        note_start(request)
        if self._runner.keyed:
            begin_key(request.extensions, request)
        return http_target(request, keyed=self._runner.keyed)

    def _sync_transport(self, url: httpx.URL) -> httpx.BaseTransport:
        if _is_sync(self._given):
            return cast("httpx.BaseTransport", self._given)
        if self._given is not None:
            raise TypeError("this transport was made around an async one: use it with httpx.AsyncClient")
        own: httpx.BaseTransport = self._own_transport("sync", url, _library(url).HTTPTransport)
        return own

    def _async_transport(self, url: httpx.URL) -> httpx.AsyncBaseTransport:
        if _is_async(self._given):
            return cast("httpx.AsyncBaseTransport", self._given)
        if self._given is not None:
            raise TypeError("this transport was made around a sync one: use it with httpx.Client")
        own: httpx.AsyncBaseTransport = self._own_transport("async", url, _library(url).AsyncHTTPTransport)
        return own

    def _own_transport(self, kind: str, url: httpx.URL, make: Callable[..., T]) -> T:
        """Return redrive's own transport, made on first use; of two threads that make one, one is kept."""
        key = kind, make.__module__, self._proxy_for(url)
        transport: T = self._own.get(key) or self._own.setdefault(key, make(proxy=key[2]))
        return transport

    def _proxy_for(self, url: httpx.URL) -> str | None:
        """Return the proxy that the environment names: httpx reads it only for transports that it makes itself."""
        if self._proxies is None:
            self._proxies = getproxies()
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not proxy or proxy_bypass_environment(url.netloc.decode("ascii"), self._proxies):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": {}}  # connections stay in the process that opened them

    def close(self) -> None:
        if _is_sync(self._given):
            cast("httpx.BaseTransport", self._given).close()
        for (kind, *_), own in list(self._own.items()):
            if kind == "sync":
                own.close()

    async def aclose(self) -> None:
        if _is_async(self._given):
            await cast("httpx.AsyncBaseTransport", self._given).aclose()
        for (kind, *_), own in list(self._own.items()):
            if kind == "async":
                await own.aclose()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def _library(thing: object) -> Any:
    """Return the module of an object's class: httpx, or httpx2."""
    names = (cls.__module__.partition(".")[0] for cls in type(thing).__mro__)
    return sys.modules[next((name for name in names if name in _LIBRARIES), "httpx")]


def _is_sync(transport: object) -> bool:
    return hasattr(transport, "handle_request")


def _is_async(transport: object) -> bool:
    return hasattr(transport, "handle_async_request")


def _clean_error(error: Exception, request: httpx.Request, credential: str | None) -> None:
    """Replace the sent copy by the caller's request in the error, and remove the credential."""
    if isinstance(error, _library(request).RequestError):
        error.request = request
    scrub(error, credential)


def _in_memory(response: httpx.Response, body: bytes, request: httpx.Request, began: float) -> httpx.Response:
    """Return the response with its body in memory, still encoded: the client decodes it as usual."""
    library = _library(request)
    loaded: httpx.Response = library.Response(
        response.status_code,
        headers=response.headers,
        stream=library.ByteStream(body),
        extensions=response.extensions,
        request=request,
    )
    if loaded.status_code >= 400:
        with suppress(library.DecodingError):
            loaded.read()  # the verdict needs the body
            loaded.elapsed = timedelta(seconds=time.monotonic() - began)  # httpx sets it only as it reads
    return loaded
