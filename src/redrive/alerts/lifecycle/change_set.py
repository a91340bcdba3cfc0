"""The changes that a judgement makes: to which alert each finding belongs, and what becomes of each alert.

Pure, like the state machine. `redrive.alerts.lifecycle.repository` stores the changes in one transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from redrive.alerts import conditions
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import short
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle.evidence import (
    LATER,
    RECOVERED,
    AlertRecord,
    Evidence,
    failed_run,
    is_of,
    may_return,
    members_of,
    subject_that_ran,
)
from redrive.alerts.lifecycle.state_machine import AlertChange, apply_finding, withdraw_evidence
from redrive.model.alerts import Finding


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
        count = returns(finding.key) if record is None and may_return(finding.evidence) else 0
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
        self._records = records

    def record(self, key: str) -> AlertRecord | None:
        return self.changes[key].record if key in self.changes else self._records.get(key)

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
    if finding.condition == "dead_task":  # the dead tasks of an earlier run of this flow are still open
        mine += [record for record in same if finding.subject in members_of(record)]
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


def _recovered_finding(item: Evidence) -> Finding:
    """Return the finding for a run that failed and completed before a notification was due."""
    finding, subject = item.finding, subject_that_ran(item)
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
