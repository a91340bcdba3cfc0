"""The tables, once for both databases. On PostgreSQL they live in the schema `pipeline`, on SQLite in the file."""

from __future__ import annotations

from redrive.store.schema.alerts import (
    ALERT_IS_OPEN,
    ALERT_OPEN_MARK,
    alert_sends,
    alert_silences,
    alerts,
    gauges,
    leases,
)
from redrive.store.schema.columns import SCHEMA, metadata
from redrive.store.schema.letters import (
    OPEN_MARK,
    STATUSES,
    cause_hours,
    causes,
    letter_audit,
    letter_claims,
    letter_salt,
    letters,
    replayed_rows,
)
from redrive.store.schema.runs import checkpoints, pipelines, run_key_blocks, run_keys, runs
from redrive.store.schema.services import (
    OUTCOMES,
    breakers,
    credentials,
    service_endpoints,
    service_latencies,
    service_minutes,
    service_reporters,
    service_rollups,
)
from redrive.store.schema.tasks import task_attempts, task_changes, task_executors, task_runs, tasks

__all__ = [
    "ALERT_IS_OPEN",
    "ALERT_OPEN_MARK",
    "OPEN_MARK",
    "OUTCOMES",
    "SCHEMA",
    "STATUSES",
    "alert_sends",
    "alert_silences",
    "alerts",
    "breakers",
    "cause_hours",
    "causes",
    "checkpoints",
    "credentials",
    "gauges",
    "leases",
    "letter_audit",
    "letter_claims",
    "letter_salt",
    "letters",
    "metadata",
    "pipelines",
    "replayed_rows",
    "run_key_blocks",
    "run_keys",
    "runs",
    "service_endpoints",
    "service_latencies",
    "service_minutes",
    "service_reporters",
    "service_rollups",
    "task_attempts",
    "task_changes",
    "task_executors",
    "task_runs",
    "tasks",
]
