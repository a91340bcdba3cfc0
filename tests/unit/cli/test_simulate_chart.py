"""A chart on a terminal: each line has its own glyph at its height, and the chart fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.cli.simulate.chart import Axis, chart
from redrive.simulate.figure import Figure, Series


def figure(*series, **options):
    return Figure("writes", "clients", "mean", [Series(name, points) for name, points in series], **options)


def test_sparse_line_is_glyphs_joined_by_dots():
    drawn = chart(figure(("none", [(0, 0), (50, 100), (100, 200)]), ("full", [(0, 0), (100, 100)])), width=46, height=9)
    assert drawn == [
        "writes: mean",
        " 200┤                                      ··●",
        "    │                                 ·····",
        "    │                            ·····",
        "    │                       ·····",
        " 100┤                  ··●··            ·····○",
        "    │             ·····        ·········",
        "    │        ·····  ···········",
        "    │   ············",
        "   0┤○●····",
        "    └┬───────────────────┬───────────────────┬",
        "     0                  50                 100",
        "                                       clients",
        "● none   ○ full",
    ]


SPIKES = [(n, 1_000 if n % 20 == 0 else 10) for n in range(80)]
SLOPE = [(n, 10 + n / 4) for n in range(80)]


def test_dense_line_is_glyphs_with_the_main_line_on_top():
    lines = [Series("fixed", SPIKES), Series("ours", SLOPE, emphasis=True)]
    drawn = chart(Figure("requests", "seconds", "a second", lines, log_y=True), width=46, height=7)
    assert drawn == [
        "requests: a second",
        " 1,000┤●         ●        ●         ●",
        "      │●         ●        ●         ●",
        "      │●         ●        ●         ●",
        "   100┤●         ●        ●●       ●●",
        "      │●        ●●        ●●       ●●",
        "      │●        ○○○○○○○○○○○○○○○○○○○○○○○○○○○○○○",
        "    10┤○○○○○○○○○○●●●●●●●●●●●●●●●●●●●●●●●●●●●●●",
        "      └┬─────────┬────────┬─────────┬─────────",
        "       0        20       40        60  seconds",
        "● fixed   ○ ours",
    ]


def test_mark_is_a_vertical_line_with_its_label_above():
    drawn = chart(figure(("ours", [(0, 1), (100, 1)]), marks=[(25, "outage"), (75, "back"), (400, "never")]), width=60)
    word, body = drawn[1], drawn[2:18]
    assert [word.index("outage"), word.index("back")] == [place for place, one in enumerate(body[3]) if one == "┊"]
    assert "never" not in "".join(drawn)


def test_overlapping_labels_have_separate_lines():
    drawn = chart(figure(("ours", [(0, 1), (100, 1)]), marks=[(50, "outage"), (52, "back")]), width=60)
    assert [line.strip() for line in drawn[1:3]] == ["outage", "back"]


def test_coinciding_points_are_side_by_side():
    drawn = chart(figure(*((name, [(0, 5), (10, 5)]) for name in "abcde")), width=60)
    row = next(line for line in drawn if "●" in line)
    assert all(row.count(glyph) == 2 for glyph in "●○▲□◆")


def test_ascii_terminal_gets_ascii_glyphs():
    drawn = chart(figure(("none", [(1, 1), (2, 2)]), ("full", [(1, 2), (2, 1)])), width=50, ascii=True)
    assert all(line.isascii() for line in drawn)
    assert drawn[-1] == "* none   o full"


def test_zero_is_not_drawn_on_a_logarithmic_axis():
    drawn = chart(figure(("ours", [(0, 0), (1, 1), (2, 1_000)]), log_y=True), width=40, height=8)
    assert [line.split("┤")[0].strip() for line in drawn if "┤" in line] == ["1,000", "100", "10", "1"]
    assert drawn[8].count("●") == 2


def test_empty_chart_is_labelled_as_empty():
    assert chart(figure(("ours", []), ("nan", [(0, float("nan")), (float("inf"), 1)])), width=80) == [
        "writes: there is nothing to draw"
    ]


@pytest.mark.parametrize("value", [0, 7, 1e6])
def test_level_line_can_be_drawn(value):
    assert "●" in "".join(chart(figure(("ours", [(5, value), (6, value)])), width=60)[1:-1])
    assert "●" in "".join(chart(figure(("ours", [(5, value)]), log_y=True, log_x=True), width=60)[1:-1])


@pytest.mark.parametrize(
    ("axis", "most", "ticks"),
    [
        (Axis(0, 100, 50), 5, [0, 50, 100]),
        (Axis(0, 100, 50), 6, [0, 20, 40, 60, 80, 100]),
        (Axis(0, 0.7, 50), 4, [0, 0.2, 0.4, 0.6]),
        (Axis(0.4, 62, 50, log=True), 8, [0.5, 1, 2, 5, 10, 20, 50]),
        (Axis(40, 2e6, 50, log=True), 8, [100, 1_000, 10_000, 100_000, 1_000_000]),
        (Axis(1, 1e9, 50, log=True), 4, [1, 1_000, 1e6, 1e9]),
        (Axis(2, 9, 50, log=True), 4, [2, 4, 6, 8]),
    ],
)
def test_axis_numbers_are_round_and_few(axis, most, ticks):
    assert axis.ticks(most) == pytest.approx(ticks)


FINE = st.integers(0, 10**9).map(lambda n: n / 1_000)


@given(
    st.lists(st.lists(st.tuples(FINE, FINE), max_size=30).map(sorted), min_size=1, max_size=9),
    st.integers(0, 160),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(FINE, st.sampled_from(["outage", "back again"])), max_size=3),
)
def test_chart_fits_every_terminal_of_forty_columns_or_more(lines, width, log, plain, marks):
    drawn = chart(
        figure(*((f"line {n}", points) for n, points in enumerate(lines)), log_y=log, log_x=log, marks=marks),
        width=width,
        ascii=plain,
    )
    assert max(map(len, drawn)) <= max(40, width)
    assert not plain or all(line.isascii() for line in drawn)
