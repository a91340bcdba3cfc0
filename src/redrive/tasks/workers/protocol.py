"""How an executor, its fork server and its workers speak: frames of JSON, and orders of a fixed size."""

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
"""What a fork server reports: that it has the flow, that it could not import it, what became of its workers."""

_LENGTH = struct.Struct("!I")
_LONGEST = 256 << 20  # what claims to be longer is no frame


class ProtocolError(Exception):
    """What arrived is not of this language."""


def frame(document: Any) -> bytes:
    """A JSON document behind its length."""
    body = orjson.dumps(document)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Puts frames together from what arrives, in whatever pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The documents that are complete now."""
        rest = self._rest
        if not rest and len(data) >= _LENGTH.size:  # nearly always: one whole frame
            (length,) = _LENGTH.unpack_from(data)
            if length == len(data) - _LENGTH.size:
                return [_read(memoryview(data)[_LENGTH.size :])]
        rest += data
        found, start = [], 0
        while len(rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, start)
            if length > _LONGEST:
                raise ProtocolError(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if end > len(rest):
                break
            found.append(_read(bytes(rest[start + _LENGTH.size : end])))
            start = end
        del rest[:start]
        return found


def _read(body: bytes | memoryview) -> Any:
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def job_frame(job: TaskJob) -> bytes:
    """A job on its way to a worker, which need not know about its time."""
    return frame((job.ticket, job.task, dict(job.arguments), dict(job.files), job.identity, job.result_file))


def read_job(document: Any) -> TaskJob:
    """The job that arrived."""
    ticket, task, arguments, files, identity, result_file = document
    return TaskJob(
        ticket=ticket, task=task, arguments=arguments, files=files, identity=identity, result_file=result_file
    )


class WorkerAnswer(NamedTuple):
    """What a worker says of an attempt."""

    ticket: int
    seconds: float
    retire: bool
    """It has grown too large, or its task has left it in no state to go on."""
    returned: tuple[str | None, bool, bool, list[str] | None] | None
    """The result, whether it is in a file, whether it is true, and the followers that were chosen."""
    raised: tuple[Any, str, str, str | None] | None
    """The verdict, the error, its fingerprint and its traceback."""


def answer_frame(outcome: TaskOutcome, *, retire: bool) -> bytes:
    """What became of a job, on its way to the executor."""
    if outcome.verdict is None:
        returned, raised = (outcome.result, outcome.in_file, outcome.truth, outcome.branch), None
    else:
        verdict = outcome.verdict
        parts = (verdict.kind, verdict.reason, verdict.rule, verdict.retry_after, verdict.detail, verdict.status)
        returned, raised = None, (parts, outcome.error, outcome.fingerprint, outcome.trace)
    return frame((outcome.ticket, outcome.seconds, retire, returned, raised))


def read_answer(document: Any) -> WorkerAnswer:
    """The answer that arrived."""
    try:
        return WorkerAnswer(*document)
    except TypeError as error:
        raise ProtocolError(str(error)) from None


def outcome_of(answer: WorkerAnswer, output: str) -> TaskOutcome:
    """What became of a job, as its executor has it."""
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
