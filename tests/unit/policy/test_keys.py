"""Key pools: which key is next, and when an exhausted key can be used again."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.keys import KeyPool, KeyPoolState, Token

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def test_first_key_is_used_until_it_fails_then_the_least_failed():
    pool = KeyPoolState(3)
    assert pool.pick(NOON, 0) == 0
    pool.blame(0)
    assert pool.pick(NOON, 0) == 1
    pool.blame(1)
    pool.blame(2)
    assert pool.pick(NOON, 0) == 0
    pool.forgive(2)
    assert pool.pick(NOON, 0) == 2


def test_exhausted_key_is_not_used_before_its_reset():
    pool = KeyPoolState(2)
    assert pool.drain(0, NOON + timedelta(hours=1), 0)
    assert pool.pick(NOON, 0) == 1
    pool.drain(1, NOON + timedelta(hours=2), 0)
    assert pool.pick(NOON, 0) is None
    assert pool.next_pause_ends(NOON) is None
    assert pool.next_reset(NOON, 0) == NOON + timedelta(hours=1)
    assert pool.pick(NOON + timedelta(hours=1), 0) == 0


def test_key_exhausted_once_more_is_no_news():
    pool = KeyPoolState(1)
    assert pool.drain(0, NOON + timedelta(hours=1), 0)
    assert not pool.drain(0, NOON + timedelta(hours=1), 0)


def test_pause_does_not_end_an_exhaustion_and_has_an_end_time():
    pool = KeyPoolState(2)
    pool.drain(0, NOON + timedelta(hours=8), 0)
    pool.pause(0, 5.0)
    pool.pause(1, 7.0)
    assert pool.pick(NOON, 6.0) is None
    assert pool.next_pause_ends(NOON) == 7.0
    assert pool.next_reset(NOON, 6.0) == NOON + timedelta(seconds=1)
    assert pool.pick(NOON, 7.0) == 1


def test_step_of_the_wall_clock_does_not_prolong_a_pause():
    pool = KeyPoolState(1)
    pool.pause(0, 2.0)
    assert pool.pick(NOON - timedelta(hours=1), 2.0) == 0


def test_late_success_does_not_end_an_exhaustion():
    pool = KeyPoolState(1)
    pool.drain(0, NOON + timedelta(hours=8), 0)
    pool.forgive(0)
    assert pool.pick(NOON, 0) is None


def test_daily_reset_is_the_next_such_time_in_its_zone():
    pool = KeyPool(["a"], resets="00:00 America/Los_Angeles")
    assert pool.next_reset(NOON) == datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
    assert pool.next_reset(datetime(2026, 11, 16, 8, 0, tzinfo=UTC)) == datetime(2026, 11, 17, 8, 0, tzinfo=UTC)


def test_daily_reset_follows_a_change_of_the_utc_offset():
    pool = KeyPool(["a"], resets="00:00 America/Los_Angeles")
    # Clocks went back on 1 November 2026: that day had 25 hours.
    assert pool.next_reset(datetime(2026, 11, 1, 12, 0, tzinfo=UTC)) == datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
    assert pool.next_reset(datetime(2026, 11, 1, 6, 0, tzinfo=UTC)) == datetime(2026, 11, 1, 7, 0, tzinfo=UTC)


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["America/Los_Angeles", "Asia/Kolkata", "Europe/Berlin", "Australia/Lord_Howe", "UTC"]),
)
def test_daily_reset_is_ahead_by_at_most_a_long_day(moment, hour, minute, zone):
    now = moment.replace(tzinfo=UTC)
    reset = KeyPool(["a"], resets=f"{hour:02}:{minute:02} {zone}").next_reset(now)
    assert now < reset <= now + timedelta(hours=26)
    local = reset.astimezone(ZoneInfo(zone))
    skipped = local.replace(tzinfo=None) != local.replace(hour=hour, minute=minute, tzinfo=None)
    assert not skipped or local.dst() is not None  # a wall time that a change of offset skips


@pytest.mark.parametrize("resets", [90, 90.0, timedelta(seconds=90)])
def test_reset_may_be_a_duration(resets):
    assert KeyPool(["a"], resets=resets).next_reset(NOON) == NOON + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("keys", "resets", "sentence"),
    [
        ([], 60, "KeyPool needs at least one key"),
        (["a", "a"], 60, "KeyPool was given the same key twice"),
        (["a"], "midnight", 'resets must be "HH:MM Area/City"'),
        (["a"], "25:00 Europe/Berlin", 'resets must be "HH:MM Area/City"'),
        (["a"], "00:00 Mars/Olympus", "unknown time zone 'Mars/Olympus'"),
        (["a"], "00:00 ../../etc/passwd", "unknown time zone"),
        (["a"], 0, "resets must be a finite number of seconds above 0"),
        (["a"], timedelta(0), "resets must be a finite number of seconds above 0"),
        (["a"], 1e12, "resets must be within ten years"),
        (["a"], timedelta.max, "resets must be within ten years"),
    ],
)
def test_invalid_pool_is_rejected(keys, resets, sentence):
    with pytest.raises(ValueError) as refusal:
        KeyPool(keys, resets=resets)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("keys", ["abc", [1], [""], [None], None, {"a", "b"}, iter(["a"])])
def test_keys_are_strings_or_tokens(keys):
    with pytest.raises(TypeError, match="list of non-empty strings or Tokens"):
        KeyPool(keys)


def test_repr_of_the_pool_shows_no_key():
    assert "hunter2" not in repr(KeyPool(["hunter2-secret", "other"]))


def test_token_needs_a_function():
    with pytest.raises(TypeError, match="needs a function"):
        Token("abc")
