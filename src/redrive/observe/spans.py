"""Spans: one for each run, with one below it for each batch or attempt of a task; one for each call and each attempt.

Spans of calls are made from the event of each attempt when it is over, so that calls cost nothing extra while tracing
is off.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from redrive._internal.masking import mask
from redrive._internal.optional import require_extra
from redrive.model.calls import Attempt, CallFailed, Event
from redrive.model.runs import (
    COUNTED,
    BatchQuarantined,
    BatchRetried,
    BatchShrunk,
    BatchWritten,
    ColumnsIgnored,
    GateJudged,
    Report,
    RunEnded,
    RunStarted,
    RunStatus,
)
from redrive.model.tasks import (
    FlowEnded,
    FlowReport,
    FlowStarted,
    FlowStatus,
    GroupHeld,
    SlaAtRisk,
    TaskEnded,
    TaskFailed,
    TaskRetried,
    TasksDead,
)

with require_extra("otel"):
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Span,
        SpanKind,
        StatusCode,
        Tracer,
        format_trace_id,
        get_current_span,
        set_span_in_context,
    )

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


MOST_OPEN = 1_000
"""Maximum number of open runs; beyond it the oldest is assumed to be dead."""
_WENT_WRONG = {RunStatus.FAILED, RunStatus.ABORTED, FlowStatus.FAILED, FlowStatus.HELD}

# All events of a run are published in one thread, and two executors of one process may work on the same run.
_RunKey = tuple[int, UUID]


@dataclass(frozen=True, slots=True)
class _Open:
    name: str
    span: Span


class Spans:
    """Makes spans of events; safe from any thread."""

    def __init__(self, tracer: Tracer, *, calls: bool = True) -> None:
        self._tracer = tracer
        self._calls = CallSpans(tracer) if calls else None
        self._lock = threading.RLock()  # a signal handler may make a call in the middle of a hook
        self._open: dict[_RunKey, _Open] = {}  # the oldest first

    def record(self, event: Event) -> None:
        """Record an event."""
        match event:
            case Attempt():  # first, since it is by far the most frequent
                if self._calls is not None:
                    self._calls.attempt(event)
            case CallFailed():
                if self._calls is not None:
                    self._calls.failed(event)
            case RunStarted():
                self._begin(f"run {event.pipeline}", event.run_id, _of_run(event))
            case BatchWritten():
                self._batch(event)
            case BatchShrunk() | BatchRetried() | BatchQuarantined() | GateJudged() | ColumnsIgnored():
                self._add_event(event.run_id, event)
            case RunEnded():
                self._end(event.report, {"error.type": event.error, **_cause_attributes(event)})
            case FlowStarted():
                self._begin(f"flow {event.flow}", event.run_id, _of_flow(event))
            case TaskEnded():
                self._attempt(event)
            case TaskRetried() | TaskFailed() | TasksDead() | GroupHeld() | SlaAtRisk():
                self._add_event(event.run_id, event)
            case FlowEnded():
                self._end(event.report, {})

    def close(self) -> None:
        """End the open spans, since their events are no longer received."""
        with self._lock:
            remaining = list(self._open.values())
            self._open.clear()
        for run in remaining:
            lose(run.span)

    # ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, name: str, run_id: UUID, attributes: Mapping[str, Any]) -> None:
        shown = mask(name)
        span = self._tracer.start_span(shown, attributes=plain(attributes))
        thread = threading.get_ident()
        with self._lock:
            # A thread that begins the same run again is done with its former span, however that ended.
            lost = [key for key, run in self._open.items() if key[0] == thread and run.name == shown]
            gone = [self._open.pop(key) for key in lost]
            while len(self._open) >= MOST_OPEN:
                gone.append(self._open.pop(next(iter(self._open))))
            self._open[thread, run_id] = _Open(shown, span)
        for run in gone:
            lose(run.span)

    def _end(self, report: Report | FlowReport, more: Mapping[str, Any]) -> None:
        with self._lock:
            run = self._open.pop((threading.get_ident(), report.run_id), None)
        if run is None:
            return
        figures = _flow_figures(report) if isinstance(report, FlowReport) else _figures(report)
        run.span.set_attributes(plain({**figures, **more}))
        if report.status in _WENT_WRONG:
            run.span.set_status(StatusCode.ERROR, mask(report.reason or str(report.status)))
        run.span.end()

    def trace_id(self, run_id: UUID | str | None) -> str | None:
        """Return the id of the trace that a run belongs to, else of the current one."""
        with self._lock:
            spans = [run.span for (_, known), run in self._open.items() if str(known) == str(run_id)]
        context = (spans[-1] if spans else get_current_span()).get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else None

    def _span(self, run_id: UUID) -> Span | None:
        with self._lock:
            run = self._open.get((threading.get_ident(), run_id))
        return None if run is None else run.span

    def _add_event(self, run_id: UUID, event: Any) -> None:
        """Add an event to the span of a run."""
        span = self._span(run_id)
        if span is not None:
            kept = {f"redrive.{name}": getattr(event, name) for name in event.__slots__}
            for known in ("pipeline", "flow", "run_id"):
                kept.pop(f"redrive.{known}", None)
            span.add_event(type(event).__name__, plain(kept))

    # ── parts of runs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _batch(self, event: BatchWritten) -> None:
        ended = time.time_ns()
        rows = {f"redrive.rows.{name}": getattr(event.counts, name) for name in COUNTED if name not in _NO_ROWS}
        named = {"redrive.pipeline": event.pipeline, "redrive.run_id": event.run_id}
        span = self._tracer.start_span(
            "batch",
            self._parent_context(event.run_id),
            attributes=plain({**named, **rows}),
            start_time=ended - round(event.seconds * _NANO),
        )
        span.end(ended)

    def _attempt(self, event: TaskEnded) -> None:
        span = self._tracer.start_span(
            mask(f"task {event.name}"),
            self._parent_context(event.run_id),
            attributes=plain(
                {
                    "redrive.flow": event.flow,
                    "redrive.run_id": event.run_id,
                    "redrive.task": event.task,
                    "redrive.attempt": event.attempt,
                    "redrive.state": event.state,
                    "redrive.ended": event.ended,
                    "error.type": event.kind,
                }
            ),
            start_time=_nanoseconds(event.started_at),
        )
        if event.error is not None:
            span.set_status(StatusCode.ERROR, mask(event.error))
        span.end(_nanoseconds(event.ended_at))

    def _parent_context(self, run_id: UUID) -> Context | None:
        """Return the parent of the spans of a run's parts; None, for the current span, where the run has no span."""
        span = self._span(run_id)
        return None if span is None else set_span_in_context(span)


