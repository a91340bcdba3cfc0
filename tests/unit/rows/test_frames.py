"""Frames of records: no value is lost or bent on the way."""

import pytest

from redrive.rows.batch import Received
from redrive.rows.frames import of_records


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, 2, None], [1, 2, None]),
        (["a", None], ["a", None]),
        ([1, "a"], ["1", "a"]),
        ([1, True], ["1", "True"]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ([{"a": 1}, {"b": 2}], ['{"a": 1}', '{"b": 2}']),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[1], ["a"]], ["[1]", '["a"]']),
        ([2**140, 1], [str(2**140), "1"]),
        ([None, None], [None, None]),
    ],
)
def test_a_column_keeps_its_values(values, kept):
    assert of_records([{"x": value} for value in values])["x"].to_list() == kept


def test_a_record_that_lacks_a_column_has_nothing_there():
    assert of_records([{"a": 1}, {"b": 2}]).to_dicts() == [{"a": 1, "b": None}, {"a": None, "b": 2}]


def test_records_stay_records_when_somebody_asks_for_a_frame():
    received = Received([{"a": 1}])
    assert received.frame.to_dicts() == [{"a": 1}]
    assert not received.is_frame
    assert received.record(0) == {"a": 1}
