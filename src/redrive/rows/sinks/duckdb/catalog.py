"""What DuckDB knows about a table that rows are to be loaded into, and how to ask which rows it will refuse."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive._internal.optional import require_extra
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.table_schema import TableColumn, TableName, TableSchema, UniqueIndex, fold_name, listed, quoted

with require_extra("rows"):
    import duckdb

_HERE = "database_name = current_database() AND schema_name = ?"
_UNIQUE = ("PRIMARY KEY", "UNIQUE")
_KEYS = (*_UNIQUE, "FOREIGN KEY")  # each has an index
_COLLATED = re.compile(r"""("(?:[^"]|""){1,200}"|(?<!\w)\w{1,200}) VARCHAR COLLATE ([\w.]+)""")
_INDEXED = re.compile(r"'((?:[^']|'')*)'|([^,\[\]\s][^,\[\]]*)")


class QueryableConstraint(NamedTuple):
    """A constraint that a query can ask about."""

    kind: str
    """CHECK or FOREIGN KEY."""
    text: str
    columns: tuple[str, ...]
    expression: str = ""
    refers_to: str = ""
    found_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DuckdbSchema(TableSchema):
    """A table of DuckDB."""

    not_null: frozenset[str]
    rules: tuple[QueryableConstraint, ...]
    moved: frozenset[str]
    """Columns whose change is made by removing the row and adding it again: those of indexes, and nested ones."""
    referred_to: bool
    """Other rows refer to those of this table, which cannot be removed then."""
    collations: dict[str, str]
    """By column, in lower case: how texts are compared, where that is not by their characters."""

    @property
    def refers_to_itself(self) -> bool:
        """Return whether a row may refer to another row of the same table."""
        return self.referred_to and any(rule.kind == "FOREIGN KEY" for rule in self.rules)


def read_shape(connection: duckdb.DuckDBPyConnection, table: TableName) -> DuckdbSchema | None:
    """Return the schema of a table; None if there is no such table."""
    schema = _schema(connection, table)
    own = f"{_HERE} AND lower(table_name) = lower(?)"
    columns = _records(connection, f"SELECT * FROM duckdb_columns() WHERE {own} ORDER BY column_index", schema, table)
    if not columns:
        return None
    constraints = _records(connection, f"SELECT * FROM duckdb_constraints() WHERE {own}", schema, table)
    indexes = _records(connection, f"SELECT * FROM duckdb_indexes() WHERE {own}", schema, table)
    referring = f"SELECT 1 FROM duckdb_constraints() WHERE {_HERE} AND lower(referenced_table) = lower(?)"
    unique = [
        *(
            constraint["constraint_column_names"]
            for constraint in constraints
            if constraint["constraint_type"] in _UNIQUE
        ),
        *(_names(index["expressions"]) for index in indexes if index["is_unique"]),
    ]
    keyed = {
        name
        for constraint in constraints
        if constraint["constraint_type"] in _KEYS
        for name in constraint["constraint_column_names"]
    }
    spoken = " ".join(str(index["expressions"]) for index in indexes)
    return DuckdbSchema(
        columns=tuple(
            TableColumn(
                column["column_name"],
                column["data_type"],
                required=not column["is_nullable"] and column["column_default"] is None,
                computed=bool(column.get("is_generated")),
            )
            for column in columns
        ),
        unique=tuple(map(frozenset, unique)),
        not_null=frozenset(column["column_name"].lower() for column in columns if not column["is_nullable"]),
        rules=tuple(_rules(constraints, schema)),
        moved=frozenset(
            column["column_name"].lower()
            for column in columns
            if column["column_name"] in keyed or column["column_name"] in spoken or is_nested(column["data_type"])
        ),
        referred_to=bool(connection.execute(referring, [schema, table.table]).fetchall()),
        collations=_collations(connection, own, schema, table),
        kind="view" if _is_view(connection, schema, table) else "table",
    )


def _is_view(connection: duckdb.DuckDBPyConnection, schema: str, table: TableName) -> bool:
    return bool(
        _records(
            connection, f"SELECT 1 FROM duckdb_views() WHERE {_HERE} AND lower(view_name) = lower(?)", schema, table
        )
    )


def _collations(connection: duckdb.DuckDBPyConnection, own: str, schema: str, table: TableName) -> dict[str, str]:
    """Return the collations of columns, from the definition of the table: no other part of the catalog has them."""
    rows = _records(connection, f"SELECT sql FROM duckdb_tables() WHERE {own}", schema, table)
    text = " ".join(str(row["sql"]) for row in rows)
    return {
        (name[1:-1].replace('""', '"') if name.startswith('"') else name).lower(): collation
        for name, collation in _COLLATED.findall(text)
    }


