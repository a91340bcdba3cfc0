"""Key pools: which key is next, and when a used-up one is good again."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.keys import KeyPool, Pool
from redrive.policy.token import Token

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def test_the_first_key_is_used_until_it_fails_then_the_least_failed():
    pool = Pool(3)
    assert pool.pick(NOON) == 0
    pool.blame(0)
    assert pool.pick(NOON) == 1
    pool.blame(1)
    pool.blame(2)
    assert pool.pick(NOON) == 0
    pool.forgive(2)
    assert pool.pick(NOON) == 2


def test_a_cooling_key_is_not_used_before_its_time():
    pool = Pool(2)
    pool.cool(0, NOON + timedelta(hours=1), drained=True)
    assert pool.pick(NOON) == 1
    pool.cool(1, NOON + timedelta(hours=2), drained=True)
    assert pool.pick(NOON) is None
    assert pool.next_viable() == NOON + timedelta(hours=1)
    assert pool.pick(NOON + timedelta(hours=1)) == 0


def test_a_short_pause_does_not_end_a_long_cool_down():
    pool = Pool(1)
    pool.cool(0, NOON + timedelta(hours=8), drained=True)
    pool.cool(0, NOON + timedelta(seconds=5), drained=False)
    assert pool.pick(NOON + timedelta(minutes=1)) is None
    assert pool.pause_ends() is None


def test_a_late_success_does_not_end_a_cool_down():
    pool = Pool(1)
    pool.cool(0, NOON + timedelta(hours=8), drained=True)
    pool.forgive(0)
    assert pool.pick(NOON) is None


def test_a_daily_reset_is_the_next_such_time_in_its_zone():
    pool = KeyPool(["a"], resets="00:00 America/Los_Angeles")
    assert pool.next_reset(NOON) == datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
    assert pool.next_reset(datetime(2026, 11, 16, 8, 0, tzinfo=UTC)) == datetime(2026, 11, 17, 8, 0, tzinfo=UTC)


def test_a_daily_reset_follows_the_zone_through_its_change_of_offset():
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
def test_a_daily_reset_lies_ahead_and_not_beyond_a_long_day(moment, hour, minute, zone):
    now = moment.replace(tzinfo=UTC)
    reset = KeyPool(["a"], resets=f"{hour:02}:{minute:02} {zone}").next_reset(now)
    assert now < reset <= now + timedelta(hours=26)
    local = reset.astimezone(ZoneInfo(zone))
    skipped = local.replace(tzinfo=None) != local.replace(hour=hour, minute=minute, tzinfo=None)
    assert not skipped or local.dst() is not None  # a wall time that a change of offset skips


@pytest.mark.parametrize("resets", [90, 90.0, timedelta(seconds=90)])
def test_a_reset_may_be_a_duration(resets):
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
    ],
)
def test_a_nonsense_pool_is_refused(keys, resets, sentence):
    with pytest.raises(ValueError) as refusal:
        KeyPool(keys, resets=resets)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("keys", ["abc", [1], [""], [None]])
def test_keys_are_strings_or_tokens(keys):
    with pytest.raises(TypeError, match="list of non-empty strings or Tokens"):
        KeyPool(keys)


def test_no_key_shows_in_the_pools_repr():
    assert "hunter2" not in repr(KeyPool(["hunter2-secret", "other"]))


def test_a_token_needs_a_function():
    with pytest.raises(TypeError, match="needs a function"):
        Token("abc")
