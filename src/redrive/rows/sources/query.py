"""Rows of an incremental SQL query: page by page behind a watermark, run after run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import URL, Select

from redrive.errors import SourceError
from redrive.letters import ErrorType
from redrive.model import Kind
from redrive.rows.batch import Batch, Received, Record, Unreadable
from redrive.rows.sources import query_database as databases
from redrive.rows.sources.query_database import Database
from redrive.rows.sources.query_keyset import Keyset
from redrive.rows.sources.query_watermark import given_back, kept, stepped_back

MOST_NULLS = 10_000
"""Rows without a watermark or a key that are put up with."""

_PART = r'(?:[\w$]+|"[^"]+"|`[^`]+`|\[[^\]]+\])'
_TABLE = re.compile(rf"\bfrom\s+({_PART}(?:\s*\.\s*{_PART})*)", re.IGNORECASE)


def query(
    url: str | URL,
    sql: str,
    *,
    watermark: str,
    key: str | Sequence[str],
    lag: timedelta | float | None = None,
    parameters: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Query:
    """Read what an SQL query gives, from where the last run ended: the rows whose watermark has grown since.

    url         the database: any that SQLAlchemy has a driver for
    sql         a SELECT
    watermark   a column that grows whenever a row is written, such as "updated_at"; an index on it and the key helps
    key         the columns that tell rows of one watermark apart
    lag         how far a new run steps back for rows that were committed late, a timedelta or seconds; the rows in
                between are read once more
    parameters  values for `:names` in the SQL
    name        as letters and checkpoints know it; the first table of the SQL unless it is given

    Rows without a watermark or key are never behind another row: the first run of all hands them out as unreadable.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not isinstance(sql, str) or not sql.strip(" \t\r\n;"):
        raise ValueError("query needs an SQL query, such as SELECT * FROM orders")
    if not keys or not all(isinstance(one, str) and one for one in (watermark, *keys)):
        raise ValueError("query needs the names of its watermark and key columns: watermark='updated_at', key='id'")
    span = lag if lag is None or isinstance(lag, timedelta) else timedelta(seconds=lag)
    if span is not None and span < timedelta():
        raise ValueError("a lag steps back, so it is not negative")
    address = databases.parsed(url)
    keyset = Keyset(sql, dict(parameters or {}), (watermark, *keys), backend=address.get_backend_name())
    return Query(address, keyset, lag=span, name=name or _named_by(sql))


class Query:
    """See `Source`."""

    def __init__(self, url: URL, keyset: Keyset, *, lag: timedelta | None, name: str) -> None:
        self.name = name
        self._url = url
        self._keyset = keyset
        self._lag = lag

    def __repr__(self) -> str:
        return f"<query {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        # Not the SQL: a column more, or a better join, does not make the watermark another one.
        watermark, *key = self._keyset.names
        place = databases.place_of(self._url)
        return {"kind": "query", "database": place, "name": self.name, "watermark": watermark, "key": key}

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        for what, here in self.identity().items():
            if identity.get(what) != here:
                return f"its {what} was {_shown(identity.get(what))}, and here it is {_shown(here)}"
        return None

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> QueryReading:
        database = databases.open_database(self._url)
        try:
            return QueryReading(self.name, database, self._keyset, self._lag, position)
        except BaseException:
            database.close()
            raise

    def start_of_next_run(self, position: Any | None) -> Any | None:
        """Where a new run begins when the last one ended at `position`: `lag` before it."""
        if position is None or position["watermark"] is None or self._lag is None:
            return position
        column = self._keyset.names[0]
        back = stepped_back(given_back(position["watermark"]), self._lag, column)
        return {"watermark": kept([back], [column])[0], "key": None}

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record:
        if not isinstance(raw, Mapping):
            raise TypeError(f"a row of {self.name} is a mapping, not a {type(raw).__name__}")
        return dict(raw)


