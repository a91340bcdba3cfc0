"""What processes share about services, and what services did."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, PrimaryKeyConstraint, Table, Text, text

from redrive.store.schema.columns import UtcTimestamp, metadata

# The last report of each process on a service's circuit, by its own evidence (see `redrive.policy.consensus`); the host
# of an operator's reset is `*`. All times are by the database's clock.
breakers = Table(
    "breakers",
    metadata,
    Column("service", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("process", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("since", UtcTimestamp, nullable=False),
    Column("retry_at", UtcTimestamp),
    Column("quorum", Integer, nullable=False),
    Column("changed_at", UtcTimestamp, nullable=False),
    PrimaryKeyConstraint("service", "host", "process"),
)

# Keys are known by a digest and shown by their last four characters; the key itself is never stored.
credentials = Table(
    "credentials",
    metadata,
    Column("service", Text, nullable=False),
    Column("key_digest", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("drained_until", UtcTimestamp, nullable=False),
    Column("changed_at", UtcTimestamp, nullable=False),
    PrimaryKeyConstraint("service", "key_digest"),
)

# Attempts by outcome: `success` is in `successes`.
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
    "no_key_left",
    "cancelled",
)

# Sums over all processes, for each quarter of an hour. What was purged is kept as one row at the beginning of time, so
# that totals only ever grow.
service_rollups = Table(
    "service_rollups",
    metadata,
    Column("service", Text, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
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
            "failed_auth",  # of these, by a credential that was rejected permanently
            "failed_4xx",  # of these, by an answer 4xx other than 401, 404, 408, 410, 425 and 429
            "failed_404",  # of these, by 404 or 410
            "streaks_5xx",  # how often three calls in a row ended in an answer 5xx
        )
    ),
    Column("success_seconds", Float, nullable=False, server_default=text("0")),
    Column("open_seconds", Float, nullable=False, server_default=text("0")),
    # An attempt has succeeded at this time or later; a call failed at this time by a credential that was refused.
    Column("last_success", UtcTimestamp),
    Column("last_failed_auth", UtcTimestamp),
    PrimaryKeyConstraint("service", "at"),
    sqlite_with_rowid=False,
)

# The same for each endpoint: a function, or a route of an HTTP client. A process counts a hundred of them apart.
service_endpoints = Table(
    "service_endpoints",
    metadata,
    Column("service", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
    *(
        Column(name, BigInteger, nullable=False, server_default=text("0"))
        for name in (
            *("calls", "attempts", "successes", "retries", "faults"),
            *("calls_failed", "failed_4xx", "failed_404"),
        )
    ),
    Column("success_seconds", Float, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("service", "endpoint", "at"),
    sqlite_with_rowid=False,
)

# How long successful attempts took: how many at most so long, and longer than the bucket before.
service_latencies = Table(
    "service_latencies",
    metadata,
    Column("service", Text, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
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
    Column("at", UtcTimestamp, nullable=False),
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
    Column("at", UtcTimestamp, nullable=False),
)
