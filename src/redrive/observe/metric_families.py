"""Metric families of a store's figures, by the conventions of Prometheus: base units, a help text, unique names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from redrive._internal.masking import mask
from redrive._internal.optional import require_extra
from redrive.calls.metrics.window import EDGES
from redrive.model.runs import RunStatus
from redrive.model.tasks import FlowStatus
from redrive.model.tasks import State as TaskState
from redrive.observe.figures import Figures, RunFigures
from redrive.policy.breaker import CircuitState
from redrive.store.repositories.services import ServiceWindow
from redrive.store.schema import OUTCOMES

with require_extra("prometheus"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
    from prometheus_client.metrics_core import Metric

_Labels = tuple[str, ...]


def families(figures: Figures, *, took: float) -> Iterator[Metric]:
    """Yield all metrics of a store, and how many seconds it took to read them."""
    yield up(True)
    yield GaugeMetricFamily("redrive_scrape_duration_seconds", "How long the store took to answer.", took)
    info = InfoMetricFamily("redrive_store", "The database, and the version of redrive's schema in it.")
    info.add_metric([], {"database": figures.database, "schema_version": figures.schema_version})
    yield info
    yield GaugeMetricFamily(
        "redrive_watched", "1 where a process watches SLAs and levels (`redrive watch`).", float(figures.watched)
    )
    left_out = _Samples()
    for kind, count in figures.left_out.items():
        left_out.put(count, kind)
    yield _gauge("names_left_out", "Names beyond the limit, which have no samples of their own.", ("of",), left_out)
    yield from _sizes(figures)
    yield from _services(figures)
    yield from _letters(figures)
    yield from _runs("pipeline", figures.pipelines, tuple(RunStatus))
    yield from _rows(figures)
    yield from _runs("flow", figures.flows, tuple(FlowStatus))
    yield from _tasks(figures)
    yield from _alerts(figures)


def _sizes(figures: Figures) -> Iterator[Metric]:
    store, letters = _Samples(), _Samples()
    if figures.store_bytes is not None:
        store.put(figures.store_bytes)
    if figures.letters_bytes is not None:
        letters.put(figures.letters_bytes)
    yield _gauge("store_size_bytes", "What the store takes on disk.", (), store)
    yield _gauge("letters_size_bytes", "What the table of letters takes, with its indexes; on PostgreSQL.", (), letters)


def up(answers: bool) -> Metric:
    """Return the metric that states whether the store answers."""
    return GaugeMetricFamily("redrive_up", "1 where the store could be read.", float(answers))


class _Samples:
    """Values by their labels. Names that are equal once they are masked are combined, so that no sample comes twice."""

    def __init__(self, combine: Callable[[float, float], float] = lambda value, other: value + other) -> None:
        self._combine = combine
        self._values: dict[_Labels, float] = {}

    def put(self, value: float, *labels: str) -> None:
        """Add a value."""
        shown = tuple(mask(label) for label in labels)
        self._values[shown] = self._combine(self._values[shown], value) if shown in self._values else value

    def into(self, family: CounterMetricFamily | GaugeMetricFamily) -> Metric:
        """Add all values to a family, and return it."""
        for labels, value in sorted(self._values.items()):
            family.add_metric(labels, value)
        return family


def _counter(name: str, help: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return samples.into(CounterMetricFamily(f"redrive_{name}", help, labels=labels))


def _gauge(name: str, help: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return samples.into(GaugeMetricFamily(f"redrive_{name}", help, labels=labels))


# ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_COUNTED = {
    "calls": ("service_calls", "Calls, however many attempts they took."),
    "retries": ("service_retries", "Attempts that were not the first of their call."),
    "fallbacks": ("service_fallbacks", "Calls that were answered by their fallback."),
    "calls_failed": ("service_failed_calls", "Calls that ended in an error for their caller."),
}


def _services(figures: Figures) -> Iterator[Metric]:
    attempts, opened = _Samples(), _Samples()
    for window in figures.services:
        attempts.put(window.successes, window.service, "success")
        for outcome in OUTCOMES:
            attempts.put(window.failures.get(outcome, 0), window.service, outcome)
        opened.put(_round(window.open_seconds), window.service)
    yield _counter(
        "service_attempts",
        "Attempts of calls by outcome, as in the attempt log; calls that an open circuit rejected were not sent.",
        ("service", "outcome"),
        attempts,
    )
    for column, (name, help) in _COUNTED.items():
        counted = _Samples()
        for window in figures.services:
            counted.put(getattr(window, column), window.service)
        yield _counter(name, help, ("service",), counted)
    yield _counter(
        "service_circuit_open_seconds",
        "Seconds in which the circuit was not closed, summed over processes.",
        ("service",),
        opened,
    )
    yield _latency(figures.services)
    yield from _endpoints(figures)
    yield from _circuits(figures)


def _latency(services: Sequence[ServiceWindow]) -> Metric:
    family = HistogramMetricFamily(
        "redrive_service_latency_seconds", "How long successful attempts took.", labels=("service",)
    )
    latencies: dict[str, tuple[list[int], float]] = {}
    for window in services:
        counts, seconds = latencies.get(mask(window.service), ([0] * (len(EDGES) + 1), 0.0))
        together = [before + more for before, more in zip(counts, window.latencies, strict=True)]
        latencies[mask(window.service)] = together, seconds + _round(window.success_seconds)
    edges = [*(repr(edge) for edge in EDGES), "+Inf"]
    for service, (counts, seconds) in sorted(latencies.items()):
        family.add_metric((service,), list(zip(edges, accumulate(counts), strict=True)), seconds)
    return family


def _endpoints(figures: Figures) -> Iterator[Metric]:
    """Yield the metrics by function or route; ids in paths are left out, so that there are few."""
    attempts, failed, seconds = _Samples(), _Samples(), _Samples()
    for sums in figures.endpoints:
        counts = {"success": sums.successes, "fault": sums.faults}
        counts["refused"] = sums.attempts - sums.successes - sums.faults
        for outcome, count in counts.items():
            attempts.put(count, sums.service, sums.endpoint, outcome)
        failed.put(sums.calls_failed, sums.service, sums.endpoint)
        seconds.put(_round(sums.success_seconds), sums.service, sums.endpoint)
    labels = ("service", "endpoint")
    yield _counter(
        "endpoint_attempts",
        "Attempts of calls by endpoint: success, fault (5xx, no connection, no answer in time), or refused.",
        (*labels, "outcome"),
        attempts,
    )
    yield _counter("endpoint_failed_calls", "Calls that ended in an error for their caller.", labels, failed)
    yield _counter("endpoint_success_seconds", "Seconds inside successful attempts.", labels, seconds)


def _round(seconds: float) -> float:
    """Round to the millisecond.

    The same summands in another order may give a little less, which would look like a reset of the counter.
    """
    return round(seconds, 3)


def _circuits(figures: Figures) -> Iterator[Metric]:
    """Yield the metrics of circuits; the circuit of a service without a recent report is closed."""
    reported = {state.service: state for state in figures.circuits}
    states, drained = _Samples(max), _Samples()
    for name in sorted({window.service for window in figures.services} | reported.keys()):
        known = reported.get(name)
        current = CircuitState.CLOSED if known is None else known.state
        for state in CircuitState:
            states.put(float(state is current), name, state)
        drained.put(0 if known is None else len(known.drained), name)
    yield _gauge(
        "service_circuit",
        "1 for the state in which the circuit is, as processes share it.",
        ("service", "state"),
        states,
    )
    yield _gauge("service_drained_keys", "Credentials whose quota is exhausted.", ("service",), drained)


# ── letters, runs, tasks ──────────────────────────────────────────────────────────────────────────────────────────────


def _letters(figures: Figures) -> Iterator[Metric]:
    counted, oldest = _Samples(), _Samples(min)
    for letters in figures.letters:
        for status, count in letters.by_status.items():
            counted.put(count, letters.pipeline, status)
        if letters.oldest_pending is not None:
            oldest.put(letters.oldest_pending.timestamp(), letters.pipeline)
    yield _gauge("letters", "Dead letters in the store.", ("pipeline", "status"), counted)
    yield _gauge(
        "letters_oldest_pending_timestamp_seconds",
        "When the oldest pending letter was rejected, to the hour.",
        ("pipeline",),
        oldest,
    )


def _runs(kind: str, runs: Sequence[RunFigures], statuses: Sequence[str]) -> Iterator[Metric]:
    """Yield the status of the newest run of each name, and when a run was last complete."""
    current, running, took = _Samples(max), _Samples(), _Samples(max)
    started, succeeded = _Samples(max), _Samples(max)
    for run in runs:
        for status in statuses:
            current.put(float(status == run.status), run.name, status)
        running.put(run.running, run.name)
        took.put(run.seconds, run.name)
        started.put(run.started_at.timestamp(), run.name)
        if run.last_success is not None:
            succeeded.put(run.last_success.timestamp(), run.name)
    yield _gauge(f"{kind}_last_run_status", "1 for the status of the newest run.", (kind, "status"), current)
    yield _gauge(f"{kind}_last_run_duration_seconds", "How long the newest run took, or has taken.", (kind,), took)
    yield _gauge(f"{kind}_last_run_timestamp_seconds", "When the newest run began.", (kind,), started)
    yield _gauge(f"{kind}_last_success_timestamp_seconds", "When a run was last complete.", (kind,), succeeded)
    yield _gauge(
        f"{kind}_running", "Runs that are under way, or whose process died without a report.", (kind,), running
    )


def _rows(figures: Figures) -> Iterator[Metric]:
    read, by_outcome = _Samples(max), _Samples(max)
    for run in figures.pipelines:
        for outcome, count in run.rows.items():
            if outcome == "read":
                read.put(count, run.name)
            else:
                by_outcome.put(count, run.name, outcome)
    yield _gauge("pipeline_last_run_rows_read", "Rows that the newest run has read.", ("pipeline",), read)
    yield _gauge("pipeline_last_run_rows", "The same rows by outcome.", ("pipeline", "outcome"), by_outcome)
    for outcome in ("read", "written", "rejected"):
        ever = _Samples()
        for name, rows in figures.rows.items():
            ever.put(rows[outcome], name)
        yield _counter(f"rows_{outcome}", f"Rows that all runs have {outcome}.", ("pipeline",), ever)


def _tasks(figures: Figures) -> Iterator[Metric]:
    counted = _Samples()
    for flow in sorted({flow for flow, _ in figures.tasks}):
        for state in TaskState:
            counted.put(figures.tasks.get((flow, state), 0), flow, state)
    yield _gauge("flow_tasks", "Tasks of runs that are not finished.", ("flow", "state"), counted)


# ── alerts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _alerts(figures: Figures) -> Iterator[Metric]:
    current, sends = _Samples(), _Samples()
    for labels, count in figures.alerts.items():
        current.put(count, *labels)
    for (channel, status), count in figures.sends.items():
        sends.put(count, channel, status)
    yield _gauge("alerts", "Alerts that are not resolved.", ("status", "urgency", "subject_kind", "subject"), current)
    monitors = _Samples(min)
    for name, is_up in figures.monitors.items():
        monitors.put(float(is_up), name)
    yield _gauge(
        "monitor_up",
        "0 while the watch cannot measure this; monitors that never failed have no sample.",
        ("monitor",),
        monitors,
    )
    yield _gauge("alert_sends", "Messages that are not delivered.", ("channel", "status"), sends)
