"""Queries for alerts, their evidence and their messages.

`AlertQueries` answers operators. The functions below it are used by the repository inside its transactions, and by
`Alerts.retire`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select, update

from redrive.alerts.conditions import SETTINGS_DIFFER
from redrive.alerts.config.settings import LOG_CHANNEL, AlertSettings
from redrive.alerts.facts.runs import variant_of
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot
from redrive.alerts.lifecycle.evidence import CAUSE, LATER, RECOVERED, AlertRecord
from redrive.alerts.lifecycle.rows import StoredKeys, alert_of, as_sent_before, record_of, send_of
from redrive.alerts.lifecycle.silences import Silenced, read_silenced
from redrive.alerts.lifecycle.state_machine import SUPPRESSED
from redrive.errors import AlertError
from redrive.model.alerts import Alert, AlertStatus, Finding, Send, SendStatus, Severity, Subject
from redrive.store.database import Database
from redrive.store.schema import ALERT_IS_OPEN, alert_sends, alerts
from redrive.store.sql import in_ids

OPEN = "open"
"""The status that operators filter by: every alert that is not resolved."""
_FAILED = ("retries_exhausted", "permanent_error")
_REMEMBERED = timedelta(days=7)
"""Retention of a notification about a run, so that it is not sent twice."""
_RECOVERED_EVERY = timedelta(days=1)
"""The minimum time between two notifications that runs of a pipeline or flow recovered; others are only counted."""


_sends = alert_sends.c


class AlertQueries:
    """Find alerts and messages in one store."""

    def __init__(self, database: Database, settings: AlertSettings) -> None:
        self._database, self._settings = database, settings
        self._keys = StoredKeys(database)

    def find(
        self,
        *,
        status: AlertStatus | str | None = None,
        urgency: Severity | str | None = None,
        subject: str | None = None,
        condition: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[Alert]:
        """Return the alerts that match, the newest first.

        Args:
            status: "open" for every alert that is not resolved; any other status matches exactly.
            urgency: The severity.
            subject: The name of a pipeline, flow or service, also of a member of a shared alert.
            condition: The name of a condition, such as "sla_missed".
            since: The earliest time at which the alert was last seen.
            limit: The maximum number of alerts.
        """
        query: Any = select(alerts)
        if status == OPEN:
            query = query.where(ALERT_IS_OPEN)
        elif status is not None:
            query = query.where(alerts.c.status == AlertStatus(status).value)
        if urgency is not None:
            query = query.where(alerts.c.urgency == Severity(urgency).value)
        if condition is not None:
            query = query.where(alerts.c.condition == condition)
        if since is not None:
            query = query.where(alerts.c.last_seen >= since)

        def work(connection: Connection) -> list[Alert]:
            matching = query
            if subject is not None:
                names = {subject, self._keys.of_name(subject)}
                matching = matching.where(
                    alerts.c.subject.in_(names) | in_ids(alerts.c.id, shared_by(connection, subject))
                )
            return [alert_of(row) for row in connection.execute(matching.order_by(alerts.c.id.desc()).limit(limit))]

        return self._database.read(work)

    def get(self, alert_id: int) -> Alert:
        """Return the alert with this id."""
        return self._database.read(lambda connection: record_by_id(connection, alert_id).alert)

    def open_id(self, key: str) -> int | None:
        """Return the id of the open alert of this key that was sent; None if there is none."""
        column, stored = alerts.c, self._keys.of(key)
        known = select(column.id, column.key).where(ALERT_IS_OPEN, column.status != AlertStatus.WAITING.value)

        def work(connection: Connection) -> int | None:
            exact = {row.key: row.id for row in connection.execute(known.where(column.key.in_({key, stored})))}
            if exact:
                return exact.get(key, exact.get(stored))
            # Older versions stored keys unmasked, and sent them masked.
            sent = [row.id for row in connection.execute(known) if as_sent_before(row.key) == key]
            return sent[0] if len(sent) == 1 else None

        return self._database.read(work)

    def sends(self, alert_id: int) -> list[Send]:
        """Return the messages about an alert, the oldest first."""
        query = select(alert_sends).where(alert_sends.c.alert_id == alert_id).order_by(alert_sends.c.id)
        return self._database.read(lambda connection: [send_of(row) for row in connection.execute(query)])

    def unsent(self) -> list[Send]:
        """Return the messages that are waiting for delivery or that failed, the oldest first.

        A message for a channel that is not configured waits until a process with that channel sends it.
        """
        query = select(alert_sends).where(alert_sends.c.status != SendStatus.SENT.value).order_by(alert_sends.c.id)
        return self._database.read(lambda connection: [send_of(row) for row in connection.execute(query)])

    def unconfigured(self) -> list[Send]:
        """Return the messages that wait for channels which these settings do not have, the oldest first."""
        return self._database.read(lambda connection: unconfigured_messages(connection, self._settings))

    def silenced_until(self, selected: Collection[Alert], *, now: datetime | None = None) -> dict[int, datetime]:
        """Return the end of the silence of each silenced alert, by id."""

        def work(connection: Connection) -> dict[int, datetime]:
            at = self._database.dialect.now(connection) if now is None else now
            silenced = self._silenced(connection, at)
            ends = {alert.id: silenced.until(alert) for alert in selected if not alert.is_over}
            return {alert_id: until for alert_id, until in ends.items() if until is not None}

        return self._database.read(work)

    def _silenced(self, connection: Connection, now: datetime) -> Silenced:
        return read_silenced(connection, self._settings.maintenance, now)

    def stored_subject(self, name: str) -> str:
        """Return the form in which alerts store a subject."""
        return self._keys.of_name(name)


# ── inside a transaction ──────────────────────────────────────────────────────────────────────────────────────────────


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
    if finding.condition == RECOVERED:
        if run_id is not None:
            matches |= (column.run_id == run_id) & column.condition.in_(_FAILED)
        matches |= same & (column.opened_at >= now - _RECOVERED_EVERY)
    query = (
        select(column.id, column.condition)
        .where(matches, column.resolved_at >= now - _REMEMBERED, column.opened_at.is_not(None))
        .order_by(column.id.desc())
    )
    row = connection.execute(query.limit(1)).first()
    if row is not None and row.condition == RECOVERED:
        counted = {"seen": column.seen + 1, "last_seen": now}
        connection.execute(update(alerts).where(column.id == row.id).values(counted))
    return row is not None


# ── channels ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Unreached(NamedTuple):
    """An open alert, and the channels that its routes lead to and that have no message about it."""

    alert: Alert
    channels: Sequence[str]


def unreached_channels(connection: Connection, settings: AlertSettings, silenced: Silenced) -> list[Unreached]:
    """Return the open alerts with channels that never got them.

    These channels were added or renamed since, a process with other settings opened the alert, or the message was
    dropped while the alert was acknowledged.
    """
    rows = connection.execute(select(alerts).where(alerts.c.status == AlertStatus.OPEN.value).order_by(alerts.c.id))
    records = [record for record in map(record_of, rows) if _is_sent_on(record, silenced)]
    if not records:
        return []
    about = in_ids(_sends.alert_id, [record.alert.id for record in records])
    sent = select(_sends.alert_id, _sends.channel).where(about, _sends.what.in_([what.value for what in SUPPRESSED]))
    known = {(row.alert_id, row.channel) for row in connection.execute(sent)}
    pairs = [
        Unreached(record.alert, [name for name in _routed(record, settings) if (record.alert.id, name) not in known])
        for record in records
    ]
    return [unreached for unreached in pairs if unreached.channels]


def unconfigured_messages(connection: Connection, settings: AlertSettings) -> list[Send]:
    """Return the messages that wait for channels which these settings do not have; the oldest first."""
    is_elsewhere = _sends.channel.not_in([LOG_CHANNEL, *settings.channels])
    wanted = select(alert_sends).where(_sends.status == SendStatus.WAITING.value, is_elsewhere)
    return [send_of(row) for row in connection.execute(wanted.order_by(_sends.id))]


def _is_sent_on(record: AlertRecord, silenced: Silenced) -> bool:
    """Return whether further channels get the alert: it was sent, still holds, and is not silenced.

    That settings differ is for the channels of the watch that stands by.
    """
    alert = record.alert
    if alert.condition == SETTINGS_DIFFER:
        return False
    return (
        record.is_notified and alert.told_at is not None and alert.gone_since is None and silenced.until(alert) is None
    )


def _routed(record: AlertRecord, settings: AlertSettings) -> dict[str, None]:
    """Return the channels of the highest severity that was sent: one that has gone down since is no news."""
    alert = record.alert
    return dict.fromkeys(settings.channels_for(record.peak or alert.urgency, alert.subject, alert.condition))


# ── forgotten pipelines, flows and services ───────────────────────────────────────────────────────────────────────────
# No later judgement resolves their alerts, because nothing is left to judge.

_RUN_EVIDENCE = ("failed", "gate", "few_rows", "growing", "duration")
_LEVEL_EVIDENCE = ("lost", "duration", "stale", "pending", "old_letters")


def is_about(alert: Alert, name: str, kinds: Collection[str]) -> bool:
    """Return whether an alert is about this pipeline, flow or service alone, without other members."""
    if alert.subject.name != name or alert.subject.kind not in kinds:
        return False
    return alert.subject.kind == "service" or set(alert.facts.affected) <= {name}


def withdraw(subject: Subject, run_ids: Iterable[UUID] = (), params: Iterable[str] = ()) -> Judgement:
    """Return the judgement that withdraws all evidence of a pipeline or flow from the alerts it shares with others."""
    idents = {subject.ident}
    for run_params in params:
        variant = variant_of(run_params)
        idents.add(f"{subject.ident}#{variant}" if variant else subject.ident)
    judged = {f"run:{ident}:{kind}" for ident in idents for kind in _RUN_EVIDENCE}
    judged |= {f"level:{kind}:{ident}" for ident in idents for kind in _LEVEL_EVIDENCE}
    return Judgement(
        judged=frozenset({*judged, f"sla:{subject.ident}", f"sla_risk:{subject.ident}"}),
        judged_under=frozenset(f"{kind}:{run_id}:" for run_id in run_ids for kind in ("dead", "task_sla")),
    )


# ── removed settings ──────────────────────────────────────────────────────────────────────────────────────────────────


def unconfigured_alerts(open_alerts: Iterable[Alert], settings: AlertSettings) -> list[Alert]:
    """Return the alerts about conditions and tables that the settings do not have any more."""
    is_configured = {
        "level:condition:": settings.defined.__contains__,
        "level:rows:": {table.name for table in settings.tables}.__contains__,
        "level:stale_table:": {table.name for table in settings.tables if table.time_column}.__contains__,
    }

    def is_unconfigured(evidence: str) -> bool:
        prefix = next((prefix for prefix in is_configured if evidence.startswith(prefix)), None)
        return prefix is not None and not is_configured[prefix](evidence.removeprefix(prefix))

    return [alert for alert in open_alerts if alert.evidence and all(map(is_unconfigured, alert.evidence))]


def unwatched_alerts(missed: Iterable[Alert], snapshot: LevelSnapshot) -> list[Alert]:
    """Return the alerts about missed deadlines that nothing sets any more; none while deadlines are unknown."""
    if any(name == "due" or name.startswith("due:") for name in snapshot.unknown):
        return []
    watched = {*snapshot.inactive, *(due.subject.ident for due in snapshot.due)}
    return [
        alert
        for alert in missed
        if alert.evidence == {f"sla:{alert.subject.ident}"} and alert.subject.ident not in watched
    ]
