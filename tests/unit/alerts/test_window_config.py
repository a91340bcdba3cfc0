"""Maintenance windows and holidays in `redrive.toml`: what they become, and the error for each invalid one."""

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

import pytest

from redrive.alerts.config.read import check_channels, read
from redrive.alerts.config.settings import DaysOff, Maintenance, Quiet
from redrive.config import ConfigError, load
from redrive.model.alerts import AlertFilter


@pytest.fixture
def say(tmp_path):
    """Reads a file of this text."""

    def say(text):
        (tmp_path / "redrive.toml").write_text(text)
        return read(load(environ={}, directory=tmp_path))

    return say


class TestMaintenance:
    def test_weekly_and_single_windows(self, say):
        settings = say(
            """
            [[maintenance]]
            from = "22:00"
            until = 02:00:00
            zone = "Europe/Berlin"
            days = ["sat"]
            pipeline = ["orders", "vendor"]
            reason = "warehouse upgrade"

            [[maintenance]]
            from = 2026-12-24T18:00:00+01:00
            until = "2026-12-27 06:00"
            zone = "Europe/Berlin"
            condition = "slow"
            """
        )
        assert settings.maintenance == (
            Maintenance(
                only=AlertFilter(pipelines=("orders", "vendor")),
                hours=Quiet(time(22), time(2), ZoneInfo("Europe/Berlin")),
                days=frozenset({5}),
                reason="warehouse upgrade",
            ),
            Maintenance(
                only=AlertFilter(conditions=("slow",)),
                begins=datetime(2026, 12, 24, 17, tzinfo=UTC),
                ends=datetime(2026, 12, 27, 5, tzinfo=UTC),
            ),
        )

    @pytest.mark.parametrize(
        ("lines", "says"),
        [
            ("until = '02:00'", "maintenance[0] has no from"),
            ("from = '22:00'", "maintenance[0] has no until"),
            ("from = '22:00'\nuntil = '02:00'", "has no zone"),
            ("from = '22:00'\nuntil = '22:00'\nzone = 'UTC'", "maintenance[0].until is the same as from"),
            ("from = '25:00'\nuntil = '02:00'\nzone = 'UTC'", "maintenance[0].from must be a time of day"),
            ("from = 2026-12-24\nuntil = 2026-12-25", "maintenance[0].from must be a date and a time"),
            ("from = 2026-12-24T18:00:00\nuntil = 2026-12-25T18:00:00", "has no time zone"),
            ("from = 2026-12-24T18:00:00Z\nuntil = 2026-12-24T18:00:00Z", "until must be later than from"),
            ("from = 2026-12-24T18:00:00Z\nuntil = '02:00'", "maintenance[0].until must be a date and a time"),
            ("from = 2026-12-24T18:00:00Z\nuntil = 2026-12-25T18:00:00Z\ndays = 'mon'", "days is not allowed"),
            ("from = '22:00'\nuntil = '02:00'\nzone = 'UTC'\ncondition = 'slwo'", "did you mean 'slow'?"),
            ("from = '22:00'\nuntil = '02:00'\nzone = 'UTC'\npipeline = []", "pipeline names nothing"),
            ("form = '22:00'", "did you mean 'from'?"),
        ],
    )
    def test_invalid_window_is_rejected_with_its_line(self, say, lines, says):
        with pytest.raises(ConfigError) as raised:
            say(f"[[maintenance]]\n{lines}\n")
        assert says in str(raised.value)
        assert "line " in str(raised.value)

    def test_single_table_is_rejected(self, say):
        with pytest.raises(ConfigError, match=r"write \[\[maintenance\]\] above each"):
            say("[maintenance]\nfrom = '22:00'\n")


class TestHolidays:
    def test_dates_and_calendars(self, say, monkeypatch):
        monkeypatch.setattr("redrive.alerts.config.sections.are_calendars_installed", lambda: True)
        settings = say(
            """
            [alerts]
            holidays = ["DE-BY", "2026-12-24", 2026-12-31]
            [pipelines.trades]
            holidays = "NYSE"
            [pipelines.orders]
            holidays = []
            """
        )
        assert settings.holidays == DaysOff(
            dates=frozenset({date(2026, 12, 24), date(2026, 12, 31)}), calendars=("DE-BY",)
        )
        assert settings.pipelines["trades"].holidays == DaysOff(calendars=("NYSE",))
        assert settings.pipelines["orders"].holidays == DaysOff()

    @pytest.mark.parametrize("value", ["'24.12.2026'", "['2026-13-01']", "[1]", "''", "2026-12-24T10:00:00", "{}"])
    def test_invalid_day_is_rejected_with_its_line(self, say, value):
        with pytest.raises(ConfigError, match=r"line 2: alerts\.holidays"):
            say(f"[alerts]\nholidays = {value}\n")

    def test_missing_library_is_one_sentence_with_the_command(self, say, monkeypatch):
        monkeypatch.setattr("redrive.alerts.config.sections.are_calendars_installed", lambda: False)
        with pytest.raises(ConfigError, match=r"pip install 'redrive\[holidays\]'"):
            say("[alerts]\nholidays = 'DE'\n")
        assert say("[alerts]\nholidays = '2026-12-24'\n").holidays.dates
        assert say("[alerts]\nenabled = false\nholidays = 'DE'\n").holidays.calendars == ("DE",)

    @pytest.mark.parametrize(
        ("code", "says"),
        [
            ("XQ", "alerts.holidays names an unknown calendar 'XQ': Country XQ not available"),
            ("DE-XX", "'DE-XX': Entity `DE` does not have subdivision XX"),
        ],
    )
    def test_unknown_calendar_is_rejected_by_the_watch(self, tmp_path, code, says):
        pytest.importorskip("holidays")
        (tmp_path / "redrive.toml").write_text(f"[alerts]\nholidays = '{code}'\n")
        with pytest.raises(ConfigError) as raised:
            check_channels(load(environ={}, directory=tmp_path))
        assert says in str(raised.value)
