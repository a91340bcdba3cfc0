"""Messages about alerts: composed once as one structure, and rendered for each kind of receiver."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery import render
from redrive.alerts.delivery.batching import GroupKind
from redrive.alerts.delivery.facts import (
    FactLine,
    details,
    error_of,
    links_of,
    moment,
    of_pipeline,
    summary_lines,
    zone_of,
)
from redrive.alerts.delivery.format import safe, safe_document, safe_line
from redrive.model.alerts import Alert, AlertStatus, Severity, Subject, What

VERSION = 1
"""Version of the JSON document; it grows with every incompatible change."""

Kind = Literal["alert", "summary", "digest"]

HEADLINE = 250
_COMMAND = 500
_MOST_COMMANDS = 6
_STEP = 500
_MOST_STEPS = 20
_SQL = 2_000
_MOST_TITLES = 10
_MOST_GROUPS = 20
_MOST_IN_GROUP = 5
_MOST_ALERTS = 50

# The alert about a recovered run is resolved at once, and is sent all the same.
_SENT_WHEN_OVER = "recovered"

_PREFIX = {
    What.OPENED: "{severity}",
    What.ESCALATED: "{severity} (escalated)",
    What.REPEATED: "{severity} (still open)",
    What.RESOLVED: "Resolved ({severity})",
    What.ACKNOWLEDGED: "Acknowledged ({severity})",
    What.TEST: "Test ({severity})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePart:
    """One alert of a message about several alerts."""

    what: What
    key: str
    urgency: Severity
    subject: Subject
    headline: str
    """The title with the subject."""
    title: str
    since: datetime
    resolved_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message, with its parts in the order in which an operator needs them. All text is safe to show."""

    kind: Kind
    what: What
    urgency: Severity
    key: str
    """The key of the alert, by which a receiver that keeps state finds its incident."""
    subject: Subject | None
    """None for a message about several alerts."""
    headline: str
    condition: str
    since: datetime
    lines: tuple[FactLine, ...] = ()
    error: str | None = None
    next_step: str | None = None
    """The next step of redrive or of the operator."""
    commands: tuple[str, ...] = ()
    sql: str | None = None
    steps: tuple[str, ...] = ()
    """The runbook."""
    links: tuple[FactLine, ...] = ()
    details: tuple[FactLine, ...] = ()
    parts: tuple[MessagePart, ...] = ()
    """The alerts of a message about several alerts."""
    alerts: tuple[dict[str, Any], ...] = ()
    """The first alerts as JSON documents."""

    @property
    def is_over(self) -> bool:
        """Return whether all alerts of the message are resolved."""
        return self.what is What.RESOLVED

    def plain(self, *, headline: bool = True) -> str:
        """Return the message for mail and terminals; without the headline if that is the subject of the mail."""
        return render.plain(self, headline=headline)

    def markdown(self, *, headline: bool = True) -> str:
        """Return the message as Markdown."""
        return render.markdown(self, headline=headline)

    def slack(self) -> dict[str, Any]:
        """Return the payload of a Slack incoming webhook."""
        return render.slack_payload(self)

    def document(self) -> dict[str, Any]:
        """Return the message as a JSON document for programs."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "what": self.what.value,
            "urgency": self.urgency.value,
            "key": self.key,
            "subject": None if self.subject is None else {"kind": self.subject.kind, "name": self.subject.name},
            "condition": self.condition,
            "headline": self.headline,
            "lines": [line._asdict() for line in self.lines],
            "error": self.error,
            "next_step": self.next_step,
            "commands": list(self.commands),
            "sql": self.sql,
            "runbook": list(self.steps),
            "links": [{"text": link.label, "href": link.value} for link in self.links],
            "details": [line._asdict() for line in self.details],
            "alerts": list(self.alerts),
        }


def compose(what: What, alert: Alert, settings: AlertSettings) -> Message:
    """Return the message about one alert."""
    facts, own = alert.facts, of_pipeline(alert, settings)
    needs_action = what in (What.OPENED, What.ESCALATED, What.REPEATED, What.TEST)
    subject = Subject(kind=alert.subject.kind, name=safe_line(alert.subject.name, 200))
    return Message(
        kind="alert",
        what=what,
        urgency=alert.urgency,
        key=safe_line(alert.key, 1_000),
        subject=subject,
        headline=f"{_PREFIX[what].format(severity=alert.urgency)} {_title(alert)}",
        condition=safe_line(alert.condition, 100),
        since=alert.since,
        lines=tuple(line for line in summary_lines(what, alert, zone_of(alert, settings)) if line.value),
        error=error_of(alert) if needs_action else None,
        next_step=_next(what, alert),
        commands=tuple(_to_type(what, alert)) if needs_action else (),
        sql=safe(facts.sql, _SQL) if facts.sql and needs_action else None,
        steps=tuple(safe(step, _STEP) for step in own.runbook[:_MOST_STEPS]) if needs_action else (),
        links=links_of(alert, settings),
        details=tuple(details(what, alert, settings)),
        alerts=(safe_document(alert.document()),),
    )


def compose_many(
    kind: Literal["digest", "summary"], items: Sequence[tuple[What, Alert]], settings: AlertSettings
) -> Message:
    """Return one message about several alerts; about a single alert, the same message as `compose`."""
    if not items:
        raise ValueError("a message needs at least one alert")
    latest = {alert.id: (_as_it_stands(what, alert), alert) for what, alert in items}
    # If an alert of the same key is open again, the resolved one is left out.
    open_again = {alert.key: number for number, (what, alert) in sorted(latest.items()) if not _is_over(what)}
    latest = {
        number: (what, alert)
        for number, (what, alert) in latest.items()
        if not _is_over(what) or number > open_again.get(alert.key, 0)
    }
    if len(latest) == 1:
        return compose(*next(iter(latest.values())), settings)
    chosen = sorted(latest.values(), key=lambda item: (_is_over(item[0]), item[1].urgency, item[1].since, item[1].id))
    parts = tuple(_part(what, alert) for what, alert in chosen)
    return Message(
        kind=kind,
        what=What.RESOLVED if all(_is_over(part.what) for part in parts) else What.OPENED,
        urgency=parts[0].urgency,
        key=f"{kind}:{min(latest)}-{max(latest)}",
        subject=None,
        headline=_counted(kind, parts),
        condition=kind,
        since=min(part.since for part in parts),
        lines=tuple(_by_pipeline(parts) if kind == "digest" else _first_titles(parts)),
        commands=tuple(_commands(chosen)),
        parts=parts,
        alerts=tuple(safe_document(alert.document()) for _, alert in chosen[:_MOST_ALERTS]),
    )


def compose_plain(kind: GroupKind, items: Sequence[tuple[What, Alert]]) -> Message:
    """Return a short message for alerts that cannot be formatted: there is an alert, and the command that shows it."""
    what, alert = items[0]
    if kind == "one":
        headline = f"{_PREFIX[what].format(severity=alert.urgency)} {_title(alert)}"
        subject, look = Subject(kind=alert.subject.kind, name=safe_line(alert.subject.name, 200)), f"show {alert.id}"
        key, condition = safe_line(alert.key, 1_000), safe_line(alert.condition, 100)
    else:
        is_over = all(_is_over(_as_it_stands(*item)) for item in items)
        what, subject, look = What.RESOLVED if is_over else What.OPENED, None, "ls"
        headline, condition = f"{alert.urgency}, {len(items):,} messages about alerts", kind
        numbers = [item.id for _, item in items]
        key = f"{kind}:{min(numbers)}-{max(numbers)}"
    return Message(
        kind="alert" if kind == "one" else kind,
        what=what,
        urgency=min(item.urgency for _, item in items),
        key=key,
        subject=subject,
        headline=headline,
        condition=condition,
        since=min(item.since for _, item in items),
        lines=(FactLine("Details", "cannot be shown in a message"),),
        commands=(f"redrive alerts {look}",),
    )


# ── one alert ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _title(alert: Alert) -> str:
    """Return the title; the subject comes first unless the title contains it."""
    has_subject = re.search(rf"(?<!\w){re.escape(alert.subject.name)}(?!\w)", alert.title)
    return safe_line(alert.title if has_subject else f"{alert.subject}: {alert.title}", HEADLINE - 40)


def _next(what: What, alert: Alert) -> str | None:
    if what is What.TEST:
        return "This is a test of the route: nothing is wrong. If it opens an incident, that is closed after a minute."
    if what in (What.RESOLVED, What.ACKNOWLEDGED) or not alert.facts.next_step:
        return None
    return safe(alert.facts.next_step, 1_000)


def _to_type(what: What, alert: Alert) -> Iterable[str]:
    for command in alert.facts.commands[: _MOST_COMMANDS - 1]:
        yield safe_line(command, _COMMAND)
    if what is not What.TEST and alert.status is AlertStatus.OPEN:
        yield f"redrive alerts ack {alert.id}"


# ── several alerts ────────────────────────────────────────────────────────────────────────────────────────────────────


def _as_it_stands(what: What, alert: Alert) -> What:
    """Return "resolved" for an alert that was resolved before its message is sent."""
    return What.RESOLVED if alert.is_over and alert.condition != _SENT_WHEN_OVER else what


def _is_over(what: What) -> bool:
    return what is What.RESOLVED


def _part(what: What, alert: Alert) -> MessagePart:
    return MessagePart(
        what=what,
        key=safe_line(alert.key, 1_000),
        urgency=alert.urgency,
        subject=Subject(kind=alert.subject.kind, name=safe_line(alert.subject.name, 200)),
        headline=_title(alert),
        title=safe_line(alert.title, HEADLINE - 40),
        since=alert.since,
        resolved_at=alert.resolved_at,
    )


def _counted(kind: Kind, parts: Sequence[MessagePart]) -> str:
    by_urgency = Counter(part.urgency for part in parts if not _is_over(part.what))
    counts = [f"{by_urgency[urgency]:,} {urgency}" for urgency in sorted(by_urgency)]
    if over := sum(_is_over(part.what) for part in parts):
        counts.append(f"{over:,} resolved" + (" meanwhile" if kind == "digest" else ""))
    number = f"{len(parts):,} alerts"
    if kind == "digest":
        subjects = len({part.subject for part in parts})
        return f"Digest of {number} about {subjects:,} subject{'' if subjects == 1 else 's'}: {', '.join(counts)}"
    return f"{parts[0].urgency}, {number} at once: {', '.join(counts)}"


def _first_titles(parts: Sequence[MessagePart]) -> Iterable[FactLine]:
    for part in parts[:_MOST_TITLES]:
        yield FactLine("Resolved" if _is_over(part.what) else part.urgency.value, part.headline)
    if (more := len(parts) - _MOST_TITLES) > 0:
        yield FactLine("More", f"{more:,} others")


def _by_pipeline(parts: Sequence[MessagePart]) -> Iterable[FactLine]:
    """Yield the alerts by subject; subjects with open alerts come first."""
    order = {part.subject: position for position, part in reversed(list(enumerate(parts)))}
    groups = groupby(sorted(parts, key=lambda part: order[part.subject]), key=lambda part: part.subject)
    for position, (subject, alerts) in enumerate(groups):
        if position == _MOST_GROUPS:
            yield FactLine("More", f"{len(order) - _MOST_GROUPS:,} other subjects")
            return
        entries = [_entry(part) for part in alerts]
        more = [f"and {len(entries) - _MOST_IN_GROUP:,} more"] if len(entries) > _MOST_IN_GROUP else []
        yield FactLine(safe_line(str(subject), 100), "\n".join([*entries[:_MOST_IN_GROUP], *more]))


def _entry(part: MessagePart) -> str:
    if not _is_over(part.what):
        return f"{part.urgency} {part.title}"
    when = "" if part.resolved_at is None else f" {moment(part.resolved_at)}"
    return f"resolved{when}: {part.title}"


def _commands(chosen: Sequence[tuple[What, Alert]]) -> Iterable[str]:
    """Yield the first command of each open alert, and the command that lists all."""
    commands = dict.fromkeys(
        safe_line(alert.facts.commands[0], _COMMAND)
        for what, alert in chosen
        if not _is_over(what) and alert.facts.commands
    )
    yield from list(commands)[: _MOST_COMMANDS - 1]
    yield "redrive alerts ls"
