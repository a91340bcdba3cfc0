"""The check for changed values gives a value the same verdict alone and beside any other, and never raises."""

import datetime as dt
from decimal import Decimal
from itertools import permutations

import pytest

from redrive.rows.sinks.exact.capacity import ColumnCapacity
from redrive.rows.sinks.exact.columns import find_changes
from redrive.rows.sinks.postgres.types import StoredType, find_changes_by_type

MOMENT = dt.datetime(2026, 7, 1, 12)


class BrokenZone(dt.tzinfo):
    def utcoffset(self, _):
        raise RuntimeError("no such zone")


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")


VALUES = [
    *(MOMENT, MOMENT.date(), MOMENT.time(), MOMENT.replace(tzinfo=dt.UTC), MOMENT.replace(tzinfo=BrokenZone())),
    *(MOMENT.time().replace(tzinfo=BrokenZone()), dt.timedelta(1), True, 7, 10**5_000, 0.5, float("nan")),
    *(Decimal("sNaN"), Decimal("1E+400000"), "7", "\ud800", b"7", None, [7], {"a": 7}, Unprintable()),
]
TYPES = ["bigint", "numeric(10,2)", "real", "double precision", "boolean"]
TYPES += ["timestamp", "timestamptz", "timestamp(3)", "date", "time", "timetz", "interval"]


@pytest.mark.parametrize("type_", TYPES)
def test_verdict_is_the_same_alone_and_beside_any_other(type_):
    capacity = ColumnCapacity.of(type_)
    alone = [bool(list(find_changes([value], capacity))) for value in VALUES]
    for first, second in permutations(range(len(VALUES)), 2):
        changed = {place for place, _ in find_changes([VALUES[first], VALUES[second]], capacity)}
        assert changed == {place for place, at in enumerate((first, second)) if alone[at]}


@pytest.mark.parametrize("type_", ["character varying(3)", "bit(3)", "money(2)", "bytea", "name"])
def test_values_of_any_type_compare_with_postgres_types(type_):
    for stored in (StoredType(type_), StoredType(type_, is_array=True), StoredType(type_, is_range=True)):
        for value in VALUES:
            alone = bool(list(find_changes_by_type([value], stored)))
            assert alone == bool(list(find_changes_by_type([value, None], stored)))


@pytest.mark.parametrize("type_", ["timestamp", "timestamptz", "date", "time", "timetz"])
@pytest.mark.parametrize("number", ["286.212", "1000.000", "4005941018", "-5", ".5", " 7 ", "260701 "])
def test_text_of_a_number_is_not_a_time(type_, number):
    changes = list(find_changes([number], ColumnCapacity.of(type_)))
    is_time_of_day = type_.startswith("time") and "stamp" not in type_ and number.strip() == "260701"
    assert bool(changes) is not is_time_of_day


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("date", "20260701"),
        ("timestamp", "20260701"),
        ("timestamptz", "20260701"),
        ("time", "1030"),
        ("time", "103059"),
    ],
)
def test_basic_form_of_iso_8601_is_unchanged(type_, text):
    assert list(find_changes([text], ColumnCapacity.of(type_))) == []
