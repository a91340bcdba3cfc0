"""Sums of what a service did: each outcome is counted once, in the right window."""

from bisect import bisect_left
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.calls.metrics.window import EDGES, MINUTE, MINUTES_KEPT, QUARTER, MetricsWindow, spans, spread, window

NOON = 1_800_014_400  # a moment at which a quarter of an hour begins
assert NOON % QUARTER == 0

latencies = st.lists(st.one_of(st.floats(0, 120), st.sampled_from(EDGES), st.floats(0, 0.006)), max_size=200)
moments = st.floats(NOON - 3 * QUARTER, NOON + 3 * QUARTER)


# ── buckets and windows ──────────────────────────────────────────────────────────────────────────────────────────────


@given(latencies)
def test_latency_is_counted_in_the_bucket_of_its_edge(taken):
    expected = Counter(bisect_left(EDGES, one) for one in taken)
    assert spread(taken) == [expected[bucket] for bucket in range(len(EDGES) + 1)]


def test_edge_belongs_to_the_bucket_below_it():
    assert spread([0.005, 0.0051, 60.0, 60.1]) == [1, 1, *[0] * 10, 1, 1]


@given(moments, st.sampled_from([MINUTE, QUARTER]))
def test_window_is_from_its_start_until_the_next_one(at, length):
    begins = window(at, length)
    assert begins <= at < begins + length
    assert begins % length == 0


@given(moments, st.floats(0, 4 * QUARTER))
def test_span_is_split_at_windows_without_loss(begins, seconds):
    parts = list(spans(begins, begins + seconds, QUARTER))
    assert sum(part for _, part in parts) == pytest.approx((begins + seconds) - begins)
    assert all(0 < part <= QUARTER for _, part in parts)
    starts = [at for at, _ in parts]
    assert starts == [window(begins, QUARTER) + QUARTER * n for n in range(len(starts))]


# ── books ────────────────────────────────────────────────────────────────────────────────────────────────────────────

attempts = st.tuples(
    moments,
    st.sampled_from(["success", "transient", "auth", "row"]),
    st.floats(0, 100),
    st.booleans(),
    st.booleans(),
)
bulks = st.tuples(moments, latencies)


@given(st.lists(attempts), st.lists(bulks))
def test_outcome_is_counted_in_its_quarter_and_its_minute(told, many):
    book = MetricsWindow()
    for at, outcome, seconds, repeat, fault in told:
        book.attempted(at, outcome, seconds, retry=repeat, fault=fault)
    for at, taken in many:
        book.succeeded(at, taken)
    for length, windows in ((QUARTER, book.quarters), (MINUTE, book.minutes)):
        expected = Counter(window(one[0], length) for one in told)
        expected.update({window(at, length): 0 for at, _ in many})
        for at, taken in many:
            expected[window(at, length)] += len(taken)
        counted = {at: one.counts["attempts"] if length == QUARTER else one.attempts for at, one in windows.items()}
        assert counted == {at: count for at, count in expected.items() if count}
    sums = list(book.quarters.values())
    successes = [one[2] for one in told if one[1] == "success"] + [one for _, taken in many for one in taken]
    assert sum(one.counts["successes"] for one in sums) == len(successes)
    assert [sum(bucket) for bucket in zip(*(one.buckets for one in sums), strict=True)] in ([], spread(successes))
    assert sum(one.success_seconds for one in sums) == pytest.approx(sum(successes))
    assert sum(one.counts["retries"] for one in sums) == sum(one[3] for one in told)
    assert sum(one.counts["calls"] + one.counts["retries"] for one in sums) == sum(
        one.counts["attempts"] for one in sums
    )
    assert sum(one.counts["transient"] for one in sums) == sum(one[1] == "transient" for one in told)
    assert sum(one.faults for one in book.minutes.values()) == sum(one[4] for one in told)


@given(st.lists(attempts), st.lists(attempts))
def test_merge_of_two_books_is_the_book_of_both(first, second):
    def book(*told):
        made = MetricsWindow()
        for at, outcome, seconds, repeat, fault in told:
            made.attempted(at, outcome, seconds, retry=repeat, fault=fault)
            made.open_for(at, at + 1000)
        return made

    both, one = book(*first, *second), book(*first)
    one.add(book(*second))
    assert one.minutes == both.minutes
    assert one.quarters.keys() == both.quarters.keys()
    for at, sums in one.quarters.items():
        assert (+sums.counts, sums.buckets) == (+both.quarters[at].counts, both.quarters[at].buckets)
        assert sums.success_seconds == pytest.approx(both.quarters[at].success_seconds)
        assert sums.open_seconds == pytest.approx(both.quarters[at].open_seconds)


def test_book_without_counts_is_empty():
    book = MetricsWindow()
    assert not book
    book.succeeded(NOON, [])
    assert not book
    book.rejected(NOON, "circuit_open")
    assert book


def test_call_without_a_request_is_a_call_without_attempt():
    book = MetricsWindow()
    book.rejected(NOON + 5, "circuit_open")
    assert dict(book.quarters[NOON].counts) == {"calls": 1, "circuit_open": 1}
    assert not book.minutes


def test_outcomes_of_a_call_are_counted_by_their_names():
    book = MetricsWindow()
    book.ended(NOON, "calls_failed", "failed_auth")
    book.ended(NOON + QUARTER - 1, "calls_failed")
    book.ended(NOON + QUARTER, "fallbacks")
    assert dict(book.quarters[NOON].counts) == {"calls_failed": 2, "failed_auth": 1}
    assert dict(book.quarters[NOON + QUARTER].counts) == {"fallbacks": 1}


def test_expired_minutes_are_dropped_and_quarters_remain():
    book = MetricsWindow()
    for hours in range(6):
        book.succeeded(NOON + 3600 * hours, [0.1])
    book.forget_minutes(NOON + 5 * 3600 - MINUTES_KEPT)
    assert sorted(book.minutes) == [NOON + 3600 * hours for hours in (2, 3, 4, 5)]
    assert len(book.quarters) == 6
