"""Frames of records: no value is lost or changed."""

from decimal import Decimal
from uuid import UUID

import pytest

from redrive.rows.batch import Received
from redrive.rows.to_polars import framed, of_records

WITHIN_ITSELF: list = []
WITHIN_ITSELF += [WITHIN_ITSELF, WITHIN_ITSELF]


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, 2, None], [1, 2, None]),
        (["a", None], ["a", None]),
        ([1, "a"], ["1", "a"]),
        ([1, True], ["1", "True"]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ([{"a": 1}, {"b": 2}], ['{"a":1}', '{"b":2}']),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[1], ["a"]], ["[1]", '["a"]']),
        ([2**140, 1], [str(2**140), "1"]),
        ([None, None], [None, None]),
        ([UUID(int=5), "x"], ["00000000-0000-0000-0000-000000000005", "x"]),
        ([UUID(int=5), None], ["00000000-0000-0000-0000-000000000005", None]),
        ([b"caf\xc3\xa9 \xff", "x"], ["café \\xff", "x"]),
        ([b"\xff", None], [b"\xff", None]),
        ([{"a": b"\xff"}, "x"], ['{"a": "\\\\xff"}', "x"]),
        ([nested(60)], [nested(60)]),
    ],
)
def test_column_has_its_values(values, kept):
    assert of_records([{"x": value} for value in values])["x"].to_list() == kept


def test_record_that_lacks_a_column_has_null_there():
    assert of_records([{"a": 1}, {"b": 2}]).to_dicts() == [{"a": 1, "b": None}, {"a": None, "b": 2}]


def test_records_are_unchanged_when_a_frame_is_requested():
    received = Received([{"a": 1}])
    assert received.frame.to_dicts() == [{"a": 1}]
    assert not received.is_frame
    assert received.record(0) == {"a": 1}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("\ud800", "half a character, which is no Unicode"),
        (["\ud800"], "half a character, which is no Unicode"),
        (10**5_000, "a number of thousands of digits"),
        (nested(700), "nested too deep, or within itself"),
        (WITHIN_ITSELF, "nested too deep, or within itself"),
        ({"a": WITHIN_ITSELF}, "nested too deep, or within itself"),
        (object(), "a value of the type object, which cannot be written as text"),
        ({(1, 2): 3}, "a value of the type dict, which cannot be written as text"),
    ],
    ids=["surrogate", "list of surrogates", "huge", "deep", "cyclic", "dict of cyclic", "object", "key"],
)
@pytest.mark.parametrize("others", [["x", "y"], [1, 2], [[1], [2]]], ids=["texts", "numbers", "lists"])
def test_unrepresentable_value_leaves_the_others_unchanged(value, why, others):
    records = [{"id": 1, "x": others[0]}, {"id": 2, "x": value}, {"id": 3, "x": others[1]}]
    frame, misfits = framed(records)
    assert frame.to_dict(as_series=False) == {"id": [1, 2, 3], "x": [others[0], None, others[1]]}
    assert [(misfit.place, misfit.column, misfit.why) for misfit in misfits] == [(1, "x", f"x: {why}")]
    assert records[1]["x"] is value
    with pytest.raises(ValueError, match=r"^x: "):
        of_records(records)


def test_only_the_selected_columns_are_read():
    frame, misfits = framed([{"a": 1, "b": "\ud800"}], ["a", "c"])
    assert (frame.to_dicts(), misfits) == ([{"a": 1, "c": None}], [])


def test_decimals_beside_other_numbers_are_not_changed():
    long, longer = Decimal("12345678901234567.89"), Decimal("12345678901234567890.12345678901234567890123")
    assert of_records([{"x": 1.5}, {"x": long}])["x"].to_list() == ["1.5", str(long)]
    assert of_records([{"x": longer}])["x"].to_list() == [str(longer)]
    mixed = [Decimal("1.123456789012345678901"), Decimal("12345678901234567890123.5")]
    assert of_records([{"x": value} for value in mixed])["x"].to_list() == list(map(str, mixed))
    assert of_records([{"x": Decimal("1.5")}, {"x": long}])["x"].to_list() == [Decimal("1.5"), long]


def test_integers_beyond_float_precision_are_exact():
    assert of_records([{"x": 1.5}, {"x": 2**53 + 1}])["x"].to_list() == ["1.5", "9007199254740993"]
    assert of_records([{"x": 1.5}, {"x": 7}])["x"].to_list() == [1.5, 7.0]
