"""Rows against a plain function."""

import polars as pl
import pytest

import redrive
from redrive.errors import PipelineError
from redrive.rows.batch import Received
from redrive.rows.validation.validator import check_of

ROWS = [{"id": 1, "fee": 5}, {"id": 2, "fee": -5}, {"id": 3, "fee": 7}]


def checked(function, rows=ROWS):
    return check_of(function)(Received(rows))


@pytest.mark.parametrize("rows", [ROWS, pl.DataFrame(ROWS)], ids=["records", "frame"])
@pytest.mark.parametrize("answer", [None, True])
def test_function_that_returns_none_passes_its_changed_record(answer, rows):
    def double(record):
        record["fee"] *= 2
        return answer

    outcome = checked(double, rows)
    assert outcome.good.columns == ("id", "fee")
    assert list(outcome.good.tuples) == [(1, 10), (2, -10), (3, 14)]
    assert ROWS[0]["fee"] == 5


def test_returned_mapping_replaces_the_record():
    outcome = checked(lambda record: {"key": record["id"]})
    assert outcome.good.records() == [{"key": 1}, {"key": 2}, {"key": 3}]


def test_raised_error_rejects_the_record_with_its_message():
    def positive(record):
        if record["fee"] < 0:
            raise ValueError("fee is negative")

    outcome = checked(positive)
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "ValueError: fee is negative")]
    assert list(outcome.good.origin) == [0, 2]


def test_missing_field_is_a_fault_of_the_row():
    outcome = checked(lambda record: {"x": record["x"]}, [{"x": 1}, {"y": 1}])
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "KeyError: 'x'")]


def test_all_messages_of_an_error_group_are_reported():
    def everything(record):
        raise ExceptionGroup("bad", [ValueError("fee is negative"), ValueError("id is odd")])

    assert checked(everything).rejected[0].error == "ValueError: fee is negative; ValueError: id is odd"


def test_users_pydantic_error_is_reported_like_a_models():
    import pydantic

    adapter = pydantic.TypeAdapter(dict[str, int])
    assert checked(adapter.validate_python, [{"a": "x"}]).rejected[0].error == (
        "a: Input should be a valid integer, unable to parse string as an integer ('x')"
    )


def test_false_rejects_and_discard_drops():
    def odd(record):
        if record["fee"] < 0:
            raise redrive.Discard("not ours")
        return record["id"] != 3

    outcome = checked(odd)
    assert outcome.discarded == 1
    assert [(one.place, one.error) for one in outcome.rejected] == [(2, "validate returned False")]
    assert list(outcome.good.origin) == [0]


@pytest.mark.parametrize("error", [redrive.Transient("later"), ConnectionResetError(), AttributeError("a bug")])
def test_error_that_is_no_rows_fault_is_raised(error):
    def broken(record):
        raise error

    with pytest.raises(type(error)):
        checked(broken)


@pytest.mark.parametrize("answer", ["yes", 1, [1], iter(())])
def test_invalid_return_value_is_a_fault_of_the_pipeline(answer):
    with pytest.raises(PipelineError, match=f"validate gave back a {type(answer).__name__}; it must give back"):
        checked(lambda record: answer)


def test_hidden_async_function_is_detected_by_its_return_value():
    async def waits(record):
        return record

    with pytest.raises(PipelineError, match="is async"):
        checked(lambda record: waits(record))


def test_any_columns_fit():
    check_of(lambda record: None).fits(["a"])


def test_row_with_a_column_name_that_is_no_text_is_rejected():
    def rename(record):
        if record["id"] == 3:
            raise ValueError("no")
        return {1: "x", "id": record["id"]} if record["id"] == 2 else None

    outcome = checked(rename)
    assert outcome.good.columns == ("id", "fee")
    assert list(outcome.good.origin) == [0]
    assert [(one.place, one.error) for one in outcome.rejected] == [
        (1, "column names must be text, not 1"),
        (2, "ValueError: no"),
    ]
    nested = checked(lambda record: {("a", "b"): 1})
    assert [one.error for one in nested.rejected] == ["column names must be text, not tuple"] * 3
