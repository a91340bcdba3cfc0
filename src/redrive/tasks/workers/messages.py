"""What travels between an executor and its workers: a job down, an outcome up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from redrive.model.calls import Verdict

LARGEST = 64 << 10
"""Bytes: what is larger goes by way of a file, so that a message always fits into a socket's buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    """One attempt of one task."""

    ticket: int
    """Of this attempt and of no other one this executor ever makes."""
    task: str
    """The task's name in its flow; for a child of a fan-out, the fan-out's."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """By the parameter's name: the value as JSON text (`redrive.store.encoding`)."""
    files: Mapping[str, str] = field(default_factory=dict)
    """By the parameter's name: a file that holds the JSON text."""
    identity: str = ""
    """The same for all attempts of a task and for nothing else: the default idempotency key."""
    timeout: float | None = None
    """Seconds after which the attempt is killed."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    result_file: str = ""
    """Where a result goes that is larger than LARGEST."""
    output_file: str = ""
    """Where its output goes while it runs."""


class AttemptEnd(StrEnum):
    """How an attempt ended."""

    RETURNED = "returned"
    RAISED = "raised"
    DIED = "died"
    """The worker's process ended: by a signal, or by itself."""
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The executor itself is to end and could wait no longer: not the task's fault."""
    LOST = "lost"
    """The executor was killed, or lost its claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What became of a job."""

    ticket: int
    ended: AttemptEnd
    seconds: float
    result: str | None = None
    """What was returned, as JSON text; None where it is in the job's `result_file`, or where nothing was returned."""
    in_file: bool = False
    branch: tuple[str, ...] | None = None
    """The followers that it chose, where it chose."""
    truth: bool = False
    """Whether what was returned is true, as Python has it: what a sensor is asked for."""
    verdict: Verdict | None = None
    """What kind of failure it is; None where it returned."""
    error: str | None = None
    """`ValueError: could not convert …`, on one line."""
    fingerprint: str | None = None
    """Two failures with the same one have the same cause: the type and the innermost frame, or the signal."""
    trace: str | None = None
    """The traceback, bounded."""
    output: str = ""
    """What it wrote to stdout and stderr, bounded."""
    hint: str = ""
    """What may be behind it, where that is known."""
    never_begun: bool = False
    """No worker had it."""
