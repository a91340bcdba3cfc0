"""Messages judged against incidents that were written down beforehand: needed, not needed, a false all-clear.

Nothing here knows a rule of redrive. An incident has a cause, a time and the names a message about it may carry; what
the on-call of its channel must receive follows from that alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

NEEDED, NOT_NEEDED, FALSE_ALL_CLEAR = "needed", "not needed", "false all-clear"
_OPENING = ("opened", "escalated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What goes wrong, and what an on-call needs to know of it."""

    name: str
    subjects: frozenset[str]
    """Names of pipelines and services that a message about it may carry."""
    channel: str
    begins: datetime
    ends: datetime
    needs: tuple[tuple[str, datetime], ...]
    """A message at least as urgent as this must have arrived by then."""
    resolved_by: datetime
    """When the all-clear must have arrived."""


@dataclass(slots=True, kw_only=True)
class Message:
    """What arrived at a channel about one alert; a summary of several alerts is several of these."""

    at: datetime
    channel: str
    what: str
    severity: str
    subject: str
    condition: str
    headline: str
    alert_id: int
    cause: str = ""
    judgement: str = ""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """All messages, judged, and the totals."""

    messages: list[Message]
    causes: int
    incidents: int
    """Alerts that were opened at a channel."""
    missed: list[str] = field(default_factory=list)

    @property
    def false_all_clears(self) -> list[Message]:
        return [one for one in self.messages if one.judgement == FALSE_ALL_CLEAR]

    @property
    def not_needed(self) -> list[Message]:
        return [one for one in self.messages if one.judgement == NOT_NEEDED]


def messages_of(at: datetime, channel: str, document: dict[str, Any]) -> list[Message]:
    """Return what a webhook's document says of each alert."""
    if document["kind"] == "alert":
        return [_message(at, channel, document["what"], document["headline"], document["alerts"][0])]
    return [
        _message(at, channel, "resolved" if one["status"] == "resolved" else "opened", one["title"], one)
        for one in document["alerts"]
    ]


def _message(at: datetime, channel: str, what: str, headline: str, alert: dict[str, Any]) -> Message:
    return Message(
        at=at,
        channel=channel,
        what=what,
        severity=alert["urgency"],
        subject=alert["subject"]["name"],
        condition=alert["condition"],
        headline=headline,
        alert_id=alert["id"],
    )


def judge(
    causes: Sequence[Cause], messages: Sequence[Message], *, acknowledged: dict[int, datetime], until: datetime
) -> Verdict:
    """Judge every message against the causes.

    Args:
        causes: What went wrong, whether or not anything was sent about it.
        messages: What arrived, in the order of arrival.
        acknowledged: When the on-call acknowledged an alert; a reminder after that is not needed.
        until: The end of the simulation: what would have been due later is not missed.
    """
    by_cause: defaultdict[str, list[Message]] = defaultdict(list)
    for message in messages:
        cause = _cause_of(message, causes)
        if cause is None:
            message.judgement, message.reason = NOT_NEEDED, "nothing was wrong"
            continue
        message.cause = cause.name
        message.judgement, message.reason = _judgement(message, cause, by_cause[cause.name], acknowledged)
        by_cause[cause.name].append(message)
    opened = {message.alert_id for message in messages if message.what in _OPENING}
    missed = [text for cause in causes for text in _missed(cause, by_cause[cause.name], until)]
    return Verdict(messages=list(messages), causes=len(causes), incidents=len(opened), missed=missed)


def _cause_of(message: Message, causes: Sequence[Cause]) -> Cause | None:
    """The cause that began last, of those a message may be about."""
    fitting = [
        one
        for one in causes
        if message.subject in one.subjects and message.channel == one.channel and one.begins <= message.at
    ]
    return max(fitting, key=lambda one: one.begins, default=None)


def _judgement(
    message: Message, cause: Cause, before: Sequence[Message], acknowledged: dict[int, datetime]
) -> tuple[str, str]:
    opened = [one for one in before if one.what in _OPENING]
    if message.what == "resolved":
        if message.at < cause.ends:
            return FALSE_ALL_CLEAR, f"the cause lasts until {cause.ends:%a %H:%M}"
        if any(one.what == "resolved" for one in before):
            return NOT_NEEDED, "was resolved before"
        return NEEDED, "the all-clear"
    if message.what == "repeated":
        asked = acknowledged.get(message.alert_id)
        if asked is not None and asked <= message.at:
            return NOT_NEEDED, "was acknowledged"
        return (NEEDED, "a reminder") if message.at < cause.ends else (NOT_NEEDED, "is over")
    if opened and message.severity >= min(one.severity for one in opened):
        return NOT_NEEDED, "was known"
    return NEEDED, "more urgent" if opened else "the first"


def _missed(cause: Cause, messages: Sequence[Message], until: datetime) -> list[str]:
    found = []
    for severity, by in cause.needs:
        in_time = (one for one in messages if one.what in _OPENING and one.severity <= severity and one.at <= by)
        if by <= until and not any(in_time):
            found.append(f"{cause.name}: no {severity} by {by:%a %H:%M}")
    if cause.resolved_by <= until and not any(
        one.what == "resolved" and cause.ends <= one.at <= cause.resolved_by for one in messages
    ):
        found.append(f"{cause.name}: no all-clear by {cause.resolved_by:%a %H:%M}")
    return found


def hours(count: float) -> timedelta:
    """Return this number of hours."""
    return timedelta(hours=count)
