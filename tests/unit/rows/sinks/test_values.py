"""Values converted for drivers, and the types of columns of a new table."""

import datetime as dt
import json
from decimal import Decimal
from enum import Enum, StrEnum
from unittest.mock import ANY
from uuid import UUID

import numpy
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.values import NESTED, adapt_columns, json_text


class Colour(Enum):
    RED = Decimal("1.5")


class Shade(StrEnum):
    DARK = "dark"


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(trees)
def test_json_has_the_exact_value(tree):
    assert json.loads(json_text(tree)) == tree


def test_json_has_exact_decimals_and_dates_as_text():
    tree = {"n": Decimal("1234567890.12345678901234567890"), "d": dt.date(2026, 7, 1), "u": UUID(int=1), 5: (1, {2})}
    assert json_text(tree) == (
        '{"n":1234567890.12345678901234567890,"d":"2026-07-01","u":"00000000-0000-0000-0000-000000000001","5":[1,[2]]}'
    )


def test_rows_that_need_no_change_are_returned_unchanged():
    columns = [(1, 2), ("a", "b"), (None, 1.5)]
    given = list(columns)
    assert adapt_columns(given, [NESTED] * 3) == {}
    assert all(after is before for after, before in zip(given, columns, strict=True))


def test_only_values_with_a_rule_are_changed():
    columns = [(Colour.RED, Decimal(2), None), ([1], {"a": 1}, None), (Shade.DARK, "plain", None)]
    assert adapt_columns(columns, [{Decimal: str}, NESTED, {}]) == {}
    assert columns == [["1.5", "2", None], ["[1]", '{"a":1}', None], ["dark", "plain", None]]


def test_value_that_cannot_be_converted_is_its_rows_fault():
    endless = []
    endless.append(endless)
    bad = adapt_columns([({"a": b"\xff"}, [1], endless)], [NESTED])
    assert set(bad) == {0, 2}
    assert bad[0] == "dict cannot be stored: bytes cannot stand in JSON"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], ColumnType.INTEGER),
        ([1, 2**63], ColumnType.HUGE),
        ([1, 2.5], ColumnType.FLOAT),
        ([1, Decimal("2.5")], ColumnType.DECIMAL),
        ([True, False], ColumnType.BOOLEAN),
        ([True, 1], ColumnType.TEXT),
        ([1, "a"], ColumnType.TEXT),
        ([None], ColumnType.TEXT),
        (["a"], ColumnType.TEXT),
        ([b"a"], ColumnType.BYTES),
        ([dt.date(2026, 7, 1)], ColumnType.DATE),
        ([dt.time(1)], ColumnType.TIME),
        ([dt.datetime(2026, 7, 1)], ColumnType.TIMESTAMP),
        ([dt.datetime(2026, 7, 1, tzinfo=dt.UTC)], ColumnType.INSTANT),
        ([dt.timedelta(1)], ColumnType.DURATION),
        ([UUID(int=1)], ColumnType.UUID),
        ([{"a": 1}, [1]], ColumnType.JSON),
    ],
)
def test_type_of_a_column_is_that_of_its_values_or_text(values, kind):
    assert types_of(Outgoing(("a",), range(len(values)), tuples=[(value,) for value in values])) == {"a": kind}


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pl.Int8, ColumnType.INTEGER),
        (pl.UInt64, ColumnType.HUGE),
        (pl.Float32, ColumnType.FLOAT),
        (pl.Decimal(10, 2), ColumnType.DECIMAL),
        (pl.Boolean, ColumnType.BOOLEAN),
        (pl.String, ColumnType.TEXT),
        (pl.Categorical, ColumnType.TEXT),
        (pl.Null, ColumnType.TEXT),
        (pl.Binary, ColumnType.BYTES),
        (pl.Date, ColumnType.DATE),
        (pl.Time, ColumnType.TIME),
        (pl.Datetime("ms"), ColumnType.TIMESTAMP),
        (pl.Datetime("us", "Asia/Kolkata"), ColumnType.INSTANT),
        (pl.Duration, ColumnType.DURATION),
        (pl.List(pl.Int64), ColumnType.JSON),
        (pl.Struct({"a": pl.Int64}), ColumnType.JSON),
    ],
)
def test_type_of_a_frame_column_is_mapped(dtype, kind):
    frame = pl.DataFrame({"a": pl.Series([None], dtype=dtype)})
    assert types_of(Outgoing.of_frame(frame, [0])) == {"a": kind}


