"""The state machine of an alert: open, update, escalate, acknowledge, snooze and resolve it.

    WAITING ──► OPEN ◄──► ACKNOWLEDGED
       │          └──► RESOLVED ◄──┘
       └──► deleted: its condition cleared before a notification was due

Pure functions without I/O: each takes an `AlertRecord` and returns an `AlertChange` with the new record and the
notifications to send. `redrive.alerts.lifecycle.repository` stores both in one transaction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from redrive.alerts import conditions
from redrive.alerts.conditions import NO_LONGER
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import TITLE_LENGTH, command, safe_line, short
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle.causes import CAUSE, LATER, is_of
from redrive.model.alerts import Alert, AlertStatus, Facts, Finding, Severity, Subject, What

LEVEL = "level:"
"""Prefix of evidence that is measured at every check and may flap. All other evidence reports an event."""
RECOVERED = "recovered"
_FLAP_AWARE = "service_down"
"""The condition whose rule waits for `flap_seconds` itself."""
UNSAVED = 0
"""The id of an alert that is not in the store yet."""

SUPPRESSED = (What.OPENED, What.ESCALATED, What.REPEATED)
"""Notifications that are not sent while an alert is silenced."""
_FULL_EVIDENCE = 20  # items of evidence of one alert that are stored with all their facts

# The ident of a flow run has this prefix, and this suffix when the run has parameters.
_FLOW = "flow/"
_VARIANT = re.compile(r"#[0-9a-f]{8}\Z")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A finding that supports an alert, with the times at which it started and was last seen."""

    finding: Finding
    since: datetime
    seen_at: datetime

    @property
    def name(self) -> str:
        """The name of the evidence, such as `run:orders:failed`."""
        return self.finding.evidence

    @property
    def is_shortened(self) -> bool:
        """Whether title and most facts were dropped because the alert has many members."""
        return not self.finding.title

    def has_held(self, now: datetime) -> bool:
        """Whether the condition has held for its `persist` seconds. A level counts only until its last measurement."""
        until = self.seen_at if self.name.startswith(LEVEL) else now
        return until - self.since >= timedelta(seconds=self.finding.persist)


@dataclass(frozen=True, slots=True)
class Snooze:
    """The severity and members of an alert when an operator snoozed it. Anything worse ends the snooze."""

    urgency: Severity
    members: frozenset[Subject]
    """The pipelines and flows whose failed runs supported the alert."""


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """An alert with its evidence and the state that decides about notifications."""

    alert: Alert
    evidence: tuple[Evidence, ...] = ()
    """Ordered by when each was last seen, the latest last."""
    peak: Severity | None = None
    """The highest severity that was sent; None before the first notification."""
    members: int = 0
    """The highest number of pipelines and flows that supported the alert at the same time."""
    returns: int = 0
    """How often the alert cleared and returned within `flap_seconds`, earlier alerts of the same key included."""
    snooze: Snooze | None = None
    """Set while the alert is snoozed: until it gets worse or is resolved."""
    notified: tuple[str, str] | None = None
    """The condition and title of the last notification; the resolve notification repeats them."""

    @property
    def is_notified(self) -> bool:
        """Whether a notification about the alert was sent."""
        return self.peak is not None


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
    if settings.persist <= 0 or not all(_may_return(item.name) for item in gone):
        return False
    is_level = all(item.name.startswith(LEVEL) for item in gone)
    return is_level or (watched and (record.returns > 0 or record.alert.subject.kind == "service"))


def _quiet_seconds(record: AlertRecord, settings: AlertSettings) -> float:
    """Return for how many seconds the condition must stay clear before the alert is resolved."""
    if record.returns == 0 or record.alert.condition == _FLAP_AWARE:
        return settings.persist
    return max(settings.persist, settings.thresholds.flap_seconds)


def _may_return(evidence: str) -> bool:
    return evidence.startswith(LEVEL) or failed_run(evidence) is not None


def pass_time(
    record: AlertRecord, now: datetime, settings: AlertSettings, *, after_silence: bool = False, repeats: bool = True
) -> AlertChange:
    """Open, repeat or resolve an alert because time has passed.

    Args:
        record: The alert.
        now: The current time.
        settings: The alert settings.
        after_silence: Whether a silence of the alert has ended since it was last sent.
        repeats: Whether the alert is sent again by its schedule.
    """
    alert = record.alert
    if alert.gone_since is not None:
        over = now - alert.gone_since >= timedelta(seconds=_quiet_seconds(record, settings))
        return _resolved(record, now, NO_LONGER) if over else AlertChange(record)
    change = _update(record, now)
    if change.messages or change.record is None:
        return change
    alert = change.record.alert
    interval = settings.repeat.get(alert.urgency) if repeats else None
    if alert.status is not AlertStatus.OPEN or alert.told_at is None:
        return change
    if not after_silence and (interval is None or now - alert.told_at < timedelta(seconds=interval)):
        return change
    repeated = replace(alert, told_at=now, repeats=alert.repeats + 1)
    return AlertChange(_notified(replace(change.record, alert=repeated)), (What.REPEATED,))


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
    # An operator who acknowledges a silenced alert knows about it, so it need not be sent when the silence ends.
    notified = replace(record, alert=alert, peak=record.peak or alert.urgency)
    return AlertChange(notified, (What.ACKNOWLEDGED,) if first else ())


