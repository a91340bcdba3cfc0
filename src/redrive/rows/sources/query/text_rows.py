"""Read a row that the driver cannot hold: as text where a column has no value in Python.

Such as a timestamp of 'infinity' or before Christ, a time of 24:00, a text that is not UTF-8. The database accepts the
text as a value again, so that a letter of the row can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import LargeBinary, Text
from sqlalchemy.types import TypeEngine

from redrive.rows.batch import Record
from redrive.rows.sources.query.keyset import Columns

Fetch = Callable[[Columns], list[Record]]
"""Selects rows with these columns: one, for `TextRowReader.row`."""

_TEXT = Text()
_FORMS: tuple[TypeEngine[Any] | None, ...] = (None, _TEXT, LargeBinary())


@dataclass(slots=True)
class TextRow:
    """A row, as far as it could be read."""

    record: Record
    as_text: list[str] = field(default_factory=list)
    """Columns that hold the database's text of the value."""
    missing: list[str] = field(default_factory=list)
    """Columns that could not be read at all, such as an expression that fails for this row."""

    @property
    def context(self) -> dict[str, Any]:
        """Return what is stored with the letter."""
        return {"as_text": self.as_text, "missing": self.missing}


class TextRowReader:
    """Reads rows column by column.

    A column that was needed as text is selected so from then on, which makes it one statement for most rows.
    """

    def __init__(self, columns: Sequence[str], is_nobodys_fault: Callable[[Exception], bool]) -> None:
        self._forms: dict[str, TypeEngine[Any] | None] = dict.fromkeys(columns)
        self._is_nobodys_fault = is_nobodys_fault

    def row(self, fetch: Fetch) -> TextRow | None:
        """Return the row that `fetch` selects; None if it is no longer there."""
        result = self._attempt(fetch, self._forms)
        if result is not None:
            as_text = [name for name, form in self._forms.items() if form is not None]
            return TextRow(result[0], as_text) if result else None
        rescued = TextRow({})
        for name in self._forms:
            for form in _FORMS:
                value = self._attempt(fetch, {name: form})
                if value is not None:
                    break
            else:
                rescued.missing.append(name)
                continue
            if not value:
                return None
            rescued.record[name] = value[0][name]
            if form is not None:
                rescued.as_text.append(name)
            if form is _TEXT:
                self._forms[name] = form
        return rescued

    def forms(self, fetch: Fetch) -> Columns:
        """Return how to select several rows at once: a column as text where a value of it cannot be had otherwise."""
        return {name: _TEXT if self._attempt(fetch, {name: None}) is None else None for name in self._forms}

    def _attempt(self, fetch: Fetch, columns: Columns) -> list[Record] | None:
        try:
            return fetch(columns)
        except Exception as error:
            if self._is_nobodys_fault(error):
                raise
            return None
