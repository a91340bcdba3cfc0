"""Serializers of pydantic models: the serialized value is written."""

import sqlite3
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

import pydantic
import pytest
from pydantic import BaseModel, Field, PlainSerializer, TypeAdapter, WrapSerializer

import redrive
from redrive.rows.batch import Received
from redrive.rows.validation.model_values import has_serializers
from redrive.rows.validation.validator import check_of

Masked = Annotated[str, PlainSerializer(lambda value: "***" + value[-4:])]


class ByDecorator(BaseModel):
    id: int
    ssn: str

    @pydantic.field_serializer("ssn")
    def mask(self, value):
        return "***" + value[-4:]


class ByAnnotation(BaseModel):
    id: int
    ssn: Masked


class ByOptional(BaseModel):
    id: int
    ssn: Masked | None = None


class ByWrapping(BaseModel):
    id: int
    ssn: Annotated[str, WrapSerializer(lambda value, handler: "***" + handler(value)[-4:])]


class ByAlias(BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True, validate_by_name=True)
    id: int
    ssn: Masked = Field(alias="social")


class ByModel(BaseModel):
    id: int
    ssn: str

    @pydantic.model_serializer
    def mask(self):
        return {"id": self.id, "ssn": "***" + self.ssn[-4:]}


class ByWrappedModel(ByAnnotation):
    @pydantic.model_serializer(mode="wrap")
    def mask(self, handler):
        return handler(self)


class Deferred(ByAnnotation):
    model_config = pydantic.ConfigDict(defer_build=True)


@dataclass
class ByDataclass:
    id: int
    ssn: Masked


class Open(ByAnnotation):
    model_config = pydantic.ConfigDict(extra="allow")


class Computed(BaseModel):
    id: int
    raw: str = Field(alias="ssn", exclude=True)

    @pydantic.computed_field
    @property
    def ssn(self) -> Masked:
        return self.raw


MODELS = [ByDecorator, ByAnnotation, ByOptional, ByWrapping, ByAlias, ByModel, ByWrappedModel, Deferred, ByDataclass]
MODELS += [Open, Computed, pydantic.RootModel[ByAnnotation], TypeAdapter(ByAnnotation)]


def written(model, *records):
    checked = check_of(model)(Received(list(records)))
    assert not checked.rejected
    return list(checked.good.records())


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_serialized_value_is_written(model):
    assert written(model, {"id": 1, "ssn": "123-45-6789"}) == [{"id": 1, "ssn": "***6789"}]


def test_nested_serializers_are_honoured():
    class Order(BaseModel):
        id: int
        of: dict[str, list[ByDataclass]]

    record = {"id": 1, "of": {"a": [{"id": 2, "ssn": "123-45-6789"}]}}
    assert written(Order, record) == [{"id": 1, "of": {"a": [{"id": 2, "ssn": "***6789"}]}}]


def test_recursive_model_with_serializer_is_dumped():
    class Node(BaseModel):
        name: Masked
        below: "list[Node]" = []

    (row,) = written(Node, {"name": "abcdefgh", "below": [{"name": "ijklmnop"}]})
    assert row == {"name": "***efgh", "below": [{"name": "***mnop", "below": []}]}


def test_serializer_for_json_only_is_not_used():
    class Row(BaseModel):
        fee: Annotated[Decimal, PlainSerializer(str, when_used="json")]

    assert written(Row, {"fee": "1.50"}) == [{"fee": Decimal("1.50")}]


def test_secret_beside_serializer_stays_plain():
    class Row(ByDecorator):
        token: pydantic.SecretStr
        url: pydantic.AnyUrl

    (row,) = written(Row, {"id": 1, "ssn": "123-45-6789", "token": "t", "url": "https://a.example/"})
    assert row == {"id": 1, "ssn": "***6789", "token": "t", "url": "https://a.example/"}


def test_plain_pydantic_types_use_the_fast_path():
    class Row(BaseModel):
        token: pydantic.SecretStr
        url: pydantic.AnyUrl
        of: dict[str, pydantic.UUID4]

    assert not has_serializers(Row.__pydantic_core_schema__)


def test_model_serializer_that_returns_no_record_is_an_error():
    class Row(BaseModel):
        id: int

        @pydantic.model_serializer
        def text(self):
            return str(self.id)

    with pytest.raises(redrive.PipelineError, match="validate makes a str of a row"):
        written(Row, {"id": 1})


@pytest.mark.parametrize(("error", "rejects"), [(ValueError("no"), True), (AttributeError("bug"), False)])
def test_error_of_a_serializer_is_judged_like_its_own(error, rejects):
    class Row(BaseModel):
        id: int

        @pydantic.field_serializer("id")
        def fail(self, value):
            raise error

    check = check_of(Row)
    if rejects:
        assert [refused.place for refused in check(Received([{"id": 1}])).rejected] == [0]
        return
    with pytest.raises(AttributeError, match="bug"):
        check(Received([{"id": 1}]))


def test_serialized_key_is_the_key_of_the_row():
    check = check_of(ByDecorator)
    assert check.key_of({"id": "1", "ssn": "123-45-6789"}, ["id", "ssn"]) == (1, "***6789")
    assert not check.keeps(["ssn"])
    assert check_of(ByModel).key_of({"id": 1, "ssn": "123-45-6789"}, ["id"]) is None


def test_pipeline_writes_masked_values(tmp_path):
    url = f"sqlite:///{tmp_path / 'a.db'}"
    sink = redrive.rows.table(url, "t", key="id", create=True)
    source = redrive.rows.records([{"id": 1, "ssn": "123-45-6789"}])
    store = str(tmp_path / "store.db")
    assert redrive.Pipeline("masked", source=source, validate=ByDecorator, sink=sink, store=store).run().written == 1
    with sqlite3.connect(tmp_path / "a.db") as database:
        assert database.execute("SELECT * FROM t").fetchall() == [(1, "***6789")]