def snooze(record: AlertRecord) -> AlertChange:
    """Snooze an alert. Any acknowledgement is removed, so that the alert is sent again when the snooze ends."""
    alert = record.alert
    if alert.status is not AlertStatus.WAITING:
        alert = replace(alert, status=AlertStatus.OPEN, acknowledged_at=None, acknowledged_by=None)
    return AlertChange(replace(record, alert=alert, snooze=Snooze(alert.urgency, _failed_subjects(record))))


def is_worse_than_snoozed(record: AlertRecord) -> bool:
    """Return whether a snoozed alert became more severe, or concerns another pipeline or flow, since the snooze."""
    if record.snooze is None or record.alert.status is not AlertStatus.OPEN:
        return False
    return record.alert.urgency.outranks(record.snooze.urgency) or not _failed_subjects(record) <= record.snooze.members


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


# ── a whole judgement ─────────────────────────────────────────────────────────────────────────────────────────────────


def apply_judgement(
    records: Mapping[str, AlertRecord],
    judgement: Judgement,
    now: datetime,
    settings: AlertSettings,
    *,
    is_known: Callable[[Finding], bool],
    returns: Callable[[str], int] = lambda key: 0,
    watched: bool = True,
) -> dict[str, AlertChange]:
    """Apply a judgement to the open alerts; return the changes by key of the alert.

    Args:
        records: The open alerts by key.
        judgement: What the rules found and which evidence they evaluated.
        now: The current time.
        settings: The alert settings.
        is_known: Whether a momentary finding was sent before.
        returns: How often an alert that is not open, given by key, has returned lately.
        watched: Whether a watch process is running and will check the alerts later.
    """
    changes = _ChangeSet(records)
    lasting = _place_lasting(judgement, records, now, settings)
    for finding in lasting.values():
        record = changes.record(finding.key)
        count = returns(finding.key) if record is None and _may_return(finding.evidence) else 0
        changes.add(finding.key, apply_finding(record, finding, now, returns=count))
    standing = {*lasting, *((finding.key, finding.evidence) for finding in judgement.findings if finding.momentary)}
    for key, record in records.items():
        names = {item.name for item in record.evidence}
        gone = {name for name in names if judgement.covers(name) and (key, name) not in standing}
        if gone:
            well = {ident for ident in map(failed_run, gone) if ident is not None and _ended_well(ident, judgement)}
            current = changes.record(key) or record
            changes.add(key, withdraw_evidence(current, gone, now, settings, recovered=well, watched=watched))
    for finding in list(_momentary_findings(judgement, records, changes.changes.values())):
        if not is_known(finding):
            changes.add(finding.key, apply_finding(changes.record(finding.key), finding, now))
    return changes.changes


class _ChangeSet:
    """Changes by key of the alert; several changes of one alert are merged into one."""

    def __init__(self, records: Mapping[str, AlertRecord]) -> None:
        self.changes: dict[str, AlertChange] = {}
        self._cases = records

    def record(self, key: str) -> AlertRecord | None:
        return self.changes[key].record if key in self.changes else self._cases.get(key)

    def add(self, key: str, change: AlertChange) -> None:
        before = self.changes.get(key)
        if before is not None:
            messages, recovered = before.messages + change.messages, before.recovered + change.recovered
            change = replace(change, messages=messages, recovered=recovered)
        self.changes[key] = change


def _place_lasting(
    judgement: Judgement, records: Mapping[str, AlertRecord], now: datetime, settings: AlertSettings
) -> dict[tuple[str, str], Finding]:
    """Return the lasting findings by the key of the alert that each belongs to and the name of its evidence."""
    supported: defaultdict[str, list[tuple[AlertRecord, Evidence]]] = defaultdict(list)
    for record in records.values():
        for item in record.evidence:
            supported[item.name].append((record, item))
    # The most severe first: an alert that opens as P1 must not be sent as P3 first.
    lasting = sorted(
        (finding for finding in judgement.findings if not finding.momentary), key=lambda finding: finding.urgency.value
    )
    by_alert: dict[tuple[str, str], Finding] = {}
    for finding in lasting:
        placed = _place(finding, supported[finding.evidence], records, now, settings)
        by_alert.setdefault((placed.key, placed.evidence), placed)
    return by_alert


