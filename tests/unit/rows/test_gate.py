"""The gate: the tier of a share of rejected rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive.model.runs import Tier

GATE = redrive.Gate()


@pytest.mark.parametrize(
    ("rejected", "read", "tier"),
    [
        (0, 0, Tier.LOG),
        (0, 1_000, Tier.LOG),
        (9, 1_000, Tier.LOG),
        (10, 1_000, Tier.P3),
        (7, 700, Tier.P3),
        (50, 1_000, Tier.P3),
        (51, 1_000, Tier.P1),
        (200, 1_000, Tier.P1),
        (201, 1_000, Tier.ABORT),
        (5_400, 180_000, Tier.P3),
        (9_000, 180_000, Tier.P3),
        (9_001, 180_000, Tier.P1),
        (99, 99, Tier.P1),
        (100, 100, Tier.ABORT),
        (20, 100, Tier.P1),
        (21, 100, Tier.ABORT),
        (19, 99, Tier.P3),
        (1, 1, Tier.P3),
    ],
)
def test_share_has_its_tier_at_and_beside_each_threshold(rejected, read, tier):
    assert GATE.judge(rejected, read) is tier


def test_run_is_aborted_early_only_after_enough_rows():
    assert not GATE.stops(999, 999, ended=False)
    assert GATE.stops(201, 1_000, ended=False)
    assert not GATE.stops(200, 1_000, ended=False)


def test_run_of_a_hundred_rows_is_judged_at_its_end():
    assert GATE.stops(50, 100, ended=True)
    assert not GATE.stops(99, 99, ended=True)
    assert redrive.Gate(abort_least=1).stops(2, 4, ended=True)
    assert not GATE.stops(0, 0, ended=True)


def test_too_few_rows_are_marked_by_a_number():
    assert not GATE.has_too_few(0)
    assert redrive.Gate(at_least=10).has_too_few(9)
    assert not redrive.Gate(at_least=10).has_too_few(10)


def test_gate_can_let_everything_through():
    assert not redrive.Gate(abort=1).stops(1_000_000, 1_000_000, ended=True)


@given(read=st.integers(0, 10**7), data=st.data())
def test_more_rejected_rows_are_never_a_less_severe_tier(read, data):
    fewer = data.draw(st.integers(0, read))
    more = data.draw(st.integers(fewer, read))
    tiers = list(Tier)
    assert tiers.index(GATE.judge(fewer, read)) <= tiers.index(GATE.judge(more, read))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"warn": 5}, "warn must be a number from 0 up to 1"),
        ({"page": -0.1}, "page must be a number from 0 up to 1"),
        ({"abort": "a lot"}, "abort must be a number from 0 up to 1"),
        ({"warn": 0.1, "page": 0.05}, "warn ≤ page ≤ abort"),
        ({"page_least": 0}, "page_least must be a whole number of 1 or more"),
        ({"abort_least": 0}, "abort_least must be a whole number of 1 or more"),
        ({"at_least": 0}, "at_least must be a whole number of 1 or more"),
        ({"least": 0}, "least must be a whole number of 1 or more"),
    ],
)
def test_invalid_gate_is_rejected(options, says):
    with pytest.raises(ValueError, match=says):
        redrive.Gate(**options)
