"""What the rules look at: a run, or the levels of everything, gathered from the store at one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from redrive.model.alerts import Finding, Subject
from redrive.policy.time_of_day import TimeOfDay


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run of the same pipeline or flow that is over."""

    status: str
    started_at: datetime
    ended_at: datetime | None
    seconds: float
    read: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadTasks:
    """Tasks of a flow that died of one cause."""

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
    """A run of a pipeline or a flow as it stands now."""

    subject: Subject
    variant: str = ""
    """Of a flow that was given parameters, what tells these from others: 8 hex digits of their digest."""
    run_id: UUID
    status: str
    """As `RunStatus` or `FlowStatus` has it."""
    lost: bool = False
    """It says that it runs, and nobody is behind it any more."""
    started_at: datetime
    ended_at: datetime | None = None
    seconds: float = 0.0
    """At work so far; of one that runs, until now."""
    sla: datetime | None = None
    daily: TimeOfDay | None = None
    """The time of day which `sla` comes of, where that is known."""
    failures: int = 0
    """How often it was gone on with after it had failed or died."""
    reason: str | None = None
    error_kind: str | None = None
    error_type: str | None = None
    error_service: str | None = None
    """The service that is to blame, where one is."""
    detail: str | None = None
    """All lines of the error, where it has more than one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that were kept with the run."""
    trace_id: str | None = None
    """Of OpenTelemetry."""
    next_probe: datetime | None = None
    """When the open circuit of that service lets the next probe through, where it is open."""
    next_retry: datetime | None = None
    """When the next task of a flow is retried."""
    # Of a pipeline.
    read: int = 0
    written: int = 0
    rejected: int = 0
    source_done: int | None = None
    source_total: int | None = None
    """How much of the source is behind the checkpoint, and how much there is, in its own units."""
    tier: str = "log"
    """What its gate says: log, P3, P1, abort."""
    target: str | None = None
    checkpoint: str | None = None
    cause: str | None = None
    """What most of its letters have in common."""
    causes: int = 0
    """How many causes its letters have; 0 where that is not known."""
    pending: int = 0
    """Letters of this run that are open."""
    decided: bool = False
    """Whether rows were rejected and all of their letters are reprocessed or discarded."""
    # Of a flow.
    tasks_done: int = 0
    tasks_total: int = 0
    dead: tuple[DeadTasks, ...] = ()
    due_tasks: tuple[DueTask, ...] = ()
    failed: tuple[str, ...] = ()
    """Why tasks failed whose retries are spent, one sentence for each cause."""
    failed_of: str | None = None
    """The error of the first of these, without the name of the task."""
    # To compare it with.
    is_history: bool = False
    """A run of the same ident has ended since: what this one did is over, but for what is about itself alone."""
    history: tuple[PastRun, ...] = ()
    """Runs before this one, the newest first."""
    last_complete: datetime | None = None
    """When a run of the same ident was last complete, this one not counted."""
    any_complete: datetime | None = None
    """The same of a flow's runs with whatever parameters: its deadline and its data go by these."""

    @property
    def last_of_all(self) -> datetime | None:
        """When a run of it was last complete, whatever its parameters."""
        return max((one for one in (self.last_complete, self.any_complete) if one is not None), default=None)

    @property
    def ident(self) -> str:
        """What its failures and its recovery are told under. Runs of a flow with other parameters are other work."""
        return f"{self.subject.ident}#{self.variant}" if self.variant else self.subject.ident


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """A deadline that has passed: was there a run that kept it?"""

    subject: Subject
    sla: datetime
    done_at: datetime | None
    """When a run that was to be done by then was complete; None where there is none yet."""
    started: bool
    """Whether one has at least begun."""
    run_id: UUID | None = None
    last_complete: datetime | None = None
    """When any run of it was last complete. After the deadline is late, and not missing any more."""
    target: str | None = None
    """What it writes to."""
    daily: TimeOfDay | None = None
    """The time of day which `sla` comes of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The age of what a pipeline or flow makes, against its `fresh_within`."""

    subject: Subject
    within: float
    """Seconds that may pass between two complete runs."""
    age: float
    """Seconds since the last complete run, or since the setting was first seen where there is none."""
    last_complete: datetime | None = None
    target: str | None = None
    run_id: UUID | None = None
    """The newest run, with its status."""
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAge:
    """The age of the newest row of a watched table, against its `fresh_within`."""

    name: str
    column: str
    within: float
    """Seconds that the newest row may be old."""
    age: float | None
    """None where the table has no rows."""
    newest: datetime | None = None
    pipeline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """One minute of a service."""

    at: datetime
    """Its beginning."""
    attempts: int
    faults: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a service did in a span of time."""

    calls: int = 0
    failed: int = 0
    """Calls that failed because of the service: neither the request nor the credential was at fault."""
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
class ServicePicture:
    """A service of late."""

    name: str
    minutes: tuple[Minute, ...] = ()
    """The last two hours, the oldest first; minutes without attempts are left out."""
    quarters: tuple[Window, ...] = ()
    """The last hour by quarters, the one under way included; quarters without calls are left out."""
    usual: tuple[Window, ...] = ()
    """What to compare the last hour with: the same hours of each earlier day, without those in which an alert about the
    service stood."""
    # Sums of the last hour.
    failed_4xx: int = 0
    failed_404: int = 0
    streaks_5xx: int = 0
    """How often three calls in a row ended in an answer 5xx."""
    failed_auth: int = 0
    last_auth_failure: datetime | None = None
    """When, within a day, a call last failed by a credential that was refused for good."""
    last_success: datetime | None = None
    """A moment within a day at which, or after which, an attempt has succeeded."""
    next_probe: datetime | None = None
    """When its open circuit lets the next probe through, of the processes that hold it open the first."""
    used_by: tuple[str, ...] = ()
    """The pipelines and flows that are known to suffer where it fails."""

    @property
    def hour(self) -> Window:
        """The last hour."""
        return sum(self.quarters, Window())


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLetters:
    """Open letters of one pipeline: pending and escalated ones."""

    pipeline: str
    pending: int
    new_today: int
    """Those of them that were rejected within the last 24 hours."""
    cause: str | None = None
    oldest: datetime | None = None
    """When the oldest of them was rejected, to the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """A table's rows now, and at the same hour of the same weekday last week."""

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
    """How far a consumer is behind: what a probe answers."""

    consumer: str
    messages: int | None = None
    seconds: float | None = None
    look: str | None = None
    """What to type to see more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The number of a condition that the settings define."""

    name: str
    value: float | None
    """None where there is nothing to measure: no row, no sample, a probe that returns None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPicture:
    """Everything that is a level, at one moment."""

    now: datetime
    due: tuple[DueRun, ...] = ()
    """The last deadline of every pipeline and flow that is expected to keep one."""
    given_up: tuple[str, ...] = ()
    """The idents of what had a deadline, and has not run for so long that nobody waits for it any more."""
    fresh: tuple[Freshness, ...] = ()
    """Every pipeline and flow with a `fresh_within`."""
    table_ages: tuple[TableAge, ...] = ()
    """Every watched table with a `fresh_within`."""
    running: tuple[RunSnapshot, ...] = ()
    """Runs that are under way, or lost, or that ended before they were complete and have an SLA; and flows that are
    held, or that were stopped while tasks of them are dead."""
    services: tuple[ServicePicture, ...] = ()
    letters: tuple[PendingLetters, ...] = ()
    pending_total: int = 0
    store_bytes: int | None = None
    """What the store takes on disk; None where that is not known."""
    letters_bytes: int | None = None
    """What the table of letters takes, with its indexes; None where that is not known."""
    tables: tuple[TableRows, ...] = ()
    slots: tuple[Slot, ...] = ()
    lags: tuple[Lag, ...] = ()
    figures: tuple[Figure, ...] = ()
    """Of the conditions that the settings define."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What could not be measured now, and why: `slots`, `tables:silver.orders`, `lags:billing` … Nothing is concluded
    from that: an alert about it stays as it is."""

    def knows(self, what: str, name: str) -> bool:
        """Whether this could be measured: of the `tables`, `silver.orders`."""
        return what not in self.unknown and f"{what}:{name}" not in self.unknown

    def judged(self, what: str, evidence: str, names: Iterable[str], *, leaving: Collection[str] = ()) -> Judgement:
        """The evidence that could be weighed: all that begins so; by name, where some is not known or is left alone."""
        if what in self.unknown:
            return Judgement()
        if leaving or any(one.startswith(f"{what}:") for one in self.unknown):
            known = (name for name in names if name not in leaving and self.knows(what, name))
            return Judgement(judged=frozenset(f"{evidence}{name}" for name in known))
        return Judgement(judged_under=frozenset({evidence}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the rules say: what holds, and what was looked at."""

    findings: tuple[Finding, ...] = ()
    judged: frozenset[str] = frozenset()
    """The evidence that was weighed, by name. What is judged and not found any more is withdrawn from the alerts that
    rest on it."""
    judged_under: frozenset[str] = frozenset()
    """How evidence begins of which all was weighed, such as `level:down:`."""
    left_alone: frozenset[str] = frozenset()
    """Evidence that was not weighed, whatever the other two say: it is newer than what was looked at."""

    def __add__(self, other: Judgement) -> Judgement:
        return Judgement(
            findings=self.findings + other.findings,
            judged=self.judged | other.judged,
            judged_under=self.judged_under | other.judged_under,
            left_alone=self.left_alone | other.left_alone,
        )

    def weighed(self, evidence: str) -> bool:
        """Whether this evidence was looked at."""
        if evidence in self.left_alone:
            return False
        return evidence in self.judged or any(evidence.startswith(one) for one in self.judged_under)
