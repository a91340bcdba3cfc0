"""SLAs of a run and its tasks: which are at risk, and which were missed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from redrive.model.tasks import risk_begins

WHOLE_RUN = ""
"""In place of a task's name: the run itself."""


@dataclass(slots=True)
class SlaTracker:
    """What is to be done by when, from the start of the run on. Each risk and each miss is told once."""

    started_at: datetime
    due: Mapping[str, datetime]
    """By the names of tasks."""
    since: datetime | None = None
    """What was done before this moment was told by another executor; None for the moment of the first question."""
    _told: set[tuple[str, bool]] = field(default_factory=set)

    def late(self, now: datetime, done: Mapping[str, datetime]) -> list[tuple[str, bool]]:
        """Return what may be late, or is (True), and was not told yet.

        done  when the tasks were done that are
        """
        self.since = self.since or now
        found = []
        for name, due in self.due.items():
            ended = done.get(name)
            if ended is not None and (ended < due or ended < self.since):
                continue
            missed = (ended or now) >= due
            if not missed and now < risk_begins(self.started_at, due):
                continue
            if (name, missed) not in self._told:
                self._told.add((name, missed))
                found.append((name, missed))
        return found
