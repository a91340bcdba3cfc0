"""The floor: a fast reader, the bulk statement of the database, one transaction, and no look at any row.

It knows beforehand what is wrong with this file, and drops the rows without a fee in one vectorised step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
from vendor import COLUMNS, NO_FEE, TABLE, UPSERT, connected

PIECE = 10_000


def load(database: str, url: str, path: Path, *, straight: bool) -> float:
    """Load the file; seconds."""
    into = {"PostgreSQL": into_postgres, "SQLite": into_sqlite, "DuckDB": into_duckdb}[database]
    write = straight_into_postgres if straight else into
    began = time.perf_counter()
    with closing(connected(database, url)) as connection:
        write(connection, path)
        connection.commit()
    return time.perf_counter() - began


def pieces(path: Path) -> Iterator[pl.DataFrame]:
    """The rows that have a fee, all as text."""
    return pl.read_csv(path, infer_schema=False).filter(pl.col("fee") != NO_FEE).iter_slices(PIECE)


def into_postgres(connection: Any, path: Path) -> None:
    connection.execute(f"CREATE TEMPORARY TABLE received (LIKE {TABLE}) ON COMMIT DROP")
    copy_into("received", connection, path)
    connection.execute(f"INSERT INTO {TABLE} SELECT * FROM received {UPSERT}")


def straight_into_postgres(connection: Any, path: Path) -> None:
    """Only while no row is there yet: COPY knows no ON CONFLICT."""
    copy_into(TABLE, connection, path)


def copy_into(table: str, connection: Any, path: Path) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
        for piece in pieces(path):
            copy.write(piece.write_csv(include_header=False))


def into_sqlite(connection: Any, path: Path) -> None:
    upsert = f"INSERT INTO {TABLE} VALUES ({', '.join('?' * len(COLUMNS))}) {UPSERT}"
    connection.executemany(upsert, chain.from_iterable(piece.rows() for piece in pieces(path)))


def into_duckdb(connection: Any, path: Path) -> None:
    """By its own reader: no row passes through Python."""
    connection.begin()
    read = "read_csv($path, header = true, all_varchar = true, delim = ',', quote = '\"')"
    insert = f"INSERT INTO {TABLE} SELECT * FROM {read} WHERE fee <> $no_fee {UPSERT}"
    connection.execute(insert, {"path": str(path), "no_fee": NO_FEE})
