"""OpenTelemetry: spans of runs, batches, tasks and attempts of calls, and metrics of all events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache

import redrive
from redrive._internal.masking import mask
from redrive._internal.optional import require_extra
from redrive._internal.tracing import register
from redrive.calls.function import MOST_ENDPOINTS, OTHER_ENDPOINT
from redrive.events.bus import on_event
from redrive.model.calls import Attempt, BreakerChanged, CallFailed, Event, FallbackUsed
from redrive.model.letters import LettersChanged, LettersPurged, LettersPut, LettersReplayed
from redrive.model.runs import BatchWritten, Report, RunEnded
from redrive.model.tasks import FlowEnded, FlowReport, TaskEnded
from redrive.observe.spans import Spans

with require_extra("otel"):
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, get_meter
    from opentelemetry.trace import TracerProvider, get_tracer

_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WORK = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0)
_OUTCOMES = ("written", "rejected", "discarded", "duplicates")  # their sum is the number of rows that were read

_masked = lru_cache(4_096)(mask)


class Meters:
    """Counts events; safe from any thread."""

    def __init__(self, meter: Meter) -> None:
        def counter(name: str, unit: str, what: str) -> Counter:
            return meter.create_counter(f"redrive.{name}", f"{{{unit}}}", what)

        def seconds(name: str, bounds: tuple[float, ...], what: str) -> Histogram:
            return meter.create_histogram(f"redrive.{name}", "s", what, explicit_bucket_boundaries_advisory=bounds)

        self._attempts = counter("service.attempts", "attempt", "Attempts of calls, by outcome.")
        self._retries = counter("service.retries", "attempt", "Attempts that were not the first of their call.")
        self._latency = seconds("service.latency", _CALLS, "How long attempts took.")
        self._failed = counter("service.failed_calls", "call", "Calls that ended in an error, by its kind.")
        self._fallbacks = counter("service.fallbacks", "call", "Calls that were answered by their fallback.")
        self._circuits = counter("service.circuit_changes", "change", "Changes of circuits, by their new state.")
        self._rows = counter("pipeline.rows", "row", "Rows that were read, by outcome.")
        self._batch = seconds("pipeline.batch.duration", _WORK, "How long it took to write a batch.")
        self._runs = counter("pipeline.runs", "run", "Runs that have ended, by how.")
        self._run = seconds("pipeline.run.duration", _WORK, "How long runs took, all parts together.")
        self._flows = counter("flow.runs", "run", "Runs of flows that have ended, by how.")
        self._flow = seconds("flow.run.duration", _WORK, "How long runs of flows took.")
        self._tasks = counter("task.attempts", "attempt", "Attempts of tasks, by what the task became.")
        self._task = seconds("task.duration", _WORK, "How long attempts of tasks took.")
        self._endpoints: dict[str, set[str]] = defaultdict(set)
        self._letters = counter("letters", "letter", "Dead letters, by what was done with them.")

    def record(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Attempt():
                self._attempt(event)
            case CallFailed(failure):
                kind = str(failure.verdict.kind)
                self._failed.add(1, {**self._called(failure.service, failure.endpoint), "redrive.kind": kind})
            case FallbackUsed(failure):
                self._fallbacks.add(1, self._called(failure.service, failure.endpoint))
            case BreakerChanged():
                self._circuits.add(1, {"redrive.service": _masked(event.service), "redrive.state": event.after})
            case BatchWritten():
                self._written(event)
            case RunEnded(report=report):
                self._ended(report)
            case FlowEnded(report=flow_report):
                self._flow_ended(flow_report)
            case TaskEnded():
                labels = {"redrive.flow": _masked(event.flow), "redrive.task": _masked(event.name)}
                self._tasks.add(1, {**labels, "redrive.state": str(event.state)})
                self._task.record(event.seconds, labels)
            case LettersPut():
                of = {} if event.pipeline is None else {"redrive.pipeline": _masked(event.pipeline)}
                self._count_letters({"put": event.new, "seen again": event.repeated}, of)
            case LettersReplayed(report=replayed):
                self._count_letters(
                    {
                        "reprocessed": replayed.reprocessed,
                        "failed again": replayed.failed_again,
                        "discarded": replayed.discarded,
                    },
                    _label_of_single(event.pipelines),
                )
            case LettersChanged():
                self._count_letters({event.action: event.count}, {})
            case LettersPurged():
                self._count_letters({"purged": event.count}, {})

    def _attempt(self, event: Attempt) -> None:
        called = self._called(event.service, event.endpoint)
        labels = {**called, "redrive.outcome": event.outcome}
        self._attempts.add(1, labels)
        if event.attempt > 1:
            self._retries.add(1, called)
        if event.elapsed_s is not None:  # else nothing was sent
            self._latency.record(event.latency_ms / 1_000, labels)

    def _called(self, service: str, endpoint: str) -> dict[str, str]:
        """Return the labels of a call. The number of endpoints is limited as in the store: each one is a series."""
        known = self._endpoints[service]
        if endpoint not in known:
            if len(known) >= MOST_ENDPOINTS:
                endpoint = OTHER_ENDPOINT
            known.add(endpoint)
        return {"redrive.service": _masked(service), "redrive.endpoint": _masked(endpoint)}

    def _written(self, event: BatchWritten) -> None:
        pipeline = {"redrive.pipeline": _masked(event.pipeline)}
        for outcome in _OUTCOMES:
            if (count := getattr(event.counts, outcome)) > 0:
                self._rows.add(count, {**pipeline, "redrive.outcome": outcome})
        self._batch.record(event.seconds, pipeline)

    def _ended(self, report: Report) -> None:
        labels = {"redrive.pipeline": _masked(report.pipeline), "redrive.status": str(report.status)}
        self._runs.add(1, labels)
        self._run.record(report.seconds, labels)

    def _flow_ended(self, report: FlowReport) -> None:
        labels = {"redrive.flow": _masked(report.flow), "redrive.status": str(report.status)}
        self._flows.add(1, labels)
        self._flow.record(report.seconds, labels)

    def _count_letters(self, counts: Mapping[str, int], labels: Mapping[str, str]) -> None:
        for action, count in counts.items():
            if count:
                self._letters.add(count, {**labels, "redrive.action": action})


def _label_of_single(pipelines: tuple[str, ...]) -> dict[str, str]:
    return {"redrive.pipeline": _masked(pipelines[0])} if len(pipelines) == 1 else {}


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    calls: bool = True,
) -> Callable[[], None]:
    """Send every event of the services, runs, flows and letters of this program to OpenTelemetry.

    The providers default to those that the program has set up globally. Return the function that ends it.

    Args:
        calls: whether each call, and each attempt of it, is a span. Turn it off where the HTTP client makes one, too.
    """
    spans = Spans(get_tracer("redrive", redrive.__version__, tracer_provider), calls=calls)
    meters = Meters(get_meter("redrive", redrive.__version__, meter_provider))
    # Two hooks, so that a failure of one does not keep events from the other.
    hooks = (on_event(spans.record), on_event(meters.record), register(spans.trace_id))

    def end() -> None:
        for unregister in hooks:
            unregister()
        spans.close()

    return end
