"""Runs of flows, their tasks, attempts and changes of state, and the executors that work on them."""

import sqlalchemy as sa
from alembic import op

from redrive.store.schema.columns import RunId, UtcTimestamp

revision = "0003"
down_revision = "0002"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ZERO = sa.text("0")


def upgrade() -> None:
    schema = "pipeline" if op.get_bind().dialect.name == "postgresql" else None
    _runs(schema)
    _tasks(schema)
    _history(schema)
    _executors(schema)


def _runs(schema: str | None) -> None:
    op.create_table(
        "task_runs",
        sa.Column("run_id", RunId, primary_key=True),
        sa.Column("flow_name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("params", sa.Text, nullable=False),
        sa.Column("shape", sa.Text, nullable=False),
        sa.Column("started_at", UtcTimestamp, nullable=False),
        sa.Column("updated_at", UtcTimestamp, nullable=False),
        sa.Column("ended_at", UtcTimestamp),
        sa.Column("sla", UtcTimestamp),
        sa.Column("reason", sa.Text),
        schema=schema,
    )
    op.create_index("task_runs_flow_name", "task_runs", ["flow_name", "started_at"], schema=schema)
    op.create_index("task_runs_started_at", "task_runs", ["started_at"], schema=schema)


def _tasks(schema: str | None) -> None:
    counted = ("remaining", "dead", "failed")
    tried = ("attempt", "failures", "same")
    op.create_table(
        "tasks",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("run_id", RunId, nullable=False),
        sa.Column("node", sa.Integer, nullable=False),
        sa.Column("child", sa.Integer, nullable=False, server_default=sa.text("-1")),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("waiting", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("children", sa.Integer),
        *(sa.Column(name, sa.Integer, nullable=False, server_default=_ZERO) for name in counted),
        sa.Column("due_at", UtcTimestamp),
        sa.Column("owner", sa.BigInteger),
        *(sa.Column(name, sa.Integer, nullable=False, server_default=_ZERO) for name in tried),
        sa.Column("wait", sa.Float),
        *(sa.Column(name, sa.Text) for name in ("input", "result", "result_file")),
        *(sa.Column(name, sa.Text) for name in ("kind", "fingerprint", "error", "note")),
        sa.Column("created_at", UtcTimestamp, nullable=False),
        *(sa.Column(name, UtcTimestamp) for name in ("since", "started_at", "ended_at")),
        sa.Column("seconds", sa.Float),
        schema=schema,
    )
    op.create_index("tasks_place", "tasks", ["run_id", "node", "child"], unique=True, schema=schema)
    for index, columns, held in (
        ("tasks_due", ["run_id", "node", "due_at", "id"], "due_at"),
        ("tasks_claimed", ["run_id", "owner"], "owner"),
    ):
        where = sa.text(f"{held} IS NOT NULL")
        op.create_index(index, "tasks", columns, schema=schema, sqlite_where=where, postgresql_where=where)


def _history(schema: str | None) -> None:
    op.create_table(
        "task_attempts",
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("executor", sa.BigInteger, nullable=False),
        sa.Column("started_at", UtcTimestamp, nullable=False),
        sa.Column("ended_at", UtcTimestamp),
        sa.Column("ended", sa.Text),
        sa.Column("seconds", sa.Float),
        *(sa.Column(name, sa.Text) for name in ("kind", "error", "fingerprint", "trace", "output")),
        sa.PrimaryKeyConstraint("task_id", "attempt"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task_changes",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("at", UtcTimestamp, nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("cause", sa.Text),
        schema=schema,
    )
    op.create_index("task_changes_task_id", "task_changes", ["task_id"], schema=schema)


def _executors(schema: str | None) -> None:
    op.create_table(
        "task_executors",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("run_id", RunId, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False, server_default=_ZERO),
        sa.Column("until", UtcTimestamp, nullable=False),
        sa.Column("began_at", UtcTimestamp, nullable=False),
        sa.Column("ended_at", UtcTimestamp),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index("task_executors_run_id", "task_executors", ["run_id"], schema=schema)