def is_nested(kind: str) -> bool:
    """Return whether a type of DuckDB is made of others."""
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION"))


def type_of(connection: duckdb.DuckDBPyConnection, name: str) -> Any:
    """Return a type by its name: it has an `id`, and `children` where it is made of others."""
    description = connection.execute(f"SELECT CAST(NULL AS {name})").description
    assert description is not None
    return description[0][1]


def other_tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the tables the user may have meant."""
    rows = connection.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
    return [str(TableName(table, None if schema == "main" else schema)) for schema, table in rows]


def has_schema(connection: duckdb.DuckDBPyConnection, schema: str) -> bool:
    """Return whether a schema of this name exists."""
    query = "SELECT 1 FROM duckdb_schemas() WHERE database_name = current_database() AND lower(schema_name) = lower(?)"
    return bool(connection.execute(query, [schema]).fetchall())


def _schema(connection: duckdb.DuckDBPyConnection, table: TableName) -> str:
    query = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database() AND "
    if table.schema is None:
        row = connection.execute(f"{query} schema_name = current_schema()").fetchone()
    else:
        row = connection.execute(f"{query} lower(schema_name) = lower(?)", [table.schema]).fetchone()
    return str(row[0]) if row else ""


def _records(
    connection: duckdb.DuckDBPyConnection, query: str, schema: str, table: TableName
) -> list[Mapping[str, Any]]:
    rows = connection.execute(query, [schema, table.table])
    names = [column[0] for column in rows.description or ()]
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


def _names(expressions: object) -> list[str]:
    """Return the columns of an index; its expressions come as one text: [a, '"B c"']."""
    parts = [plain or text.replace("''", "'") for text, plain in _INDEXED.findall(str(expressions))]
    return [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts]


def _rules(constraints: Sequence[Mapping[str, Any]], schema: str) -> list[QueryableConstraint]:
    rules = []
    for constraint in constraints:
        kind, text, columns = (
            constraint["constraint_type"],
            constraint["constraint_text"],
            tuple(constraint["constraint_column_names"]),
        )
        if kind == "CHECK":
            rules.append(QueryableConstraint(kind, text, columns, expression=constraint["expression"]))
        elif kind == "FOREIGN KEY":
            other = TableName(constraint["referenced_table"], schema)
            rules.append(
                QueryableConstraint(
                    kind, text, columns, refers_to=other.sql, found_as=tuple(constraint["referenced_column_names"])
                )
            )
    return rules


def upserts(
    table: TableName, shape: DuckdbSchema, columns: Mapping[str, str], key: Sequence[str], mode: WriteMode
) -> list[str]:
    """Return the statements that make rows the table's own; `columns` holds the expression that reads each.

    A row that would not change is left alone. Where other rows refer to it, what can be changed in place is changed on
    its own: DuckDB does not move such a row, even for a value that is the same.
    """
    if not key:
        return [_insert(table, columns)]
    parts = {part.lower() for part in key}
    others = [name for name in columns if name.lower() not in parts]
    if mode.on_conflict == "ignore":
        others = []
    compared = {*parts, *([mode.newer.lower()] if mode.newer else [])}
    for name in [name for name in columns if name.lower() in compared]:
        # A value that comes as a text or a float would be compared as one, and be equal to others.
        columns = {**columns, name: f"CAST({columns[name]} AS {shape.types([name], fold_name)[0]})"}
    groups = [others]
    if shape.referred_to:
        groups = [
            group
            for moved in (False, True)
            if (group := [name for name in others if (name.lower() in shape.moved) is moved])
        ] or [[]]
    if mode.newer and len(groups) > 1:  # rows are compared by it until the last statement
        first, last = groups
        newer = [name for name in first if name.lower() == mode.newer.lower()]
        groups = [[name for name in first if name not in newer], [*last, *newer]]
    return [_upsert(table, columns, key, group, mode) for group in groups]


def _upsert(
    table: TableName, columns: Mapping[str, str], key: Sequence[str], changed: Sequence[str], mode: WriteMode
) -> str:
    own = quoted(table.table)
    action = "NOTHING"
    if changed:
        action = "UPDATE SET " + ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in changed)
        action += " WHERE " + (
            mode.is_newer(own)
            if mode.newer
            else " OR ".join(f"{own}.{quoted(name)} IS DISTINCT FROM excluded.{quoted(name)}" for name in changed)
        )
    return f"{_insert(table, columns)} ON CONFLICT ({listed(key)}) DO {action}"


def _insert(table: TableName, columns: Mapping[str, str]) -> str:
    return f"INSERT INTO {table.sql} ({listed(columns)}) SELECT {', '.join(columns.values())} FROM redrive_rows"


def faults(shape: DuckdbSchema, columns: Mapping[str, str], number: str) -> tuple[str, list[str]]:
    """Return the query for rows that will be rejected (row, fault and value), and the texts of the faults.

    It is about `redrive_rows`, whose column `number` holds the numbers.
    """
    types = dict(zip(columns, shape.types(list(columns), fold_name), strict=True))
    raw = {name: f'"redrive raw {at}"' for at, name in enumerate(columns)}
    conditions: list[tuple[str, str, str]] = []  # what is wrong, in SQL and in words, and the value to show
    for name, kind in types.items():
        wrong = f"{raw[name]} IS NOT NULL AND {quoted(name)} IS NULL"
        conditions.append((wrong, f"{name}: could not convert {{}} to {kind}", raw[name]))
    conditions += [
        (f"{raw[name]} IS NULL", f"NOT NULL constraint failed: {name}", "NULL")
        for name in columns
        if name.lower() in shape.not_null
    ]
    at_hand = {name.lower() for name in columns}
    for rule in shape.rules:
        if not {name.lower() for name in rule.columns} <= at_hand:
            continue
        if rule.kind == "CHECK":
            conditions.append((f"NOT ({rule.expression})", f"CHECK constraint failed: {rule.text}", "NULL"))
        else:
            conditions.append(_orphaned(rule))
    cases = " ".join(f"WHEN {wrong} THEN {at}" for at, (wrong, _, _) in enumerate(conditions))
    shown = " ".join(
        f"WHEN {at} THEN CAST({value} AS VARCHAR)" for at, (_, _, value) in enumerate(conditions) if value != "NULL"
    )
    read = ", ".join(
        f"{source} AS {raw[name]}, TRY_CAST({source} AS {types[name]}) AS {quoted(name)}"
        for name, source in columns.items()
    )
    query = (
        f'SELECT "redrive number", "redrive fault", CASE "redrive fault" {shown} END FROM ('
        f'SELECT *, CASE {cases} END AS "redrive fault" FROM ('
        f'SELECT {quoted(number)} AS "redrive number", {read} FROM redrive_rows) AS redrive_typed) '
        f'WHERE "redrive fault" IS NOT NULL'
    )
    return query, [words for _, words, _ in conditions]


def secondary(shape: DuckdbSchema, columns: Mapping[str, str], key: Sequence[str]) -> list[UniqueIndex]:
    """Return the unique indexes beside the key, of columns that the rows have."""
    at_hand, own = {name.lower(): name for name in columns}, {name.lower() for name in key}
    result = [sorted(name.lower() for name in names) for names in shape.unique]
    return [
        UniqueIndex(", ".join(at_hand[name] for name in names), tuple(at_hand[name] for name in names))
        for names in result
        if {*names} != own and {*names} <= {*at_hand}
    ]


def taken(table: TableName, typed: str, key: Sequence[str], index: UniqueIndex) -> str:
    """Return the query for rows whose value another row of the table has, and whether that one is in the batch, too."""
    values = ", ".join(f"CAST(s.{quoted(name)} AS VARCHAR)" for name in index.columns)
    same_value = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in index.columns)
    same_key = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key) or "false"
    in_batch = " AND ".join(f"t.{quoted(name)} = b.{quoted(name)}" for name in key) or "false"
    return (
        f"WITH typed AS ({typed}) SELECT s.redrive_at, EXISTS (SELECT 1 FROM typed b WHERE {in_batch}), {values} "
        f"FROM typed s JOIN {table.sql} t ON {same_value} WHERE NOT ({same_key})"
    )


def contested(typed: str, index: UniqueIndex) -> str:
    """Return the query for rows of which several bring the same value."""
    names = listed(index.columns)
    texts = ", ".join(f"CAST({quoted(name)} AS VARCHAR)" for name in index.columns)
    given = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in index.columns)
    return (
        f"WITH typed AS ({typed}) SELECT redrive_at, {texts} FROM typed WHERE {given} "
        f"QUALIFY count(*) OVER (PARTITION BY {names}) > 1"
    )


def _orphaned(rule: QueryableConstraint) -> tuple[str, str, str]:
    same = " AND ".join(
        f"redrive_other.{quoted(there)} = redrive_typed.{quoted(here)}"
        for here, there in zip(rule.columns, rule.found_as, strict=True)
    )
    given = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in rule.columns)
    value = f"concat_ws(', ', {listed(rule.columns)})"
    wrong = f"{given} AND NOT EXISTS (SELECT 1 FROM {rule.refers_to} AS redrive_other WHERE {same})"
    return wrong, f"{rule.text} failed: {{}} is not present", value
