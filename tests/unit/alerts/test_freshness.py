"""Age of the last complete run, counted on the days on which a run is expected."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from redrive.alerts.facts.sla import worked

MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2026, 3, 31), timezones=st.just(UTC))
ZONES = st.sampled_from([ZoneInfo("UTC"), ZoneInfo("Asia/Kolkata"), ZoneInfo("America/New_York")])
DAYS = st.frozensets(st.integers(0, 6))
WEEKDAYS = frozenset(range(5))
FRIDAY_EVENING = datetime(2026, 11, 13, 22, 0, tzinfo=UTC)


class TestExpectedDays:
    def test_weekend_does_not_age_a_weekday_pipeline(self):
        monday = FRIDAY_EVENING + timedelta(days=3)
        assert worked(FRIDAY_EVENING, monday, WEEKDAYS, UTC) == 24 * 3_600

    def test_every_hour_counts_without_configured_days(self):
        assert worked(FRIDAY_EVENING, FRIDAY_EVENING + timedelta(days=3), None, UTC) == 3 * 86_400

    def test_future_time_has_no_age(self):
        assert worked(FRIDAY_EVENING, FRIDAY_EVENING - timedelta(hours=1), None, UTC) == 0

    @given(MOMENTS, MOMENTS, DAYS, ZONES)
    def test_days_and_other_days_add_up_to_all_time(self, one, other, days, zone):
        since, until = sorted((one, other))
        others = frozenset(range(7)) - days
        both = worked(since, until, days, zone) + worked(since, until, others, zone)
        assert abs(both - worked(since, until, None, zone)) < 1e-3

    @given(MOMENTS, MOMENTS, DAYS, ZONES)
    def test_age_is_the_number_of_minutes_on_those_days(self, one, other, days, zone):
        since, until = (moment.replace(minute=0, second=0, microsecond=0) for moment in sorted((one, other)))
        halves = int((until - since) / timedelta(minutes=30))
        expected = sum(
            1_800 for n in range(halves) if (since + n * timedelta(minutes=30)).astimezone(zone).weekday() in days
        )
        assert worked(since, until, days, zone) == expected
