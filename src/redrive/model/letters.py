"""The values of the dead-letter queue: what is put, what is found, what a replay reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

GENERATED_KEY = "generated_key"
"""Where the record of a call has the idempotency key that redrive made for it."""


class ErrorType(StrEnum):
    """Where in a pipeline a record was rejected."""

    VALIDATION = "validation"
    """By a check: a model, a schema, a function."""
    TRANSFORM = "transform"
    """By the transformation."""
    SCHEMA = "schema"
    """By a column that is missing, or of another type."""
    PARSE = "parse"
    """It could not be read at all."""
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
    """A batch that was bad as a whole."""
    CALL = "call"
    """A call of a service, with its arguments."""


class Status(StrEnum):
    """What has become of a letter."""

    PENDING = "pending"
    """It waits to be mended and sent back."""
    REPROCESSED = "reprocessed"
    """It was sent back, and accepted."""
    DISCARDED = "discarded"
    """Somebody gave it up, and said why."""
    ESCALATED = "escalated"
    """It failed again, or was handed to a person."""


OPEN = (Status.PENDING, Status.ESCALATED)
"""Not decided yet: such a letter may still be edited, replayed or discarded."""
DECIDED = (Status.REPROCESSED, Status.DISCARDED)
"""Decided: such a letter stays as it is, also where its record comes again unchanged."""


@dataclass(slots=True)
class NewLetter:
    """A record that was rejected, on its way to the queue. What is left out, `put_many` supplies.

    record       as it was received, whatever it is
    error        the exception, or what a person should read
    key          what identifies the record at its source: the same key failing again is the same letter
    position     where it was, "line 18" or an offset, where there is no key
    source       the table or file it came from
    error_type   where it was rejected; an exception tells by itself
    attempts     how often it was tried before it was rejected
    rejected_at  now, unless said otherwise
    context      what its source needs to read the record again, as JSON: the header of a CSV line
    target       the program that rejected it, FILE:NAME
    sink_key     the key of its row in the sink, where it is known; letters of a pipeline are identified by it
    is_key_sure  whether the row is sure to have that key; otherwise position and content identify the letter
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
    """A letter as it stands in the queue."""

    id: int
    pipeline: str
    run_id: UUID | None
    error_type: str
    error_message: str
    """What was wrong with it."""
    record: Any
    """As it was received."""
    source: str | None
    key: str | None
    rejected_at: datetime
    """When it failed first."""
    reprocess_count: int
    """How often it was sent back."""
    last_reprocess: datetime | None
    """When it was last sent back."""
    status: Status
    note: str | None
    position: str | None
    fingerprint: str
    """Its cause: letters that failed for the same reason have the same."""
    seen: int
    """How often the record failed for this cause while the letter was pending."""
    last_seen: datetime
    attempts: int
    edited: bool = False
    """Whether a person changed what a replay sends."""
    edited_record: Any = None
    """What a replay sends, where it was edited."""
    last_error: str | None = None
    """Why the last replay failed, where it did."""
    settled_at: datetime | None = None
    """When it was reprocessed, discarded or escalated."""
    context: Mapping[str, Any] | None = None
    """What its source needs to read the record again."""
    target: str | None = None
    """The program that rejected it, FILE:NAME, where it is known."""
    superseded_at: datetime | None = None
    """When a later run wrote a row with the same key, where one did."""
    trace_id: str | None = None
    """The trace of OpenTelemetry in which it was last put; None where none was active."""

    @property
    def payload(self) -> Any:
        """What a replay sends: the edited record where there is one."""
        return self.edited_record if self.edited else self.record


