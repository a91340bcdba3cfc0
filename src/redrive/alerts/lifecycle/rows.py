"""Stored forms of alerts, their evidence, messages and keys; used by the repository and the outbox.

A key may contain text that a user's program chose. Its stored form has no secrets, is unique, and is the same in
messages. If keys were masked only when they are sent, two keys could become equal, and a receiver such as PagerDuty
would resolve the incident of one alert with the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from redrive.alerts.conditions import CUSTOM
from redrive.alerts.delivery.format import safe_document, safe_line
from redrive.alerts.lifecycle.evidence import AlertRecord, Evidence, Snooze, brief_facts
from redrive.dlq.insert.identity import Digests
from redrive.model.alerts import Alert, AlertStatus, Facts, Finding, Send, SendStatus, Severity, Subject, What
from redrive.store.database import Database

LONGEST = 255
"""Maximum length of a key in characters; the limit of PagerDuty."""
_READABLE_LENGTH = 230  # characters of a masked key before its digest


class StoredKeys:
    """The stored forms of keys, for one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._digests: Digests | None = None

    def of(self, key: str) -> str:
        """Return the key under which an alert is stored and sent.

        This is the key itself, unless it would be masked or cut in a message. Then it is the masked key with a digest
        of the whole key, computed with the salt of the store. The stored form of a stored form is the same.
        """
        kind, _, name = key.partition(":")
        if _is_shown_unchanged(key) and _is_shown_unchanged(name):
            return key
        digest = self._digest(key)
        readable = f"{safe_line(key, _READABLE_LENGTH)} #{digest}"
        is_kept = readable.startswith(f"{kind}:") and _is_shown_unchanged(readable)
        if is_kept and _is_shown_unchanged(readable.partition(":")[2]):
            return readable
        return f"{safe_line(kind, _READABLE_LENGTH)}:#{digest}"

    def of_name(self, name: str) -> str:
        """Return the subject of an alert that a program opens under a key: the stored form of that key."""
        return self.of(f"{CUSTOM}:{name}").removeprefix(f"{CUSTOM}:")

    def _digest(self, key: str) -> str:
        if self._digests is None:
            self._digests = Digests.of(self._database)
        return self._digests.short(f"alert key:{key}")


def as_sent_before(key: str) -> str:
    """Return the form in which older versions sent a key that they stored unmasked."""
    return safe_line(key, 1_000)


def _is_shown_unchanged(text: str) -> bool:
    return safe_line(text, LONGEST) == text


TITLE = 500
"""Maximum length of a title or a resolution, in characters."""

_PLAIN_COLUMNS = (
    *("key", "condition", "title", "since", "opened_at", "last_seen", "seen", "gone_since", "persist", "told_at"),
    *("repeats", "acknowledged_at", "acknowledged_by", "note", "resolved_at", "resolution"),
)

_COMMON = ("condition", "urgency", "persist", "group_title", "status", "error", "error_type")


def columns_of(record: AlertRecord) -> dict[str, Any]:
    """Return the columns of an alert, except for its id."""
    alert = record.alert
    return {
        **{name: getattr(alert, name) for name in _PLAIN_COLUMNS},
        "urgency": alert.urgency.value,
        "status": alert.status.value,
        "subject_kind": alert.subject.kind,
        "subject": alert.subject.name,
        "run_id": alert.facts.run_id,
        "witnesses": sorted({item.name for item in record.evidence}),
        "facts": alert.facts.document(),
        "evidence": {
            "peak": None if record.peak is None else record.peak.value,
            "members": record.members,
            "returns": record.returns,
            "snooze": None if record.snooze is None else _snooze_document(record.snooze),
            "notified": record.notified,
            "witnesses": [_evidence_document(item) for item in record.evidence if not item.is_shortened],
            "brief": _shortened_documents(record.evidence),
        },
    }


def record_of(row: Row[Any]) -> AlertRecord:
    """Return the alert of a row with its evidence."""
    kept = row.evidence
    shortened = (item for document in kept.get("brief", ()) for item in _read_shortened(row.key, document))
    evidence = (*shortened, *(_read_evidence(row.key, document) for document in kept["witnesses"]))
    peak = None if kept["peak"] is None else Severity(kept["peak"])
    snooze = None if kept.get("snooze") is None else _read_snooze(kept["snooze"])
    notified = None if kept.get("notified") is None else tuple(kept["notified"])
    members, returns = kept.get("members", 0), kept.get("returns", 0)
    return AlertRecord(alert_of(row), evidence, peak, members, returns, snooze, notified)


def alert_of(row: Row[Any]) -> Alert:
    """Return the alert of a row, as users of the API see it."""
    return Alert(
        id=row.id,
        **{name: getattr(row, name) for name in _PLAIN_COLUMNS},
        urgency=Severity(row.urgency),
        status=AlertStatus(row.status),
        subject=Subject(kind=row.subject_kind, name=row.subject),
        facts=Facts.of(row.facts),
        evidence=frozenset(row.witnesses),
    )


def send_of(row: Row[Any]) -> Send:
    """Return the message of a row."""
    same = ("id", "alert_id", "channel", "created_at", "due_at", "attempts", "error", "sent_at")
    return Send(
        **{name: getattr(row, name) for name in same},
        what=What(row.what),
        urgency=Severity(row.urgency),
        status=SendStatus(row.status),
        digest=bool(row.digest),
    )


def fit_to_store(finding: Finding, keys: StoredKeys) -> Finding:
    """Return the finding with its texts masked and cut to the length that the store allows.

    Names of pipelines, services and tables are kept, because the store looks them up by name. The subject of an alert
    that a program opened is replaced by the stored form of its key.
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


def _snooze_document(snooze: Snooze) -> dict[str, Any]:
    members = sorted([member.kind, member.name] for member in snooze.members)
    return {"urgency": snooze.urgency.value, "members": members}


def _read_snooze(document: Mapping[str, Any]) -> Snooze:
    members = frozenset(Subject(kind=kind, name=name) for kind, name in document["members"])
    return Snooze(Severity(document["urgency"]), members)


def _evidence_document(item: Evidence) -> dict[str, Any]:
    finding = item.finding
    return {
        "evidence": finding.evidence,
        "condition": finding.condition,
        "urgency": finding.urgency.value,
        "subject": [finding.subject.kind, finding.subject.name],
        "title": finding.title,
        "group_title": finding.group_title,
        "facts": finding.facts.document(),
        "persist": finding.persist,
        "since": item.since.isoformat(),
        "seen_at": item.seen_at.isoformat(),
    }


def _shortened_documents(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    """Return shortened evidence grouped by its common values, so that these are stored once for many members."""
    groups = groupby((item for item in evidence if item.is_shortened), key=lambda item: _common_values(item.finding))
    return [
        {
            **dict(zip(_COMMON, common, strict=True)),
            "members": [
                [
                    item.name,
                    *(item.finding.subject.kind, item.finding.subject.name),
                    None if item.finding.facts.run_id is None else str(item.finding.facts.run_id),
                    *(item.since.isoformat(), item.seen_at.isoformat()),
                ]
                for item in members
            ],
        }
        for common, members in groups
    ]


def _common_values(finding: Finding) -> tuple[Any, ...]:
    """Return the values of `_COMMON`."""
    facts = finding.facts
    values = (finding.condition, finding.urgency.value, finding.persist, finding.group_title)
    return (*values, facts.status, facts.error, facts.error_type)


def _read_shortened(key: str, document: Mapping[str, Any]) -> Iterator[Evidence]:
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


def _read_evidence(key: str, document: Mapping[str, Any]) -> Evidence:
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
