"""The repository of alerts: it stores them with their messages, and finds them.

Used by `redrive.alerts.service`. Each change is one transaction that writes the alert and its messages; the messages
are sent later by `redrive.alerts.delivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select, update

from redrive.alerts.conditions import CUSTOM, NO_LONGER
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import safe, safe_line
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle import state_machine
from redrive.alerts.lifecycle.change_set import apply_judgement
from redrive.alerts.lifecycle.evidence import AlertRecord, Evidence
from redrive.alerts.lifecycle.queries import (
    AlertQueries,
    Unreached,
    is_known,
    open_record,
    open_records,
    record_by_id,
    touched_records,
    unreached_channels,
    without_newer,
)
from redrive.alerts.lifecycle.rows import (
    TITLE,
    columns_of,
    fit_to_store,
    record_of,
)
from redrive.alerts.lifecycle.silences import Silenced, SilenceLog, end_snoozes, insert_silence
from redrive.alerts.lifecycle.state_machine import AlertChange
from redrive.errors import AlertError
from redrive.model.alerts import (
    Alert,
    AlertFilter,
    AlertStatus,
    Facts,
    Finding,
    Severity,
    Silence,
    Subject,
    What,
)
from redrive.store.database import Database
from redrive.store.repositories.watches import is_watched
from redrive.store.retention.finished import Retention
from redrive.store.schema import ALERT_IS_OPEN, alerts

TEST = "test"

_REPORTED = {What.OPENED, What.ESCALATED, What.RESOLVED}
_NOTE = 2_000
_BY = 200

_Step = tuple[Mapping[str, AlertRecord], Mapping[str, AlertChange]]
"""The alerts that were read, and the changes of some of them, both by key."""


class _Applied(NamedTuple):
    """The result of one transaction."""

    records: list[AlertRecord]
    """The alerts as they were written."""
    reported: list[Alert]


class AlertRepository(AlertQueries):
    """Apply judgements and the decisions of operators to the stored alerts, and write the messages about them."""

    def __init__(self, database: Database, settings: AlertSettings) -> None:
        super().__init__(database, settings)
        self._outbox = Outbox(database, settings)

    # ── judgements ────────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(
        self,
        judgement: Judgement,
        *,
        now: datetime | None = None,
        as_of: datetime | None = None,
        only_if: Callable[[Connection], bool] | None = None,
    ) -> list[Alert]:
        """Apply a judgement; return the alerts that it opened, escalated or resolved.

        Args:
            judgement: What the rules found and which evidence they evaluated.
            now: The current time; the database's clock by default.
            as_of: When the judged facts were read. Evidence that other processes stored later is kept.
            only_if: Called in the same transaction, where it may write. If it returns false, nothing is changed.
        """
        findings = tuple(fit_to_store(finding, self._keys) for finding in judgement.findings)
        judgement = replace(judgement, findings=findings)

        def step(connection: Connection, at: datetime, silenced: Silenced) -> _Step:
            if only_if is not None and not only_if(connection):
                return {}, {}
            watched = is_watched(connection, self._database.dialect, now=at)
            current = judgement if as_of is None else without_newer(connection, judgement, as_of)
            records = touched_records(
                connection, current, and_waiting=not watched, and_sent=not watched and bool(silenced)
            )
            changed = apply_judgement(
                records,
                current if watched else _without_persist(current),
                at,
                self._settings,
                is_known=lambda finding: (
                    finding.key not in records
                    and is_known(connection, replace(finding, key=self._keys.of(finding.key)), at)
                ),
                returns=lambda key: self._returns(connection, key, at),
                watched=watched,
            )
            if watched:
                return records, changed
            # Without a watch, this process also sends what waited for a watch or for the end of a silence, even if the
            # run succeeded. Only a watch sends alerts again by their schedule.
            unsent = {
                key: change.record
                for key, change in changed.items()
                if change.record is not None and not change.messages
            }
            # A run resolves nothing that it has not judged: only a new measurement shows that a level is over.
            waiting = {
                key: unsent.get(key, record)
                for key, record in records.items()
                if (key in unsent or key not in changed)
                and (record.alert.told_at is None or record.alert.gone_since is None)
            }
            return records, {**changed, **self._pass_time(waiting, at, silenced, scheduled=False)}

        return self._apply_step(step, now)

    def pass_time(self, *, now: datetime | None = None) -> list[Alert]:
        """Open alerts whose condition has lasted for long enough, send open alerts again, and resolve cleared ones.

        Returns:
            The alerts that were opened, escalated or resolved.
        """
        # Most alerts do not change. Reading which ones do needs no lock, so other processes do not wait for it.
        due = self._database.read(lambda connection: self._ids_due(connection, now))

        def step(connection: Connection, at: datetime, silenced: Silenced) -> _Step:
            records = open_records(connection, due)
            return records, self._pass_time(records, at, silenced)

        reported = self._apply_step(step, now) if due else []
        self._send_to_added_channels(now)
        return reported

    def _send_to_added_channels(self, now: datetime | None) -> None:
        """Queue open alerts for channels that were added to their routes and never received a message about them."""

        def unreached(connection: Connection, at: datetime) -> list[Unreached]:
            return unreached_channels(connection, self._settings, self._silenced(connection, at))

        def work(connection: Connection) -> None:
            at = self._begin(connection, now)
            for alert, channels in unreached(connection, at):
                self._outbox.put_first(connection, alert, channels, at)

        dialect = self._database.dialect
        if self._database.read(lambda connection: unreached(connection, now or dialect.now(connection))):
            self._database.write(work)

    def _ids_due(self, connection: Connection, now: datetime | None) -> list[int]:
        """Return the ids of the open alerts that change because time has passed."""
        at = self._database.dialect.now(connection) if now is None else now
        records = {row.key: record_of(row) for row in connection.execute(select(alerts).where(ALERT_IS_OPEN))}
        return [records[key].alert.id for key in self._pass_time(records, at, self._silenced(connection, at))]

    def _returns(self, connection: Connection, key: str, now: datetime) -> int:
        """Return how often an alert has returned: its last alert cleared by itself within `flap_seconds`."""
        column, flap = alerts.c, timedelta(seconds=self._settings.thresholds.flap_seconds)
        last = (
            select(column.evidence, column.resolution)
            .where(column.key == key, column.resolved_at >= now - flap, column.opened_at.is_not(None))
            .order_by(column.id.desc())
            .limit(1)
        )
        row = connection.execute(last).first()
        return 0 if row is None or row.resolution != NO_LONGER else row.evidence.get("returns", 0) + 1

    def _pass_time(
        self, records: Mapping[str, AlertRecord], now: datetime, silenced: Silenced, *, scheduled: bool = True
    ) -> dict[str, AlertChange]:
        def step(record: AlertRecord) -> AlertChange:
            is_over = silenced.is_over(record.alert)
            change = state_machine.pass_time(record, now, self._settings, after_silence=is_over, scheduled=scheduled)
            return _suppress_silenced(record, change, silenced, now)

        changes = {key: step(record) for key, record in records.items()}
        return {key: change for key, change in changes.items() if change.record != records[key]}

    def _apply_step(self, step: Callable[[Connection, datetime, Silenced], _Step], now: datetime | None) -> list[Alert]:
        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            silenced = self._silenced(connection, at)
            records, changes = step(connection, at, silenced)
            applied = _Applied([], [])
            for key, change in changes.items():
                before = records.get(key)
                allowed = _suppress_silenced(before, change, silenced, at)
                record = self._write(connection, before, allowed, at)
                if record is not None:
                    applied.records.append(record)
                    if not _REPORTED.isdisjoint(allowed.messages):
                        applied.reported.append(record.alert)
            return applied

        return self._database.write(work, done=_is_written).reported

    def _begin(self, connection: Connection, now: datetime | None) -> datetime:
        self._database.dialect.lock(connection, "alerts")  # two processes must not open the same alert twice
        return self._database.dialect.now(connection) if now is None else now

    def _write(
        self, connection: Connection, before: AlertRecord | None, change: AlertChange, now: datetime
    ) -> AlertRecord | None:
        record = change.record
        if before is not None and (record is None or record.alert.id != before.alert.id):
            connection.execute(delete(alerts).where(alerts.c.id == before.alert.id))
        if before is not None and before.snooze is not None and (record is None or record.snooze is None):
            end_snoozes(connection, before.alert.id, now)
        if record is None:
            return None
        if record.alert.id == state_machine.UNSAVED:
            record = replace(record, alert=replace(record.alert, key=self._keys.of(record.alert.key)))
            added = insert(alerts).values(columns_of(record)).returning(alerts.c.id)
            record = replace(record, alert=replace(record.alert, id=connection.execute(added).scalar_one()))
        else:
            connection.execute(update(alerts).where(alerts.c.id == record.alert.id).values(columns_of(record)))
        for what in change.messages:
            self._outbox.put(connection, record.alert, what, now)
        return record

    # ── alerts that programs open ─────────────────────────────────────────────────────────────────────────────────────

    def open(self, finding: Finding, *, now: datetime | None = None) -> Alert:
        """Open an alert for a finding of a user's program, or update it if it is open; return the alert."""
        given_key, finding = finding.key, fit_to_store(finding, self._keys)

        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            before = open_record(connection, finding.key, given_key)
            if before is not None and finding.condition == CUSTOM:  # older versions stored another form of the key
                before = replace(before, evidence=tuple(_rename_evidence(item, finding) for item in before.evidence))
            silenced = self._silenced(connection, at)
            change = _suppress_silenced(before, state_machine.apply_finding(before, finding, at), silenced, at)
            record = self._write(connection, before, change, at)
            assert record is not None
            return _Applied([record], [record.alert])

        return self._database.write(work, done=_is_written).reported[0]

    def close_key(self, key: str, *, by: str | None, note: str | None, now: datetime | None = None) -> Alert | None:
        """Resolve the alert of this key and return it; None if no alert of this key is open."""
        stored_key = self._keys.of(key)
        author = None if by is None else safe_line(by, _BY)
        safe_note = None if note is None else safe_line(note, TITLE)

        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            before = open_record(connection, stored_key, key)
            if before is None:
                return _Applied([], [])
            change = state_machine.resolve_from_program(before, at, by=author, note=safe_note)
            record = self._write(connection, before, change, at)
            assert record is not None
            return _Applied([record], [record.alert])

        return next(iter(self._database.write(work, done=_is_written).reported), None)

    # ── decisions of operators ────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, alert_id: int, *, by: str, note: str | None = None, now: datetime | None = None) -> Alert:
        """Acknowledge an alert. It is not sent again, unless it escalates."""
        author, safe_note = safe_line(by, _BY), None if note is None else safe(note, _NOTE)

        def step(record: AlertRecord, at: datetime) -> AlertChange:
            if record.alert.status is AlertStatus.WAITING:
                raise AlertError(f"alert {alert_id} was not sent yet, so there is nothing to acknowledge")
            return state_machine.acknowledge(record, at, by=author, note=safe_note)

        return self._decide(alert_id, step, now)

    def close(self, alert_id: int, *, by: str, note: str, now: datetime | None = None) -> Alert:
        """Resolve an alert on behalf of an operator. If its condition holds later, a new alert opens."""
        author, safe_note = safe_line(by, _BY), safe(note, _NOTE)

        def step(record: AlertRecord, at: datetime) -> AlertChange:
            return state_machine.close(record, at, by=author, note=safe_line(safe_note, TITLE))

        return self._decide(alert_id, step, now)

    def _decide(
        self, alert_id: int, step: Callable[[AlertRecord, datetime], AlertChange], now: datetime | None
    ) -> Alert:
        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            before = record_by_id(connection, alert_id)
            if before.alert.is_over:
                raise AlertError(f"alert {alert_id} is over already: {before.alert.resolution}")
            record = self._write(connection, before, step(before, at), at)
            assert record is not None
            return _Applied([record], [record.alert])

        return self._database.write(work, done=_is_written).reported[0]

    def snooze(self, alert_id: int, *, length: timedelta, reason: str, by: str, now: datetime | None = None) -> Silence:
        """Silence one alert. If it is still open when the snooze ends, it is sent again, even if it was acknowledged.

        The snooze ends with the alert. It ends early if the alert becomes more severe or concerns another run.
        """

        def work(connection: Connection) -> tuple[AlertRecord, Silence]:
            at = self._begin(connection, now)
            before = record_by_id(connection, alert_id)
            if before.alert.is_over:
                raise AlertError(f"alert {alert_id} is over already: {before.alert.resolution}")
            only = AlertFilter(keys=(before.alert.key,))
            silence = insert_silence(
                connection, only, length=length, reason=reason, by=by, now=at, alert_id=before.alert.id
            )
            record = self._write(connection, before, state_machine.snooze(before), at)
            assert record is not None
            return record, silence

        return self._database.write(work)[1]

    def put_test(self, urgency: Severity, *, pipeline: str | None = None, now: datetime | None = None) -> Alert:
        """Store a test alert that is resolved at once; it is sent over the routes of a real alert."""
        subject = Subject(kind="store", name=self._database.name)
        if pipeline is not None:
            subject = Subject(kind="pipeline", name=pipeline)
        finding = Finding(
            key=f"{TEST}:{uuid4()}",
            condition=TEST,
            urgency=urgency,
            subject=subject,
            title=f"this is a test of where {urgency} alerts go",
            facts=Facts(commands=("redrive alerts ls",)),
            evidence=TEST,
            momentary=True,
        )

        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            opened = state_machine.apply_finding(None, fit_to_store(finding, self._keys), at)
            change = replace(opened, messages=(What.TEST,))
            record = self._write(connection, None, change, at)
            assert record is not None
            return _Applied([record], [record.alert])

        return self._database.write(work, done=_is_written).reported[0]

    def purge(self, *, older_than: timedelta, now: datetime | None = None) -> int:
        """Delete alerts that were resolved longer ago than this, with their messages; return how many."""
        at = self._database.read(self._database.dialect.now) if now is None else now
        before = at - older_than
        SilenceLog(self._database).purge(before)
        return Retention(self._database, before=before, now=at).purge_alerts(before)


