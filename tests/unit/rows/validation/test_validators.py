"""The validator chosen for each type of `validate`, and what all validators share."""

import functools
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass

import dataframely as dy
import polars as pl
import pydantic
import pytest

import redrive
from redrive.errors import PipelineError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Received
from redrive.rows.validation.model import ModelValidator
from redrive.rows.validation.schema import SchemaValidator
from redrive.rows.validation.validator import FunctionValidator, Validator, check_of, copied, fault, shown


class Delivery(pydantic.BaseModel):
    delivery_id: str
    fee: float


class DeliverySchema(dy.Schema):
    delivery_id = dy.String()
    fee = dy.Float64()


@dataclass
class Plain:
    delivery_id: str
    fee: float


def convert(record):
    record["fee"] = float(record["fee"])


EVERY = [Delivery, DeliverySchema, Plain, convert]
ROWS = [{"delivery_id": "D-1", "fee": "1.5"}, {"delivery_id": "D-2", "fee": "N/A"}, {"delivery_id": "D-3", "fee": "2"}]


@pytest.mark.parametrize("validate", EVERY, ids=lambda one: one.__name__)
@pytest.mark.parametrize("received", [Received(ROWS), Received(pl.DataFrame(ROWS))], ids=["records", "frame"])
def test_check_returns_bad_rows_by_position_and_good_by_origin(validate, received):
    checked = check_of(validate)(received)
    assert checked.good.columns == ("delivery_id", "fee")
    assert list(checked.good.tuples) == [("D-1", 1.5), ("D-3", 2.0)]
    assert list(checked.good.origin) == [0, 2]
    ((place, error, error_type),) = [(one.place, one.error, one.error_type) for one in checked.rejected]
    assert (place, error_type) == (1, ErrorType.VALIDATION)
    assert "N/A" in error
    assert checked.discarded == 0
    assert received.record(1) == ROWS[1]


@pytest.mark.parametrize("validate", [None, *EVERY], ids=lambda one: getattr(one, "__name__", "None"))
def test_every_check_accepts_an_empty_batch(validate):
    check = check_of(validate)
    for received in Received([]), Received(pl.DataFrame(schema={"delivery_id": pl.String, "fee": pl.String})):
        checked = check(received)
        assert (len(checked.good), checked.rejected, checked.discarded) == (0, [], 0)


def test_rows_pass_unchanged_without_a_check():
    frame = pl.DataFrame(ROWS)
    check: Validator = check_of(None)
    check.fits(["whatever"])
    assert check(Received(frame)).good.as_frame is frame
    records = check(Received([{"a": 1}, {"b": 2}])).good
    assert (records.columns, list(records.tuples), list(records.origin)) == (("a", "b"), [(1, None), (None, 2)], [0, 1])


@pytest.mark.parametrize(
    ("validate", "check"),
    [
        (Delivery, ModelValidator),
        (Plain, ModelValidator),
        (pydantic.TypeAdapter(Delivery | Plain), ModelValidator),
        (DeliverySchema, SchemaValidator),
        (convert, FunctionValidator),
        (functools.partial(convert), FunctionValidator),
    ],
)
def test_check_is_chosen_by_the_type_of_validate(validate, check):
    assert type(check_of(validate)) is check


class OfAnotherKind:
    pass


async def waits(record):
    return record


class Waits:
    async def __call__(self, record):
        return record


@pytest.mark.parametrize(
    ("validate", "said"),
    [
        (7, "not 7"),
        ("Delivery", "not 'Delivery'"),
        ({}, "not a dict"),
        (OfAnotherKind, "OfAnotherKind is a class of another kind"),
        (dict, "dict is a class of another kind"),
        (Delivery(delivery_id="D-1", fee=1), "not a Delivery"),
        (waits, "waits is async"),
        (functools.partial(waits), "is async"),
        (Waits(), "Waits is async"),
    ],
)
def test_invalid_check_is_rejected_in_a_sentence(validate, said):
    with pytest.raises(TypeError, match=r"^validate ") as refused:
        check_of(validate)
    assert said in str(refused.value)


