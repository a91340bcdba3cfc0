"""Queries for open alerts with their evidence; used by the repository inside its transactions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle import state_machine
from redrive.alerts.lifecycle.causes import CAUSE, LATER
from redrive.alerts.lifecycle.rows import record_of
from redrive.alerts.lifecycle.state_machine import AlertRecord
from redrive.errors import AlertError
from redrive.model.alerts import Finding
from redrive.store.schema import ALERT_IS_OPEN, alerts
from redrive.store.sql import in_ids

_FAILED = ("retries_exhausted", "permanent_error")
_REMEMBERED = timedelta(days=7)
"""How long a notification about a run is kept, so that it is not sent twice."""
_RECOVERED_EVERY = timedelta(days=1)
"""The minimum time between two notifications that runs of a pipeline or flow recovered; others are only counted."""


def touched_records(
    connection: Connection, judgement: Judgement, *, and_waiting: bool, and_sent: bool
) -> dict[str, AlertRecord]:
    """Return the open alerts that a judgement may change, by key.

    Only these are read in full: there may be many others, and a run waits for this query.

    Args:
        connection: The connection of the transaction.
        judgement: The judgement.
        and_waiting: Whether to add alerts that wait to be opened.
        and_sent: Whether to add all others, which the end of a silence may send again.
    """
    keys = {finding.key for finding in judgement.findings}
    groups = {finding.group for finding in judgement.findings} - {None}
    evidence = {finding.evidence for finding in judgement.findings}
    column = alerts.c
    ids = [
        row.id
        for row in connection.execute(
            select(column.id, column.key, column.told_at, column.witnesses).where(ALERT_IS_OPEN)
        )
        if row.key in keys
        or row.key.partition(LATER)[0] in groups
        or and_sent
        or (and_waiting and row.told_at is None)
        or any(name in evidence or judgement.covers(name) for name in row.witnesses)
    ]
    return open_records(connection, ids)


def without_newer(connection: Connection, judgement: Judgement, as_of: datetime) -> Judgement:
    """Return the judgement without what other processes have found or resolved since its facts were read.

    Reading the facts takes time. Meanwhile the process of a run may open an alert that this judgement must not resolve,
    or resolve an alert that this judgement must not open.
    """
    column = alerts.c
    seen = connection.execute(select(alerts).where(ALERT_IS_OPEN, column.last_seen > as_of))
    newer = {item.name for row in seen for item in record_of(row).evidence if item.seen_at > as_of}
    resolved = select(column.key).where(~ALERT_IS_OPEN, column.resolved_at > as_of)
    over = {key.partition(LATER)[0] for key in connection.execute(resolved).scalars()} if judgement.findings else set()
    findings = tuple(
        finding
        for finding in judgement.findings
        if finding.evidence not in newer and over.isdisjoint({finding.key, finding.group})
    )
    return replace(judgement, findings=findings, excluded=judgement.excluded | newer)


def shared_by(connection: Connection, name: str) -> list[int]:
    """Return the ids of open shared alerts that have this pipeline or flow as a member."""
    shared = select(alerts.c.id, alerts.c.facts).where(ALERT_IS_OPEN, alerts.c.key.like(f"{CAUSE}%"))
    return [row.id for row in connection.execute(shared) if name in row.facts.get("affected", ())]


def open_records(connection: Connection, ids: Collection[int]) -> dict[str, AlertRecord]:
    """Return the alerts with these ids that are open, by key."""
    query = select(alerts).where(ALERT_IS_OPEN, in_ids(alerts.c.id, ids)).order_by(alerts.c.id)
    return {row.key: record_of(row) for row in connection.execute(query)} if ids else {}


def open_record(connection: Connection, key: str, given: str) -> AlertRecord | None:
    """Return the open alert of a key; None if there is none.

    Args:
        connection: An open connection.
        key: The stored form of the key.
        given: The key as the program gave it. Older versions stored this form, so it takes precedence.
    """
    query = select(alerts).where(ALERT_IS_OPEN, alerts.c.key.in_({key, given}))
    rows = {row.key: row for row in connection.execute(query)}
    row = rows.get(given, rows.get(key))
    return None if row is None else record_of(row)


def record_by_id(connection: Connection, alert_id: int) -> AlertRecord:
    """Return the alert with this id, open or resolved."""
    row = connection.execute(select(alerts).where(alerts.c.id == alert_id)).one_or_none()
    if row is None:
        raise AlertError(f"there is no alert {alert_id}; see `redrive alerts ls`")
    return record_of(row)


def is_known(connection: Connection, finding: Finding, now: datetime) -> bool:
    """Return whether a momentary finding was sent before; count it if it reports a recovery.

    It was sent if an alert about the same run has the same condition, or if the failure of the run was sent and
    resolved. Recoveries of a pipeline or flow are sent once a day at most.
    """
    column, run_id = alerts.c, finding.facts.run_id
    same = (column.key == finding.key) & (column.condition == finding.condition)
    matches = (column.run_id == run_id) & same
    if finding.condition == state_machine.RECOVERED:
        if run_id is not None:
            matches |= (column.run_id == run_id) & column.condition.in_(_FAILED)
        matches |= same & (column.opened_at >= now - _RECOVERED_EVERY)
    query = (
        select(column.id, column.condition)
        .where(matches, column.resolved_at >= now - _REMEMBERED, column.opened_at.is_not(None))
        .order_by(column.id.desc())
    )
    row = connection.execute(query.limit(1)).first()
    if row is not None and row.condition == state_machine.RECOVERED:
        counted = {"seen": column.seen + 1, "last_seen": now}
        connection.execute(update(alerts).where(column.id == row.id).values(counted))
    return row is not None
