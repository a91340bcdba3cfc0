"""What SQLite knows about a table that rows are to be loaded into."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection

from redrive.rows.sinks.table_schema import TableColumn, TableName, TableSchema, quoted


class SqliteForeignKey(NamedTuple):
    """Columns that must be found in another table, or in the same."""

    refers_to: str
    columns: tuple[str, ...]
    found_as: tuple[str, ...]

    @property
    def lookup(self) -> str:
        """The query for what one row refers to."""
        return f"SELECT 1 FROM {quoted(self.refers_to)} WHERE " + " AND ".join(
            f"{quoted(name)} = ?" for name in self.found_as
        )

    def orphans(self, rows: str, number: str, own: str) -> str:
        """Return the query for rows that refer to nothing: their number, and the values of the key."""
        values = [f"{own}.{quoted(name)}" for name in self.columns]
        same = " AND ".join(f"r.{quoted(name)} = {value}" for name, value in zip(self.found_as, values, strict=True))
        return (
            f"SELECT {number}, {', '.join(values)} FROM {rows} WHERE "
            + " AND ".join(f"{value} IS NOT NULL" for value in values)
            + f" AND NOT EXISTS (SELECT 1 FROM {quoted(self.refers_to)} r WHERE {same})"
        )

    def message(self, values: Sequence[Any]) -> str:
        """Return what is wrong with a row that refers to nothing."""
        shown = ", ".join(str(value) for value in values)
        return (
            f"FOREIGN KEY constraint failed: ({', '.join(self.columns)})=({shown}) is not present in {self.refers_to}"
        )


@dataclass(frozen=True, slots=True)
class SqliteSchema(TableSchema):
    """A table of SQLite."""

    foreign_keys: tuple[SqliteForeignKey, ...]
    checks_late: bool
    """A foreign key is looked at when the transaction ends, or must be: a row may refer to one after it."""
    suppresses: bool
    """A trigger may leave a row out, as RAISE(IGNORE) has it."""
    leaves_traces: bool
    """A row that is rejected may be there in part, as RAISE(FAIL) has it."""
    collations: dict[frozenset[str], dict[str, str]]
    """By the columns of a unique index, in lower case: how it compares each of them."""


def read_shape(connection: Connection, table: TableName) -> SqliteSchema | None:
    """Return the schema of a table; None if there is no such table."""
    schema = table.schema or "main"
    columns = _rows(connection, "table_xinfo", table.table, schema)
    if not columns:
        return None
    primary = [name for _, name, *_, place, _ in sorted(columns, key=lambda column: column[5]) if place]
    definition = _definition(connection, table)
    foreign_keys = _foreign_keys(connection, table.table, schema)
    return SqliteSchema(
        columns=tuple(
            TableColumn(
                name,
                kind,
                # A lone INTEGER PRIMARY KEY numbers the rows itself.
                required=bool(not_null) and default is None and not hidden,
                computed=hidden in (2, 3),
            )
            for _, name, kind, not_null, default, _, hidden in columns
        ),
        unique=tuple(frozenset(index) for index in [primary, *_unique(connection, table.table, schema)] if index),
        foreign_keys=foreign_keys,
        checks_late="DEFERRED" in definition
        or any(key.refers_to.lower() == table.table.lower() for key in foreign_keys),
        suppresses=re.search(r"\bRAISE\s*\(\s*IGNORE\b", definition) is not None,
        leaves_traces=re.search(r"\bFAIL\b", definition) is not None,
        collations=_collations(connection, table.table, schema),
        kind="view" if _is_view(connection, table.table, schema) else "table",
    )


def ends_transactions(connection: Connection, table: TableName) -> bool:
    """Return whether the table or a trigger of it may answer a rejected row with the end of the whole transaction."""
    return re.search(r"\bROLLBACK\b", _definition(connection, table)) is not None


def loses_rows(connection: Connection, table: TableName) -> bool:
    """Return whether the table leaves out a rejected row, or another one, without an error."""
    definition = _definition(connection, table, "table")
    return re.search(r"\bON\s+CONFLICT\s+(IGNORE|REPLACE)\b", definition) is not None


def other_tables(connection: Connection) -> list[str]:
    """Return the tables the user may have meant."""
    return [name for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _definition(connection: Connection, table: TableName, *kinds: str) -> str:
    rows = connection.exec_driver_sql(
        f"SELECT type, sql FROM {quoted(table.schema or 'main')}.sqlite_master WHERE tbl_name = ? COLLATE NOCASE",
        (table.table,),
    )
    return " ".join(definition or "" for kind, definition in rows if kind in (kinds or ("table", "trigger"))).upper()


def _is_view(connection: Connection, name: str, schema: str) -> bool:
    query = f"SELECT 1 FROM {quoted(schema)}.sqlite_master WHERE type = 'view' AND name = ? COLLATE NOCASE"
    return connection.exec_driver_sql(query, (name,)).first() is not None


def _unique(connection: Connection, table: str, schema: str) -> list[list[str]]:
    """Indexes over whole columns and all rows."""
    indexes = [
        [name for _, _, name in _rows(connection, "index_info", index, schema)]
        for _, index, unique, _, partial in _rows(connection, "index_list", table, schema)
        if unique and not partial
    ]
    return [names for names in indexes if None not in names]


def _collations(connection: Connection, table: str, schema: str) -> dict[frozenset[str], dict[str, str]]:
    result: dict[frozenset[str], dict[str, str]] = {}
    for _, index, unique, _, partial in _rows(connection, "index_list", table, schema):
        columns = [column for column in _rows(connection, "index_xinfo", index, schema) if column[5]]
        if unique and not partial and all(name is not None for _, _, name, *_ in columns):
            own = {name.lower(): collation.upper() for _, _, name, _, collation, _ in columns}
            result[frozenset(own)] = own
    return result


def _foreign_keys(connection: Connection, table: str, schema: str) -> tuple[SqliteForeignKey, ...]:
    parts: defaultdict[int, list[Any]] = defaultdict(list)
    for number, _, other, own, referred, *_ in _rows(connection, "foreign_key_list", table, schema):
        parts[number].append((other, own, referred))
    keys = []
    for result in parts.values():
        (other, *_), own, referred = zip(*result, strict=True)
        if None in referred:  # then the primary key is meant
            columns = _rows(connection, "table_xinfo", other, schema)
            referred = tuple(column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5])
        if len(referred) == len(own):
            keys.append(SqliteForeignKey(other, own, referred))
    return tuple(keys)


def _rows(connection: Connection, pragma: str, name: str, schema: str) -> Sequence[Any]:
    return connection.exec_driver_sql(f"SELECT * FROM pragma_{pragma}(?, ?)", (name, schema)).all()
