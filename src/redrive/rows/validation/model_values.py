"""The values and records that a sink gets of a validated pydantic model, dataclass or TypedDict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from redrive._internal.optional import require_extra
from redrive.errors import PipelineError
from redrive.rows.batch import Record
from redrive.rows.validation.validator import joined

with require_extra("rows"):
    import pydantic
    from pydantic import AnyUrl, BaseModel, RootModel, TypeAdapter
    from pydantic.fields import FieldInfo
    from pydantic.types import EncodedBytes, EncodedStr
    from pydantic_core import PydanticSerializationError

_WRITABLE = frozenset({str, int, float, bool, bytes, Decimal, datetime, date, time, timedelta, UUID, NoneType})
_LONGEST = 38  # digits of a DECIMAL column


def value_getter(model: type[BaseModel]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes a model's values: as fast as its fields allow."""
    names = tuple(written_fields(model))
    if not model.model_computed_fields and all(
        _is_writable(info.annotation) for info in written_fields(model).values()
    ):
        fields, values = attrgetter("__dict__"), itemgetter(*names) if names else lambda _: ()
        if len(names) == 1:
            return lambda entry: (values(fields(entry)),)
        return lambda item: values(fields(item))
    every = (*names, *model.model_computed_fields)
    return lambda row: tuple(writable(getattr(row, name)) for name in every)


def written_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields that a sink is to have."""
    hidden = _excluded(model.model_fields)
    return {name: info for name, info in model.model_fields.items() if name not in hidden}


def digits_of(info: FieldInfo) -> tuple[int, int] | None:
    """Return the maximum digits and decimal places of a Decimal, if the field has both."""
    rules = [*info.metadata]
    for part in get_args(info.annotation):  # Optional[Annotated[Decimal, Field(…)]]
        rules += [rule for field in getattr(part, "__metadata__", ()) for rule in getattr(field, "metadata", (field,))]
    result = {name: value for rule in rules for name, value in getattr(rule, "__dict__", {}).items()}
    digits, places = result.get("max_digits"), result.get("decimal_places")
    if not isinstance(digits, int) or not isinstance(places, int) or not 0 <= places <= digits <= _LONGEST:
        return None
    return digits, places


def _excluded(fields: Mapping[str, FieldInfo]) -> set[str]:
    return {name for name, info in fields.items() if info.exclude}


def _is_writable(annotation: Any) -> bool:
    """Return whether values of a type go to a sink as they are."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return all(map(_is_writable, get_args(annotation)))
    if origin is Annotated:
        return _is_writable(get_args(annotation)[0])
    if origin is Literal:
        return all(type(value) in _WRITABLE for value in get_args(annotation))
    return annotation in _WRITABLE


def writable(value: Any) -> Any:
    """Return the value for a sink: a model or dataclass as a dict, an enumeration, URL or secret as its value."""
    if type(value) in _WRITABLE:
        return value
    if isinstance(value, BaseModel):
        return writable(value.model_dump())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, pydantic.Secret | pydantic.SecretStr | pydantic.SecretBytes):
        return writable(value.get_secret_value())
    if isinstance(value, AnyUrl):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hidden = _excluded(getattr(value, "__pydantic_fields__", {}))
        names = [field.name for field in dataclasses.fields(value) if field.name not in hidden]
        return {name: writable(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: writable(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [writable(item) for item in value]
    return value


def record_of_model(valid: Any) -> Record:
    """Return what came out of the validation, where its columns are not known beforehand."""
    if isinstance(valid, RootModel):
        return record_of_model(valid.root)
    if isinstance(valid, BaseModel):
        names = (*written_fields(type(valid)), *type(valid).model_computed_fields, *(valid.model_extra or ()))
        return {name: writable(getattr(valid, name)) for name in names}
    record = writable(valid)
    if not isinstance(record, dict):
        raise PipelineError(f"validate makes a {type(valid).__name__} of a row, and a sink needs names and values")
    return record


def dump_getter(dump: Callable[[Any], Any], columns: tuple[str, ...] | None) -> Callable[[Any], Any]:
    """Return the function for the values of a model with serializers, or for its record if columns are unknown."""

    def record_of(valid: Any) -> Record:
        record = writable(dump(valid))
        if not isinstance(record, dict):
            raise PipelineError(f"validate makes a {type(record).__name__} of a row, and a sink needs names and values")
        return record

    if columns is None:
        return record_of
    known = frozenset(columns)

    def values_of(valid: Any) -> tuple[Any, ...]:
        result = record_of(valid)
        if not result.keys() <= known:
            raise PipelineError(
                f"the serializer of the model adds {joined(sorted(result.keys() - known))}: no such field"
            )
        return tuple(result.get(name) for name in columns)

    return values_of


_CONDITION = "serialization_exclude_if"


def has_serializers(schema: Any) -> bool:
    """Return whether `model_dump()` gives other values than the attributes, anywhere in a core schema.

    Pydantic has serializers of its own for secrets, URLs, paths and others. Those do not count: in Python mode they
    keep the value, which `writable` handles. Those of base64 types encode, and count.
    """
    left, seen = [schema], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            if node.get(_CONDITION) is not None or _is_serializer(node.get("serialization")):
                return True
            left += [value for name, value in node.items() if name not in ("metadata", "default")]
        elif isinstance(node, list | tuple):
            left += node
    return False


def dump_with(adapter: TypeAdapter[Any]) -> Callable[[Any], Any]:
    """Return the function that dumps a valid value under the names of its fields, as `model_dump()` does."""
    to_python = adapter.serializer.to_python

    def dump(valid: Any) -> Any:
        try:
            return to_python(valid, by_alias=False, warnings=False)
        except PydanticSerializationError as error:
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from None  # pydantic wraps what a serializer raises, also bugs
            raise

    return dump


def _is_serializer(serialization: Any) -> bool:
    if not isinstance(serialization, Mapping) or not str(serialization.get("type")).startswith("function-"):
        return False
    if serialization.get("when_used") in ("json", "json-unless-none"):
        return False
    function = serialization.get("function")
    if isinstance(getattr(function, "__self__", None), EncodedBytes | EncodedStr):
        return True
    return str(getattr(function, "__module__", "")).partition(".")[0] != "pydantic"
