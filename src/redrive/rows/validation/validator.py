"""Validators of rows: the protocol, the choice of one for `validate=`, and functions of a record as validators.

The docstrings are the contract; one test suite runs over every validator. Models and schemas are modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from inspect import iscoroutine, iscoroutinefunction
from typing import Any, Protocol
from uuid import UUID

from redrive._internal.masking import MARGIN, mask_start
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.classify.type_names import type_names
from redrive.dlq.insert.row_builder import error_text
from redrive.errors import PipelineError
from redrive.model.calls import Kind
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Received, Record, Refused

_SCALARS = (str, bytes, int, float, Decimal, date, time, timedelta, UUID, type(None))
_COPIED = (dict, list)  # a constant, since a union of types is built each time it is evaluated
_LONGEST_VALUE = 60
_MOST_COLUMNS = 12  # in a sentence
_DEEPEST = 200  # containers within each other: far from the end of Python's stack, in our functions and in the user's
_classifier = Classifier()


@dataclass(slots=True)
class ValidatedRows:
    """The outcome of validation: accepted rows, and rejected rows with their reasons."""

    good: Outgoing
    """Its origin is the place of each row in the `Received`."""
    rejected: list[Refused]
    """By their place in the `Received`."""
    discarded: int = 0
    """Rows that were dropped on purpose: no letter."""


class Validator(Protocol):
    """Validates rows, and returns the rows to write."""

    def fits(self, columns: Sequence[str]) -> None:
        """Raise `PipelineError` if a source of these columns can never pass: no row will be read."""

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return those of the source's columns that are not read, and so are not written."""

    def keeps(self, columns: Sequence[str]) -> bool:
        """Return whether these columns of an accepted row have the values of the record, except for their type."""

    def key_of(self, record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
        """Return the key that the row of a rejected record would have; None if that is not known."""

    def __call__(self, rows: Received) -> ValidatedRows:
        """Validate rows. Each is accepted, rejected or discarded; an error that is not of a row is raised."""


def check_of(validate: object) -> Validator:
    """Return the validator for the option `validate` of a pipeline."""
    if validate is None:
        return NoValidator()
    names = type_names(validate if isinstance(validate, type) else type(validate))
    if isinstance(validate, type):
        # Compared by name, so that a library that the program does not use is not imported.
        if "dataframely.Schema" in names:
            from redrive.rows.validation.schema import SchemaValidator

            return SchemaValidator(validate)
        modelled = "pydantic.BaseModel" in names and hasattr(validate, "model_fields")
        # The second is a TypedDict, whichever module it comes from.
        if not (modelled or hasattr(validate, "__required_keys__") or is_dataclass(validate)):
            raise TypeError(f"{_WANTED}; {validate.__name__} is a class of another kind")
    elif "pydantic.TypeAdapter" not in names:
        if not callable(validate) or "pydantic.BaseModel" in names:
            raise TypeError(f"{_WANTED}, not {shown(validate) or 'a ' + type(validate).__name__}")

        return FunctionValidator(validate)
    from redrive.rows.validation.model import ModelValidator

    return ModelValidator(validate)


_WANTED = "validate takes a pydantic model, a dataclass, a dataframely schema or a function of a record"


class NoValidator:
    """Accepts every row as it is; a frame stays a frame."""

    def fits(self, columns: Sequence[str]) -> None:
        """Any columns do."""

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """None is."""
        return ()

    def keeps(self, columns: Sequence[str]) -> bool:
        """Return all are."""
        return True

    def key_of(self, record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
        """Return the record's own."""
        return own_key(record, key)

    def __call__(self, rows: Received) -> ValidatedRows:
        places = range(len(rows))
        if rows.is_frame:
            return ValidatedRows(Outgoing.of_frame(rows.frame, places), [])
        return ValidatedRows(Outgoing.of_records(rows.records, places), [])


def own_key(record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the key as the fields of a record have it; None if a part of it is missing."""
    values = tuple(record.get(name) for name in key)
    return None if None in values else values


@dataclass(slots=True)
class RowSorter:
    """Rows that are validated one by one, sorted into accepted and rejected ones."""

    error_type: ErrorType
    kept: list[Any] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    rejected: list[Refused] = field(default_factory=list)
    discarded: int = 0

    def refuse(self, place: int, why: str) -> None:
        """Reject the row at a place of the `Received`."""
        self.rejected.append(Refused(place, why, self.error_type))

    def failed(self, place: int, error: Exception) -> None:
        """Reject or discard the row that raised an error; raise an error that is not the fault of a row."""
        why = fault(error)
        if why is None:
            self.discarded += 1
        else:
            self.refuse(place, why)

    def outgoing(self) -> Outgoing:
        """Return the records that were kept, as rows; one with a column that no text names is rejected."""
        rows = Outgoing.of_records(self.kept, self.origin)
        if all(isinstance(name, str) for name in rows.columns):
            return rows
        records, places = self.kept, self.origin
        self.kept, self.origin = [], []
        for place, record in zip(places, records, strict=True):
            odd = [name for name in record if not isinstance(name, str)]
            if odd:
                self.refuse(place, f"column names must be text, not {shown(odd[0]) or type(odd[0]).__name__}")
            else:
                self.kept.append(record)
                self.origin.append(place)
        self.rejected.sort(key=lambda refused: refused.place)
        return Outgoing.of_records(self.kept, self.origin)


def fault(error: Exception) -> str | None:
    """Return what is wrong with a row; None if it is discarded. Raise an error that is not the fault of a row."""
    if is_interrupt(error):
        raise error
    if "pydantic_core.ValidationError" in type_names(type(error)):
        from redrive.rows.validation.model import describe_error

        return describe_error(error)
    if isinstance(error, ExceptionGroup):
        return _faults(error)
    kind = _classifier.classify(error, scope="row").kind
    if kind is Kind.DISCARD:
        return None
    if kind is not Kind.ROW:
        raise error
    return error_text(error)


def _faults(group: ExceptionGroup[Exception]) -> str | None:
    """Return those of a group, if all of it is about the row."""
    try:
        reasons = [fault(error) for error in group.exceptions]
    except Exception as foreign:
        raise group from foreign
    return "; ".join(why for why in reasons if why is not None) or None


def owned(rows: Received, sieve: RowSorter) -> Iterator[tuple[int, Record]]:
    """Each row with its place, as a record of its own: what is done to it leaves the row as it was received."""
    if rows.is_frame:
        from redrive.rows.to_polars import values_of

        # Column by column, and each record made when its turn comes: 20,000 that live at once take twice the time.
        names = rows.frame.columns
        columns = map(values_of, rows.frame.iter_columns())
        for place, values in enumerate(zip(*columns, strict=True)):
            yield place, dict(zip(names, values, strict=True))
    else:
        yield from copies(enumerate(rows.records), sieve)


def copies(records: Iterable[tuple[int, Record]], sieve: RowSorter) -> Iterator[tuple[int, Record]]:
    """A copy of each record; one that is nested too deep to be copied is rejected."""
    for place, record in records:
        try:
            copy = copied(record)
        except RecursionError:
            sieve.refuse(place, f"a value is nested more than {_DEEPEST} levels deep, or within itself")
        else:
            yield place, copy


def copied(value: dict[Any, Any] | list[Any], levels: int = _DEEPEST) -> Any:
    """Return a deep copy of a container; raise RecursionError if it is nested deeper than this many levels."""
    if levels < 0:
        raise RecursionError
    if isinstance(value, dict):
        return {name: copied(item, levels - 1) if isinstance(item, _COPIED) else item for name, item in value.items()}
    return [copied(part, levels - 1) if isinstance(part, _COPIED) else part for part in value]


def blocking(option: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, unless it is an async one."""
    if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise TypeError(_async(option, function))
    return function


def unusable(option: str, function: object, answer: object, wanted: str) -> PipelineError:
    """Return the error for a function that returned an unusable value."""
    if iscoroutine(answer):
        answer.close()  # else Python warns that it was never awaited
        return PipelineError(_async(option, function))
    return PipelineError(f"{option} gave back a {type(answer).__name__}; it must give back {wanted}")


def _async(option: str, function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return f"{option} must be a plain function, and {name} is async: rows are checked and transformed one by one"


def shown(value: object) -> str | None:
    """Return a value within a sentence, if it is a short one by its nature; a long text is cut."""
    if not isinstance(value, _SCALARS):
        return None
    if isinstance(value, bytes):
        return mask_start(repr(value[: _LONGEST_VALUE + MARGIN]), _LONGEST_VALUE)
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # Python does not print an integer of thousands of digits
        return None
    if len(text) > _LONGEST_VALUE:
        text = f"{mask_start(text, _LONGEST_VALUE - 1)}…"
    return repr(text) if isinstance(value, str) else text


def unmet(what: str, needed: Sequence[str], columns: Sequence[str]) -> PipelineError:
    """Return the error of a check that needs columns which are not there."""
    verb = "is" if len(needed) == 1 else "are"
    text = f"{what} needs {joined(needed)}, which {verb} not among the columns {listed(columns)}"
    folded = {name.lower(): name for name in columns}
    near = [folded[close] for name in needed for close in get_close_matches(name.lower(), folded, 1)]
    return PipelineError(f"{text}; did you mean {joined(list(dict.fromkeys(near)))}?" if near else text)


def joined(names: Sequence[str]) -> str:
    """Names in a sentence: 'fee' and 'city'."""
    quoted = [repr(name) for name in names[:_MOST_COLUMNS]]
    if len(names) > _MOST_COLUMNS:
        return f"{', '.join(quoted)} and {len(names) - _MOST_COLUMNS} more"
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)


def listed(columns: Sequence[str]) -> str:
    """Return columns in a sentence, the first few where they are many."""
    rest = len(columns) - _MOST_COLUMNS
    return ", ".join(columns[:_MOST_COLUMNS]) + (f" and {rest} more" if rest > 0 else "")


class FunctionValidator:
    """Calls the function with a copy of each record. None and True accept the copy as the function left it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = blocking("validate", function)

    def fits(self, columns: Sequence[str]) -> None:
        """Only the function knows what it needs."""

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Only the function knows what it reads."""
        return ()

    def keeps(self, columns: Sequence[str]) -> bool:
        """Return the function may change every column."""
        return False

    def key_of(self, record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
        """Return the record's own: most functions leave it as it is."""
        return own_key(record, key)

    def __call__(self, rows: Received) -> ValidatedRows:
        sieve = RowSorter(ErrorType.VALIDATION)
        for place, record in owned(rows, sieve):
            try:
                answer = self._function(record)
            except Exception as error:
                sieve.failed(place, error)
                continue
            if answer is False:
                sieve.refuse(place, "validate returned False")
            elif answer is None or answer is True or isinstance(answer, Mapping):
                sieve.kept.append(answer if isinstance(answer, Mapping) else record)
                sieve.origin.append(place)
            else:
                raise unusable("validate", self._function, answer, "a record, None, True or False")
        return ValidatedRows(sieve.outgoing(), sieve.rejected, sieve.discarded)
