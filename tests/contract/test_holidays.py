"""Deadlines on holidays: weekday pipelines are not due, on both databases."""

from datetime import date
from functools import partial

import pytest

from redrive.alerts.config.settings import DaysOff, PipelineSettings
from tests.support.run_history import DAY, HOUR, MINUTE, MONDAY, Books, levels_of

WEEKDAYS = frozenset(range(5))
TODAY = DaysOff(dates=frozenset({MONDAY.date()}))


@pytest.fixture
def books(store):
    return Books(store)


@pytest.fixture
def due(store):
    """The deadline of "vendor" that is looked at then."""

    def due(now, **settings):
        found = {one.subject.name: one for one in levels_of(store, **settings).collect(now).due}
        return found["vendor"].sla if "vendor" in found else None

    return due


def worked_weekdays(books, *, weeks=2, without=()):
    """The pipeline ran on the weekdays of the weeks before."""
    books.known()
    for back in range(1, 7 * weeks + 1):
        at = MONDAY - back * DAY
        if at.weekday() < 5 and at.date() not in without:
            books.ran(at - HOUR, at - HOUR / 2)


class TestDeadlines:
    def test_weekday_pipeline_is_not_due_on_a_holiday(self, books, due):
        worked_weekdays(books)
        own = {"vendor": PipelineSettings(days=WEEKDAYS)}
        assert due(MONDAY, pipelines=own) == MONDAY
        assert due(MONDAY, pipelines=own, holidays=TODAY) == MONDAY - 3 * DAY  # Friday's, which was kept

    def test_learned_weekday_pipeline_is_not_due_on_a_holiday(self, books, due):
        worked_weekdays(books)
        assert due(MONDAY) == MONDAY
        assert due(MONDAY, holidays=TODAY) == MONDAY - 3 * DAY

    def test_weekend_pipeline_is_due_on_a_holiday(self, books, due):
        books.known()
        books.ran_every_day()
        assert due(MONDAY, holidays=TODAY) == MONDAY
        every_day = {"vendor": PipelineSettings(days=frozenset(range(7)))}
        assert due(MONDAY, holidays=TODAY, pipelines=every_day) == MONDAY

    def test_configured_holidays_apply_to_any_weekdays(self, books, due):
        books.known()
        books.ran_every_day()
        assert due(MONDAY, pipelines={"vendor": PipelineSettings(holidays=TODAY)}) == MONDAY - DAY
        none = {"vendor": PipelineSettings(days=WEEKDAYS, holidays=DaysOff())}
        assert due(MONDAY, pipelines=none, holidays=TODAY) == MONDAY

    def test_deadline_missed_before_a_long_holiday_stays_missed(self, books, due):
        worked_weekdays(books, without={(MONDAY - 3 * DAY).date()})
        off = DaysOff(dates=frozenset((MONDAY + day * DAY).date() for day in range(12)))
        own = {"vendor": PipelineSettings(days=WEEKDAYS)}
        assert due(MONDAY + 11 * DAY, pipelines=own, holidays=off) == MONDAY - 3 * DAY

    def test_two_holidays_on_the_same_weekday_do_not_hide_the_third(self, books, due):
        off = {(MONDAY - 7 * DAY).date(), (MONDAY - 14 * DAY).date()}
        worked_weekdays(books, weeks=3, without=off)
        assert due(MONDAY, holidays=DaysOff(dates=frozenset(off))) == MONDAY


class TestFreshness:
    def test_hours_of_a_holiday_do_not_count(self, store, books):
        friday = MONDAY.replace(hour=23, minute=59) - 3 * DAY
        books.ran(friday - MINUTE, friday)
        own = PipelineSettings(fresh_within=5_400.0, days=WEEKDAYS)
        age = partial(self.age, store, {"vendor": own}, MONDAY.replace(hour=5, minute=0))
        assert age() > 5_400
        assert age(holidays=TODAY) == 60

    def test_configured_holidays_apply_without_weekdays(self, store, books):
        books.ran(MONDAY - DAY, MONDAY.replace(hour=0, minute=0))
        own = PipelineSettings(fresh_within=5_400.0, holidays=TODAY)
        assert self.age(store, {"vendor": own}, MONDAY) == 0

    @staticmethod
    def age(store, pipelines, now, **settings):
        return levels_of(store, pipelines=pipelines, **settings).collect(now).fresh[0].age


class TestCalendars:
    def test_library_calendar_is_used(self):
        pytest.importorskip("holidays")
        bavaria = DaysOff(calendars=("DE-BY",))
        assert date(2026, 1, 6) in bavaria
        assert date(2026, 1, 6) not in DaysOff(calendars=("DE",))
        assert date(2026, 7, 3) in DaysOff(calendars=("NYSE",))
        assert date(2026, 7, 2) not in bavaria

    def test_invalid_calendar_has_no_holidays(self, caplog):
        assert date(2026, 1, 1) not in DaysOff(calendars=("ZZ",))
        assert "the calendar 'ZZ' cannot be used" in caplog.text
