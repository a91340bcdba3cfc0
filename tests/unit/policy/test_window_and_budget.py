"""Counts over a rolling window, and the retry budget that uses them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.retry import BudgetLedger, RetryBudget
from redrive.policy.window import RollingWindow

moments = st.lists(st.tuples(st.floats(0, 500), st.integers(0, 5), st.integers(0, 5)), max_size=60)


@given(moments, st.floats(1, 100), st.floats(0, 50))
def test_window_counts_its_events_exact_to_one_slice(events, span, later):
    window = RollingWindow(span)
    events = sorted(events)
    for at, good, bad in events:
        window.add(at, good=good, bad=bad)
    end = (events[-1][0] if events else 0.0) + later
    good, bad = window.totals(end)
    surely = [event for event in events if event[0] > end - span + span / RollingWindow.SLICES]
    perhaps = [event for event in events if event[0] >= end - span]
    assert sum(e[1] for e in surely) <= good <= sum(e[1] for e in perhaps)
    assert sum(e[2] for e in surely) <= bad <= sum(e[2] for e in perhaps)


@given(st.permutations(list(range(12))))
def test_late_reports_are_counted_in_their_slice(order):
    window = RollingWindow(100)
    for second in order:
        window.add(second * 5.0, good=1)
    assert window.totals(55.0) == (12, 0)
    assert window.totals(104.0)[0] < 12


def test_report_older_than_the_window_is_dropped():
    window = RollingWindow(10)
    window.add(100.0, good=1)
    window.add(50.0, good=9)
    assert window.totals(100.0) == (1, 0)


def test_idle_client_may_use_its_reserve_and_no_more():
    ledger = BudgetLedger(RetryBudget(ratio=0.1, reserve=3))
    assert [ledger.spend(0.0) for _ in range(5)] == [True, True, True, False, False]


def test_calls_earn_retries_in_proportion():
    ledger = BudgetLedger(RetryBudget(ratio=0.1, reserve=0))
    ledger.earn(0.0, calls=100)
    assert sum(ledger.spend(0.0) for _ in range(50)) == 10


def test_earned_and_used_retries_expire_with_the_window():
    ledger = BudgetLedger(RetryBudget(ratio=0.5, reserve=1, window=60))
    ledger.earn(0.0, calls=100)
    assert sum(ledger.spend(0.0) for _ in range(100)) == 51
    assert [ledger.spend(70.0), ledger.spend(70.0)] == [True, False]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["call", "repeat"])), max_size=300),
    st.floats(0, 1),
    st.integers(0, 20),
)
def test_retries_never_exceed_the_ratio_of_calls_plus_reserve(events, ratio, reserve):
    ledger, now, calls, repeats = BudgetLedger(RetryBudget(ratio=ratio, reserve=reserve, window=10_000)), 0.0, 0, 0
    for pause, what in events:
        now += pause
        if what == "call":
            ledger.earn(now)
            calls += 1
        else:
            repeats += ledger.spend(now)
        assert repeats <= reserve + ratio * calls


@pytest.mark.parametrize("options", [{"ratio": -0.1}, {"ratio": 1.5}, {"reserve": -1}, {"window": 0}])
def test_invalid_budget_is_rejected(options):
    with pytest.raises(ValueError, match="must be"):
        RetryBudget(**options)