def _place(
    finding: Finding,
    supported: Collection[tuple[AlertRecord, Evidence]],
    records: Mapping[str, AlertRecord],
    now: datetime,
    settings: AlertSettings,
) -> Finding:
    """Return the finding with the key of the alert that it belongs to.

    A run that fails several times may blame a different service each time. It has been failing since its first failure,
    whichever service it blames, and an alert that was sent keeps its evidence. Otherwise each change of the blamed
    service would resolve one alert and open another.

    Args:
        finding: A lasting finding.
        supported: The alerts that the same evidence supports now, each with that evidence.
        records: The open alerts by key.
        now: The current time.
        settings: The alert settings.
    """
    if any(record.alert.key == finding.key for record, _ in supported):
        return finding
    sent = (record.alert.key for record, _ in supported if record.is_notified and not _needs_own_alert(finding, record))
    notified_key = next(sent, None)
    began = min((item.since for _, item in supported), default=finding.since)
    if began is not None and finding.since is not None:
        began = min(began, finding.since)
    key = notified_key or _choose_key(finding, supported, records, now, settings)
    return replace(finding, key=key, since=began)


def _needs_own_alert(finding: Finding, record: AlertRecord) -> bool:
    """Return whether a run that fails for a new reason leaves the alert that it shares with other runs."""
    return finding.group is not None and len(record.evidence) > 1 and not is_of(record.alert.key, finding.group)


def _choose_key(
    finding: Finding,
    supported: Collection[tuple[AlertRecord, Evidence]],
    records: Mapping[str, AlertRecord],
    now: datetime,
    settings: AlertSettings,
) -> str:
    """Return the key of the alert for a finding: its own key if that alert was sent, else the key of its shared cause.

    The same error text after `cause_window` may have another cause, so it opens a new alert.
    """
    own, group = records.get(finding.key), finding.group
    if group is None or (own is not None and own.is_notified):
        return finding.key
    same = [record for record in records.values() if is_of(record.alert.key, group)]
    mine = [record for record, _ in supported if is_of(record.alert.key, group)]
    if (
        finding.condition == "dead_task"
    ):  # from another run of this flow: the dead tasks of the first run are still open
        mine += [record for record in same if finding.subject in _members(record)]
    if mine:
        return mine[0].alert.key
    latest = max(same, key=lambda record: record.alert.last_seen, default=None)
    if latest is not None and now - latest.alert.last_seen <= timedelta(seconds=settings.cause_window):
        return latest.alert.key
    return group if group not in records else f"{group}{LATER}{now:%Y%m%dT%H%M%S}"


def _ended_well(ident: str, judgement: Judgement) -> bool:
    """Return whether a run of this pipeline or flow was judged and has not failed."""
    evidence = f"run:{ident}:failed"
    return judgement.covers(evidence) and not any(
        finding.evidence == evidence or (finding.condition == "gate_abort" and finding.evidence == f"run:{ident}:gate")
        for finding in judgement.findings
    )


def _momentary_findings(
    judgement: Judgement, records: Mapping[str, AlertRecord], changes: Iterable[AlertChange]
) -> Iterator[Finding]:
    """Yield the findings that are sent once.

    A recovered run yields one finding: from the rule, or from an alert that was waiting. It yields none when the
    failure was sent, because the resolve notification of that alert reports the recovery.
    """
    notified = {failed_run(item.name) for record in records.values() if record.is_notified for item in record.evidence}
    judged = {ident for ident in map(failed_run, judgement.judged) if ident is not None}
    for finding in judgement.findings:
        if finding.momentary and (finding.condition != RECOVERED or notified.isdisjoint(judged)):
            yield finding
    if any(finding.condition == RECOVERED for finding in judgement.findings):
        notified |= judged
    for item in (item for change in changes for item in change.recovered):
        if failed_run(item.name) not in notified:
            notified.add(failed_run(item.name))
            yield _recovered_finding(item)


def failed_run(evidence: str) -> str | None:
    """Return the ident of the pipeline or flow whose run failed or was lost; None for other evidence."""
    if evidence.startswith("run:") and evidence.endswith(":failed"):
        return evidence.removeprefix("run:").removesuffix(":failed")
    return evidence.removeprefix("level:lost:") if evidence.startswith("level:lost:") else None


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
    lead = _leading_evidence(record, now)
    began = min(item.since for item in record.evidence)
    record = replace(record, members=max(record.members, len(_members(record))), evidence=_shorten_old_evidence(record))
    alert = replace(
        record.alert,
        condition=lead.finding.condition,
        urgency=lead.finding.urgency,
        subject=lead.finding.subject,
        title=_title(record, lead),
        facts=_facts(lead, record),
        persist=lead.finding.persist,
        evidence=frozenset(item.name for item in record.evidence),
        since=min(record.alert.since, began) if record.is_notified else began,
    )
    if record.peak is None:
        if not lead.has_held(now):
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


