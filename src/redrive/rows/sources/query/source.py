"""`rows.query`: the source for an SQL query, and the options that its checkpoint compares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from sqlalchemy import URL

from redrive.rows.batch import Record
from redrive.rows.sources.query import database as databases
from redrive.rows.sources.query.keyset import Keyset
from redrive.rows.sources.query.order import format_value, from_json, stepped_back, to_json
from redrive.rows.sources.query.reading import QueryReading
from redrive.rows.sources.source import Secret

OnChange = Literal["refuse", "continue"]

_PART = r'(?:[\w$]{1,200}|"[^"]{1,200}"|`[^`]{1,200}`|\[[^\]]{1,200}\])'
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
    on_change: OnChange = "refuse",
) -> Query:
    """Read the result of an SQL query from where the last run ended: the rows whose watermark has grown since.

    url         the database: any that SQLAlchemy has a driver for
    sql         a SELECT
    watermark   a column that grows whenever a row is written, such as "updated_at"; an index on it and the key helps
    key         the columns that distinguish rows of one watermark
    lag         how far a new run goes back for rows that were committed late, a timedelta or seconds, from the newest
                row that existed when the last run started; the rows since then are read again
    parameters  values for `:names` in the SQL
    name        the name in letters and checkpoints; default: the first table of the SQL
    on_change   what to do if the SQL or its parameters differ from those of the watermark: "refuse" the run, since rows
                before the watermark may never have been read, or "continue" after it. Whitespace may differ

    A row whose watermark is null, NaN, infinite or a time outside the years 1 to 9999 has no place in that order: such
    rows, 10,000 at most, are read in every run and written each time. A row without a key becomes a letter in every
    run. A row that the driver cannot hold, such as one with a timestamp of 'infinity', becomes a letter that has the
    value as text. An interval of months or years is read as its text.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not isinstance(sql, str) or not sql.strip(" \t\r\n;"):
        raise ValueError("query needs an SQL query, such as SELECT * FROM orders")
    if not keys or not all(isinstance(item, str) and item for item in (watermark, *keys)):
        raise ValueError("query needs the names of its watermark and key columns: watermark='updated_at', key='id'")
    span = lag if lag is None or isinstance(lag, timedelta) else timedelta(seconds=lag)
    if span is not None and span < timedelta():
        raise ValueError("a lag steps back, so it is not negative")
    if on_change not in get_args(OnChange):
        raise ValueError(f'on_change must be "refuse" or "continue", not {on_change!r}')
    address = databases.parsed(url)
    values = dict(parameters or {})
    keyset = Keyset(sql, values, (watermark, *keys), backend=address.get_backend_name())
    options = {
        "SQL": Secret(normalized(sql)),  # values may be written in it
        "parameters": {parameter: Secret(value) for parameter, value in values.items()},
    }
    return Query(address, keyset, options, lag=span, name=name or _named_by(sql), on_change=on_change)


class Query:
    """See `Source`."""

    retries_reading = False  # every statement is retried by itself

    def __init__(
        self,
        url: URL,
        keyset: Keyset,
        options: Mapping[str, Any],
        *,
        lag: timedelta | None,
        name: str,
        on_change: OnChange,
    ) -> None:
        self.name = name
        self.on_change = on_change
        self._options = options
        self._url = url
        self._keyset = keyset
        self._lag = lag
        self._is_shared = False
        self.rereads = bool(lag)
        """Whether a new run reads rows that the last one has read."""

    def __repr__(self) -> str:
        return f"<query {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        watermark, *key = self._keyset.names
        place = databases.place_of(self._url)
        return {"kind": "query", "database": place, "name": self.name, "watermark": watermark, "key": key}

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        for what, here in self.identity().items():
            if identity.get(what) != here:
                return f"its {what} was {format_value(identity.get(what))}, and here it is {format_value(here)}"
        return None

    def compared_options(self) -> Mapping[str, Any]:
        """See `ComparesOptions`."""
        return self._options

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> QueryReading:
        database = databases.open_database(self._url, is_shared=self._is_shared)
        try:
            return QueryReading(self.name, database, self._keyset, self._lag, position)
        except BaseException:
            database.close()
            raise

    def share_file(self, path: Path) -> None:
        """Take note of the DuckDB file that the sink of a pipeline writes to: it may be the one that is read."""
        self._is_shared |= databases.is_file(self._url, path)

    def start_of_next_run(self, position: Any | None) -> Any | None:
        """Return where a new run begins when the last one ended at `position`, rows without a watermark first.

        With a lag it is where rows may have come since that the last run had passed.
        """
        if position is None:
            return None
        if self._lag is None or position["key"] is None:
            return {"watermark": position["watermark"], "key": position["key"], "nulls": []}
        if position.get("late") is not None:
            return {"watermark": position["late"], "key": None, "nulls": []}
        column = self._keyset.names[0]
        back = stepped_back(from_json(position["watermark"]), self._lag, column)
        return {"watermark": to_json([back], [column])[0], "key": None, "nulls": []}

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record:
        if not isinstance(raw, Mapping):
            raise TypeError(f"a row of {self.name} is a mapping, not a {type(raw).__name__}")
        record = dict(raw)
        missing = [name for name in (context or {}).get("missing", ()) if name not in record]
        # Letters of earlier versions hold the watermark and the key of such a row, and nothing else.
        may_be_stub = context is None and record.keys() == set(self._keyset.names)
        return self._fetched_again(record) if missing or may_be_stub else record

    def _fetched_again(self, record: Record) -> Record:
        """Return the row of a letter that does not hold all of it, as the database has it now."""
        reading = self.open(None, {})
        try:
            if record.keys() >= set(reading.columns or ()):
                return record
            return reading.row_of(record)
        finally:
            reading.close()


def _named_by(sql: str) -> str:
    """Return the first table, or else how the SQL begins."""
    match = _TABLE.search(sql)
    if match:
        return re.sub(r"(?<!\s)\s*+\.\s*+", ".", re.sub(r'["`\[\]]', "", match[1]))
    return " ".join(sql.split())[:60]


# What is kept as it is: quoted text, and comments, after which a line end matters.
_KEPT_TEXT = r"""'[^']*'?|"[^"]*"?|`[^`]*`?|(?:--|\#)[^\n]*\n?|/\*(?:[^*]|\*(?!/))*"""

_SQL_PIECE = re.compile(rf"({_KEPT_TEXT})|\s+")


def normalized(sql: str) -> str:
    """Return the same text for queries that differ only in the space between their words."""
    return _SQL_PIECE.sub(lambda piece: piece[1] or " ", sql.strip(" \t\r\n;"))
