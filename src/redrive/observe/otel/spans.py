"""Spans: one for each run, with one below it for each batch or attempt of a task; one for each attempt of a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from redrive._internal.masking import mask
from redrive._internal.optional import needs
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
from redrive.observe.otel.calls import CallSpans, lose, plain

with needs("otel"):
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, StatusCode, Tracer, format_trace_id, get_current_span, set_span_in_context

MOST_OPEN = 1_000
"""Runs at once; beyond that the oldest is believed to be dead."""
_WENT_WRONG = {RunStatus.FAILED, RunStatus.ABORTED, FlowStatus.FAILED, FlowStatus.HELD}
_NANO = 1_000_000_000

# A run announces all it has to say in one thread, and two executors of one process may be at the same run.
_Place = tuple[int, UUID]


@dataclass(frozen=True, slots=True)
class _Open:
    name: str
    span: Span


class Spans:
    """Makes spans of what it hears; from any thread."""

    def __init__(self, tracer: Tracer, *, calls: bool = True) -> None:
        self._tracer = tracer
        self._calls = CallSpans(tracer) if calls else None
        self._lock = threading.RLock()  # a signal handler may make a call in the middle of a hook
        self._open: dict[_Place, _Open] = {}  # the oldest first

    def hear(self, event: Event) -> None:
        """Note what an event says."""
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
                self._note(event.run_id, event)
            case RunEnded():
                self._end(event.report, {"error.type": event.error, **_blame(event)})
            case FlowStarted():
                self._begin(f"flow {event.flow}", event.run_id, _of_flow(event))
            case TaskEnded():
                self._attempt(event)
            case TaskRetried() | TaskFailed() | TasksDead() | GroupHeld() | SlaAtRisk():
                self._note(event.run_id, event)
            case FlowEnded():
                self._end(event.report, {})

    def close(self) -> None:
        """End what is still open: nobody will hear of its end."""
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for one in left:
            lose(one.span)

    # ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, name: str, run_id: UUID, attributes: Mapping[str, Any]) -> None:
        shown = mask(name)
        span = self._tracer.start_span(shown, attributes=plain(attributes))
        thread = threading.get_ident()
        with self._lock:
            # A thread that begins the same anew is done with what it did before, however that ended.
            lost = [place for place, one in self._open.items() if place[0] == thread and one.name == shown]
            gone = [self._open.pop(place) for place in lost]
            while len(self._open) >= MOST_OPEN:
                gone.append(self._open.pop(next(iter(self._open))))
            self._open[thread, run_id] = _Open(shown, span)
        for one in gone:
            lose(one.span)

    def _end(self, report: Report | FlowReport, more: Mapping[str, Any]) -> None:
        with self._lock:
            found = self._open.pop((threading.get_ident(), report.run_id), None)
        if found is None:
            return
        figures = _flow_figures(report) if isinstance(report, FlowReport) else _figures(report)
        found.span.set_attributes(plain({**figures, **more}))
        if report.status in _WENT_WRONG:
            found.span.set_status(StatusCode.ERROR, mask(report.reason or str(report.status)))
        found.span.end()

    def trace_id(self, run_id: UUID | str | None) -> str | None:
        """Return the id of the trace that a run belongs to, else of the current one."""
        with self._lock:
            found = [one.span for (_, known), one in self._open.items() if str(known) == str(run_id)]
        context = (found[-1] if found else get_current_span()).get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else None

    def _span(self, run_id: UUID) -> Span | None:
        with self._lock:
            found = self._open.get((threading.get_ident(), run_id))
        return None if found is None else found.span

    def _note(self, run_id: UUID, event: Any) -> None:
        """What happened to a run, at the moment in which it did."""
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
            self._below(event.run_id),
            attributes=plain({**named, **rows}),
            start_time=ended - round(event.seconds * _NANO),
        )
        span.end(ended)

    def _attempt(self, event: TaskEnded) -> None:
        span = self._tracer.start_span(
            mask(f"task {event.name}"),
            self._below(event.run_id),
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

    def _below(self, run_id: UUID) -> Context | None:
        """Where the spans of a run's parts belong; where that run began unheard, to whatever is current."""
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


def _blame(event: RunEnded) -> dict[str, Any]:
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
