"""Windows of services: shares, percentiles from buckets, and several windows merged."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.calls.metrics.window import EDGES, spread
from redrive.model.calls import Kind
from redrive.store.repositories.services import ServiceWindow, merge_windows, percentile
from redrive.store.schema import OUTCOMES

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)

counts = st.integers(0, 1000)
windows = st.builds(
    ServiceWindow,
    service=st.just("bank"),
    at=st.just(NOON),
    calls=counts,
    attempts=counts,
    successes=counts,
    retries=counts,
    fallbacks=counts,
    failures=st.dictionaries(st.sampled_from(OUTCOMES), counts),
    calls_failed=counts,
    failed_auth=counts,
    failed_4xx=counts,
    success_seconds=st.floats(0, 1000),
    open_seconds=st.floats(0, 1000),
    latencies=st.tuples(*[counts] * (len(EDGES) + 1)),
)


def window(**values):
    return ServiceWindow(service="bank", at=NOON, **values)


def test_every_kind_of_failure_has_a_column_of_its_own():
    assert set(OUTCOMES) == {*Kind, "circuit_open", "no_key_left", "cancelled"}


def test_shares_are_of_the_total():
    one = window(attempts=200, successes=150, retries=30, failures={"transient": 20, "rate_limited": 5, "row": 25})
    assert (one.success_rate, one.transient_rate, one.mean_retries) == (0.75, 0.125, 0.2)
    assert one.failed_attempts == 50
    assert window(successes=4, success_seconds=2.0).mean_seconds == 0.5


def test_empty_window_has_no_shares():
    none = window()
    assert [none.success_rate, none.transient_rate, none.mean_retries, none.mean_seconds] == [None] * 4
    assert [none.p50, none.p95, none.p99] == [None] * 3


def test_latencies_are_interpolated_within_a_bucket():
    latencies = spread([0.2] * 100)  # in the bucket from 0.1 s to 0.25 s
    assert percentile(latencies, 0.5) == pytest.approx(0.175)
    assert percentile(latencies, 0.99) == pytest.approx(0.2485)


def test_latency_beyond_the_last_edge_is_the_edge():
    assert window(latencies=tuple(spread([300.0] * 3))).p50 == 60.0


@given(st.lists(st.floats(0, 60), min_size=1, max_size=300), st.floats(0.01, 1))
def test_percentile_is_in_the_bucket_of_its_latency(latencies, share):
    ranked = sorted(latencies)
    meant = ranked[max(1, math.ceil(len(ranked) * share)) - 1]
    found = percentile(spread(latencies), share)
    above = next(edge for edge in EDGES if meant <= edge)
    below = max((edge for edge in EDGES if edge < above), default=0.0)
    assert below <= found <= above


@given(st.lists(st.floats(0, 100), min_size=1))
def test_percentiles_are_in_order(latencies):
    one = window(latencies=tuple(spread(latencies)))
    assert one.p50 <= one.p95 <= one.p99


@given(st.lists(windows, max_size=5))
def test_merged_windows_have_the_sum_of_everything(several):
    one = merge_windows(several, service="bank", at=NOON)
    for name in ("calls", "attempts", "successes", "retries", "fallbacks", "calls_failed", "failed_auth", "failed_4xx"):
        assert getattr(one, name) == sum(getattr(each, name) for each in several)
    for name in ("success_seconds", "open_seconds"):
        assert getattr(one, name) == pytest.approx(sum(getattr(each, name) for each in several))
    assert one.failures == {name: sum(each.failures.get(name, 0) for each in several) for name in OUTCOMES}
    assert list(one.latencies) == [sum(each.latencies[n] for each in several) for n in range(len(EDGES) + 1)]


@given(windows)
def test_document_has_everything(one):
    document = one.document()
    assert document["at"] == "2027-01-01T12:00:00Z"
    assert document["failures"] == one.failures
    assert document["latencies"] == list(one.latencies)
    assert (document["p95"], document["transient_rate"]) == (one.p95, one.transient_rate)
