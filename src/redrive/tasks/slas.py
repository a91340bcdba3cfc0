"""SLAs of a run and its tasks: which are at risk, and which were missed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from redrive.flows import risk_begins

WHOLE_RUN = ""
"""In place of a task's name: the run itself."""


@dataclass(slots=True)
class Slas:
    """What is to be done by when, from the start of the run on. Each risk and each miss is told once."""

    started_at: datetime
    due: Mapping[str, datetime]
    """By the names of tasks."""
    _told: set[tuple[str, bool]] = field(default_factory=set)

    def late(self, now: datetime, done: Collection[str]) -> list[tuple[str, bool]]:
        """Return what is not done and may be late, or is (True), and was not told yet."""
        found = []
        for name, due in self.due.items():
            if name in done or now < risk_begins(self.started_at, due):
                continue
            late = (name, now >= due)
            if late not in self._told:
                self._told.add(late)
                found.append(late)
        return found
