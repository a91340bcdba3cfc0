"""A daily time in a zone: its next and its last occurrence, and changes of the clock."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.time_of_day import TimeOfDay

KOLKATA = TimeOfDay.of("sla", "06:30 Asia/Kolkata")
BERLIN = TimeOfDay.of("sla", "02:30 Europe/Berlin")
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))
TIMES = st.builds(
    TimeOfDay,
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(
        ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]
    ).map(ZoneInfo),
)


@pytest.mark.parametrize(
    ("now", "before", "after"),
    [
        ("2026-11-15T00:59:59", "2026-11-14T01:00:00", "2026-11-15T01:00:00"),
        ("2026-11-15T01:00:00", "2026-11-15T01:00:00", "2026-11-16T01:00:00"),
        ("2026-11-15T01:00:01", "2026-11-15T01:00:00", "2026-11-16T01:00:00"),
    ],
)
def test_daily_time_that_is_now_is_the_last_one(now, before, after):
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert KOLKATA.before(moment) == datetime.fromisoformat(before).replace(tzinfo=UTC)
    assert KOLKATA.after(moment) == datetime.fromisoformat(after).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "utc"),
    [
        (date(2026, 3, 28), "2026-03-28T01:30:00"),
        (date(2026, 3, 29), "2026-03-29T01:30:00"),  # skipped: the wall shows 03:30
        (date(2026, 3, 30), "2026-03-30T00:30:00"),
        (date(2026, 10, 24), "2026-10-24T00:30:00"),
        (date(2026, 10, 25), "2026-10-25T00:30:00"),  # twice: the first one
        (date(2026, 10, 26), "2026-10-26T01:30:00"),
    ],
)
def test_clock_change_day_has_one_daily_time(day, utc):
    assert BERLIN.on(day) == datetime.fromisoformat(utc).replace(tzinfo=UTC)


@given(TIMES, MOMENTS)
def test_now_is_between_the_last_daily_time_and_the_next(daily, now):
    before, after = daily.before(now), daily.after(now)
    assert before <= now < after
    # A zone may skip a whole day, and never more.
    assert after - before <= timedelta(hours=49)
    assert daily.after(before) == after


@given(TIMES, MOMENTS)
def test_daily_time_is_local_unless_the_clock_skips_it(daily, now):
    local = daily.before(now).astimezone(daily.zone)
    exists = local.replace(hour=daily.hour, minute=daily.minute).astimezone(UTC).astimezone(daily.zone)
    if (exists.hour, exists.minute) == (daily.hour, daily.minute):
        assert (local.hour, local.minute) == (daily.hour, daily.minute)


def test_daily_time_is_shown_as_written():
    assert str(KOLKATA) == "06:30 Asia/Kolkata"
