"""Rollups of services, alerts and their messages, and what a run reports for them."""

import sqlalchemy as sa
from alembic import op

from redrive.store.schema.columns import RunId, UtcTimestamp, Value

revision = "0004"
down_revision = "0003"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ZERO = sa.text("0")
_COUNTED = (
    *("calls", "attempts", "successes", "retries", "fallbacks"),
    *("retry_now", "transient", "rate_limited", "ambiguous", "quota", "auth", "permanent", "row", "discard"),
    *("resource", "circuit_open", "calls_failed", "failed_auth", "failed_4xx"),
)


def upgrade() -> None:
    schema = "pipeline" if op.get_bind().dialect.name == "postgresql" else None
    _runs(schema)
    _services(schema)
    _alerts(schema)
    _sends(schema)
    _watching(schema)


def _runs(schema: str | None) -> None:
    for table, more in (("runs", ("error_kind", "error_type", "error_service")), ("task_runs", ())):
        for name in more:
            op.add_column(table, sa.Column(name, sa.Text), schema=schema)
        op.add_column(table, sa.Column("failures", sa.Integer, nullable=False, server_default=_ZERO), schema=schema)
        op.add_column(table, sa.Column("judged_at", UtcTimestamp), schema=schema)
        # What ended before there were alerts is old news.
        where = table if schema is None else f"{schema}.{table}"
        op.execute(sa.text(f"UPDATE {where} SET judged_at = ended_at"))
        unjudged = sa.text("judged_at IS NULL")
        op.create_index(
            f"{table}_unjudged", table, ["ended_at"], schema=schema, sqlite_where=unjudged, postgresql_where=unjudged
        )
    op.create_table(
        "pipelines",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sla", sa.Text),
        sa.Column("first_seen", UtcTimestamp, nullable=False),
        sa.Column("last_started", UtcTimestamp, nullable=False),
        schema=schema,
    )


def _services(schema: str | None) -> None:
    keyed = (sa.Column("service", sa.Text, nullable=False), sa.Column("at", UtcTimestamp, nullable=False))
    op.create_table(
        "service_rollups",
        *(column._copy() for column in keyed),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default=_ZERO) for name in _COUNTED),
        sa.Column("success_seconds", sa.Float, nullable=False, server_default=_ZERO),
        sa.Column("open_seconds", sa.Float, nullable=False, server_default=_ZERO),
        sa.PrimaryKeyConstraint("service", "at"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "service_latencies",
        *(column._copy() for column in keyed),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("service", "at", "bucket"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "service_minutes",
        *(column._copy() for column in keyed),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("faults", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("service", "at"),
        schema=schema,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "service_reporters",
        sa.Column("process", sa.Text, primary_key=True),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("at", UtcTimestamp, nullable=False),
        schema=schema,
    )


def _alerts(schema: str | None) -> None:
    op.create_table(
        "alerts",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("key", "condition", "urgency", "status", "subject_kind", "subject", "title")
        ),
        sa.Column("run_id", RunId),
        sa.Column("witnesses", Value, nullable=False, server_default=sa.text("'[]'")),
        sa.Column("facts", Value, nullable=False),
        sa.Column("evidence", Value, nullable=False),
        sa.Column("since", UtcTimestamp, nullable=False),
        sa.Column("opened_at", UtcTimestamp),
        sa.Column("last_seen", UtcTimestamp, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False, server_default=sa.text("1")),
        sa.Column("gone_since", UtcTimestamp),
        sa.Column("persist", sa.Float, nullable=False, server_default=_ZERO),
        sa.Column("told_at", UtcTimestamp),
        sa.Column("repeats", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("acknowledged_at", UtcTimestamp),
        sa.Column("acknowledged_by", sa.Text),
        sa.Column("note", sa.Text),
        sa.Column("resolved_at", UtcTimestamp),
        sa.Column("resolution", sa.Text),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index("alerts_last_seen", "alerts", ["last_seen"], schema=schema)
    op.create_index("alerts_run_id", "alerts", ["run_id"], schema=schema)
    is_open = sa.text("status != 'resolved'")
    op.create_index("alerts_open", "alerts", ["id"], schema=schema, sqlite_where=is_open, postgresql_where=is_open)
    # One alert that is not over for each cause; those that are over are in the index with a NULL that equals no other.
    mark = sa.text("(CASE WHEN status != 'resolved' THEN 1 END)")
    op.create_index("alerts_key", "alerts", ["key", mark], unique=True, schema=schema)


def _sends(schema: str | None) -> None:
    op.create_table(
        "alert_sends",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("alert_id", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("channel", "what", "urgency", "status")),
        sa.Column("digest", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("created_at", UtcTimestamp, nullable=False),
        sa.Column("due_at", UtcTimestamp, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("error", sa.Text),
        sa.Column("sent_at", UtcTimestamp),
        sa.Column("owner", sa.Text),
        sa.Column("owner_until", UtcTimestamp),
        schema=schema,
    )
    op.create_index("alert_sends_alert_id", "alert_sends", ["alert_id"], schema=schema)
    op.create_index("alert_sends_channel", "alert_sends", ["channel", "sent_at"], schema=schema)
    unsent = sa.text("status = 'waiting'")
    op.create_index(
        "alert_sends_due", "alert_sends", ["due_at"], schema=schema, sqlite_where=unsent, postgresql_where=unsent
    )


def _watching(schema: str | None) -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("until", UtcTimestamp, nullable=False),
        schema=schema,
    )
    op.create_table(
        "gauges",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("at", UtcTimestamp, nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("name", "at"),
        schema=schema,
        sqlite_with_rowid=False,
    )
