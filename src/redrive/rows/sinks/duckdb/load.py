"""Load one batch into a table of DuckDB, and delete rows by their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from redrive._internal.optional import require_extra
from redrive.classify.detail import shown
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.duckdb.catalog import (
    DuckdbSchema,
    contested,
    faults,
    secondary,
    taken,
    type_of,
    upserts,
)
from redrive.rows.sinks.duckdb.values import framed, stored_values
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.sql_table import is_row_fault
from redrive.rows.sinks.table_schema import (
    IndexClaim,
    TableName,
    fold_name,
    losers,
    quoted,
    shown_values,
)

with require_extra("rows"):
    import duckdb


def first_line(error: Exception) -> str:
    return shown(str(error).partition("\n")[0]) or type(error).__name__


class DuckdbLoad:
    """One batch on its way into the table. DuckDB has no savepoints: every attempt is a transaction of its own."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: TableName,
        key: Sequence[str],
        shape: DuckdbSchema,
        rows: Outgoing,
        *,
        make: str | None,
        keep: bool,
        mode: WriteMode,
    ) -> None:
        self._mode, self._changed = mode, 0
        self._connection, self._shape, self._make, self._keep = connection, shape, make, keep
        self._table, self._key = table, key
        self._asked_rules = False
        types = shape.types(rows.columns, fold_name)
        self._frame, self._bad, self._columns = framed(rows, types, partial(type_of, connection))
        self._upserts = upserts(table, shape, self._columns, key, mode)
        self._rehearsed: list[list[int]] = [[]]  # rows that a dry run has accepted, pass by pass

    def run(self) -> dict[int, str]:
        """Write the rows that the table takes; the others by place, and why."""
        places = [place for place in range(self._frame.height) if place not in self._bad]
        while places:
            refused = self._pass(places)
            # A row may refer to one that was written with it: once that is in, it may be, too.
            if not self._shape.refers_to_itself or len(refused) in (0, len(places)):
                return {**self._bad, **refused}
            places = sorted(refused)
            self._rehearsed.append([])
        return self._bad

    def append(self, note: Callable[[Mapping[int, str]], None], *, all_or_none: bool) -> dict[int, str]:
        """Write the rows that the table takes, and `note` those that it does not, in one transaction.

        all_or_none  where some are rejected, write nothing
        """
        places = [place for place in range(self._frame.height) if place not in self._bad]
        if places and not (self._bad and all_or_none) and self._commit([places], note, self._bad) is None:
            return self._bad
        self._keep = False  # find the good rows first, since every attempt is a transaction of its own
        bad = self.run()
        good = [sorted(group) for group in self._rehearsed if group]
        if good and not (bad and all_or_none) and (error := self._commit(good, note, bad)) is not None:
            raise error
        return bad

    def _commit(
        self, groups: Sequence[Sequence[int]], note: Callable[[Mapping[int, str]], None], bad: Mapping[int, str]
    ) -> Exception | None:
        try:
            self._begin(groups)
            note(bad)
            self._connection.execute("COMMIT")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            self._connection.execute("ROLLBACK")
            return error
        return None

    def _pass(self, places: Sequence[int]) -> dict[int, str]:
        # DuckDB does not check the values of a row that leaves the table as it is: without the question, it would be
        # rejected only where another row of the batch is at fault.
        is_asked = self._mode.compares
        if not is_asked and self._attempt(places) is None:
            return {}
        refused = self._faults(places)
        rest = [place for place in places if place not in refused] if refused else places
        if not rest or ((refused or is_asked) and self._attempt(rest) is None):
            return refused
        if lost := self._losers(rest):
            refused |= lost
            rest = [place for place in rest if place not in lost]
            if not rest or self._attempt(rest) is None:
                return refused
        failures = isolate(len(rest), lambda start, stop: self._attempt(rest[start:stop]))
        return {**refused, **{rest[at]: first_line(error) for at, error in failures}}

    def _attempt(self, places: Sequence[int]) -> Exception | None:
        """Write rows as a whole, and keep them; or none of them, and give the fault of the row that is why."""
        groups: list[Sequence[int]] = [places]
        if not self._keep:  # rows that a write would have kept by now are there for those that come after them
            groups = [*self._rehearsed[:-1], sorted([*self._rehearsed[-1], *places])]
        try:
            changed = self._begin(groups)
            self._connection.execute("COMMIT" if self._keep else "ROLLBACK")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            self._connection.execute("ROLLBACK")
            return error
        self._rehearsed[-1] += places
        # A dry run writes the rows again that it has accepted so far.
        self._changed = self._changed + changed if self._keep else changed
        return None

    def ignored(self, good: int) -> int:
        """Return how many of the rows that are not bad did not change the table, where that is counted."""
        return max(0, good - self._changed) if self._mode.compares else 0

    def _begin(self, groups: Sequence[Sequence[int]]) -> int:
        """Begin a transaction and write rows; how many of them have changed the table."""
        changed = 0
        self._connection.execute("BEGIN")
        if self._make:
            self._connection.execute(self._make)
        for places in groups:
            some = self._frame if len(places) == self._frame.height else self._frame[list(places)]
            self._connection.register("redrive_rows", some)
            counts = [(self._connection.execute(statement).fetchone() or (0,))[0] for statement in self._upserts]
            changed += max(counts)
        return changed

    def _faults(self, places: Sequence[int]) -> dict[int, str]:
        """Return the rows that break a rule which a query can look at; none if it cannot be asked."""
        query, words = faults(self._shape, self._columns, self._number())
        rows = self._run_queries(places, [query])
        self._asked_rules = rows is not None
        (faulty,) = rows or [[]]
        return {place: words[at].replace("{}", repr(value), 1) for place, at, value in faulty}

    def _losers(self, places: Sequence[int]) -> dict[int, str]:
        """Return the rows that are rejected for certain because of a unique index beside the key."""
        if not self._mode.is_plain:  # then a row whose key is there may be left as it is
            return {}
        indexes = secondary(self._shape, self._columns, self._key)
        types = dict(zip(self._columns, self._shape.types(list(self._columns), fold_name), strict=True))
        wanted = dict.fromkeys([*(name for index in indexes for name in index.columns), *self._own_key()])
        typed = f"SELECT {quoted(self._number())} AS redrive_at, " + ", ".join(
            f"TRY_CAST({self._columns[name]} AS {types[name]}) AS {quoted(name)}" for name in wanted
        )
        typed += " FROM redrive_rows"
        queries = [taken(self._table, typed, self._key, index) for index in indexes]
        result = self._run_queries(places, [*queries, *(contested(typed, index) for index in indexes)])
        if not indexes or result is None:
            return {}
        others, in_ids = result[: len(indexes)], result[len(indexes) :]
        lost = losers(
            [
                (IndexClaim(row, index, tuple(values)), bool(may_change))
                for index, rows in zip(indexes, others, strict=True)
                for row, may_change, *values in rows
            ],
            [
                IndexClaim(row, index, tuple(values))
                for index, rows in zip(indexes, in_ids, strict=True)
                for row, *values in rows
            ],
            in_order=self._asked_rules and not self._shape.refers_to_itself and self._knows_rules(),
        )
        return {
            row: f"Duplicate key: {index.name} = {shown_values(values)} violates unique constraint"
            for row, (index, values) in lost.items()
        }

    def _run_queries(self, places: Sequence[int], queries: Sequence[str]) -> list[list[Any]] | None:
        """Return the answers of queries about rows; None if they cannot be asked."""
        try:
            self._begin(() if self._keep else self._rehearsed)
            self._connection.register("redrive_rows", self._frame.with_row_index(self._number())[list(places)])
            rows = [self._connection.execute(query).fetchall() for query in queries]
        except duckdb.Error:
            rows = None
        self._connection.execute("ROLLBACK")
        return rows

    def _number(self) -> str:
        """Return a name for the column that holds the numbers of the rows."""
        number = "redrive_row"
        while number in self._frame.columns:
            number += "_"
        return number

    def _own_key(self) -> list[str]:
        """Return the key by the names that the rows have."""
        names = {name.lower(): name for name in self._columns}
        return [names[name.lower()] for name in self._key]

    def _knows_rules(self) -> bool:
        """Return whether every rule of the table is about columns that the rows have, so that it was asked about."""
        at_hand = {name.lower() for name in self._columns}
        return all({name.lower() for name in rule.columns} <= at_hand for rule in self._shape.rules)


