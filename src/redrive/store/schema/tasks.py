"""Runs of flows and their tasks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, PrimaryKeyConstraint, Table, Text, text

from redrive.store.schema.columns import Id, RunId, UtcTimestamp, metadata

# One row per run of a flow. `params` and `shape` are JSON text: compared as such, and read by redrive alone.
task_runs = Table(
    "task_runs",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("flow_name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("params", Text, nullable=False),
    Column("shape", Text, nullable=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    Column("sla", UtcTimestamp),
    Column("reason", Text),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("judged_at", UtcTimestamp),
    # What the idempotency keys of its tasks begin with; NULL in runs of older versions, where it is the id of the run.
    Column("key_prefix", Text),
    Index("task_runs_flow_name", "flow_name", "started_at"),
    Index("task_runs_started_at", "started_at"),
)
_UNJUDGED_FLOW = task_runs.c.judged_at.is_(None)
Index("task_runs_unjudged", task_runs.c.ended_at, sqlite_where=_UNJUDGED_FLOW, postgresql_where=_UNJUDGED_FLOW)

# One row per task, and one per child of a fan-out, whose own row has the child -1 and counts them.
tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
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
    # When it may be claimed, while it may; and the executor that has claimed it, while one has.
    Column("due_at", UtcTimestamp),
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
    Column("created_at", UtcTimestamp, nullable=False),
    Column("since", UtcTimestamp),
    Column("started_at", UtcTimestamp),
    Column("ended_at", UtcTimestamp),
    Column("seconds", Float),
    # Of the children before it, how many have the same input; and how many executors in a row were lost while it ran.
    Column("twin", Integer, nullable=False, server_default=text("0")),
    Column("lost", Integer, nullable=False, server_default=text("0")),
    # JSON: the followers that it chose, where it chose; and who cancelled it and why, while it runs.
    Column("branch", Text),
    Column("cancelled", Text),
    # The service whose limit it counts towards while it runs, where that limit is one for all runs and flows.
    Column("pool", Text),
    # When it is to be done, where it has an SLA of its own.
    Column("sla", UtcTimestamp),
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
_IN_POOL = tasks.c.owner.is_not(None) & tasks.c.pool.is_not(None)
Index("tasks_pool", tasks.c.pool, sqlite_where=_IN_POOL, postgresql_where=_IN_POOL)
# Written out, so that both databases see that a query asks for what the index holds.
PASSED_OVER = text("(state = 'SKIPPED' OR branch IS NOT NULL) AND child = -1")
"""Tasks that were skipped, or chose among their followers."""
Index("tasks_passed_over", tasks.c.run_id, sqlite_where=PASSED_OVER, postgresql_where=PASSED_OVER)

# Written when the attempt is claimed, before the work; completed when it ended.
task_attempts = Table(
    "task_attempts",
    metadata,
    Column("task_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("executor", BigInteger, nullable=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
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
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("task_id", BigInteger, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("cause", Text),
    Index("task_changes_task_id", "task_id"),
)

# The processes that run flows. `beat` counts what each has written: so it knows a commit whose answer was lost.
task_executors = Table(
    "task_executors",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("run_id", RunId, nullable=False),
    Column("owner", Text, nullable=False),
    Column("beat", BigInteger, nullable=False, server_default=text("0")),
    Column("until", UtcTimestamp, nullable=False),
    Column("began_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    Index("task_executors_run_id", "run_id"),
    sqlite_autoincrement=True,  # a number is never given twice: tasks are fenced by it
)
