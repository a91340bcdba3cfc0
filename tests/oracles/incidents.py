"""The conditions of one pipeline, derived from its history without the rules and alerts under test.

Three conditions, each an incident from when it begins to hold until it no longer holds:

    letters  the gate aborted a run that is neither complete nor abandoned, or rejected rows are quarantined
    run      a run failed or was killed, and none is complete since
    sla      a deadline has passed without a complete run
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

CONDITIONS = {
    "gate_abort": "letters",
    "rejected": "letters",
    "new_letters": "letters",
    "retries_exhausted": "run",
    "permanent_error": "run",
    "sla_missed": "sla",
    "sla_at_risk": "sla",
}
"""The incident that an alert of a condition is about."""
DAY = timedelta(days=1)


@dataclass
class ModelRun:
    """A run as an operator would describe it."""

    status: str
    letters: bool = False
    """Whether rows were rejected that are worth an alert, and are still quarantined."""


@dataclass
class Incidents:
    """The incidents of one pipeline."""

    runs: dict[UUID, ModelRun] = field(default_factory=dict)
    has_failed: bool = False
    completed: list[datetime] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    """How many incidents of each kind there have been."""
    _held: dict[str, bool] = field(default_factory=dict)

    def ended(self, run_id: UUID, status: str, at: datetime, *, rejected: bool = False) -> None:
        """A run has ended, or was killed."""
        self.runs[run_id] = ModelRun(status, rejected)
        if status == "complete":
            self.has_failed = False
            self.completed.append(at)
        elif status == "failed":
            self.has_failed = True
        self._note()

    def abandoned(self, run_id: UUID) -> None:
        """An operator has abandoned a run."""
        self.runs[run_id].status = "abandoned"
        self._note()

    def settled(self, run_id: UUID) -> None:
        """All letters of a run were replayed or discarded."""
        self.runs[run_id].letters = False
        self._note()

    def holds(self, incident: str) -> bool:
        """Whether it is not over; of deadlines, see `is_over`."""
        if incident == "letters":
            return any(
                one.status == "aborted" or (one.letters and one.status not in ("abandoned", "running"))
                for one in self.runs.values()
            )
        return self.has_failed or any(one.status == "running" for one in self.runs.values())

    def must_be_known(self, incident: str) -> bool:
        """Whether there must be an alert; of a failure that a later end of a run has replaced, there may be one."""
        if incident == "run":
            return bool(self.runs) and list(self.runs.values())[-1].status in ("failed", "running")
        return self.holds(incident)

    def may_be_open(self, incident: str) -> bool:
        """Whether there may be an open alert: what becomes of letters is not certain before a run under way ends."""
        return self.holds(incident) or any(one.status == "running" for one in self.runs.values())

    def is_over(self, incident: str, since: datetime) -> bool:
        """Whether an alert of it that stands since then may be resolved."""
        if incident == "sla":
            return any(at >= since for at in self.completed)
        return not self.holds(incident)

    def has_missed(self, deadline: datetime) -> bool:
        """Whether there is no complete run at all that could have been for this deadline."""
        return not any(at > deadline - DAY for at in self.completed)

    def _note(self) -> None:
        for incident in ("letters", "run"):
            holds = self.holds(incident)
            self.begun[incident] += holds and not self._held.get(incident, False)
            self._held[incident] = holds
