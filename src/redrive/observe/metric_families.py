"""Figures as families of metrics, by the conventions of Prometheus: base units, a help text, no two of one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from redrive._internal.masking import mask
from redrive._internal.optional import needs
from redrive.calls.metrics.window import EDGES
from redrive.model.runs import RunStatus
from redrive.model.tasks import FlowStatus
from redrive.model.tasks import State as TaskState
from redrive.observe.figures import Figures, RunFigures
from redrive.policy.breaker import CircuitState
from redrive.store.repositories.services import ServiceWindow
from redrive.store.schema import OUTCOMES

with needs("prometheus"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
    from prometheus_client.metrics_core import Metric

_Labels = tuple[str, ...]


def families(figures: Figures, *, took: float) -> Iterator[Metric]:
    """All metrics of a store, and how many seconds it took to ask for them."""
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
    """Whether the store answers."""
    return GaugeMetricFamily("redrive_up", "1 where the store could be read.", float(answers))


class _Samples:
    """Values by their labels. Two names that are one when they are masked are added up: no sample comes twice."""

    def __init__(self, add: Callable[[float, float], float] = lambda one, other: one + other) -> None:
        self._add = add
        self._found: dict[_Labels, float] = {}

    def put(self, value: float, *labels: str) -> None:
        """Count it."""
        shown = tuple(mask(label) for label in labels)
        self._found[shown] = self._add(self._found[shown], value) if shown in self._found else value

    def into(self, family: CounterMetricFamily | GaugeMetricFamily) -> Metric:
        """The family, with all of them."""
        for labels, value in sorted(self._found.items()):
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
    for one in figures.services:
        attempts.put(one.successes, one.service, "success")
        for outcome in OUTCOMES:
            attempts.put(one.failures.get(outcome, 0), one.service, outcome)
        opened.put(_steady(one.open_seconds), one.service)
    yield _counter(
        "service_attempts",
        "Attempts of calls by what came of them, as in the attempt log; what was refused by an open circuit was not "
        "sent.",
        ("service", "outcome"),
        attempts,
    )
    for column, (name, help) in _COUNTED.items():
        counted = _Samples()
        for one in figures.services:
            counted.put(getattr(one, column), one.service)
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
    found: dict[str, tuple[list[int], float]] = {}
    for one in services:
        counts, seconds = found.get(mask(one.service), ([0] * (len(EDGES) + 1), 0.0))
        together = [before + more for before, more in zip(counts, one.latencies, strict=True)]
        found[mask(one.service)] = together, seconds + _steady(one.success_seconds)
    edges = [*(repr(edge) for edge in EDGES), "+Inf"]
    for service, (counts, seconds) in sorted(found.items()):
        family.add_metric((service,), list(zip(edges, accumulate(counts), strict=True)), seconds)
    return family


def _endpoints(figures: Figures) -> Iterator[Metric]:
    """By function or route; ids in paths are left out, so that there are few."""
    attempts, failed, seconds = _Samples(), _Samples(), _Samples()
    for one in figures.endpoints:
        counts = {"success": one.successes, "fault": one.faults}
        counts["refused"] = one.attempts - one.successes - one.faults
        for outcome, count in counts.items():
            attempts.put(count, one.service, one.endpoint, outcome)
        failed.put(one.calls_failed, one.service, one.endpoint)
        seconds.put(_steady(one.success_seconds), one.service, one.endpoint)
    labels = ("service", "endpoint")
    yield _counter(
        "endpoint_attempts",
        "Attempts of calls by endpoint: success, fault (5xx, no connection, no answer in time), or refused.",
        (*labels, "outcome"),
        attempts,
    )
    yield _counter("endpoint_failed_calls", "Calls that ended in an error for their caller.", labels, failed)
    yield _counter("endpoint_success_seconds", "Seconds inside successful attempts.", labels, seconds)


def _steady(seconds: float) -> float:
    """To the millisecond. The same summands, added in another order, may give a little less: that would look as if the
    counter had begun anew."""
    return round(seconds, 3)


def _circuits(figures: Figures) -> Iterator[Metric]:
    """A service of which nobody has said anything lately has a closed circuit."""
    said = {one.service: one for one in figures.circuits}
    states, drained = _Samples(max), _Samples()
    for name in sorted({one.service for one in figures.services} | said.keys()):
        known = said.get(name)
        standing = CircuitState.CLOSED if known is None else known.state
        for state in CircuitState:
            states.put(float(state is standing), name, state)
        drained.put(0 if known is None else len(known.drained), name)
    yield _gauge(
        "service_circuit",
        "1 for the state in which the circuit is, as processes share it.",
        ("service", "state"),
        states,
    )
    yield _gauge("service_drained_keys", "Credentials that are used up for now.", ("service",), drained)


# ── letters, runs, tasks ──────────────────────────────────────────────────────────────────────────────────────────────


def _letters(figures: Figures) -> Iterator[Metric]:
    counted, oldest = _Samples(), _Samples(min)
    for one in figures.letters:
        for status, count in one.by_status.items():
            counted.put(count, one.pipeline, status)
        if one.oldest_pending is not None:
            oldest.put(one.oldest_pending.timestamp(), one.pipeline)
    yield _gauge("letters", "Dead letters in the store.", ("pipeline", "status"), counted)
    yield _gauge(
        "letters_oldest_pending_timestamp_seconds",
        "When the oldest pending letter was rejected, to the hour.",
        ("pipeline",),
        oldest,
    )


def _runs(kind: str, runs: Sequence[RunFigures], statuses: Sequence[str]) -> Iterator[Metric]:
    """Where the newest run of each stands, and when one last came to a good end."""
    standing, running, took = _Samples(max), _Samples(), _Samples(max)
    started, succeeded = _Samples(max), _Samples(max)
    for one in runs:
        for status in statuses:
            standing.put(float(status == one.status), one.name, status)
        running.put(one.running, one.name)
        took.put(one.seconds, one.name)
        started.put(one.started_at.timestamp(), one.name)
        if one.last_success is not None:
            succeeded.put(one.last_success.timestamp(), one.name)
    yield _gauge(f"{kind}_last_run_status", "1 for the status of the newest run.", (kind, "status"), standing)
    yield _gauge(f"{kind}_last_run_duration_seconds", "How long the newest run took, or has taken.", (kind,), took)
    yield _gauge(f"{kind}_last_run_timestamp_seconds", "When the newest run began.", (kind,), started)
    yield _gauge(f"{kind}_last_success_timestamp_seconds", "When a run was last complete.", (kind,), succeeded)
    yield _gauge(
        f"{kind}_running", "Runs that are under way, or whose process died and could not say so.", (kind,), running
    )


def _rows(figures: Figures) -> Iterator[Metric]:
    read, by_outcome = _Samples(max), _Samples(max)
    for one in figures.pipelines:
        for outcome, count in one.rows.items():
            if outcome == "read":
                read.put(count, one.name)
            else:
                by_outcome.put(count, one.name, outcome)
    yield _gauge("pipeline_last_run_rows_read", "Rows that the newest run has read.", ("pipeline",), read)
    yield _gauge("pipeline_last_run_rows", "The same rows by what became of them.", ("pipeline", "outcome"), by_outcome)
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
    standing, sends = _Samples(), _Samples()
    for labels, count in figures.alerts.items():
        standing.put(count, *labels)
    for (channel, status), count in figures.sends.items():
        sends.put(count, channel, status)
    yield _gauge("alerts", "Alerts that are not over.", ("status", "urgency", "subject_kind", "subject"), standing)
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
