"""The values of a pipeline run: its counts, its report, its events."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Tier(StrEnum):
    """How serious a share of rejected rows is."""

    LOG = "log"
    """A log line, no alert."""
    P3 = "P3"
    """To be reviewed within a day."""
    P1 = "P1"
    """The on-call is called."""
    ABORT = "abort"
    """The run is stopped."""


class RunStatus(StrEnum):
    """The status of a run. A run that is running, stopped or failed is resumed by the next."""

    RUNNING = "running"
    """Under way, or its process was killed."""
    COMPLETE = "complete"
    """The source was read to its end."""
    STOPPED = "stopped"
    """It was stopped, or its deadline came."""
    ABORTED = "aborted"
    """The gate aborted it: too many rows were rejected, or too few were read."""
    FAILED = "failed"
    """An error ended it."""
    ABANDONED = "abandoned"
    """Replaced by a run with `restart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of rows; read = written + rejected + discarded + duplicates."""

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


COUNTED = tuple(count.name for count in fields(Counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run did, its earlier parts included if it was resumed."""

    pipeline: str
    run_id: UUID
    status: RunStatus
    source: str
    sink: str
    started_at: datetime
    seconds: float
    """Time at work, in all parts of the run."""
    read: int = 0
    written: int = 0
    rejected: int = 0
    discarded: int = 0
    """Rows that were dropped on purpose."""
    duplicates: int = 0
    batches: int = 0
    retries: int = 0
    tier: Tier = Tier.LOG
    """The tier that the gate assigns to the share of rejected rows."""
    resumed: bool = False
    started_over: str | None = None
    """Why an unfinished run was abandoned and this one read from the start; None where that did not happen."""
    checkpoint: Any = field(default=None, repr=False)
    """Where the next run would resume."""
    reason: str | None = None
    """Why it ended early."""
    sla: datetime | None = None
    """When it was due."""
    ended_at: datetime | None = None
    gate_overridden: bool = False
    """Whether an operator let it continue after the gate had aborted it."""
    source_done: int | None = None
    """How much of the source was read up to the checkpoint, in units of the source: bytes of a file, pages, rows."""
    source_total: int | None = None
    """The size of the source, if known."""
    detail: str | None = None
    """All lines of the error that ended it, masked; None if `reason`, its first line, is all."""
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
        """Rows per second."""
        return self.read / self.seconds if self.seconds else 0.0

    @property
    def late(self) -> bool:
        """Return whether the SLA was missed."""
        return self.sla is not None and (self.ended_at or datetime.now(UTC)) > self.sla

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document; a secret in the checkpoint is masked."""
        from redrive._internal.masking import mask_all

        document = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        del document["ignored_columns"]  # the store does not keep them
        return {
            **document,
            "checkpoint": mask_all(self.checkpoint),
            **({"ignored_columns": list(self.ignored_columns)} if self.ignored_columns else {}),
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 6),
            "throughput": round(self.throughput, 1),
            "late": self.late,
        }

    def json(self) -> str:
        """Return the report as JSON text."""
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
            lines.append(f"  SLA missed: due {self.sla:%Y-%m-%d %H:%M %Z}")
        return "\n".join(lines)


def share_of(done: int | None, total: int | None) -> float | None:
    """Return the share that is done, at most 1; None if either number is unknown."""
    return None if done is None or not total else min(1.0, done / total)


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID | StrEnum) else value


# ── events of a run ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Event: a run started, or resumed where an earlier one stopped."""

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
    """Event: the rows of a batch are in the sink, its rejected rows in the quarantine, and the checkpoint is saved."""

    pipeline: str
    run_id: UUID
    counts: Counts
    """Counts of this batch."""
    so_far: Counts
    """Counts of the run."""
    seconds: float
    checkpoint: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShrunk:
    """Event: memory was exhausted; the next batches are smaller."""

    pipeline: str
    run_id: UUID
    rows: int
    """Rows of the next batches."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRetried:
    """Event: a transient error stopped a batch before the sink; it is read, or validated and transformed, again."""

    pipeline: str
    run_id: UUID
    step: str
    """"read", or "prepare" for validate and transform."""
    retry: int
    """The number of the retry, from 1."""
    wait: float
    """Seconds until the retry."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuarantined:
    """Event: a batch was rejected as a whole and went to the quarantine as one letter."""

    pipeline: str
    run_id: UUID
    rows: int
    """Rows that were in it."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudged:
    """Event: the share of rejected rows reached a tier; published again when the run ends."""

    pipeline: str
    run_id: UUID
    tier: Tier
    """How serious the share is."""
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
    """Event: a run ended; it may be resumed later."""

    report: Report
    error: str | None = None
    """The class of the error that ended it."""
    kind: str | None = None
    """The kind of the error's verdict."""
    service: str | None = None
    """The service that caused the error, if any."""


RunEvent = (
    RunStarted | BatchWritten | BatchShrunk | BatchRetried | BatchQuarantined | GateJudged | ColumnsIgnored | RunEnded
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come, for progress displays."""

    counts: Counts
    """Rows, by what became of them."""
    done: int
    """How much of the source was read, in units of the source: bytes of a file, pages, rows."""
    total: int | None
    """The size of the source; None if unknown."""
    seconds: float
