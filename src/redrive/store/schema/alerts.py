"""Tables of alerts, silences, messages, and the measurements and leases of the watch."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, PrimaryKeyConstraint, Table, Text, case, text

from redrive.store.schema.columns import Id, RunId, UtcTimestamp, Value, metadata

alerts = Table(
    "alerts",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False),
    Column("condition", Text, nullable=False),
    Column("urgency", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("subject_kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("run_id", RunId),
    # The names of the evidence, as a JSON list: runs, hosts, services. Alerts are looked up by them.
    Column("witnesses", Value, nullable=False, server_default=text("'[]'")),
    Column("facts", Value, nullable=False),
    Column("evidence", Value, nullable=False),
    Column("since", UtcTimestamp, nullable=False),
    Column("opened_at", UtcTimestamp),
    Column("last_seen", UtcTimestamp, nullable=False),
    Column("seen", BigInteger, nullable=False, server_default=text("1")),
    # Since when the condition no longer holds; null while it holds. The alert is resolved some time later.
    Column("gone_since", UtcTimestamp),
    # Seconds for which the condition must hold before the alert opens.
    Column("persist", Float, nullable=False, server_default=text("0")),
    # When a notification was last queued or sent; null before the first one.
    Column("told_at", UtcTimestamp),
    Column("repeats", Integer, nullable=False, server_default=text("0")),
    Column("acknowledged_at", UtcTimestamp),
    Column("acknowledged_by", Text),
    Column("note", Text),
    Column("resolved_at", UtcTimestamp),
    Column("resolution", Text),
    Index("alerts_last_seen", "last_seen"),
    Index("alerts_run_id", "run_id"),
    sqlite_autoincrement=True,
)
# Written out without a parameter, so that the database uses the index.
ALERT_IS_OPEN = alerts.c.status != text("'resolved'")
Index("alerts_open", alerts.c.id, sqlite_where=ALERT_IS_OPEN, postgresql_where=ALERT_IS_OPEN)
ALERT_OPEN_MARK = case((alerts.c.status != "resolved", text("1")))
Index("alerts_key", alerts.c.key, ALERT_OPEN_MARK, unique=True)

# Messages, each to one channel, kept until they are delivered.
alert_sends = Table(
    "alert_sends",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("alert_id", BigInteger, nullable=False),
    Column("channel", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("urgency", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("digest", Integer, nullable=False, server_default=text("0")),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("due_at", UtcTimestamp, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("sent_at", UtcTimestamp),
    # The process that sends it, and until when its claim is valid.
    Column("owner", Text),
    Column("owner_until", UtcTimestamp),
    Index("alert_sends_alert_id", "alert_id"),
    Index("alert_sends_channel", "channel", "sent_at"),
)
_UNSENT = alert_sends.c.status == "waiting"
Index("alert_sends_due", alert_sends.c.due_at, sqlite_where=_UNSENT, postgresql_where=_UNSENT)

# Silences: alerts that match all of the names that are set here are not sent.
alert_silences = Table(
    "alert_silences",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    # The one alert that is snoozed, and its key; empty where a silence is for all alerts that match.
    Column("alert_id", BigInteger),
    Column("key", Text),
    Column("subject", Text),
    Column("condition", Text),
    Column("pipeline", Text),
    Column("reason", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    # When it ends, or was ended.
    Column("until", UtcTimestamp, nullable=False),
    Column("ended_by", Text),
    Index("alert_silences_until", "until"),
    sqlite_autoincrement=True,
)

# Leases, each held by one of the processes that share the store, such as the leadership of the watch.
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("until", UtcTimestamp, nullable=False),
)

# What was measured, to be compared with a week ago: the rows of a table.
gauges = Table(
    "gauges",
    metadata,
    Column("name", Text, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
    Column("value", Float, nullable=False),
    PrimaryKeyConstraint("name", "at"),
    sqlite_with_rowid=False,
)
