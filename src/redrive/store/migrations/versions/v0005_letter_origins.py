"""Letters that can be processed again years later: context, target and sink key; one open letter per identity.

Idempotency keys of tasks that do not depend on the run, and executors lost while they ran a task; branches, the
cancelling of one task, SLAs of tasks, and limits that all runs share; silences of alerts.
"""

import secrets

import sqlalchemy as sa
from alembic import op

from redrive.store.schema.columns import RunId, UtcTimestamp, Value

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    on_postgres = op.get_bind().dialect.name == "postgresql"
    schema = "pipeline" if on_postgres else None
    for column in (
        sa.Column("context", Value),
        sa.Column("target", sa.Text),
        sa.Column("sink_key", sa.Text),
        sa.Column("superseded_at", UtcTimestamp),
        sa.Column("key_since", UtcTimestamp),
        sa.Column("received_key", Value),
        sa.Column("trace_id", sa.Text),
    ):
        op.add_column("dead_letter_queue", column, schema=schema)
    for name in ("sink_key", "key_since"):
        is_set = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"dead_letter_queue_{name}",
            "dead_letter_queue",
            ["pipeline_name", name],
            schema=schema,
            sqlite_where=is_set,
            postgresql_where=is_set,
        )
    op.add_column("runs", sa.Column("target", sa.Text), schema=schema)
    op.add_column("runs", sa.Column("written_at", UtcTimestamp), schema=schema)
    op.add_column("task_runs", sa.Column("key_prefix", sa.Text), schema=schema)
    for name in ("twin", "lost"):
        zero = sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0"))
        op.add_column("tasks", zero, schema=schema)
    for name in ("branch", "cancelled", "pool"):
        op.add_column("tasks", sa.Column(name, sa.Text), schema=schema)
    op.add_column("tasks", sa.Column("sla", UtcTimestamp), schema=schema)
    in_pool = sa.text("owner IS NOT NULL AND pool IS NOT NULL")
    op.create_index("tasks_pool", "tasks", ["pool"], schema=schema, sqlite_where=in_pool, postgresql_where=in_pool)
    passed_over = sa.text("(state = 'SKIPPED' OR branch IS NOT NULL) AND child = -1")
    op.create_index(
        "tasks_passed_over",
        "tasks",
        ["run_id"],
        schema=schema,
        sqlite_where=passed_over,
        postgresql_where=passed_over,
    )
    op.add_column("runs", sa.Column("accepted", Value), schema=schema)
    op.add_column("runs", sa.Column("key_fields", Value), schema=schema)
    op.add_column("checkpoints", sa.Column("fields", Value), schema=schema)
    _add_progress(schema)
    op.create_table(
        "run_key_blocks",
        sa.Column("run_id", RunId, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("hashes", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "batch"),
        schema=schema,
    )
    for name in ("no_key_left", "cancelled", "failed_404", "streaks_5xx"):
        zero = sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))
        op.add_column("service_rollups", zero, schema=schema)
    for name in ("last_success", "last_failed_auth"):
        op.add_column("service_rollups", sa.Column(name, UtcTimestamp), schema=schema)
    _add_endpoints(schema)
    _add_silences(schema)
    _add_salt(schema)
    _add_replayed_rows(schema)
    _index_open_letters(schema, on_postgres)
    if on_postgres:
        _count_truncate()


