"""What becomes of an alert: it is found, gone, acknowledged, closed, or only grows older.

    WAITING ──► OPEN ◄──► ACKNOWLEDGED
       │          └──► RESOLVED ◄──┘
       └──► forgotten: it went away before anybody was told

Pure: every step takes what was, and gives what is now and what is to be told.
`redrive.alerts.lifecycle.repository` stores it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from redrive.alerts import conditions
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import TITLE_LENGTH, command, short
from redrive.alerts.delivery.safe_text import safe_line
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle.causes import CAUSE, LATER, is_of
from redrive.model.alerts import Alert, AlertStatus, Facts, Finding, Severity, Subject, What

LEVEL = "level:"
"""How evidence begins that is measured again and again: it may flap. All else tells of what has happened."""
RECOVERED = "recovered"
_WAITS = "service_down"
"""The condition whose rule waits for `flap_seconds` itself."""
UNTOLD = 0
"""The number of an alert that the store has not given one yet."""
NO_LONGER = "it no longer holds"

# What is not told while an alert is silenced.
SILENCED = (What.OPENED, What.ESCALATED, What.REPEATED)
"""What is not sent of an alert that is silenced."""
_WHOLE = 20  # members of one alert of which all is kept that they said

# How the ident of a run of a flow begins, and how it ends where the run was given parameters.
_FLOW = "flow/"
_VARIANT = re.compile(r"#[0-9a-f]{8}\Z")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Who speaks for an alert, and what it last said."""

    finding: Finding
    since: datetime
    seen_at: datetime

    @property
    def evidence(self) -> str:
        """Its name."""
        return self.finding.evidence

    @property
    def is_brief(self) -> bool:
        """Whether it is one of so many that not all that it said is kept."""
        return not self.finding.title

    def has_held(self, now: datetime) -> bool:
        """Whether it has been so for long enough. A level is only known to hold until it was last measured."""
        until = self.seen_at if self.evidence.startswith(LEVEL) else now
        return until - self.since >= timedelta(seconds=self.finding.persist)


@dataclass(frozen=True, slots=True)
class Snooze:
    """What an operator knew of an alert when it was snoozed; what is worse than that is sent."""

    urgency: Severity
    members: frozenset[Subject]
    """The pipelines and flows that had failed of it."""


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """An alert, and all who speak for it."""

    alert: Alert
    witnesses: tuple[Evidence, ...] = ()
    """In the order in which they last spoke."""
    peak: Severity | None = None
    """The most urgent that anybody was told it is; None while nobody was told."""
    members: int = 0
    """The most pipelines and flows that have failed of it at a time."""
    returns: int = 0
    """How often it was gone and came back within `flap_seconds`, earlier alerts of the same key included."""
    snooze: Snooze | None = None
    """Set when it is snoozed, until it is worse than it was then, or over."""
    notified: tuple[str, str] | None = None
    """The condition and the title that were last sent: what its end is told of."""

    @property
    def is_told(self) -> bool:
        """Whether anybody was told of it."""
        return self.peak is not None


@dataclass(frozen=True, slots=True)
class AlertChange:
    """What a step has come to."""

    case: AlertRecord | None
    """None: it is forgotten."""
    told: tuple[What, ...] = ()
    recovered: tuple[Evidence, ...] = ()
    """Who said that a run had failed, and was answered by a good end before anybody was told."""
    wakes: bool = False
    """It is worse than when it was snoozed, so it is sent."""


def found(case: AlertRecord | None, finding: Finding, now: datetime, *, returns: int = 0) -> AlertChange:
    """A condition holds.

    returns  how often it had come back before, where it is not open
    """
    if finding.momentary:
        return _told_once(case, finding, now)
    if case is None:
        case = replace(_begun(finding, now), returns=returns)
    elif case.alert.gone_since is not None:
        case = replace(case, returns=case.returns + 1)
    others = tuple(one for one in case.witnesses if one.evidence != finding.evidence)
    before = next((one for one in case.witnesses if one.evidence == finding.evidence), None)
    began = min(now, finding.since or now, now if before is None else before.since)
    alert = replace(case.alert, last_seen=max(now, case.alert.last_seen), seen=case.alert.seen + 1, gone_since=None)
    witnesses = (*others, Evidence(replace(finding, since=None), since=began, seen_at=now))
    return _weighed(replace(case, alert=alert, witnesses=witnesses), now)


