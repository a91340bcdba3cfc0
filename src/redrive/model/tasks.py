"""The values of a flow: the states of its tasks, what a run reports, what it announces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID


class State(StrEnum):
    """Where a task stands."""

    PENDING = "PENDING"
    """Waits for tasks above it; held, where one of them is a dead letter."""
    READY = "READY"
    """May run as soon as there is a worker."""
    RUNNING = "RUNNING"
    """A worker is at it."""
    SUCCESS = "SUCCESS"
    """Done."""
    FAILED = "FAILED"
    """Its retries are spent."""
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    """Will not run, since a task above it failed."""
    SKIPPED = "SKIPPED"
    """Not to run: it said so itself, a branch left it out, or its `run_when` did not apply."""
    RETRYING = "RETRYING"
    """Waits for the time of its next attempt."""
    SENSING = "SENSING"
    """A sensor that is asked from time to time."""
    DEAD_LETTER = "DEAD_LETTER"
    """Waits for a person."""


class Branch:
    """Returned by a task that chooses: of the tasks after it, only these run, and the others are skipped.

    followers  tasks that come directly after this one, or their names
    result     what the task returns
    """

    __slots__ = ("followers", "result")

    def __init__(self, *followers: Any, result: Any = None) -> None:
        names = [one if isinstance(one, str) else getattr(one, "name", None) for one in followers]
        for given, name in zip(followers, names, strict=True):
            if not isinstance(name, str):
                raise TypeError(f"Branch takes tasks or their names, not {type(given).__name__}")
        self.followers = tuple(str(name) for name in names)
        self.result = result


class FlowStatus(StrEnum):
    """What has become of a flow's run.

    The next run of the flow with the same parameters resumes one that is not complete. `held` is blocked: a task is a
    dead letter and waits for a decision, and so does what comes after it.
    """

    RUNNING = "running"
    """Under way, or its process was killed."""
    COMPLETE = "complete"
    """Every task succeeded."""
    STOPPED = "stopped"
    """It was told to, or its deadline came."""
    HELD = "held"
    """It waits for a person."""
    FAILED = "failed"
    """A task failed, and all that could run has."""
    ABANDONED = "abandoned"
    """Given up by `restart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReport:
    """What a run of a flow did, its earlier parts included where it was resumed."""

    flow: str
    run_id: UUID
    status: FlowStatus
    started_at: datetime
    seconds: float
    """From its beginning to its end, or until now, the time included in which it waited for a decision."""
    worked: float = 0.0
    """Seconds in which executors were at work on it."""
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The values of its parameters."""
    counts: Mapping[State, int] = field(default_factory=dict)
    """Tasks by state; a fan-out is counted by its children."""
    attempts: int = 0
    """Of all tasks."""
    resumed: bool = False
    reason: str | None = None
    """Why it ended before its time."""
    sla: datetime | None = None
    ended_at: datetime | None = None

    @property
    def total(self) -> int:
        """All tasks known so far."""
        return sum(self.counts.values())

    @property
    def late(self) -> bool:
        """Whether the SLA was missed."""
        return self.sla is not None and (self.ended_at or datetime.now(UTC)) > self.sla

    def document(self) -> dict[str, Any]:
        """The report as JSON has it; secrets in the parameters are masked."""
        from redrive._internal.masking import mask_all

        return {
            **{one.name: _plain(getattr(self, one.name)) for one in fields(self)},
            "params": mask_all(self.params),
            "counts": {str(state): count for state, count in self.counts.items()},
            "seconds": round(self.seconds, 3),
            "worked": round(self.worked, 3),
            "total": self.total,
            "late": self.late,
        }

    def json(self) -> str:
        """The report as one JSON document."""
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
            lines.append(f"  late: it was to be done by {self.sla:%Y-%m-%d %H:%M %Z}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID | StrEnum) else value


# ── what a flow announces ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStarted:
    """Event: a run of a flow began, went on where an earlier one stopped, or was joined by one more executor."""

    flow: str
    run_id: UUID
    resumed: bool
    sla: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """Event: an attempt of a task is over, however it ended. Announced where somebody listens, and not logged: the
    others say what matters to people, and there may be thousands of these a second."""

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
    """Why it failed; None where it did not."""
    kind: str | None = None
    """What that error is: a verdict's kind."""

    @property
    def name(self) -> str:
        """The task without the number of the child."""
        return self.task.partition("[")[0]

    @property
    def started_at(self) -> datetime:
        """When the attempt began."""
        return self.ended_at - timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetried:
    """Event: an attempt failed, and there will be another one."""

    flow: str
    run_id: UUID
    task: str
    """`settle`, or `settle[17]` for a child of a fan-out."""
    attempt: int
    reason: str
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed:
    """Event: a task's retries are spent, and what comes after it will not run. One per cause for a fan-out's children,
    when the last of them is over."""

    flow: str
    run_id: UUID
    task: str
    reason: str
    upstream_failed: int
    """How many tasks will not run."""
    count: int = 1
    """How many children of a fan-out failed so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksDead:
    """Event: a person is needed. One per cause and task, however many children of a fan-out died of it."""

    flow: str
    run_id: UUID
    task: str
    """The task, or the fan-out."""
    cause: str
    """The fingerprint: `redrive tasks retry --cause …`."""
    reason: str
    count: int
    """Dead letters of this cause so far, those that were not tried included."""
    untried: int
    """Of these, siblings that were not tried any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeld:
    """Event: the circuit of a service is open, and tasks that need it wait; and once more when they go on."""

    flow: str
    run_id: UUID
    service: str
    held: bool
    """Whether they wait now."""
    retry_in: float | None = None


_AT_RISK = 0.8  # share of the time after which what is not done may be late


def risk_begins(started_at: datetime, due: datetime) -> datetime:
    """Return from when on a run, or a task of it, that is not done is at risk of missing its SLA."""
    return started_at + (due - started_at) * _AT_RISK


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaAtRisk:
    """Event: a run, or one of its tasks, is not done although four fifths of its time are over; and once more when its
    SLA is missed."""

    flow: str
    run_id: UUID
    task: str | None
    """None where the run itself is meant."""
    due: datetime
    """When it is to be done."""
    missed: bool
    """Whether that time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnded:
    """Event: a run is over, for now or for good."""

    report: FlowReport


FlowEvent = FlowStarted | TaskEnded | TaskRetried | TaskFailed | TasksDead | GroupHeld | SlaAtRisk | FlowEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task in a worker's hands."""

    task: str
    seconds: float
    attempt: int
    timeout: float | None = None
    dying: bool = False
    """It was told to end, and has not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """How far a run has come, for who watches it."""

    counts: Mapping[State, int]
    """Tasks by state."""
    running: tuple[RunningTask, ...] = ()
    """The oldest first; not all of them where there are many."""
    retries: tuple[tuple[str, float], ...] = ()
    """What is to be tried again, and in how many seconds; the next one first."""
    held: tuple[tuple[str, str], ...] = ()
    """Groups whose tasks wait, and why."""
    seconds: float = 0.0
