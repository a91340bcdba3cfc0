"""Metrics in the Prometheus format, for any names and any numbers."""

import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import openmetrics, parser
from prometheus_client.openmetrics import parser as strict

import redrive
from redrive.calls.metrics.window import EDGES
from redrive.config import ConfigError
from redrive.errors import StoreError
from redrive.model.runs import RunStatus
from redrive.model.tasks import FlowStatus
from redrive.model.tasks import State as TaskState
from redrive.observe import prometheus
from redrive.observe.figures import Figures, LetterFigures, RunFigures
from redrive.observe.metric_families import families
from redrive.policy.breaker import CircuitState
from redrive.store.repositories.service_state import ServiceState
from redrive.store.repositories.services import EndpointSums, ServiceWindow
from redrive.store.schema import OUTCOMES, STATUSES

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
SECRETS = ("https://user:hunter2@bank.example", "https://user:hunter3@bank.example", "x?api_key=hunter2hunter2")

names = st.one_of(
    st.sampled_from(["bank", "vendor", 'quo"ted', "back\\slash", "two\nlines", "ünïcode", *SECRETS]),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8),
)
counts = st.integers(0, 10**12)
seconds = st.floats(0, 1e9)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def several(how_many):
    """A number of counts in one draw."""
    return counts.map(lambda drawn: tuple(drawn // 7**place % 1_000 for place in range(how_many)))


def listed(one, named):
    return st.lists(one, max_size=3, unique_by=named).map(tuple)


def named(one):
    return one.name


services = st.builds(
    lambda name, latencies, failures, took, opened, few: ServiceWindow(
        service=name,
        at=NOW,
        calls=few,
        successes=sum(latencies),
        retries=few,
        failures=dict(zip(OUTCOMES, failures, strict=True)),
        success_seconds=took,
        open_seconds=opened,
        latencies=latencies,
    ),
    names,
    several(len(EDGES) + 1),
    several(len(OUTCOMES)),
    seconds,
    seconds,
    counts,
)
circuits = st.builds(
    lambda name, state: ServiceState(name, state, (), False, None, None, ()), names, st.sampled_from(CircuitState)
)
letters = st.builds(
    lambda name, numbers, oldest: LetterFigures(
        pipeline=name, by_status=dict(zip(STATUSES, numbers, strict=True)), oldest_pending=oldest
    ),
    names,
    several(len(STATUSES)),
    st.none() | moments,
)


def runs(statuses, *rows):
    return st.builds(
        RunFigures,
        name=names,
        status=st.sampled_from(statuses),
        started_at=moments,
        seconds=seconds,
        last_success=st.none() | moments,
        running=st.integers(0, 3),
        rows=st.fixed_dictionaries(dict.fromkeys(rows, counts)),
    )


figures = st.builds(
    Figures,
    database=st.sampled_from(["sqlite", "postgresql"]),
    schema_version=st.just("0005"),
    services=listed(services, lambda one: one.service),
    circuits=listed(circuits, lambda one: one.service),
    letters=listed(letters, lambda one: one.pipeline),
    pipelines=listed(runs(tuple(RunStatus), "read", "written", "rejected"), named),
    flows=listed(runs(tuple(FlowStatus)), named),
    tasks=st.dictionaries(st.tuples(names, st.sampled_from(TaskState)), counts, max_size=4),
    alerts=st.dictionaries(
        st.tuples(
            st.sampled_from(["open", "waiting"]), st.sampled_from(["P1", "P3"]), st.sampled_from(["service"]), names
        ),
        counts,
        max_size=4,
    ),
    sends=st.dictionaries(st.tuples(names, st.sampled_from(["waiting", "failed"])), counts, max_size=4),
    watched=st.booleans(),
)

LABELS = {
    *("service", "outcome", "state", "le", "pipeline", "status", "flow", "urgency", "subject_kind", "subject"),
    *("channel", "database", "schema_version"),
}


def text(found, accept=""):
    return prometheus._encode(list(families(found, took=0.1)), accept)[0].decode()


def read(page):
    """A page as Prometheus would: samples by name and labels."""
    found = {}
    for family in parser.text_string_to_metric_families(page):
        for sample in family.samples:
            place = sample.name, tuple(sorted(sample.labels.items()))
            assert place not in found, "a sample that comes twice makes Prometheus refuse the whole page"
            found[place] = sample.value
    return found


def value(page, name, **labels):
    return read(page)[f"redrive_{name}", tuple(sorted(labels.items()))]


# ── any content ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(figures)
def test_every_page_can_be_read_and_has_each_sample_once(found):
    assert value(text(found), "up") == 1


@given(figures)
def test_every_page_is_also_served_as_openmetrics(found):
    page = text(found, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert page.endswith("# EOF\n")
    assert {family.name for family in strict.text_string_to_metric_families(page)} >= {"redrive_up", "redrive_letters"}


@given(figures)
def test_labels_are_documented_and_have_no_secret(found):
    page = text(found)
    assert {label for _, labels in read(page) for label, _ in labels} <= LABELS
    assert "hunter" not in page


@given(figures)
def test_buckets_of_a_histogram_grow_up_to_its_count(found):
    samples = read(text(found))
    of_buckets = [
        (dict(labels), count) for (name, labels), count in samples.items() if name.endswith("latency_seconds_bucket")
    ]
    for service in {labels["service"] for labels, _ in of_buckets}:
        mine = [count for labels, count in of_buckets if labels["service"] == service]
        assert len(mine) == len(EDGES) + 1
        assert mine == sorted(mine)
        labels = (("service", service),)
        assert mine[-1] == samples["redrive_service_latency_seconds_count", labels]
        assert mine[-1] == samples["redrive_service_attempts_total", (("outcome", "success"), *labels)]


@given(figures)
def test_circuit_and_last_run_have_one_state_each(found):
    samples = read(text(found))
    for name in ("service_circuit", "pipeline_last_run_status", "flow_last_run_status"):
        standing = [labels for (of, labels), is_so in samples.items() if of == f"redrive_{name}" and is_so]
        owners = {dict(labels).get("service") or labels[0][1] for labels in standing}
        assert len(standing) == len(owners) or any("***" in owner for owner in owners)


@given(figures)
def test_names_follow_the_conventions(found):
    for metric in families(found, took=0.1):
        assert re.fullmatch("redrive_[a-z_]+", metric.name)
        assert metric.documentation.endswith(".")
        assert not re.search("_(ms|minutes|hours|total|count)$", metric.name)
        if metric.type == "counter":
            assert all(sample.name == f"{metric.name}_total" for sample in metric.samples)


# ── some of it by example ─────────────────────────────────────────────────────────────────────────────────────────────


def bank(**values):
    return ServiceWindow(service="bank", at=NOW, **values)


def page_of(**values):
    return text(Figures(database="sqlite", schema_version="0005", **values))


def test_latencies_are_a_histogram_with_its_sum():
    latencies = [0] * len(EDGES) + [1]
    latencies[0], latencies[2] = 5, 2
    page = page_of(services=(bank(successes=8, success_seconds=75.5, latencies=tuple(latencies)),))
    found = {edge: value(page, "service_latency_seconds_bucket", service="bank", le=edge) for edge in ("0.005", "0.01")}
    assert found == {"0.005": 5, "0.01": 5}
    assert value(page, "service_latency_seconds_bucket", service="bank", le="0.025") == 7
    assert value(page, "service_latency_seconds_bucket", service="bank", le="60.0") == 7
    assert value(page, "service_latency_seconds_bucket", service="bank", le="+Inf") == 8
    assert value(page, "service_latency_seconds_sum", service="bank") == 75.5


def test_every_outcome_has_a_sample_from_the_start():
    page = page_of(services=(bank(successes=3, failures={"transient": 2}),))
    assert value(page, "service_attempts_total", service="bank", outcome="success") == 3
    assert value(page, "service_attempts_total", service="bank", outcome="transient") == 2
    assert value(page, "service_attempts_total", service="bank", outcome="quota") == 0


def test_endpoints_are_counted_by_outcome():
    of_bank = {"service": "bank", "endpoint": "GET /orders/{id}"}
    payouts = EndpointSums(
        **of_bank, calls=9, attempts=12, successes=7, retries=3, faults=4, calls_failed=2, failed_4xx=1, failed_404=0,
        success_seconds=1.25,
    )  # fmt: skip
    page = page_of(endpoints=(payouts,))
    counts = {
        outcome: value(page, "endpoint_attempts_total", **of_bank, outcome=outcome)
        for outcome in ("success", "fault", "refused")
    }
    assert counts == {"success": 7, "fault": 4, "refused": 1}
    assert value(page, "endpoint_failed_calls_total", **of_bank) == 2
    assert value(page, "endpoint_success_seconds_total", **of_bank) == 1.25


def test_service_without_reports_has_a_closed_circuit():
    page = page_of(services=(bank(),))
    assert value(page, "service_circuit", service="bank", state="closed") == 1
    assert value(page, "service_circuit", service="bank", state="open") == 0


def test_names_that_masking_makes_equal_are_added_up():
    two = [ServiceWindow(service=name, at=NOW, calls=2, successes=1) for name in SECRETS[:2]]
    assert value(page_of(services=tuple(two)), "service_calls_total", service="https://user:***@bank.example") == 4


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=10), st.randoms())
def test_reordered_sum_of_seconds_never_decreases(parts, random):
    shuffled = random.sample(parts, len(parts))
    one, other = (
        value(page_of(services=(bank(open_seconds=sum(some)),)), "service_circuit_open_seconds_total", service="bank")
        for some in (parts, shuffled)
    )
    assert one == other


# ── a file for the node exporter ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "store.db") as opened:
        yield opened


def test_file_is_written_atomically_without_leftovers(store, tmp_path):
    place = tmp_path / "metrics"
    place.mkdir()
    for _ in range(2):
        prometheus.write_textfile(store, place / "redrive.prom")
    assert os.listdir(place) == ["redrive.prom"]
    assert value((place / "redrive.prom").read_text(), "up") == 1


def test_file_is_readable_by_others(store, tmp_path):
    before = os.umask(0o022)
    try:
        prometheus.write_textfile(store, str(tmp_path / "redrive.prom"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "redrive.prom").stat().st_mode) == 0o644


def test_concurrent_reader_gets_the_old_file_whole(store, tmp_path):
    prometheus.write_textfile(store, tmp_path / "redrive.prom")
    with (tmp_path / "redrive.prom").open() as reading:
        prometheus.write_textfile(store, tmp_path / "redrive.prom")
        assert value(reading.read(), "up") == 1


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("redrive.txt", "takes files whose names end in .prom"),
        ("missing/redrive.prom", "cannot be written: no such file or directory"),
        ("directory.prom", "cannot be written: is a directory"),
        (f"{'x' * 300}.prom", "cannot be written: file name too long"),
        ("a\0b.prom", "cannot be written: embedded null byte"),
    ],
)
def test_invalid_path_is_one_sentence(store, tmp_path, path, sentence):
    (tmp_path / "directory.prom").mkdir()
    with pytest.raises(ConfigError) as raised:
        prometheus.write_textfile(store, tmp_path / path)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [one for one in os.listdir(tmp_path) if one.startswith(".")] == []