@pytest.mark.process
def test_function_check_imports_no_library_of_other_checks():
    program = """
import sys
from redrive.rows.batch import Received
from redrive.rows.validation.validator import check_of
from redrive.rows.transform import transform_of
checked = check_of(lambda record: None)(Received([{"a": 1}]))
assert len(transform_of(dict.copy)(checked.good).good) == 1
print(sorted({"pydantic", "polars", "dataframely", "numpy", "duckdb", "pyarrow"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("fee is negative"), "ValueError: fee is negative"),
        (KeyError("fee"), "KeyError: 'fee'"),
        (redrive.Reject("too old"), "Reject: too old"),
        (redrive.Discard("a test row"), None),
        (ExceptionGroup("all", [ValueError("a"), TypeError("b")]), "ValueError: a; TypeError: b"),
        (ExceptionGroup("all", [ExceptionGroup("in", [ValueError("a")]), redrive.Discard()]), "ValueError: a"),
        (ExceptionGroup("all", [redrive.Discard(), redrive.Discard()]), None),
    ],
    ids=repr,
)
def test_fault_of_a_row_is_described_in_a_sentence(error, said):
    assert fault(error) == said


@pytest.mark.parametrize(
    "error",
    [
        redrive.Transient("later"),
        AttributeError("a bug"),
        MemoryError(),
        ConnectionResetError(),
        PipelineError("set up wrongly"),
        CancelledError(),
        ExceptionGroup("mixed", [ValueError("a"), redrive.Permanent("b")]),
    ],
    ids=repr,
)
def test_other_error_is_raised_unchanged(error):
    with pytest.raises(type(error)) as raised:
        fault(error)
    assert raised.value is error


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("N/A", "'N/A'"),
        ("x" * 1_000, "'" + "x" * 59 + "…'"),
        (-5.0, "-5.0"),
        (None, "None"),
        (b"\xff", r"b'\xff'"),
        ({"a": 1}, None),
        ([1], None),
        (10**5_000, None),
        (10**100, "1" + "0" * 58 + "…"),
    ],
    ids=lambda one: str(one)[:10] if not isinstance(one, int) or one < 10**100 else "large",
)
def test_value_is_shown_short_or_not_at_all(value, text):
    assert shown(value) == text


def test_copy_shares_no_container():
    record = {"a": [1, {"b": [2]}], "c": {"d": 3}}
    copy = copied(record)
    assert copy == record
    copy["a"][1]["b"].append(4)
    copy["c"]["d"] = 5
    assert record == {"a": [1, {"b": [2]}], "c": {"d": 3}}


def test_nested_change_by_a_check_leaves_the_received_record():
    def spoil(record):
        assert isinstance(record, Mapping)
        record["tags"].clear()

    records = [{"tags": ["a"]}]
    check_of(spoil)(Received(records))
    assert records == [{"tags": ["a"]}]


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def within_itself():
    value = {}
    value["again"] = [value]
    return value


@pytest.mark.parametrize(
    "value", [deep(700), within_itself(), "\ud800", 10**5_000], ids=["deep", "cyclic", "half", "huge"]
)
@pytest.mark.parametrize("validate", EVERY, ids=lambda one: one.__name__)
def test_every_check_rejects_only_the_unrepresentable_row(validate, value):
    records = [ROWS[0], {"delivery_id": "D-2", "fee": value}, ROWS[2]]
    checked = check_of(validate)(Received(records))
    assert list(checked.good.origin) == [0, 2]
    assert [one.place for one in checked.rejected] == [1]
    assert records[1]["fee"] is value


def test_record_is_copied_to_the_same_depth_everywhere():
    assert copied({"a": deep(190)}) == {"a": deep(190)}
    with pytest.raises(RecursionError):
        copied({"a": deep(210)})
