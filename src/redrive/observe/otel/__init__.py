"""OpenTelemetry: spans of runs, batches, tasks and attempts of calls, and metrics of all that is announced."""

from __future__ import annotations

from collections.abc import Callable

import redrive
from redrive._internal.optional import needs
from redrive._internal.tracing import register
from redrive.events.bus import on_event
from redrive.observe.otel.metrics import Meters
from redrive.observe.otel.spans import Spans

with needs("otel"):
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import TracerProvider, get_tracer


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    calls: bool = True,
) -> Callable[[], None]:
    """Tell OpenTelemetry of everything that services, runs, flows and letters of this program announce.

    What is not given is what the program has set up for all. Returns the function that ends it.

    Args:
        calls: whether each call, and each attempt of it, is a span. Turn it off where the HTTP client makes one, too.
    """
    spans = Spans(get_tracer("redrive", redrive.__version__, tracer_provider), calls=calls)
    meters = Meters(get_meter("redrive", redrive.__version__, meter_provider))
    # Two hooks: where one of them fails, the other still hears.
    hooks = (on_event(spans.hear), on_event(meters.hear), register(spans.trace_id))

    def end() -> None:
        for one in hooks:
            one()
        spans.close()

    return end
