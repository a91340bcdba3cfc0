"""The facts of an alert as labelled lines for operators, and its links."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from redrive.alerts.config.addresses import PLACEHOLDERS
from redrive.alerts.config.settings import AlertSettings, PipelineSettings
from redrive.alerts.delivery.format import safe, safe_line
from redrive.model.alerts import FACTS_IN_LINKS, Alert, AlertStatus, What
from redrive.model.calls import format_duration

_LINE = 300
_MOST_AFFECTED = 10
_MOST_MEASURED = 10
_ERROR = 1_500

_PLACE = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r"|facts\.[^{}]+|[A-Z_][A-Z0-9_]*)\}")
# Characters with a meaning in a URL, and the braces of an unknown placeholder.
_KEPT_IN_URLS = "%/:?#[]@!$&'()*+,;=~{}"
_MOST_LINKS = 10
_LINK = 2_000


class FactLine(NamedTuple):
    """A fact with its name."""

    label: str
    value: str


def of_pipeline(alert: Alert, settings: AlertSettings) -> PipelineSettings:
    """Return the settings of the pipeline or flow that an alert is about."""
    own = settings.pipelines.get(alert.subject.name) if alert.subject.kind in ("pipeline", "flow") else None
    return own or PipelineSettings()


def zone_of(alert: Alert, settings: AlertSettings) -> ZoneInfo | None:
    """Return the time zone of its deadline, if known."""
    if (daily := of_pipeline(alert, settings).sla) is not None:
        return daily.zone
    zone: tzinfo | None = alert.facts.sla.tzinfo if alert.facts.sla is not None else None
    return zone if isinstance(zone, ZoneInfo) else None


def moment(at: datetime, zone: ZoneInfo | None = None) -> str:
    """Return `2026-03-02 01:00 UTC (06:30 Asia/Kolkata)`; with the local date if it is another one."""
    at = at.astimezone(UTC)
    in_utc = f"{at:%Y-%m-%d %H:%M} UTC"
    if zone is None or str(zone) == "UTC":
        return in_utc
    local = at.astimezone(zone)
    form = "%H:%M" if local.date() == at.date() else "%Y-%m-%d %H:%M"
    return f"{in_utc} ({local:{form}} {zone})"


def lasted(alert: Alert) -> str:
    """Return how long it has lasted until its last message, or until it was resolved."""
    until = alert.resolved_at or max(alert.told_at or alert.last_seen, alert.last_seen)
    return format_duration(max(0.0, (until - alert.since).total_seconds()))


def summary_lines(what: What, alert: Alert, zone: ZoneInfo | None) -> Iterator[FactLine]:
    """Yield what an operator wants to know first: the impact, since when, and how severe it is."""
    facts = alert.facts
    if what is What.RESOLVED:
        yield from _resolution(alert, zone)
    if facts.impact:
        yield FactLine("Impact was" if what is What.RESOLVED else "Impact", safe(facts.impact, 600))
    if facts.sla is not None:
        yield FactLine("Deadline", moment(facts.sla, zone))
    since = moment(alert.since, zone)
    yield FactLine("Since", since if alert.is_over else f"{since}, for {lasted(alert)}")
    if what is What.RESOLVED:
        return
    if what is What.ACKNOWLEDGED:
        yield from _acknowledgement(alert, zone)
    if facts.letters is not None:
        yield FactLine("Letters", _letters(facts.letters, facts.rate))
    if facts.cause:
        yield FactLine("Cause", safe(facts.cause, 600))
    if facts.rows_done is not None:
        total = "" if facts.rows_total is None else f" of {facts.rows_total:,}"
        share = "" if facts.source_share is None else f", {100 * facts.source_share:.0f} % of the source"
        yield FactLine("Rows done", f"{facts.rows_done:,}{total}{share}")
    if facts.seconds is not None:
        usual = "" if facts.usual_seconds is None else f", usually {format_duration(facts.usual_seconds)}"
        yield FactLine("Duration", format_duration(facts.seconds) + usual)
    if facts.measured:
        yield FactLine("Measured", _measured(facts.measured))
    if facts.affected:
        yield FactLine("Affected", _some(facts.affected))
    for name, value in facts.named.items():
        yield FactLine(safe_line(name, 60), safe(str(value), 600))


def details(what: What, alert: Alert, settings: AlertSettings) -> Iterator[FactLine]:
    """Yield details for looking up."""
    facts, zone = alert.facts, zone_of(alert, settings)
    if facts.status:
        yield FactLine("Status", safe_line(facts.status, 60))
    if facts.run_id is not None:
        yield FactLine("Run", str(facts.run_id))
    if facts.trace_id:
        yield FactLine("Trace", safe_line(facts.trace_id, _LINE))
    for name, value in facts.environment.items():
        yield FactLine(safe_line(name, 60), safe_line(value, _LINE))
    if facts.checkpoint:
        yield FactLine("Checkpoint", safe_line(facts.checkpoint, _LINE))
    if alert.seen > 1:
        yield FactLine("Seen", f"{alert.seen:,} times, last {moment(alert.last_seen, zone)}")
    if alert.status is AlertStatus.ACKNOWLEDGED and what is not What.ACKNOWLEDGED:
        yield from _acknowledgement(alert, zone)
    every = settings.repeat.get(alert.urgency)
    if every and what in (What.OPENED, What.ESCALATED, What.REPEATED) and alert.status is AlertStatus.OPEN:
        yield FactLine("Sent again", f"every {format_duration(every)} until it is acknowledged")
    yield FactLine("Alert", f"{alert.id}, {safe_line(alert.condition, 60)}")


def error_of(alert: Alert) -> str | None:
    """Return the error with its type, and all its lines if they are known."""
    error, kind = alert.facts.detail or alert.facts.error, alert.facts.error_type
    if error is None or kind is None:
        return safe(error or kind or "", _ERROR) or None
    return safe(error if error.startswith(kind) else f"{kind}: {error}", _ERROR)


def links_of(alert: Alert, settings: AlertSettings) -> tuple[FactLine, ...]:
    """Return the links of all alerts and of its pipeline, without those that lack a value or are too long."""
    values = _values_of(alert)
    templates = {**settings.links, **of_pipeline(alert, settings).links}
    links = (
        FactLine(safe_line(name, 100) or "link", _address(template, values))
        for name, template in list(templates.items())[:_MOST_LINKS]
        if all(values.get(place) is not None for place in _PLACE.findall(template))
    )
    return tuple(link for link in links if 0 < len(link.value) <= _LINK)


def _values_of(alert: Alert) -> dict[str, str | None]:
    """Return the values of placeholders."""
    facts, subject = alert.facts, alert.subject
    values: dict[str, Any] = {
        "pipeline": subject.name if subject.kind in ("pipeline", "flow") else next(iter(facts.affected), None),
        "run_id": facts.run_id,
        "alert": alert.id,
        "service": subject.name if subject.kind == "service" else None,
        "condition": alert.condition,
        "severity": alert.urgency,
        **{name: getattr(facts, name) for name in FACTS_IN_LINKS},
        **{f"facts.{name}": value for name, value in facts.named.items()},
        **facts.environment,
    }
    return {name: None if value is None else str(value) for name, value in values.items()}


def _address(template: str, values: Mapping[str, str | None]) -> str:
    # Masked before it is quoted, for a quoted secret does not look like one.
    filled = _PLACE.sub(lambda place: quote(safe_line(values[place[1]] or "", _LINE), safe=""), template)
    return quote(safe_line(filled, _LINK + 1), safe=_KEPT_IN_URLS)


def _resolution(alert: Alert, zone: ZoneInfo | None) -> Iterator[FactLine]:
    over = "" if alert.resolved_at is None else f"{moment(alert.resolved_at, zone)}, after {lasted(alert)}"
    why = safe(alert.resolution, 600) if alert.resolution else ""
    yield FactLine("Resolved", ": ".join(part for part in (over, why) if part) or "yes")
    if alert.note:
        yield FactLine("Note", safe(alert.note, 600))


def _acknowledgement(alert: Alert, zone: ZoneInfo | None) -> Iterator[FactLine]:
    when = "" if alert.acknowledged_at is None else moment(alert.acknowledged_at, zone)
    who = f"by {safe_line(alert.acknowledged_by, 100)}" if alert.acknowledged_by else ""
    yield FactLine("Taken", ", ".join(part for part in (when, who) if part) or "yes")
    if alert.note:
        yield FactLine("Note", safe(alert.note, 600))


def _letters(count: int, rate: float | None) -> str:
    text = f"{count:,} dead letter{'' if count == 1 else 's'}"
    if rate is None or not math.isfinite(rate):
        return text
    return f"{text}, {100 * rate:{'.1f' if rate >= 0.001 else '.1g'}} % of the rows"


def _measured(figures: Mapping[str, float]) -> str:
    named = list(figures.items())[:_MOST_MEASURED]
    return ", ".join(f"{safe_line(name, 60)} {_figure(value)}" for name, value in named)


def _figure(value: float | str) -> str:
    if isinstance(value, str) or not math.isfinite(value):  # the store has a text for what JSON has no number for
        return safe_line(str(value), 60)
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1_000 else f"{value:.3g}"


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(safe_line(name, 100) for name in names[:_MOST_AFFECTED])
    more = len(names) - _MOST_AFFECTED
    return f"{shown} and {more:,} more" if more > 0 else shown
