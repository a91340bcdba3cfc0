"""Which texts can be compared by `newer`: those that sort as what they say, dates and times of one form.

A number does not: as texts, "10" comes before "9".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, NoReturn

from redrive.errors import SinkMismatch
from redrive.rows.sinks.table_schema import TableName

_ISO = re.compile(
    r"(\d{4}-\d{2}-\d{2}|\d{8})"
    r"(?:([T ])(\d{2}:\d{2}(?::\d{2})?|\d{4}(?:\d{2})?)([.,]\d+)?( ?(?:Z|z|UTC|[+-]\d{2}(?::?\d{2})?))?)?"
)
_ADVICE = (
    "give the column a type of numbers, dates or timestamps, or write dates and times in one form, as "
    "2026-07-01T12:00:00Z"
)
_NUMBER = "number"
_SAMPLE = 1_000


class TextOrder:
    """The values of a column that a row must have a greater one of to be newer."""

    def __init__(self, table: TableName, column: str) -> None:
        self._table, self._column = table, column
        self._form: str | None = None

    def faults(
        self,
        values: Sequence[Any],
        stored: Callable[[int], Sequence[Any]],
        replaced: Callable[[Sequence[int]], Mapping[int, Any]],
        *,
        takes_numbers: bool,
    ) -> dict[int, str]:
        """Return the values that cannot be compared as texts with the others, by place, and why.

        Args:
            stored: returns values that the table has, as many as asked for at most.
            replaced: returns the values that the table has for the keys of the rows at these places, by place.
            takes_numbers: whether the column keeps numbers as such.

        Raises:
            SinkMismatch: no value of the column can, or those of the table cannot.
        """
        forms = [None if value is None else _form(value, takes_numbers=takes_numbers) for value in values]
        if self._form is None and (some := stored(_SAMPLE)):
            # Which rows a table returns first is chance, so that most of them count. A row that replaces another is
            # compared with the form of that one below.
            known = Counter(form for value in some if (form := _form(_unpadded(value), takes_numbers=takes_numbers)))
            coming = Counter(forms)
            likely = sorted(known, key=lambda form: (-known[form], -coming[form], form))
            self._form = likely[0] if likely else self._refuse(some[0])
        given = [at for at, value in enumerate(values) if value is not None]
        if self._form is None and given:
            self._form = next((forms[at] for at in given if forms[at]), None) or self._refuse(values[given[0]])
        faults = {
            at: f"{self._column}: {values[at]!r} cannot be compared as a text with the values of other rows; {_ADVICE}"
            for at in given
            if forms[at] != self._form
        }
        for at, value in replaced([at for at in given if at not in faults]).items():
            if value is not None and _form(_unpadded(value), takes_numbers=takes_numbers) != self._form:
                faults[at] = (
                    f"{self._column}: {values[at]!r} cannot be compared as a text with {str(value)[:40]!r}, which the "
                    f"table has for this key; {_ADVICE}"
                )
        return faults

    def refuse_type(self, kind: str) -> NoReturn:
        """Raise for a column of a type whose values do not sort by what they mean."""
        raise SinkMismatch(
            f"{self._table} is updated where {self._column!r} is newer, and values of the type {kind} do not sort by "
            "what they mean: give the column a type of numbers, dates or timestamps"
        )

    def _refuse(self, value: Any) -> str:
        raise SinkMismatch(
            f"{self._table} is updated where {self._column!r} is newer, and texts such as {str(value)[:40]!r} do not "
            f"sort by what they mean: {_ADVICE}"
        )


def _unpadded(value: Any) -> Any:
    """Return a value of the table without the spaces with which CHAR(n) fills it up; they count in no comparison."""
    return value.rstrip(" ") if isinstance(value, str) else value


def _form(value: Any, *, takes_numbers: bool) -> str | None:
    """What values must have in common to sort as texts; None where a value never does."""
    if isinstance(value, int | float):
        return _NUMBER if takes_numbers else None
    found = _ISO.fullmatch(str(value)) if isinstance(value, str | date) else None
    if found is None:
        return None
    day, separator, clock, fraction, zone = (part or "" for part in found.groups())
    # A fraction sorts behind none, and before an offset, but not before a letter.
    digits = len(fraction) if zone[-1:].isalpha() else 0
    zone = re.sub(r"^( ?[+-]\d{2}):?00$", r"\1", zone)  # databases write +00 for +00:00
    return re.sub(r"\d", "0", f"{day}{separator}{clock}") + f" {digits} {zone}"
