"""The protocol between an executor, its fork server and its workers: jobs, outcomes and orders, as frames of bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from redrive.model.calls import Kind, Verdict

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


ORDER = struct.Struct("!BQi")
"""From the executor to the fork server: what to do, the worker's number, a signal."""
FORK, SIGNAL, END = 1, 2, 3

READY, BROKEN, UNFORKED, DEAD = "ready", "broken", "unforked", "dead"
"""Reports of a fork server: flow imported, import failed, worker not forked, worker dead."""

_LENGTH = struct.Struct("!I")
_LONGEST = 256 << 20  # a longer length is not a valid frame


class ProtocolError(Exception):
    """The received data does not follow the protocol."""


def frame(document: Any) -> bytes:
    """Return a JSON document with its length in front."""
    body = orjson.dumps(document)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Assembles frames from received pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add received data; return the documents that are complete."""
        rest = self._rest
        if not rest and len(data) >= _LENGTH.size:  # fast path: nearly always one whole frame
            (length,) = _LENGTH.unpack_from(data)
            if length == len(data) - _LENGTH.size:
                return [_read(memoryview(data)[_LENGTH.size :])]
        rest += data
        documents, start = [], 0
        while len(rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, start)
            if length > _LONGEST:
                raise ProtocolError(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if end > len(rest):
                break
            documents.append(_read(bytes(rest[start + _LENGTH.size : end])))
            start = end
        del rest[:start]
        return documents


def _read(body: bytes | memoryview) -> Any:
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def job_frame(job: TaskJob) -> bytes:
    """Encode a job for a worker; the timeout stays with the executor."""
    arguments, files = dict(job.arguments), dict(job.files)
    return frame((job.ticket, job.task, arguments, files, job.identity, job.result_file, job.redact))


def read_job(document: Any) -> TaskJob:
    """Decode a job."""
    ticket, task, arguments, files, identity, result_file, redact = document
    return TaskJob(
        ticket=ticket,
        task=task,
        arguments=arguments,
        files=files,
        identity=identity,
        result_file=result_file,
        redact=tuple(redact),
    )


class WorkerAnswer(NamedTuple):
    """The answer of a worker about an attempt."""

    ticket: int
    seconds: float
    retire: bool
    """Whether the worker must be replaced: it uses too much memory, or its task left it in a bad state."""
    returned: tuple[str | None, bool, bool, list[str] | None] | None
    """The result, whether it is in a file, its truth value, and the chosen followers."""
    raised: tuple[Any, str, str, str | None] | None
    """The verdict, the error, its fingerprint and its traceback."""


def answer_frame(outcome: TaskOutcome, *, retire: bool) -> bytes:
    """Encode the outcome of a job for the executor."""
    if outcome.verdict is None:
        returned, raised = (outcome.result, outcome.in_file, outcome.truth, outcome.branch), None
    else:
        verdict = outcome.verdict
        parts = (verdict.kind, verdict.reason, verdict.rule, verdict.retry_after, verdict.detail, verdict.status)
        returned, raised = None, (parts, outcome.error, outcome.fingerprint, outcome.trace)
    return frame((outcome.ticket, outcome.seconds, retire, returned, raised))


def read_answer(document: Any) -> WorkerAnswer:
    """Decode an answer."""
    try:
        return WorkerAnswer(*document)
    except TypeError as error:
        raise ProtocolError(str(error)) from None


def outcome_of(answer: WorkerAnswer, output: str) -> TaskOutcome:
    """Return the outcome of a job from an answer and the output."""
    if answer.returned is not None:
        result, in_file, truth, branch = answer.returned
        return TaskOutcome(
            ticket=answer.ticket,
            ended=AttemptEnd.RETURNED,
            seconds=answer.seconds,
            result=result,
            in_file=in_file,
            truth=truth,
            branch=None if branch is None else tuple(branch),
            output=output,
        )
    if answer.raised is None:
        raise ProtocolError("an empty answer")
    (kind, *parts), error, fingerprint, trace = answer.raised
    return TaskOutcome(
        ticket=answer.ticket,
        ended=AttemptEnd.RAISED,
        seconds=answer.seconds,
        verdict=Verdict(Kind(kind), *parts),
        error=error,
        fingerprint=fingerprint,
        trace=trace,
        output=output,
    )
