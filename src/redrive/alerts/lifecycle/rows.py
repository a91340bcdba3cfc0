"""Alerts and messages as the store has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from redrive.alerts.custom import CUSTOM
from redrive.alerts.delivery.safe_text import safe_document, safe_line
from redrive.alerts.lifecycle.keys import StoredKeys
from redrive.alerts.lifecycle.state_machine import AlertRecord, Evidence, Snooze, brief_facts
from redrive.model.alerts import Alert, AlertStatus, Facts, Finding, Send, SendStatus, Severity, Subject, What

TITLE = 500
"""Characters of the one line that says what is wrong, or why it is over."""

_AS_THEY_ARE = (
    *("key", "condition", "title", "since", "opened_at", "last_seen", "seen", "gone_since", "persist", "told_at"),
    *("repeats", "acknowledged_at", "acknowledged_by", "note", "resolved_at", "resolution"),
)

_COMMON = ("condition", "urgency", "persist", "group_title", "status", "error", "error_type")


def columns_of(case: AlertRecord) -> dict[str, Any]:
    """The row of an alert, but for its number."""
    alert = case.alert
    return {
        **{name: getattr(alert, name) for name in _AS_THEY_ARE},
        "urgency": alert.urgency.value,
        "status": alert.status.value,
        "subject_kind": alert.subject.kind,
        "subject": alert.subject.name,
        "run_id": alert.facts.run_id,
        "witnesses": sorted({one.evidence for one in case.witnesses}),
        "facts": alert.facts.document(),
        "evidence": {
            "peak": None if case.peak is None else case.peak.value,
            "members": case.members,
            "returns": case.returns,
            "snooze": None if case.snooze is None else _document_of_snooze(case.snooze),
            "notified": case.notified,
            "witnesses": [_document_of(witness) for witness in case.witnesses if not witness.is_brief],
            "brief": _brief_of(case.witnesses),
        },
    }


def case_of(row: Row[Any]) -> AlertRecord:
    """An alert with all that speaks for it."""
    kept = row.evidence
    brief = (one for document in kept.get("brief", ()) for one in _briefly(row.key, document))
    witnesses = (*brief, *(_witness_of(row.key, document) for document in kept["witnesses"]))
    peak = None if kept["peak"] is None else Severity(kept["peak"])
    snooze = None if kept.get("snooze") is None else _snooze_of(kept["snooze"])
    notified = None if kept.get("notified") is None else tuple(kept["notified"])
    members, returns = kept.get("members", 0), kept.get("returns", 0)
    return AlertRecord(alert_of(row), witnesses, peak, members, returns, snooze, notified)


def alert_of(row: Row[Any]) -> Alert:
    """An alert as people see it."""
    return Alert(
        id=row.id,
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        urgency=Severity(row.urgency),
        status=AlertStatus(row.status),
        subject=Subject(kind=row.subject_kind, name=row.subject),
        facts=Facts.of(row.facts),
        evidence=frozenset(row.witnesses),
    )


def send_of(row: Row[Any]) -> Send:
    """A message."""
    same = ("id", "alert_id", "channel", "created_at", "due_at", "attempts", "error", "sent_at")
    return Send(
        **{name: getattr(row, name) for name in same},
        what=What(row.what),
        urgency=Severity(row.urgency),
        status=SendStatus(row.status),
        digest=bool(row.digest),
    )


def fit_to_store(finding: Finding, keys: StoredKeys) -> Finding:
    """The finding, all that others said safe to show: no secrets, and nothing overlong.

    Names of pipelines, services and tables stay as they are: by them the store knows what it has about each. What a
    program has named itself is known by the stored form of its key.
    """
    key, subject, evidence = keys.of(finding.key), finding.subject, finding.evidence
    if finding.condition == CUSTOM:
        evidence = key
        if subject.kind == CUSTOM:
            subject = Subject(kind="custom", name=keys.of_name(subject.name))
    return replace(
        finding,
        key=key,
        subject=subject,
        evidence=evidence,
        title=safe_line(finding.title, TITLE),
        group_title=None if finding.group_title is None else safe_line(finding.group_title, TITLE),
        facts=Facts.of(safe_document(finding.facts.document())),
    )


def _document_of_snooze(snooze: Snooze) -> dict[str, Any]:
    return {"urgency": snooze.urgency.value, "members": sorted([one.kind, one.name] for one in snooze.members)}


def _snooze_of(document: Mapping[str, Any]) -> Snooze:
    members = frozenset(Subject(kind=kind, name=name) for kind, name in document["members"])
    return Snooze(Severity(document["urgency"]), members)


def _document_of(witness: Evidence) -> dict[str, Any]:
    finding = witness.finding
    return {
        "evidence": finding.evidence,
        "condition": finding.condition,
        "urgency": finding.urgency.value,
        "subject": [finding.subject.kind, finding.subject.name],
        "title": finding.title,
        "group_title": finding.group_title,
        "facts": finding.facts.document(),
        "persist": finding.persist,
        "since": witness.since.isoformat(),
        "seen_at": witness.seen_at.isoformat(),
    }


def _brief_of(witnesses: Iterable[Evidence]) -> list[dict[str, Any]]:
    """What many members of one alert have in common, once; and of each what it has alone."""
    brief = groupby((one for one in witnesses if one.is_brief), key=lambda one: _common(one.finding))
    return [
        {
            **dict(zip(_COMMON, common, strict=True)),
            "members": [
                [
                    one.evidence,
                    *(one.finding.subject.kind, one.finding.subject.name),
                    None if one.finding.facts.run_id is None else str(one.finding.facts.run_id),
                    *(one.since.isoformat(), one.seen_at.isoformat()),
                ]
                for one in members
            ],
        }
        for common, members in brief
    ]


def _common(finding: Finding) -> tuple[Any, ...]:
    facts = finding.facts
    said = (finding.condition, finding.urgency.value, finding.persist, finding.group_title)
    return (*said, facts.status, facts.error, facts.error_type)


def _briefly(key: str, document: Mapping[str, Any]) -> Iterator[Evidence]:
    condition, urgency, persist, group_title, status, error, error_type = (document[name] for name in _COMMON)
    for evidence, kind, name, run_id, since, seen_at in document["members"]:
        finding = Finding(
            key=key,
            condition=condition,
            urgency=Severity(urgency),
            subject=Subject(kind=kind, name=name),
            title="",
            facts=Facts(status=status, error=error, error_type=error_type),
            evidence=evidence,
            persist=persist,
            group_title=group_title,
        )
        facts = brief_facts(finding, None if run_id is None else UUID(run_id))
        yield Evidence(replace(finding, facts=facts), datetime.fromisoformat(since), datetime.fromisoformat(seen_at))


def _witness_of(key: str, document: Mapping[str, Any]) -> Evidence:
    kind, name = document["subject"]
    return Evidence(
        Finding(
            key=key,
            condition=document["condition"],
            urgency=Severity(document["urgency"]),
            subject=Subject(kind=kind, name=name),
            title=document["title"],
            group_title=document.get("group_title"),
            facts=Facts.of(document["facts"]),
            evidence=document["evidence"],
            persist=document["persist"],
        ),
        since=datetime.fromisoformat(document["since"]),
        seen_at=datetime.fromisoformat(document["seen_at"]),
    )
