"""PagerDuty's Events API v2: an incident is opened, acknowledged and resolved by the key of its cause."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed
from redrive.alerts.delivery.channels.webhook import address, post
from redrive.alerts.delivery.format import cut
from redrive.alerts.delivery.message import Message
from redrive.model.alerts import Severity, What

ENDPOINT = "https://events.pagerduty.com/v2/enqueue"
# developer.pagerduty.com/docs/events-api-v2
SUMMARY, DEDUP_KEY, BODY = 1_024, 255, 512_000

Action = Literal["trigger", "acknowledge", "resolve"]

_ACTIONS: dict[What, Action] = {What.ACKNOWLEDGED: "acknowledge", What.RESOLVED: "resolve"}
_SEVERITY = {Severity.P1: "critical", Severity.P2: "error", Severity.P3: "warning"}
_HASH = 40


def send(channel: Channel, message: Message) -> None:
    """Post the events of a message within the timeout; an event that is sent twice changes nothing at PagerDuty."""
    endpoint, routing_key = _where(address(channel))
    deadline = time.monotonic() + channel.timeout
    for event in events(message):
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeliveryFailed(f"the events were not all taken within {channel.timeout:g} s")
        body = json.dumps({"routing_key": routing_key, **event}, ensure_ascii=False).encode()
        post(endpoint, body, seconds=left)


def events(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the events of a message, without the routing key.

    For a message about many alerts, resolved and acknowledged ones have their own events with their own keys, because
    PagerDuty keeps an incident for each. New alerts are one incident, because a storm must not page a hundred times.
    """
    if message.kind == "alert":
        yield _event(_ACTIONS.get(message.what, "trigger"), message)
        return
    for part in message.parts:
        if (action := _ACTIONS.get(part.what)) is not None:
            yield {"event_action": action, "dedup_key": dedup_key(part.key)}
    if any(part.what not in _ACTIONS for part in message.parts):
        yield _event("trigger", message)


def dedup_key(key: str) -> str:
    """Return the key of the alert; a key that is too long is cut and gets a hash."""
    if len(key) <= DEDUP_KEY:
        return key or "redrive"
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:_HASH]
    return f"{key[: DEDUP_KEY - _HASH - 1]}:{digest}"


def _event(action: Action, message: Message) -> dict[str, Any]:
    event: dict[str, Any] = {"event_action": action, "dedup_key": dedup_key(message.key)}
    if action != "trigger":
        return event
    about = message.subject
    payload: dict[str, Any] = {
        "summary": cut(message.headline, SUMMARY),
        "source": str(about or "") or "redrive",
        "severity": _severity(message),
        "timestamp": _iso(message.since),
        "component": (about.name if about else "") or "redrive",
        "group": about.kind if about else message.kind,
        "class": message.condition or message.kind,
        "custom_details": _details(message),
    }
    links = [{"href": link.value, "text": link.label} for link in message.links if link.value.startswith("http")]
    event |= {"payload": payload, "links": links, "client": "redrive"}
    if len(json.dumps(event, ensure_ascii=False).encode()) > BODY - 1_000:  # the routing key is still to come
        del payload["custom_details"]["alerts"]
    return event


def _details(message: Message) -> dict[str, Any]:
    values: dict[str, Any] = {line.label: line.value for line in message.lines}
    if message.parts:  # many lines of one label
        values = {f"{number}. {line.label}": line.value for number, line in enumerate(message.lines, 1)}
    values |= {
        "Error": message.error,
        "Next": message.next_step,
        "Commands": list(message.commands),
        "SQL": message.sql,
        "Runbook": list(message.steps),
    }
    values |= {line.label: line.value for line in message.details}
    return {**{label: value for label, value in values.items() if value}, "alerts": list(message.alerts)}


def _severity(message: Message) -> str:
    # A test pages like a real alert of its severity.
    may_be_over = message.kind == "alert" and message.what is not What.TEST
    over = may_be_over and all(alert.get("resolved_at") for alert in message.alerts)
    return "info" if over else _SEVERITY[message.urgency]


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def _where(target: str) -> tuple[str, str]:
    """Return the endpoint and the routing key: the target is the key, or a URL with the key in its query."""
    if "://" not in target:
        endpoint, key = ENDPOINT, target.strip()
    else:
        try:
            parts = urlsplit(target)
        except ValueError:
            raise DeliveryFailed("the channel's URL cannot be read", permanent=True) from None
        query = parse_qs(parts.query)
        key = (query.pop("routing_key", None) or [""])[-1]
        endpoint = urlunsplit(parts._replace(query=urlencode(query, doseq=True), fragment=""))
    if not key:
        raise DeliveryFailed(
            "the channel has no routing key: give the key, or a URL with ?routing_key=…", permanent=True
        )
    return endpoint, key
