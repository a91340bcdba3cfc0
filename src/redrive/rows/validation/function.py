"""Rows against a function of a record: it says nothing, gives back a better record, or raises what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from redrive.model.letters import ErrorType
from redrive.rows.batch import Received, Record
from redrive.rows.validation.validator import RowSorter, ValidatedRows, blocking, own_key, owned, unusable


class FunctionValidator:
    """Calls the function with a copy of each record. None and True let the copy pass as the function left it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = blocking("validate", function)

    def fits(self, columns: Sequence[str]) -> None:
        """Only the function knows what it needs."""

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Only the function knows what it reads."""
        return ()

    def keeps(self, columns: Sequence[str]) -> bool:
        """The function may change every column."""
        return False

    def key_of(self, record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
        """The record's own: most functions leave it as it is."""
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
                sieve.refuse(place, "validate said no")
            elif answer is None or answer is True or isinstance(answer, Mapping):
                sieve.kept.append(answer if isinstance(answer, Mapping) else record)
                sieve.origin.append(place)
            else:
                raise unusable("validate", self._function, answer, "a record, None, True or False")
        return ValidatedRows(sieve.outgoing(), sieve.rejected, sieve.discarded)
