"""OpenTelemetry: spans of runs, batches, tasks and attempts of calls, and metrics of all events."""

from __future__ import annotations

from collections.abc import Callable

import redrive
from redrive._internal.optional import require_extra
from redrive._internal.tracing import register
from redrive.events.bus import on_event
from redrive.observe.otel.metrics import Meters
from redrive.observe.otel.spans import Spans

with require_extra("otel"):
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import TracerProvider, get_tracer


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
