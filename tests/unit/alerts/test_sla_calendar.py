"""Expected deadlines: from the run history, or from the configured weekdays."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.alerts.facts.sla_calendar import (
    KNOWN,
    RunStart,
    day_of,
    is_expected,
    last_deadline,
    last_expected,
    match_deadlines,
)
from redrive.policy.time_of_day import TimeOfDay

BERLIN = ZoneInfo("Europe/Berlin")
SLA = TimeOfDay(6, 30, BERLIN)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MONDAY = date(2026, 11, 9)


def on(day, at=time(5, 0)):
    """Five in the morning, an hour and a half before the deadline."""
    return datetime.combine(day, at, BERLIN).astimezone(UTC)


def days_before(day, *numbers):
    return [on(day - timedelta(days=number)) for number in numbers]


def ran_for(starts):
    return {day_of(SLA, SLA.after(start)) for start in starts}


def expected(day, starts, *, days=None, first_seen=LONG_AGO):
    return is_expected(SLA, days, ran_for(starts), first_seen, SLA.on(day))


@pytest.mark.parametrize(
    ("now", "deadline"),
    [
        ("2026-11-09T05:29:59", "2026-11-08T05:30:00"),
        ("2026-11-09T05:30:00", "2026-11-09T05:30:00"),
        ("2026-11-09T05:30:01", "2026-11-09T05:30:00"),
        ("2026-07-09T04:30:00", "2026-07-09T04:30:00"),  # in summer an hour earlier
    ],
)
def test_last_deadline_is_the_latest_that_has_passed(now, deadline):
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert last_deadline(SLA, moment) == datetime.fromisoformat(deadline).replace(tzinfo=UTC)


# ── a week that was usual ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ran", "found"),
    [
        ((7,), True),
        ((6,), False),
        ((8,), False),
        ((1, 2, 3, 4, 5, 6), False),
        ((), False),
        ((0,), True),  # it has started, so it is expected
    ],
)
def test_run_is_expected_on_weekday_of_last_weeks_run(ran, found):
    assert expected(MONDAY, days_before(MONDAY, *ran)) is found


def test_weekly_file_is_missed_on_its_own_day_only():
    starts = days_before(MONDAY, 7, 14, 21)
    found = [expected(MONDAY + timedelta(days=more), starts) for more in range(-6, 7)]
    assert found == [False] * 6 + [True] + [False] * 6


def test_weekday_pipeline_is_not_missed_at_the_weekend():
    starts = [on(MONDAY - timedelta(days=n)) for n in range(1, 28) if (MONDAY - timedelta(days=n)).weekday() < 5]
    found = [expected(MONDAY + timedelta(days=more), starts) for more in range(7)]
    assert found == [True] * 5 + [False] * 2


def test_discontinued_pipeline_stops_alerting_after_a_week():
    starts = days_before(MONDAY, *range(1, 60))
    found = [expected(MONDAY + timedelta(days=more), starts) for more in range(30)]
    assert found == [True] * 7 + [False] * 23


def test_last_weeks_miss_does_not_hide_this_weeks():
    starts = days_before(MONDAY, *(n for n in range(1, 30) if n != 7))
    assert expected(MONDAY, starts)
    # A weekly one that was brought a day late is expected, and one that was left out is not.
    assert expected(MONDAY, days_before(MONDAY, 6, 14, 21))
    assert not expected(MONDAY, days_before(MONDAY, 14, 21))
    assert not expected(MONDAY, days_before(MONDAY, 8, 14))


def test_run_belongs_to_the_deadline_after_its_start():
    last_monday = MONDAY - timedelta(days=7)
    assert expected(MONDAY, [on(last_monday, time(6, 29))])
    assert not expected(MONDAY, [on(last_monday, time(6, 30))])  # that is Tuesday's
    assert expected(MONDAY, [on(last_monday - timedelta(days=1), time(6, 30))])
    assert not expected(MONDAY, [on(last_monday - timedelta(days=1), time(6, 29))])


@pytest.mark.parametrize("day", [date(2026, 3, 29), date(2026, 4, 4), date(2026, 10, 25), date(2026, 10, 31)])
def test_week_of_a_clock_change_is_a_week(day):
    assert expected(day, [on(day - timedelta(days=7), time(6, 29))])
    assert not expected(day, [on(day - timedelta(days=7), time(6, 31))])


def test_weekdays_are_in_the_configured_zone():
    # Monday 00:30 in Auckland is Sunday in UTC.
    sla = TimeOfDay(0, 30, ZoneInfo("Pacific/Auckland"))
    deadline = sla.on(MONDAY)
    assert deadline.weekday() == 6
    assert is_expected(sla, frozenset({0}), set(), LONG_AGO, deadline)
    assert not is_expected(sla, frozenset({6}), set(), LONG_AGO, deadline)


# ── weekdays that are set ─────────────────────────────────────────────────────────────────────────────────────────────


def test_configured_weekdays_override_history():
    working = frozenset(range(5))
    found = [expected(MONDAY + timedelta(days=more), [], days=working) for more in range(7)]
    assert found == [True] * 5 + [False] * 2
    assert not expected(MONDAY, days_before(MONDAY, *range(30)), days=frozenset())


# ── what is new ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ran", "found"),
    [((1, 2), True), ((1,), False), ((2,), False), ((2, 3), False), ((1, 2, 3, 4, 5, 6), True)],
)
def test_new_pipeline_is_expected_after_two_days_in_a_row(ran, found):
    first = on(MONDAY - timedelta(days=max(ran)))
    assert expected(MONDAY, days_before(MONDAY, *ran), first_seen=first) is found


@pytest.mark.parametrize(("age", "found"), [(-1, True), (0, False), (1, False)])
def test_week_before_decides_after_eight_days(age, found):
    first = SLA.on(MONDAY) - timedelta(days=8, seconds=age)
    assert expected(MONDAY, days_before(MONDAY, 1, 2), first_seen=first) is found


@pytest.mark.parametrize(("seconds", "found"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("days", [None, frozenset(range(7))])
def test_deadline_before_the_first_run_is_not_missed(seconds, found, days):
    first = SLA.on(MONDAY) + timedelta(seconds=seconds)
    assert expected(MONDAY, days_before(MONDAY, 7), days=days, first_seen=first) is found


# ── what a run is for ─────────────────────────────────────────────────────────────────────────────────────────────────

HOUR = timedelta(hours=1)
TUESDAY = MONDAY + timedelta(days=1)


def done(day, at=time(5, 0), *, took=HOUR):
    return RunStart(on(day, at), on(day, at) + took)


def failed(day, at=time(5, 0)):
    return RunStart(on(day, at))


def usual(*, until=MONDAY, at=time(5, 0), weekdays=range(7)):
    days = (until - timedelta(days=number) for number in range(1, 22))
    return [done(day, at) for day in days if day.weekday() in weekdays]


def days_meant(turns, *, days=None):
    """For each turn, in its order, the day of its deadline."""
    return [day_of(SLA, deadline) for _, deadline in match_deadlines(SLA, days, turns, LONG_AGO)]


def test_run_behind_a_missed_deadline_makes_up_for_it():
    turns = [*usual(), failed(MONDAY), failed(MONDAY, time(7, 30)), done(MONDAY, time(8, 0)), done(TUESDAY)]
    assert days_meant(turns)[-4:] == [MONDAY, MONDAY, MONDAY, TUESDAY]


def test_early_run_without_a_miss_is_for_the_next_deadline():
    assert days_meant([*usual(), done(MONDAY), done(MONDAY, time(7, 30))])[-2:] == [MONDAY, TUESDAY]


def test_catch_up_run_is_needed_only_once():
    assert days_meant([*usual(), done(MONDAY, time(7, 30)), done(MONDAY, time(9, 0))])[-2:] == [MONDAY, TUESDAY]


def test_running_run_has_not_made_up_for_a_miss():
    slow = done(MONDAY, took=4 * HOUR)  # it failed, and is resumed at half past seven
    assert days_meant([*usual(), slow, RunStart(on(MONDAY, time(7, 30)))])[-2:] == [MONDAY, MONDAY]


def test_run_that_starts_the_day_before_is_not_a_catch_up():
    turns = [*usual(at=time(10, 0)), failed(MONDAY, time(10, 0)), done(TUESDAY, time(10, 0))]
    assert days_meant(turns)[-2:] == [TUESDAY, TUESDAY + timedelta(days=1)]


def test_earlier_start_is_recognized_on_the_third_day():
    # Monday's has failed, and from then on it begins the evening before.
    evenings = [done(MONDAY + timedelta(days=more), time(22, 0)) for more in range(5)]
    found = days_meant([*usual(), failed(MONDAY), *evenings])[-5:]
    assert found == [MONDAY + timedelta(days=more) for more in (0, 1, 3, 4, 5)]


def test_catch_up_on_saturday_does_not_make_saturday_expected():
    friday, saturday = MONDAY + timedelta(days=4), MONDAY + timedelta(days=5)
    for made_up in (done(friday, time(7, 30)), done(saturday, time(12, 0))):
        turns = [*usual(until=friday, weekdays=range(5)), made_up]
        found = days_meant(turns)
        assert found[-1] == friday
        for more in (1, 2, 8, 9):  # this weekend, and the next
            day = friday + timedelta(days=more)
            assert not is_expected(SLA, None, set(found), LONG_AGO, SLA.on(day))


def test_last_expected_deadline_is_searched_a_week_back():
    ran = ran_for(days_before(MONDAY, 7, 14))
    found = [
        last_expected(SLA, None, ran, LONG_AGO, SLA.on(MONDAY + timedelta(days=more))) == SLA.on(MONDAY)
        for more in range(9)
    ]
    assert found == [True] * 7 + [False] * 2


@given(
    st.lists(st.tuples(st.integers(0, 20), st.times(), st.booleans()), max_size=15),
    st.none() | st.frozensets(st.integers(0, 6)),
)
def test_run_is_for_the_next_deadline_or_last_weeks_miss(some, days):
    turns = [(done if well else failed)(MONDAY + timedelta(days=day), at) for day, at, well in some]
    found = match_deadlines(SLA, days, turns, LONG_AGO)
    assert [turn for turn, _ in found] == sorted(turns, key=lambda one: one.at)
    for number, (turn, deadline) in enumerate(found):
        if deadline == SLA.after(turn.at):
            continue
        assert timedelta(0) <= turn.at - deadline < timedelta(days=7, hours=1)
        kept = [one for one, its in found[:number] if its >= deadline and one.done_at and one.done_at <= turn.at]
        assert kept == []


# ── always ────────────────────────────────────────────────────────────────────────────────────────────────────────────

MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(st.lists(MOMENTS, max_size=20), MOMENTS, MOMENTS, st.none() | st.frozensets(st.integers(0, 6)))
def test_any_history_is_decided_from_the_requested_part(starts, first, now, days):
    deadline = last_deadline(SLA, now)
    found = is_expected(SLA, days, ran_for(starts), first, deadline)
    # A start on the very edge may be on either side of it by an hour, where clocks are set in between.
    recent = [start for start in starts if start >= deadline - KNOWN - timedelta(hours=1)]
    assert is_expected(SLA, days, ran_for(recent), first, deadline) is found


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 40))
def test_additional_run_never_makes_a_deadline_less_expected(ran, more):
    starts = days_before(MONDAY, *ran)
    assert expected(MONDAY, [*starts, *days_before(MONDAY, more)]) >= expected(MONDAY, starts)
