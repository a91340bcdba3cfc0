"""The values of a flow: the states of its tasks, its report, its progress, its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID


class State(StrEnum):
    """The state of a task."""

    PENDING = "PENDING"
    """Waits for upstream tasks; blocked if one of them is a dead letter."""
    READY = "READY"
    """Runs as soon as a worker is free."""
    RUNNING = "RUNNING"
    """A worker runs it."""
    SUCCESS = "SUCCESS"
    """Done."""
    FAILED = "FAILED"
    """Its retries are exhausted."""
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    """Will not run, since an upstream task failed."""
    SKIPPED = "SKIPPED"
    """Did not run: it raised Skip, a branch left it out, or its `run_when` did not apply."""
    RETRYING = "RETRYING"
    """Waits for its next attempt."""
    SENSING = "SENSING"
    """A sensor that is polled."""
    DEAD_LETTER = "DEAD_LETTER"
    """Waits for a decision of an operator."""


class Branch:
    """Returned by a task that chooses: of the tasks after it, only these run, and the others are skipped.

    followers  tasks that come directly after this one, or their names
    result     what the task returns
    """

    __slots__ = ("followers", "result")

    def __init__(self, *followers: Any, result: Any = None) -> None:
        names = [task if isinstance(task, str) else getattr(task, "name", None) for task in followers]
        for given, name in zip(followers, names, strict=True):
            if not isinstance(name, str):
                raise TypeError(f"Branch takes tasks or their names, not {type(given).__name__}")
        self.followers = tuple(str(name) for name in names)
        self.result = result


class FlowStatus(StrEnum):
    """The status of a flow's run.

    The next run of the flow with the same parameters resumes a run that is not complete. `held` means blocked: a task
    is a dead letter and waits for a decision, and so do the tasks after it.
    """

    RUNNING = "running"
    """Under way, or its process was killed."""
    COMPLETE = "complete"
    """Every task succeeded."""
    STOPPED = "stopped"
    """It was stopped, or its deadline came."""
    HELD = "held"
    """It waits for an operator."""
    FAILED = "failed"
    """A task failed, and every task that could run has."""
    ABANDONED = "abandoned"
    """Replaced by a run with `restart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReport:
    """What a run of a flow did, its earlier parts included if it was resumed."""

    flow: str
    run_id: UUID
    status: FlowStatus
    started_at: datetime
    seconds: float
    """From its start to its end, or until now, including the time for which it waited for a decision."""
    worked: float = 0.0
    """Seconds in which executors worked on it."""
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The values of its parameters."""
    counts: Mapping[State, int] = field(default_factory=dict)
    """Tasks by state; a fan-out is counted by its children."""
    attempts: int = 0
    """Attempts of all tasks."""
    resumed: bool = False
    reason: str | None = None
    """Why it ended early."""
    sla: datetime | None = None
    ended_at: datetime | None = None

    @property
    def total(self) -> int:
        """All tasks known so far."""
        return sum(self.counts.values())

    @property
    def late(self) -> bool:
        """Return whether the SLA was missed."""
        return self.sla is not None and (self.ended_at or datetime.now(UTC)) > self.sla

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document; secrets in the parameters are masked."""
        from redrive._internal.masking import mask_all

        return {
            **{field.name: _plain(getattr(self, field.name)) for field in fields(self)},
            "params": mask_all(self.params),
            "counts": {str(state): count for state, count in self.counts.items()},
            "seconds": round(self.seconds, 3),
            "worked": round(self.worked, 3),
            "total": self.total,
            "late": self.late,
        }

    def json(self) -> str:
        """Return the report as JSON text."""
        import json

        return json.dumps(self.document(), ensure_ascii=False, default=str)

    def __str__(self) -> str:
        resumed = ", resumed" if self.resumed else ""
        counted = ", ".join(f"{count:,} {state}" for state, count in self.counts.items())
        tried = "1 attempt" if self.attempts == 1 else f"{self.attempts:,} attempts"
        lines = [
            f"{self.flow}: {self.status}{resumed}" + (f" ({self.reason})" if self.reason else ""),
            f"  {counted or 'no tasks'}; {tried}, {self.worked:.1f} s",
        ]
        if self.counts.get(State.DEAD_LETTER) or self.counts.get(State.FAILED):
            lines.append(f"  what went wrong: redrive tasks ls --run {self.run_id}")
        if self.late and self.sla is not None:
            lines.append(f"  SLA missed: due {self.sla:%Y-%m-%d %H:%M %Z}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID | StrEnum) else value


# ── events of a flow ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStarted:
    """Event: a run of a flow started, resumed where an earlier one stopped, or was joined by one more executor."""

    flow: str
    run_id: UUID
    resumed: bool
    sla: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """Event: an attempt of a task ended. Published only if a hook is registered, and not logged: there may be thousands
    per second, and the other events report what matters to operators."""

    flow: str
    run_id: UUID
    task: str
    """`settle`, or `settle[17]` for a child of a fan-out."""
    attempt: int
    state: State
    """What the task is now: `SUCCESS`, `RETRYING` …"""
    ended: str
    """How the attempt ended: `returned`, `raised`, `died`, `timed_out`, `stopped` or `lost`."""
    ended_at: datetime
    seconds: float
    """How long it took."""
    error: str | None = None
    """Why it failed; None if it did not."""
    kind: str | None = None
    """The kind of the error's verdict."""

    @property
    def name(self) -> str:
        """The task without the index of the child."""
        return self.task.partition("[")[0]

    @property
    def started_at(self) -> datetime:
        """Return when the attempt began."""
        return self.ended_at - timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetried:
    """Event: an attempt failed, and will be retried."""

    flow: str
    run_id: UUID
    task: str
    """`settle`, or `settle[17]` for a child of a fan-out."""
    attempt: int
    reason: str
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed:
    """Event: the retries of a task are exhausted, and the tasks after it will not run. For a fan-out, one event per
    cause, when the last child has ended."""

    flow: str
    run_id: UUID
    task: str
    reason: str
    upstream_failed: int
    """Number of tasks that will not run."""
    count: int = 1
    """Number of children of a fan-out that failed for this cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksDead:
    """Event: an operator is needed. One event per cause and task, however many children of a fan-out failed of it."""

    flow: str
    run_id: UUID
    task: str
    """The task, or the fan-out."""
    cause: str
    """The fingerprint: `redrive tasks retry --cause …`."""
    reason: str
    count: int
    """Dead letters of this cause so far, siblings that were not attempted included."""
    untried: int
    """Siblings among them that were not attempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeld:
    """Event: the circuit of a service is open, and the tasks that need it wait; published again when they continue."""

    flow: str
    run_id: UUID
    service: str
    held: bool
    """Whether they wait now."""
    retry_in: float | None = None


_AT_RISK = 0.8  # share of the time after which a run that is not done may miss its SLA


def risk_begins(started_at: datetime, due: datetime) -> datetime:
    """Return when a run, or a task of it, that is not done becomes at risk of missing its SLA."""
    return started_at + (due - started_at) * _AT_RISK


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaAtRisk:
    """Event: a run, or one of its tasks, is not done after four fifths of its time; published again when its SLA is
    missed."""

    flow: str
    run_id: UUID
    task: str | None
    """None for the run itself."""
    due: datetime
    """When it is due."""
    missed: bool
    """Whether that time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnded:
    """Event: a run ended; it may be resumed later."""

    report: FlowReport


FlowEvent = FlowStarted | TaskEnded | TaskRetried | TaskFailed | TasksDead | GroupHeld | SlaAtRisk | FlowEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that a worker runs."""

    task: str
    seconds: float
    attempt: int
    timeout: float | None = None
    dying: bool = False
    """Whether it was asked to end, and has not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """How far a run has come, for progress displays."""

    counts: Mapping[State, int]
    """Tasks by state."""
    running: tuple[RunningTask, ...] = ()
    """The oldest first; not all of them where there are many."""
    retries: tuple[tuple[str, float], ...] = ()
    """Tasks to retry, and in how many seconds; the next one first."""
    held: tuple[tuple[str, str], ...] = ()
    """Groups whose tasks wait, and why."""
    seconds: float = 0.0
