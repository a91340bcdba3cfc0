"""The state machine of an alert: open, update, escalate, acknowledge, snooze and resolve it.

    WAITING ──► OPEN ◄──► ACKNOWLEDGED
       │          └──► RESOLVED ◄──┘
       └──► deleted: its condition cleared before a notification was due

Pure functions without I/O: each takes an `AlertRecord` and returns an `AlertChange` with the new record and the
notifications to send. `redrive.alerts.lifecycle.repository` stores both in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from redrive.alerts.conditions import NO_LONGER
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.lifecycle.evidence import (
    LEVEL,
    AlertRecord,
    Evidence,
    Snooze,
    failed_run,
    failed_subjects,
    leading_evidence,
    may_return,
    members_of,
    merged_facts,
    shorten_old_evidence,
    title_of,
)
from redrive.model.alerts import Alert, AlertStatus, Finding, What

_FLAP_AWARE = "service_down"
"""The condition whose rule waits for `flap_seconds` itself."""
UNSAVED = 0
"""The id of an alert that is not in the store yet."""

SUPPRESSED = (What.OPENED, What.ESCALATED, What.REPEATED)
"""Notifications that are not sent while an alert is silenced."""


@dataclass(frozen=True, slots=True)
class AlertChange:
    """The result of a step: the new record and the notifications to send."""

    record: AlertRecord | None
    """None when the alert is to be deleted."""
    messages: tuple[What, ...] = ()
    recovered: tuple[Evidence, ...] = ()
    """Evidence of failed runs that recovered before a notification was sent."""
    ends_snooze: bool = False
    """Whether the alert got worse than when it was snoozed, so that it is sent despite the snooze."""


def apply_finding(record: AlertRecord | None, finding: Finding, now: datetime, *, returns: int = 0) -> AlertChange:
    """Open or update an alert because a condition holds.

    Args:
        record: The open alert; None when there is none.
        finding: The condition that holds, with its evidence.
        now: The current time.
        returns: How often the alert has returned before; used for a new alert only.
    """
    if finding.momentary:
        return _apply_momentary(record, finding, now)
    if record is None:
        record = replace(_new_record(finding, now), returns=returns)
    elif record.alert.gone_since is not None:
        record = replace(record, returns=record.returns + 1)
    others = tuple(item for item in record.evidence if item.name != finding.evidence)
    before = next((item for item in record.evidence if item.name == finding.evidence), None)
    began = min(now, finding.since or now, now if before is None else before.since)
    alert = replace(
        record.alert, last_seen=max(now, record.alert.last_seen), seen=record.alert.seen + 1, gone_since=None
    )
    evidence = (*others, Evidence(replace(finding, since=None), since=began, seen_at=now))
    return _update(replace(record, alert=alert, evidence=evidence), now)


def withdraw_evidence(
    record: AlertRecord,
    names: Collection[str],
    now: datetime,
    settings: AlertSettings,
    *,
    why: str = NO_LONGER,
    recovered: Collection[str] = (),
    watched: bool = True,
) -> AlertChange:
    """Remove evidence that no longer holds; resolve the alert when none is left.

    Args:
        record: The alert.
        names: The names of the evidence that no longer holds.
        now: The current time.
        settings: The alert settings.
        why: The resolution that is stored with the alert.
        recovered: The idents of pipelines and flows with a run that ended well.
        watched: Whether a watch process is running and will check that the condition stays clear.
    """
    gone = [item for item in record.evidence if item.name in names]
    left = tuple(item for item in record.evidence if item.name not in names)
    if not gone:
        return AlertChange(record)
    if record.alert.status is AlertStatus.WAITING:
        recovered_runs = tuple(item for item in gone if failed_run(item.name) in recovered)
        change = _update(replace(record, evidence=left), now) if left else AlertChange(None)
        return replace(change, recovered=recovered_runs)
    if left:
        return _update(replace(record, evidence=left), now)
    if _needs_quiet_period(record, gone, settings, watched=watched):
        alert = replace(record.alert, evidence=frozenset(), gone_since=now)
        return AlertChange(replace(record, alert=alert, evidence=()))
    return _resolved(record, now, why)


def _needs_quiet_period(
    record: AlertRecord, gone: Collection[Evidence], settings: AlertSettings, *, watched: bool
) -> bool:
    """Return whether the condition must stay clear for a while before the alert is resolved.

    This holds for every level. With a running watch it also holds for services, because one good run does not prove
    that a service is up for the others, and for alerts that have returned before.
    """
    if settings.persist <= 0 or not all(may_return(item.name) for item in gone):
        return False
    is_level = all(item.name.startswith(LEVEL) for item in gone)
    return is_level or (watched and (record.returns > 0 or record.alert.subject.kind == "service"))


def _quiet_seconds(record: AlertRecord, settings: AlertSettings) -> float:
    """Return for how many seconds the condition must stay clear before the alert is resolved."""
    if record.returns == 0 or record.alert.condition == _FLAP_AWARE:
        return settings.persist
    return max(settings.persist, settings.thresholds.flap_seconds)


def pass_time(
    record: AlertRecord, now: datetime, settings: AlertSettings, *, after_silence: bool = False, scheduled: bool = True
) -> AlertChange:
    """Open an alert, send it again, or resolve it, because time has passed.

    Args:
        record: The alert.
        now: The current time.
        settings: The alert settings.
        after_silence: Whether a silence of the alert has ended since it was last sent.
        scheduled: Whether the alert is sent again by its schedule.
    """
    record = _without_future(record, now)
    alert = record.alert
    if alert.gone_since is not None:
        over = now - alert.gone_since >= timedelta(seconds=_quiet_seconds(record, settings))
        return _resolved(record, now, NO_LONGER) if over else AlertChange(record)
    change = _update(record, now)
    if change.messages or change.record is None:
        return change
    alert = change.record.alert
    interval = settings.repeat.get(alert.urgency) if scheduled else None
    if alert.status is not AlertStatus.OPEN or alert.told_at is None:
        return change
    if not after_silence and (interval is None or now - alert.told_at < timedelta(seconds=interval)):
        return change
    repeated = replace(alert, told_at=now, repeats=alert.repeats + 1)
    return AlertChange(_notified(replace(change.record, alert=repeated)), (What.REPEATED,))


def _without_future(record: AlertRecord, now: datetime) -> AlertRecord:
    """Return the record with the current time for times after it, stored while the clock was ahead."""
    alert = record.alert
    told_at = None if alert.told_at is None else min(alert.told_at, now)
    gone_since = None if alert.gone_since is None else min(alert.gone_since, now)
    evidence = tuple(replace(item, since=min(item.since, now)) for item in record.evidence)
    return replace(record, alert=replace(alert, told_at=told_at, gone_since=gone_since), evidence=evidence)


def suppress(before: AlertRecord | None, change: AlertChange) -> AlertChange:
    """Return the change of a silenced alert: it is stored, but no notification is sent until the silence ends.

    Acknowledge and resolve notifications of an alert that was sent before the silence are still sent.
    """
    record = change.record
    if record is None or not any(what in SUPPRESSED for what in change.messages):
        return change
    if before is None or not before.is_notified:
        unsent = replace(record, alert=replace(record.alert, told_at=None), peak=None, notified=None)
        return replace(change, record=unsent, messages=())
    known = before.alert
    alert = replace(record.alert, told_at=known.told_at, repeats=known.repeats)
    if not alert.is_over:
        alert = replace(
            alert,
            status=known.status,
            acknowledged_at=known.acknowledged_at,
            acknowledged_by=known.acknowledged_by,
        )
    messages = tuple(what for what in change.messages if what not in SUPPRESSED)
    kept = replace(record, alert=alert, peak=before.peak, notified=before.notified)
    return replace(change, record=kept, messages=messages)


def acknowledge(record: AlertRecord, now: datetime, *, by: str, note: str | None) -> AlertChange:
    """Record that an operator works on the alert. Only the first acknowledgement is sent."""
    alert = replace(
        record.alert,
        status=AlertStatus.ACKNOWLEDGED,
        acknowledged_at=now,
        acknowledged_by=by,
        note=record.alert.note if note is None else note,
    )
    first = record.alert.status is AlertStatus.OPEN
    # An operator who acknowledges a silenced alert knows its severity, so it need not be sent when the silence ends.
    is_worse = record.peak is None or alert.urgency.outranks(record.peak)
    notified = replace(record, alert=alert, peak=alert.urgency if is_worse else record.peak)
    return AlertChange(notified, (What.ACKNOWLEDGED,) if first else ())


def snooze(record: AlertRecord) -> AlertChange:
    """Snooze an alert. Any acknowledgement is removed, so that the alert is sent again when the snooze ends."""
    alert = record.alert
    if alert.status is not AlertStatus.WAITING:
        alert = replace(alert, status=AlertStatus.OPEN, acknowledged_at=None, acknowledged_by=None)
    return AlertChange(replace(record, alert=alert, snooze=Snooze(alert.urgency, failed_subjects(record))))


def is_worse_than_snoozed(record: AlertRecord) -> bool:
    """Return whether a snoozed alert became more severe, or concerns another pipeline or flow, since the snooze."""
    if record.snooze is None or record.alert.status is not AlertStatus.OPEN:
        return False
    return record.alert.urgency.outranks(record.snooze.urgency) or not failed_subjects(record) <= record.snooze.members


def end_snooze(change: AlertChange, now: datetime) -> AlertChange:
    """End the snooze of an alert that got worse, and send the alert."""
    assert change.record is not None
    record = replace(change.record, snooze=None)
    if any(what in SUPPRESSED for what in change.messages):
        return replace(change, record=record, ends_snooze=True)
    alert = replace(record.alert, told_at=now, repeats=record.alert.repeats + 1)
    messages = (*change.messages, What.REPEATED)
    return replace(change, record=_notified(replace(record, alert=alert)), messages=messages, ends_snooze=True)


def close(record: AlertRecord, now: datetime, *, by: str, note: str) -> AlertChange:
    """Resolve an alert on behalf of an operator. If its condition holds later, a new alert opens."""
    change = _resolved(record, now, f"closed by {by}: {note}")
    assert change.record is not None
    return replace(change, record=replace(change.record, alert=replace(change.record.alert, note=note)))


def resolve_from_program(record: AlertRecord, now: datetime, *, by: str | None, note: str | None) -> AlertChange:
    """Resolve an alert on behalf of the program that opened it."""
    why = "resolved by its program" if by is None else f"resolved by {by}"
    change = _resolved(record, now, why if note is None else f"{why}: {note}")
    assert change.record is not None
    kept_note = record.alert.note if note is None else note
    return replace(change, record=replace(change.record, alert=replace(change.record.alert, note=kept_note)))


# ── the steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _new_record(finding: Finding, now: datetime) -> AlertRecord:
    return AlertRecord(
        Alert(
            id=UNSAVED,
            key=finding.key,
            condition=finding.condition,
            urgency=finding.urgency,
            status=AlertStatus.WAITING,
            subject=finding.subject,
            title=finding.title,
            facts=finding.facts,
            since=min(now, finding.since or now),
            last_seen=now,
            seen=0,
        )
    )


def _update(record: AlertRecord, now: datetime) -> AlertChange:
    """Recompute an alert from its evidence, and decide whether to send that it opened or escalated."""
    if not record.evidence:  # an operator may have deleted it from the store
        return AlertChange(record)
    lead = leading_evidence(record, now)
    began = min(item.since for item in record.evidence)
    record = replace(
        record, members=max(record.members, len(members_of(record))), evidence=shorten_old_evidence(record)
    )
    alert = replace(
        record.alert,
        condition=lead.finding.condition,
        urgency=lead.finding.urgency,
        subject=lead.finding.subject,
        title=title_of(record, lead),
        facts=merged_facts(lead, record),
        persist=lead.finding.persist,
        evidence=frozenset(item.name for item in record.evidence),
        since=min(record.alert.since, began) if record.is_notified else began,
    )
    if record.peak is None:
        if not lead.has_lasted(now):
            return AlertChange(replace(record, alert=alert))
        opened = replace(alert, status=AlertStatus.OPEN, opened_at=alert.opened_at or now, told_at=now)
        return AlertChange(_notified(replace(record, alert=opened, peak=alert.urgency)), (What.OPENED,))
    # An alert that was sent as P1 and dropped to P3 for a while does not escalate a second time.
    if not alert.urgency.outranks(record.peak):
        return AlertChange(replace(record, alert=alert))
    escalated = replace(alert, status=AlertStatus.OPEN, told_at=now, acknowledged_at=None, acknowledged_by=None)
    return AlertChange(_notified(replace(record, alert=escalated, peak=alert.urgency)), (What.ESCALATED,))


def _notified(record: AlertRecord) -> AlertRecord:
    return replace(record, notified=(record.alert.condition, record.alert.title))


def _resolved(record: AlertRecord, now: datetime, why: str) -> AlertChange:
    condition, title = record.alert.condition, record.alert.title
    if record.notified is not None and record.notified[0] != condition:
        condition, title = record.notified  # the notification that an outage is over must name the outage
    elif record.members > 1 and record.evidence:
        title = title_of(record, leading_evidence(record, now), over=True)
    alert = replace(
        record.alert,
        condition=condition,
        title=title,
        status=AlertStatus.RESOLVED,
        resolved_at=now,
        resolution=why,
        evidence=frozenset(),
        gone_since=None,
    )
    messages = (What.RESOLVED,) if record.is_notified else ()
    return AlertChange(replace(record, alert=alert, evidence=(), snooze=None), messages)


def _apply_momentary(record: AlertRecord | None, finding: Finding, now: datetime) -> AlertChange:
    if record is not None and record.is_notified:
        return _resolved(replace(record, alert=replace(record.alert, facts=finding.facts)), now, finding.title)
    new_alert = _new_record(finding, now).alert
    alert = replace(
        new_alert,
        id=UNSAVED if record is None else record.alert.id,
        status=AlertStatus.RESOLVED,
        seen=1 if record is None else record.alert.seen + 1,
        opened_at=now,
        told_at=now,
        resolved_at=now,
        resolution="it was over when it was found",
    )
    return AlertChange(AlertRecord(alert, peak=alert.urgency), (What.OPENED,))
