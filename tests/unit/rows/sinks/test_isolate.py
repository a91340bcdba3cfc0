"""Finding the bad rows among many with few probes."""

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.rows.sinks.sink import isolate


class Table:
    """Takes rows as a whole or not at all, and counts how often it was asked."""

    def __init__(self, bad):
        self.bad, self.taken, self.asked = set(bad), [], 0

    def probe(self, start, stop):
        self.asked += 1
        assert start < stop, "an empty range says nothing"
        first = next((place for place in range(start, stop) if place in self.bad), None)
        if first is None:
            self.taken.extend(range(start, stop))
            return None
        return f"row {first}"


def most(count, bad):
    """How often it may ask: what information demands, and a little for not knowing how many there are."""
    spread = bad * math.log2(count / bad) if bad else 0
    return 1.5 * spread + 2 * bad + 2 * math.log2(count or 1) + 2


scattered = st.integers(1, 300).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), max_size=count))
)
clustered = st.integers(1, 2_000).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, 40)), max_size=5).map(
            lambda runs: {place for first, size in runs for place in range(first, min(first + size, count))}
        ),
    )
)


@given(st.one_of(scattered, clustered))
@example((1, set()))
@example((1, {0}))
@example((2, {1}))
@example((50_000, {0, 49_999}))
def test_bad_rows_are_found_and_others_applied_once_in_order(case):
    count, bad = case
    table = Table(bad)
    found = isolate(count, table.probe)
    assert found == [(place, f"row {place}") for place in sorted(bad)]
    assert table.taken == [place for place in range(count) if place not in bad]
    assert table.asked <= most(count, len(bad))


def test_ten_bad_of_fifty_thousand_rows_take_about_150_probes():
    asked = []
    for seed in range(20):
        table = Table(random.Random(seed).sample(range(50_000), 10))
        isolate(50_000, table.probe)
        asked.append(table.asked)
    assert sum(asked) / len(asked) < 10 * math.log2(50_000 / 10) + 2 * 10 + 15


@pytest.mark.parametrize("count", [1, 2, 7, 1_000])
def test_where_every_row_is_bad_each_is_probed_about_once(count):
    table = Table(range(count))
    assert len(isolate(count, table.probe)) == count
    assert table.asked <= count + math.log2(count) + 1


def test_empty_batch_needs_no_probe():
    assert isolate(0, Table(()).probe) == []


@given(st.integers(2, 500), st.integers(1, 499))
def test_rows_rejected_only_together_are_all_applied(count, largest):
    taken = []

    def probe(start, stop):
        if stop - start > min(largest, count - 1):
            return "too many at once"
        taken.extend(range(start, stop))
        return None

    assert isolate(count, probe) == []
    assert taken == list(range(count))


def test_error_of_the_probe_is_no_rows_fault():
    def probe(start, stop):
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        isolate(10, probe)
