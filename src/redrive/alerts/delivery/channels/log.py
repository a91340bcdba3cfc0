"""The channel that is always there: a line of the logger `redrive.alerts`."""

from __future__ import annotations

import logging

from redrive.alerts.delivery.message import Message
from redrive.model.alerts import Severity, What

_log = logging.getLogger("redrive.alerts")


def send(message: Message) -> None:
    """Log it, with the whole document as `extra["alert"]` for handlers that write JSON."""
    _log.log(_level(message), "%s", _in_a_line(message), extra={"alert": message.document()})


def _level(message: Message) -> int:
    if message.what in (What.RESOLVED, What.ACKNOWLEDGED):
        return logging.INFO
    return logging.ERROR if message.urgency is Severity.P1 else logging.WARNING


def _in_a_line(message: Message) -> str:
    told = [message.headline]
    more = [(line.label, line.value) for line in message.lines if line.label in ("Impact", "Cause", "Resolved")]
    more.append(("Error", message.error or ""))
    told += [f"{label}: {value}" for label, value in more if value and value not in message.headline]
    if message.next_step:
        told.append(f"Next: {message.next_step}")
    if message.commands:
        told.append(f"See: {message.commands[0]}")
    return " | ".join(" ".join(part.split()) for part in told)