def test_unreachable_store_is_reported_in_the_file(store, tmp_path):
    prometheus.write_textfile(store, tmp_path / "redrive.prom")
    spoil(store)
    with pytest.raises(StoreError):
        prometheus.write_textfile(store, tmp_path / "redrive.prom")
    assert read((tmp_path / "redrive.prom").read_text()) == {("redrive_up", ()): 0}


def spoil(store):
    """Take the tables away."""
    store.close()
    path = store.database.name
    for one in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(one):
            os.unlink(one)
    with open(path, "wb") as file:
        file.write(b"this is no database" * 100)


# ── a registry of the program's own ───────────────────────────────────────────────────────────────────────────────────


def test_store_can_be_added_to_an_existing_registry(store):
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(prometheus.StoreCollector(store))
    store.dlq.put("x", "bad", pipeline="vendor")
    assert registry.get_sample_value("redrive_letters", {"pipeline": "vendor", "status": "pending"}) == 1
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(prometheus.StoreCollector(store))


def test_openmetrics_accept_header_gets_openmetrics(store):
    accept = openmetrics.exposition.CONTENT_TYPE_LATEST
    assert prometheus.render(store, accept=accept).endswith(b"# EOF\n")
    assert b"# EOF" not in prometheus.render(store)


@given(st.text() | st.sampled_from(["text/plain; version=abc", "application/openmetrics-text; version=1.x"]))
def test_any_accept_header_gets_a_response(accept):
    assert prometheus._encode([prometheus.up(True)], accept)[0].startswith(b"# HELP redrive_up ")


# ── where the library is missing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_missing_package_is_one_sentence_with_the_command():
    program = "import sys; sys.modules['prometheus_client'] = None; import redrive.observe.prometheus"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'redrive[prometheus]'" in done.stderr.splitlines()[-1]


@pytest.mark.process
def test_only_this_module_imports_the_library():
    program = (
        "import sys, redrive, redrive.store.store, redrive.calls.service, redrive.cli.app\n"
        "print([name for name in ('prometheus_client', 'opentelemetry', 'http.server') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
