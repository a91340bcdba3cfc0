"""Rows against pydantic: accepted rows, error messages, written columns."""

import enum
import sys
import typing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Literal

import polars as pl
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypedDict

import redrive
from redrive.dlq.fingerprint import template
from redrive.errors import PipelineError
from redrive.rows.batch import Received
from redrive.rows.validation.validator import check_of


class Delivery(BaseModel):
    delivery_id: str
    city: str = "unknown"
    at: date
    distance_km: float
    fee: Decimal

    @pydantic.field_validator("fee")
    @classmethod
    def is_positive(cls, fee):
        if fee < 0:
            raise ValueError("a fee is never negative")
        return fee


GOOD = {"delivery_id": "D-1", "city": "Berlin", "at": "2026-07-01", "distance_km": "1.5", "fee": "2.50"}


def checked(model, *records):
    return check_of(model)(Received(list(records)))


def said(model, record):
    (refused,) = checked(model, record).rejected
    return refused.error


def test_errors_of_a_row_are_one_line_in_field_order():
    record = {"delivery_id": "D-1", "at": "2026-13-01", "fee": "N/A"}
    assert said(Delivery, record) == (
        "at: Input should be a valid date or datetime, month value is outside expected range of 1-12 ('2026-13-01'); "
        "distance_km: Field required; fee: Input should be a valid decimal ('N/A')"
    )


def test_validator_message_is_reported_without_a_prefix():
    assert said(Delivery, {**GOOD, "fee": "-1"}) == "fee: a fee is never negative ('-1')"


def test_error_of_the_whole_model_has_no_field_and_no_value():
    class Trip(BaseModel):
        start: int
        end: int

        @pydantic.model_validator(mode="after")
        def forwards(self):
            assert self.start < self.end, "it ends before it starts"
            return self

    assert said(Trip, {"start": 2, "end": 1}).startswith("it ends before it starts")


def test_long_value_is_cut_and_a_nested_one_is_left_out():
    class Nested(BaseModel):
        name: Annotated[str, Field(max_length=3)]
        inner: Delivery

    assert said(Nested, {"name": "x" * 5_000, "inner": 7}) == (
        f"name: String should have at most 3 characters ('{'x' * 59}…'); "
        "inner: Input should be a valid dictionary or instance of Delivery (7)"
    )
    assert "inner.fee: Field required" in said(Nested, {"name": "abc", "inner": {"fees": 1}})


def test_model_that_hides_its_input_has_no_values_in_errors():
    class Hidden(BaseModel):
        model_config = ConfigDict(hide_input_in_errors=True)
        iban: Annotated[str, Field(max_length=3)]

    assert said(Hidden, {"iban": "DE02120300000000202051"}) == "iban: String should have at most 3 characters"


@pytest.mark.parametrize("name", ["fee", "name", "key", "type"])
def test_same_problem_of_different_values_is_one_cause(name):
    model = pydantic.create_model("Model", **{name: (Decimal, ...)})
    causes = {template(said(model, {name: value})) for value in ("N/A", "-", "x" * 99, "O'Brien", "")}
    assert len(causes) == 1


def test_columns_are_the_fields_and_then_computed_ones():
    class Priced(BaseModel):
        net: Annotated[Decimal, Field(alias="Net Price")]
        tax: Decimal = Decimal(0)

        @pydantic.computed_field
        @property
        def gross(self) -> Decimal:
            return self.net + self.tax

    good = checked(Priced, {"Net Price": "1.50", "tax": "0.5", "more": 1}).good
    assert good.columns == ("net", "tax", "gross")
    assert list(good.tuples) == [(Decimal("1.50"), Decimal("0.5"), Decimal("2.00"))]


def test_single_or_no_field_makes_tuples():
    one = pydantic.create_model("One", a=(int, ...))
    none = pydantic.create_model("Nothing")
    assert list(checked(one, {"a": "1"}).good.tuples) == [(1,)]
    assert list(checked(none, {"a": "1"}).good.tuples) == [()]


def test_private_attributes_of_a_model_are_not_written():
    class Lazy(BaseModel):
        b: int
        a: int

        @cached_property
        def both(self) -> int:
            return self.a + self.b

        @pydantic.model_validator(mode="after")
        def touch(self):
            assert self.both
            return self

    good = checked(Lazy, {"a": 1, "b": 2}).good
    assert (good.columns, list(good.tuples)) == (("b", "a"), [(2, 1)])


class Colour(enum.Enum):
    RED = "red"


class Address(BaseModel):
    city: str
    colour: Colour = Colour.RED


@dataclass
class Point:
    x: int


def test_nested_objects_are_written_as_plain_data():
    class Rich(BaseModel):
        address: Address
        more: list[Address] = []
        colour: Colour | None = None
        site: pydantic.HttpUrl | None = None
        secret: pydantic.SecretStr | None = None
        point: Point | None = None
        kind: Literal["a"] = "a"
        tags: set[str] = set()

    record = {
        "address": {"city": "Berlin"},
        "more": [{"city": "Paris"}],
        "colour": "red",
        "site": "https://example.org/a",
        "secret": "abc",
        "point": {"x": "1"},
        "tags": ["t"],
    }
    (row,) = checked(Rich, record).good.records()
    assert row == {
        "address": {"city": "Berlin", "colour": "red"},
        "more": [{"city": "Paris", "colour": "red"}],
        "colour": "red",
        "site": "https://example.org/a",
        "secret": "abc",
        "point": {"x": 1},
        "kind": "a",
        "tags": ["t"],
    }
    assert type(row["site"]) is str


