"""The values of an alert: what was found, what became of it, and what is told to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from redrive._internal.masking import mask


class Severity(StrEnum):
    """How soon a person is needed."""

    P1 = "P1"
    """Now."""
    P2 = "P2"
    """Within an hour."""
    P3 = "P3"
    """Within a day."""

    def outranks(self, other: Severity) -> bool:
        """Whether it is the more urgent of the two."""
        return self.value < other.value


class AlertStatus(StrEnum):
    """Where an alert stands."""

    WAITING = "waiting"
    """The condition holds, but not yet for long enough to tell anybody."""
    OPEN = "open"
    """People were told, or are about to be."""
    ACKNOWLEDGED = "acknowledged"
    """A person is at it: it is not repeated any more."""
    RESOLVED = "resolved"
    """It is over."""


SubjectKind = Literal["pipeline", "flow", "service", "table", "slot", "consumer", "store", "monitor", "custom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an alert is about."""

    kind: SubjectKind
    """`pipeline`, `flow`, `service` …"""
    name: str

    @property
    def ident(self) -> str:
        """Its name in keys and evidence: a flow and a pipeline may have the same name."""
        return f"flow/{self.name}" if self.kind == "flow" else self.name

    def __str__(self) -> str:
        name = mask(self.name)
        return name if self.kind in ("pipeline", "flow") else f"{self.kind} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a person needs to act. Whatever is not known is None, and then is not said."""

    status: str | None = None
    """Of the run: `failed`, `held` …"""
    run_id: UUID | None = None
    error: str | None = None
    error_type: str | None = None
    """The class of the exception, or the verdict's kind."""
    detail: str | None = None
    """All lines of the error, where it has more than one."""
    impact: str | None = None
    """Which data is stale since when, and which promise is at stake."""
    sla: datetime | None = None
    rows_done: int | None = None
    """Rows that are in the sink."""
    rows_total: int | None = None
    """Rows that were read."""
    source_share: float | None = None
    """The share of the source that was read, where its size is known and the run is not complete."""
    checkpoint: str | None = None
    letters: int | None = None
    """Records that were quarantined."""
    rate: float | None = None
    """The share of rejected rows."""
    cause: str | None = None
    """What most of the letters have in common, in words."""
    seconds: float | None = None
    usual_seconds: float | None = None
    """How long such a run usually takes."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """The figures the rule has judged, beside the threshold: {"5xx for": 312.0, "threshold": 300.0}."""
    affected: tuple[str, ...] = ()
    """The pipelines and flows that suffer from it."""
    commands: tuple[str, ...] = ()
    """What to type to see more, or to mend it; the most useful first."""
    sql: str | None = None
    """The same question for who has only the database at hand."""
    next_step: str | None = None
    """What the automation does next, or that it waits for a person."""
    named: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further facts by their names, as a program gave them to `store.alerts.open`."""

    trace_id: str | None = None
    """The trace of OpenTelemetry in which the run, or the program that opened the alert, was."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment of the run, those that `[alerts] environment` names."""

    def document(self) -> dict[str, Any]:
        """As JSON has it, without what is not known."""
        found = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, [], {})}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Facts:
        """From what `document` gave."""
        known = {one.name for one in fields(cls)}
        found: dict[str, Any] = {name: value for name, value in document.items() if name in known}
        if "run_id" in found:
            found["run_id"] = UUID(found["run_id"])
        if "sla" in found:
            found["sla"] = datetime.fromisoformat(found["sla"])
        for name in ("affected", "commands"):
            found[name] = tuple(found.get(name, ()))
        return cls(**found)


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
"""Facts that a link may name as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition that holds, as a rule found it. Nobody has been told yet."""

    key: str
    """The cause: there is one open alert for it at most, whoever finds it."""
    condition: str
    """The rule, such as `sla_missed`; also the name under which its threshold is set."""
    urgency: Severity
    subject: Subject
    title: str
    """One line that says what is wrong, with its figures; never "an error occurred"."""
    facts: Facts = field(default_factory=Facts)
    evidence: str
    """Who says so, such as `run:vendor` or `level`. The alert is over when nobody says so any more."""
    since: datetime | None = None
    """When it began, where that is known; else when it was first found."""
    persist: float = 0.0
    """Seconds for which it must hold before anybody is told."""
    momentary: bool = False
    """It is over already (a run that recovered): told once, and closed at once."""
    group: str | None = None
    """The key of the alert that all runs share which fail of the same cause; None where there is none such."""
    group_title: str | None = None
    """What the title says of all of them, after their number: `have failed: …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A finding in the store, and what became of it."""

    id: int
    key: str
    """The cause: there is one open alert for it at most."""
    condition: str
    """The rule that found it."""
    urgency: Severity
    status: AlertStatus
    subject: Subject
    title: str
    """One line that says what is wrong."""
    facts: Facts
    """What a person needs to act."""
    since: datetime
    """When the condition began to hold."""
    opened_at: datetime | None = None
    """When it had held for long enough."""
    last_seen: datetime
    seen: int = 1
    """How often it was found."""
    evidence: frozenset[str] = frozenset()
    """Who says so; the alert is over when nobody does any more."""
    gone_since: datetime | None = None
    """Since when nothing speaks for it any more, while that has not lasted long enough to resolve it."""
    persist: float = 0.0
    """Seconds for which it must hold before anybody is told."""
    told_at: datetime | None = None
    """When it was last sent, or put down to be sent."""
    repeats: int = 0
    """How often it was said again."""
    acknowledged_at: datetime | None = None
    """When a person said that somebody is at it."""
    acknowledged_by: str | None = None
    """Who said so."""
    note: str | None = None
    """What the person said who acknowledged or closed it."""
    resolved_at: datetime | None = None
    """When it was over."""
    resolution: str | None = None
    """Why it is over."""

    @property
    def is_over(self) -> bool:
        """Whether it is resolved."""
        return self.status is AlertStatus.RESOLVED

    def document(self) -> dict[str, Any]:
        """As JSON has it; a name that holds a secret is nobody's to see."""
        found = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}
        return {
            **found,
            "key": mask(self.key),
            "evidence": [mask(one) for one in sorted(self.evidence)],
            "facts": self.facts.document(),
            "subject": {"kind": self.subject.kind, "name": mask(self.subject.name)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFilter:
    """Which alerts are meant: all that is set must match, and of several names one."""

    keys: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()

    def matches(self, alert: Alert) -> bool:
        """Whether this alert is meant."""
        return (
            (not self.keys or alert.key in self.keys)
            and (not self.subjects or self._is_about(alert, self.subjects))
            and (not self.conditions or alert.condition in self.conditions)
            and (not self.pipelines or self._is_about_pipelines(alert))
        )

    def _is_about_pipelines(self, alert: Alert) -> bool:
        """Whether no other pipeline or flow is concerned: a service that fails may concern several."""
        if alert.subject.kind in ("pipeline", "flow"):
            return self._is_about(alert, self.pipelines)
        return bool(alert.facts.affected) and set(alert.facts.affected) <= set(self.pipelines)

    @staticmethod
    def _is_about(alert: Alert, names: tuple[str, ...]) -> bool:
        """Whether it is about these alone: several pipelines that fail of one cause share an alert."""
        if alert.subject.kind in ("pipeline", "flow") and len(alert.facts.affected) > 1:
            return set(alert.facts.affected) <= set(names)
        return alert.subject.name in names

    def __str__(self) -> str:
        named = {"alert": self.keys, "subject": self.subjects, "condition": self.conditions, "pipeline": self.pipelines}
        said = [f"{name} {mask(' or '.join(names))}" for name, names in named.items() if names]
        return ", ".join(said) or "all alerts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Alerts that are not sent for a while, as an operator decided."""

    id: int
    only: AlertFilter
    """Which alerts."""
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
        """Whether this silences the alert. A snooze is about one alert, not about later ones of its key."""
        return self.only.matches(alert) if self.alert_id is None else self.alert_id == alert.id

    @property
    def about(self) -> str:
        """Which alerts, in words."""
        if self.alert_id is None:
            return str(self.only)
        return " ".join([f"alert {self.alert_id}", *(f"({mask(key)})" for key in self.only.keys)])

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        names = {
            "key": self.only.keys,
            "subject": self.only.subjects,
            "condition": self.only.conditions,
            "pipeline": self.only.pipelines,
        }
        found = {one.name: _plain(getattr(self, one.name)) for one in fields(self) if one.name != "only"}
        return {**found, **{name: mask(one[0]) if one else None for name, one in names.items()}}


class What(StrEnum):
    """What a message says of an alert."""

    OPENED = "opened"
    """It is new."""
    ESCALATED = "escalated"
    """It has become more urgent."""
    REPEATED = "repeated"
    """It is still open, and nobody is at it."""
    RESOLVED = "resolved"
    """It is over."""
    ACKNOWLEDGED = "acknowledged"
    """Only for channels that keep state of their own, as PagerDuty does."""
    TEST = "test"
    """Nothing is wrong: somebody tries the channels."""


class SendStatus(StrEnum):
    """What has become of a message to one channel."""

    WAITING = "waiting"
    """To be sent, or tried again."""
    SENT = "sent"
    """The channel took it."""
    FAILED = "failed"
    """All tries are used; a person sees it in `redrive alerts ls`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One message to one channel, kept until it is delivered."""

    id: int
    alert_id: int
    channel: str
    """By its name in `redrive.toml`: its address, which may be a secret, is not in the store."""
    what: What
    """What it says of the alert."""
    urgency: Severity
    status: SendStatus
    created_at: datetime
    """When it was put down to be sent."""
    due_at: datetime
    """When it may be sent: later than `created_at` in quiet hours, and after a try that failed."""
    digest: bool = False
    """It waits for the morning, and goes out with all others that do."""
    attempts: int = 0
    error: str | None = None
    """Why the last try failed, secrets masked."""
    sent_at: datetime | None = None
    """When the channel took it."""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple | frozenset | set):
        return sorted(value) if isinstance(value, frozenset | set) else list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, UUID | StrEnum) else value
