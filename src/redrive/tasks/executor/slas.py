"""SLAs of a run and its tasks: which are at risk and which were missed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from redrive.model.tasks import risk_begins

WHOLE_RUN = ""
"""The name of the run's own SLA, in place of a task name."""


@dataclass(slots=True)
class SlaTracker:
    """Tracks SLAs from the start of the run, and reports each risk and each miss once."""

    started_at: datetime
    due: Mapping[str, datetime]
    """Due times by task name."""
    since: datetime | None = None
    """Tasks that ended earlier were reported by another executor; None for the time of the first check."""
    _reported: set[tuple[str, bool]] = field(default_factory=set)

    def check(self, now: datetime, done: Mapping[str, datetime]) -> list[tuple[str, bool]]:
        """Return SLAs at risk (False) or missed (True) that were not reported yet.

        Args:
            done: When finished tasks ended, by name.
        """
        self.since = self.since or now
        events = []
        for name, due in self.due.items():
            ended_at = done.get(name)
            if ended_at is not None and (ended_at < due or ended_at < self.since):
                continue
            missed = (ended_at or now) >= due
            if not missed and now < risk_begins(self.started_at, due):
                continue
            if (name, missed) not in self._reported:
                self._reported.add((name, missed))
                events.append((name, missed))
        return events