def withdrawn(
    case: AlertRecord,
    evidence: Collection[str],
    now: datetime,
    settings: AlertSettings,
    *,
    why: str = NO_LONGER,
    recovered: Collection[str] = (),
    watched: bool = True,
) -> AlertChange:
    """Witnesses do not say so any more.

    recovered  the idents of pipelines and flows of which a run has come to a good end
    watched    whether a watch comes back to see that it stays so
    """
    gone = [one for one in case.witnesses if one.evidence in evidence]
    left = tuple(one for one in case.witnesses if one.evidence not in evidence)
    if not gone:
        return AlertChange(case)
    if case.alert.status is AlertStatus.WAITING:
        turned = tuple(one for one in gone if failed_run(one.evidence) in recovered)
        rest = _weighed(replace(case, witnesses=left), now) if left else AlertChange(None)
        return replace(rest, recovered=turned)
    if left:
        return _weighed(replace(case, witnesses=left), now)
    if _settles(case, gone, settings, watched=watched):
        alert = replace(case.alert, evidence=frozenset(), gone_since=now)
        return AlertChange(replace(case, alert=alert, witnesses=()))
    return _resolved(case, now, why)


def _settles(case: AlertRecord, gone: Collection[Evidence], settings: AlertSettings, *, watched: bool) -> bool:
    """Whether it must stay gone for a while before it is over: what may be back in a minute.

    That is every level; and where a watch comes back to see, what one good run says of a service, which others may
    still find down, and runs that fail and succeed in turn.
    """
    if settings.persist <= 0 or not all(_may_return(one.evidence) for one in gone):
        return False
    is_level = all(one.evidence.startswith(LEVEL) for one in gone)
    return is_level or (watched and (case.returns > 0 or case.alert.subject.kind == "service"))


def _settling(case: AlertRecord, settings: AlertSettings) -> float:
    """Return for how many seconds it must stay gone."""
    if case.returns == 0 or case.alert.condition == _WAITS:
        return settings.persist
    return max(settings.persist, settings.thresholds.flap_seconds)


def _may_return(evidence: str) -> bool:
    return evidence.startswith(LEVEL) or failed_run(evidence) is not None


def passed(
    case: AlertRecord, now: datetime, settings: AlertSettings, *, after_silence: bool = False, repeats: bool = True
) -> AlertChange:
    """Time passes.

    after_silence  a silence of it has ended since it was last sent
    repeats        whether it is sent again by its schedule
    """
    alert = case.alert
    if alert.gone_since is not None:
        over = now - alert.gone_since >= timedelta(seconds=_settling(case, settings))
        return _resolved(case, now, NO_LONGER) if over else AlertChange(case)
    change = _weighed(case, now)
    if change.told or change.case is None:
        return change
    alert = change.case.alert
    every = settings.repeat.get(alert.urgency) if repeats else None
    if alert.status is not AlertStatus.OPEN or alert.told_at is None:
        return change
    if not after_silence and (every is None or now - alert.told_at < timedelta(seconds=every)):
        return change
    repeated = replace(alert, told_at=now, repeats=alert.repeats + 1)
    return AlertChange(_notified(replace(change.case, alert=repeated)), (What.REPEATED,))


def held(before: AlertRecord | None, change: AlertChange) -> AlertChange:
    """The change of an alert that is silenced: it is recorded, and nobody is told before the silence is over.

    What was told before the silence is still acknowledged and resolved for those who know of it.
    """
    case = change.case
    if case is None or not any(what in SILENCED for what in change.told):
        return change
    if before is None or not before.is_told:
        return replace(
            change, case=replace(case, alert=replace(case.alert, told_at=None), peak=None, notified=None), told=()
        )
    known = before.alert
    alert = replace(case.alert, told_at=known.told_at, repeats=known.repeats)
    if not alert.is_over:
        alert = replace(
            alert,
            status=known.status,
            acknowledged_at=known.acknowledged_at,
            acknowledged_by=known.acknowledged_by,
        )
    told = tuple(what for what in change.told if what not in SILENCED)
    return replace(change, case=replace(case, alert=alert, peak=before.peak, notified=before.notified), told=told)


