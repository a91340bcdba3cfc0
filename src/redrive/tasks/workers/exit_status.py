"""The outcome of an attempt whose process has died: how it died, in words, and the verdict. Used by the pool."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial

from redrive.model.calls import Kind, Verdict
from redrive.tasks.executor.decide import LOST
from redrive.tasks.workers.connection import WorkerConnection
from redrive.tasks.workers.output import tidy
from redrive.tasks.workers.protocol import AttemptEnd, TaskJob, TaskOutcome

_WORDS: dict[int, str] = {
    signal.SIGKILL: "killed by SIGKILL, probably for want of memory (the OOM killer)",
    signal.SIGSEGV: "segmentation fault (SIGSEGV)",
    signal.SIGBUS: "bus error (SIGBUS)",
    signal.SIGFPE: "arithmetic error in machine code (SIGFPE)",
    signal.SIGILL: "illegal instruction (SIGILL)",
    signal.SIGABRT: "aborted by its own code (SIGABRT)",
    signal.SIGXCPU: "out of the processor time it is allowed (SIGXCPU)",
    signal.SIGXFSZ: "wrote a larger file than it is allowed to (SIGXFSZ)",
    signal.SIGTERM: "ended from outside (SIGTERM)",
}
# Signals sent from outside, not caused by the task.
_FROM_OUTSIDE: frozenset[int] = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})

_STOPPED = (AttemptEnd.STOPPED, Kind.TRANSIENT, "ended with its executor", "stopped")


def how(status: int) -> str:
    """Return how a process ended, by its wait status."""
    return how_process(os.waitstatus_to_exitcode(status))


def how_process(code: int | None) -> str:
    """Return how a process ended, by its exit code; negative for a signal."""
    if code is None:
        return "it is gone"
    if code >= 0:
        return f"its process exited with status {code}"
    return _WORDS.get(-code, f"killed by {_name(-code)}")


def is_from_outside(code: int | None) -> bool:
    """Return whether an exit code means an end from outside: by an operator, or out of memory."""
    return code is not None and -code in _FROM_OUTSIDE | {signal.SIGKILL}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def outcome(link: WorkerConnection, status: int | None, seconds: float) -> TaskOutcome:
    """Return the outcome of the attempt of a dead worker; without a status, it died with the fork server."""
    job, output = link.job, tidy(link.take_output())
    assert job is not None
    ended = partial(_outcome, job, seconds, output)
    if link.ending is AttemptEnd.STOPPED:
        return ended(*_STOPPED)
    if link.ending is AttemptEnd.TIMED_OUT:
        error = f"ran longer than its limit of {job.timeout:g} s"
        return ended(AttemptEnd.TIMED_OUT, Kind.TRANSIENT, error, "timeout")
    if status is None:
        error = "the process that workers are forked from died, and its workers with it"
        return ended(
            AttemptEnd.LOST, Kind.TRANSIENT, error, LOST
        )  # as if its executor had died: not a failure of the task
    code = os.waitstatus_to_exitcode(status)
    if link.ending is AttemptEnd.DIED and code == -signal.SIGKILL:  # killed by the pool, since its connection was lost
        error = "it closed the connection to its executor, or wrote into it: let tasks close only what they opened"
        return ended(AttemptEnd.DIED, Kind.AMBIGUOUS, error, "connection")
    cause = f"exit:{code}" if code >= 0 else f"signal:{_name(-code)}"
    kind = Kind.TRANSIENT if code < 0 and -code in _FROM_OUTSIDE else Kind.AMBIGUOUS
    return ended(AttemptEnd.DIED, kind, how(status), cause)


def never_begun(job: TaskJob) -> TaskOutcome:
    """Return the outcome of a job that no worker had started when its executor stopped."""
    return replace(_outcome(job, 0.0, "", *_STOPPED), never_begun=True)


def _outcome(  # noqa: PLR0917 - the fields of the outcome
    job: TaskJob, seconds: float, output: str, ended: AttemptEnd, kind: Kind, error: str, cause: str
) -> TaskOutcome:
    return TaskOutcome(
        ticket=job.ticket,
        ended=ended,
        seconds=seconds,
        verdict=Verdict(kind, error, "worker"),
        error=error,
        fingerprint=cause,
        output=output,
    )
