"""Maintenance windows in `redrive.toml`: what becomes of them, and what is said of what cannot be used."""

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest

from redrive.alerts.reading import read
from redrive.alerts.settings import Maintenance, Quiet
from redrive.config import ConfigError, load
from redrive.notices import AlertFilter


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
            ("from = 2026-12-24T18:00:00Z\nuntil = 2026-12-25T18:00:00Z\ndays = 'mon'", "days means nothing"),
            ("from = '22:00'\nuntil = '02:00'\nzone = 'UTC'\ncondition = 'slwo'", "did you mean 'slow'?"),
            ("from = '22:00'\nuntil = '02:00'\nzone = 'UTC'\npipeline = []", "pipeline names nothing"),
            ("form = '22:00'", "did you mean 'from'?"),
        ],
    )
    def test_wrong_windows_are_refused_with_their_line(self, say, lines, says):
        with pytest.raises(ConfigError) as raised:
            say(f"[[maintenance]]\n{lines}\n")
        assert says in str(raised.value)
        assert "line " in str(raised.value)

    def test_a_single_table_is_refused(self, say):
        with pytest.raises(ConfigError, match=r"write \[\[maintenance\]\] above each"):
            say("[maintenance]\nfrom = '22:00'\n")