def acknowledged(case: AlertRecord, now: datetime, *, by: str, note: str | None) -> AlertChange:
    """Somebody is at it. Who comes second is noted; nobody is told of that."""
    alert = replace(
        case.alert,
        status=AlertStatus.ACKNOWLEDGED,
        acknowledged_at=now,
        acknowledged_by=by,
        note=case.alert.note if note is None else note,
    )
    first = case.alert.status is AlertStatus.OPEN
    # Who acknowledges an alert that is silenced knows of it, and need not be told when the silence ends.
    known = replace(case, alert=alert, peak=case.peak or alert.urgency)
    return AlertChange(known, (What.ACKNOWLEDGED,) if first else ())


def snoozed(case: AlertRecord) -> AlertChange:
    """It is sent again when the silence that goes with this is over, whoever was at it."""
    alert = case.alert
    if alert.status is not AlertStatus.WAITING:
        alert = replace(alert, status=AlertStatus.OPEN, acknowledged_at=None, acknowledged_by=None)
    return AlertChange(replace(case, alert=alert, snooze=Snooze(alert.urgency, _runs_of(case))))


def is_worse_than_snoozed(case: AlertRecord) -> bool:
    """Whether a snoozed alert is more severe than when it was snoozed, or concerns another pipeline or flow."""
    if case.snooze is None or case.alert.status is not AlertStatus.OPEN:
        return False
    return case.alert.urgency.outranks(case.snooze.urgency) or not _runs_of(case) <= case.snooze.members


def woken(change: AlertChange, now: datetime) -> AlertChange:
    """The change of an alert that is worse than when it was snoozed: its snooze ends, and it is sent."""
    assert change.case is not None
    case = replace(change.case, snooze=None)
    if any(what in SILENCED for what in change.told):
        return replace(change, case=case, wakes=True)
    alert = replace(case.alert, told_at=now, repeats=case.alert.repeats + 1)
    return replace(change, case=_notified(replace(case, alert=alert)), told=(*change.told, What.REPEATED), wakes=True)


def closed(case: AlertRecord, now: datetime, *, by: str, note: str) -> AlertChange:
    """Somebody says that it is over. Where it is found to hold once more, it is a new alert."""
    change = _resolved(case, now, f"closed by {by}: {note}")
    assert change.case is not None
    return replace(change, case=replace(change.case, alert=replace(change.case.alert, note=note)))


def ended(case: AlertRecord, now: datetime, *, by: str | None, note: str | None) -> AlertChange:
    """The program that opened it says that it is over."""
    why = "resolved by its program" if by is None else f"resolved by {by}"
    change = _resolved(case, now, why if note is None else f"{why}: {note}")
    assert change.case is not None
    said = case.alert.note if note is None else note
    return replace(change, case=replace(change.case, alert=replace(change.case.alert, note=said)))


# ── a whole judgement ─────────────────────────────────────────────────────────────────────────────────────────────────


def judged(
    cases: Mapping[str, AlertRecord],
    judgement: Judgement,
    now: datetime,
    settings: AlertSettings,
    *,
    is_known: Callable[[Finding], bool],
    returns: Callable[[str], int] = lambda key: 0,
    watched: bool = True,
) -> dict[str, AlertChange]:
    """What a judgement comes to: by their keys, the alerts that it has touched.

    cases     the alerts that are not over, by their keys
    is_known  whether people know already what a momentary finding tells
    returns   how often what is not open, by its key, has come back lately
    watched   whether a watch comes back to see what becomes of it
    """
    steps = _Steps(cases)
    lasting = _lasting(judgement, cases, now, settings)
    for finding in lasting.values():
        case = steps.case(finding.key)
        back = returns(finding.key) if case is None and _may_return(finding.evidence) else 0
        steps.add(finding.key, found(case, finding, now, returns=back))
    standing = {*lasting, *((one.key, one.evidence) for one in judgement.findings if one.momentary)}
    for key, case in cases.items():
        names = {one.evidence for one in case.witnesses}
        gone = {one for one in names if judgement.weighed(one) and (key, one) not in standing}
        if gone:
            well = {ident for ident in map(failed_run, gone) if ident is not None and _ended_well(ident, judgement)}
            steps.add(key, withdrawn(steps.case(key) or case, gone, now, settings, recovered=well, watched=watched))
    for finding in list(_momentary(judgement, cases, steps.changes.values())):
        if not is_known(finding):
            steps.add(finding.key, found(steps.case(finding.key), finding, now))
    return steps.changes