def test_extra_columns_allowed_by_a_model_are_written():
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    good = checked(Open, {"a": "1", "b": "x"}, {"a": "2", "c": "y"}).good
    assert (good.columns, list(good.tuples)) == (("a", "b", "c"), [(1, "x", None), (2, None, "y")])


class Typed(TypedDict):
    a: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: int


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@pytest.mark.parametrize("model", [RootModel[Pet], pydantic.TypeAdapter(Pet)], ids=["root model", "adapter"])
def test_rows_of_several_kinds_have_the_columns_of_all(model):
    outcome = checked(
        model, {"kind": "cat", "lives": "9"}, {"kind": "dog", "tricks": "x"}, {"kind": "dog", "tricks": 1}
    )
    assert outcome.good.columns == ("kind", "lives", "tricks")
    assert list(outcome.good.tuples) == [("cat", 9, None), ("dog", None, 1)]
    assert outcome.rejected[0].error.startswith("dog.tricks: Input should be a valid integer")


def test_dataclasses_and_typed_dicts_are_validated():
    assert list(checked(Point, {"x": "1"}).good.records()) == [{"x": 1}]
    assert list(checked(Typed, {"a": "1"}).good.records()) == [{"a": 1}]


def test_result_that_is_no_row_is_a_fault_of_the_pipeline():
    with pytest.raises(PipelineError, match="makes a int of a row"):
        checked(pydantic.TypeAdapter(Annotated[Any, pydantic.BeforeValidator(len)]), {"a": 1})


def test_models_own_validators_get_a_copy_of_the_record():
    class Renaming(BaseModel):
        fee: float

        @pydantic.model_validator(mode="before")
        @classmethod
        def rename(cls, record):
            record["fee"] = record.pop("Fee")
            return record

    records = [{"Fee": "1"}, {"fee": "2"}]
    outcome = checked(Renaming, *records)
    assert records == [{"Fee": "1"}, {"fee": "2"}]
    assert list(outcome.good.tuples) == [(1.0,)]
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "KeyError: 'Fee'")]


@pytest.mark.parametrize("error", [redrive.Transient("later"), ConnectionResetError(), AttributeError("bug")])
def test_error_that_is_no_rows_fault_is_raised_unchanged(error):
    class Calling(BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def call(cls, a):
            raise error

    with pytest.raises(type(error)) as raised:
        checked(Calling, {"a": 1})
    assert raised.value is error


def test_validator_may_reject_or_discard_a_row():
    class Sorting(BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def sort(cls, a):
            raise {1: redrive.Discard("not ours"), 2: redrive.Reject("too old")}[a]

    outcome = checked(Sorting, {"a": 1}, {"a": 2}, {"a": 3})
    assert outcome.discarded == 1
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "Reject: too old"), (2, "KeyError: 3")]


def test_strict_models_stay_strict():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        a: int

    assert said(Strict, {"a": "1"}) == "a: Input should be a valid integer ('1')"


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            ["delivery_id", "at", "distance_km", "fees"],
            "the model Delivery needs 'fee', which is not among the columns delivery_id, at, distance_km, fees; "
            "did you mean 'fees'?",
        ),
        (
            ["Delivery_ID", "at", "km"],
            "the model Delivery needs 'delivery_id', 'distance_km' and 'fee', which are not among the columns "
            "Delivery_ID, at, km; did you mean 'Delivery_ID'?",
        ),
        (
            ["a", "b"],
            "the model Delivery fits no column of a, b; its fields are delivery_id, city, at, distance_km, fee",
        ),
    ],
)
def test_impossible_columns_are_rejected_before_any_row(columns, sentence):
    with pytest.raises(PipelineError) as refused:
        check_of(Delivery).fits(columns)
    assert str(refused.value) == sentence


def test_long_list_of_columns_is_cut():
    with pytest.raises(PipelineError, match=r"c11 and 488 more; its fields are") as refused:
        check_of(Delivery).fits([f"c{number}" for number in range(500)])
    assert len(str(refused.value)) < 300


def test_forbidden_column_is_rejected_before_any_row():
    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")
        a: int

    check_of(Closed).fits(["a"])
    with pytest.raises(PipelineError, match="forbids columns that it does not name, and the source has 'b' and 'c'"):
        check_of(Closed).fits(["a", "b", "c"])


class Aliased(BaseModel):
    plain: int
    alias: Annotated[int, Field(alias="The Alias")]
    choice: Annotated[int, Field(validation_alias=AliasChoices("one", AliasPath("deep", "down")))]
    path: Annotated[int, Field(validation_alias=AliasPath("list", 0))]


class ByName(Aliased):
    model_config = ConfigDict(populate_by_name=True)


