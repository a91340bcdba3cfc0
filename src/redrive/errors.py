"""The exceptions of redrive.

    RedriveError
    ├── StatedVerdict       raised by users; the class states the kind
    │   ├── Transient       back off and retry
    │   ├── RateLimited     wait at least `retry_after`, then retry
    │   ├── Permanent       never retry
    │   ├── Reject          this record is bad: quarantine it and continue
    │   └── Discard         drop this record, count it, no dead letter
    │       └── Skip            in a task: it is skipped, and so are the tasks after it
    ├── CallError           raised by a Service; `.redrive` is the Failure
    │   ├── RetriesExhausted    the function raised nothing to re-raise: `.response` stayed bad
    │   ├── CircuitOpen         nothing was sent; try again after `retry_in` seconds
    │   └── QuotaExhausted      every key is cooling down until `resets_at`
    ├── StoreError          an operation of the store failed; `.kind` states whether to retry
    │   ├── UnknownStore        its URL names no store
    │   └── SchemaMismatch      the database's schema is newer than this program, or older and not to be migrated
    ├── ReplayStopped       a replay's target failed; `.report` states what was done before
    ├── LetterError         a letter, a filter or a note that cannot be used; nothing was changed
    ├── AlertError          an unknown alert, or an action that it does not allow; nothing was changed
    ├── PipelineError       a pipeline that cannot work as it is set up; nothing was read or written
    │   ├── SourceError         the source does not exist, or is not of the expected form
    │   ├── SinkMismatch        the rows do not fit the sink
    │   └── FlowError           an unknown flow or task, or one that cannot work as it is set up
    ├── RunStopped          a run ended early, its checkpoint saved; `.report` states how far it came
    │   └── GateAborted         too many of its rows were rejected
    └── FlowStopped         a flow did not complete; `.report` states which of its tasks did

    TaskTimeout             raised within a task that must end; no Exception, so that no task swallows it
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
    """Base of the errors by which users state the verdict themselves."""

    kind: ClassVar[Kind]
    verdict_rule: ClassVar[str | None] = None
    """The name of the rule in its verdict; None for the default of its kind."""

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
    """The failure is transient: back off and retry."""

    kind = Kind.TRANSIENT


class RateLimited(StatedVerdict):
    """The service limits its clients; `retry_after` is the least wait."""

    kind = Kind.RATE_LIMITED


class Permanent(StatedVerdict):
    """A retry cannot help: stop and report."""

    kind = Kind.PERMANENT


class Reject(StatedVerdict):
    """This record is bad, the rest is fine."""

    kind = Kind.ROW


class Discard(StatedVerdict):
    """This record needs no review: drop and count it."""

    kind = Kind.DISCARD


class Skip(Discard):
    """Raised by a task that has nothing to do: it is skipped, and so are the tasks after it."""


class Superseded(RedriveError):
    """A record was not written, because the sink has another row of its key that takes precedence."""


class CallError(RedriveError):
    """A Service ended a call, and the user's function raised no exception to re-raise."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None) -> None:
        super().__init__(message or (str(redrive) if redrive else ""))
        self.redrive = redrive


class RetriesExhausted(CallError):
    """The function kept returning a bad response; `response` is the last one."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None, response: Any = None) -> None:
        super().__init__(message, redrive=redrive)
        self.response = response


class CircuitOpen(CallError):
    """The circuit is open: the request was never sent."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None, retry_in: float = 0.0) -> None:
        super().__init__(message, redrive=redrive)
        self.retry_in = retry_in


class QuotaExhausted(CallError):
    """No key can be used before `resets_at`."""

    def __init__(self, message: str = "", *, redrive: Failure | None = None, resets_at: datetime | None = None) -> None:
        super().__init__(message, redrive=redrive)
        self.resets_at = resets_at


class StoreError(RedriveError):
    """An operation of the store failed. `kind` states whether a retry can help."""

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT) -> None:
        super().__init__(message)
        self.kind = kind


class UnknownStore(StoreError):
    """The URL names no store."""


class SchemaMismatch(StoreError):
    """The schema of the database is not the one that this program expects."""


class ReplayStopped(RedriveError):
    """A replay's target failed for a reason that is not a record's. What was done before is kept, and in `report`."""

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT, report: ReplayReport | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.report = report


class LetterError(RedriveError):
    """A request to the dead-letter queue is invalid: an unknown id, a malformed filter, a missing note."""


class AlertError(RedriveError):
    """An unknown alert, or an action that it does not allow; nothing was changed."""


class PipelineError(RedriveError):
    """A pipeline that cannot work as it is set up."""


class SourceError(PipelineError):
    """The source does not exist, cannot be opened, or is not of the expected form."""


class SinkMismatch(PipelineError):
    """The rows do not fit the sink: a missing column, a key that is not unique, a missing table."""

    def __init__(
        self, message: str, *, unknown: Sequence[str] = (), extra: Sequence[str] = (), lacking: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.unknown = tuple(unknown)
        """The columns that the sink does not have, if there are any."""
        self.extra = (*self.unknown, *extra)
        """The columns for which the rows must not have a value: unknown or computed ones."""
        self.lacking = tuple(lacking)
        """The columns for which the rows must have a value and have none."""


class FlowError(PipelineError):
    """An unknown flow or task, or one that cannot work as it is set up."""


class RunStopped(RedriveError):
    """A run ended early. Everything before its checkpoint is kept; the next run resumes there."""

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT, report: Report | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.report = report


class GateAborted(RunStopped):
    """The share of rejected rows is above the gate's limit."""


class FlowStopped(RedriveError):
    """A flow did not complete: a task failed or waits for an operator, or the run was stopped.

    The next run, or the one after a decision about its tasks, resumes where this one ended.
    """

    def __init__(self, message: str, *, kind: Kind = Kind.PERMANENT, report: FlowReport | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.report = report


class TaskTimeout(BaseException):
    """Raised within a task that must end: its time is over, or its executor stops.

    The task may clean up during its grace period; then it is killed. It is no Exception, so that an `except Exception`
    does not mistake it for an error of the work itself.
    """


class PolicyWarning(UserWarning):
    """A policy that is legal but will hurt in production; the text says why."""
