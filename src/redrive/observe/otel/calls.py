"""Spans of calls: one for each call, and below it one for each attempt.

They are made from the event of each attempt when it is over, so that calls cost nothing extra where tracing is off.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from redrive._internal.masking import mask
from redrive._internal.optional import require_extra
from redrive.model.calls import Attempt, CallFailed

with require_extra("otel"):
    from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, get_current_span, set_span_in_context

NO_END = "its end was never announced"
_NEVER_SENT = ("circuit_open", "no_key_left")
_NANO = 1_000_000_000
_HTTP = re.compile(r"([A-Z]{3,20}) (/.*)?")


class _Call:
    """The span of a call in progress; that of an interrupted call ends when the object is garbage collected."""

    __slots__ = ("attempts", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.attempts = 0

    def end(self, outcome: str, at: int, error: str | None = None) -> None:
        """End the span."""
        self.span.set_attributes({"redrive.attempts": self.attempts, "redrive.outcome": outcome})
        if error is not None:
            self.span.set_attribute("error.type", mask(error))
            self.span.set_status(StatusCode.ERROR, mask(error))
        self.span.end(at)

    def __del__(self) -> None:
        if self.span.is_recording():
            lose(self.span)


# The attempts of a call are published in one thread or task, and so in one context.
_Calls = Mapping[tuple[str, str], _Call]
_under_way: ContextVar[_Calls] = ContextVar("redrive_calls_under_way", default=MappingProxyType({}))


class CallSpans:
    """Makes spans of attempts."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def attempt(self, event: Attempt) -> None:
        """Make the span of an attempt; the span of its call begins with the first attempt and ends with the last."""
        if event.outcome in _NEVER_SENT:
            get_current_span().add_event(event.outcome, plain({"redrive.service": event.service}))
            return
        ended, key = time.time_ns(), (event.service, event.endpoint)
        known = _under_way.get()
        call = known.get(key) if event.attempt > 1 else None
        if call is None:
            call = self._begin(event, ended)
        call.attempts += 1
        error = None if event.outcome == "success" else _error_type(event)
        self._child(event, call, ended, error)
        if event.wait_s is not None:  # another attempt follows
            _under_way.set({**known, key: call})
            return
        if key in known:
            _under_way.set({name: other for name, other in known.items() if name != key})
        call.end(event.outcome, ended, error)

    def failed(self, event: CallFailed) -> None:
        """End the span of a call that ended while it waited for its next attempt: by a deadline, or an open circuit."""
        key, known = (event.failure.service, event.failure.endpoint), _under_way.get()
        if key in known:
            _under_way.set({name: other for name, other in known.items() if name != key})
            kind = str(event.failure.verdict.kind)
            known[key].end(kind, time.time_ns(), kind)

    def _begin(self, event: Attempt, ended: int) -> _Call:
        elapsed = event.latency_ms / 1_000 if event.elapsed_s is None else event.elapsed_s
        return _Call(
            self._tracer.start_span(
                mask(f"call {event.service}"),
                attributes=plain({"redrive.service": event.service, "redrive.endpoint": event.endpoint}),
                start_time=ended - round(elapsed * _NANO),
            )
        )

    def _child(self, event: Attempt, call: _Call, ended: int, error: str | None) -> None:
        """Make the span of an attempt, with the names of the semantic conventions for HTTP clients."""
        http = _HTTP.fullmatch(event.endpoint) if event.request is not None else None
        host, _, port = ("", "", "") if event.server is None else _split(event.server)
        span = self._tracer.start_span(
            mask(f"attempt {event.service}"),
            set_span_in_context(call.span),
            kind=SpanKind.CLIENT,
            attributes=plain(
                {
                    "redrive.service": event.service,
                    "redrive.endpoint": event.endpoint,
                    "redrive.attempt": event.attempt,
                    "redrive.outcome": event.outcome,
                    "redrive.wait": event.wait_s,
                    "http.request.method": None if http is None else http[1],
                    "url.template": None if http is None else http[2],
                    "server.address": host or None,
                    "server.port": int(port) if port.isdigit() else None,
                    "http.request.resend_count": event.attempt - 1 or None,
                    "http.response.status_code": event.status,
                    "error.type": error,
                }
            ),
            start_time=ended - round(event.latency_ms * 1_000_000),
        )
        if error is not None:
            span.set_status(StatusCode.ERROR, mask(error))
        span.end(ended)


def _error_type(event: Attempt) -> str:
    """Return the class of the exception, else the status, else the verdict."""
    return event.error or (event.outcome if event.status is None else str(event.status))


def _split(server: str) -> tuple[str, str, str]:
    """Split host and port; an IPv6 address has brackets."""
    if server.startswith("["):
        host, _, port = server[1:].partition("]")
        return host, ":", port.removeprefix(":")
    return server.partition(":")


def lose(span: Span) -> None:
    """End a span whose end was never published."""
    span.set_status(StatusCode.ERROR, NO_END)
    span.end()


def plain(attributes: Mapping[str, Any]) -> dict[str, str | bool | int | float]:
    """Return attributes as OpenTelemetry takes them: None is left out, text is masked."""
    known = {name: value for name, value in attributes.items() if value is not None}
    return {name: value if isinstance(value, bool | int | float) else mask(str(value)) for name, value in known.items()}
