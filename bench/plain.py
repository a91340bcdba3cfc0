"""Letters without redrive: both databases through their plain drivers, in bulk and one by one."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

BATCH = 10_000
# The columns that a new letter fills; the others have their defaults.
SENT = (
    *("pipeline_name", "run_id", "error_type", "error_message", "source_table", "source_key", "rejected_at"),
    *("position", "fingerprint", "identity", "attempts", "last_seen", "raw_record"),
)
INSERT = f"INSERT INTO by_hand ({','.join(SENT)}) VALUES ({','.join('?' * len(SENT))})"
UPDATE = """UPDATE by_hand SET status = 'reprocessed', reprocess_count = reprocess_count + 1, last_reprocess = ?,
            settled_at = ? WHERE id = ?"""

Row = tuple[Any, ...]

_serial = itertools.count()
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t"})


class Sqlite:
    """A file."""

    name, table, version = "SQLite", "dead_letter_queue", sqlite3.sqlite_version

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a database of its own, removed afterwards: several large ones would fill a disk."""
        path = self._directory / f"bench_{next(_serial)}.db"
        yield f"sqlite:///{path}"
        for part in self._directory.glob(f"{path.name}*"):
            part.unlink()

    def connect(self, url: str, *, autocommit: bool = False) -> sqlite3.Connection:
        """Stock but for the write-ahead log, which favours what is done by hand, and as durable as redrive."""
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None if autocommit else "")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def beside(self, url: str, *, indexed: bool) -> sqlite3.Connection:
        """A connection to a table `by_hand`: the columns that are sent and no more, or all with redrive's indexes."""
        with closing(self.connect(url)) as ours:
            kinds = {name: kind for _, name, kind, *_ in ours.execute(f"PRAGMA table_info({self.table})")}
            made = ours.execute(f"SELECT sql FROM sqlite_master WHERE tbl_name = '{self.table}' AND type <> 'trigger'")
            same = [sql.replace(self.table, "by_hand") for (sql,) in made if sql]
        bare = [f"CREATE TABLE by_hand ({', '.join(f'{name} {kinds[name]}' for name in SENT)})"]
        connection = self.connect(f"{url}-{next(_serial)}")
        for statement in same if indexed else bare:
            connection.execute(statement)
        return connection

    def ready(self, rows: list[Row]) -> list[Row]:
        return rows

    def add(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        connection.executemany(INSERT, rows)
        connection.commit()

    def sql(self, text: str) -> str:
        return text

    def moment(self, at: datetime) -> str:
        return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def settle(self, url: str) -> None:
        """Nothing: who keeps a file does not run ANALYZE."""


class Postgres:
    """A server."""

    name, table = "PostgreSQL", "pipeline.dead_letter_queue"

    def __init__(self, server: str) -> None:
        self._server = server
        with closing(self.connect(server)) as connection:
            self.version = connection.execute("SHOW server_version").fetchone()[0]

    @contextmanager
    def fresh(self) -> Iterator[str]:
        name = f"bench_{next(_serial)}"
        with closing(self.connect(self._server, autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            yield f"{self._server.rpartition('/')[0]}/{name}"
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def connect(self, url: str, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return psycopg.connect(url, autocommit=autocommit, options="-c timezone=UTC")

    def beside(self, url: str, *, indexed: bool) -> psycopg.Connection[Any]:
        connection = self.connect(url)
        same, bare = f"(LIKE {self.table} INCLUDING ALL)", f"AS SELECT {','.join(SENT)} FROM {self.table} WITH NO DATA"
        connection.execute("DROP TABLE IF EXISTS by_hand")
        connection.execute(f"CREATE TABLE by_hand {same if indexed else bare}")
        connection.commit()
        return connection

    def ready(self, rows: list[Row]) -> bytes:
        lines = ["\t".join([r"\N" if one is None else str(one).translate(_ESCAPES) for one in row]) for row in rows]
        return "\n".join([*lines, ""]).encode()

    def add(self, connection: psycopg.Connection[Any], lines: bytes) -> None:
        with connection.cursor() as cursor, cursor.copy(f"COPY by_hand ({','.join(SENT)}) FROM STDIN") as copy:
            copy.write(lines)
        connection.commit()

    def sql(self, text: str) -> str:
        return text.replace("?", "%s")

    def moment(self, at: datetime) -> datetime:
        return at

    def settle(self, url: str) -> None:
        """What autovacuum does by itself within minutes."""
        with closing(self.connect(url, autocommit=True)) as connection:
            connection.execute("VACUUM (ANALYZE)")


Database = Sqlite | Postgres


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def stored(database: Database, url: str, run: UUID, records: Sequence[Any]) -> list[Row]:
    """The very rows that redrive wrote in a run, to be written again by hand."""
    select = database.sql(f"SELECT {','.join(SENT[:-1])} FROM {database.table} WHERE run_id = ? ORDER BY id")
    with closing(database.connect(url)) as connection:
        found = connection.execute(select, (str(run),)).fetchall()
    # JSON as it was sent: `jsonb` would show it with more blanks.
    texts = (json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records)
    return [(*row, text) for row, text in zip(found, texts, strict=True)]


def one_by_one(
    database: Database, url: str, rows: Sequence[Row], target: Callable[[list[Any]], Any]
) -> dict[str, float]:
    """The naive way, in seconds per letter: put by INSERT and COMMIT, sent back by UPDATE and COMMIT."""
    insert, update = database.sql(INSERT), database.sql(UPDATE)
    now = database.moment(datetime.now(UTC))
    with closing(database.beside(url, indexed=True)) as connection:

        def put() -> None:
            for row in rows:
                connection.execute(insert, row)
                connection.commit()

        def replay() -> None:
            found = connection.execute("SELECT id, raw_record FROM by_hand WHERE status = 'pending'").fetchall()
            for letter, record in found:
                target([json.loads(record) if isinstance(record, str) else record])
                connection.execute(update, (now, now, letter))
                connection.commit()

        return {"naive": seconds(put) / len(rows), "naive replay": seconds(replay) / len(rows)}
