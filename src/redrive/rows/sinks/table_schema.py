"""Names, columns and unique indexes of a table, and whether rows fit them, before any row is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from redrive.errors import SinkMismatch

_PART = r'"(?:[^"]|"")+"|[^".]+'
_NAME = re.compile(rf"\s*(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})\s*")

_LOWER = str.maketrans({chr(code): chr(code).lower() for code in range(ord("A"), ord("Z") + 1)})


def fold_name(name: str) -> str:
    """Return a name as SQLite and DuckDB compare it: letters from A to Z are as good as small ones, and no others."""
    return name.translate(_LOWER)


def quoted(identifier: str) -> str:
    """Return an identifier as SQL has it, whatever it is made of."""
    return '"' + identifier.replace('"', '""') + '"'


def listed(columns: Iterable[str]) -> str:
    """Return columns as SQL lists them."""
    return ", ".join(map(quoted, columns))


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, and its schema where one is named. Both are taken as they are written, capitals and all."""

    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, name: str) -> TableName:
        """Read `table` or `schema.table`; a part that has a dot in it stands in double quotes."""
        if not isinstance(name, str):
            raise TypeError(f"the table's name is a text, not {type(name).__name__}")
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f'{name!r} is no name of a table; write "table" or "schema.table"')
        schema, table = match["schema"], match["table"]
        return cls(_bare(table), None if schema is None else _bare(schema))

    @property
    def sql(self) -> str:
        """As a statement names it."""
        return quoted(self.table) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.table)}"

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def _bare(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.strip()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    name: str
    type: str = ""
    """As the database writes it."""
    required: bool = False
    """Every row must bring a value: NOT NULL, and no default."""
    computed: bool = False
    """The table makes the value itself, and takes none."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What rows must know about a table before they go in."""

    columns: tuple[TableColumn, ...]
    unique: tuple[frozenset[str], ...]
    """The sets of columns that no two rows have in common, by an index that an upsert can use."""
    kind: str = field(default="table", kw_only=True)
    """What the database calls it: `table`, `view`, `materialized view` …"""

    def types(self, columns: Sequence[str], fold: Callable[[str], str] = str) -> list[str]:
        """Return the types of these columns."""
        known = {fold(column.name): column.type for column in self.columns}
        return [known[fold(name)] for name in columns]

    def type_of(self, column: str, fold: Callable[[str], str] = str) -> str | None:
        """Return the type of a column; None if there is no such column."""
        return next((known.type for known in self.columns if fold(known.name) == fold(column)), None)


def no_table(where: str, table: TableName, others: Iterable[str] = ()) -> SinkMismatch:
    """Return the error for a missing table."""
    near = _near(str(table), others)
    hint = f"did you mean {near}?" if near else "create it, or pass create=True to create it from the first rows"
    return SinkMismatch(f"{where} has no table {table}; {hint}")


def compare(
    table: TableName,
    shape: TableSchema | None,
    columns: Sequence[str],
    key: Sequence[str],
    fold: Callable[[str], str] = str,
) -> None:
    """Raise where rows of these columns cannot go in; a table that is yet to be made only needs the key.

    `fold` makes names equal that the database takes for the same.
    """
    given: dict[str, str] = {}
    for name in columns:
        if (twin := given.setdefault(fold(name), name)) != name:
            raise SinkMismatch(f"{table} takes {twin!r} and {name!r} for one column; rename one of them in the rows")
    if missing := [name for name in key if fold(name) not in given]:
        raise SinkMismatch(
            f"{table} is written by its key, and the rows lack {_named(missing)} of it{_have(columns)}", lacking=missing
        )
    if shape is None:
        return
    if key and shape.kind != "table":
        raise SinkMismatch(
            f"{table} is a {shape.kind}, and rows are written by their key to a table only; name the table behind it"
        )
    known = {fold(column.name): column for column in shape.columns}
    if unknown := [name for name in columns if fold(name) not in known]:
        near = _near(unknown[0], (column.name for column in shape.columns))
        hint = f"did you mean {near!r}?" if near else "add it to the table, or leave it out of the rows"
        raise SinkMismatch(f"{table} has no {_named(unknown)}, which the rows have; {hint}", unknown=unknown)
    if computed := [name for name in columns if known[fold(name)].computed]:
        raise SinkMismatch(
            f"{table} computes {_named(computed)} itself and takes no value; leave it out of the rows", extra=computed
        )
    if key and not any({fold(name) for name in index} == {fold(name) for name in key} for index in shape.unique):
        raise SinkMismatch(
            f"no unique index of {table} is on {_named(key)} alone, so a row cannot be known by it; make one: "
            f"CREATE UNIQUE INDEX {quoted('_'.join((table.table, *key)))} ON {table.sql} ({listed(key)})"
        )
    if lacking := [column.name for column in shape.columns if column.required and fold(column.name) not in given]:
        raise SinkMismatch(
            f"{table} needs a value for {_named(lacking)} (NOT NULL without a default), which the rows do not have",
            lacking=lacking,
        )


def _named(columns: Sequence[str]) -> str:
    noun = "column" if len(columns) == 1 else "columns"
    return f"{noun} {', '.join(map(repr, columns))}"


def _have(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    return f"; they have {shown}" if columns else ""


def _near(name: str, others: Iterable[str]) -> str | None:
    by_lower = {other.lower(): other for other in others}
    matches = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None


class UniqueIndex(NamedTuple):
    """A unique index beside the key."""

    name: str
    columns: tuple[str, ...]


class IndexClaim(NamedTuple):
    """A row of a batch, and the value of an index that it brings."""

    row: int
    on: UniqueIndex
    values: tuple[Any, ...]


def losers(
    taken: Iterable[tuple[IndexClaim, bool]], contested: Iterable[IndexClaim], *, in_order: bool
) -> dict[int, tuple[UniqueIndex, tuple[Any, ...]]]:
    """Return the rows that are certainly rejected when a batch is applied row by row, each with the value it lost.

    Args:
        taken: claims on values that another row of the table has, and whether the batch may change that row.
        contested: claims on values that several rows of the batch bring.
        in_order: whether the first row of the batch that claims a value gets it, so that the others lose. Not so where
            rows may be rejected for reasons that are not known here.
    """
    refused: dict[int, tuple[UniqueIndex, tuple[Any, ...]]] = {}
    unsure: set[int] = set()
    for claim, may_change in taken:
        if may_change:
            unsure.add(claim.row)
        else:
            refused.setdefault(claim.row, (claim.on, claim.values))
    if not in_order:
        return refused
    by_row: dict[int, list[IndexClaim]] = {}
    for claim in contested:
        by_row.setdefault(claim.row, []).append(claim)
    holders: dict[tuple[UniqueIndex, tuple[Any, ...]], int] = {}
    for row in sorted(by_row):
        if row in refused:
            continue
        lost = [claim for claim in by_row[row] if (claim.on, claim.values) in holders]
        sure = [claim for claim in lost if holders[claim.on, claim.values] not in unsure]
        if sure:
            refused[row] = sure[0].on, sure[0].values
            continue
        if lost:
            unsure.add(row)
        for claim in by_row[row]:
            holders.setdefault((claim.on, claim.values), row)
    return refused


def shown_values(values: Sequence[Any]) -> str:
    """Return the values of an index as a message shows them."""
    return ", ".join(str(value) for value in values)
