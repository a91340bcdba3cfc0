"""The chart of a service's day: bars match the figures, and the chart fits the terminal."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.cli.format import latency, percent
from redrive.cli.service_chart import ChartGrid, bars, chart, day_start, short_count
from redrive.store.repositories.services import ServiceWindow

NOW = datetime(2027, 1, 1, 12, 20, tzinfo=UTC)
GRID = ChartGrid(3600, 2, 3)


def window(minutes_ago, attempts=100, successes=100, latencies=None):
    at = datetime(2027, 1, 1, 12, 15, tzinfo=UTC) - timedelta(minutes=minutes_ago)
    return ServiceWindow(
        service="bank", at=at, attempts=attempts, successes=successes, latencies=latencies or (successes, *[0] * 13)
    )


def test_last_day_ends_with_the_current_window():
    assert day_start(NOW) == datetime(2026, 12, 31, 12, 30, tzinfo=UTC)
    assert day_start(NOW, 3600) == datetime(2026, 12, 31, 13, 0, tzinfo=UTC)


def test_bars_are_as_high_as_their_values():
    assert bars([0, 1, 4, 8, None], height=1, grid=GRID) == ["▁▁ ▂▂ ▄▄ ██"]
    assert bars([8, 16, None, 2], height=2, grid=GRID) == ["   ██", "██ ██    ▂▂"]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), min_size=1, max_size=96), st.integers(1, 5))
def test_highest_bar_fills_the_height(values, height):
    grid = ChartGrid(900, 1, 1)
    lines = bars(values, height=height, grid=grid)
    assert len(lines) == height
    top = max((one for one in values if one is not None), default=0)
    for place, value in enumerate(values):
        column = "".join(line[place : place + 1] or " " for line in lines)
        if value is None:
            assert column.strip() == ""
        elif value == top and top > 0:
            assert column == "█" * height
        else:
            assert column[-1] != " "


def test_hours_of_a_day_fit_eighty_columns_below_their_bars():
    lines = chart([window(15 * n) for n in range(96)], NOW, width=80)
    assert max(map(len, lines)) <= 80
    assert lines[-1].split() == [f"{(13 + n) % 24:02}" for n in range(24)]
    assert lines[4] == " " * 8 + " ".join(["██"] * 24)
    assert lines[0] == "attempts, by the hour, in UTC"


@pytest.mark.parametrize("width", [79, 60, 56, 55, 32])
def test_hours_of_a_day_fit_a_narrow_terminal(width):
    lines = chart([window(15 * n) for n in range(96)], NOW, width=width)
    assert max(map(len, lines)) <= width
    assert lines[4].count("█") == 24
    assert lines[-1].split()[0] == "13"


def test_wide_terminal_shows_quarters_of_an_hour():
    lines = chart([window(0), window(45)], NOW, width=104)
    assert lines[0] == "attempts, by the quarter of an hour, in UTC"
    assert lines[4] == " " * (8 + 92) + "█  █"
    assert lines[-1].rstrip().endswith("12")
    assert max(map(len, lines)) <= 104


def test_each_row_has_the_value_of_its_highest_bar():
    slow = (0, *[0] * 6, 60, *[0] * 6)
    lines = chart([window(0, 100, 60, slow), window(60, 12_345, 12_345)], NOW, width=80)
    assert lines[1].split()[0] == "12.3k"
    assert lines[5:7] == ["failed, of these", " 40.0 % " + " " * 69 + "██"]
    assert lines[8] == "p95 of the others"
    assert lines[9].split()[0] == "975"


def test_empty_window_has_no_bar_and_zero_failures_a_line():
    lines = chart([window(120)], NOW, width=80)
    assert lines[7] == " " * (8 + 3 * 21) + "▁▁"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (9_999, "9,999"), (10_000, "10.0k"), (999_900, "999.9k"), (2.5e6, "2.5M"), (3e9, "3.0G")],
)
def test_counts_are_short(number, shown):
    assert short_count(number) == shown


def test_shares_are_0_or_100_percent_only_if_exact():
    assert [percent(one) for one in (0, 0.0001, 0.5, 0.99999, 1)] == ["0.0 %", "<0.1 %", "50.0 %", ">99.9 %", "100.0 %"]


def test_spans_are_milliseconds_or_seconds():
    assert [latency(one) for one in (0.004, 0.9, 1, 12.34)] == ["4 ms", "900 ms", "1.0 s", "12.3 s"]