def test_json_changes_no_number():
    assert json_text({"big": 2**70, "exact": Decimal("1.10"), "few": {1}, "none": None}) == (
        '{"big":1180591620717411303424,"exact":1.10,"few":[1],"none":null}'
    )
    for value in (float("nan"), float("-inf"), Decimal("NaN"), object()):
        for tree in ({"a": [value]}, {"a": value, "big": 2**70}):
            with pytest.raises((TypeError, ValueError), match="JSON"):
                json_text(tree)


def test_numpy_values_become_python_values_at_any_depth():
    moment = numpy.datetime64("2026-07-01T12:00:00.000001", "ns")
    columns = [(numpy.int64(5),), ([numpy.float32(0.5), numpy.bool_(True)],), (moment,)]
    assert adapt_columns(columns, [{int: str}, NESTED, {}]) == {}
    assert columns == [["5"], ["[0.5,true]"], [dt.datetime(2026, 7, 1, 12, 0, 0, 1)]]


class Fine(dt.datetime):
    """A moment with nanoseconds, as pandas has them."""

    nanosecond = 0

    def isoformat(self, sep="T", timespec="auto"):
        return f"{super().isoformat(sep, timespec)}{self.nanosecond:03}" if self.nanosecond else super().isoformat(sep)


class TestNanoseconds:
    """Python has none: a moment that has some is a text."""

    def test_of_numpy_are_written_as_text(self):
        moments = [numpy.datetime64(f"2026-07-01T12:00:00.123456{end}", "ns") for end in ("789", "000")]
        columns = [(*moments, numpy.datetime64("NaT", "ns")), ([moments[0]], {"at": moments[1]}, None)]
        assert adapt_columns(columns, [{}, NESTED]) == {}
        plain = dt.datetime(2026, 7, 1, 12, 0, 0, 123456)
        assert columns[0] == ["2026-07-01 12:00:00.123456789", plain, None]
        assert columns[1][:2] == ['["2026-07-01 12:00:00.123456789"]', '{"at":"2026-07-01T12:00:00.123456"}']

    def test_of_a_duration_are_its_rows_fault(self):
        assert list(adapt_columns([(numpy.timedelta64(1, "ns"), numpy.timedelta64(1, "us"))], [{}])) == [0]

    def test_of_pandas_are_written_as_text(self):
        fine, plain = Fine(2026, 7, 1, 12, 0, 0, 123456), Fine(2026, 7, 1, 12, tzinfo=dt.UTC)
        fine.nanosecond = 789
        columns = [(fine, plain)]
        assert adapt_columns(columns, [{}]) == {}
        assert columns == [["2026-07-01 12:00:00.123456789", dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)]]
        assert type(columns[0][1]) is dt.datetime


class _NoZone(dt.tzinfo):
    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        raise ValueError("no such place")


def test_zone_that_raises_is_a_fault_of_its_row():
    columns = [[{"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, {"at": dt.datetime(2026, 1, 1, tzinfo=_NoZone())}]]
    assert adapt_columns(columns, [NESTED]) == {1: ANY}
    assert columns[0][0] == '{"at":"2026-01-01T00:00:00+00:00"}'


@given(st.datetimes(timezones=st.none() | st.timezones()) | st.dates() | st.times())
def test_datetimes_are_written_unchanged(moment):
    assert json.loads(json_text([moment])) == [moment.isoformat()]
