"""Open alerts with their evidence, as the ledger reads them: what a judgement may change, or one by key or number."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle import state_machine
from redrive.alerts.lifecycle.causes import CAUSE, LATER
from redrive.alerts.lifecycle.rows import case_of
from redrive.alerts.lifecycle.state_machine import AlertRecord
from redrive.errors import AlertError
from redrive.model.alerts import Finding
from redrive.store.schema import ALERT_IS_OPEN, alerts
from redrive.store.sql import in_ids

_FAILED = ("retries_exhausted", "permanent_error")
_REMEMBERED = timedelta(days=7)
"""How long a notification about a run is remembered, so that it is not sent again."""
_RECOVERED_AGAIN = timedelta(days=1)
"""For how long further runs of a pipeline or flow that recover are only counted."""


def touched_cases(
    connection: Connection, judgement: Judgement, *, and_waiting: bool, and_sent: bool
) -> dict[str, AlertRecord]:
    """The alerts that a judgement may change, by their keys. There may be many others, and a run waits for this.

    and_waiting  and those that time may open or resolve
    and_sent     and all others, which the end of a silence may send again
    """
    keys = {one.key for one in judgement.findings}
    groups = {one.group for one in judgement.findings} - {None}
    found = {one.evidence for one in judgement.findings}
    column = alerts.c
    wanted = [
        row.id
        for row in connection.execute(
            select(column.id, column.key, column.told_at, column.gone_since, column.witnesses).where(ALERT_IS_OPEN)
        )
        if row.key in keys
        or row.key.partition(LATER)[0] in groups
        or and_sent
        or (and_waiting and (row.told_at is None or row.gone_since is not None))
        or any(name in found or judgement.weighed(name) for name in row.witnesses)
    ]
    return open_cases(connection, wanted)


def without_newer(connection: Connection, judgement: Judgement, as_of: datetime) -> Judgement:
    """Return the judgement without what others have found, or seen to be over, since this moment.

    A look takes time. Meanwhile a run may end: its own process opens an alert that the look knows nothing of, and must
    not resolve, or resolves one that the look must not open again.
    """
    column = alerts.c
    seen = connection.execute(select(alerts).where(ALERT_IS_OPEN, column.last_seen > as_of))
    newer = {one.evidence for row in seen for one in case_of(row).witnesses if one.seen_at > as_of}
    resolved = select(column.key).where(~ALERT_IS_OPEN, column.resolved_at > as_of)
    over = {key.partition(LATER)[0] for key in connection.execute(resolved).scalars()} if judgement.findings else set()
    findings = tuple(
        one for one in judgement.findings if one.evidence not in newer and over.isdisjoint({one.key, one.group})
    )
    return replace(judgement, findings=findings, left_alone=judgement.left_alone | newer)


def shared_by(connection: Connection, name: str) -> list[int]:
    """Open alerts of a cause that several share, this one among them."""
    shared = select(alerts.c.id, alerts.c.facts).where(ALERT_IS_OPEN, alerts.c.key.like(f"{CAUSE}%"))
    return [row.id for row in connection.execute(shared) if name in row.facts.get("affected", ())]


def open_cases(connection: Connection, ids: Collection[int]) -> dict[str, AlertRecord]:
    wanted = select(alerts).where(ALERT_IS_OPEN, in_ids(alerts.c.id, ids)).order_by(alerts.c.id)
    return {row.key: case_of(row) for row in connection.execute(wanted)} if ids else {}


def open_case(connection: Connection, key: str, given: str) -> AlertRecord | None:
    """The open alert of a key. Older versions stored keys as they were given: that form is looked for first."""
    wanted = select(alerts).where(ALERT_IS_OPEN, alerts.c.key.in_({key, given}))
    rows = {row.key: row for row in connection.execute(wanted)}
    row = rows.get(given, rows.get(key))
    return None if row is None else case_of(row)


def case_by_id(connection: Connection, alert_id: int) -> AlertRecord:
    row = connection.execute(select(alerts).where(alerts.c.id == alert_id)).one_or_none()
    if row is None:
        raise AlertError(f"there is no alert {alert_id}; see `redrive alerts ls`")
    return case_of(row)


def is_known(connection: Connection, finding: Finding, now: datetime) -> bool:
    """Whether people were told what a momentary finding tells: of this very run it was found before; or that it failed,
    and then that this is over. That runs of a pipeline recover is told once a day, and counted."""
    column, run_id = alerts.c, finding.facts.run_id
    same = (column.key == finding.key) & (column.condition == finding.condition)
    tells = (column.run_id == run_id) & same
    if finding.condition == state_machine.RECOVERED:
        if run_id is not None:
            tells |= (column.run_id == run_id) & column.condition.in_(_FAILED)
        tells |= same & (column.opened_at >= now - _RECOVERED_AGAIN)
    known = (
        select(column.id, column.condition)
        .where(tells, column.resolved_at >= now - _REMEMBERED, column.opened_at.is_not(None))
        .order_by(column.id.desc())
    )
    row = connection.execute(known.limit(1)).first()
    if row is not None and row.condition == state_machine.RECOVERED:
        counted = {"seen": column.seen + 1, "last_seen": now}
        connection.execute(update(alerts).where(column.id == row.id).values(counted))
    return row is not None
