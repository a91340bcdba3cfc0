"""The values of alerts: findings, alerts, silences, and the messages about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from redrive._internal.masking import mask


class Severity(StrEnum):
    """How soon an operator is needed."""

    P1 = "P1"
    """Now."""
    P2 = "P2"
    """Within an hour."""
    P3 = "P3"
    """Within a day."""

    def outranks(self, other: Severity) -> bool:
        """Return whether this severity is more urgent than the other."""
        return self.value < other.value


class AlertStatus(StrEnum):
    """The status of an alert."""

    WAITING = "waiting"
    """The condition holds, but not for long enough to notify."""
    OPEN = "open"
    """A notification was sent, or is about to be."""
    ACKNOWLEDGED = "acknowledged"
    """An operator is working on it: no reminders are sent."""
    RESOLVED = "resolved"
    """The condition no longer holds."""


SubjectKind = Literal["pipeline", "flow", "service", "table", "slot", "consumer", "store", "monitor", "custom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an alert is about."""

    kind: SubjectKind
    """`pipeline`, `flow`, `service` …"""
    name: str

    @property
    def ident(self) -> str:
        """The name in keys and evidence: a flow and a pipeline may have the same name."""
        return f"flow/{self.name}" if self.kind == "flow" else self.name

    def __str__(self) -> str:
        name = mask(self.name)
        return name if self.kind in ("pipeline", "flow") else f"{self.kind} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an operator needs to act. A fact that is not known is None, and is left out of messages."""

    status: str | None = None
    """Status of the run: `failed`, `held` …"""
    run_id: UUID | None = None
    error: str | None = None
    error_type: str | None = None
    """The class of the exception, or the verdict's kind."""
    detail: str | None = None
    """All lines of the error, if it has more than one."""
    impact: str | None = None
    """Which data is stale since when, and which SLA is at stake."""
    sla: datetime | None = None
    rows_done: int | None = None
    """Rows that are in the sink."""
    rows_total: int | None = None
    """Rows that were read."""
    source_share: float | None = None
    """The share of the source that was read, if its size is known and the run is not complete."""
    checkpoint: str | None = None
    letters: int | None = None
    """Records that were quarantined."""
    rate: float | None = None
    """The share of rejected rows."""
    cause: str | None = None
    """What most of the letters have in common."""
    seconds: float | None = None
    usual_seconds: float | None = None
    """How long such a run usually takes."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """The figures that the rule compared, and the threshold: {"5xx for": 312.0, "threshold": 300.0}."""
    affected: tuple[str, ...] = ()
    """The pipelines and flows that are affected."""
    commands: tuple[str, ...] = ()
    """Commands that show more, or fix it; the most useful first."""
    sql: str | None = None
    """A query for the same facts in the database."""
    next_step: str | None = None
    """What redrive does next, or that it waits for an operator."""
    named: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further facts by their names, as a program gave them to `store.alerts.open`."""

    trace_id: str | None = None
    """The OpenTelemetry trace of the run, or of the program that opened the alert."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the run, those that `[alerts] environment` names."""

    def document(self) -> dict[str, Any]:
        """Return the known facts as a JSON document."""
        document = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in document.items() if value not in (None, [], {})}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Facts:
        """Return the facts of what `document` returned."""
        names = {field.name for field in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in document.items() if name in names}
        if "run_id" in values:
            values["run_id"] = UUID(values["run_id"])
        if "sla" in values:
            values["sla"] = datetime.fromisoformat(values["sla"])
        for name in ("affected", "commands"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


FACTS_IN_LINKS = (
    "status",
    "error_type",
    "cause",
    "sla",
    "rows_done",
    "rows_total",
    "letters",
    "checkpoint",
    "trace_id",
)
"""Facts that a link template may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition that holds, as a rule found it; it becomes an alert in the store."""

    key: str
    """The cause: it has at most one open alert, whichever process finds it."""
    condition: str
    """The rule, such as `sla_missed`; also the name under which its threshold is set."""
    urgency: Severity
    subject: Subject
    title: str
    """One line that describes the problem, with its figures; never "an error occurred"."""
    facts: Facts = field(default_factory=Facts)
    evidence: str
    """The source of the finding, such as `run:vendor` or `level`. The alert resolves when no evidence is left."""
    since: datetime | None = None
    """When it began, if known; else when it was first found."""
    persist: float = 0.0
    """Seconds for which it must hold before a notification is sent."""
    momentary: bool = False
    """Whether it is over already (a run that recovered): notified once, and resolved at once."""
    group: str | None = None
    """The key of the alert that all runs share which fail of the same cause; None if there is none."""
    group_title: str | None = None
    """The title of the shared alert, after the number of runs: `have failed: …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A finding in the store, and its state."""

    id: int
    key: str
    """The cause: it has at most one open alert."""
    condition: str
    """The rule that found it."""
    urgency: Severity
    status: AlertStatus
    subject: Subject
    title: str
    """One line that describes the problem."""
    facts: Facts
    """What an operator needs to act."""
    since: datetime
    """When the condition began to hold."""
    opened_at: datetime | None = None
    """When it had held for long enough."""
    last_seen: datetime
    seen: int = 1
    """Number of times it was found."""
    evidence: frozenset[str] = frozenset()
    """The sources that report it; the alert resolves when none is left."""
    gone_since: datetime | None = None
    """Since when no evidence is left, while that has not lasted long enough to resolve it."""
    persist: float = 0.0
    """Seconds for which it must hold before a notification is sent."""
    told_at: datetime | None = None
    """When a notification was last sent or queued."""
    repeats: int = 0
    """Number of reminders."""
    acknowledged_at: datetime | None = None
    """When an operator acknowledged it."""
    acknowledged_by: str | None = None
    """Who acknowledged it."""
    note: str | None = None
    """The note of the operator who acknowledged or closed it."""
    resolved_at: datetime | None = None
    """When it was resolved."""
    resolution: str | None = None
    """Why it was resolved."""

    @property
    def is_over(self) -> bool:
        """Return whether the alert is resolved."""
        return self.status is AlertStatus.RESOLVED

    def document(self) -> dict[str, Any]:
        """Return the alert as a JSON document; secrets in names are masked."""
        document = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {
            **document,
            "key": mask(self.key),
            "evidence": [mask(source) for source in sorted(self.evidence)],
            "facts": self.facts.document(),
            "subject": {"kind": self.subject.kind, "name": mask(self.subject.name)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFilter:
    """Which alerts are selected: every filter that is set must match, by any of its names."""

    keys: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()

    def matches(self, alert: Alert) -> bool:
        """Return whether the filter selects this alert."""
        return (
            (not self.keys or alert.key in self.keys)
            and (not self.subjects or self._is_about(alert, self.subjects))
            and (not self.conditions or alert.condition in self.conditions)
            and (not self.pipelines or self._is_about_pipelines(alert))
        )

    def _is_about_pipelines(self, alert: Alert) -> bool:
        """Return whether no other pipeline or flow is affected: a service that fails may affect several."""
        if alert.subject.kind in ("pipeline", "flow"):
            return self._is_about(alert, self.pipelines)
        return bool(alert.facts.affected) and set(alert.facts.affected) <= set(self.pipelines)

    @staticmethod
    def _is_about(alert: Alert, names: tuple[str, ...]) -> bool:
        """Return whether it is about these alone: several pipelines that fail of one cause share an alert."""
        if alert.subject.kind in ("pipeline", "flow") and len(alert.facts.affected) > 1:
            return set(alert.facts.affected) <= set(names)
        return alert.subject.name in names

    def __str__(self) -> str:
        named = {"alert": self.keys, "subject": self.subjects, "condition": self.conditions, "pipeline": self.pipelines}
        parts = [f"{name} {mask(' or '.join(names))}" for name, names in named.items() if names]
        return ", ".join(parts) or "all alerts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Alerts that are not sent for a while, as an operator decided."""

    id: int
    only: AlertFilter
    """The selected alerts."""
    reason: str
    created_by: str
    created_at: datetime
    until: datetime
    """When it ends, or was ended."""
    ended_by: str | None = None
    """Who ended it early; `redrive` where a snooze ended with its alert, or because the alert became worse."""
    alert_id: int | None = None
    """The one alert that is snoozed; None where this is for all alerts that match."""

    def covers(self, alert: Alert) -> bool:
        """Return whether this silences the alert. A snooze is about one alert, not about later ones of its key."""
        return self.only.matches(alert) if self.alert_id is None else self.alert_id == alert.id

    @property
    def about(self) -> str:
        """Return a description of the alerts that it matches."""
        if self.alert_id is None:
            return str(self.only)
        return " ".join([f"alert {self.alert_id}", *(f"({mask(key)})" for key in self.only.keys)])

    def document(self) -> dict[str, Any]:
        """Return the silence as a JSON document."""
        names = {
            "key": self.only.keys,
            "subject": self.only.subjects,
            "condition": self.only.conditions,
            "pipeline": self.only.pipelines,
        }
        document = {field.name: _plain(getattr(self, field.name)) for field in fields(self) if field.name != "only"}
        return {**document, **{name: mask(values[0]) if values else None for name, values in names.items()}}


class What(StrEnum):
    """What a message reports of an alert."""

    OPENED = "opened"
    """It is new."""
    ESCALATED = "escalated"
    """It has become more urgent."""
    REPEATED = "repeated"
    """A reminder: it is still open, and not acknowledged."""
    RESOLVED = "resolved"
    """It is resolved."""
    ACKNOWLEDGED = "acknowledged"
    """It is acknowledged; only for channels that keep state of their own, as PagerDuty does."""
    TEST = "test"
    """A test of the channels; there is no alert."""


class SendStatus(StrEnum):
    """The status of a message to one channel."""

    WAITING = "waiting"
    """To be sent, or retried."""
    SENT = "sent"
    """The channel accepted it."""
    FAILED = "failed"
    """Its attempts are exhausted; `redrive alerts ls` shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One message to one channel, kept until it is delivered."""

    id: int
    alert_id: int
    channel: str
    """Its name in `redrive.toml`: the address, which may be a secret, is not stored."""
    what: What
    """What it reports of the alert."""
    urgency: Severity
    status: SendStatus
    created_at: datetime
    """When it was queued."""
    due_at: datetime
    """When it may be sent: later than `created_at` in quiet hours, and after a failed attempt."""
    digest: bool = False
    """Whether it waits for the morning, and is sent with all others that do."""
    attempts: int = 0
    error: str | None = None
    """Why the last attempt failed, secrets masked."""
    sent_at: datetime | None = None
    """When the channel accepted it."""

    def document(self) -> dict[str, Any]:
        """Return the message as a JSON document."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple | frozenset | set):
        return sorted(value) if isinstance(value, frozenset | set) else list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, UUID | StrEnum) else value