class _Steps:
    """Several steps of one alert make one change."""

    def __init__(self, cases: Mapping[str, AlertRecord]) -> None:
        self.changes: dict[str, AlertChange] = {}
        self._cases = cases

    def case(self, key: str) -> AlertRecord | None:
        return self.changes[key].case if key in self.changes else self._cases.get(key)

    def add(self, key: str, change: AlertChange) -> None:
        before = self.changes.get(key)
        if before is not None:
            told, recovered = before.told + change.told, before.recovered + change.recovered
            change = replace(change, told=told, recovered=recovered)
        self.changes[key] = change


def _lasting(
    judgement: Judgement, cases: Mapping[str, AlertRecord], now: datetime, settings: AlertSettings
) -> dict[tuple[str, str], Finding]:
    """What holds and goes on, by the alert it belongs to and who says so."""
    heard: defaultdict[str, list[tuple[AlertRecord, Evidence]]] = defaultdict(list)
    for case in cases.values():
        for witness in case.witnesses:
            heard[witness.evidence].append((case, witness))
    # The most urgent first: who is told that it is a P1 need not be told first that it is a P3.
    lasting = sorted((one for one in judgement.findings if not one.momentary), key=lambda one: one.urgency.value)
    found: dict[tuple[str, str], Finding] = {}
    for finding in lasting:
        placed = _placed(finding, heard[finding.evidence], cases, now, settings)
        found.setdefault((placed.key, placed.evidence), placed)
    return found


def _placed(
    finding: Finding,
    heard: Collection[tuple[AlertRecord, Evidence]],
    cases: Mapping[str, AlertRecord],
    now: datetime,
    settings: AlertSettings,
) -> Finding:
    """The finding, at the alert that its witness speaks for.

    A run that fails again and again may blame now this service, now that one. It has failed for as long as it has,
    whomever it blames. And an alert that people know of stays the one in which they hear of it: else each change of
    mind would end one alert and open another.

    heard  what the same witness has said before, and of which alerts
    """
    if any(case.alert.key == finding.key for case, _ in heard):
        return finding
    known = next((case.alert.key for case, _ in heard if case.is_told and not _leaves(finding, case)), None)
    began = min((witness.since for _, witness in heard), default=finding.since)
    if began is not None and finding.since is not None:
        began = min(began, finding.since)
    return replace(finding, key=known or _joined(finding, heard, cases, now, settings), since=began)


def _leaves(finding: Finding, case: AlertRecord) -> bool:
    """Whether a run that fails of something else now is to be told of apart from those it had failed with."""
    return finding.group is not None and len(case.witnesses) > 1 and not is_of(case.alert.key, finding.group)


def _joined(
    finding: Finding,
    heard: Collection[tuple[AlertRecord, Evidence]],
    cases: Mapping[str, AlertRecord],
    now: datetime,
    settings: AlertSettings,
) -> str:
    """The key of the alert that a finding belongs to: its own where people know that one; else the one of its cause.

    What is seen again after `cause_window` may be another cause with the same words, so people are told anew.
    """
    own, group = cases.get(finding.key), finding.group
    if group is None or (own is not None and own.is_told):
        return finding.key
    same = [case for case in cases.values() if is_of(case.alert.key, group)]
    mine = [case for case, _ in heard if is_of(case.alert.key, group)]
    if finding.condition == "dead_task":  # of another run of this flow: the tasks of the first one still wait
        mine += [case for case in same if finding.subject in _members(case)]
    if mine:
        return mine[0].alert.key
    last = max(same, key=lambda case: case.alert.last_seen, default=None)
    if last is not None and now - last.alert.last_seen <= timedelta(seconds=settings.cause_window):
        return last.alert.key
    return group if group not in cases else f"{group}{LATER}{now:%Y%m%dT%H%M%S}"


def _ended_well(ident: str, judgement: Judgement) -> bool:
    """Whether a run of it was looked at, and has not failed."""
    evidence = f"run:{ident}:failed"
    return judgement.weighed(evidence) and not any(
        one.evidence == evidence or (one.condition == "gate_abort" and one.evidence == f"run:{ident}:gate")
        for one in judgement.findings
    )


