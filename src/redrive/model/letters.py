"""The values of the dead-letter queue: letters, causes, audit entries, and the reports of replays, edits and purges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

GENERATED_KEY = "generated_key"
"""The name under which the record of a call has the idempotency key that redrive generated for it."""

BODY_MISSING = "body_missing"
"""Where the record of a request says why its body is not kept."""

ARGUMENT_MISSING = "argument_missing"
"""Where the record of a call says why an argument is not kept."""

BOUND = "bound"
"""The name under which the record of a call has what its function works on beside its arguments."""

ARGUMENT_TYPES = "argument_types"
"""The name under which the record of a call has the classes of values that it shows as plain data."""

CODE = "code"
"""The name under which the record of a call of a lambda has a digest of its code."""

DIGEST = "digest"
"""The name under which the record of a call has a digest of what it does not show: other calls have another one."""

INCOMPLETE = "incomplete"
"""The name under which the context of a letter has why its record is not stored as a whole."""


class ErrorType(StrEnum):
    """Where in a pipeline a record was rejected."""

    VALIDATION = "validation"
    """By validation: a model, a schema, a function."""
    TRANSFORM = "transform"
    """By the transformation."""
    SCHEMA = "schema"
    """By a column that is missing, or of another type."""
    PARSE = "parse"
    """The source could not parse it."""
    FILE = "file"
    """A file of a glob that could not be read like the others."""
    SINK = "sink"
    """By the database that it was to be written to."""
    PAGE = "page"
    """A page of an API, as a whole."""
    MESSAGE = "message"
    """A message of a stream."""
    TASK = "task"
    """A task of a flow that is a dead letter."""
    BATCH = "batch"
    """A batch that was rejected as a whole."""
    CALL = "call"
    """A call of a service, with its arguments."""


class Status(StrEnum):
    """The status of a letter."""

    PENDING = "pending"
    """Waiting to be fixed and replayed."""
    REPROCESSED = "reprocessed"
    """Replayed, and accepted."""
    DISCARDED = "discarded"
    """Discarded by an operator, with a reason."""
    ESCALATED = "escalated"
    """Failed again, or handed to an operator."""


OPEN = (Status.PENDING, Status.ESCALATED)
"""Open: such a letter can be edited, replayed or discarded."""
DECIDED = (Status.REPROCESSED, Status.DISCARDED)
"""Decided: such a letter stays as it is, also where its record fails again unchanged."""


@dataclass(slots=True)
class NewLetter:
    """A rejected record that is not stored yet. `put_many` has defaults for some of its fields.

    record       record as it was received, of any type
    error        exception, or a message for operators
    key          key of the record at its source: if it fails again, it is the same letter
    position     position in the source, "line 18" or an offset, if there is no key
    source       table or file of the record
    error_type   part of the pipeline that rejected it; by default derived from the class of the exception
    attempts     number of attempts before rejection
    rejected_at  time of the rejection; by default now
    context      JSON that the source needs to read the record again, such as the header of a CSV line
    target       program that rejected it, FILE:NAME
    sink_key     key of its row in the sink, if known; it identifies the letters of a pipeline
    is_key_sure  whether the row is certain to have that key; otherwise position and content identify the letter
    """

    record: Any
    error: str | BaseException
    key: str | None = None
    position: str | int | None = None
    source: str | None = None
    pipeline: str | None = None
    run_id: UUID | str | None = None
    error_type: ErrorType | str | None = None
    attempts: int = 1
    rejected_at: datetime | None = None
    context: Mapping[str, Any] | None = None
    target: str | None = None
    sink_key: str | None = None
    is_key_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A letter in the queue."""

    id: int
    pipeline: str
    run_id: UUID | None
    error_type: str
    error_message: str
    """Why it was rejected."""
    record: Any
    """As it was received."""
    source: str | None
    key: str | None
    rejected_at: datetime
    """When it failed first."""
    reprocess_count: int
    """Number of times it was replayed."""
    last_reprocess: datetime | None
    """When it was last replayed."""
    status: Status
    note: str | None
    position: str | None
    fingerprint: str
    """Its cause: letters that failed for the same reason have the same."""
    seen: int
    """Number of times the record failed for this cause while the letter was pending."""
    last_seen: datetime
    attempts: int
    edited: bool = False
    """Whether an operator changed what a replay sends."""
    edited_record: Any = None
    """What a replay sends, if it was edited."""
    last_error: str | None = None
    """Why the last replay failed, if it did."""
    settled_at: datetime | None = None
    """When it was reprocessed, discarded or escalated."""
    context: Mapping[str, Any] | None = None
    """What its source needs to read the record again."""
    target: str | None = None
    """The program that rejected it, FILE:NAME, if known."""
    superseded_at: datetime | None = None
    """When a later run wrote a row with the same key, if one did."""
    trace_id: str | None = None
    """The OpenTelemetry trace in which it was last put; None without a trace."""

    @property
    def payload(self) -> Any:
        """Return what a replay sends: the edited record if there is one, else the record as received."""
        return self.edited_record if self.edited else self.record


