"""Rows against a pydantic model, or whatever else pydantic validates: a dataclass, a TypedDict, a TypeAdapter.

One pass, row by row, in which each model dies as soon as its values are taken. Measured on batches of 20,000 this is
ahead of validating a whole list at once, clean or not: there, records and models are all alive together, and neither
the caches nor the garbage collector like it. It also shows which row raised which error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints

from redrive._internal.garbage import without_collection
from redrive._internal.masking import MASK, is_secret_name
from redrive._internal.optional import require_extra
from redrive.classify.signals import is_interrupt
from redrive.errors import PipelineError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Received, Record
from redrive.rows.validation.model_values import (
    digits_of,
    dump_getter,
    dump_with,
    has_serializers,
    record_of_model,
    value_getter,
    writable,
    written_fields,
)
from redrive.rows.validation.validator import RowSorter, ValidatedRows, joined, listed, own_key, owned, shown, unmet

with require_extra("rows"):
    import pydantic
    from pydantic import AliasChoices, AliasPath, BaseModel, RootModel, TypeAdapter, ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

_SHORTEST_SECRET = 3  # characters that a message is searched for
_PREFIXES = ("Value error, ", "Assertion failed, ")


class ModelValidator:
    """What pydantic makes of each record; the columns are the fields by their names, then the computed ones.

    A field that is excluded when the model is dumped is not written either. A model with serializers is dumped, which
    takes longer; of others the attributes are taken.
    """

    def __init__(self, model: Any) -> None:
        adapter: TypeAdapter[Any] = model if isinstance(model, TypeAdapter) else _adapter_of(model)
        self._validate = adapter.validator.validate_python
        self._model: type[BaseModel] | None = None
        self._columns: tuple[str, ...] | None = None
        self._digits: dict[str, tuple[int, int]] = {}
        self._row: Callable[[Any], Any] = record_of_model
        self._hides_input = False
        self._known: set[str] | None = None
        if isinstance(model, type) and issubclass(model, BaseModel) and not issubclass(model, RootModel):
            self._model = model
            self._hides_input = bool(model.model_config.get("hide_input_in_errors"))
            if model.model_config.get("extra") != "allow":
                self._columns = (*written_fields(model), *model.model_computed_fields)
                self._digits = {
                    name: result for name, info in written_fields(model).items() if (result := digits_of(info))
                }
                self._row = value_getter(model)
        self._dump = dump_with(adapter) if has_serializers(adapter.core_schema) else None
        if self._dump is not None:
            if self._model is not None and self._model.__pydantic_decorators__.model_serializers:
                self._columns, self._digits = None, {}  # the serializer alone knows
            self._row = dump_getter(self._dump, self._columns)

    def fits(self, columns: Sequence[str]) -> None:
        """Refuse columns among which a required field is missing, or none is known, or one is forbidden."""
        if self._model is None or not columns or _rewrites_its_input(self._model):
            return
        name = f"the model {self._model.__name__}"
        fields = {field: _accepted(self._model, field, info) for field, info in self._model.model_fields.items()}
        known = {accepted for names in fields.values() for accepted in names}
        extra = self._model.model_config.get("extra")
        if known and known.isdisjoint(columns) and extra != "allow":
            wanted = [names[0] for names in fields.values()]
            raise PipelineError(f"{name} fits no column of {listed(columns)}; its fields are {listed(wanted)}")
        missing = [
            names[0]
            for field, names in fields.items()
            if self._model.model_fields[field].is_required() and not set(names) & set(columns)
        ]
        if missing:
            raise unmet(name, missing, columns)
        if extra == "forbid" and (forbidden := [column for column in columns if column not in known]):
            raise PipelineError(
                f"{name} forbids columns that it does not name, and the source has {joined(forbidden)}: "
                "name them, or let the model ignore what is extra"
            )

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the columns that no field of the model accepts, where the model ignores such."""
        if self._columns is None or self._model is None or _rewrites_its_input(self._model):
            return ()
        if self._known is None:
            fields = self._model.model_fields.items()
            self._known = {name for field, info in fields for name in _accepted(self._model, field, info)}
        return tuple(name for name in columns if name not in self._known)

    def keeps(self, columns: Sequence[str]) -> bool:
        """Return whether no validator of the model can change these fields, and no alias reads them from elsewhere."""
        if self._model is None or self._dump is not None:
            return False
        decorators = self._model.__pydantic_decorators__
        if decorators.field_validators or decorators.validators or decorators.model_validators:
            return False
        fields = self._model.model_fields
        return all(
            name in fields and fields[name].alias is None and fields[name].validation_alias is None for name in columns
        ) and not any(hasattr(part, "func") for name in columns for part in fields[name].metadata)

    def key_of(self, record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
        """Return the record's own, each part as its field alone validates it; a part that does not pass as it is."""
        model = self._model
        if model is None or _rewrites_its_input(model):
            return own_key(record, key)
        if model.__pydantic_decorators__.model_serializers:
            return None  # the serializer needs the whole record
        values = tuple(_field_value(model, name, record, dumps=self._dump is not None) for name in key)
        return None if None in values else values

    def __call__(self, rows: Received) -> ValidatedRows:
        sieve = RowSorter(ErrorType.VALIDATION)
        with without_collection():
            self._sift(rows, sieve)
        if self._columns is None:
            good = sieve.outgoing()
        else:
            good = Outgoing(self._columns, sieve.origin, tuples=sieve.kept, digits=self._digits)
        return ValidatedRows(good, sieve.rejected, sieve.discarded)

    def _sift(self, rows: Received, sieve: RowSorter) -> None:
        validate, row = self._validate, self._row
        kept, origin = sieve.kept.append, sieve.origin.append
        for place, record in owned(rows, sieve):
            try:
                kept(row(validate(record)))
            except ValidationError as error:
                sieve.refuse(place, describe_error(error, with_input=not self._hides_input))
            except Exception as error:
                sieve.failed(place, error)
            else:
                origin(place)


def _adapter_of(model: Any) -> TypeAdapter[Any]:
    """Return the adapter of a class. Before Python 3.12, pydantic accepts the TypedDict of typing_extensions only."""
    if sys.version_info < (3, 12) and hasattr(model, "__required_keys__") and type(model).__module__ == "typing":
        model = _as_typeddict_of_extensions(model)
    try:
        return TypeAdapter(model)
    except pydantic.PydanticUserError as error:
        raise TypeError(f"validate cannot use {model.__name__}: {str(error).splitlines()[0]}") from error


def _as_typeddict_of_extensions(model: Any) -> Any:
    import typing_extensions

    hints = get_type_hints(model, include_extras=True)
    fields = {
        name: (Required if name in model.__required_keys__ else NotRequired)[_bare(hint)]
        for name, hint in hints.items()
    }
    make: Any = typing_extensions.TypedDict
    made = make(model.__name__, fields)
    if config := getattr(model, "__pydantic_config__", None):
        made.__pydantic_config__ = config
    return made


def _bare(hint: Any) -> Any:
    """Return a type without Required and NotRequired around it."""
    while get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    return hint


def describe_error(error: Any, *, with_input: bool = True) -> str:
    """Every error of a row in one line: `fee: Input should be a valid decimal ('N/A'); distance_km: Field required`."""
    problems = error.errors(include_url=False, include_context=False, include_input=with_input)
    return "; ".join(map(_problem, problems))


def _problem(problem: Mapping[str, Any]) -> str:
    message = problem["msg"]
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    place = ".".join(map(str, problem["loc"]))
    value = shown(problem["input"]) if "input" in problem else None
    if value is not None and any(map(is_secret_name, problem["loc"])):
        message, value = _without(problem["input"], message), MASK
    return (f"{place}: {message}" if place else message) + (f" ({value})" if value is not None else "")


def _without(secret: Any, text: str) -> str:
    """Return the message of a validator without the value; a very short value may be part of other words."""
    for form in (str(secret), repr(secret)):
        text = text.replace(form, MASK) if len(form) >= _SHORTEST_SECRET else text
    return text


def _rewrites_its_input(model: type[BaseModel]) -> bool:
    """Return whether a validator of the model sees the record first, and may rename or add what is missing."""
    validators = model.__pydantic_decorators__.model_validators.values()
    return any(validator.info.mode != "after" for validator in validators)


def _accepted(model: type[BaseModel], name: str, field: FieldInfo) -> list[str]:
    """Return the columns that a field may come from."""
    config, alias = model.model_config, field.validation_alias
    by_alias = alias is not None and config.get("validate_by_alias", True)
    by_name = not by_alias or config.get("validate_by_name") or config.get("populate_by_name")
    return [*(_first_steps(alias) if by_alias else ()), *([name] if by_name else ())]


def _field_value(model: type[BaseModel], name: str, record: Record, *, dumps: bool) -> Any:
    """Return the value of a field alone; the record's own value if it is invalid."""
    info = model.model_fields.get(name)
    if info is None:
        return record.get(name)
    raw = _field_input(model, name, info, record)
    if raw is None:
        return None
    try:
        made: Any = model.__pydantic_validator__.validate_assignment(model.model_construct(), name, raw)
        if dumps:
            return writable(made.model_dump(include={name}, by_alias=False, warnings=False).get(name))
        return writable(getattr(made, name))
    except Exception as error:  # a bad value, a frozen model, a validator that needs the other fields
        if is_interrupt(error):
            raise
        return raw


def _field_input(model: type[BaseModel], name: str, info: FieldInfo, record: Record) -> Any:
    alias = info.validation_alias
    for choice in alias.choices if isinstance(alias, AliasChoices) else [alias]:
        if isinstance(choice, AliasPath):
            result = choice.search_dict_for_path(record)
            if result is not PydanticUndefined:
                return result
        elif choice is not None and choice in record:
            return record[choice]
    return record.get(name) if name in _accepted(model, name, info) else None


def _first_steps(alias: str | AliasPath | AliasChoices | None) -> Iterator[str]:
    if isinstance(alias, AliasChoices):
        for choice in alias.choices:
            yield from _first_steps(choice)
    elif isinstance(alias, AliasPath):
        yield str(alias.path[0])
    elif alias is not None:
        yield alias
