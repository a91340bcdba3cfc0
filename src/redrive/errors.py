"""The exceptions of redrive.

    RedriveError
    ├── StatedVerdict       raised by users; the class names the kind
    │   ├── Transient       will heal: repeat
    │   ├── RateLimited     wait at least `retry_after`, then repeat
    │   ├── Permanent       never repeat
    │   ├── Reject          this record is bad: quarantine it, go on
    │   └── Discard         drop this record, count it, no dead letter
    │       └── Skip            in a task: it is skipped, and so is what comes after it
    ├── CallError           raised by a Service; `.redrive` is the Failure
    │   ├── RetriesExhausted    no exception of the user's own to re-raise: `.response` stayed bad
    │   ├── CircuitOpen         nothing was sent; come back after `retry_in` seconds
    │   └── QuotaExhausted      every key is cooling down until `resets_at`
    ├── StoreError          the store cannot do what was asked; `.kind` says whether to try again
    │   ├── UnknownStore        its URL names none
    │   └── SchemaMismatch      the database's schema is newer than this program, or older and not to be migrated
    ├── ReplayStopped       a replay's target failed; `.report` says what was done before
    ├── LetterError         a letter, a filter or a note that cannot be used; nothing was changed
    ├── AlertError          an alert that is not there, or with which this cannot be done; nothing was changed
    ├── PipelineError       a pipeline that cannot work as it is set up; nothing was read or written
    │   ├── SourceError         the source is not there, or not what it claims to be
    │   ├── SinkMismatch        the rows do not fit the sink
    │   └── FlowError           a flow or a task that cannot work as it is set up, or is not there
    ├── RunStopped          a run ended before its time, its checkpoint saved; `.report` says how far it came
    │   └── GateAborted         too many of its rows were rejected
    └── FlowStopped         a flow did not come to a good end; `.report` says which of its tasks did

    TaskTimeout             raised within a task whose time is up; no Exception, so that nothing swallows it
    PolicyWarning           a policy that is legal and will hurt

Where the user's function raised, a Service re-raises that exception itself, with its Failure attached.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from sys import float_info
from typing import TYPE_CHECKING, Any, ClassVar

from redrive.model.calls import Failure, Kind

if TYPE_CHECKING:
    from redrive.model.letters import ReplayReport
    from redrive.model.runs import Report
    from redrive.model.tasks import FlowReport


class RedriveError(Exception):
    """Base of everything redrive raises or lets users raise."""


class StatedVerdict(RedriveError):
    """Base of the errors by which a user states the verdict himself."""

    kind: ClassVar[Kind]
    verdict_rule: ClassVar[str | None] = None
    """The name of the rule in its verdict; None for that of its kind."""

    def __init__(self, message: object = "", *, retry_after: float | None = None) -> None:
        if not isinstance(message, str):
            name = type(self).__name__
            raise TypeError(f"{name} takes a message, and seconds by name: {name}(retry_after={message!r})")
        if retry_after is not None and not (
            isinstance(retry_after, int | float) and 0 <= retry_after <= float_info.max
        ):
            raise ValueError(f"retry_after must be a finite number of seconds from 0 up, not {retry_after!r}")
        super().__init__(message or str(self.kind))
        self.retry_after = retry_after


class Transient(StatedVerdict):
    """The failure will heal: back off and repeat."""

    kind = Kind.TRANSIENT


class RateLimited(StatedVerdict):
    """The other side asked for patience; `retry_after` is a floor for the wait."""

    kind = Kind.RATE_LIMITED


class Permanent(StatedVerdict):
    """Repeating cannot help: stop and report."""

    kind = Kind.PERMANENT


class Reject(StatedVerdict):
    """This record is bad, the rest is fine."""

    kind = Kind.ROW


class Discard(StatedVerdict):
    """Nobody needs to look at this record."""

    kind = Kind.DISCARD


class Skip(Discard):
    """Raised by a task that has nothing to do: it is skipped, and so is what comes after it."""


class Superseded(RedriveError):
    """A record was not written, because the sink has another row of its key that counts."""


class CallError(RedriveError):
    """A Service ended a call without an exception of the user's own to re-raise."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None) -> None:
        super().__init__(message or (str(redrive) if redrive else ""))
        self.redrive = redrive


class RetriesExhausted(CallError):
    """The function kept returning a bad response; `response` is the last one."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None, response: Any = None) -> None:
        super().__init__(message, redrive=redrive)
        self.response = response


class CircuitOpen(CallError):
    """The breaker let nothing through: the request was never sent."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None, retry_in: float = 0.0) -> None:
        super().__init__(message, redrive=redrive)
        self.retry_in = retry_in


class QuotaExhausted(CallError):
    """No key is viable before `resets_at`."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None, resets_at: datetime | None = None) -> None:
        super().__init__(message, redrive=redrive)
        self.resets_at = resets_at


class StoreError(RedriveError):
    """The store cannot do what was asked. `kind` tells what can heal from what needs a person."""

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT) -> None:
        super().__init__(message)
        self.kind = kind


class UnknownStore(StoreError):
    """The URL names no store."""


class SchemaMismatch(StoreError):
    """The database and this program do not know the same schema."""


class ReplayStopped(RedriveError):
    """A replay's target failed for a reason that is not a record's. What was done before is kept, and in `report`."""

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT, report: ReplayReport | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.report = report


class LetterError(RedriveError):
    """What was asked of the dead letters makes no sense: an unknown id, a malformed filter, a missing note."""


class AlertError(RedriveError):
    """An alert that is not there, or with which this cannot be done; nothing was changed."""


class PipelineError(RedriveError):
    """A pipeline that cannot work as it is set up."""


class SourceError(PipelineError):
    """The source is not there, cannot be opened, or is not what it claims to be."""


class SinkMismatch(PipelineError):
    """The rows do not fit the sink: a column that it lacks, a key that is not unique, a table that is not there."""

    def __init__(
        self, message: str, *, unknown: Sequence[str] = (), extra: Sequence[str] = (), lacking: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.unknown = tuple(unknown)
        """The columns that the sink does not have, where that is what is wrong."""
        self.extra = (*self.unknown, *extra)
        """The columns for which the rows must not have a value: unknown or computed ones."""
        self.lacking = tuple(lacking)
        """The columns for which the rows must have a value and have none."""


class FlowError(PipelineError):
    """A flow or a task that cannot work as it is set up, or that is not there."""


class RunStopped(RedriveError):
    """A run ended before its time. Everything before its checkpoint is kept; running again goes on from there."""

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT, report: Report | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.report = report


class GateAborted(RunStopped):
    """The share of rejected rows went beyond what the gate lets through."""


class FlowStopped(RedriveError):
    """A flow did not come to a good end: a task failed, waits for a person, or the run was told to stop.

    Running it again, or after a decision about its tasks, goes on from where it stands.
    """

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT, report: FlowReport | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.report = report


class TaskTimeout(BaseException):
    """Raised within a task that is told to end: its time is up, or its executor stops.

    What it has to put in order it may, for the length of its grace; then it is killed. It is no Exception, so that
    nobody's `except Exception` takes it for an error of the work itself.
    """


class PolicyWarning(UserWarning):
    """A policy that is legal but will hurt in production; the text says why."""