@dataclass(frozen=True, slots=True)
class CutRecord:
    """A record, a context or a detail that is too large for a listing."""

    size: int
    """Its length in characters, as JSON."""
    beginning: str
    """Its first characters, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change of a letter: who, when, what."""

    letter_id: int | None
    at: datetime
    action: str
    """What was done: `edited`, `discarded`, `reopened` …"""
    status_before: str | None
    """None for a letter that was created."""
    status_after: str | None
    """None for a letter that was removed."""
    actor: str | None
    note: str | None
    """The reason for the change, if one was given."""
    detail: Any = None
    """Details of the action, such as what was edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Letters that failed for the same reason."""

    fingerprint: str
    error_type: str
    message: str
    """The error without the parts that differ from record to record."""
    sample: str
    """The error of one of the letters."""
    count: int
    """Letters of the selection."""
    by_status: Mapping[str, int]
    """The same letters by their status; 0 for a status that was not selected."""
    seen: int
    """Failures in these pipelines, repetitions included, whatever the status of their letters is now."""
    first_seen: datetime
    """The first of these failures."""
    last_seen: datetime
    """The last of them."""
    pipelines: tuple[str, ...]
    """The pipelines that have letters of the selection."""
    trend: tuple[int, ...] = ()
    """Failures per day of the last seven days, today last."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What `put_many` stored."""

    new: int = 0
    """Letters that were created."""
    repeated: int = 0
    """Failures of a record that has an open letter of the same cause; the letter counts them."""
    decided: int = 0
    """Failures of an unchanged record whose letter is decided; the letter counts them and stays decided."""

    @property
    def total(self) -> int:
        """All records that were passed in."""
        return self.new + self.repeated + self.decided

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.new + other.new, self.repeated + other.repeated, self.decided + other.decided)


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change of several letters."""

    changed: int = 0
    """Letters that were changed."""
    unfit: int = 0
    """Letters left unchanged: their status does not allow the change, or they exist again as another letter."""
    held: int = 0
    """Letters that were left unchanged: a replay or run holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCause:
    """A cause for which letters failed again."""

    fingerprint: str
    message: str
    count: int
    sample: str
    """The error of one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did, or, as a dry run, would do.

    A replay that reached its end has `selected` letters: those that were reprocessed, failed again, discarded, seen
    meanwhile, decided or held, and those superseded since it began (`superseded` without `superseded_before`).
    """

    dry_run: bool
    selected: int
    """Letters selected when the replay began. Left out are letters superseded before, held by a killed run, or of other
    pipelines."""
    attempted: int = 0
    """Letters that were handed to the target."""
    reprocessed: int = 0
    """Accepted by the target, and by a pipeline also written to its sink; in a dry run: would be."""
    failed_again: int = 0
    """Rejected by the target again."""
    discarded: int = 0
    """Dropped by the target on purpose, which wrote nothing; in a dry run: would be."""
    held: int = 0
    """Letters that another replay, or a run that is alive, holds; left to it."""
    held_by_run: int = 0
    """Letters that matched and were left out: a run was killed or failed while it wrote their rows, and has to be
    resumed first."""
    seen_meanwhile: int = 0
    """Accepted, but the record failed again during the replay: still pending."""
    rehearsed: bool = True
    """False for a dry run whose target cannot be run without effect: it only reports what is selected."""
    stopped: str | None = None
    """Why it ended early; None if it did not."""
    by_cause: tuple[FailedCause, ...] = ()
    """Why letters failed again, the most frequent first."""
    selected_by_cause: Mapping[str, int] = field(default_factory=dict)
    """The selected letters, by fingerprint."""
    selected_by_pipeline: Mapping[str, int] = field(default_factory=dict)
    """The selected letters, by the pipeline that rejected them."""
    other_pipelines: Mapping[str, int] = field(default_factory=dict)
    """Letters that matched the filters and were left out: they belong to other pipelines than the target."""
    selected_by_target: Mapping[str, int] = field(default_factory=dict)
    """The selected letters, by the target that rejected them, FILE:NAME; unknown targets are left out."""
    superseded: int = 0
    """Letters that matched and were not written: the sink has a newer row of their key, or one that it keeps."""
    superseded_before: int = 0
    """The superseded letters that were so before the replay began; they are not among the selected."""
    decided: int = 0
    """Selected letters that were left out: another replay or an operator has decided them since."""
    key_unknown: int = 0
    """Selected letters that may overwrite newer rows: rows were written since, and the key of the letter is not known,
    was edited or imported later, its record becomes several rows, or another pipeline writes to the sink."""
    canary: int | None = None
    """Letters that were sent first; None without a canary."""

    @property
    def remaining(self) -> int:
        """Letters that were selected and not attempted."""
        return self.selected - self.attempted


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSize:
    """The size of the queue."""

    letters: int
    """All letters."""
    by_status: Mapping[str, int]
    pending_by_pipeline: Mapping[str, int]
    """Pending letters."""
    open_by_pipeline: Mapping[str, int] = field(default_factory=dict)
    """Pending and escalated letters."""
    new_today_by_pipeline: Mapping[str, int]
    """Letters created today, in UTC."""
    oldest_pending: datetime | None
    """When the oldest pending letter was rejected."""
    bytes: int
    """Size of the database on disk."""


