"""Many bad rows at once: staged as text and asked for by queries; going from one fault to the next would take long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.sinks.postgres.catalog import PostgresSchema, Staging
from redrive.rows.sinks.table_schema import listed, quoted

with require_extra("postgres"):
    import psycopg

_TABLE = "pg_temp.redrive_sift"
_FIRST_SERVER = 160_000  # which has pg_input_error_info


def can_sift(cursor: psycopg.Cursor[Any]) -> bool:
    """Whether the server can be asked if a text is a value of a type."""
    return cursor.connection.info.server_version >= _FIRST_SERVER


def sift(
    cursor: psycopg.Cursor[Any],
    shape: PostgresSchema,
    staging: Staging,
    columns: Sequence[str],
    *,
    relation: str,
    send: Callable[[str], None],
) -> dict[int, str]:
    """Fill the staging table with what it takes of the rows that `send` copies; the others by place, and why."""
    row, types = quoted(staging.row), dict(zip(columns, shape.types(columns), strict=True))
    cursor.execute(
        f"CREATE TEMPORARY TABLE {_TABLE.partition('.')[2]} ({row} integer, "
        + ", ".join(f"{quoted(name)} text" for name in columns)
        + ") ON COMMIT DROP"
    )
    send(_TABLE)
    bad: dict[int, str] = {}
    for name, kind in types.items():
        cursor.execute(
            f"SELECT {row}, fault.message, fault.detail FROM {_TABLE}, "
            f"LATERAL pg_input_error_info({quoted(name)}, {_literal(kind)}) AS fault WHERE fault.message IS NOT NULL"
        )
        for place, message, detail in cursor:
            bad.setdefault(place, f"{name}: {message}" + (f"; {detail}" if detail else ""))
    _leave_out(cursor, row, bad)
    read = {name: f"CAST({quoted(name)} AS {kind}){shape.collations[name]}" for name, kind in types.items()}
    rules = [] if shape.rewrites else _rules(shape, columns, relation)
    if rules:
        typed = ", ".join(f"{source} AS {quoted(name)}" for name, source in read.items())
        cases = " ".join(f"WHEN {wrong} THEN {at}" for at, (wrong, _) in enumerate(rules))
        cursor.execute(
            f"SELECT * FROM (SELECT {row}, CASE {cases} END AS fault FROM "
            f"(SELECT {row}, {typed} FROM {_TABLE}) AS typed) AS judged WHERE fault IS NOT NULL"
        )
        broken = {place: rules[at][1] for place, at in cursor}
        _leave_out(cursor, row, broken)
        bad |= broken
    cursor.execute(
        f"INSERT INTO {staging.table} ({row}, {listed(columns)}) SELECT {row}, {', '.join(read.values())} FROM {_TABLE}"
    )
    cursor.execute(f"DROP TABLE {_TABLE}")
    return bad


def _rules(shape: PostgresSchema, columns: Sequence[str], relation: str) -> list[tuple[str, str]]:
    """What makes a row a bad one, in SQL and in the server's words."""
    missing = [
        (
            f"{quoted(name)} IS NULL",
            f'null value in column "{name}" of relation "{relation}" violates not-null constraint',
        )
        for name in columns
        if name in shape.not_null
    ]
    broken = [
        (f"NOT ({check.expression})", f'new row for relation "{relation}" violates check constraint "{check.name}"')
        for check in sorted(shape.checks)
        if check.columns <= set(columns)
    ]
    return missing + broken


def _leave_out(cursor: psycopg.Cursor[Any], row: str, bad: dict[int, str]) -> None:
    cursor.execute(f"DELETE FROM {_TABLE} WHERE {row} = ANY ('{{{','.join(map(str, bad))}}}'::integer[])")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
