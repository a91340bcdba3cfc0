"""Every type of a schema against every kind of Python value: a row is judged independently of other rows."""

import enum
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import dataframely as dy
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive.rows.batch import Received
from redrive.rows.validation.schema import SchemaValidator
from tests.support.examples import examples


class Letter(enum.Enum):
    A = "a"


EAST, WEST = timezone(timedelta(hours=14)), timezone(-timedelta(hours=14))
NUMBERS = [True, False, 0, 1, -1, 7, 2**63, 2**64, 2**200, 1.5, -0.0, float("nan"), float("inf"), 1e300]
DECIMALS = [Decimal(text) for text in ("1.25", "NaN", "sNaN", "Infinity", "1E+40", "1e-60")]
TEXTS = ["", " ", "x", "a", "7", "1.25", "true", "2026-07-01", "2026-07-01T12:00:00Z", "12:00", "PT1H", "\ud800", "\0"]
TIMES = [
    *(date(2026, 7, 1), date.min, date.max, time(12), time(12, tzinfo=UTC)),
    *(datetime(2026, 7, 1, 12), datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 7, 1, 12, tzinfo=EAST)),
    *(datetime.min, datetime.max, datetime.min.replace(tzinfo=EAST), datetime.max.replace(tzinfo=WEST)),
    *(timedelta(hours=1), timedelta.min, timedelta.max),
]
LISTS = [[], [1, 2], (1, 2), ["x"], [None], [True], [[1]], [Letter.A], [datetime.max.replace(tzinfo=WEST)], {1, 2}]
OBJECTS = [{}, {"a": 1}, {"a": "x"}, {"a": True}, {"b": 1}, {1: 2}]
ARRAYS = [np.int64(3), np.float32(1.5), np.bool_(True), np.datetime64("2026-07-01"), np.array([1, 2]), pl.Series([1])]
ODD = [b"x", bytearray(b"x"), memoryview(b"x"), UUID(int=5), Letter.A, 1 + 2j, range(3), object(), ValueError("x"), int]
VALUES = [None, *NUMBERS, *DECIMALS, *TEXTS, *TIMES, *LISTS, *OBJECTS, *ARRAYS, *ODD]

PLAIN = (
    *(dy.Int8, dy.Int16, dy.Int32, dy.Int64, dy.UInt8, dy.UInt16, dy.UInt32, dy.UInt64),
    *(dy.Float32, dy.Float64, dy.Bool, dy.String, dy.Binary, dy.Categorical, dy.Object),
    *(dy.Date, dy.Time, dy.Datetime, dy.Duration, dy.Decimal),
)
NULLABLE = {"nullable": True}
INSIDE = (dy.Int64, dy.Bool, dy.String, dy.Date, dy.Time, dy.Datetime, dy.Decimal)
COLUMNS = {
    **{kind.__name__: kind(**NULLABLE) for kind in PLAIN},
    "Decimal(8, 2)": dy.Decimal(8, 2, **NULLABLE),
    "Decimal(38, 10)": dy.Decimal(38, 10, **NULLABLE),
    "Enum": dy.Enum(["x", "a"], **NULLABLE),
    "Datetime in UTC": dy.Datetime(time_zone="UTC", **NULLABLE),
    "Datetime in Berlin": dy.Datetime(time_zone="Europe/Berlin", **NULLABLE),
    "Datetime of milliseconds": dy.Datetime(time_unit="ms", **NULLABLE),
    "Datetime of nanoseconds": dy.Datetime(time_unit="ns", **NULLABLE),
    "Duration of nanoseconds": dy.Duration(time_unit="ns", **NULLABLE),
    **{f"List of {kind.__name__}": dy.List(kind(**NULLABLE), **NULLABLE) for kind in INSIDE},
    "Array": dy.Array(dy.Int64(**NULLABLE), shape=2, **NULLABLE),
    "Struct": dy.Struct({"a": dy.Int64(**NULLABLE)}, **NULLABLE),
    "Struct of Decimal": dy.Struct({"a": dy.Decimal(8, 2, **NULLABLE)}, **NULLABLE),
}


def validator(column):
    return SchemaValidator(type("Schema", (dy.Schema,), {"__module__": __name__, "v": column}))


def outcome(check, values):
    """Return what becomes of each value, by its place: the text of the value that passed, or of its rejection."""
    checked = check(Received([{"v": value} for value in values]))
    passed = dict(zip(checked.good.origin, map(repr, checked.good.values("v")), strict=True))
    rejected = {refused.place: f"rejected: {refused.error}" for refused in checked.rejected}
    assert sorted([*passed, *rejected]) == [*range(len(values))]
    return passed | rejected


class Judged:
    """A validator of one column, and what it makes of each value alone."""

    def __init__(self, column):
        self.check = validator(column)
        self.alone = [outcome(self.check, [value])[0] for value in VALUES]


@pytest.fixture(scope="module")
def judged():
    return {}


@pytest.mark.parametrize("name", COLUMNS)
@given(places=st.lists(st.sampled_from(range(len(VALUES))), min_size=2, max_size=12))
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
def test_value_gets_the_same_verdict_as_alone(judged, name, places):
    if name not in judged:
        judged[name] = Judged(COLUMNS[name])
    found = outcome(judged[name].check, [VALUES[place] for place in places])
    assert found == {at: judged[name].alone[place] for at, place in enumerate(places)}


@pytest.mark.parametrize("kind", [dy.Integer, dy.Float], ids=lambda kind: kind.__name__)
@given(places=st.lists(st.sampled_from(range(len(VALUES))), min_size=1, max_size=12))
@settings(max_examples=examples(30), deadline=None)
def test_column_of_several_types_judges_every_row(kind, places):
    """Which of its types the column has depends on the batch, and so does which large numbers it takes."""
    outcome(validator(kind(**NULLABLE)), [VALUES[place] for place in places])


@pytest.mark.parametrize("odd", [one for one in VALUES if one is not None], ids=lambda value: type(value).__name__)
def test_any_column_rejects_only_the_value_of_another_kind(odd):
    check = validator(dy.Any())
    alone = outcome(check, [odd])
    assert not alone[0].startswith("rejected: v: not a Null")
    for many in ([3] * 3, ["x"] * 3, [True] * 3, [datetime(2026, 7, 1)] * 3):
        found = outcome(check, [*many[1:], odd, many[0]])
        assert not [text for at, text in found.items() if at != 2 and text.startswith("rejected")]
        if found[2].startswith("rejected"):
            assert found[2] == alone[0] or "where most rows of the batch have" in found[2]


class TestEnumMember:
    @pytest.mark.parametrize("other", [None, "b"])
    def test_is_its_value_whatever_comes_first(self, other):
        assert outcome(validator(COLUMNS["String"]), [other, Letter.A])[1] == "'a'"


class TestBoolean:
    def test_in_a_decimal_column_is_one_rejected_row(self):
        found = outcome(validator(dy.Decimal(8, 2)), [Decimal("1.25"), True, "2"])
        assert found == {0: "Decimal('1.25')", 1: "rejected: v: not a Decimal(8,2) (True)", 2: "Decimal('2.00')"}


class TestMixedTimeZones:
    @pytest.mark.parametrize("first", [0, 1])
    def test_are_not_changed_by_each_other(self, first):
        values = [datetime(2026, 7, 1, 12), datetime(2026, 7, 1, 12, tzinfo=UTC)]
        found = outcome(validator(COLUMNS["Datetime in Berlin"]), [values[first], values[1 - first]])
        assert "2026, 7, 1, 12, 0" in found[first]
        assert "2026, 7, 1, 14, 0" in found[1 - first]
