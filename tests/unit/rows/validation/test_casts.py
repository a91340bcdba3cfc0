"""Columns cast to the types of a schema: every value exact, or null."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.rows.validation.casts import fitted, of_values, type_name

BERLIN = ZoneInfo("Europe/Berlin")
JUNK = st.sampled_from(
    ["N/A", "", " ", "-", "x1", "1,5", "1.2.3", "0x10", "--1", "1 2", "01/07/2026", "July", "25:00:00", "2026-02-30"]
)


def fit(values, dtype, have=pl.String):
    found = fitted(pl.Series("c", values, dtype=have), dtype)
    assert found is not None
    assert found.dtype == dtype
    assert found.name == "c"
    return found.to_list()


def spelled(values):
    """Pairs of a text, blanks around it, and the value it stands for; or of junk and None."""
    blanks = st.sampled_from(["", " ", "\t"])
    good = st.tuples(blanks, values, blanks).map(lambda one: (one[0] + one[1][0] + one[2], one[1][1]))
    return st.lists(st.one_of(good, JUNK.map(lambda text: (text, None)), st.just((None, None))), max_size=20)


def assert_read(pairs, dtype):
    assert fit([text for text, _ in pairs], dtype) == [value for _, value in pairs]


@given(spelled(st.integers(-(2**63), 2**63 - 1).map(lambda number: (str(number), number))))
def test_integers_are_read_from_text(pairs):
    assert_read(pairs, pl.Int64())


@given(spelled(st.floats(allow_nan=False).map(lambda number: (repr(number), number))))
def test_floats_are_read_from_text(pairs):
    assert_read(pairs, pl.Float64())


@given(spelled(st.decimals(-(10**9), 10**9, places=2).map(lambda number: (f"{number:f}", number))))
def test_decimals_are_read_from_text(pairs):
    assert_read(pairs, pl.Decimal(12, 2))


@given(spelled(st.dates(date(1000, 1, 1)).map(lambda day: (day.isoformat(), day))))
def test_dates_are_read_from_text(pairs):
    assert_read(pairs, pl.Date())


@given(spelled(st.times().map(lambda moment: (moment.isoformat(), moment))))
def test_times_are_read_from_text(pairs):
    assert_read(pairs, pl.Time())


MOMENTS = st.one_of(
    st.datetimes(datetime(1000, 1, 1)), st.datetimes(datetime(1000, 1, 1)).map(lambda one: one.replace(microsecond=0))
)
MIXED = st.sampled_from(["T", " "])


@given(spelled(st.tuples(MOMENTS, MIXED).map(lambda one: (one[0].isoformat(one[1]), one[0]))))
def test_datetimes_without_a_zone_are_read_from_text(pairs):
    assert_read(pairs, pl.Datetime("us"))


OFFSETS = st.integers(-12 * 60, 12 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ZONED = st.tuples(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), OFFSETS, MIXED).map(
    lambda one: (one[0].replace(tzinfo=one[1]).isoformat(one[2]), one[0].replace(tzinfo=one[1]))
)


@given(spelled(ZONED), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_text_with_an_offset_is_converted_to_the_schemas_zone(pairs, zone):
    found = fit([text for text, _ in pairs], pl.Datetime("us", zone))
    assert [None if one is None else one.astimezone(UTC) for one in found] == [
        None if value is None else value.astimezone(UTC) for _, value in pairs
    ]


@given(spelled(st.timedeltas(timedelta(0), timedelta(days=300)).map(lambda one: (iso_duration(one), one))))
def test_durations_are_read_from_text(pairs):
    assert_read([(text, value) for text, value in pairs if text != "25:00:00"], pl.Duration("us"))


def iso_duration(value):
    return f"P{value.days}DT{value.seconds + value.microseconds / 1_000_000:.6f}S"


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("300", pl.Int8(), None),
        ("-1", pl.UInt8(), None),
        ("5.0", pl.Int64(), None),
        ("12.50", pl.Decimal(12, 0), None),
        ("12.345", pl.Decimal(12, 2), None),
        ("12.340", pl.Decimal(12, 2), Decimal("12.34")),
        ("1.25e-1", pl.Decimal(12, 2), None),
        ("99999999999", pl.Decimal(12, 2), None),
        ("true", pl.Boolean(), True),
        (" No ", pl.Boolean(), False),
        ("0", pl.Boolean(), False),
        ("2", pl.Boolean(), None),
        ("26-07-01", pl.Date(), None),
        ("+12026-07-01", pl.Date(), None),
        ("-2026-07-01", pl.Date(), None),
        ("2026-07-01T10:00", pl.Datetime("us"), datetime(2026, 7, 1, 10)),
        ("2026-07-01", pl.Datetime("us"), datetime(2026, 7, 1)),
        ("26-07-01T10:00:00", pl.Datetime("us"), None),
        ("2026-07-01T10:00:00Z", pl.Datetime("us"), None),
        ("2026-07-01T10:00:00+02:00", pl.Datetime("us"), None),
        ("2026-07-01T10:00:00Z", pl.Datetime("us", "UTC"), datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("2026-07-01 10:00:00Z", pl.Datetime("us", "UTC"), datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("2026-07-01T10:00Z", pl.Datetime("us", "UTC"), datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("2026-07-01T10:00:00", pl.Datetime("us", "Europe/Berlin"), datetime(2026, 7, 1, 10, tzinfo=BERLIN)),
        ("2026-03-29T02:30:00", pl.Datetime("us", "Europe/Berlin"), None),
        ("2026-10-25T02:30:00", pl.Datetime("us", "Europe/Berlin"), None),
        ("2026-07-01T10:00:00.5", pl.Datetime("ms"), datetime(2026, 7, 1, 10, microsecond=500_000)),
        ("9999-12-31T00:00:00", pl.Datetime("ns"), None),
        ("2026-07-01T00:00:00", pl.Datetime("ns"), datetime(2026, 7, 1)),
        ("10:00", pl.Time(), time(10)),
        ("1:30:00", pl.Duration("us"), timedelta(minutes=90)),
        ("b", pl.Enum(["a", "b"]), "b"),
        ("c", pl.Enum(["a", "b"]), None),
        ("a", pl.Binary(), b"a"),
    ],
    ids=str,
)
def test_text_is_read_exactly_or_rejected(text, dtype, value):
    assert fit([text], dtype) == [value]


def test_one_column_may_have_texts_of_several_forms():
    texts = ["2026-07-01", "2026-07-01 10:00", None, "N/A", "2026-07-01T10:00:00.25", "2026-07-01T10:00:00"]
    ten = datetime(2026, 7, 1, 10)
    assert fit(texts, pl.Datetime("us")) == [
        datetime(2026, 7, 1),
        ten,
        None,
        None,
        ten.replace(microsecond=250_000),
        ten,
    ]


@pytest.mark.parametrize(
    ("values", "have", "dtype", "expected"),
    [
        ([None, None], pl.Null, pl.Decimal(12, 2), [None, None]),
        ([1, 300], pl.Int64, pl.Int8(), [1, None]),
        ([1.0, 1.5, math.inf, math.nan, None], pl.Float64, pl.Int64(), [1, None, None, None, None]),
        ([1, None], pl.Int64, pl.Float64(), [1.0, None]),
        ([0, 1, 5], pl.Int64, pl.Boolean(), [False, True, None]),
        ([True, None], pl.Boolean, pl.Int64(), [1, None]),
        ([0.3, 0.1 + 0.2, 12.345, 1e8 + 0.125], pl.Float64, pl.Decimal(12, 2), [Decimal("0.30"), None, None, None]),
        ([0.1, 12.345], pl.Float32, pl.Decimal(12, 2), [Decimal("0.10"), None]),
        ([Decimal("1.20"), Decimal("1.25")], pl.Decimal(12, 2), pl.Decimal(12, 1), [Decimal("1.2"), None]),
        ([7], pl.Int64, pl.String(), ["7"]),
        ([date(2026, 7, 1)], pl.Date, pl.Datetime("us"), [datetime(2026, 7, 1)]),
        (
            [date(2026, 7, 1)],
            pl.Date,
            pl.Datetime("us", "Europe/Berlin"),
            [datetime(2026, 7, 1, tzinfo=BERLIN)],
        ),
        ([datetime(2026, 7, 1), datetime(2026, 7, 1, 5)], pl.Datetime("us"), pl.Date(), [date(2026, 7, 1), None]),
        (
            [datetime(2026, 7, 1, 5)],
            pl.Datetime("us"),
            pl.Datetime("ms", "Europe/Berlin"),
            [datetime(2026, 7, 1, 5, tzinfo=BERLIN)],
        ),
        (
            [datetime(2026, 7, 1, 5, tzinfo=UTC)],
            pl.Datetime("us", "UTC"),
            pl.Datetime("us", "Europe/Berlin"),
            [datetime(2026, 7, 1, 7, tzinfo=BERLIN)],
        ),
        ([timedelta(seconds=1)], pl.Duration("us"), pl.Duration("ms"), [timedelta(seconds=1)]),
        ([["1"], ["x"], None], pl.List(pl.String), pl.List(pl.Int64), [[1], None, None]),
    ],
    ids=str,
)
def test_typed_values_are_exact_or_rejected(values, have, dtype, expected):
    assert fit(values, dtype, have) == expected


@pytest.mark.parametrize(
    ("have", "dtype"),
    [
        (pl.Int64, pl.Datetime("us")),
        (pl.Boolean, pl.Date()),
        (pl.Date, pl.Int64()),
        (pl.Time, pl.Datetime("us")),
        (pl.Datetime("us", "UTC"), pl.Datetime("us")),
        (pl.List(pl.Int64), pl.Int64()),
        (pl.List(pl.Int64), pl.String()),
        (pl.String, pl.List(pl.String)),
        (pl.Binary, pl.String()),
    ],
    ids=str,
)
def test_incompatible_types_are_reported_as_such(have, dtype):
    assert fitted(pl.Series("c", [None], dtype=have), dtype) is None


def test_record_values_become_lists_and_structs_independently():
    values = [[1], "x", None, [2, "y"], [3]]
    assert of_values("c", values, pl.List(pl.Int64)).to_list() == [[1], None, None, None, [3]]
    assert of_values("c", ["ab", ["ab"]], pl.List(pl.String)).to_list() == [None, ["ab"]]
    structs = of_values("c", [{"a": 1}, {"b": 2}, 5], pl.Struct({"a": pl.Int64, "b": pl.Int64}))
    assert structs.to_list() == [{"a": 1, "b": None}, {"a": None, "b": 2}, None]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (pl.Int64(), "Int64"),
        (pl.Decimal(12, 2), "Decimal(12,2)"),
        (pl.Datetime("us"), "Datetime without a time zone"),
        (pl.Datetime("us", "UTC"), "Datetime in UTC"),
        (pl.Duration("us"), "Duration"),
        (pl.Enum(["a", "b"]), "member of a, b"),
        (pl.List(pl.Int64), "List(Int64)"),
    ],
)
def test_types_have_plain_names(dtype, name):
    assert type_name(dtype) == name


def test_leap_second_is_not_the_next_minute():
    assert fit(["10:00:60", "10:00:59", "10:00:60.5"], pl.Time()) == [None, time(10, 0, 59), None]
    moments = ["2026-07-01T10:00:60", "2026-07-01 10:00:59", "2026-07-01T10:00:60Z", "2026-07-01T10:00:60+02:00"]
    found = fit(moments, pl.Datetime("us", "UTC"))
    assert found == [None, datetime(2026, 7, 1, 10, 0, 59, tzinfo=UTC), None, None]


def test_microseconds_in_a_millisecond_column_are_rejected():
    exact, finer = datetime(2026, 7, 1, 10, 0, 0, 123_000), datetime(2026, 7, 1, 10, 0, 0, 123_456)
    texts = [f"{exact}", f"{finer}", "2026-07-01T10:00:00.12300", "2026-07-01 10:00"]
    assert fit(texts, pl.Datetime("ms")) == [exact, None, exact, datetime(2026, 7, 1, 10)]
    assert fit([f"{finer}Z", f"{exact}Z"], pl.Datetime("ms", "UTC")) == [None, exact.replace(tzinfo=UTC)]
    assert fit([exact, finer, None], pl.Datetime("ms"), pl.Datetime("us")) == [exact, None, None]
    there = fit([exact, finer], pl.Datetime("ms", "UTC"), pl.Datetime("us", "Asia/Kolkata"))
    assert there == [exact.replace(tzinfo=UTC), None]
    lengths = [timedelta(milliseconds=5), timedelta(microseconds=5)]
    assert fit(lengths, pl.Duration("ms"), pl.Duration("us")) == [lengths[0], None]
    assert fit(["PT0.005S", "PT0.000005S"], pl.Duration("ms")) == [lengths[0], None]


def test_number_too_large_for_a_float_is_not_infinite():
    assert fit(["1e300", "1.5", "inf", "-Infinity"], pl.Float32()) == [None, 1.5, math.inf, -math.inf]
    assert fit(["1e400", "9" * 400, "1e300"], pl.Float64()) == [None, None, 1e300]
    assert fit([1e300, 1.5, math.inf, None], pl.Float32(), pl.Float64) == [None, 1.5, math.inf, None]


def test_integer_that_a_float_cannot_represent_is_rejected():
    exact, bent = 2**53 + 2, 2**53 + 1
    assert fit([str(exact), str(bent), f"-{bent}", "+7", str(10**22)], pl.Float64()) == [exact, None, None, 7, 10**22]
    assert fit([exact, bent, 2**63 - 1, None], pl.Float64(), pl.Int64) == [exact, None, None, None]


@given(st.lists(st.integers(-(2**70), 2**70)))
def test_integers_are_exact_as_floats_or_rejected(numbers):
    assert fit([str(number) for number in numbers], pl.Float64()) == [
        number if int(float(number)) == number else None for number in numbers
    ]


def test_duration_is_written_as_iso_text():
    assert fit([timedelta(days=1, seconds=5), None], pl.String(), pl.Duration("us")) == ["P1DT5S", None]


class TestFloat32:
    def test_integer_that_would_become_another_is_rejected(self):
        assert fit(["16777216", "16777217", "16777218"], pl.Float32()) == [16777216.0, None, 16777218.0]
        assert fit([16777216, 16777217, None], pl.Float32(), pl.Int64) == [16777216.0, None, None]
        assert fit([16777217.0, 0.5], pl.Float32(), pl.Float64) == [None, 0.5]

    def test_number_that_would_become_zero_is_rejected(self):
        assert fit(["1e-400", "0.0", "0e5", "-0"], pl.Float64()) == [None, 0.0, 0.0, 0.0]
        assert fit(["1e-60", "0"], pl.Float32()) == [None, 0.0]
        assert fit([1e-60, 0.0], pl.Float32(), pl.Float64) == [None, 0.0]

    def test_number_has_its_written_digits(self):
        (kept, changed, longer) = fit(["0.1", "12345678901234567.89", "0.123456789"], pl.Float32())
        assert (round(kept, 7), changed, longer) == (0.1, None, None)
        assert fit([0.123456789012, 0.5], pl.Float32(), pl.Float64) == [None, 0.5]


class TestNumbersAsWritten:
    """A float or decimal keeps a number where it is that number with as many digits, and rejects it otherwise."""

    @pytest.mark.parametrize(
        "text", ["12345678901234567.89", "9007199254740993.0", "0.1234567890123456789", "1e99999999999999999999"]
    )
    def test_float_accepts_no_other_number(self, text):
        assert fit([text, "0.1", "0.10000000000000001"], pl.Float64()) == [None, 0.1, 0.1]

    @pytest.mark.parametrize("text", ["1e-30", "1e-400", "1." + "0" * 45 + "1", "1e-99999999999999999999", "-5e-3"])
    def test_decimal_cuts_no_digit_off(self, text):
        assert fit([text, "1.50", "1.5e1"], pl.Decimal(8, 2)) == [None, Decimal("1.50"), Decimal(15)]

    def test_decimal_becomes_no_other_float(self):
        numbers = [Decimal("12345678901234567.89"), Decimal("0.10")]
        assert fit(numbers, pl.Float64(), pl.Decimal(38, 2)) == [None, 0.1]

    @pytest.mark.parametrize(
        ("value", "inner"),
        [
            (2**53 + 1, pl.Float64),
            (Decimal("12345678901234567.89"), pl.Float64),
            (0.125, pl.Decimal(8, 2)),
            (1.5, pl.Int64),
            (datetime(2026, 7, 1, 5), pl.Date),
        ],
        ids=str,
    )
    def test_element_of_a_list_or_struct_is_not_changed(self, value, inner):
        assert of_values("c", [[value], None, []], pl.List(inner)).to_list() == [None, None, []]
        assert of_values("c", [{"a": value}], pl.Struct({"a": inner})).to_list() == [None]

    def test_element_of_a_list_of_a_frame_is_not_changed(self):
        assert fit([["12345678901234567.89"], ["0.1"]], pl.List(pl.Float64), pl.List(pl.String)) == [None, [0.1]]
        assert fit([[1.5, 2.0], [2.0], None], pl.List(pl.Int64), pl.List(pl.Float64)) == [None, [2], None]
