"""The forms of dates and times that a column stores exactly."""

from dataclasses import replace

import pytest

from redrive.rows.sinks.exact.capacity import ColumnCapacity
from redrive.rows.sinks.exact.values import change_of
from redrive.rows.sinks.sqlalchemy.sink import _capacity


class TestOffsets:
    @pytest.mark.parametrize("type_", ["timestamp", "date"])
    @pytest.mark.parametrize(
        "text",
        [
            *("7/1/2026 5:30:00 PM +02:00", "01/Jul/2026:00:00:00 +0200", "Wed Jul 01 00:00:00 EST 2026"),
            *("2026-07-01+02", "2026-07-01-05", "2026-07-01 EST", "2026-07-01 utc2", "2026-07-01 GMT+2"),
            *("today 00:00", "2026-07-01 allballs", "today allballs"),
        ],
    )
    def test_offset_zone_or_relative_term_is_a_change(self, type_, text):
        assert change_of(text, ColumnCapacity.of(type_)) is not None

    @pytest.mark.parametrize("text", ["x", "", "infinity", "no date"])
    def test_text_without_digits_is_left_to_the_database(self, text):
        for type_ in ("timestamp", "date", "time"):
            capacity = ColumnCapacity.of(type_)
            assert change_of(text, capacity) is None
            assert change_of(text, replace(capacity, iso_only=True)) is None

    def test_long_text_is_a_change(self):
        for text in ("1 " * 20_000 + "x", "1" * 40_000 + "x", "July " * 10_000 + "1x", " " * 40_000 + "1x"):
            assert change_of(text, ColumnCapacity.of("timestamp")) is not None
            assert change_of(text, ColumnCapacity.of("date")) is not None


class TestMySQL:
    @pytest.mark.parametrize(
        ("type_", "text", "is_kept"),
        [
            *(("date", "07/04/26", False), ("date", "2026-07-04", True), ("timestamp(0)", "26-07-04 12:00", False)),
            *(("timestamp(0)", "2026-07-04 12:00:00", True), ("time(0)", "12:00", True)),
        ],
    )
    def test_short_year_is_a_change(self, type_, text, is_kept):
        assert (change_of(text, _capacity("mysql", type_)) is None) is is_kept
