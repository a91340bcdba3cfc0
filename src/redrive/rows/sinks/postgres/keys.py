"""Keys as a table of PostgreSQL compares them: cast by the server, and written in a form that no setting changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redrive._internal.optional import require_extra
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.keys import KeyKind
from redrive.rows.sinks.locks import OUTPUT_SETTINGS
from redrive.rows.sinks.postgres.copy import CopyText, UnsendableRow
from redrive.rows.sinks.postgres.faults import is_rows, may_be_rows
from redrive.rows.sinks.postgres.types import StoredType
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.table_schema import TableName, quoted

with require_extra("postgres"):
    import psycopg

_TABLE = "redrive_keys"
_INTEGERS = ("int2", "int4", "int8")
_KINDS = {
    **dict.fromkeys(_INTEGERS, KeyKind.INTEGER),
    "text": KeyKind.TEXT,
    "uuid": KeyKind.UUID,
    "date": KeyKind.DATE,
}
_MOMENTS = {
    "timestamp": KeyKind.MOMENT,
    "timestamp without time zone": KeyKind.MOMENT,
    "timestamptz": KeyKind.INSTANT,
    "timestamp with time zone": KeyKind.INSTANT,
}
_BASES = {"bigint": "int8", "double precision": "float8", "boolean": "bool"}
# Values with numbers within them, of which 1 and 1.0 are equal and not written so.
_NUMBERED = {"jsonb", "numrange", "nummultirange"}
_NUMBERED_ARRAYS = ("numeric", "real", "double precision", "float4", "float8")
_TEXT_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?!\d|[eE])')
_VARCHAR = re.compile(r"character varying\((\d+)\)")
_FIRST_WITH_VALIDITY = 160_000  # the server that has pg_input_is_valid


class KeyType(NamedTuple):
    """The type of a key column, as the server writes it, and what it is based on."""

    name: str
    base: str
    stored: str
    """The name without domains: `character varying(3)` of a domain over it."""

    @classmethod
    def made(cls, name: str) -> KeyType:
        """Return the type of a column that this program creates."""
        return cls(name, _BASES.get(name, name), name)

    @property
    def kind(self) -> KeyKind:
        """See `KeyKind`."""
        if self.name == "character varying":
            return KeyKind.TEXT
        return _MOMENTS.get(self.name) or _KINDS.get(self.base, KeyKind.OTHER)


def query_keys(cursor: psycopg.Cursor[Any], rows: Outgoing, types: Mapping[str, KeyType]) -> list[list[Any]]:
    """See `keys.Ask`. The values are staged as text, as COPY would send them to the table."""
    number = _stage(cursor, rows, types)
    cursor.execute(OUTPUT_SETTINGS)
    chosen = ", ".join(_compared(name, types[name]) for name in rows.columns)
    query = f"SELECT {quoted(number)}, {chosen} FROM pg_temp.{_TABLE} WHERE {quoted(number)} >= {{}} AND "
    query = f"{query}{quoted(number)} < {{}}"
    if cursor.connection.info.server_version >= _FIRST_WITH_VALIDITY:
        query += "".join(
            f" AND pg_input_is_valid({quoted(name)}, {_literal(types[name].name)})" for name in rows.columns
        )
    result = _answers(cursor, query, len(rows), may_be_rows)  # no table is read: what fails is a value
    plain = [_without_zeros if _has_numbers(types[name]) else _as_is for name in rows.columns]
    return [
        [plain[at](result[place][at]) if place in result else value for place, value in enumerate(rows.values(name))]
        for at, name in enumerate(rows.columns)
    ]


def stored_values(
    cursor: psycopg.Cursor[Any], table: TableName, keys: Outgoing, types: Mapping[str, KeyType], column: str
) -> dict[int, Any]:
    """Return the values of a column that a table has for keys, by place; a key that it cannot have has none."""
    number = quoted(_stage(cursor, keys, types))
    same = " AND ".join(
        f"redrive_own.{quoted(name)} = CAST(redrive_staged.{quoted(name)} AS {types[name].name})"
        for name in keys.columns
    )
    query = (
        f"SELECT redrive_staged.{number}, redrive_own.{quoted(column)} FROM pg_temp.{_TABLE} AS redrive_staged "
        f"JOIN {table.sql} AS redrive_own ON {same} "
        f"WHERE redrive_staged.{number} >= {{}} AND redrive_staged.{number} < {{}}"
    )
    result = _answers(cursor, query, len(keys))
    cursor.execute(f"DROP TABLE pg_temp.{_TABLE}")  # the transaction continues
    return {place: value for place, (value,) in result.items()}


def _stage(cursor: psycopg.Cursor[Any], rows: Outgoing, types: Mapping[str, KeyType]) -> str:
    """Copy keys into a temporary table, as texts; return the name of its column of places."""
    own = [types[name] for name in rows.columns]
    text = CopyText(
        rows,
        [part.base for part in own],
        [StoredType(item.name.rstrip("[]"), item.base == "array").as_key for item in own],
    )
    text.bad.update(text.with_nul())
    number = "redrive_row"
    while number in rows.columns:
        number += "_"
    columns = ", ".join(f"{quoted(name)} text" for name in rows.columns)
    cursor.execute(f"CREATE TEMPORARY TABLE {_TABLE} ({quoted(number)} integer, {columns}) ON COMMIT DROP")
    _send(cursor, text, len(rows), number)
    return number


def _answers(
    cursor: psycopg.Cursor[Any], query: str, count: int, is_fault: Callable[[psycopg.Error], bool] = is_rows
) -> dict[int, Sequence[Any]]:
    """Return what a query over a range of places answers, by place; without the rows for which it fails."""
    result: dict[int, Sequence[Any]] = {}

    def attempt(start: int, stop: int) -> Exception | None:
        cursor.execute("SAVEPOINT redrive_keys")
        try:
            # Not `format`: a name may have braces in it.
            cursor.execute(query.replace("{}", str(start), 1).replace("{}", str(stop), 1))
            result.update({place: key for place, *key in cursor})
        except psycopg.Error as error:
            if not is_fault(error):
                raise
            cursor.execute("ROLLBACK TO redrive_keys; RELEASE redrive_keys")
            return error
        cursor.execute("RELEASE redrive_keys")
        return None

    if attempt(0, count) is not None:
        isolate(count, attempt)
    return result


def _send(cursor: psycopg.Cursor[Any], text: CopyText, count: int, number: str) -> None:
    """Stage the rows; those that the driver cannot put into words are left out."""
    while True:
        cursor.execute("SAVEPOINT redrive_keys")
        try:
            text.send(cursor, f"pg_temp.{_TABLE}", 0, count, number)
        except UnsendableRow as error:
            cursor.execute("ROLLBACK TO redrive_keys; RELEASE redrive_keys")
            text.bad[error.place] = str(error)
        else:
            cursor.execute("RELEASE redrive_keys")
            return


def _compared(name: str, type_: KeyType) -> str:
    """Return the expression for a value as the server compares it."""
    column, base = quoted(name), type_.base
    value = f"CAST({column} AS {type_.name})"
    if length := type_.base == "varchar" and _VARCHAR.fullmatch(
        type_.stored
    ):  # extra spaces are removed, anything else is rejected
        size = int(length[1])
        cut, rest = f"substr({column}, 1, {size})", f"substr({column}, {size + 1})"
        return f"CASE WHEN rtrim({rest}, ' ') = '' THEN {cut} ELSE {column} END"
    if base == "timestamptz":
        value = f"({value} AT TIME ZONE 'UTC')"
    if base in ("timestamp", "timestamptz"):
        form = "YYYY-MM-DD HH24:MI:SS.US"
        return (
            f"CASE WHEN isfinite({value}) AND {value} >= '0001-01-01' THEN to_char({value}, '{form}') "
            f"ELSE {value}::text END"
        )
    written = {
        "text": column,
        "varchar": column,
        "bpchar": f"rtrim({column}, ' ')",
        "citext": f'lower({column} COLLATE "default")',
        **dict.fromkeys(_INTEGERS, f"{value}::int8"),
        "numeric": f"trim_scale({value})::text",
        "float4": f"({value} + 0)::text",
        "float8": f"({value} + 0)::text",
        "interval": f"justify_interval({value})::text",
    }
    return written.get(base, f"{value}::text")


def _has_numbers(type_: KeyType) -> bool:
    """Return whether values have numbers within them that are equal and written differently."""
    if type_.base == "array":
        return type_.name.startswith(_NUMBERED_ARRAYS)
    return type_.base in _NUMBERED


def _without_zeros(text: str | None) -> str | None:
    """Return the text of a value with each number in its shortest form; texts within it are left as they are."""
    return None if text is None else _TEXT_OR_NUMBER.sub(_shortest, text)


def _shortest(found: re.Match[str]) -> str:
    number = found[0]
    if number.startswith('"') or "." not in number:
        return "0" if number == "-0" else number
    number = number.rstrip("0").rstrip(".")
    return "0" if number == "-0" else number


def _as_is(value: Any) -> Any:
    return value


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