def _momentary(
    judgement: Judgement, cases: Mapping[str, AlertRecord], changes: Iterable[AlertChange]
) -> Iterator[Finding]:
    """What is told once. Of a run that recovered, one message: the rule's own, or what a waiting alert turned into;
    and none where people know that it had failed, for they are told that this is over."""
    told = {failed_run(one.evidence) for case in cases.values() if case.is_told for one in case.witnesses}
    judged = {ident for ident in map(failed_run, judgement.judged) if ident is not None}
    for finding in judgement.findings:
        if finding.momentary and (finding.condition != RECOVERED or told.isdisjoint(judged)):
            yield finding
    if any(one.condition == RECOVERED for one in judgement.findings):
        told |= judged
    for witness in (one for change in changes for one in change.recovered):
        if failed_run(witness.evidence) not in told:
            told.add(failed_run(witness.evidence))
            yield _recovered(witness)


def failed_run(evidence: str) -> str | None:
    """The ident of the pipeline or flow of which this says that its run failed or was lost."""
    if evidence.startswith("run:") and evidence.endswith(":failed"):
        return evidence.removeprefix("run:").removesuffix(":failed")
    return evidence.removeprefix("level:lost:") if evidence.startswith("level:lost:") else None


# ── the steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _begun(finding: Finding, now: datetime) -> AlertRecord:
    return AlertRecord(
        Alert(
            id=UNTOLD,
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


def _weighed(case: AlertRecord, now: datetime) -> AlertChange:
    """What it is now by what its witnesses say, and whether that is to be told."""
    if not case.witnesses:  # a person has taken them out of the store
        return AlertChange(case)
    lead = _lead(case, now)
    began = min(one.since for one in case.witnesses)
    case = replace(case, members=max(case.members, len(_members(case))), witnesses=_bounded(case))
    alert = replace(
        case.alert,
        condition=lead.finding.condition,
        urgency=lead.finding.urgency,
        subject=lead.finding.subject,
        title=_title(case, lead),
        facts=_facts(lead, case),
        persist=lead.finding.persist,
        evidence=frozenset(one.evidence for one in case.witnesses),
        since=min(case.alert.since, began) if case.is_told else began,
    )
    if case.peak is None:
        if not lead.has_held(now):
            return AlertChange(replace(case, alert=alert))
        opened = replace(alert, status=AlertStatus.OPEN, opened_at=alert.opened_at or now, told_at=now)
        return AlertChange(_notified(replace(case, alert=opened, peak=alert.urgency)), (What.OPENED,))
    # Once told that it is a P1, nobody is told so again because it was less for a while: it is repeated as what it is.
    if not alert.urgency.outranks(case.peak):
        return AlertChange(replace(case, alert=alert))
    escalated = replace(alert, status=AlertStatus.OPEN, told_at=now, acknowledged_at=None, acknowledged_by=None)
    return AlertChange(_notified(replace(case, alert=escalated, peak=alert.urgency)), (What.ESCALATED,))


def _notified(case: AlertRecord) -> AlertRecord:
    return replace(case, notified=(case.alert.condition, case.alert.title))


def _lead(case: AlertRecord, now: datetime) -> Evidence:
    """Who is believed: of those for whom it has held long enough, the most urgent one, and who last spoke of these."""
    heard = [one for one in case.witnesses if one.has_held(now)] or case.witnesses
    return min(reversed(heard), key=lambda one: one.finding.urgency.value)


def _title(case: AlertRecord, lead: Evidence, *, over: bool = False) -> str:
    """What it says of all that failed of one cause; of one alone, what that one says."""
    said = lead.finding.group_title
    if said is None or case.members < 2 or not case.alert.key.startswith(CAUSE):
        return lead.finding.title
    members = _members(case)
    kinds = sorted({one.kind for one in members}, reverse=True)
    left = "" if over or len(members) == case.members else f"{len(members):,} of "
    return safe_line(f"{left}{case.members:,} {' and '.join(f'{kind}s' for kind in kinds)} {said}", TITLE_LENGTH)


def _bounded(case: AlertRecord) -> tuple[Evidence, ...]:
    """All of them, but all that was said only of those who spoke last: an alert of thousands is written again with
    every one that joins or leaves."""
    if len(case.witnesses) <= _WHOLE or not case.alert.key.startswith(CAUSE):
        return case.witnesses
    older, newer = case.witnesses[:-_WHOLE], case.witnesses[-_WHOLE:]
    return (*(one if one.finding.group_title is None else _brief(one) for one in older), *newer)


def _brief(witness: Evidence) -> Evidence:
    if witness.is_brief:
        return witness
    facts = brief_facts(witness.finding, witness.finding.facts.run_id)
    return replace(witness, finding=replace(witness.finding, title="", facts=facts, group=None))


def brief_facts(finding: Finding, run_id: UUID | None) -> Facts:
    """What is still said of one of many that failed of the same."""
    facts, name = finding.facts, finding.subject.name
    look = ("alerts", "ls") if run_id is None else ("runs", "show", str(run_id)[:8])
    return Facts(
        status=facts.status,
        run_id=run_id,
        error=facts.error,
        error_type=facts.error_type,
        affected=(name,),
        commands=(command(*look),),
    )


def _members(case: AlertRecord) -> set[Subject]:
    """The pipelines and flows that speak for it."""
    return {one.finding.subject for one in case.witnesses}


def _runs_of(case: AlertRecord) -> frozenset[Subject]:
    """The pipelines and flows of which runs have failed of it, of a service that is to blame as well."""
    return frozenset(one for one in map(_runs, case.witnesses) if one.kind in ("pipeline", "flow"))


def _facts(lead: Evidence, case: AlertRecord) -> Facts:
    facts = lead.finding.facts
    affected = dict.fromkeys(name for one in (lead, *case.witnesses) for name in one.finding.facts.affected)
    measured = {**facts.measured, "times it came back": case.returns} if case.returns else facts.measured
    return replace(facts, affected=tuple(affected), measured=measured)


def _resolved(case: AlertRecord, now: datetime, why: str) -> AlertChange:
    condition, title = case.alert.condition, case.alert.title
    if case.notified is not None and case.notified[0] != condition:
        condition, title = case.notified  # who was told of an outage is told that the outage is over
    elif case.members > 1 and case.witnesses:
        title = _title(case, _lead(case, now), over=True)
    alert = replace(
        case.alert,
        condition=condition,
        title=title,
        status=AlertStatus.RESOLVED,
        resolved_at=now,
        resolution=why,
        evidence=frozenset(),
        gone_since=None,
    )
    return AlertChange(replace(case, alert=alert, witnesses=(), snooze=None), (What.RESOLVED,) if case.is_told else ())


def _told_once(case: AlertRecord | None, finding: Finding, now: datetime) -> AlertChange:
    if case is not None and case.is_told:
        return _resolved(replace(case, alert=replace(case.alert, facts=finding.facts)), now, finding.title)
    begun = _begun(finding, now).alert
    alert = replace(
        begun,
        id=UNTOLD if case is None else case.alert.id,
        status=AlertStatus.RESOLVED,
        seen=1 if case is None else case.alert.seen + 1,
        opened_at=now,
        told_at=now,
        resolved_at=now,
        resolution="it was over when it was found",
    )
    return AlertChange(AlertRecord(alert, peak=alert.urgency), (What.OPENED,))


def _recovered(witness: Evidence) -> Finding:
    """A run failed and is complete now; nobody was told that it had failed, and nobody had to be."""
    finding, subject = witness.finding, _runs(witness)
    key = f"recovered:{subject.ident}"
    return conditions.found(
        RECOVERED,
        subject,
        f"{short(subject.name)} recovered by itself after it had failed",
        replace(finding.facts, status="complete", next_step="nothing: the run is complete"),
        key=key,
        evidence=key,
        since=witness.since,
        momentary=True,
    )


def _runs(witness: Evidence) -> Subject:
    """What has run: the finding's own subject, or, where a service was to blame, the one that said so."""
    subject, ident = witness.finding.subject, failed_run(witness.evidence)
    if ident is None or subject.kind in ("pipeline", "flow"):
        return subject
    if not ident.startswith(_FLOW):
        return Subject(kind="pipeline", name=ident)
    return Subject(kind="flow", name=_VARIANT.sub("", ident.removeprefix(_FLOW)))
