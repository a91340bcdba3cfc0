"""Messages between an executor and its workers: jobs to them, outcomes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from redrive.model.calls import Verdict

LARGEST = 64 << 10
"""Maximum bytes of a value in a message; larger values are files, so that a message fits into a socket's buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    """One attempt of one task."""

    ticket: int
    """Number of this attempt, unique in its executor."""
    task: str
    """The task's name in its flow; for a child of a fan-out, the fan-out's."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Values as JSON text (`redrive.store.encoding`), by parameter name."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that hold the JSON text, by parameter name."""
    identity: str = ""
    """The default idempotency key: the same for all attempts of a task, and unique to it."""
    timeout: float | None = None
    """Seconds after which the attempt is killed."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    result_file: str = ""
    """File for a result larger than LARGEST."""
    output_file: str = ""
    """File for its output while it runs."""
    redact: tuple[str, ...] = ()
    """Fields of its arguments whose values are masked in the error."""


class AttemptEnd(StrEnum):
    """How an attempt ended."""

    RETURNED = "returned"
    RAISED = "raised"
    DIED = "died"
    """The worker's process ended: by a signal, or by itself."""
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The executor stopped and could not wait longer: not a failure of the task."""
    LOST = "lost"
    """The executor was killed or lost its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The outcome of a job."""

    ticket: int
    ended: AttemptEnd
    seconds: float
    result: str | None = None
    """The result as JSON text; None if it is in the job's `result_file`, or if there is none."""
    in_file: bool = False
    branch: tuple[str, ...] | None = None
    """The followers that the task chose; None if it chose none."""
    truth: bool = False
    """The truth value of the result, as a sensor needs it."""
    verdict: Verdict | None = None
    """The verdict on the failure; None if the task returned."""
    error: str | None = None
    """`ValueError: could not convert …`, on one line."""
    fingerprint: str | None = None
    """Identifies the cause of a failure: the type and the innermost frame, or the signal."""
    trace: str | None = None
    """The traceback, bounded."""
    output: str = ""
    """The output on stdout and stderr, bounded."""
    hint: str = ""
    """A possible cause to show with the error."""
    never_begun: bool = False
    """Whether no worker had started it."""
