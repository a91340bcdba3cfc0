"""The values of a run: what it counts, what it reports, what it announces."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Tier(StrEnum):
    """How much a share of rejected rows matters to people."""

    LOG = "log"
    """A matter for the log."""
    P3 = "P3"
    """A matter for the day."""
    P1 = "P1"
    """Somebody is called."""
    ABORT = "abort"
    """The run is stopped."""


class RunStatus(StrEnum):
    """What has become of a run. A run that is running, stopped or failed is resumed by the next."""

    RUNNING = "running"
    """Under way, or its process was killed."""
    COMPLETE = "complete"
    """The source was read to its end."""
    STOPPED = "stopped"
    """It was told to, or its deadline came."""
    ABORTED = "aborted"
    """The gate aborted it: too many rows were rejected, or too few were read."""
    FAILED = "failed"
    """An error ended it."""
    ABANDONED = "abandoned"
    """Given up by `restart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rows, by what became of them; read = written + rejected + discarded + duplicates."""

    read: int = 0
    written: int = 0
    rejected: int = 0
    discarded: int = 0
    """Dropped on purpose."""
    duplicates: int = 0
    """Superseded by another row with the same key."""
    batches: int = 0
    retries: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in COUNTED})

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) - getattr(other, name) for name in COUNTED})

    @property
    def rate(self) -> float:
        """The share of rejected rows."""
        return self.rejected / self.read if self.read else 0.0


COUNTED = tuple(one.name for one in fields(Counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run did, its earlier parts included where it was resumed."""

    pipeline: str
    run_id: UUID
    status: RunStatus
    source: str
    sink: str
    started_at: datetime
    seconds: float
    """At work, in all parts of the run."""
    read: int = 0
    written: int = 0
    rejected: int = 0
    discarded: int = 0
    """Rows that were dropped on purpose."""
    duplicates: int = 0
    batches: int = 0
    retries: int = 0
    tier: Tier = Tier.LOG
    """What the gate says of the share of rejected rows."""
    resumed: bool = False
    started_over: str | None = None
    """Why an unfinished run was abandoned and this one read from the start; None where that did not happen."""
    checkpoint: Any = field(default=None, repr=False)
    """Where the next run would begin."""
    reason: str | None = None
    """Why it ended before its time."""
    sla: datetime | None = None
    """When it was to be done."""
    ended_at: datetime | None = None
    gate_overridden: bool = False
    """Whether an operator let it continue after the gate had aborted it."""
    source_done: int | None = None
    """How much of the source is behind the checkpoint, in its own units: bytes of a file, pages, rows."""
    source_total: int | None = None
    """How much there is, where the source knows it."""
    detail: str | None = None
    """All lines of the error that ended it, masked, where there is more than the first, which is `reason`."""
    ignored_columns: tuple[str, ...] = ()
    """Columns of the source that the model or schema does not name; only in the report that the run itself returns."""

    @property
    def rate(self) -> float:
        """The share of rejected rows."""
        return self.rejected / self.read if self.read else 0.0

    @property
    def source_share(self) -> float | None:
        """The share of the source that was read; None where its size is not known."""
        return share_of(self.source_done, self.source_total)

    @property
    def throughput(self) -> float:
        """Rows a second."""
        return self.read / self.seconds if self.seconds else 0.0

    @property
    def late(self) -> bool:
        """Whether the SLA was missed."""
        return self.sla is not None and (self.ended_at or datetime.now(UTC)) > self.sla

    def document(self) -> dict[str, Any]:
        """The report as JSON has it; a secret in the checkpoint is masked."""
        from redrive._internal.masking import mask_all

        found = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}
        del found["ignored_columns"]  # the store does not keep them
        return {
            **found,
            "checkpoint": mask_all(self.checkpoint),
            **({"ignored_columns": list(self.ignored_columns)} if self.ignored_columns else {}),
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 6),
            "throughput": round(self.throughput, 1),
            "late": self.late,
        }

    def json(self) -> str:
        """The report as one JSON document."""
        import json

        return json.dumps(self.document(), ensure_ascii=False)

    def __str__(self) -> str:
        resumed = ", resumed" if self.resumed else ""
        lines = [
            f"{self.pipeline}: {self.status}{resumed}" + (f" ({self.reason})" if self.reason else ""),
            f"  {self.source} → {self.sink}",
            f"  read {self.read:,}, written {self.written:,}, rejected {self.rejected:,} ({self.rate:.1%}, {self.tier})"
            + (f", duplicates {self.duplicates:,}" if self.duplicates else "")
            + (f", discarded {self.discarded:,}" if self.discarded else ""),
            f"  {_counted(self.batches, 'batch', 'batches')}, {_counted(self.retries, 'retry', 'retries')}, "
            f"{self.seconds:.1f} s, {self.throughput:,.0f} rows/s",
        ]
        if self.started_over:
            lines.insert(1, f"  started over: {self.started_over}")
        if self.gate_overridden:
            lines.append("  gate overridden: an operator let the run continue after the gate had aborted it")
        if self.ignored_columns:
            lines.append(f"  columns not written: {', '.join(self.ignored_columns)}")
        if self.status is RunStatus.COMPLETE and not self.read:
            lines.append("  warning: no rows were read")
        if self.rejected:
            lines.append(f"  the rejected rows: redrive dlq causes --run {str(self.run_id)[:8]}")
        if self.late and self.sla is not None:
            lines.append(f"  late: it was to be done by {self.sla:%Y-%m-%d %H:%M %Z}")
        return "\n".join(lines)


def share_of(done: int | None, total: int | None) -> float | None:
    """The share that is done, at most 1; None where that is not known."""
    return None if done is None or not total else min(1.0, done / total)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID | StrEnum) else value


# ── what a run announces ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Event: a run began, or went on where an earlier one stopped."""

    pipeline: str
    run_id: UUID
    source: str
    sink: str
    resumed: bool
    checkpoint: Any = field(default=None, repr=False)
    sla: datetime | None = None
    started_over: str | None = None
    """Why an unfinished run was abandoned and this one reads from the start; None where that did not happen."""
    gate_overridden: bool = False
    """Whether an operator let it continue after the gate had aborted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten:
    """Event: the rows of a batch are in the sink, its rejects in the quarantine, and the checkpoint behind it."""

    pipeline: str
    run_id: UUID
    counts: Counts
    """Of this batch."""
    so_far: Counts
    """Of the run."""
    seconds: float
    checkpoint: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShrunk:
    """Event: memory did not suffice; batches are smaller from here on."""

    pipeline: str
    run_id: UUID
    rows: int
    """Rows of a batch from here on."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRetried:
    """Event: a transient error stopped a batch before the sink; it is read, or checked and transformed, once more."""

    pipeline: str
    run_id: UUID
    step: str
    """"read", or "prepare" for validate and transform."""
    retry: int
    """The number of the retry, from 1."""
    wait: float
    """Seconds until then."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuarantined:
    """Event: a batch was bad as a whole and went to the quarantine as one letter."""

    pipeline: str
    run_id: UUID
    rows: int
    """Rows that were in it."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudged:
    """Event: the share of rejected rows reached a tier; and once more when the run ends."""

    pipeline: str
    run_id: UUID
    tier: Tier
    """How much it matters."""
    rate: float
    """The share of rejected rows."""
    rejected: int
    read: int
    final: bool = False
    """Whether the run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsIgnored:
    """Event: the source has columns that the model or schema does not name, so that they are not written."""

    pipeline: str
    run_id: UUID
    source: str
    columns: tuple[str, ...]
    """Their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Event: a run is over, for now or for good."""

    report: Report
    error: str | None = None
    """The class of the error that ended it."""
    kind: str | None = None
    """What that error is: a verdict's kind."""
    service: str | None = None
    """The service that is to blame for it, where one is."""


RunEvent = (
    RunStarted | BatchWritten | BatchShrunk | BatchRetried | BatchQuarantined | GateJudged | ColumnsIgnored | RunEnded
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come, for who watches it."""

    counts: Counts
    """Rows, by what became of them."""
    done: int
    """How much of the source was read."""
    total: int | None
    """In the source's own units: bytes of a file, pages, rows."""
    seconds: float