class QueryReading:
    """See `Reading`."""

    total: int | None = None  # to count would run the whole query once more, on a database that others work with

    def __init__(
        self, name: str, database: Database, keyset: Keyset, lag: timedelta | None, position: Any | None
    ) -> None:
        self._name = name
        self._database = database
        self._keyset = keyset
        self._lag = lag
        self._begins = position is None
        self._ended = False
        self._done = 0
        self._start: Any = None
        self._behind: list[Any] | None = None
        self._go_to(position)
        self.columns: tuple[str, ...] | None = self._look()

    def read(self, most: int) -> Batch | None:
        if self._begins:
            unreachable = self._unreachable()
            self._begins = False
            if unreachable:
                return self._batch([], unreachable, {"watermark": None, "key": None})
        if self._ended:
            return None
        page = self._page(most)
        if page is None:
            self._ended = True
            return None
        if page.first == self._behind:
            raise SourceError(self._stands_still())
        watermark, *key = kept(page.last, self._keyset.names)
        position = {"watermark": watermark, "key": key}
        self._go_to(position)
        self._ended = page.ends
        return self._batch(page.rows, page.bad, position)

    def close(self) -> None:
        self._database.close()

    def _go_to(self, position: Any | None) -> None:
        if position is None:
            return
        watermark = given_back(position["watermark"])
        if self._lag is not None and watermark is not None:
            # Where that cannot be done, it is told now, and not at the start of the next run.
            stepped_back(watermark, self._lag, self._keyset.names[0])
        if position["key"] is None:
            self._start = watermark
        else:
            self._behind = [watermark, *given_back(position["key"])]

    def _batch(self, rows: list[Record], bad: list[Unreadable], position: Any) -> Batch:
        self._done += len(rows) + len(bad)
        return Batch(Received(rows), lambda place: self._place(rows[place]), position, self._name, bad, self._done)

    def _place(self, record: Record) -> str:
        return ", ".join(f"{name} {_shown(record[name])}" for name in dict.fromkeys(self._keyset.names))

    def _values(self, record: Record) -> list[Any]:
        return [record[name] for name in self._keyset.names]

    # ── what is asked of the database ─────────────────────────────────────────────────────────────────────────────────

    def _select(self, statement: Select[Any]) -> list[Record]:
        columns, rows = databases.steadily(lambda: self._database.run(statement))
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _look(self) -> tuple[str, ...]:
        """The columns; what is wrong with the query as a whole is found out here."""
        try:
            columns, _ = databases.steadily(lambda: self._database.run(self._keyset.nothing()))
        except Exception as error:
            self._raise(error)
        for name in columns:
            if list(columns).count(name) > 1:
                raise SourceError(f"the query of {self._name} gives {name} twice: name one of them otherwise, with AS")
        for name in self._keyset.names:
            if name not in columns:
                raise SourceError(f"the query of {self._name} gives no {name}; its columns are {', '.join(columns)}")
        return tuple(columns)

    def _page(self, most: int) -> _Page | None:
        try:
            found = self._select(self._keyset.page(self._start, self._behind, most + 1))
        except Exception as error:
            if _is_no_rows_fault(error):
                self._raise(error)
            return self._page_by_halves(most, error)
        rows = self._cut(found, most)
        if not rows:
            return None
        return _Page(rows, [], self._values(rows[0]), self._values(rows[-1]), ends=len(found) <= most)

    def _cut(self, found: list[Record], most: int) -> list[Record]:
        """As much as was asked for. One more was read: if that is of the same place, no page could begin with it."""
        if len(found) > most and self._values(found[most]) == self._values(found[most - 1]):
            raise SourceError(
                f"several rows of {self._name} have {self._place(found[most])}, and some of them would be passed over: "
                "name a key that tells them apart"
            )
        return found[:most]

    def _page_by_halves(self, most: int, error: Exception) -> _Page:
        """A page of which some row cannot be had: a value that the driver cannot hold, an expression that fails.

        It is looked for by halves, with statements that touch no other row. Watermark and key can be had of any row.
        """
        try:
            all_found = self._select(self._keyset.places(self._start, self._behind, most + 1))
        except Exception:
            self._raise(error)
        found = self._cut(all_found, most)
        if not found:
            self._raise(error)
        places = [self._values(place) for place in found]
        page = _Page([], [], places[0], places[-1], ends=len(all_found) <= most)
        pieces = [(0, len(found))]
        while pieces:
            first, end = pieces.pop()
            behind = places[first - 1] if first else self._behind
            try:
                page.rows.extend(self._select(self._keyset.between(self._start, behind, places[end - 1])))
            except Exception as fault:
                if _is_no_rows_fault(fault):
                    self._raise(fault)
                if end - first == 1:
                    page.bad.append(Unreadable(found[first], databases.first_line(fault), self._place(found[first])))
                else:
                    middle = (first + end) // 2
                    pieces += [(middle, end), (first, middle)]
        return page

    def _unreachable(self) -> list[Unreadable]:
        try:
            rows = self._select(self._keyset.nulls(MOST_NULLS + 1))
        except Exception as error:
            self._raise(error)
        if len(rows) > MOST_NULLS:
            names = " or ".join(dict.fromkeys(self._keyset.names))
            raise SourceError(
                f"more than {MOST_NULLS:,} rows of {self._name} have no {names}, and no watermark reaches them: "
                "filter them out in the SQL, or give them one with COALESCE"
            )
        return [Unreadable(row, self._missing(row), self._place(row), ErrorType.VALIDATION) for row in rows]

    def _missing(self, record: Record) -> str:
        watermark, *keys = self._keyset.names
        if record[watermark] is None:
            return f"watermark {watermark} is null"
        return f"key {next(name for name in keys if record[name] is None)} is null"

    def _stands_still(self) -> str:
        place = dict(zip(self._keyset.names, self._behind or (), strict=True))
        return (
            f"the row of {self._name} at {self._place(place)} comes again behind itself: its watermark or key is finer "
            "than Python can hold, as nanoseconds or 32-bit floats are; round it or cast it to text in the SQL"
        )

    def _raise(self, error: Exception) -> NoReturn:
        if databases.heals(error) or databases.kind_of(error) is Kind.RESOURCE:
            raise error
        raise SourceError(f"{self._name}: {databases.first_line(error)}") from error


class _Page(NamedTuple):
    rows: list[Record]
    bad: list[Unreadable]
    first: list[Any]
    last: list[Any]
    """Watermark and key of the outermost rows, read or not."""
    ends: bool
    """Whether it is the last. Not only an empty one is: where others write all the time, that may never come."""


def _is_no_rows_fault(error: Exception) -> bool:
    return databases.heals(error) or databases.kind_of(error) in {Kind.AUTH, Kind.RESOURCE}


def _named_by(sql: str) -> str:
    """The first table, or else how the SQL begins."""
    found = _TABLE.search(sql)
    if found:
        return re.sub(r"\s*\.\s*", ".", re.sub(r'["`\[\]]', "", found[1]))
    return " ".join(sql.split())[:60]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "null" if value is None else str(value)
