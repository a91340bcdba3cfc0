"""The schema of a PostgreSQL table that rows are loaded into, read from the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any, NamedTuple

from sqlalchemy import Connection

from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.postgres.types import StoredType
from redrive.rows.sinks.table_schema import TableColumn, TableName, TableSchema, listed, quoted

_TABLE = """
    SELECT c.oid, c.relkind IN ('r', 'p') AND NOT c.relrowsecurity AND NOT c.relhasrules,
           CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table'
                ELSE 'table' END
    FROM pg_class c WHERE c.oid = to_regclass(%s)"""

# Domains are followed to what they are made of, arrays to their elements.
_COLUMNS = """
    WITH RECURSIVE walk (number, type, modifier, is_array) AS (
        SELECT attnum, atttypid, atttypmod, false FROM pg_attribute
        WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT w.number, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END,
               CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE w.modifier END, w.is_array OR t.typtype <> 'd'
        FROM walk w JOIN pg_type t ON t.oid = w.type
        WHERE t.typtype = 'd' OR t.typcategory = 'A' AND t.typelem <> 0
    )
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef OR a.attidentity <> '',
           a.attgenerated <> '' OR a.attidentity = 'a',
           (SELECT ' COLLATE ' || quote_ident(n.nspname) || '.' || quote_ident(l.collname)
            FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace
            WHERE l.oid = a.attcollation AND l.oid <> t.typcollation),
           EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic),
           base.typname, w.is_array,
           -- Some settings read a point in a money as the mark of thousands.
           CASE WHEN base.typname = 'money' THEN
                    format('money(%%s)', CASE WHEN '1.0'::money::numeric = 1 THEN scale(1::money::numeric) ELSE 0 END)
                ELSE format_type(coalesce(r.rngsubtype, w.type), w.modifier) END,
           r.rngsubtype IS NOT NULL, CASE WHEN base.typtype = 'c' THEN base.typrelid ELSE 0 END
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    JOIN walk w ON w.number = a.attnum JOIN pg_type base ON base.oid = w.type
    LEFT JOIN pg_range r ON base.oid IN (r.rngtypid, r.rngmultitypid)
    WHERE a.attrelid = %(oid)s AND base.typtype <> 'd' AND NOT (base.typcategory = 'A' AND base.typelem <> 0)
    ORDER BY a.attnum"""

# Those that ON CONFLICT can use: whole, valid, and not to be checked later.
_UNIQUE = """
    SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    FROM pg_index i
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL"""

_CHECKS = """
    SELECT c.conname, pg_get_expr(c.conbin, c.conrelid), coalesce(cardinality(c.conkey), 0),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.conrelid AND a.attnum > 0 AND a.attnum = ANY (c.conkey))
    FROM pg_constraint c
    WHERE c.conrelid = %s AND c.contype = 'c' AND pg_get_constraintdef(c.oid) NOT LIKE '%%NOT ENFORCED'"""

# tgtype: 1 for each row, 2 before, 4 on INSERT.
_TRIGGERS = """
    SELECT count(*) > 0, coalesce(bool_or(tgtype & 7 = 7), false) FROM pg_trigger
    WHERE NOT tgisinternal AND tgenabled <> 'D'
      AND (tgrelid = %(oid)s OR tgrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)))"""

_CONSTRAINTS = """
    SELECT coalesce(bool_or(condeferred), false), coalesce(bool_or(contype = 'f' AND confrelid = conrelid), false)
    FROM pg_constraint WHERE conrelid = %(oid)s OR (confrelid = %(oid)s AND condeferred)"""

_FOREIGN_KEY = """
    SELECT quote_ident(n.nspname) || '.' || quote_ident(r.relname), c.confrelid = c.conrelid,
           ARRAY(SELECT attname::text FROM unnest(c.conkey) WITH ORDINALITY k(attnum, at)
                 JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum ORDER BY k.at),
           ARRAY(SELECT attname::text FROM unnest(c.confkey) WITH ORDINALITY k(attnum, at)
                 JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum ORDER BY k.at)
    FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid JOIN pg_namespace n ON n.oid = r.relnamespace
    WHERE c.conrelid = %s AND c.contype = 'f' AND c.conname = %s AND c.confmatchtype = 's'
      AND NOT row_security_active(r.oid)  -- which hides rows from a query, and not from the key"""


# The schema that the table is in, or will be, and whether the table of batches is in it.
LOG_SCHEMA = """
    SELECT found.name, EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                               WHERE n.nspname = found.name AND c.relname = %(log)s)
    FROM (SELECT coalesce(%(schema)s,
                          (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                           WHERE c.oid = to_regclass(%(table)s)),
                          current_schema())::text AS name) AS found"""


class CheckConstraint(NamedTuple):
    """A CHECK of a table."""

    name: str
    expression: str
    columns: frozenset[str]


class PostgresForeignKey(NamedTuple):
    """Columns that must be found in another table, or in the same."""

    refers_to: str
    itself: bool
    columns: tuple[str, ...]
    found_as: tuple[str, ...]

    def orphan(self, values: Sequence[str]) -> str:
        """Return what is wrong with a row that refers to nothing."""
        return f"Key ({', '.join(self.columns)})=({', '.join(values)}) is not present in {self.refers_to}"


@dataclass(frozen=True, slots=True)
class PostgresSchema(TableSchema):
    """A table of PostgreSQL."""

    oid: int
    plain: bool
    """COPY into the table itself does exactly what INSERT does."""
    rewrites: bool
    """A trigger may change a row before the constraints are checked."""
    acts_later: bool
    """Something may be noticed only when the transaction ends."""
    refers_to_itself: bool
    not_null: frozenset[str]
    base_types: dict[str, str]
    """By column: `json`, `jsonb`, `array`, `timestamptz`, `int8` …"""
    stored_types: dict[str, StoredType]
    collations: dict[str, str]
    checks: tuple[CheckConstraint, ...]
    nondeterministic: frozenset[str]
    """Columns in which texts of different characters may be equal."""


def read_shape(connection: Connection, table: TableName) -> PostgresSchema | None:
    """Return the schema of a table; None if there is no such table."""
    row = connection.exec_driver_sql(_TABLE, (table.sql,)).one_or_none()
    if row is None:
        return None
    oid, is_table, kind = row
    columns = connection.exec_driver_sql(_COLUMNS, {"oid": oid}).all()
    has_triggers, rewrites = connection.exec_driver_sql(_TRIGGERS, {"oid": oid}).one()
    deferred, refers_to_itself = connection.exec_driver_sql(_CONSTRAINTS, {"oid": oid}).one()
    checks = connection.exec_driver_sql(_CHECKS, (oid,)).all()
    return PostgresSchema(
        columns=tuple(
            TableColumn(name, type_, required=not_null and not default and not computed, computed=computed)
            for name, type_, not_null, default, computed, *_ in columns
        ),
        unique=tuple(frozenset(names) for (names,) in connection.exec_driver_sql(_UNIQUE, (oid,))),
        kind=kind,
        oid=oid,
        plain=is_table and not has_triggers,
        rewrites=rewrites,
        acts_later=deferred or has_triggers,
        refers_to_itself=refers_to_itself,
        not_null=frozenset(name for name, _, not_null, *_ in columns if not_null),
        base_types={column.attname: "array" if column.is_array else column.typname for column in columns},
        collations={name: collation or "" for name, _, _, _, _, collation, *_ in columns},
        stored_types={column.attname: _stored(connection, column) for column in columns},
        # One that is about the row as a whole names no column, and is left to the table.
        checks=tuple(
            CheckConstraint(name, said, frozenset(of)) for name, said, count, of in checks if count == len(of)
        ),
        nondeterministic=frozenset(name for name, _, _, _, _, _, nondeterministic, *_ in columns if nondeterministic),
    )


def _stored(connection: Connection, column: Any) -> StoredType:
    *_, is_array, kind, is_range, composite = column
    fields = connection.exec_driver_sql(_COLUMNS, {"oid": composite}).all() if composite else ()
    return StoredType(kind, is_array, is_range, tuple(_stored(connection, field) for field in fields))


def other_tables(connection: Connection) -> list[str]:
    """Return the tables the user may have meant."""
    rows = connection.exec_driver_sql(
        """SELECT schemaname, tablename, schemaname = ANY (current_schemas(false)) FROM pg_tables
           WHERE schemaname NOT IN ('pg_catalog', 'information_schema') LIMIT 10000"""
    )
    return [name for schema, table, near in rows for name in ([table] if near else []) + [f"{schema}.{table}"]]


def has_schema(connection: Connection, schema: str) -> bool:
    """Return whether a schema of this name exists."""
    rows = connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
    return rows.one_or_none() is not None


def foreign_key(cursor: Any, shape: PostgresSchema, name: str) -> PostgresForeignKey | None:
    """Return a foreign key by its name, if a query can find what it refers to and it accepts NULL."""
    row = cursor.execute(_FOREIGN_KEY, (shape.oid, name)).fetchone()
    if row is None:
        return None
    refers_to, itself, columns, found_as = row
    return PostgresForeignKey(refers_to, itself, tuple(columns), tuple(found_as))


class Staging(NamedTuple):
    """A temporary table for rows on their way: types and constraints of the target, so that COPY meets the faults."""

    name: str
    row: str
    """The column that holds the number of a row."""
    create: str

    @property
    def table(self) -> str:
        """As a statement names it."""
        return f"pg_temp.{self.name}"


def staging(shape: PostgresSchema, columns: Sequence[str]) -> Staging:
    """Return the staging table for rows of these columns; its name is derived from its columns."""
    row = "redrive_row"
    while row in columns:
        row += "_"
    known = {column.name: column for column in shape.columns}
    made = [f"{quoted(row)} integer"]
    for name in columns:
        # A trigger may fill in missing values, and then only the table itself can report which are missing.
        strict = " NOT NULL" if name in shape.not_null and not shape.rewrites else ""
        made.append(f"{quoted(name)} {known[name].type}{shape.collations[name]}{strict}")
    if not shape.rewrites:
        made += [
            f"CONSTRAINT {quoted(check.name)} CHECK ({check.expression})"
            for check in shape.checks
            if check.columns <= set(columns)
        ]
    body = ", ".join(made)
    name = f"redrive_load_{blake2s(body.encode(), digest_size=6).hexdigest()}"
    return Staging(name, row, f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({body}) ON COMMIT DELETE ROWS")


def upsert(table: TableName, columns: Sequence[str], key: Sequence[str], source: str, mode: WriteMode) -> str:
    """Return the statement that makes staged rows the table's own."""
    insert = f"INSERT INTO {table.sql} AS redrive_own ({listed(columns)}) SELECT {listed(columns)} FROM {source}"
    if not key:
        return insert
    others = [name for name in columns if name not in key]
    return f"{insert} ON CONFLICT ({listed(key)}) DO {mode.action('redrive_own', others)}"


def absent(table: TableName, staged: Staging, key: Sequence[str], bad: Iterable[int]) -> str:
    """Return the query for how many of the staged rows, except rejected ones, are not in the table."""
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
    return (
        f"SELECT count(*) FROM {staged.table} s WHERE NOT EXISTS (SELECT FROM {table.sql} t WHERE {same}) "
        f"AND s.{quoted(staged.row)} <> ALL ('{{{','.join(map(str, bad))}}}'::integer[])"
    )


def orphans(staged: Staging, key: PostgresForeignKey) -> str:
    """Return the query for staged rows whose foreign key leads nowhere, each with the values of it."""
    own = [f"s.{quoted(name)}" for name in key.columns]
    same = " AND ".join(f"r.{quoted(name)} = {value}" for name, value in zip(key.found_as, own, strict=True))
    places = [key.refers_to, *([staged.table] if key.itself else [])]
    return (
        f"SELECT s.{quoted(staged.row)}, {', '.join(f'{value}::text' for value in own)} FROM {staged.table} s WHERE "
        + " AND ".join(f"{value} IS NOT NULL" for value in own)
        + "".join(f" AND NOT EXISTS (SELECT FROM {place} r WHERE {same})" for place in places)
    )
