"""The alerts of a store. Every step is one transaction: an alert is stored with its messages, and sent after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select, update

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.custom import CUSTOM
from redrive.alerts.delivery.outbox import Outbox
from redrive.alerts.delivery.safe_text import safe, safe_line
from redrive.alerts.delivery.unreached import Unreached, unconfigured_messages, unreached_channels
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle import state_machine
from redrive.alerts.lifecycle.keys import StoredKeys, as_sent_before
from redrive.alerts.lifecycle.open_alerts import (
    case_by_id,
    is_known,
    open_case,
    open_cases,
    shared_by,
    touched_cases,
    without_newer,
)
from redrive.alerts.lifecycle.rows import TITLE, alert_of, case_of, columns_of, fit_to_store, send_of
from redrive.alerts.lifecycle.silences import Silenced, SilenceLog, end_snoozes, insert_silence, read_silenced
from redrive.alerts.lifecycle.state_machine import AlertChange, AlertRecord, Evidence
from redrive.errors import AlertError
from redrive.model.alerts import (
    Alert,
    AlertFilter,
    AlertStatus,
    Facts,
    Finding,
    Send,
    SendStatus,
    Severity,
    Silence,
    Subject,
    What,
)
from redrive.store.database import Database
from redrive.store.repositories.watches import is_watched
from redrive.store.retention.finished import Retention
from redrive.store.schema import ALERT_IS_OPEN, alert_sends, alerts
from redrive.store.sql import in_ids

OPEN = "open"
"""As a person asks for it: all that is not over."""
TEST = "test"

_REPORTED = {What.OPENED, What.ESCALATED, What.RESOLVED}
_NOTE = 2_000
_BY = 200

_Step = tuple[Mapping[str, AlertRecord], Mapping[str, AlertChange]]
"""The alerts that were looked at, and what becomes of some of them, by their keys."""


class _Applied(NamedTuple):
    """What one transaction has come to."""

    cases: list[AlertRecord]
    """As they were written."""
    reported: list[Alert]


class AlertRepository:
    """Judgements come in; alerts, and messages to people, come of it."""

    def __init__(self, database: Database, settings: AlertSettings) -> None:
        self._database, self._settings = database, settings
        self._outbox = Outbox(database, settings)
        self._keys = StoredKeys(database)

    # ── what is found ─────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(
        self,
        judgement: Judgement,
        *,
        now: datetime | None = None,
        as_of: datetime | None = None,
        only_if: Callable[[Connection], bool] | None = None,
    ) -> list[Alert]:
        """Take in a judgement; the alerts that were opened, escalated or resolved by it.

        now      the database's clock where it is not given
        as_of    when what is judged was read: what others have stored since is newer, and stays
        only_if  is asked in the same transaction, and may write there: where it says no, nothing is done
        """
        findings = tuple(fit_to_store(finding, self._keys) for finding in judgement.findings)
        judgement = replace(judgement, findings=findings)

        def step(connection: Connection, at: datetime, silenced: Silenced) -> _Step:
            if only_if is not None and not only_if(connection):
                return {}, {}
            watched = is_watched(connection, self._database.dialect, now=at)
            current = judgement if as_of is None else without_newer(connection, judgement, as_of)
            cases = touched_cases(connection, current, and_waiting=not watched, and_sent=not watched and bool(silenced))
            changed = state_machine.judged(
                cases,
                current if watched else _at_once(current),
                at,
                self._settings,
                is_known=lambda finding: (
                    finding.key not in cases
                    and is_known(connection, replace(finding, key=self._keys.of(finding.key)), at)
                ),
                returns=lambda key: self._returns(connection, key, at),
                watched=watched,
            )
            if watched:
                return cases, changed
            # What has waited for a watch that came no more, or for a silence to end, is told by whoever comes by, be it
            # a good run. Only scheduled repeats are left to a watch.
            unsent = {
                key: change.case for key, change in changed.items() if change.case is not None and not change.told
            }
            waiting = {key: unsent.get(key, case) for key, case in cases.items() if key in unsent or key not in changed}
            return cases, {**changed, **self._grown_older(waiting, at, silenced, repeats=False)}

        return self._take(step, now)

    def pass_time(self, *, now: datetime | None = None) -> list[Alert]:
        """Tell of what has held for long enough, repeat what is still open, and close what has been gone for a while;
        the alerts that were opened, escalated or resolved by it."""
        # Most of them are as they were. Which are not is found out before others have to wait for it.
        older = self._database.read(lambda connection: self._older(connection, now))

        def step(connection: Connection, at: datetime, silenced: Silenced) -> _Step:
            cases = open_cases(connection, older)
            return cases, self._grown_older(cases, at, silenced)

        reported = self._take(step, now) if older else []
        self._send_to_added_channels(now)
        return reported

    def _send_to_added_channels(self, now: datetime | None) -> None:
        """Send open alerts to channels that the routes lead to now and that never got a message about them."""

        def unreached(connection: Connection, at: datetime) -> list[Unreached]:
            return unreached_channels(connection, self._settings, self._silenced(connection, at))

        def work(connection: Connection) -> None:
            at = self._begin(connection, now)
            for alert, channels in unreached(connection, at):
                self._outbox.put_first(connection, alert, channels, at)

        dialect = self._database.dialect
        if self._database.read(lambda connection: unreached(connection, now or dialect.now(connection))):
            self._database.write(work)

    def _older(self, connection: Connection, now: datetime | None) -> list[int]:
        at = self._database.dialect.now(connection) if now is None else now
        cases = {row.key: case_of(row) for row in connection.execute(select(alerts).where(ALERT_IS_OPEN))}
        return [cases[key].alert.id for key in self._grown_older(cases, at, self._silenced(connection, at))]

    def _returns(self, connection: Connection, key: str, now: datetime) -> int:
        """How often what is found now has come back: its last alert was over by itself, and not long ago."""
        column, lately = alerts.c, timedelta(seconds=self._settings.thresholds.flap_seconds)
        last = (
            select(column.evidence, column.resolution)
            .where(column.key == key, column.resolved_at >= now - lately, column.opened_at.is_not(None))
            .order_by(column.id.desc())
            .limit(1)
        )
        row = connection.execute(last).first()
        return 0 if row is None or row.resolution != state_machine.NO_LONGER else row.evidence.get("returns", 0) + 1

    def _silenced(self, connection: Connection, now: datetime) -> Silenced:
        return read_silenced(connection, self._settings.maintenance, now)

    def _grown_older(
        self, cases: Mapping[str, AlertRecord], now: datetime, silenced: Silenced, *, repeats: bool = True
    ) -> dict[str, AlertChange]:
        def step(case: AlertRecord) -> AlertChange:
            is_over = silenced.is_over(case.alert)
            change = state_machine.passed(case, now, self._settings, after_silence=is_over, repeats=repeats)
            return _unless_silenced(case, change, silenced, now)

        found = {key: step(case) for key, case in cases.items()}
        return {key: change for key, change in found.items() if change.case != cases[key]}

    def _take(self, step: Callable[[Connection, datetime, Silenced], _Step], now: datetime | None) -> list[Alert]:
        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            silenced = self._silenced(connection, at)
            cases, changes = step(connection, at, silenced)
            applied = _Applied([], [])
            for key, change in changes.items():
                before = cases.get(key)
                told = _unless_silenced(before, change, silenced, at)
                case = self._write(connection, before, told, at)
                if case is not None:
                    applied.cases.append(case)
                    if not _REPORTED.isdisjoint(told.told):
                        applied.reported.append(case.alert)
            return applied

        return self._database.write(work, done=_is_written).reported

    def _begin(self, connection: Connection, now: datetime | None) -> datetime:
        self._database.dialect.lock(connection, "alerts")  # two who find the same must not both open it
        return self._database.dialect.now(connection) if now is None else now

    def _write(
        self, connection: Connection, before: AlertRecord | None, change: AlertChange, now: datetime
    ) -> AlertRecord | None:
        case = change.case
        if before is not None and (case is None or case.alert.id != before.alert.id):
            connection.execute(delete(alerts).where(alerts.c.id == before.alert.id))
        if before is not None and before.snooze is not None and (case is None or case.snooze is None):
            end_snoozes(connection, before.alert.id, now)
        if case is None:
            return None
        if case.alert.id == state_machine.UNTOLD:
            case = replace(case, alert=replace(case.alert, key=self._keys.of(case.alert.key)))
            added = insert(alerts).values(columns_of(case)).returning(alerts.c.id)
            case = replace(case, alert=replace(case.alert, id=connection.execute(added).scalar_one()))
        else:
            connection.execute(update(alerts).where(alerts.c.id == case.alert.id).values(columns_of(case)))
        for what in change.told:
            self._outbox.put(connection, case.alert, what, now)
        return case

    # ── what a program says itself ────────────────────────────────────────────────────────────────────────────────────

    def open(self, finding: Finding, *, now: datetime | None = None) -> Alert:
        """Take in what a program found itself, and return its alert: a new one, or the one that is open."""
        given, finding = finding.key, fit_to_store(finding, self._keys)

        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            before = open_case(connection, finding.key, given)
            if before is not None and finding.condition == CUSTOM:  # its one witness may have an older form of the key
                before = replace(before, witnesses=tuple(_with_evidence(one, finding) for one in before.witnesses))
            silenced = self._silenced(connection, at)
            change = _unless_silenced(before, state_machine.found(before, finding, at), silenced, at)
            case = self._write(connection, before, change, at)
            assert case is not None
            return _Applied([case], [case.alert])

        return self._database.write(work, done=_is_written).reported[0]

    def close_key(self, key: str, *, by: str | None, note: str | None, now: datetime | None = None) -> Alert | None:
        """Resolve the alert of this key; None where none is open."""
        stored = self._keys.of(key)
        who, said = None if by is None else safe_line(by, _BY), None if note is None else safe_line(note, TITLE)

        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            before = open_case(connection, stored, key)
            if before is None:
                return _Applied([], [])
            case = self._write(connection, before, state_machine.ended(before, at, by=who, note=said), at)
            assert case is not None
            return _Applied([case], [case.alert])

        return next(iter(self._database.write(work, done=_is_written).reported), None)

    # ── what people ask ───────────────────────────────────────────────────────────────────────────────────────────────

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
        """Alerts, the newest first.

        status     "open" for all that are not over; else those that are exactly so
        subject    the name of a pipeline, flow, service …; also one of several that share an alert
        condition  such as "sla_missed"
        since      those that were seen since then
        """
        wanted: Any = select(alerts)
        if status == OPEN:
            wanted = wanted.where(ALERT_IS_OPEN)
        elif status is not None:
            wanted = wanted.where(alerts.c.status == AlertStatus(status).value)
        if urgency is not None:
            wanted = wanted.where(alerts.c.urgency == Severity(urgency).value)
        if condition is not None:
            wanted = wanted.where(alerts.c.condition == condition)
        if since is not None:
            wanted = wanted.where(alerts.c.last_seen >= since)

        def work(connection: Connection) -> list[Alert]:
            about = wanted
            if subject is not None:
                names = {subject, self._keys.of_name(subject)}
                about = about.where(alerts.c.subject.in_(names) | in_ids(alerts.c.id, shared_by(connection, subject)))
            return [alert_of(row) for row in connection.execute(about.order_by(alerts.c.id.desc()).limit(limit))]

        return self._database.read(work)

    def get(self, alert_id: int) -> Alert:
        """One alert."""
        return self._database.read(lambda connection: case_by_id(connection, alert_id).alert)

    def open_id(self, key: str) -> int | None:
        """Return the number of the alert of this key that people know of and that is not over; None without one."""
        column, stored = alerts.c, self._keys.of(key)
        known = select(column.id, column.key).where(ALERT_IS_OPEN, column.status != AlertStatus.WAITING.value)

        def work(connection: Connection) -> int | None:
            exact = {row.key: row.id for row in connection.execute(known.where(column.key.in_({key, stored})))}
            if exact:
                return exact.get(key, exact.get(stored))
            # Older versions stored keys as they were given, and sent them masked.
            sent = [row.id for row in connection.execute(known) if as_sent_before(row.key) == key]
            return sent[0] if len(sent) == 1 else None

        return self._database.read(work)

    def sends(self, alert_id: int) -> list[Send]:
        """The messages about an alert, the oldest first."""
        wanted = select(alert_sends).where(alert_sends.c.alert_id == alert_id).order_by(alert_sends.c.id)
        return self._database.read(lambda connection: [send_of(row) for row in connection.execute(wanted)])

    def unsent(self) -> list[Send]:
        """Messages that wait to be delivered, or that could not be; the oldest first.

        One whose channel nobody's settings know waits for somebody who knows it.
        """
        wanted = select(alert_sends).where(alert_sends.c.status != SendStatus.SENT.value).order_by(alert_sends.c.id)
        return self._database.read(lambda connection: [send_of(row) for row in connection.execute(wanted)])

    def unconfigured(self) -> list[Send]:
        """Messages that wait for channels which these settings do not have; the oldest first."""
        return self._database.read(lambda connection: unconfigured_messages(connection, self._settings))

    # ── what people decide ────────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, alert_id: int, *, by: str, note: str | None = None, now: datetime | None = None) -> Alert:
        """Somebody is at it: it is not repeated any more, unless it becomes more urgent."""
        who, said = safe_line(by, _BY), None if note is None else safe(note, _NOTE)

        def step(case: AlertRecord, at: datetime) -> AlertChange:
            if case.alert.status is AlertStatus.WAITING:
                raise AlertError(f"nobody has been told of alert {alert_id} yet, so there is nothing to acknowledge")
            return state_machine.acknowledged(case, at, by=who, note=said)

        return self._decide(alert_id, step, now)

    def close(self, alert_id: int, *, by: str, note: str, now: datetime | None = None) -> Alert:
        """Somebody says that it is over. Where it is found to hold once more, it is a new alert."""
        who, said = safe_line(by, _BY), safe(note, _NOTE)

        def step(case: AlertRecord, at: datetime) -> AlertChange:
            return state_machine.closed(case, at, by=who, note=safe_line(said, TITLE))

        return self._decide(alert_id, step, now)

    def _decide(
        self, alert_id: int, step: Callable[[AlertRecord, datetime], AlertChange], now: datetime | None
    ) -> Alert:
        def work(connection: Connection) -> _Applied:
            at = self._begin(connection, now)
            before = case_by_id(connection, alert_id)
            if before.alert.is_over:
                raise AlertError(f"alert {alert_id} is over already: {before.alert.resolution}")
            case = self._write(connection, before, step(before, at), at)
            assert case is not None
            return _Applied([case], [case.alert])

        return self._database.write(work, done=_is_written).reported[0]

    def stored_subject(self, name: str) -> str:
        """Return a subject as alerts have it."""
        return self._keys.of_name(name)

    def snooze(self, alert_id: int, *, length: timedelta, reason: str, by: str, now: datetime | None = None) -> Silence:
        """Silence one alert; where it still holds when that ends, it is sent again, whoever had acknowledged it.

        The snooze ends with the alert, and early where the alert becomes more severe or concerns another run.
        """

        def work(connection: Connection) -> tuple[AlertRecord, Silence]:
            at = self._begin(connection, now)
            before = case_by_id(connection, alert_id)
            if before.alert.is_over:
                raise AlertError(f"alert {alert_id} is over already: {before.alert.resolution}")
            only = AlertFilter(keys=(before.alert.key,))
            silence = insert_silence(
                connection, only, length=length, reason=reason, by=by, now=at, alert_id=before.alert.id
            )
            case = self._write(connection, before, state_machine.snoozed(before), at)
            assert case is not None
            return case, silence

        return self._database.write(work)[1]

    def silenced_until(self, found: Collection[Alert], *, now: datetime | None = None) -> dict[int, datetime]:
        """Until when alerts are silenced, by their numbers; without those that are not."""

        def work(connection: Connection) -> dict[int, datetime]:
            at = self._database.dialect.now(connection) if now is None else now
            silenced = self._silenced(connection, at)
            ends = {alert.id: silenced.until(alert) for alert in found if not alert.is_over}
            return {number: until for number, until in ends.items() if until is not None}

        return self._database.read(work)

    def put_test(self, urgency: Severity, *, pipeline: str | None = None, now: datetime | None = None) -> Alert:
        """Store a sample, over at once, to be sent over the routes that a real alert would take."""
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
            change = replace(state_machine.found(None, fit_to_store(finding, self._keys), at), told=(What.TEST,))
            case = self._write(connection, None, change, at)
            assert case is not None
            return _Applied([case], [case.alert])

        return self._database.write(work, done=_is_written).reported[0]

    def purge(self, *, older_than: timedelta, now: datetime | None = None) -> int:
        """Forget alerts that have been over for so long, and their messages; how many."""
        at = self._database.read(self._database.dialect.now) if now is None else now
        before = at - older_than
        SilenceLog(self._database).purge(before)
        return Retention(self._database, before=before, now=at).purge_alerts(before)


def _unless_silenced(before: AlertRecord | None, change: AlertChange, silenced: Silenced, now: datetime) -> AlertChange:
    """The change, without the messages that are silenced now. What is worse than when it was snoozed is sent."""
    if change.case is None or change.wakes or silenced.until(change.case.alert) is None:
        return change
    if state_machine.is_worse_than_snoozed(change.case) and silenced.is_only_snoozed(change.case.alert):
        return state_machine.woken(change, now)
    return state_machine.held(before, change)


def _at_once(judgement: Judgement) -> Judgement:
    """Where nobody comes back to see whether a run has recovered, people are told at once that it failed."""
    findings = tuple(
        replace(one, persist=0.0) if one.evidence.startswith("run:") else one for one in judgement.findings
    )
    return replace(judgement, findings=findings)


def _with_evidence(witness: Evidence, finding: Finding) -> Evidence:
    return replace(witness, finding=replace(witness.finding, evidence=finding.evidence, subject=finding.subject))


def _is_written(connection: Connection, applied: _Applied) -> bool:
    """Whether a commit whose answer was lost took place: a row is there as we wrote it.

    Where another process has changed all of them since, nobody can tell, and the step is made again: what is found
    twice tells nobody twice, it is only counted once more.
    """
    for case in applied.cases:
        row = connection.execute(select(alerts).where(alerts.c.id == case.alert.id)).one_or_none()
        if row is not None and case_of(row) == case:
            return True
    return False
