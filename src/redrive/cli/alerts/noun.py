"""The group `alerts`, to which the other files of this package add commands, and what these share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redrive.cli.command import noun
from redrive.cli.exit_codes import CommandRefused
from redrive.model.alerts import SendStatus, Severity

if TYPE_CHECKING:
    pass

app = noun("List, acknowledge and resolve alerts; test channels.", bare="ls")

LARGEST_ID = 2**63 - 1  # that a database can have
MARKS = {SendStatus.SENT: "✓", SendStatus.FAILED: "✗", SendStatus.WAITING: "…"}
OFF = "alerts are disabled by `enabled = false` in [alerts] or REDRIVE_ALERTS=off: nothing is delivered"


@contextmanager
def refuse_alert_errors() -> Iterator[None]:
    """Raise a usage error for an alert that does not exist or is resolved."""
    from redrive.errors import AlertError

    try:
        yield
    except AlertError as error:
        raise CommandRefused(str(error)) from None


def parse_severity(text: str) -> Severity:
    try:
        return Severity(text.strip().upper())
    except ValueError:
        raise CommandRefused(f"{text!r} is not a severity. It must be one of {', '.join(Severity)}") from None


def unconfigured(channel: str) -> str:
    """Return the note about messages that wait for a channel which is not configured here."""
    return (
        f"channel {channel} is not configured here. A process whose redrive.toml has [channels.{channel}] delivers them"
    )


def with_mark(status: str) -> str:
    return f"{MARKS[SendStatus(status)]} {status}"