class OnlyByName(Aliased):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)


@pytest.mark.parametrize(
    ("model", "columns"),
    [
        (Aliased, ["plain", "The Alias", "one", "list"]),
        (Aliased, ["plain", "The Alias", "deep", "list"]),
        (ByName, ["plain", "alias", "choice", "path"]),
        (ByName, ["plain", "The Alias", "choice", "list"]),
        (OnlyByName, ["plain", "alias", "choice", "path"]),
        (Delivery, ["delivery_id", "at", "distance_km", "fee", "one more"]),
        (Delivery, []),
    ],
)
def test_fields_are_found_by_every_name_pydantic_accepts(model, columns):
    check_of(model).fits(columns)


@pytest.mark.parametrize(
    ("model", "columns"),
    [(Aliased, ["plain", "alias", "one", "list"]), (OnlyByName, ["plain", "The Alias", "one", "list"])],
)
def test_fields_are_not_found_by_names_pydantic_rejects(model, columns):
    with pytest.raises(PipelineError, match="needs"):
        check_of(model).fits(columns)


def test_model_that_rewrites_its_input_may_fit_any_columns():
    class Renaming(BaseModel):
        fee: float

        @pydantic.model_validator(mode="before")
        @classmethod
        def rename(cls, record):
            return {"fee": record["Gebühr"]}

    check_of(Renaming).fits(["Gebühr"])


VALUES = st.one_of(
    st.none(),
    st.sampled_from(["N/A", "", " 7 ", "1.5", "-3", "2026-07-01", "2026-02-30", "x", "1e3", "nan"]),
    st.integers(-5, 5).map(str),
)
RECORDS = st.lists(
    st.fixed_dictionaries(dict.fromkeys(("delivery_id", "at", "distance_km", "fee"), VALUES)), max_size=30
)


@given(RECORDS, st.booleans())
def test_rows_get_the_verdict_of_pydantic_for_each(records, as_frame):
    rows = pl.DataFrame(records, schema=dict.fromkeys(["delivery_id", "at", "distance_km", "fee"], pl.String))
    outcome = check_of(Delivery)(Received(rows if as_frame else records))
    good, bad = {}, set()
    for place, record in enumerate(records):
        try:
            good[place] = tuple(Delivery.model_validate(record).model_dump().values())
        except pydantic.ValidationError:
            bad.add(place)
    assert dict(zip(outcome.good.origin, map(repr, outcome.good.tuples), strict=True)) == {
        place: repr(row) for place, row in good.items()
    }
    assert {one.place for one in outcome.rejected} == bad


def test_values_of_a_row_have_the_models_types():
    (row,) = checked(Delivery, GOOD).good.tuples
    assert row == ("D-1", "Berlin", date(2026, 7, 1), 1.5, Decimal("2.50"))
    assert not isinstance(row[2], datetime)


class Hiding(BaseModel):
    delivery_id: str
    token: str = Field(exclude=True, default="none")


class HidingAndOpen(Hiding):
    model_config = ConfigDict(extra="allow")


@pydantic.dataclasses.dataclass
class HidingData:
    delivery_id: str
    token: str = Field(exclude=True, default="none")


class HidingAll(BaseModel):
    token: str = Field(exclude=True)


@pytest.mark.parametrize("model", [Hiding, HidingAndOpen, HidingData, pydantic.TypeAdapter(Hiding | None)], ids=repr)
def test_excluded_field_is_checked_and_not_written(model):
    outcome = checked(model, {"delivery_id": "D-1", "token": "secret"}, {"delivery_id": "D-2", "token": 5})
    assert outcome.good.records() == [{"delivery_id": "D-1"}]
    assert [one.error for one in outcome.rejected] == ["token: Input should be a valid string (***)"]


def test_model_may_exclude_all_of_its_fields():
    assert list(checked(HidingAll, {"token": "secret"}).good.tuples) == [()]


def test_row_with_names_that_are_no_text_is_rejected():
    outcome = checked(pydantic.TypeAdapter(dict[int | str, int]), {"a": 1}, {5: 2})
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "column names must be text, not 5")]


class OldTyped(typing.TypedDict):
    """A TypedDict of the standard library, which pydantic does not take before Python 3.12."""

    a: int
    b: typing.NotRequired[Annotated[str, Field(min_length=2)]]


class TestTypingTypedDict:
    """It validates like one of typing_extensions."""

    def test_records_are_validated(self):
        checked = check_of(OldTyped)(Received([{"a": "1", "b": "xy"}, {"a": 2}, {"b": "xy"}, {"a": 3, "b": "x"}]))
        assert checked.good.records() == [{"a": 1, "b": "xy"}, {"a": 2, "b": None}]
        assert [refused.place for refused in checked.rejected] == [2, 3]

    def test_unusable_typed_dict_is_rejected_in_a_sentence(self):
        if sys.version_info >= (3, 12):
            pytest.skip("pydantic takes every TypedDict")

        class Nested(typing.TypedDict):
            inner: OldTyped

        with pytest.raises(TypeError, match=r"validate cannot use Nested: .*typing_extensions"):
            check_of(Nested)
