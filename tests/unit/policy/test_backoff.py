"""Every backoff: bounds, cap, a ceiling that never falls, no overflow."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy import backoff
from redrive.policy.backoff import JITTERS

bases = st.floats(0, 100, allow_nan=False)
multipliers = st.floats(1, 10, allow_nan=False)
caps = st.floats(100, 10_000, allow_nan=False)
repeats = st.integers(1, 10_000)
seeds = st.integers(0, 2**32)


def waits(jitter, count, *, base, multiplier, cap, seed):
    chance, previous = random.Random(seed), None
    for repeat in range(1, count + 1):
        previous = backoff.wait(
            repeat, base=base, multiplier=multiplier, cap=cap, jitter=jitter, previous=previous, random=chance
        )
        yield previous


@given(bases, multipliers, caps, st.integers(1, 60), seeds, st.sampled_from(JITTERS))
def test_wait_is_never_negative_nor_beyond_the_cap(base, multiplier, cap, count, seed, jitter):
    assert all(0 <= wait <= cap for wait in waits(jitter, count, base=base, multiplier=multiplier, cap=cap, seed=seed))


@given(bases, multipliers, caps, repeats)
def test_ceiling_grows_up_to_the_cap_and_never_falls(base, multiplier, cap, repeat):
    here = backoff.ceiling(repeat, base=base, multiplier=multiplier, cap=cap)
    following = backoff.ceiling(repeat + 1, base=base, multiplier=multiplier, cap=cap)
    assert min(base, cap) <= here <= following <= cap


@pytest.mark.parametrize("jitter", JITTERS)
def test_attempt_ten_thousand_does_not_overflow(jitter):
    wait = backoff.wait(
        10_000, base=1.0, multiplier=2.0, cap=60.0, jitter=jitter, previous=60.0, random=random.Random(1)
    )
    assert 0 <= wait <= 60


@given(st.floats(0.001, 100), multipliers, caps, st.integers(1, 200), seeds)
def test_full_jitter_starts_at_zero_and_equal_at_half(base, multiplier, cap, repeat, seed):
    top = backoff.ceiling(repeat, base=base, multiplier=multiplier, cap=cap)
    policy = {"base": base, "multiplier": multiplier, "cap": cap, "previous": None}
    full = backoff.wait(repeat, jitter="full", random=random.Random(seed), **policy)
    equal = backoff.wait(repeat, jitter="equal", random=random.Random(seed), **policy)
    assert 0 <= full <= top
    assert top / 2 <= equal <= top


@given(st.floats(0.001, 100), caps, st.floats(0, 10_000), seeds)
def test_decorrelated_jitter_is_up_to_three_times_the_last_wait(base, cap, previous, seed):
    previous = min(previous, cap)
    wait = backoff.wait(
        7, base=base, multiplier=2, cap=cap, jitter="decorrelated", previous=previous, random=random.Random(seed)
    )
    assert base <= wait <= min(cap, 3 * max(base, previous))


def test_no_jitter_is_the_plain_ramp_and_fixed_is_the_base():
    policy = {"base": 0.5, "multiplier": 2, "cap": 3, "seed": 1}
    assert list(waits("none", 5, **policy)) == [0.5, 1, 2, 3, 3]
    assert list(waits("fixed", 3, **policy)) == [0.5, 0.5, 0.5]


def test_waits_at_the_cap_still_differ_between_clients():
    late = {
        backoff.wait(30, base=1, multiplier=2, cap=60, jitter="full", previous=None, random=random.Random(seed))
        for seed in range(50)
    }
    assert len(late) == 50


@given(bases, multipliers, caps, st.integers(1, 40), seeds, st.sampled_from(JITTERS))
def test_no_wait_exceeds_the_documented_maximum(base, multiplier, cap, count, seed, jitter):
    drawn = waits(jitter, count, base=base, multiplier=multiplier, cap=cap, seed=seed)
    for repeat, wait in enumerate(drawn, start=1):
        assert wait <= backoff.longest(repeat, base=base, multiplier=multiplier, cap=cap, jitter=jitter) * (1 + 1e-9)