def _add_endpoints(schema: str | None) -> None:
    """Count what services do by endpoint."""
    counts = ("calls", "attempts", "successes", "retries", "faults", "calls_failed", "failed_4xx", "failed_404")
    op.create_table(
        "service_endpoints",
        sa.Column("service", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("at", UtcTimestamp, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")) for name in counts),
        sa.Column("success_seconds", sa.Float, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("service", "endpoint", "at"),
        schema=schema,
        sqlite_with_rowid=False,
    )


def _add_progress(schema: str | None) -> None:
    """Keep how far a run came, its whole error and its environment; and the rows of all runs of a pipeline."""
    for name in ("source_done", "source_total"):
        op.add_column("runs", sa.Column(name, sa.BigInteger), schema=schema)
    for name in ("detail", "trace_id"):
        op.add_column("runs", sa.Column(name, sa.Text), schema=schema)
    op.add_column("runs", sa.Column("environment", Value), schema=schema)
    prefix = "" if schema is None else f"{schema}."
    for name in ("rows_read", "rows_written", "rows_rejected"):
        zero = sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))
        op.add_column("pipelines", zero, schema=schema)
        of_runs = f"SELECT SUM({name}) FROM {prefix}runs WHERE pipeline_name = {prefix}pipelines.name"
        op.execute(sa.text(f"UPDATE {prefix}pipelines SET {name} = COALESCE(({of_runs}), 0) WHERE kind = 'pipeline'"))


def _add_silences(schema: str | None) -> None:
    """Let operators silence alerts for a while."""
    op.create_table(
        "alert_silences",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("alert_id", sa.BigInteger),
        *(sa.Column(name, sa.Text) for name in ("key", "subject", "condition", "pipeline")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("reason", "created_by")),
        *(sa.Column(name, UtcTimestamp, nullable=False) for name in ("created_at", "until")),
        sa.Column("ended_by", sa.Text),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index("alert_silences_until", "alert_silences", ["until"], schema=schema)


def _add_salt(schema: str | None) -> None:
    """Give the store a random salt of its own, for the digests that stand for masked values."""
    salt = op.create_table(
        "letter_salt",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        schema=schema,
    )
    op.bulk_insert(salt, [{"id": 1, "salt": secrets.token_bytes(32)}])


def _add_replayed_rows(schema: str | None) -> None:
    """Keep when replays last wrote rows, and of which letters."""
    names = ("letters_of", "pipeline_name", "sink")
    op.create_table(
        "replayed_rows",
        *(sa.Column(name, sa.Text, nullable=False) for name in names),
        *(sa.Column(name, UtcTimestamp, nullable=False) for name in ("written_at", "newest_letter")),
        sa.PrimaryKeyConstraint(*names),
        schema=schema,
        sqlite_with_rowid=False,
    )


def _count_truncate() -> None:
    """Let the counts of causes follow a TRUNCATE, which fires no trigger of single rows."""
    name = "dead_letter_queue_truncate_counted"
    op.execute(
        sa.text(
            f"""CREATE FUNCTION pipeline.{name}() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN DELETE FROM pipeline.cause_hours; RETURN NULL; END $$"""
        )
    )
    op.execute(
        sa.text(
            f"""CREATE TRIGGER {name} AFTER TRUNCATE ON pipeline.dead_letter_queue
                FOR EACH STATEMENT EXECUTE FUNCTION pipeline.{name}()"""
        )
    )


def _index_open_letters(schema: str | None, on_postgres: bool) -> None:
    """Let the unique index cover escalated letters as well as pending ones."""
    letters = "dead_letter_queue" if schema is None else f"{schema}.dead_letter_queue"
    # A record that was rejected again while its letter was escalated has two open letters. Both stay: the older one
    # gets an identity of its own.
    random_identity = "gen_random_uuid()" if on_postgres else "randomblob(16)"
    is_open = "status IN ('pending', 'escalated')"
    newer = f"newer.{is_open} AND newer.identity = {letters}.identity AND newer.id > {letters}.id"
    op.execute(
        sa.text(
            f"UPDATE {letters} SET identity = {random_identity} WHERE {is_open} "
            f"AND EXISTS (SELECT 1 FROM {letters} AS newer WHERE {newer})"
        )
    )
    op.drop_index("dead_letter_queue_identity", "dead_letter_queue", schema=schema)
    mark = sa.text(f"(CASE WHEN {is_open} THEN 1 END)")
    op.create_index("dead_letter_queue_identity", "dead_letter_queue", ["identity", mark], unique=True, schema=schema)
