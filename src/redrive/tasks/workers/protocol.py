"""The protocol between an executor, its fork server and its workers: JSON frames, and orders of fixed size."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import orjson

from redrive.model.calls import Kind, Verdict
from redrive.tasks.workers.messages import AttemptEnd, TaskJob, TaskOutcome

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
        raise ProtocolError("an answer that says nothing")
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