def _leading_evidence(record: AlertRecord, now: datetime) -> Evidence:
    """Return the evidence that describes the alert: the most severe that has held for long enough, then the latest."""
    held = [item for item in record.evidence if item.has_held(now)] or record.evidence
    return min(reversed(held), key=lambda item: item.finding.urgency.value)


def _title(record: AlertRecord, lead: Evidence, *, over: bool = False) -> str:
    """Return the title: a summary for several members of one cause, else the title of the leading evidence."""
    group_title = lead.finding.group_title
    if group_title is None or record.members < 2 or not record.alert.key.startswith(CAUSE):
        return lead.finding.title
    members = _members(record)
    kinds = sorted({member.kind for member in members}, reverse=True)
    left = "" if over or len(members) == record.members else f"{len(members):,} of "
    return safe_line(
        f"{left}{record.members:,} {' and '.join(f'{kind}s' for kind in kinds)} {group_title}", TITLE_LENGTH
    )


def _shorten_old_evidence(record: AlertRecord) -> tuple[Evidence, ...]:
    """Return all evidence, with full facts for the latest only.

    The whole alert is written each time a member joins or leaves, so an alert with thousands of members must stay
    small.
    """
    if len(record.evidence) <= _FULL_EVIDENCE or not record.alert.key.startswith(CAUSE):
        return record.evidence
    older, newer = record.evidence[:-_FULL_EVIDENCE], record.evidence[-_FULL_EVIDENCE:]
    return (*(item if item.finding.group_title is None else _shorten(item) for item in older), *newer)


def _shorten(item: Evidence) -> Evidence:
    if item.is_shortened:
        return item
    facts = brief_facts(item.finding, item.finding.facts.run_id)
    return replace(item, finding=replace(item.finding, title="", facts=facts, group=None))


def brief_facts(finding: Finding, run_id: UUID | None) -> Facts:
    """Return the facts that are kept of one of many members of a shared alert."""
    facts, name = finding.facts, finding.subject.name
    words = ("alerts", "ls") if run_id is None else ("runs", "show", str(run_id)[:8])
    return Facts(
        status=facts.status,
        run_id=run_id,
        error=facts.error,
        error_type=facts.error_type,
        affected=(name,),
        commands=(command(*words),),
    )


def _members(record: AlertRecord) -> set[Subject]:
    """Return the subjects of the evidence."""
    return {item.finding.subject for item in record.evidence}


def _failed_subjects(record: AlertRecord) -> frozenset[Subject]:
    """Return the pipelines and flows whose failed runs support the alert, also when a service is to blame."""
    subjects = map(_subject_that_ran, record.evidence)
    return frozenset(subject for subject in subjects if subject.kind in ("pipeline", "flow"))


def _facts(lead: Evidence, record: AlertRecord) -> Facts:
    facts = lead.finding.facts
    affected = dict.fromkeys(name for item in (lead, *record.evidence) for name in item.finding.facts.affected)
    measured = {**facts.measured, "times it came back": record.returns} if record.returns else facts.measured
    return replace(facts, affected=tuple(affected), measured=measured)


def _resolved(record: AlertRecord, now: datetime, why: str) -> AlertChange:
    condition, title = record.alert.condition, record.alert.title
    if record.notified is not None and record.notified[0] != condition:
        condition, title = record.notified  # the notification that an outage is over must name the outage
    elif record.members > 1 and record.evidence:
        title = _title(record, _leading_evidence(record, now), over=True)
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


def _recovered_finding(item: Evidence) -> Finding:
    """Return the finding for a run that failed and completed before a notification was due."""
    finding, subject = item.finding, _subject_that_ran(item)
    key = f"recovered:{subject.ident}"
    return conditions.make_finding(
        RECOVERED,
        subject,
        f"{short(subject.name)} recovered by itself after it had failed",
        replace(finding.facts, status="complete", next_step="nothing: the run is complete"),
        key=key,
        evidence=key,
        since=item.since,
        momentary=True,
    )


def _subject_that_ran(item: Evidence) -> Subject:
    """Return the pipeline or flow that ran: the subject of the finding or, if that is a service, the one behind it."""
    subject, ident = item.finding.subject, failed_run(item.name)
    if ident is None or subject.kind in ("pipeline", "flow"):
        return subject
    if not ident.startswith(_FLOW):
        return Subject(kind="pipeline", name=ident)
    return Subject(kind="flow", name=_VARIANT.sub("", ident.removeprefix(_FLOW)))