_NO_ROWS = {"batches", "retries"}


def _of_run(event: RunStarted) -> dict[str, Any]:
    return {
        "redrive.pipeline": event.pipeline,
        "redrive.run_id": event.run_id,
        "redrive.source": event.source,
        "redrive.sink": event.sink,
        "redrive.resumed": event.resumed,
        "redrive.sla": event.sla,
    }


def _of_flow(event: FlowStarted) -> dict[str, Any]:
    return {
        "redrive.flow": event.flow,
        "redrive.run_id": event.run_id,
        "redrive.resumed": event.resumed,
        "redrive.sla": event.sla,
    }


def _cause_attributes(event: RunEnded) -> dict[str, Any]:
    return {"redrive.kind": event.kind, "redrive.service": event.service}


def _figures(report: Report) -> dict[str, Any]:
    return {
        **_common(report),
        **{f"redrive.rows.{name}": getattr(report, name) for name in COUNTED if name not in _NO_ROWS},
        "redrive.batches": report.batches,
        "redrive.retries": report.retries,
        "redrive.tier": report.tier,
    }


def _flow_figures(report: FlowReport) -> dict[str, Any]:
    return {
        **_common(report),
        **{f"redrive.tasks.{state.lower()}": count for state, count in report.counts.items()},
        "redrive.attempts": report.attempts,
    }


def _common(report: Report | FlowReport) -> dict[str, Any]:
    return {"redrive.status": report.status, "redrive.reason": report.reason, "redrive.late": report.late}


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * _NANO)