@dataclass(frozen=True, slots=True)
class CutRecord:
    """Stands for a record, a context or a detail that is larger than a listing reads."""

    size: int
    """Characters of all of it, as JSON."""
    beginning: str
    """How it begins, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change of a letter: who, when, what."""

    letter_id: int | None
    at: datetime
    action: str
    """What was done: `edited`, `discarded`, `reopened` …"""
    status_before: str | None
    """None where it was not there yet."""
    status_after: str | None
    """None where it is not there any more."""
    actor: str | None
    note: str | None
    detail: Any = None
    """What else there is to say, such as what was edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Letters that failed for the same reason."""

    fingerprint: str
    error_type: str
    message: str
    """The error with everything removed that differs from record to record: why these letters are one group."""
    sample: str
    """The error of one of them."""
    count: int
    """Letters of the selection."""
    by_status: Mapping[str, int]
    """The same letters by their status; 0 for a status that was not asked for."""
    seen: int
    """Failures in these pipelines, repeats included, whatever the status of their letters is now."""
    first_seen: datetime
    """The first of these failures."""
    last_seen: datetime
    """The last of them."""
    pipelines: tuple[str, ...]
    """Those that have letters of the selection."""
    trend: tuple[int, ...] = ()
    """Failures a day, the last seven days, today last."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What `put_many` did."""

    new: int = 0
    """Letters that were not there before."""
    repeated: int = 0
    """Failures of a record that has an open letter of the same cause: counted there."""
    decided: int = 0
    """Failures of a record, unchanged, whose letter was reprocessed or discarded: counted there, and still decided."""

    @property
    def total(self) -> int:
        """Letters that were handed in."""
        return self.new + self.repeated + self.decided

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.new + other.new, self.repeated + other.repeated, self.decided + other.decided)


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of the letters a change was asked for."""

    changed: int = 0
    """Letters that are now as it was asked."""
    unfit: int = 0
    """Of another status than the change starts from, or standing again as another letter: left alone."""
    held: int = 0
    """In the hands of a replay or run: left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCause:
    """Why letters failed again."""

    fingerprint: str
    message: str
    count: int
    sample: str
    """The error of one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did, or, as a dry run, would do.

    A replay that came to its end has `selected` letters: those that were reprocessed, failed again, discarded, seen
    meanwhile, decided or held, and those superseded since it began (`superseded` without `superseded_before`).
    """

    dry_run: bool
    selected: int
    """Letters that were to be sent when it began. Those that were left out then are not among them: superseded before,
    held by a killed run, of other pipelines."""
    attempted: int = 0
    """Letters that were handed to the target."""
    reprocessed: int = 0
    """Accepted by the target, and by a pipeline: written to its sink; in a dry run: would be."""
    failed_again: int = 0
    """Rejected by the target once more."""
    discarded: int = 0
    """Dropped by the target on purpose, which wrote nothing; in a dry run: would be."""
    held: int = 0
    """In the hands of another replay or of a run that is alive: left to it."""
    held_by_run: int = 0
    """Letters that matched and were left out: a run was killed or failed while it wrote their rows, and is to be
    resumed."""
    seen_meanwhile: int = 0
    """Accepted, but the record failed anew while it was under way: still pending."""
    rehearsed: bool = True
    """False for a dry run whose target cannot be run without effect: it tells what is selected, no more."""
    stopped: str | None = None
    """Why it ended early."""
    by_cause: tuple[FailedCause, ...] = ()
    """Why letters failed again, the most frequent first."""
    selected_by_cause: Mapping[str, int] = field(default_factory=dict)
    """The selected letters, by fingerprint."""
    selected_by_pipeline: Mapping[str, int] = field(default_factory=dict)
    """The selected letters, by the pipeline that rejected them."""
    other_pipelines: Mapping[str, int] = field(default_factory=dict)
    """Letters that matched the filters and were left out: they belong to other pipelines than the target."""
    selected_by_target: Mapping[str, int] = field(default_factory=dict)
    """The selected letters, by the target that rejected them, FILE:NAME; those that know theirs."""
    superseded: int = 0
    """Letters that matched and were not written: the sink has a newer row of their key, or one that it keeps."""
    superseded_before: int = 0
    """Those of the superseded that were so before the replay began; they are not among the selected."""
    decided: int = 0
    """Selected letters that were left out: another replay or an operator has decided them since."""
    key_unknown: int = 0
    """Selected letters that may overwrite newer rows: rows were written since, and its key is not known, was edited
    or imported later, its record becomes several rows, or another pipeline writes to the sink."""
    canary: int | None = None
    """Letters that were sent first; None without a canary."""

    @property
    def remaining(self) -> int:
        """Letters that were selected and not attempted."""
        return self.selected - self.attempted


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSize:
    """How full the queue is."""

    letters: int
    """All there are."""
    by_status: Mapping[str, int]
    pending_by_pipeline: Mapping[str, int]
    """Those that are pending."""
    open_by_pipeline: Mapping[str, int] = field(default_factory=dict)
    """Those that are pending or escalated."""
    new_today_by_pipeline: Mapping[str, int]
    """Those that were put today, in UTC."""
    oldest_pending: datetime | None
    """When the oldest of these was rejected."""
    bytes: int
    """What the database takes on disk."""


class _Absent:
    """What stands for a value that is not there."""

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
    """`ABSENT` where there was nothing."""
    after: Any
    """`ABSENT` where nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One letter's edit: the record as received, as it would be sent, and what differs between them."""

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
    """Letters whose record is another one now."""
    unchanged: int
    """Letters that were so already."""
    held: int = 0
    """In the hands of a replay or run: left alone."""
    failed: int = 0
    """Letters on which the edit raised: left alone."""
    failures: tuple[tuple[int, str], ...] = ()
    """The first of them, with the reason."""
    previews: tuple[Edit, ...] = ()
    """The first edits."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge removed, or would remove."""

    letters: int
    """How many."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    new: int = 0
    """Letters that were taken in."""
    known: int = 0
    """Letters that were there already, and were left as they are."""
    differing: int = 0
    """Of these, letters that have another status, record or edit in the file than in the store."""
    masked_elsewhere: int = 0
    """New letters whose values another store has masked: their keys cannot be compared with those of rows here, so no
    run supersedes them, and a replay counts them (`key_unknown`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything about one source key: its letters, oldest first, and what happened to them."""

    key: str
    letters: tuple[Letter, ...]
    """The oldest first."""
    events: tuple[AuditEntry, ...]
    """What was done to them, the oldest first."""


# ── what is announced of letters ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersPut:
    """Event: records were quarantined by `put` or `put_many`, one event for each call.

    What a run quarantines is told by the run: a batch's by BatchWritten, a dead task's by TasksDead.
    """

    pipeline: str | None
    """None where each letter named its own."""
    run_id: UUID | str | None
    new: int
    """Letters that were not there before."""
    repeated: int
    """Failures of records that have an open letter of the same cause already."""
    decided: int = 0
    """Failures of records, unchanged, whose letter was reprocessed or discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersReplayed:
    """Event: letters were sent back; also where that was stopped early."""

    report: ReplayReport
    pipelines: tuple[str, ...]
    """That were asked for; none where the selection did not go by pipeline."""
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersChanged:
    """Event: somebody decided about letters, or edited them, or took in those of another store."""

    action: str
    """`discarded`, `escalated`, `reopened`, `edited`, `edit undone` or `imported`."""
    count: int
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersPurged:
    """Event: letters that were settled long ago were removed."""

    count: int
    before: datetime
    """Those that were settled before."""
    actor: str


LetterEvent = LettersPut | LettersReplayed | LettersChanged | LettersPurged
