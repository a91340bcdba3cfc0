"""Keys and numbers as SQLite stores them: by the affinity of the column and the collation of its index.

By the name of its type, a column converts texts to numbers, or numbers to texts, without an error. A column of numbers
also takes any text, and keeps 15 digits of a number that is not an integer. A column called DATE, STRING or UUID makes
a number of "007" and "1e5". Values that would be changed are rejected here.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.exact.capacity import number_of
from redrive.rows.sinks.exact.values import is_held
from redrive.rows.sinks.keys import KeyKind
from redrive.rows.sinks.values import NESTED, Rules, adapt_columns, json_text

_AFFINITIES = (("INT", "INTEGER"), ("CHAR|CLOB|TEXT", "TEXT"), ("BLOB|^$", "BLOB"), ("REAL|FLOA|DOUB", "REAL"))
_UNSENDABLE = (sqlite3.Error, OverflowError, UnicodeEncodeError)
_NUMBERS = re.compile("INT|REAL|FLOA|DOUB|NUMERIC|DECIMAL|NUMBER", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
# What SQLite takes for a number; Python also takes digits of other scripts, underscores and "nan".
_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?[ \t\n\v\f\r]*+", re.ASCII)
_SAME_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_EXACT_DIGITS = 15
_SHORT = _EXACT_DIGITS  # a text of this length cannot have more digits
_WHOLE_IN_FLOAT = 2**53


def affinity(kind: str) -> str:
    """Return what SQLite makes of values in a column of this declared type."""
    return next((name for part, name in _AFFINITIES if re.search(part, kind.strip(), re.IGNORECASE)), "NUMERIC")


def kind_of(kind: str, collation: str) -> KeyKind:
    """Return the kind of a key column of this declared type."""
    result = affinity(kind)
    if result == "INTEGER":
        return KeyKind.INTEGER
    return KeyKind.TEXT if result == "TEXT" and collation == "BINARY" else KeyKind.OTHER


def query_keys(
    rows: Outgoing, kinds: Sequence[str], rules: Sequence[Rules], collations: Mapping[str, str]
) -> list[list[Any]]:
    """See `keys.Ask`. SQLite itself converts the values, in a table of its own: that needs no lock on the file."""
    raw = [rows.values(name) for name in rows.columns]
    columns: list[Sequence[Any]] = list(raw)
    bad = adapt_columns(columns, rules)
    affinities = [affinity(kind) for kind in kinds]
    names = ", ".join(f"k{at} {name}" for at, name in enumerate(affinities))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"CREATE TABLE keys (place INTEGER PRIMARY KEY, {names})")
        insert = f"INSERT INTO keys VALUES (?{', ?' * len(columns)})"
        sent = [(place, *key) for place, key in enumerate(zip(*columns, strict=True)) if place not in bad]
        connection.execute("BEGIN")
        try:
            connection.executemany(insert, sent)
        except _UNSENDABLE:
            connection.execute("DELETE FROM keys")
            for item in sent:
                try:
                    connection.execute(insert, item)
                except _UNSENDABLE:
                    continue  # the table will not take it either
        result = {place: key for place, *key in connection.execute("SELECT * FROM keys")}
    folded = [collations.get(name.lower(), "BINARY") for name in rows.columns]
    return [
        [
            _compared(result[place][at], affinities[at], folded[at]) if place in result else value
            for place, value in enumerate(values)
        ]
        for at, values in enumerate(raw)
    ]


def _compared(value: Any, affinity: str, collation: str) -> Any:
    """Return a value as SQLite compares it."""
    if isinstance(value, float):  # an integer and a float are equal where their values are
        return int(value) if value.is_integer() else str(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if not isinstance(value, str):
        return value
    if collation == "NOCASE":  # of the letters from A to Z alone
        value = value.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
    elif collation == "RTRIM":
        value = value.rstrip(" ")
    # If a text and a number may occur together, they are distinguished.
    return f"'{value}'" if affinity == "BLOB" else value


def holds_numbers(kind: str) -> bool:
    """Return whether a column of this declared type is meant for numbers: DATE and STRING are not, whatever SQLite does
    with numbers in them."""
    return _NUMBERS.search(kind) is not None


def is_kept(number: Decimal) -> bool:
    """Return whether SQLite keeps every digit of a number."""
    if number == number.to_integral_value() and -(2**63) <= number < 2**63:
        return True
    return _is_short(number) and is_held(number)


def column_type(values: Iterable[Any]) -> str:
    """Return the type of a new column of decimals: one of numbers, unless SQLite would cut digits off."""
    return "NUMERIC" if all(map(_is_kept_value, values)) else "TEXT"


def _is_kept_value(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return not isinstance(value, Decimal) or not value.is_finite() or is_kept(value)


def number_text(number: Decimal) -> str:
    """Return a decimal as text for a column of numbers: with a fraction of zeros, a long integer would lose digits."""
    if number.is_nan():
        raise ValueError("NaN is not kept as a number")
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_short(number: Decimal) -> bool:
    return len("".join(map(str, number.as_tuple().digits)).strip("0")) <= _EXACT_DIGITS


def fit_numbers(name: str, kind: str, values: Sequence[Any], bad: dict[int, str]) -> Sequence[Any]:
    """Return the values of a column as SQLite is to have them; note those that would be changed."""
    made = affinity(kind)
    if made in ("TEXT", "BLOB"):
        return values
    kinds = set(map(type, values)) - {type(None)}
    if made == "REAL" and int in kinds:
        _note(name, values, bad, lambda value: _integer_fault(value, kind))
        values = [float(value) if _is_huge(value) and place not in bad else value for place, value in enumerate(values)]
    if made != "REAL" and float in kinds:  # which SQLite makes an integer where it is a whole number
        _note(name, values, bad, _float_fault)
    if str not in kinds:
        return values
    if made == "NUMERIC" and not holds_numbers(kind):
        _note(name, values, bad, lambda value: _word_fault(value, kind))
        return values
    if kinds == {str} and _are_short_numbers(values):
        return values
    _note(name, values, bad, lambda value: _fault(value, kind, made))
    return [_bound(value) if type(value) is str and place not in bad else value for place, value in enumerate(values)]


def _note(name: str, values: Sequence[Any], bad: dict[int, str], fault_of: Callable[[Any], str | None]) -> None:
    for place, value in enumerate(values):
        try:
            if place not in bad and (fault := fault_of(value)):
                bad[place] = f"{name}: {value!r} {fault}"
        except Exception as error:  # an integer of thousands of digits has no text
            bad[place] = f"{name}: {type(value).__name__} cannot be stored: {error}"


def _are_short_numbers(values: Sequence[str | None]) -> bool:
    """Return whether all texts are numbers that SQLite keeps; the quick test for whole columns."""
    given = [value for value in values if value is not None]
    try:
        whole = sum(map(float, given))
    except ValueError:
        return False
    joined = "".join(given)
    return isfinite(whole) and max(map(len, given)) <= _SHORT and joined.isascii() and not {*joined} & {*"_eE"}


def _bound(text: str) -> str | float:
    """Return a text as the number that is to be stored: SQLite's own reading of long texts depends on its version."""
    return text if len(text) <= _SHORT or _INTEGER.fullmatch(text.strip()) else float(text)


