"""Alerts that a run opened, as next steps of its report."""

from __future__ import annotations

import logging
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from redrive._internal.masking import mask
from redrive.cli.format import counted
from redrive.errors import StoreError
from redrive.model.alerts import AlertStatus, Severity

if TYPE_CHECKING:
    from redrive.store.store import Store

_WHEN = {Severity.P1: "act now", Severity.P2: "act within 1 h", Severity.P3: "review within 24 h"}
_SHOWN = 5
_LOOKED_AT = 50


def leave_alerts_to_the_report() -> None:
    """Keep Python from printing warnings that the report repeats, where no logging is configured."""
    log = logging.getLogger("redrive.alerts")
    if not log.hasHandlers():
        log.addFilter(lambda record: not hasattr(record, "alert"))


def alert_steps(store: Store, run_id: UUID, *, named: str | None) -> list[tuple[str, str]]:
    """Return a next step for each alert that the run opened."""
    with suppress(StoreError):  # the report is complete without its alerts, which can be listed later
        found = [
            alert
            for alert in store.alerts.find(status="open", limit=_LOOKED_AT)
            if alert.facts.run_id == run_id and alert.status is not AlertStatus.WAITING
        ]
        where = "" if named is None else f" --store {shlex.quote(mask(named))}"
        steps = [
            (f"alert #{alert.id} ({alert.urgency}, {_WHEN[alert.urgency]})", f"redrive alerts show {alert.id}{where}")
            for alert in found[:_SHOWN]
        ]
        if len(found) > _SHOWN:
            steps.append((f"{counted(len(found) - _SHOWN, 'more alert')}", f"redrive alerts ls{where}"))
        return steps
    return []
