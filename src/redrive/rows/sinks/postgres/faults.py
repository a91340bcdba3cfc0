"""Find the rows that PostgreSQL rejects: by the error, by queries over many staged rows, and by unique indexes.

The input functions of some types raise syntax errors (`ltree`, `tsquery`, `regclass`) or internal ones (`hstore`), and
a trigger raises any SQLSTATE. Such an error is the fault of a row if the table accepts other rows of the batch. If many
rows are at fault, bisection would take long, so the staged rows are checked by queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.sinks.postgres.catalog import PostgresSchema, Staging, foreign_key, orphans
from redrive.rows.sinks.sql_table import is_row_fault
from redrive.rows.sinks.table_schema import IndexClaim, TableName, UniqueIndex, listed, losers, quoted, shown_values

with require_extra("postgres"):
    import psycopg

# The connection, the session, a lock, another transaction, the server.
_NEVER_A_ROWS = {"08", "25", "26", "28", "34", "3B", "3D", "40", "53", "57", "58", "72", "F0", "HV"}
_NEVER_A_ROWS_CODES = {"55006", "55P02", "55P03", "55P04", "XX001", "XX002"}
_RAISED = "P0"  # by code in PL/pgSQL: RAISE, a SELECT INTO STRICT without a row, ASSERT
# Every other class of the server's own. What is in none of these was chosen by the code of a trigger or function.
_OWN = {"0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "22", "23", "24", "27", "2B", "2D", "2F", "38", "39", "3F"}
_OWN |= {"00", "01", "02", "03", "09", "10", "42", "44", "54", "55", "XX"}
_TABLE = "pg_temp.redrive_sift"
_FIRST_SERVER = 160_000  # which has pg_input_error_info
_INDEXES = """
    SELECT c.relname, ARRAY(SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1])
                                                        WITH ORDINALITY k(attnum, at)
                            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY k.at)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL ORDER BY c.relname"""
_OTHER_RULES = """
    SELECT c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_constraint x WHERE x.conrelid = c.oid AND x.contype = 'x'),
           (SELECT count(*) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c'),
           ARRAY(SELECT f.conname::text FROM pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f')
    FROM pg_class c WHERE c.oid = %s"""


def is_raised(error: psycopg.Error) -> bool:
    """Return whether a trigger or function rejects a row, by P0001 or by a code of its own such as 45000."""
    if error.sqlstate is None:
        return False
    return error.sqlstate[:2] == _RAISED or error.sqlstate[:2] not in _OWN | _NEVER_A_ROWS


def is_rows(error: psycopg.Error) -> bool:
    """Return whether an error is always the fault of a row."""
    return is_row_fault(error) or is_raised(error)


def may_be_rows(error: psycopg.Error) -> bool:
    """Return whether an error may be the fault of a row."""
    if (
        error.sqlstate is None
        or error.sqlstate in _NEVER_A_ROWS_CODES
        or isinstance(error, psycopg.errors.QueryCanceled)
    ):
        return False
    return is_rows(error) or error.sqlstate[:2] not in _NEVER_A_ROWS


def can_sift(cursor: psycopg.Cursor[Any]) -> bool:
    """Return whether the server can be asked if a text is a value of a type."""
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
    """Return conditions in SQL for a rejected row, each with the server's message."""
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


class UniqueFaults:
    """The staged rows that a table rejects because of a unique index."""

    def __init__(
        self,
        cursor: psycopg.Cursor[Any],
        table: TableName,
        key: Sequence[str],
        shape: PostgresSchema,
        staged: Staging,
    ) -> None:
        self._cursor, self._table, self._key, self._shape, self._staged = cursor, table, key, shape, staged

    def find(self, columns: Sequence[str]) -> dict[int, str]:
        """Return rows that are certainly rejected, and why; not all of them if other rules may reject some.

        Raises psycopg's InsufficientPrivilege where a table may not be read.
        """
        if not self._shape.plain:  # a trigger may change or refuse any row
            return {}
        others_asked, orphaned = self._other_rules({*columns})
        if orphaned:
            return orphaned  # whoever would lose against one of them is asked for when they are out of the way
        self._cursor.execute(_INDEXES, (self._shape.oid,))
        indexes = [UniqueIndex(name, tuple(names)) for name, names in self._cursor.fetchall()]
        indexes = [index for index in indexes if {*index.columns} != {*self._key} and {*index.columns} <= {*columns}]
        taken = [claim for index in indexes for claim in self._read_claims(index)]
        contested = [claim for index in indexes for claim in self._contested(index)]
        return {
            row: f'duplicate key value violates unique constraint "{index.name}"; '
            f"Key ({', '.join(index.columns)})=({shown_values(values)}) already exists."
            for row, (index, values) in losers(taken, contested, in_order=others_asked).items()
        }

    def _read_claims(self, index: UniqueIndex) -> Iterator[tuple[IndexClaim, bool]]:
        """Values that another row of the table has; that row may be in the batch itself, and change."""
        staged, values = self._staged, ", ".join(f"s.{quoted(name)}::text" for name in index.columns)
        same_value = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in index.columns)
        # A row that is appended is never one that is there.
        same_key = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self._key) or "false"
        in_batch = " AND ".join(f"t.{quoted(name)} = b.{quoted(name)}" for name in self._key) or "false"
        self._cursor.execute(
            f"SELECT s.{quoted(staged.row)}, EXISTS (SELECT FROM {staged.table} b WHERE {in_batch}), {values} "
            f"FROM {staged.table} s JOIN {self._table.sql} t ON {same_value} WHERE NOT ({same_key})"
        )
        for row, may_change, *result in self._cursor.fetchall():
            yield IndexClaim(row, index, tuple(result)), may_change

    def _contested(self, index: UniqueIndex) -> Iterator[IndexClaim]:
        """Values that several rows of the batch bring."""
        names = ", ".join(map(quoted, index.columns))
        given = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in index.columns)
        texts = ", ".join(f"{quoted(name)}::text" for name in index.columns)
        # Equal values need not have the same text; they are distinguished by their group.
        self._cursor.execute(
            f"SELECT redrive_at, redrive_group, {texts} FROM ("
            f"SELECT {quoted(self._staged.row)} AS redrive_at, {names}, "
            f"count(*) OVER (PARTITION BY {names}) AS redrive_count, "
            f"dense_rank() OVER (ORDER BY {names}) AS redrive_group "
            f"FROM {self._staged.table} WHERE {given}) AS counted WHERE redrive_count > 1"
        )
        shown: dict[int, tuple[Any, ...]] = {}
        for row, group, *result in self._cursor.fetchall():
            yield IndexClaim(row, index, shown.setdefault(group, tuple(result)))

    def _other_rules(self, columns: set[str]) -> tuple[bool, dict[int, str]]:
        """Return whether all other rules of the table were asked about, and the rows that refer to nothing."""
        self._cursor.execute(_OTHER_RULES, (self._shape.oid,))
        plain, checks, foreign_keys = self._cursor.fetchone() or (False, 0, [])
        asked = plain and checks == sum(check.columns <= columns for check in self._shape.checks)
        orphaned: dict[int, str] = {}
        for name in foreign_keys:
            key = foreign_key(self._cursor, self._shape, name)
            if key is None or not {*key.columns, *(key.found_as if key.itself else ())} <= columns:
                asked = False
                continue
            message = f'insert or update on table "{self._table.table}" violates foreign key constraint "{name}"'
            for row, *values in self._cursor.execute(orphans(self._staged, key)):
                orphaned.setdefault(row, f"{message}; {key.orphan(values)}")
        return asked, orphaned
