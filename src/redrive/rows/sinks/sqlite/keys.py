"""Keys as a table of SQLite compares them: by the affinity of the column and the collation of its index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.keys import KeyKind
from redrive.rows.sinks.values import Rules, adapt_columns

_AFFINITIES = (("INT", "INTEGER"), ("CHAR|CLOB|TEXT", "TEXT"), ("BLOB|^$", "BLOB"), ("REAL|FLOA|DOUB", "REAL"))
_UNSENDABLE = (sqlite3.Error, OverflowError, UnicodeEncodeError)


def affinity(kind: str) -> str:
    """Return what SQLite makes of values in a column of this declared type."""
    return next((name for part, name in _AFFINITIES if re.search(part, kind.strip(), re.IGNORECASE)), "NUMERIC")


def kind_of(kind: str, collation: str) -> KeyKind:
    """Return the kind of a key column of this declared type."""
    found = affinity(kind)
    if found == "INTEGER":
        return KeyKind.INTEGER
    return KeyKind.TEXT if found == "TEXT" and collation == "BINARY" else KeyKind.OTHER


def ask(rows: Outgoing, kinds: Sequence[str], rules: Sequence[Rules], collations: Mapping[str, str]) -> list[list[Any]]:
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
            for one in sent:
                try:
                    connection.execute(insert, one)
                except _UNSENDABLE:
                    continue  # the table will not take it either
        found = {place: key for place, *key in connection.execute("SELECT * FROM keys")}
    folded = [collations.get(name.lower(), "BINARY") for name in rows.columns]
    return [
        [
            _compared(found[place][at], affinities[at], folded[at]) if place in found else value
            for place, value in enumerate(values)
        ]
        for at, values in enumerate(raw)
    ]


def _compared(value: Any, affinity: str, collation: str) -> Any:
    """A value that equals another where SQLite says so."""
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
    # Where a text and a number may stand side by side, they are told apart.
    return f"'{value}'" if affinity == "BLOB" else value
