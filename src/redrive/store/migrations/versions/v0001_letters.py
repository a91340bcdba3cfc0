"""Dead letters, their causes, audit log and claims; breakers and credentials that processes share."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from redrive.store.schema.columns import Digest, RunId, UtcTimestamp, Value

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_COUNTED = ("pending", "reprocessed", "discarded", "escalated")


def upgrade() -> None:
    on_postgres = op.get_bind().dialect.name == "postgresql"
    schema = "pipeline" if on_postgres else None
    _create_letters(schema, on_postgres)
    _create_causes(schema)
    _create_shared_state(schema)
    for statement in _postgres_counting() if on_postgres else _sqlite_counting():
        op.execute(sa.text(statement.replace(":", r"\:")))


def _create_letters(schema: str | None, on_postgres: bool) -> None:
    # Defaults that let a row be written by hand with the core columns alone.
    now = sa.text("now()" if on_postgres else "(strftime('%Y-%m-%dT%H:%M:%f000Z'))")
    chance = sa.text("gen_random_uuid()" if on_postgres else "(randomblob(16))")
    op.create_table(
        "dead_letter_queue",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("pipeline_name", sa.Text, nullable=False),
        sa.Column("run_id", RunId),
        sa.Column("error_type", sa.Text, nullable=False),
        sa.Column("error_message", sa.Text, nullable=False),
        sa.Column("raw_record", Value, nullable=False),
        sa.Column("source_table", sa.Text),
        sa.Column("source_key", sa.Text),
        sa.Column("rejected_at", UtcTimestamp, nullable=False, server_default=now),
        sa.Column("reprocess_count", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("last_reprocess", UtcTimestamp),
        sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'pending'")),
        sa.Column("resolution_note", sa.Text),
        sa.Column("position", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("identity", Digest, nullable=False, server_default=chance),
        sa.Column("seen", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.Column("last_seen", UtcTimestamp, nullable=False, server_default=now),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.Column("edited_record", Value),
        sa.Column("last_error", sa.Text),
        sa.Column("settled_at", UtcTimestamp),
        schema=schema,
        sqlite_autoincrement=True,
    )
    if on_postgres:  # on SQLite a trigger checks it: a constraint would cost every insert a sixth of its time
        op.create_check_constraint(
            "dead_letter_queue_status", "dead_letter_queue", f"status IN {_COUNTED}", schema=schema
        )
    pending = sa.text("(CASE WHEN status = 'pending' THEN 1 END)")
    keyed = sa.text("source_key IS NOT NULL")
    indexes: tuple[tuple[str, list[Any], dict[str, Any]], ...] = (
        ("identity", ["identity", pending], {"unique": True}),
        ("selection", ["pipeline_name", "status", "fingerprint"], {}),
        ("rejected_at", ["rejected_at"], {}),
        ("run_id", ["run_id"], {}),
        ("source_key", ["source_key"], {"sqlite_where": keyed, "postgresql_where": keyed}),
    )
    for name, columns, options in indexes:
        op.create_index(f"dead_letter_queue_{name}", "dead_letter_queue", columns, schema=schema, **options)
    op.create_table(
        "letter_audit",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("letter_id", sa.BigInteger),
        sa.Column("at", UtcTimestamp, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("status_before", sa.Text),
        sa.Column("status_after", sa.Text),
        sa.Column("actor", sa.Text),
        sa.Column("note", sa.Text),
        sa.Column("detail", Value),
        schema=schema,
    )
    op.create_index("letter_audit_letter_id", "letter_audit", ["letter_id"], schema=schema)
    op.create_table(
        "letter_claims",
        sa.Column("letter_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("until", UtcTimestamp, nullable=False),
        schema=schema,
    )


def _create_causes(schema: str | None) -> None:
    op.create_table(
        "causes",
        sa.Column("fingerprint", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("error_type", sa.Text, nullable=False),
        sa.Column("template", sa.Text, nullable=False),
        sa.Column("sample", sa.Text, nullable=False),
        schema=schema,
    )
    op.create_table(
        "cause_hours",
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("pipeline_name", sa.Text, nullable=False),
        sa.Column("hour", UtcTimestamp, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")) for name in (*_COUNTED, "seen")),
        sa.Column("first_seen", UtcTimestamp, nullable=False),
        sa.Column("last_seen", UtcTimestamp, nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "pipeline_name", "hour"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_index("cause_hours_hour", "cause_hours", ["hour"], schema=schema)


def _create_shared_state(schema: str | None) -> None:
    op.create_table(
        "breakers",
        sa.Column("service", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("since", UtcTimestamp, nullable=False),
        sa.Column("retry_at", UtcTimestamp),
        sa.Column("quorum", sa.Integer, nullable=False),
        sa.Column("changed_at", UtcTimestamp, nullable=False),
        sa.PrimaryKeyConstraint("service", "host", "process"),
        schema=schema,
    )
    op.create_table(
        "credentials",
        sa.Column("service", sa.Text, nullable=False),
        sa.Column("key_digest", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("drained_until", UtcTimestamp, nullable=False),
        sa.Column("changed_at", UtcTimestamp, nullable=False),
        sa.PrimaryKeyConstraint("service", "key_digest"),
        schema=schema,
    )


# ── counting ──────────────────────────────────────────────────────────────────────────────────────────────────────────
# `cause_hours` follows every change of a letter, whatever makes it: redrive, or an operator with SQL.

_COLUMNS = f"fingerprint, pipeline_name, hour, {', '.join(_COUNTED)}, seen, first_seen, last_seen"


def _sqlite_counting() -> list[str]:
    """Row by row. Inserts are the exception: redrive counts them per batch, since a trigger made them half as fast."""
    hour = "replace(substr({row}.{column}, 1, 13), ' ', 'T') || ':00:00.000000Z'"
    same = "fingerprint = old.fingerprint AND pipeline_name = old.pipeline_name AND hour = " + hour.format(
        row="old", column="rejected_at"
    )
    leave = ", ".join(f"{status} = {status} - (old.status = '{status}')" for status in _COUNTED)
    arrive = ", ".join(f"(new.status = '{status}')" for status in _COUNTED)
    added = ", ".join(f"{status} = {status} + excluded.{status}" for status in _COUNTED)
    moved = " OR ".join(
        f"old.{column} IS NOT new.{column}" for column in ("status", "fingerprint", "pipeline_name", "rejected_at")
    )
    return [
        f"""CREATE TRIGGER dead_letter_queue_moved
            AFTER UPDATE OF status, fingerprint, pipeline_name, rejected_at ON dead_letter_queue WHEN {moved}
            BEGIN
                SELECT raise(ABORT, 'there is no such status') WHERE new.status NOT IN {_COUNTED};
                UPDATE cause_hours SET {leave} WHERE {same};
                INSERT INTO cause_hours ({_COLUMNS})
                VALUES (new.fingerprint, new.pipeline_name, {hour.format(row="new", column="rejected_at")},
                        {arrive}, 0, new.rejected_at, new.rejected_at)
                ON CONFLICT DO UPDATE SET {added}, first_seen = min(first_seen, excluded.first_seen);
            END""",
        f"""CREATE TRIGGER dead_letter_queue_seen_again
            AFTER UPDATE OF seen ON dead_letter_queue WHEN new.seen > old.seen
            BEGIN
                INSERT INTO cause_hours ({_COLUMNS})
                VALUES (new.fingerprint, new.pipeline_name, {hour.format(row="new", column="last_seen")},
                        0, 0, 0, 0, new.seen - old.seen, new.last_seen, new.last_seen)
                ON CONFLICT DO UPDATE SET seen = seen + excluded.seen, last_seen = max(last_seen, excluded.last_seen);
            END""",
        f"""CREATE TRIGGER dead_letter_queue_removed AFTER DELETE ON dead_letter_queue
            BEGIN
                UPDATE cause_hours SET {leave} WHERE {same};
            END""",
    ]


def _postgres_counting() -> list[str]:
    """Statement by statement, over the rows it touched; in one order, so that two writers do not deadlock here."""
    hour = "date_trunc('hour', {}, 'UTC')"
    here = f"fingerprint, pipeline_name, {hour.format('rejected_at')} AS hour"

    def rows(table: str, sign: str, seen: str, last_seen: str) -> str:
        counts = ", ".join(f"{sign}(status = '{status}')::int AS {status}" for status in _COUNTED)
        return (
            f"SELECT {here}, {counts}, {seen} AS seen, rejected_at AS first_seen, {last_seen} AS last_seen FROM {table}"
        )

    came = rows("after", "", "0", "rejected_at")
    went = rows("before", "-", "0", "rejected_at")
    again = (
        f"SELECT after.fingerprint, after.pipeline_name, {hour.format('after.last_seen')}, 0, 0, 0, 0,"
        " after.seen - before.seen, after.last_seen, after.last_seen FROM after JOIN before USING (id)"
        " WHERE after.seen > before.seen"
    )

    def trigger(event: str, tables: str, deltas: str) -> list[str]:
        name = f"dead_letter_queue_{event.lower()}_counted"
        sums = ", ".join(f"sum({column}) AS {column}" for column in (*_COUNTED, "seen"))
        news = " OR ".join(f"sum({column}) <> 0" for column in (*_COUNTED, "seen"))
        added = ", ".join(f"{column} = kept.{column} + excluded.{column}" for column in (*_COUNTED, "seen"))
        return [
            f"""CREATE FUNCTION pipeline.{name}() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    INSERT INTO pipeline.cause_hours AS kept ({_COLUMNS})
                    SELECT fingerprint, pipeline_name, hour, {sums}, min(first_seen), max(last_seen)
                    FROM ({deltas}) AS deltas GROUP BY 1, 2, 3 HAVING {news} ORDER BY 1, 2, 3
                    ON CONFLICT (fingerprint, pipeline_name, hour) DO UPDATE SET {added},
                        first_seen = least(kept.first_seen, excluded.first_seen),
                        last_seen = greatest(kept.last_seen, excluded.last_seen);
                    RETURN NULL;
                END $$""",
            f"""CREATE TRIGGER {name} AFTER {event} ON pipeline.dead_letter_queue REFERENCING {tables}
                FOR EACH STATEMENT EXECUTE FUNCTION pipeline.{name}()""",
        ]

    return [
        *trigger("INSERT", "NEW TABLE AS after", rows("after", "", "seen", "last_seen")),
        *trigger("UPDATE", "OLD TABLE AS before NEW TABLE AS after", f"{came} UNION ALL {went} UNION ALL {again}"),
        *trigger("DELETE", "OLD TABLE AS before", went),
    ]
