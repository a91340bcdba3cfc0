"""Letters, their causes, and what was done about them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    literal_column,
    text,
)

from redrive.store.schema.columns import Digest, Id, RunId, UtcTimestamp, Value, metadata

STATUSES = ("pending", "reprocessed", "discarded", "escalated")

letters = Table(
    "dead_letter_queue",
    metadata,
    # The core columns: a team's own SQL counts on these names, in this order.
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("pipeline_name", Text, nullable=False),
    Column("run_id", RunId),
    Column("error_type", Text, nullable=False),
    Column("error_message", Text, nullable=False),
    Column("raw_record", Value, nullable=False),
    Column("source_table", Text),
    Column("source_key", Text),
    Column("rejected_at", UtcTimestamp, nullable=False),
    Column("reprocess_count", Integer, nullable=False, server_default=text("0")),
    Column("last_reprocess", UtcTimestamp),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("resolution_note", Text),
    # Columns that redrive itself needs.
    Column("position", Text),
    Column("fingerprint", Text, nullable=False, server_default=text("''")),
    Column("identity", Digest, nullable=False),
    Column("seen", Integer, nullable=False, server_default=text("1")),
    Column("last_seen", UtcTimestamp, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    Column("edited_record", Value),
    Column("last_error", Text),
    Column("settled_at", UtcTimestamp),
    # What its source needs to read it again, the program that rejected it (FILE:NAME), the key of its row in the sink,
    # and when a later run wrote that key.
    Column("context", Value),
    Column("target", Text),
    Column("sink_key", Text),
    Column("superseded_at", UtcTimestamp),
    # From when on runs look for that key, where it came later than the letter: by an import or an edit. What the key
    # and `superseded_at` were before an edit.
    Column("key_since", UtcTimestamp),
    Column("received_key", Value),
    # Of OpenTelemetry, in which it was last put.
    Column("trace_id", Text),
    sqlite_autoincrement=True,  # an id is never used again: the audit log refers to it
)

# One open letter per identity. Resolved ones are in the index as well, each with a NULL that equals no other.
OPEN_MARK = literal_column("(CASE WHEN status IN ('pending', 'escalated') THEN 1 END)", Integer)
Index("dead_letter_queue_identity", letters.c.identity, OPEN_MARK, unique=True)
Index("dead_letter_queue_selection", letters.c.pipeline_name, letters.c.status, letters.c.fingerprint)
Index("dead_letter_queue_rejected_at", letters.c.rejected_at)
Index("dead_letter_queue_run_id", letters.c.run_id)
_KEYED = letters.c.source_key.is_not(None)
Index("dead_letter_queue_source_key", letters.c.source_key, sqlite_where=_KEYED, postgresql_where=_KEYED)
_IN_SINK = letters.c.sink_key.is_not(None)
Index(
    "dead_letter_queue_sink_key",
    letters.c.pipeline_name,
    letters.c.sink_key,
    sqlite_where=_IN_SINK,
    postgresql_where=_IN_SINK,
)
_LATE_KEY = letters.c.key_since.is_not(None)
Index(
    "dead_letter_queue_key_since",
    letters.c.pipeline_name,
    letters.c.key_since,
    sqlite_where=_LATE_KEY,
    postgresql_where=_LATE_KEY,
)

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
# it is right whatever program changes a letter. `seen` counts later sightings too, in their hour.
cause_hours = Table(
    "cause_hours",
    metadata,
    Column("fingerprint", Text, nullable=False),
    Column("pipeline_name", Text, nullable=False),
    Column("hour", UtcTimestamp, nullable=False),
    Column("pending", BigInteger, nullable=False, server_default=text("0")),
    Column("reprocessed", BigInteger, nullable=False, server_default=text("0")),
    Column("discarded", BigInteger, nullable=False, server_default=text("0")),
    Column("escalated", BigInteger, nullable=False, server_default=text("0")),
    Column("seen", BigInteger, nullable=False, server_default=text("0")),
    Column("first_seen", UtcTimestamp, nullable=False),
    Column("last_seen", UtcTimestamp, nullable=False),
    PrimaryKeyConstraint("fingerprint", "pipeline_name", "hour"),
    sqlite_with_rowid=False,
)
Index("cause_hours_hour", cause_hours.c.hour)

letter_audit = Table(
    "letter_audit",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("letter_id", BigInteger),
    Column("at", UtcTimestamp, nullable=False),
    Column("action", Text, nullable=False),
    Column("status_before", Text),
    Column("status_after", Text),
    Column("actor", Text),
    Column("note", Text),
    Column("detail", Value),
    Index("letter_audit_letter_id", "letter_id"),
)

# One row, written by the migration: the key of the digests that stand for masked values. See `dlq.digests`.
letter_salt = Table(
    "letter_salt",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("salt", LargeBinary, nullable=False),
)

# Which replay has claimed a letter, and until when the claim is valid.
letter_claims = Table(
    "letter_claims",
    metadata,
    Column("letter_id", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", Text, nullable=False),
    Column("until", UtcTimestamp, nullable=False),
)

# When replays last wrote rows of a pipeline's letters: by which pipeline (their own, where the target has none), to
# which sink ('' where the target has none), and the last sighting of the newest of these letters, or when it was
# written where it was edited.
replayed_rows = Table(
    "replayed_rows",
    metadata,
    Column("letters_of", Text, nullable=False),
    Column("pipeline_name", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("written_at", UtcTimestamp, nullable=False),
    Column("newest_letter", UtcTimestamp, nullable=False),
    PrimaryKeyConstraint("letters_of", "pipeline_name", "sink"),
    sqlite_with_rowid=False,
)
