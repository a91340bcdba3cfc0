"""The tables, once for both databases. On PostgreSQL they live in the schema `pipeline`, on SQLite in the file."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    case,
    text,
)

from redrive.store.types import Digest, Moment, RunId, Value

SCHEMA = "pipeline"
STATUSES = ("pending", "reprocessed", "discarded", "escalated")

metadata = MetaData(schema=SCHEMA)
_Id = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER is SQLite's rowid

letters = Table(
    "dead_letter_queue",
    metadata,
    # The core columns: a team's own SQL counts on these names, in this order.
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("pipeline_name", Text, nullable=False),
    Column("run_id", RunId),
    Column("error_type", Text, nullable=False),
    Column("error_message", Text, nullable=False),
    Column("raw_record", Value, nullable=False),
    Column("source_table", Text),
    Column("source_key", Text),
    Column("rejected_at", Moment, nullable=False),
    Column("reprocess_count", Integer, nullable=False, server_default=text("0")),
    Column("last_reprocess", Moment),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("resolution_note", Text),
    # Ours.
    Column("position", Text),
    Column("fingerprint", Text, nullable=False, server_default=text("''")),
    Column("identity", Digest, nullable=False),
    Column("seen", Integer, nullable=False, server_default=text("1")),
    Column("last_seen", Moment, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    Column("edited_record", Value),
    Column("last_error", Text),
    Column("settled_at", Moment),
    sqlite_autoincrement=True,  # an id is never used again: the audit log refers to it
)

# One pending letter per identity. Resolved ones are in the index as well, each with a NULL that equals no other.
PENDING_MARK = case((letters.c.status == "pending", text("1")))
Index("dead_letter_queue_identity", letters.c.identity, PENDING_MARK, unique=True)
Index("dead_letter_queue_selection", letters.c.pipeline_name, letters.c.status, letters.c.fingerprint)
Index("dead_letter_queue_rejected_at", letters.c.rejected_at)
Index("dead_letter_queue_run_id", letters.c.run_id)
_KEYED = letters.c.source_key.is_not(None)
Index("dead_letter_queue_source_key", letters.c.source_key, sqlite_where=_KEYED, postgresql_where=_KEYED)

causes = Table(
    "causes",
    metadata,
    Column("fingerprint", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("error_type", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("sample", Text, nullable=False),
)

# How many letters of each status were rejected in an hour, kept by the database itself (see the migrations), so that
# it is right whoever changes a letter. `seen` counts repeats too, in the hour in which they happened.
cause_hours = Table(
    "cause_hours",
    metadata,
    Column("fingerprint", Text, nullable=False),
    Column("pipeline_name", Text, nullable=False),
    Column("hour", Moment, nullable=False),
    Column("pending", BigInteger, nullable=False, server_default=text("0")),
    Column("reprocessed", BigInteger, nullable=False, server_default=text("0")),
    Column("discarded", BigInteger, nullable=False, server_default=text("0")),
    Column("escalated", BigInteger, nullable=False, server_default=text("0")),
    Column("seen", BigInteger, nullable=False, server_default=text("0")),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    PrimaryKeyConstraint("fingerprint", "pipeline_name", "hour"),
    sqlite_with_rowid=False,
)
Index("cause_hours_hour", cause_hours.c.hour)

letter_audit = Table(
    "letter_audit",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("letter_id", BigInteger),
    Column("at", Moment, nullable=False),
    Column("action", Text, nullable=False),
    Column("status_before", Text),
    Column("status_after", Text),
    Column("actor", Text),
    Column("note", Text),
    Column("detail", Value),
    Index("letter_audit_letter_id", "letter_id"),
)

# Which replay has a letter in hand, and until when it is believed to be alive.
letter_claims = Table(
    "letter_claims",
    metadata,
    Column("letter_id", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", Text, nullable=False),
    Column("until", Moment, nullable=False),
)

# What each process last said of a service's circuit, by its own evidence (see `redrive.policy.fleet`); a reset by hand
# is said by the host `*`. All times are by the database's clock.
breakers = Table(
    "breakers",
    metadata,
    Column("service", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("process", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("retry_at", Moment),
    Column("quorum", Integer, nullable=False),
    Column("changed_at", Moment, nullable=False),
    PrimaryKeyConstraint("service", "host", "process"),
)

# Keys are known by a digest and shown by their last four characters; the key itself is never stored.
credentials = Table(
    "credentials",
    metadata,
    Column("service", Text, nullable=False),
    Column("key_digest", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("drained_until", Moment, nullable=False),
    Column("changed_at", Moment, nullable=False),
    PrimaryKeyConstraint("service", "key_digest"),
)

# One row per run of a pipeline, resumed parts included.
runs = Table(
    "runs",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("pipeline_name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("sla", Moment),
    Column("seconds", Float, nullable=False, server_default=text("0")),
    Column("rows_read", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_written", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_rejected", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_discarded", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_duplicates", BigInteger, nullable=False, server_default=text("0")),
    Column("batches", BigInteger, nullable=False, server_default=text("0")),
    Column("retries", BigInteger, nullable=False, server_default=text("0")),
    Column("tier", Text, nullable=False, server_default=text("'log'")),
    Column("reason", Text),
    # What ended it, where that was an error: the verdict's kind, the class, and the service that is to blame.
    Column("error_kind", Text),
    Column("error_type", Text),
    Column("error_service", Text),
    # How often it was gone on with after it had failed or died, and when it was last judged for alerts.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("judged_at", Moment),
    Index("runs_pipeline_name", "pipeline_name", "started_at"),
    Index("runs_started_at", "started_at"),
)
_UNJUDGED = runs.c.judged_at.is_(None)
Index("runs_unjudged", runs.c.ended_at, sqlite_where=_UNJUDGED, postgresql_where=_UNJUDGED)

# Where each pipeline stands, and which process has it in hand. The owner is a fence: who lost it can move nothing.
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("pipeline_name", Text, primary_key=True),
    Column("run_id", RunId, nullable=False),
    Column("identity", Value, nullable=False),
    Column("position", Value),
    Column("updated_at", Moment, nullable=False),
    Column("owner", Text),
    Column("owner_until", Moment),
)

# The keys a run has written, where it is to notice that one comes twice; gone when the run is complete.
run_keys = Table(
    "run_keys",
    metadata,
    Column("run_id", RunId, nullable=False),
    Column("key_digest", Digest, nullable=False),
    PrimaryKeyConstraint("run_id", "key_digest"),
    sqlite_with_rowid=False,
)

# One row per run of a flow. `params` and `shape` are JSON text: compared as such, and read by us alone.
task_runs = Table(
    "task_runs",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("flow_name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("params", Text, nullable=False),
    Column("shape", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("sla", Moment),
    Column("reason", Text),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("judged_at", Moment),
    Index("task_runs_flow_name", "flow_name", "started_at"),
    Index("task_runs_started_at", "started_at"),
)
_UNJUDGED_FLOW = task_runs.c.judged_at.is_(None)
Index("task_runs_unjudged", task_runs.c.ended_at, sqlite_where=_UNJUDGED_FLOW, postgresql_where=_UNJUDGED_FLOW)

# One row per task, and one per child of a fan-out, whose own row has the child -1 and counts them.
tasks = Table(
    "tasks",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("run_id", RunId, nullable=False),
    Column("node", Integer, nullable=False),
    Column("child", Integer, nullable=False, server_default=text("-1")),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    # How many tasks it waits for; of a fan-out, how many children it has, and how many are under way, dead and failed.
    Column("waiting", Integer, nullable=False, server_default=text("0")),
    Column("children", Integer),
    Column("remaining", Integer, nullable=False, server_default=text("0")),
    Column("dead", Integer, nullable=False, server_default=text("0")),
    Column("failed", Integer, nullable=False, server_default=text("0")),
    # When it may be claimed, while it may; and who has claimed it, while somebody has.
    Column("due_at", Moment),
    Column("owner", BigInteger),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("same", Integer, nullable=False, server_default=text("0")),
    Column("wait", Float),
    Column("input", Text),
    Column("result", Text),
    Column("result_file", Text),
    Column("kind", Text),
    Column("fingerprint", Text),
    Column("error", Text),
    Column("note", Text),
    Column("created_at", Moment, nullable=False),
    Column("since", Moment),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("seconds", Float),
    Index("tasks_place", "run_id", "node", "child", unique=True),
)
Index(
    "tasks_due",
    tasks.c.run_id,
    tasks.c.node,
    tasks.c.due_at,
    tasks.c.id,  # children of a fan-out are due at one moment: without it PostgreSQL sorts them all for every claim
    sqlite_where=tasks.c.due_at.is_not(None),
    postgresql_where=tasks.c.due_at.is_not(None),
)
Index(
    "tasks_claimed",
    tasks.c.run_id,
    tasks.c.owner,
    sqlite_where=tasks.c.owner.is_not(None),
    postgresql_where=tasks.c.owner.is_not(None),
)

# Written when the attempt is claimed, before the work; completed when it ended.
task_attempts = Table(
    "task_attempts",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("executor", BigInteger, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("ended", Text),
    Column("seconds", Float),
    Column("kind", Text),
    Column("error", Text),
    Column("fingerprint", Text),
    Column("trace", Text),
    Column("output", Text),
    PrimaryKeyConstraint("task_id", "attempt"),
    sqlite_with_rowid=False,
)

# Every change of a task's state.
task_changes = Table(
    "task_changes",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("task_id", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("cause", Text),
    Index("task_changes_task_id", "task_id"),
)

# The processes that run flows. `beat` counts what each has written: so it knows a commit whose answer was lost.
task_executors = Table(
    "task_executors",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("run_id", RunId, nullable=False),
    Column("owner", Text, nullable=False),
    Column("beat", BigInteger, nullable=False, server_default=text("0")),
    Column("until", Moment, nullable=False),
    Column("began_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Index("task_executors_run_id", "run_id"),
    sqlite_autoincrement=True,  # a number is never given twice: tasks are fenced by it
)

# What has ever run here, and when it is to be done: so that a run which never began is missed. A flow may have the name
# of a pipeline, which one of its tasks runs.
pipelines = Table(
    "pipelines",
    metadata,
    Column("kind", Text, primary_key=True),  # pipeline or flow
    Column("name", Text, primary_key=True),
    Column("sla", Text),  # "06:30 Asia/Kolkata"
    Column("first_seen", Moment, nullable=False),
    Column("last_started", Moment, nullable=False),
)

# ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# Attempts by what came of them: `success` is in `successes`.
OUTCOMES = (
    "retry_now",
    "transient",
    "rate_limited",
    "ambiguous",
    "quota",
    "auth",
    "permanent",
    "row",
    "discard",
    "resource",
    "circuit_open",
)

# Sums over all processes, for each quarter of an hour. What was purged is kept as one row at the beginning of time, so
# that totals only ever grow.
service_rollups = Table(
    "service_rollups",
    metadata,
    Column("service", Text, nullable=False),
    Column("at", Moment, nullable=False),
    *(
        Column(name, BigInteger, nullable=False, server_default=text("0"))
        for name in (
            "calls",
            "attempts",
            "successes",
            "retries",
            "fallbacks",
            *OUTCOMES,
            "calls_failed",  # calls that ended in an error for their caller
            "failed_auth",  # of these, by a credential that was refused for good
            "failed_4xx",  # of these, by an answer 4xx other than 401, 408, 425 and 429
        )
    ),
    Column("success_seconds", Float, nullable=False, server_default=text("0")),
    Column("open_seconds", Float, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("service", "at"),
    sqlite_with_rowid=False,
)

# How long successful attempts took: how many at most so long, and longer than the bucket before.
service_latencies = Table(
    "service_latencies",
    metadata,
    Column("service", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("count", BigInteger, nullable=False),
    PrimaryKeyConstraint("service", "at", "bucket"),
    sqlite_with_rowid=False,
)

# The last hours by the minute: how many attempts there were, and how many failed by the service's fault (5xx, no
# connection, no answer in time).
service_minutes = Table(
    "service_minutes",
    metadata,
    Column("service", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("faults", BigInteger, nullable=False),
    PrimaryKeyConstraint("service", "at"),
    sqlite_with_rowid=False,
)

# Who has added to these sums. `beat` counts how often: so a process knows a commit whose answer was lost.
service_reporters = Table(
    "service_reporters",
    metadata,
    Column("process", Text, primary_key=True),
    Column("beat", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
)

# ── alerts ────────────────────────────────────────────────────────────────────────────────────────────────────────────

alerts = Table(
    "alerts",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False),
    Column("condition", Text, nullable=False),
    Column("urgency", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("subject_kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("run_id", RunId),
    # The names of those who speak for it, by which it is found; what they say is in `evidence`.
    Column("witnesses", Value, nullable=False, server_default=text("'[]'")),
    Column("facts", Value, nullable=False),
    Column("evidence", Value, nullable=False),
    Column("since", Moment, nullable=False),
    Column("opened_at", Moment),
    Column("last_seen", Moment, nullable=False),
    Column("seen", BigInteger, nullable=False, server_default=text("1")),
    Column("gone_since", Moment),
    Column("persist", Float, nullable=False, server_default=text("0")),
    Column("told_at", Moment),
    Column("repeats", Integer, nullable=False, server_default=text("0")),
    Column("acknowledged_at", Moment),
    Column("acknowledged_by", Text),
    Column("note", Text),
    Column("resolved_at", Moment),
    Column("resolution", Text),
    Index("alerts_last_seen", "last_seen"),
    Index("alerts_run_id", "run_id"),
    sqlite_autoincrement=True,
)
# In words of its own, not by a parameter: only so is the index made use of.
ALERT_IS_OPEN = alerts.c.status != text("'resolved'")
Index("alerts_open", alerts.c.id, sqlite_where=ALERT_IS_OPEN, postgresql_where=ALERT_IS_OPEN)
ALERT_OPEN_MARK = case((alerts.c.status != "resolved", text("1")))
Index("alerts_key", alerts.c.key, ALERT_OPEN_MARK, unique=True)

# Messages, each to one channel, kept until they are delivered.
alert_sends = Table(
    "alert_sends",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("alert_id", BigInteger, nullable=False),
    Column("channel", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("urgency", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("digest", Integer, nullable=False, server_default=text("0")),
    Column("created_at", Moment, nullable=False),
    Column("due_at", Moment, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("sent_at", Moment),
    # Who is sending it, and until when that is believed.
    Column("owner", Text),
    Column("owner_until", Moment),
    Index("alert_sends_alert_id", "alert_id"),
    Index("alert_sends_channel", "channel", "sent_at"),
)
_UNSENT = alert_sends.c.status == "waiting"
Index("alert_sends_due", alert_sends.c.due_at, sqlite_where=_UNSENT, postgresql_where=_UNSENT)

# What is held by one process of all that share the store, such as the leadership of those that watch.
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("until", Moment, nullable=False),
)

# What was measured, to be compared with a week ago: the rows of a table.
gauges = Table(
    "gauges",
    metadata,
    Column("name", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("value", Float, nullable=False),
    PrimaryKeyConstraint("name", "at"),
    sqlite_with_rowid=False,
)