def _integer_fault(value: Any, kind: str) -> str | None:
    if type(value) is not int or abs(value) <= _WHOLE_IN_FLOAT or is_held(Decimal(value)):
        return None
    return f"would be changed: {kind} has no such number"


def _float_fault(value: Any) -> str | None:
    if type(value) is not float or not _WHOLE_IN_FLOAT < abs(value) < 2**63 or number_of(value) == int(value):
        return None
    return f"would be changed: as a float it is {int(value)}; pass it as an integer or a text"


def _is_huge(value: Any) -> bool:
    """Return whether the driver has no such integer."""
    return type(value) is int and not -(2**63) <= value < 2**63


def _word_fault(value: Any, kind: str) -> str | None:
    """Return why a text cannot be in a column that SQLite takes for one of numbers, though it is not called so."""
    if type(value) is not str or not _NUMBER.fullmatch(value):
        return None
    if _SAME_INTEGER.fullmatch(value) or (repr(float(value)) == value and not float(value).is_integer()):
        return None
    return f"would become a number: SQLite takes texts in a column of type {kind} for numbers; declare it TEXT"


def _fault(value: Any, kind: str, made: str) -> str | None:
    if type(value) is not str:
        return None
    number = number_of(value) if _NUMBER.fullmatch(value) else None
    if number is None:
        return f"is not a number, as the column's type {kind} has it"
    if made == "REAL":
        return None if is_held(number) else f"would be changed: {kind} has no such number"
    if is_kept(number) and (_INTEGER.fullmatch(value.strip()) or _is_short(number)):
        return None
    if _is_short(number):
        return f"is beyond the range of numbers in a column of type {kind}"
    return f"has more digits than SQLite keeps in a column of type {kind}; a TEXT column keeps them all"


def _adapt_float(number: float) -> float:
    if math.isnan(number):
        raise ValueError("NaN would become NULL")
    return number


def _adapt_decimal(number: Decimal) -> str:
    if number.is_nan():
        raise ValueError("NaN is not kept as a number")
    return f"{number:f}"


# SQLite has five types; what is none of them is kept as text that sorts and compares as the value does.
VALUES: Rules = {
    **NESTED,
    dt.datetime: lambda moment: moment.isoformat(" "),
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: str,
    Decimal: _adapt_decimal,
    float: _adapt_float,
    UUID: str,
}

_NUMBER_RULES: Rules = {**VALUES, Decimal: number_text}

# A text has room for more than 64 bits, and SQLite itself would write 15 digits of a float.
_TEXT_RULES: Rules = {**VALUES, bool: json_text, int: str, float: lambda number: repr(_adapt_float(number))}

UNSENDABLE = (OverflowError, UnicodeEncodeError)


def rules_of(kind: str) -> Rules:
    """Return what becomes of values in a column of this declared type."""
    match affinity(kind):
        case "TEXT":
            return _TEXT_RULES
        case "BLOB":
            return VALUES
    return _NUMBER_RULES
