"""PostgreSQL: the schema `pipeline`, COPY for what comes in bulk."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, text
from sqlalchemy.dialects.postgresql import insert

from redrive._internal.masking import mask
from redrive._internal.optional import require_extra
from redrive.model.calls import Kind
from redrive.store.dialects.dialect import PUT_COLUMNS, LetterRow, RepeatedLetter
from redrive.store.encoding import decode, encode

with require_extra("postgres"):
    import psycopg

_SCHEMA_LOCK = 7_236_413_905_712  # the number of redrive's advisory lock; any constant will do
_COPIED_AT_ONCE = 256
# A server that disappears without closing the connection is noticed within half a minute.
_CONNECTING = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    # A pooler may pass the next transaction to another server process, which has none of the prepared statements.
    "prepare_threshold": None,
}
# Shorter than the timeout of any client, so that a client outlasts a transaction whose process was suspended.
SILENCE = "15s"
LOCK_PATIENCE = "25s"
_BOUNDED = (
    "SELECT clock_timestamp(), set_config('lock_timeout', :locked, true), "
    "set_config('idle_in_transaction_session_timeout', :silent, true)"
)
_BEGIN_BOUNDED = text(_BOUNDED)
# A session that was last sent many parameters at once may count as busy, although it is silent.
_BEGIN_BOUNDED_17 = text(f"{_BOUNDED}, set_config('transaction_timeout', :within, true)")


class PostgresDialect:
    """See `Dialect`."""

    migrates_itself = False
    is_remote = True
    reading: Mapping[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    writing: Mapping[str, Any] = {"isolation_level": "READ COMMITTED"}
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        # The parameters may hold a password, too.
        self.where = mask(self._url.set(drivername="postgresql").render_as_string(hide_password=True))

    def engine_key(self) -> Hashable:
        return self._url

    def engine(self) -> Engine:
        engine = create_engine(
            self._url,
            json_serializer=encode,
            json_deserializer=decode,
            hide_parameters=True,  # a traceback must not show records
            connect_args={name: value for name, value in _CONNECTING.items() if name not in self._url.query},
        )
        event.listen(engine, "checkout", _leave_access_mode)
        return engine

    def tighten(self) -> None:
        """Do nothing: on PostgreSQL, roles are granted by hand."""

    def insert(self, table: Table) -> Any:
        return insert(table)

    def lock_schema(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK})

    def lock_causes(self, connection: Connection) -> None:
        connection.execute(text("LOCK TABLE pipeline.causes IN SHARE ROW EXCLUSIVE MODE"))

    def lock(self, connection: Connection, what: str) -> None:
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtextextended(:what, 0))"), {"what": f"redrive {what}"}
        )

    def put_new(self, connection: Connection, rows: Sequence[LetterRow]) -> Collection[bytes]:
        # Locked in one order, so that two batches of the same letters wait for each other instead of deadlocking.
        rows_with_letter = connection.connection.cursor().execute(
            """SELECT identity FROM pipeline.dead_letter_queue
               WHERE identity = ANY(%s::uuid[]) AND (CASE WHEN status IN ('pending', 'escalated') THEN 1 END) = 1
               ORDER BY identity FOR UPDATE""",
            ["{" + ",".join([row.identity.hex() for row in rows]) + "}"],
        )
        standing = {identity.bytes for (identity,) in rows_with_letter}
        new = [row for row in rows if row.identity not in standing] if standing else rows
        if new:
            self.add_letters(connection, PUT_COLUMNS, new)
        return standing

    def add_letters(self, connection: Connection, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        _copy(connection, "pipeline.dead_letter_queue", columns, rows)

    def see_again(self, connection: Connection, rows: Sequence[LetterRow], times: Sequence[int]) -> None:
        cursor = connection.connection.cursor()
        cursor.execute(
            f"""CREATE TEMPORARY TABLE IF NOT EXISTS seen_again ON COMMIT DROP
                AS SELECT {",".join(PUT_COLUMNS)}, seen FROM pipeline.dead_letter_queue WITH NO DATA"""
        )
        counted = [(*row, count) for row, count in zip(rows, times, strict=True)]
        _copy(connection, "seen_again", (*PUT_COLUMNS, "seen"), counted)
        letter = "pipeline.dead_letter_queue AS letter"
        is_open = "(CASE WHEN letter.status IN ('pending', 'escalated') THEN 1 END) = 1"
        same = f"letter.identity = again.identity AND {is_open}"
        # Of a masked record the context has the digest.
        unchanged = "letter.raw_record = again.raw_record AND letter.context IS NOT DISTINCT FROM again.context"
        cursor.execute(
            f"""INSERT INTO pipeline.letter_audit (letter_id, at, action, status_before, status_after, detail)
                SELECT letter.id, again.last_seen, 'superseded', letter.status, letter.status,
                       jsonb_build_object('raw_record', letter.raw_record, 'edited_record', letter.edited_record)
                FROM seen_again AS again JOIN {letter} ON {same}
                WHERE NOT ({unchanged})"""
        )
        is_unsent = "again.error_type = 'call' AND again.attempts = 0"
        cursor.execute(
            f"""UPDATE {letter} SET seen = letter.seen + again.seen,
                       last_seen = greatest(letter.last_seen, again.last_seen),
                       run_id = again.run_id, source_table = again.source_table, position = again.position,
                       error_message = CASE WHEN {is_unsent} THEN letter.error_message ELSE again.error_message END,
                       fingerprint = CASE WHEN {is_unsent} THEN letter.fingerprint ELSE again.fingerprint END,
                       attempts = CASE WHEN {is_unsent} THEN letter.attempts ELSE again.attempts END,
                       raw_record = again.raw_record,
                       context = again.context, target = coalesce(again.target, letter.target),
                       trace_id = coalesce(again.trace_id, letter.trace_id), superseded_at = NULL,
                       edited_record = CASE WHEN {unchanged} THEN letter.edited_record END,
                       sink_key = CASE WHEN {unchanged}
                           AND (letter.sink_key IS NOT NULL OR letter.edited_record IS NOT NULL)
                           THEN letter.sink_key ELSE again.sink_key END,
                       received_key = CASE WHEN {unchanged}
                           THEN jsonb_set(letter.received_key, '{{superseded_at}}', 'null') END,
                       key_since = CASE WHEN {unchanged} THEN letter.key_since END
                FROM seen_again AS again WHERE {same}"""
        )
        cursor.execute("TRUNCATE seen_again")

    def same_content(self, connection: Connection, rows: Sequence[LetterRow]) -> Sequence[tuple[int, int]]:
        cursor = connection.connection.cursor()
        columns = ("place", "identity", "raw_record", "context")
        cursor.execute(
            """CREATE TEMPORARY TABLE IF NOT EXISTS asked_content ON COMMIT DROP
                AS SELECT 0 AS place, identity, raw_record, context FROM pipeline.dead_letter_queue WITH NO DATA"""
        )
        asked = [(place, row.identity, row.raw_record, row.context) for place, row in enumerate(rows)]
        _copy(connection, "asked_content", columns, asked)
        # Locked in one order, so that two batches of the same letters wait for each other instead of deadlocking.
        cursor.execute(
            """SELECT letter.id FROM pipeline.dead_letter_queue AS letter JOIN asked_content USING (identity)
               WHERE letter.status IN ('reprocessed', 'discarded') ORDER BY letter.id FOR UPDATE OF letter"""
        )
        matches = cursor.execute(
            """SELECT asked.place, letter.id FROM asked_content AS asked
               JOIN pipeline.dead_letter_queue AS letter USING (identity)
               WHERE letter.raw_record = asked.raw_record AND letter.context IS NOT DISTINCT FROM asked.context"""
        )
        pairs = [(int(place), int(letter_id)) for place, letter_id in matches]
        cursor.execute("TRUNCATE asked_content")
        return pairs

    def see_decided(self, connection: Connection, sightings: Sequence[RepeatedLetter]) -> None:
        connection.connection.cursor().execute(
            """UPDATE pipeline.dead_letter_queue AS letter SET seen = letter.seen + again.times,
                      last_seen = greatest(letter.last_seen, again.last_seen),
                      run_id = again.run_id, source_table = again.source, position = again.position,
                      superseded_at = NULL,
                      received_key = jsonb_set(letter.received_key, '{superseded_at}', 'null')
               FROM unnest(%s::bigint[], %s::integer[], %s::timestamptz[], %s::uuid[], %s::text[], %s::text[])
                    AS again (id, times, last_seen, run_id, source, position)
               WHERE letter.id = again.id""",
            [list(column) for column in zip(*sightings, strict=True)],
        )

    def now(self, connection: Connection) -> datetime:
        moment: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        return moment.astimezone(UTC)

    def begin_bounded(self, connection: Connection, *, within: float = 600.0) -> datetime:
        bounds = {"locked": LOCK_PATIENCE, "silent": SILENCE, "within": f"{within * 1_000:.0f}ms"}
        knows_all = (connection.dialect.server_version_info or ())[:1] >= (17,)
        begin = _BEGIN_BOUNDED_17 if knows_all else _BEGIN_BOUNDED
        moment: datetime = connection.execute(begin, bounds).scalar_one()
        return moment.astimezone(UTC)

    def place(self) -> object:
        return self.where  # a connected client notices when the server goes away

    def size(self, connection: Connection) -> int:
        total = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = 'pipeline'::regnamespace"
        return int(connection.execute(text(f"{total} AND relkind = 'r'")).scalar_one() or 0)

    def letters_size(self, connection: Connection) -> int | None:
        size = text("SELECT pg_total_relation_size('pipeline.dead_letter_queue')")
        return int(connection.execute(size).scalar_one())

    def collided(self, error: BaseException) -> bool:
        if not isinstance(error, psycopg.errors.UniqueViolation):
            return False
        return error.diag.constraint_name == "dead_letter_queue_identity"

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        if kind is Kind.AUTH:
            return "check the user and the password of the store's URL"
        if kind is Kind.TRANSIENT:
            return "check that the server runs and is reachable; running again is safe"
        if getattr(error, "sqlstate", None) == "25006":
            return (
                "the server is a standby, or the role or the database has default_transaction_read_only=on; "
                "connect as a role that may write"
            )
        if getattr(error, "sqlstate", None) == "25P04":
            return "this process was suspended, or the server is too slow; running again is safe"
        return None


def _leave_access_mode(connection: psycopg.Connection[Any], *_: object) -> None:
    """Let the role decide whether it may write: after a read-only transaction, the driver would begin READ WRITE."""
    connection.read_only = None


def _copy(connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    cursor: psycopg.Cursor[Any] = connection.connection.cursor()  # type: ignore[assignment]  # the driver's own
    with cursor.copy(f"COPY {table} ({','.join(columns)}) FROM STDIN") as copy:
        for start in range(0, len(rows), _COPIED_AT_ONCE):  # the server reads one piece while we write the next
            copy.write(_lines(rows[start : start + _COPIED_AT_ONCE]))


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows in COPY's text format."""
    return "".join(["\t".join([_field(value) for value in row]) + "\n" for row in rows])


def _field(value: Any) -> str:
    if isinstance(value, str):
        # The check is cheap, and most texts have nothing to escape.
        if "\\" in value or "\n" in value or "\t" in value or "\r" in value:
            return value.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")
        return value
    if value is None:
        return r"\N"
    return value.hex() if type(value) is bytes else str(value)
