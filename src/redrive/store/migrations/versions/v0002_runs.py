"""Runs of row pipelines, their checkpoints, and the keys a run has seen."""

import sqlalchemy as sa
from alembic import op

from redrive.store.schema.columns import Digest, RunId, UtcTimestamp, Value

revision = "0002"
down_revision = "0001"

_COUNTED = ("rows_read", "rows_written", "rows_rejected", "rows_discarded", "rows_duplicates", "batches", "retries")


def upgrade() -> None:
    schema = "pipeline" if op.get_bind().dialect.name == "postgresql" else None
    op.create_table(
        "runs",
        sa.Column("run_id", RunId, primary_key=True),
        sa.Column("pipeline_name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("sink", sa.Text, nullable=False),
        sa.Column("started_at", UtcTimestamp, nullable=False),
        sa.Column("updated_at", UtcTimestamp, nullable=False),
        sa.Column("ended_at", UtcTimestamp),
        sa.Column("sla", UtcTimestamp),
        sa.Column("seconds", sa.Float, nullable=False, server_default=sa.text("0")),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")) for name in _COUNTED),
        sa.Column("tier", sa.Text, nullable=False, server_default=sa.text("'log'")),
        sa.Column("reason", sa.Text),
        schema=schema,
    )
    op.create_index("runs_pipeline_name", "runs", ["pipeline_name", "started_at"], schema=schema)
    op.create_index("runs_started_at", "runs", ["started_at"], schema=schema)
    op.create_table(
        "checkpoints",
        sa.Column("pipeline_name", sa.Text, primary_key=True),
        sa.Column("run_id", RunId, nullable=False),
        sa.Column("identity", Value, nullable=False),
        sa.Column("position", Value),
        sa.Column("updated_at", UtcTimestamp, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("owner_until", UtcTimestamp),
        schema=schema,
    )
    op.create_table(
        "run_keys",
        sa.Column("run_id", RunId, nullable=False),
        sa.Column("key_digest", Digest, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key_digest"),
        schema=schema,
        sqlite_with_rowid=False,
    )
