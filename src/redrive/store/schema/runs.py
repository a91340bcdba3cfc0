"""Runs of pipelines, where each stands, and what has ever run."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, PrimaryKeyConstraint, Table, Text, text

from redrive.store.schema.columns import Digest, RunId, UtcTimestamp, Value, metadata

# One row per run of a pipeline, resumed parts included.
runs = Table(
    "runs",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("pipeline_name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    Column("sla", UtcTimestamp),
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
    # How often it was resumed after it had failed or died, and when it was last judged for alerts.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("judged_at", UtcTimestamp),
    # The program that runs it, FILE:NAME, where it was started by `redrive run`.
    Column("target", Text),
    # What it had counted when an operator last let it continue although the gate had aborted it.
    Column("accepted", Value),
    # The key of the sink, as the names of its columns.
    Column("key_fields", Value),
    # How much of the source is behind the checkpoint, and how much there is: in bytes, pages or rows.
    Column("source_done", BigInteger),
    Column("source_total", BigInteger),
    # More of the error than its first line; and the variables of the environment that `[alerts] environment` names.
    Column("detail", Text),
    Column("environment", Value),
    Column("trace_id", Text),  # of OpenTelemetry
    # When rows were last written, by the clock of its letters: an earlier letter may overwrite one of them.
    Column("written_at", UtcTimestamp),
    Index("runs_pipeline_name", "pipeline_name", "started_at"),
    Index("runs_started_at", "started_at"),
)
_UNJUDGED = runs.c.judged_at.is_(None)
Index("runs_unjudged", runs.c.ended_at, sqlite_where=_UNJUDGED, postgresql_where=_UNJUDGED)

# The checkpoint of each pipeline, and the process that works on it. The owner is a fence: without it, no process can
# move the checkpoint.
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("pipeline_name", Text, primary_key=True),
    Column("run_id", RunId, nullable=False),
    Column("identity", Value, nullable=False),
    Column("position", Value),
    # The fields that the records of the run have had so far: what a later record lacks of them is NULL.
    Column("fields", Value),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("owner", Text),
    Column("owner_until", UtcTimestamp),
)

# The keys a run has written, where it is to notice that one comes twice; gone when the run is complete.
# The same as hashes, batch by batch, where a later row of a key overwrites an earlier one and only counts matter.
run_key_blocks = Table(
    "run_key_blocks",
    metadata,
    Column("run_id", RunId, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "batch"),
)
run_keys = Table(
    "run_keys",
    metadata,
    Column("run_id", RunId, nullable=False),
    Column("key_digest", Digest, nullable=False),
    PrimaryKeyConstraint("run_id", "key_digest"),
    sqlite_with_rowid=False,
)

# What has ever run here, and when it is to be done: so that a run which never began is missed. A flow may have the name
# of a pipeline, which one of its tasks runs.
pipelines = Table(
    "pipelines",
    metadata,
    Column("kind", Text, primary_key=True),  # pipeline or flow
    Column("name", Text, primary_key=True),
    Column("sla", Text),  # "06:30 Asia/Kolkata"
    Column("first_seen", UtcTimestamp, nullable=False),
    Column("last_started", UtcTimestamp, nullable=False),
    # Rows of all runs, those included that were purged.
    Column("rows_read", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_written", BigInteger, nullable=False, server_default=text("0")),
    Column("rows_rejected", BigInteger, nullable=False, server_default=text("0")),
)