class _Absent:
    """The type of `ABSENT`, which stands for a missing value."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "absent"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True)
class Change:
    """One place where two records differ; the path of the record itself is empty."""

    path: str
    """Such as `customer.zip`."""
    before: Any
    """`ABSENT` for a value that was added."""
    after: Any
    """`ABSENT` for a value that was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The edit of one letter: the record as received, as it would be sent, and what differs between them."""

    id: int
    before: Any
    """As it was received; where an edit is undone, as it was edited."""
    after: Any
    """As it would be sent."""
    changes: tuple[Change, ...]
    """What differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReport:
    """What a bulk edit did, or, as a preview, would do."""

    dry_run: bool
    selected: int
    """Letters that matched."""
    changed: int
    """Letters whose record was changed."""
    unchanged: int
    """Letters whose record already was as edited."""
    held: int = 0
    """Letters that were left unchanged: a replay or run holds them."""
    failed: int = 0
    """Letters that were left unchanged: the edit raised."""
    failures: tuple[tuple[int, str], ...] = ()
    """The ids and errors of the first of the failed letters."""
    previews: tuple[Edit, ...] = ()
    """The first edits."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge removed, or would remove."""

    letters: int
    """Number of letters."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    new: int = 0
    """Letters that were imported."""
    known: int = 0
    """Letters that existed already, and were left as they are."""
    differing: int = 0
    """Existing letters that have another status, record or edit in the file than in the store."""
    masked_elsewhere: int = 0
    """New letters whose values another store has masked: their keys cannot be compared with those of rows here, so no
    run supersedes them, and a replay counts them (`key_unknown`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything about one source key: its letters, oldest first, and what happened to them."""

    key: str
    letters: tuple[Letter, ...]
    """The letters, oldest first."""
    events: tuple[AuditEntry, ...]
    """The changes of the letters, oldest first."""


# ── events of letters ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersPut:
    """Event: records were quarantined by `put` or `put_many`, one event for each call.

    What a run quarantines is reported by the events of the run: BatchWritten for a batch, TasksDead for tasks.
    """

    pipeline: str | None
    """None where each letter named its own pipeline."""
    run_id: UUID | str | None
    new: int
    """Letters that were created."""
    repeated: int
    """Failures of records that have an open letter of the same cause already."""
    decided: int = 0
    """Failures of unchanged records whose letter was reprocessed or discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersReplayed:
    """Event: letters were replayed; also where the replay stopped early."""

    report: ReplayReport
    pipelines: tuple[str, ...]
    """The pipelines of the selection; empty where the selection did not name any."""
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersChanged:
    """Event: letters were decided, edited or imported."""

    action: str
    """`discarded`, `escalated`, `reopened`, `edited`, `edit undone` or `imported`."""
    count: int
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersPurged:
    """Event: letters that were decided long ago were removed."""

    count: int
    before: datetime
    """Letters decided before this time were removed."""
    actor: str


LetterEvent = LettersPut | LettersReplayed | LettersChanged | LettersPurged
