"""`rows.table`: the sink for a table, by the URL of its database."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL

from redrive._internal.database_url import parse_url
from redrive._internal.files import local_path
from redrive.rows.sinks.mode import DeleteWhen, OnConflict, WriteMode
from redrive.rows.sinks.sink import Sink
from redrive.rows.sinks.table_schema import TableName

_FORMS = "postgresql://user:password@host/database, sqlite:///path/to/file.db or duckdb:///path/to/file.duckdb"
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE = ("sqlite", "sqlite+pysqlite")


def table(
    url: str | URL,
    name: str,
    *,
    key: str | Sequence[str] | None = None,
    append: bool = False,
    create: bool = False,
    patience: float = 60.0,
    on_conflict: OnConflict = "update",
    newer: str | None = None,
    delete_when: DeleteWhen | None = None,
) -> Sink:
    """Write rows into a table: of PostgreSQL, SQLite, DuckDB or any database that SQLAlchemy has a driver for.

    url          the database
    name         the table, "vendor_deliveries" or "silver.vendor_deliveries"
    key          the column or columns that identify a row; the table must have a unique index on them. A row whose key
                 exists replaces the columns that it has, so that writing twice is the same as writing once.
    append       insert every row, and update none; instead of `key`. A batch is appended once, even if its run is
                 killed and run again: a table `redrive_batches` beside it holds the batches that were appended.
    create       create a missing table from the first rows, with the key as its primary key
    patience     seconds to wait for a database that restarts or is busy
    on_conflict  "update": a row whose key exists replaces it; "ignore": it is left out and counted as a duplicate
    newer        a column: a row replaces the existing one only if its value of this column is greater, or the existing
                 one has none; otherwise it is counted as a duplicate. Texts must be dates or times of one format.
    delete_when  a column that is true for deletions, "deleted", or columns with the values that mark a deletion,
                 {"op": "D"}: the row of that key is deleted, and counted as discarded. These columns are not written.

    `append` and the last three are for PostgreSQL, SQLite and DuckDB.
    """
    parsed, where = _read(url), TableName.parse(name)
    mode = WriteMode(on_conflict, newer, delete_when)
    parts = _appended(key, mode) if _flag("append", append) else _key(key)
    mode.check_key(parts)
    _flag("create", create)
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not 0 <= patience < math.inf:
        raise ValueError(f"patience is a number of seconds from 0 up, not {patience!r}")
    if parsed.drivername in _POSTGRES:
        from redrive.rows.sinks.postgres.sink import PostgresTable

        return PostgresTable(parsed, where, key=parts, create=create, patience=patience, mode=mode)
    if parsed.drivername in _SQLITE:
        from redrive.rows.sinks.sqlite.sink import SqliteTable

        return SqliteTable(_file(parsed), where, key=parts, create=create, patience=patience, mode=mode)
    if parsed.drivername == "duckdb":
        from redrive.rows.sinks.duckdb.sink import DuckdbTable

        return DuckdbTable(_file(parsed), where, key=parts, create=create, patience=patience, mode=mode)
    if append:
        raise ValueError(
            f"append is for PostgreSQL, SQLite and DuckDB, not for {parsed.drivername}; name a key instead"
        )
    if not mode.is_plain:
        raise ValueError(
            f"on_conflict, newer and delete_when are for PostgreSQL, SQLite and DuckDB, not for {parsed.drivername}"
        )
    from redrive.rows.sinks.sqlalchemy.sink import GenericTable

    return GenericTable(parsed, where, key=parts, create=create, patience=patience)


def _read(url: str | URL) -> URL:
    if not isinstance(url, str | URL):
        raise TypeError(f"the table's URL is a text, not {type(url).__name__}; write {_FORMS}")
    return parse_url(url, "the table's URL", _FORMS)


def _file(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise ValueError(f"a table in memory would be gone with the process; name a file: {url.drivername}:///path")
    return Path(local_path(url.database, "the file of a database"))


def _flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def _appended(key: str | Sequence[str] | None, mode: WriteMode) -> tuple[str, ...]:
    if key is not None:
        raise ValueError("append=True inserts every row and knows none by a key; leave out key, or append=True")
    if not mode.is_plain:
        raise ValueError("append=True inserts every row; it cannot be combined with on_conflict, newer or delete_when")
    return ()


def _key(key: str | Sequence[str] | None) -> tuple[str, ...]:
    if key is None:
        raise ValueError(
            "a table needs key, the column or columns that identify a row, or append=True, which inserts every row"
        )
    parts = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(f"key names the column or columns that identify a row, not {key!r}")
    if len({*parts}) < len(parts):
        raise ValueError(f"key names a column twice: {', '.join(parts)}")
    return parts
