"""What a run's end says of the alerts it has led to."""

from __future__ import annotations

import logging
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from redrive._internal.masking import mask
from redrive.errors import StoreError
from redrive.model.alerts import AlertStatus, Severity

if TYPE_CHECKING:
    from redrive.cli.output import Output
    from redrive.store.store import Store

_WHAT = {
    Severity.P1: "alert P1, a person is needed now",
    Severity.P2: "alert P2, a person is needed within an hour",
    Severity.P3: "alert P3, somebody should look within a day",
}
_SHOWN = 5
_LOOKED_AT = 50


def leave_alerts_to_the_report() -> None:
    """Where nobody has set logging up, Python prints warnings: these are about to be said anyway."""
    log = logging.getLogger("redrive.alerts")
    if not log.hasHandlers():
        log.addFilter(lambda record: not hasattr(record, "alert"))


def say_alerts(out: Output, store: Store, run_id: UUID, *, named: str | None) -> None:
    """The alerts that this run has opened, and how to see all of each."""
    with suppress(StoreError):  # the run has its report; what cannot be asked now can be later
        found = [
            alert
            for alert in store.alerts.find(status="open", limit=_LOOKED_AT)
            if alert.facts.run_id == run_id and alert.status is not AlertStatus.WAITING
        ]
        where = "" if named is None else f" --store {shlex.quote(mask(named))}"
        for alert in found[:_SHOWN]:
            out.say(f"{_WHAT[alert.urgency]}: redrive alerts show {alert.id}{where}")
        if len(found) > _SHOWN:
            out.say(f"and {len(found) - _SHOWN} more: redrive alerts ls{where}")
