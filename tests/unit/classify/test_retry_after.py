"""The parser of Retry-After accepts any text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.classify.responses import parse_http_date, parse_retry_after

NOW = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)

near_dates = st.text("0123456789:-, GMTSunNovayd", max_size=40)


@given(st.one_of(st.text(), near_dates))
def test_any_text_is_none_or_a_finite_wait(text):
    wait = parse_retry_after(text, NOW)
    assert wait is None or (isfinite(wait) and wait >= 0)


@given(st.integers(min_value=0, max_value=10**9 - 1))
def test_seconds_are_read_unchanged(seconds):
    assert parse_retry_after(str(seconds), NOW) == seconds


@pytest.mark.parametrize("unit", [1, 1_000])
@given(st.integers(min_value=-(10**8), max_value=10**10))
def test_epoch_seconds_and_milliseconds_are_times(unit, wait):
    moment = int(NOW.timestamp()) + wait
    assert parse_retry_after(str(moment * unit), NOW) == max(0, wait)


def test_far_future_time_is_ignored():
    assert parse_retry_after("1" + "0" * 20, NOW) is None


def test_excess_digits_are_ignored():
    assert parse_retry_after("9" * 400, NOW) is None


@given(st.integers(min_value=-(10**8), max_value=10**8))
def test_every_date_that_can_be_written_is_read_back(seconds):
    moment = NOW + timedelta(seconds=seconds)
    forms = (
        format_datetime(moment, usegmt=True),
        moment.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
        moment.strftime("%a %b %e %H:%M:%S %Y"),
    )
    iso = (moment.strftime("%Y-%m-%dT%H:%M:%SZ"), moment.astimezone(timezone(timedelta(hours=-3))).isoformat())
    assert [parse_retry_after(form, NOW) for form in (*forms, *iso)] == [max(0.0, seconds)] * 5


@pytest.mark.parametrize(
    "date",
    [
        "Wed, 31 Feb 2024 10:00:00 GMT",
        "2024-02-31T10:00:00Z",
        "2024-05-02",
        "2024-W18-4",
        "Wed, 01 May 2024 25:00:00 GMT",
        "Wed, 01 May 2024 10:00:61 GMT",
        "Wed, 01 Mai 2024 10:00:00 GMT",
        "Wed, 01 May 0000 10:00:00 GMT",
        "Wed, 01 May 2024 10:00:00 CET",
    ],
)
def test_nonexistent_date_is_ignored(date):
    assert parse_retry_after(date, NOW) is None


def test_leap_second_is_the_second_before():
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT", NOW) == datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_two_digit_year_is_less_than_fifty_years_ahead():
    assert parse_http_date("Monday, 01-Jan-73 00:00:00 GMT", NOW).year == 2073
    assert parse_http_date("Monday, 01-Jan-94 00:00:00 GMT", NOW).year == 1994
