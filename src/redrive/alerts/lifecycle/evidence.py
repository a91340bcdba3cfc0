"""Evidence of an alert: the findings that support it, their shared cause, and the text that follows from them.

Runs that fail with the same cause within `cause_window` share one alert and are its members. Two errors have the same
cause if their texts differ only in values such as ids and times, and if they name the same server, database and user.
For an error that names none of these, the database that the run writes to decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from uuid import UUID

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import TITLE_LENGTH, command, safe_line
from redrive.dlq.fingerprint import template
from redrive.model.alerts import Alert, Facts, Finding, Severity, Subject
from redrive.model.calls import Kind

LEVEL = "level:"
"""Prefix of evidence that is measured at every check and may flap. All other evidence reports an event."""
RECOVERED = "recovered"
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
        """Return whether title and most facts were dropped because the alert has many members."""
        return not self.finding.title

    def has_lasted(self, now: datetime) -> bool:
        """Return whether the condition has lasted for its `persist` seconds; a level, until its last measurement."""
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
    """The condition and title of the last notification; the resolve notification has the same."""

    @property
    def is_notified(self) -> bool:
        """Return whether a notification about the alert was sent."""
        return self.peak is not None


def may_return(evidence: str) -> bool:
    return evidence.startswith(LEVEL) or failed_run(evidence) is not None


def failed_run(evidence: str) -> str | None:
    """Return the ident of the pipeline or flow whose run failed or was lost; None for other evidence."""
    if evidence.startswith("run:") and evidence.endswith(":failed"):
        return evidence.removeprefix("run:").removesuffix(":failed")
    return evidence.removeprefix("level:lost:") if evidence.startswith("level:lost:") else None


def leading_evidence(record: AlertRecord, now: datetime) -> Evidence:
    """Return the evidence that describes the alert: the most severe that has lasted long enough, then the latest."""
    lasting = [item for item in record.evidence if item.has_lasted(now)] or record.evidence
    return min(reversed(lasting), key=lambda item: item.finding.urgency.value)


def title_of(record: AlertRecord, lead: Evidence, *, over: bool = False) -> str:
    """Return the title: a summary for several members of one cause, else the title of the leading evidence."""
    group_title = lead.finding.group_title
    if group_title is None or record.members < 2 or not record.alert.key.startswith(CAUSE):
        return lead.finding.title
    members = members_of(record)
    kinds = sorted({member.kind for member in members}, reverse=True)
    left = "" if over or len(members) == record.members else f"{len(members):,} of "
    return safe_line(
        f"{left}{record.members:,} {' and '.join(f'{kind}s' for kind in kinds)} {group_title}", TITLE_LENGTH
    )


def shorten_old_evidence(record: AlertRecord) -> tuple[Evidence, ...]:
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


def members_of(record: AlertRecord) -> set[Subject]:
    """Return the subjects of the evidence."""
    return {item.finding.subject for item in record.evidence}


def failed_subjects(record: AlertRecord) -> frozenset[Subject]:
    """Return the pipelines and flows whose failed runs support the alert, also when a service is to blame."""
    subjects = map(subject_that_ran, record.evidence)
    return frozenset(subject for subject in subjects if subject.kind in ("pipeline", "flow"))


def merged_facts(lead: Evidence, record: AlertRecord) -> Facts:
    facts = lead.finding.facts
    affected = dict.fromkeys(name for item in (lead, *record.evidence) for name in item.finding.facts.affected)
    measured = {**facts.measured, "times it came back": record.returns} if record.returns else facts.measured
    return replace(facts, affected=tuple(affected), measured=measured)


def subject_that_ran(item: Evidence) -> Subject:
    """Return the pipeline or flow that ran: the subject of the finding or, if that is a service, the one behind it."""
    subject, ident = item.finding.subject, failed_run(item.name)
    if ident is None or subject.kind in ("pipeline", "flow"):
        return subject
    if not ident.startswith(_FLOW):
        return Subject(kind="pipeline", name=ident)
    return Subject(kind="flow", name=_VARIANT.sub("", ident.removeprefix(_FLOW)))


# ── shared causes ─────────────────────────────────────────────────────────────────────────────────────────────────────

CAUSE = "cause:"
"""Prefix of the key of an alert that several runs may share."""
LATER = "@"
"""Separates the cause from a time in the key of a second alert of this cause, opened while an older alert is open."""

_MAX_LENGTH = 2_000
# A quoted name after one of these words: `for user "etl"`, `server at "10.0.0.5"`, `host='wh'`.
_QUOTED_NAME = re.compile(
    r"""\b(?:account|at|broker|bucket|catalog|cluster|database|db|endpoint|host|hostname|login|name|on|principal|role
    |server|to|user|warehouse)[ =:]{1,3}["'`]([^"'`]{1,200})["'`]""",
    re.VERBOSE | re.IGNORECASE,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://([^\s/?#'\"]{1,200})", re.IGNORECASE)
_PORT = re.compile(r"(?<![\w.-])([\w-]{1,63}(?:\.[\w-]{1,63}){1,8}):\d{2,5}(?!\w)")
# A full disk has the same cause for every file, so paths in such errors are replaced.
_PATH = re.compile(r"""["']?(?<![\w/])/[^\s"':]{1,1000}["']?""")


def shared_cause(
    error: str, *, kind: str | None, subject: Subject, settings: AlertSettings, target: str | None = None
) -> str | None:
    """Return the key of the alert for all runs that fail with this error; None if the error has no text.

    Args:
        error: The text of the error.
        kind: The kind of the verdict.
        subject: The pipeline or flow. Subjects with different routes never share an alert.
        settings: The alert settings.
        target: What the run writes to, such as `orders in postgresql://etl@warehouse/prod`.
    """
    text = error[:_MAX_LENGTH].replace(subject.name, "<name>") if len(subject.name) > 1 else error[:_MAX_LENGTH]
    if not text.strip():
        return None
    if kind == Kind.RESOURCE:
        text = _PATH.sub("<path>", text)
    places = sorted({*_QUOTED_NAME.findall(text), *_ADDRESS.findall(text), *_PORT.findall(text)})
    if not places and target is not None:
        places = [target.partition(" in ")[2]]
    parts = [template(text), *places, _routes(subject, settings)]
    digest = blake2b("\0".join(parts).encode(errors="backslashreplace"), digest_size=8)
    return f"{CAUSE}{digest.hexdigest()}"


def is_of(key: str, group: str) -> bool:
    """Return whether a key belongs to the first or a later alert of a cause."""
    return key.partition(LATER)[0] == group if key.startswith(CAUSE) else False


def _routes(subject: Subject, settings: AlertSettings) -> str:
    own = settings.pipelines.get(subject.name)
    return "" if own is None else repr(sorted(own.routes.items()))
