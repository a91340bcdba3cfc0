"""Rows that break a unique index beside the key, found by queries over the staged rows: halving would take long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.rows.sinks.postgres.catalog import PostgresSchema, Staging, foreign_key, orphans
from redrive.rows.sinks.table_schema import TableName, quoted
from redrive.rows.sinks.unique import IndexClaim, UniqueIndex, losers, shown_values

with require_extra("postgres"):
    import psycopg

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


class UniqueFaults:
    """The staged rows that a table refuses because of a unique index."""

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
        """Return rows that are refused for certain, and why; not all where other rules may refuse some of them.

        Raises psycopg's InsufficientPrivilege where a table may not be read.
        """
        if not self._shape.plain:  # a trigger may change or refuse any row
            return {}
        others_asked, orphaned = self._other_rules({*columns})
        if orphaned:
            return orphaned  # whoever would lose against one of them is asked for when they are out of the way
        self._cursor.execute(_INDEXES, (self._shape.oid,))
        indexes = [UniqueIndex(name, tuple(names)) for name, names in self._cursor.fetchall()]
        indexes = [one for one in indexes if {*one.columns} != {*self._key} and {*one.columns} <= {*columns}]
        taken = [claim for index in indexes for claim in self._taken(index)]
        contested = [claim for index in indexes for claim in self._contested(index)]
        return {
            row: f'duplicate key value violates unique constraint "{index.name}"; '
            f"Key ({', '.join(index.columns)})=({shown_values(values)}) already exists."
            for row, (index, values) in losers(taken, contested, in_order=others_asked).items()
        }

    def _taken(self, index: UniqueIndex) -> Iterator[tuple[IndexClaim, bool]]:
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
        for row, may_change, *found in self._cursor.fetchall():
            yield IndexClaim(row, index, tuple(found)), may_change

    def _contested(self, index: UniqueIndex) -> Iterator[IndexClaim]:
        """Values that several rows of the batch bring."""
        names = ", ".join(map(quoted, index.columns))
        given = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in index.columns)
        texts = ", ".join(f"{quoted(name)}::text" for name in index.columns)
        # Values that are equal need not have the same text; they are told apart by their group.
        self._cursor.execute(
            f"SELECT redrive_at, redrive_group, {texts} FROM ("
            f"SELECT {quoted(self._staged.row)} AS redrive_at, {names}, "
            f"count(*) OVER (PARTITION BY {names}) AS redrive_count, "
            f"dense_rank() OVER (ORDER BY {names}) AS redrive_group "
            f"FROM {self._staged.table} WHERE {given}) AS counted WHERE redrive_count > 1"
        )
        shown: dict[int, tuple[Any, ...]] = {}
        for row, group, *found in self._cursor.fetchall():
            yield IndexClaim(row, index, shown.setdefault(group, tuple(found)))

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
            said = f'insert or update on table "{self._table.table}" violates foreign key constraint "{name}"'
            for row, *values in self._cursor.execute(orphans(self._staged, key)):
                orphaned.setdefault(row, f"{said}; {key.orphan(values)}")
        return asked, orphaned