def _suppress_silenced(
    before: AlertRecord | None, change: AlertChange, silenced: Silenced, now: datetime
) -> AlertChange:
    """Return the change without the messages that are silenced now. An alert that outgrew its snooze is sent."""
    if change.record is None or change.ends_snooze or silenced.until(change.record.alert) is None:
        return change
    if state_machine.is_worse_than_snoozed(change.record) and silenced.is_only_snoozed(change.record.alert):
        return state_machine.end_snooze(change, now)
    return state_machine.suppress(before, change)


def _without_persist(judgement: Judgement) -> Judgement:
    """Return the judgement with failed runs reported at once: without a watch, no process checks them later."""
    findings = tuple(
        replace(finding, persist=0.0) if finding.evidence.startswith("run:") else finding
        for finding in judgement.findings
    )
    return replace(judgement, findings=findings)


def _rename_evidence(item: Evidence, finding: Finding) -> Evidence:
    return replace(item, finding=replace(item.finding, evidence=finding.evidence, subject=finding.subject))


def _is_written(connection: Connection, applied: _Applied) -> bool:
    """Return whether a commit took place although its confirmation was lost: a row is stored as it was written.

    If other processes have changed all of these rows since, the result is unknown and the transaction is retried.
    That sends nothing twice, because an open alert only counts the second finding.
    """
    for record in applied.records:
        row = connection.execute(select(alerts).where(alerts.c.id == record.alert.id)).one_or_none()
        if row is not None and record_of(row) == record:
            return True
    return False
