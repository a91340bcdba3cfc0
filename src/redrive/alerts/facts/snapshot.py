"""Snapshots that the rules evaluate, and the judgements that they return.

A `RunSnapshot` holds the facts about one run, a `LevelSnapshot` everything else that is measured at one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from redrive.model.alerts import Finding, Subject
from redrive.policy.time_of_day import TimeOfDay


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """An ended run of the same pipeline or flow."""

    status: str
    started_at: datetime
    ended_at: datetime | None
    seconds: float
    read: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadTasks:
    """Tasks of a flow that are dead letters with the same cause."""

    task: str
    cause: str
    reason: str
    kind: str | None = None
    count: int
    untried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTask:
    """A task of a flow that has an SLA and is not done."""

    task: str
    due: datetime
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """The current state of a run of a pipeline or flow."""

    subject: Subject
    variant: str = ""
    """The first 8 hex digits of the digest of a flow's parameters; empty without parameters."""
    run_id: UUID
    status: str
    """A value of `RunStatus` or `FlowStatus`."""
    lost: bool = False
    """Whether its status is running although no executor runs it any more."""
    started_at: datetime
    ended_at: datetime | None = None
    seconds: float = 0.0
    """Working time so far, in seconds."""
    sla: datetime | None = None
    daily: TimeOfDay | None = None
    """The time of day that `sla` is derived from, if known."""
    failures: int = 0
    """Number of times it was resumed after a failure."""
    reason: str | None = None
    error_kind: str | None = None
    error_type: str | None = None
    error_service: str | None = None
    """The service that caused the failure, if any."""
    detail: str | None = None
    """The full text of an error of more than one line."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that were stored with the run."""
    trace_id: str | None = None
    """The OpenTelemetry trace."""
    next_probe: datetime | None = None
    """When the open circuit of that service lets the next probe through; None if it is closed."""
    next_retry: datetime | None = None
    """When the next task of a flow is retried."""
    # Facts about pipelines.
    read: int = 0
    written: int = 0
    rejected: int = 0
    source_done: int | None = None
    source_total: int | None = None
    """The size of the source, and how much of it is before the checkpoint, in units of the source."""
    tier: str = "log"
    """The tier of its gate: log, P3, P1 or abort."""
    target: str | None = None
    checkpoint: str | None = None
    cause: str | None = None
    """The most frequent cause of its letters."""
    causes: int = 0
    """The number of causes of its letters; 0 if unknown."""
    pending: int = 0
    """The number of open letters of this run."""
    decided: bool = False
    """Whether rows were rejected and all of their letters are reprocessed or discarded."""
    # Facts about flows.
    tasks_done: int = 0
    tasks_total: int = 0
    dead: tuple[DeadTasks, ...] = ()
    due_tasks: tuple[DueTask, ...] = ()
    failed: tuple[str, ...] = ()
    """The errors of tasks with exhausted retries, one for each cause."""
    failed_of: str | None = None
    """The first of these errors, without the name of the task."""
    # Facts about other runs.
    is_history: bool = False
    """Whether a later run of the same ident has ended. Then only facts about this run alone are judged."""
    history: tuple[PastRun, ...] = ()
    """Earlier runs, the newest first."""
    last_complete: datetime | None = None
    """When another run of the same ident last completed."""
    any_complete: datetime | None = None
    """When another run of the flow last completed, with any parameters; used for deadlines and data age."""

    @property
    def last_of_all(self) -> datetime | None:
        """Return when another run last completed, with any parameters."""
        return max((at for at in (self.last_complete, self.any_complete) if at is not None), default=None)

    @property
    def ident(self) -> str:
        """The name in evidence about failure and recovery; flow runs with other parameters have another name."""
        return f"{self.subject.ident}#{self.variant}" if self.variant else self.subject.ident


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """A deadline that has passed, and whether a run met it."""

    subject: Subject
    sla: datetime
    done_at: datetime | None
    """When a run for this deadline completed; None if none has."""
    started: bool
    """Whether a run for this deadline has started."""
    run_id: UUID | None = None
    last_complete: datetime | None = None
    """When any run last completed. A time after the deadline means late, but not missing any more."""
    target: str | None = None
    """Target of its rows."""
    daily: TimeOfDay | None = None
    """The time of day that `sla` is derived from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The age of the output of a pipeline or flow, and its limit `fresh_within`."""

    subject: Subject
    within: float
    """The maximum number of seconds between two complete runs."""
    age: float
    """Seconds since the last complete run or, if there is none, since the setting was first read."""
    last_complete: datetime | None = None
    target: str | None = None
    run_id: UUID | None = None
    """The newest run, with its status."""
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAge:
    """The age of the newest row of a watched table, and its limit `fresh_within`."""

    name: str
    column: str
    within: float
    """The maximum age of the newest row, in seconds."""
    age: float | None
    """None if the table has no rows."""
    newest: datetime | None = None
    pipeline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The attempts of calls to a service in one minute."""

    at: datetime
    """The start of the minute."""
    attempts: int
    faults: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The calls to a service in a span of time."""

    calls: int = 0
    failed: int = 0
    """Calls that failed because of the service, not because of the request or the credential."""
    successes: int = 0
    retries: int = 0

    def __add__(self, other: Window) -> Window:
        return Window(
            calls=self.calls + other.calls,
            failed=self.failed + other.failed,
            successes=self.successes + other.successes,
            retries=self.retries + other.retries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSnapshot:
    """The recent calls to a service."""

    name: str
    minutes: tuple[Minute, ...] = ()
    """The last two hours, the oldest first; minutes without attempts are left out."""
    quarters: tuple[Window, ...] = ()
    """The last hour by quarters, including the current one; quarters without calls are left out."""
    usual: tuple[Window, ...] = ()
    """The baseline for the last hour: the same hours of earlier days, without hours with an open alert about the
    service."""
    # Sums of the last hour.
    failed_4xx: int = 0
    failed_404: int = 0
    streaks_5xx: int = 0
    """Number of times that three calls in a row ended in a 5xx response."""
    failed_auth: int = 0
    last_auth_failure: datetime | None = None
    """When a call last failed within a day because its credential was permanently rejected."""
    last_success: datetime | None = None
    """A time within the last day at or after which an attempt succeeded."""
    next_probe: datetime | None = None
    """When an open circuit next lets a probe through, in any process."""
    used_by: tuple[str, ...] = ()
    """Pipelines whose recent runs were ended by this service."""

    @property
    def hour(self) -> Window:
        """The sum of the last hour."""
        return sum(self.quarters, Window())


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLetters:
    """The open letters of one pipeline, both pending and escalated."""

    pipeline: str
    pending: int
    new_today: int
    """Open letters whose rows were rejected within the last 24 hours."""
    cause: str | None = None
    oldest: datetime | None = None
    """When the row of the oldest open letter was rejected, rounded down to the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The row count of a table now, and at the same hour of the same weekday last week."""

    name: str
    rows: int
    week_ago: int | None
    pipeline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot."""

    name: str
    lag_bytes: int
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of a consumer, as returned by a probe."""

    consumer: str
    messages: int | None = None
    seconds: float | None = None
    look: str | None = None
    """A command that shows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The value of a condition that the settings define."""

    name: str
    value: float | None
    """None if there is no value: no row, no sample, or a probe that returns None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSnapshot:
    """All levels at one moment: deadlines, freshness, running runs, services, letters, tables, slots and lags."""

    now: datetime
    due: tuple[DueRun, ...] = ()
    """The last deadline of every pipeline and flow with an SLA."""
    inactive: tuple[str, ...] = ()
    """The idents of pipelines and flows without a current deadline, because none is set or they stopped running."""
    fresh: tuple[Freshness, ...] = ()
    """Every pipeline and flow with a `fresh_within`."""
    table_ages: tuple[TableAge, ...] = ()
    """Every watched table with a `fresh_within`."""
    running: tuple[RunSnapshot, ...] = ()
    """Runs that are running, lost, or ended incomplete with an SLA; and flows that are blocked, or stopped with dead
    tasks."""
    services: tuple[ServiceSnapshot, ...] = ()
    letters: tuple[PendingLetters, ...] = ()
    pending_total: int = 0
    store_bytes: int | None = None
    """The size of the store on disk; None if unknown."""
    letters_bytes: int | None = None
    """The size of the table of letters with its indexes; None if unknown."""
    tables: tuple[TableRows, ...] = ()
    slots: tuple[Slot, ...] = ()
    lags: tuple[Lag, ...] = ()
    figures: tuple[Figure, ...] = ()
    """The values of the conditions that the settings define."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What could not be measured, and why: `slots`, `tables:silver.orders`, `lags:billing` … Alerts about it are not
    changed."""

    def knows(self, what: str, name: str) -> bool:
        """Return whether a value could be measured, such as `silver.orders` of `tables`."""
        return what not in self.unknown and f"{what}:{name}" not in self.unknown

    def judged(self, what: str, evidence: str, names: Iterable[str], *, leaving: Collection[str] = ()) -> Judgement:
        """Return a judgement without findings that lists the evidence that could be evaluated.

        Args:
            what: The group of measurements, such as `tables`.
            evidence: The prefix of the evidence.
            names: The names that were measured; used when not all evidence with the prefix could be evaluated.
            leaving: Names whose evidence is not evaluated.
        """
        if what in self.unknown:
            return Judgement()
        if leaving or any(name.startswith(f"{what}:") for name in self.unknown):
            known = (name for name in names if name not in leaving and self.knows(what, name))
            return Judgement(judged=frozenset(f"{evidence}{name}" for name in known))
        return Judgement(judged_under=frozenset({evidence}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of rules: the conditions that hold, and the evidence that was evaluated."""

    findings: tuple[Finding, ...] = ()
    judged: frozenset[str] = frozenset()
    """The names of evaluated evidence. Evaluated evidence without a finding is withdrawn from its alerts."""
    judged_under: frozenset[str] = frozenset()
    """Prefixes of evidence that was evaluated completely, such as `level:down:`."""
    excluded: frozenset[str] = frozenset()
    """Evidence that counts as not evaluated because it is newer than the judged facts; takes precedence."""

    def __add__(self, other: Judgement) -> Judgement:
        return Judgement(
            findings=self.findings + other.findings,
            judged=self.judged | other.judged,
            judged_under=self.judged_under | other.judged_under,
            excluded=self.excluded | other.excluded,
        )

    def covers(self, evidence: str) -> bool:
        """Return whether this evidence was evaluated."""
        if evidence in self.excluded:
            return False
        return evidence in self.judged or any(evidence.startswith(prefix) for prefix in self.judged_under)
