"""Which values of a column mark a row as a deletion, whatever types the values and the option `delete_when` have.

The same flag is the number 1 in Parquet, the text "1" in CSV and a bool in JSON. A value that cannot be compared with
what `delete_when` names is neither a mark nor none: to take it for none would write deleted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any
from uuid import UUID

_YES = ("1", "t", "true", "y", "yes")
_NO = ("", "0", "f", "false", "n", "no")


def is_yes(value: Any) -> bool | None:
    """Return whether a value says yes; None where it says neither yes nor no."""
    text = "" if value is None else str(value).strip().lower()
    return True if text in _YES else False if text in _NO else None


def marked(values: Iterable[Any], marks: Collection[Any]) -> list[bool | None]:
    """Return of each value whether it is one of the marks; None where it can be compared with none of them."""
    plain = [_plain(mark) for mark in marks]
    known: dict[tuple[type, Any], bool | None] = {}
    found = []
    for value in values:
        try:
            answer = known[type(value), value]
        except KeyError:
            answer = known[type(value), value] = _is_any(_plain(value), plain)
        except TypeError:  # it has no hash
            answer = _is_any(value, plain)
        found.append(answer)
    return found


def _is_any(value: Any, marks: Iterable[Any]) -> bool | None:
    answers = [_equals(value, mark) for mark in marks]
    return True if True in answers else False if False in answers else None


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _equals(value: Any, mark: Any) -> bool | None:
    """Return whether the two are the same value; None where they cannot be compared."""
    if value is None or mark is None:
        return value is mark
    if isinstance(value, str) and isinstance(mark, str):
        return value == mark
    if isinstance(value, str):
        return _text_equals(value, mark)
    if isinstance(mark, str):
        return _text_equals(mark, value)
    if isinstance(value, bool) != isinstance(mark, bool):
        flag, other = (value, mark) if isinstance(value, bool) else (mark, value)
        return flag == other if _is_number(other) and other in (0, 1) else None
    if _is_number(value) and _is_number(mark):
        return bool(value == mark)
    if isinstance(value, datetime) and isinstance(mark, datetime):
        return None if (value.tzinfo is None) != (mark.tzinfo is None) else value == mark
    return bool(value == mark) if type(value) is type(mark) else None


def _text_equals(text: str, other: Any) -> bool | None:
    """Return whether a text, as of CSV, is a value of another type; an empty one is no value."""
    if not text.strip():
        return False
    if isinstance(other, bool):
        said = is_yes(text)
        return None if said is None else said == other
    if _is_number(other):
        number = _parsed(_number, text)
        return None if number is None else bool(number == Decimal(str(other)))
    parse = _PARSERS.get(type(other))
    value = None if parse is None else _parsed(parse, text)
    return None if value is None else _equals(value, other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal)


def _number(text: str) -> Decimal | None:
    number = Decimal(text)
    return number if number.is_finite() and "_" not in text else None


_PARSERS: dict[type, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
}


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text.strip())
    except (ValueError, InvalidOperation):
        return None
