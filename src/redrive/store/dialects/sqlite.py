"""SQLite: one file with a write-ahead log, and one writer at a time."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, text
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import QueuePool

from redrive._internal.files import make_directory, open_new, scratch_beside, tighten
from redrive.errors import StoreError
from redrive.model.calls import Kind
from redrive.store.dialects.dialect import PUT_COLUMNS, LetterRow, RepeatedLetter
from redrive.store.encoding import decode, encode, is_same
from redrive.store.schema import SCHEMA, STATUSES

# FULL: a letter that was put survives a power failure, too. Large pages hold more letters each, which makes inserting a
# quarter faster; the log is folded back every 32 MB instead of every 4, which spares index pages.
_SETTINGS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -65536",
    "PRAGMA wal_autocheckpoint = 2000",
    "PRAGMA journal_size_limit = 67108864",
)

_LONGEST_WAIT = 2.0
_STARTS_OF_NUMBERS = frozenset("-0123456789")
DIRECTORY_NAME = ".redrive"
"""The default directory, which belongs to redrive alone."""
_LOG = logging.getLogger("redrive.store")


class SqliteDialect:
    """See `Dialect`."""

    migrates_itself = True
    is_remote = False
    reading: Mapping[str, Any] = {"redrive_writing": False}
    writing: Mapping[str, Any] = {"redrive_writing": True}
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: Path, *, patience: float) -> None:
        self._path = path.absolute()  # so that the program may change its working directory later
        self._patience = patience
        self.where = str(path)

    @property
    def busy_timeout(self) -> float:
        """Seconds that SQLite itself waits for its lock.

        That wait cannot be cancelled, so it is short, and `Database` retries the transaction until its own timeout.
        """
        return min(self._patience, _LONGEST_WAIT)

    def engine_key(self) -> Hashable:
        # A file that does not exist yet, or another file of the same name, has connections of its own.
        return (self._path, self.place() or object())

    def engine(self) -> Engine:
        try:
            make_directory(self._path.parent)
        except OSError as error:
            raise StoreError(f"cannot make the directory of {self.where}: {error.strerror}") from error
        self._keep_out_of_git()
        engine = create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,  # SQLAlchemy takes a URL without a path for a database in memory
            json_serializer=_encode,
            hide_parameters=True,  # a traceback must not show records
            json_deserializer=decode,
            # The tables name their schema on PostgreSQL; a file has none.
            execution_options={"schema_translate_map": {SCHEMA: None}},
        )
        event.listen(engine, "begin", _begin)
        return engine

    def _keep_out_of_git(self) -> None:
        """Have git ignore redrive's own directory: records do not belong in a repository."""
        if self._path.parent.name == DIRECTORY_NAME:
            with suppress(OSError):
                file = open_new(self._path.parent / ".gitignore")
                os.write(file, b"*\n")
                os.close(file)

    def tighten(self) -> None:
        """Make private what an older version made readable by others, and log it."""
        own = [self._path.parent] if self._path.parent.name == DIRECTORY_NAME else [self._path.parent / "results"]
        for path in (*own, self._path, *(self._path.with_name(self._path.name + end) for end in ("-wal", "-shm"))):
            if changed := tighten(path):
                before, after = changed
                _LOG.warning(
                    "changed the permissions of %s from %04o to %04o, because it holds records; chmod gives them back",
                    path,
                    before,
                    after,
                )

    def _make_file(self) -> None:
        """Create a file that is private; SQLite gives its log the same rights.

        It is closed before it gets its name: closing the file of a database releases all locks of this process on it,
        and the next process that disconnects would remove the log that this process still reads.
        """
        made = scratch_beside(self._path)
        with suppress(OSError):  # another process was first, or the file system has no links: SQLite creates the file
            os.close(open_new(made))
            try:
                os.link(made, self._path)
            finally:
                os.unlink(made)

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            self._make_file()
        # Only `_begin` begins transactions, hence isolation_level=None.
        connection = sqlite3.connect(
            self._path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA page_size = 16384")
                connection.execute("PRAGMA journal_mode = WAL")
            for setting in _SETTINGS:
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection

    def insert(self, table: Table) -> Any:
        return insert(table)

    def lock_schema(self, connection: Connection) -> None:
        """Do nothing: there is one writing transaction at a time."""

    def lock_causes(self, connection: Connection) -> None:
        """Do nothing: there is one writing transaction at a time."""

    def lock(self, connection: Connection, what: str) -> None:
        """Do nothing: there is one writing transaction at a time."""

    def put_new(self, connection: Connection, rows: Sequence[LetterRow]) -> Collection[bytes]:
        cursor = connection.connection.cursor()
        cursor.execute("SELECT coalesce(max(id), 0) FROM dead_letter_queue")
        newest = cursor.fetchone()
        # Most letters are new, so they are not searched first; those that are not new leave a gap in the ids.
        # The driver is faster with plain tuples.
        values = [tuple(_as_stored(row)) for row in rows]
        cursor.executemany(f"{_insert(PUT_COLUMNS)} ON CONFLICT DO NOTHING", values)
        if cursor.rowcount == len(rows):
            _count(cursor, PUT_COLUMNS, rows)
            return ()
        cursor.execute("SELECT identity FROM dead_letter_queue WHERE id > ?", newest or (0,))
        added = {identity for (identity,) in cursor.fetchall()}
        _count(cursor, PUT_COLUMNS, [row for row in rows if row.identity in added])
        return {row.identity for row in rows} - added

    def add_letters(self, connection: Connection, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        cursor = connection.connection.cursor()
        records = [columns.index(name) for name in ("raw_record", "edited_record") if name in columns]
        values = [list(row) for row in rows]
        for row in values:
            for place in records:
                row[place] = row[place] and _tagged(row[place])
        cursor.executemany(_insert(columns), values)
        _count(cursor, columns, rows)

    def see_again(self, connection: Connection, rows: Sequence[LetterRow], times: Sequence[int]) -> None:
        cursor = connection.connection.cursor()
        pending = "identity = :identity AND CASE WHEN status IN ('pending', 'escalated') THEN 1 END = 1"
        is_unsent = ":error_type = 'call' AND :attempts = 0"
        # Of a masked record the context has the digest.
        other_text = "NOT (raw_record = :raw_record AND context IS :context)"
        statement = f"SELECT raw_record, context FROM dead_letter_queue WHERE {pending} AND {other_text}"
        values = []
        for row, count in zip(map(_as_stored, rows), times, strict=True):
            of = row._asdict()
            cursor.execute(statement, of)
            is_same = all(_has_content(row, *content) for content in cursor.fetchall())
            values.append({**of, "times": count, "is_same": is_same})
        cursor.executemany(
            f"""INSERT INTO letter_audit (letter_id, at, action, status_before, status_after, detail)
                SELECT id, :last_seen, 'superseded', status, status,
                       json_object('raw_record', json(raw_record), 'edited_record', json(edited_record))
                FROM dead_letter_queue WHERE {pending}""",
            [of for of in values if not of["is_same"]],
        )
        cursor.executemany(
            f"""UPDATE dead_letter_queue SET seen = seen + :times, last_seen = max(last_seen, :last_seen),
                       run_id = :run_id, source_table = :source_table, position = :position,
                       error_message = CASE WHEN {is_unsent} THEN error_message ELSE :error_message END,
                       fingerprint = CASE WHEN {is_unsent} THEN fingerprint ELSE :fingerprint END,
                       attempts = CASE WHEN {is_unsent} THEN attempts ELSE :attempts END,
                       edited_record = CASE WHEN :is_same THEN edited_record END,
                       sink_key = CASE WHEN :is_same AND (sink_key IS NOT NULL OR edited_record IS NOT NULL)
                           THEN sink_key ELSE :sink_key END,
                       received_key = CASE WHEN :is_same THEN json_set(received_key, '$.superseded_at', NULL) END,
                       key_since = CASE WHEN :is_same THEN key_since END, raw_record = :raw_record,
                       context = :context, target = coalesce(:target, target),
                       trace_id = coalesce(:trace_id, trace_id), superseded_at = NULL
                WHERE {pending}""",
            values,
        )

    def same_content(self, connection: Connection, rows: Sequence[LetterRow]) -> Sequence[tuple[int, int]]:
        cursor = connection.connection.cursor()
        pairs = []
        for place, row in enumerate(map(_as_stored, rows)):
            cursor.execute("SELECT id, raw_record, context FROM dead_letter_queue WHERE identity = ?", (row.identity,))
            pairs += [(place, letter_id) for letter_id, *content in cursor.fetchall() if _has_content(row, *content)]
        return pairs

    def see_decided(self, connection: Connection, sightings: Sequence[RepeatedLetter]) -> None:
        connection.connection.cursor().executemany(
            """UPDATE dead_letter_queue SET seen = seen + :times, last_seen = max(last_seen, :last_seen),
                run_id = :run_id, source_table = :source, position = :position, superseded_at = NULL,
                received_key = json_set(received_key, '$.superseded_at', NULL)
                WHERE id = :letter_id""",
            [sighting._asdict() for sighting in sightings],
        )

    def now(self, connection: Connection) -> datetime:
        return datetime.now(UTC)  # processes that share a file share a machine

    def begin_bounded(self, connection: Connection, *, within: float = 600.0) -> datetime:
        return datetime.now(UTC)  # there is one writer at a time, and the wait for it is bounded

    def place(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino  # an open file stays the same, whatever its name refers to

    def size(self, connection: Connection) -> int:
        pages = connection.execute(text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"))
        log = self._path.with_name(self._path.name + "-wal")
        return int(pages.scalar_one()) + (log.stat().st_size if log.exists() else 0)

    def letters_size(self, connection: Connection) -> int | None:
        return None  # all tables are in one file, and only a scan can count the pages of a table

    def collided(self, error: BaseException) -> bool:
        return False  # there is one writing transaction at a time

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and self._path.exists() and not os.access(self._path.parent, os.W_OK):
            code = sqlite3.SQLITE_READONLY  # its log cannot be made beside it, as on a mount that is read-only
        return {
            sqlite3.SQLITE_FULL: "free some space and run again; everything committed before is kept",
            sqlite3.SQLITE_READONLY: "the file or its directory is read-only; nothing was changed",
            sqlite3.SQLITE_CANTOPEN: "see that the path is right and may be written",
            sqlite3.SQLITE_IOERR: "see that the disk is well and has space; everything committed is kept",
            sqlite3.SQLITE_NOTADB: "it is no SQLite database; name another file",
            sqlite3.SQLITE_CORRUPT: "restore it from a backup, or recover it with sqlite3's .recover",
            sqlite3.SQLITE_BUSY: "another process keeps the file locked; running again is safe",
        }.get(code)


def _begin(connection: Connection) -> None:
    # A writer locks before it reads: a transaction that has read first fails at once when others have written.
    writing = connection.get_execution_options().get("redrive_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _encode(value: object) -> str:
    return _tagged(encode(value))


def _tagged(text: str) -> str:
    """Return the JSON of a value so that SQLite keeps it as it is.

    SQLite stores text that is a number as a number in columns declared JSON: ints beyond 64 bits signed become floats,
    1.0 becomes 1, and some versions change the last digit of a float. Such a number becomes an object that `decode`
    knows anyway. Numbers within lists and objects are safe.
    """
    if text[0] not in _STARTS_OF_NUMBERS:
        return text
    if not text.lstrip("-").isdigit():
        return f'{{"$float": "{text}"}}'
    return text if int(text) < 2**63 else f'{{"$int": "{text}"}}'


def _as_stored(row: LetterRow) -> LetterRow:
    tagged = _tagged(row.raw_record)
    return row if tagged is row.raw_record else row._replace(raw_record=tagged)


def _has_content(row: LetterRow, raw_record: str | float, context: str | None) -> bool:
    """Return whether a row, as stored, has the record and context of a letter; the order of fields does not count.

    A record that is an int is read as a number, and so are all numbers that an older version stored.
    """
    stored = raw_record if isinstance(raw_record, str) else _encode(raw_record)
    return is_same(row.raw_record, stored) and is_same(row.context, context)


def _insert(columns: Sequence[str]) -> str:
    return f"INSERT INTO dead_letter_queue ({','.join(columns)}) VALUES ({','.join('?' * len(columns))})"


def _count(cursor: DBAPICursor, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Add new letters to `cause_hours`, as the trigger does on PostgreSQL."""
    place = {name: number for number, name in enumerate(columns)}
    counted = ["fingerprint", "pipeline_name", "rejected_at", "last_seen", *({"status", "seen"} & place.keys())]
    groups = Counter(map(itemgetter(*(place[name] for name in counted)), rows))  # a batch has few, mostly one moment
    for group, letters in groups.items():
        of = dict(zip(counted, group, strict=True))
        status = of.get("status", "pending")
        cursor.execute(
            _COUNT,
            (
                *(of["fingerprint"], of["pipeline_name"], f"{of['rejected_at'][:13]}:00:00.000000Z"),
                *(letters if status == column else 0 for column in STATUSES),
                *(letters * of.get("seen", 1), of["rejected_at"], of["last_seen"]),
            ),
        )


_COUNT = f"""
    INSERT INTO cause_hours (fingerprint, pipeline_name, hour, {", ".join(STATUSES)}, seen, first_seen, last_seen)
    VALUES ({",".join("?" * 10)})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in (*STATUSES, "seen"))},
        first_seen = min(first_seen, excluded.first_seen), last_seen = max(last_seen, excluded.last_seen)"""