def delete_rows(
    connection: duckdb.DuckDBPyConnection,
    table: TableName,
    key: Sequence[str],
    shape: DuckdbSchema,
    rows: Outgoing,
    *,
    mode: WriteMode,
    keep: bool,
) -> tuple[dict[int, str], int]:
    """Delete by key, with `newer` only what is older.

    Returns the rows for which that fails by place, and why; and how many others left the row of their key in the table.

    Every attempt is a transaction of its own, which is undone unless it is to be kept.
    """
    names = [*key, *([mode.newer] if mode.newer else [])]
    types = shape.types(names, fold_name)
    frame, bad, sources = framed(rows.onto(names), types, partial(type_of, connection))
    read = ", ".join(
        f"CAST({sources[name]} AS {kind}) AS {quoted(name)}" for name, kind in zip(names, types, strict=True)
    )
    own = quoted(table.table)
    same = [f"{own}.{quoted(name)} = redrive_gone.{quoted(name)}" for name in key]
    if mode.newer:
        column = quoted(mode.newer)
        same.append(f"({own}.{column} IS NULL OR {own}.{column} < redrive_gone.{column})")
    statement = (
        f"DELETE FROM {table.sql} USING (SELECT {read} FROM redrive_rows) AS redrive_gone WHERE {' AND '.join(same)}"
    )
    kept = 0
    places = [place for place in range(len(rows)) if place not in bad]

    def attempt(start: int, stop: int) -> Exception | None:
        nonlocal kept
        connection.execute("BEGIN")
        try:
            connection.register("redrive_rows", frame[places[start:stop]])
            deleted = connection.execute(statement).fetchone()
            there = 0
            if deleted != (stop - start,):
                keys = rows.take(places[start:stop]).onto(key)
                there = len(stored_values(connection, table, keys, shape.types(key, fold_name), key[0]))
            connection.execute("COMMIT" if keep else "ROLLBACK")
        except duckdb.Error as error:
            if not is_row_fault(error) and not isinstance(error, duckdb.InvalidInputException):
                raise
            connection.execute("ROLLBACK")
            return error
        kept += there
        return None

    try:
        if places and attempt(0, len(places)) is not None:
            failures = isolate(len(places), attempt)
            bad |= {places[at]: str(error).partition("\n")[0] for at, error in failures}
    finally:
        connection.unregister("redrive_rows")
    return bad, kept
