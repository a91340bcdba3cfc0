"""A service below a requests session."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redrive.calls.apply import Apply
from redrive.calls.http import http_target
from redrive.calls.runner import Runner
from redrive.extras import needs

with needs("requests"):
    import requests
    from requests.adapters import BaseAdapter, HTTPAdapter
    from requests.utils import rewind_body


_ORIGIN = "redrive.origin"


class ServiceAdapter(BaseAdapter):
    """Sends requests through a service: `session.mount("https://", service.requests_adapter())`.

    Unless the caller streams, bodies are read inside the attempt, so that a connection that breaks in the middle of
    one is repeated too. A response that stays bad is handed back as any other, with the story as `redrive`. The
    credential does not follow a redirect to another host.
    """

    def __init__(self, runner: Runner, adapter: BaseAdapter | None, *, apply: str) -> None:
        super().__init__()
        self._runner = runner
        self._inner = adapter or HTTPAdapter()
        self._apply = Apply.parse(apply)

    def send(  # type: ignore[override]  # BaseAdapter names the options one by one; they are passed on whole
        self, request: requests.PreparedRequest, **options: Any
    ) -> requests.Response:
        path = urlsplit(request.url or "").path
        target = http_target(request.method or "", path, keyed=self._runner.keyed)
        if options.get("timeout") is None:
            options.pop("timeout", None)  # leaves it to the service
        response: requests.Response = self._runner.guard(target, self._send)(request, **options)
        return response

    def _send(
        self,
        request: requests.PreparedRequest,
        *,
        credential: str | None = None,
        idempotency_key: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> requests.Response:
        self._prepare(request, credential, idempotency_key)
        response = self._inner.send(request, stream=stream, **options)
        if not stream or response.status_code >= 400:
            response.content  # noqa: B018  # reads the body
        return response

    def _prepare(self, request: requests.PreparedRequest, credential: str | None, key: str | None) -> None:
        # A redirect shares the hooks of the request it comes from, and so remembers where that was sent.
        origin = _origin(request.url or "")
        if request.hooks.setdefault(_ORIGIN, origin) != origin:
            request.headers.pop(self._apply.header or "", None)  # the session has copied it to the redirect
        elif credential is not None:
            self._apply_credential(request, credential)
        if key is not None:
            request.headers.setdefault("Idempotency-Key", key)
        position = getattr(request, "_body_position", None)
        if isinstance(position, int) and request.body is not None and request.body.tell() != position:  # type: ignore[union-attr]
            rewind_body(request)  # a file that an earlier attempt has read

    def _apply_credential(self, request: requests.PreparedRequest, credential: str) -> None:
        if self._apply.header is not None:
            request.headers[self._apply.header] = self._apply.prefix + credential
        elif self._apply.query is not None:
            request.url = _with_parameter(request.url or "", self._apply.query, credential)

    def close(self) -> None:
        self._inner.close()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _with_parameter(url: str, name: str, value: str) -> str:
    parts = urlsplit(url)
    kept = [(key, old) for key, old in parse_qsl(parts.query, keep_blank_values=True) if key != name]
    return parts._replace(query=urlencode([*kept, (name, value)])).geturl()
