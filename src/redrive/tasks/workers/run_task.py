"""One attempt of a task in this process: load arguments, call, encode the result. Used by workers and threads."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
import traceback
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Collection,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from redrive._internal.files import make_directory, open_new, scratch_beside
from redrive._internal.masked_errors import secrets_of
from redrive.calls.failures import attached_failure
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_stop_signal
from redrive.errors import TaskTimeout
from redrive.model.calls import Kind, Verdict
from redrive.model.tasks import Branch
from redrive.policy.retry import REPEATABLE
from redrive.store.encoding import decode, encode
from redrive.tasks.graph import Node
from redrive.tasks.parameters import KEY
from redrive.tasks.workers.fingerprint import (
    fingerprint,
    masked_line,
    one_line,
    storable,
    trace_of,
    with_status,
)
from redrive.tasks.workers.protocol import LARGEST, AttemptEnd, TaskJob, TaskOutcome

_HERE = __file__
_CLASSIFIER = Classifier()
_SIMPLE = frozenset({str, int, float, bool, list, dict, NoneType})
_LISTED = (tuple, Set, range, deque, Iterator, KeysView, ValuesView, ItemsView)


class ResultRejected(Exception):
    """The returned value cannot be stored as a result."""


class InputUnreadable(Exception):
    """An argument of a task is missing or corrupt."""


class TerminationFlag:
    """Whether this process received SIGTERM: then a `TaskTimeout` is not an error of the task."""

    is_requested = False


ENDING = TerminationFlag()


def perform(node: Node, job: TaskJob, *, fans_out: bool = False, followers: Collection[str] = ()) -> TaskOutcome:
    """Attempt the task once. Whatever it raises is part of the outcome, except for a request to end.

    `fans_out` means that other tasks run for each item of the result: it has to be a list. Where it is a fan-out
    itself, they run for each of its children, and what one of these returns is an item. `followers` are the names of
    the tasks that come directly after it.
    """
    began = time.monotonic()
    branch: tuple[str, ...] | None = None
    try:
        value = _call(node, _arguments(node, job))
        if isinstance(value, Branch):
            branch, value = _chosen(node, value, followers), value.result
        if fans_out and node.each is None and (value or not node.sensing):
            value = _as_list(node, value)
        truth = bool(value) if node.sensing or type(value) in _SIMPLE else True
        text = None if value is None else _text(node, value)
        in_file = text is not None and len(text) > LARGEST // 4 and _put_into(job.result_file, text)
    except BaseException as error:
        if ENDING.is_requested and isinstance(error, TaskTimeout):
            raise
        return _failed(node, job, error, time.monotonic() - began)
    return TaskOutcome(
        ticket=job.ticket,
        ended=AttemptEnd.RETURNED,
        seconds=time.monotonic() - began,
        result=None if in_file else text,
        in_file=in_file,
        truth=truth,
        branch=branch,
    )


def _arguments(node: Node, job: TaskJob) -> dict[str, Any]:
    arguments = _decoded(node, job)
    if node.binding.wants_key:
        arguments[KEY] = job.identity if node.key is None else str(node.key(**arguments))
    return arguments


def _decoded(node: Node, job: TaskJob) -> dict[str, Any]:
    arguments = {name: decode(text) for name, text in job.arguments.items()}
    for name, path in job.files.items():
        try:
            arguments[name] = decode(Path(path).read_bytes())
        except (ValueError, FileNotFoundError, IsADirectoryError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputUnreadable(
                f"the argument {name!r} of task {node.name!r} is in {path}, which cannot be read: {why}"
            ) from None
    return arguments


def _call(node: Node, arguments: dict[str, Any]) -> Any:
    value = node.function(**arguments)
    # Checked by the returned value: a partial or a `__call__` can hide a coroutine function.
    if type(value) in _SIMPLE:
        return value
    if inspect.isawaitable(value):
        value = _run(_awaited(value))
    return _run(_collected(value)) if isinstance(value, AsyncIterator) else value


def _run(work: Any) -> Any:
    import asyncio

    return asyncio.run(work)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


async def _collected(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


def _chosen(node: Node, branch: Branch, followers: Collection[str]) -> tuple[str, ...]:
    if node.each is not None or node.sensing is not None:
        what = "a child of a fan-out" if node.each else "a sensor"
        raise ResultRejected(
            f"task {node.name!r} returned a Branch, and {what} cannot choose what runs: let a task after it"
        )
    for name in branch.followers:
        if name not in followers:
            raise ResultRejected(
                f"task {node.name!r} returned Branch({name!r}), and no task {name!r} comes directly after it"
            )
    return branch.followers


def _as_list(node: Node, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, _LISTED):
        return list(value)
    raise ResultRejected(
        f"task {node.name!r} returned {_named(value)}, and other tasks run for each item of its result: return a list"
    )


def _text(node: Node, value: Any) -> str:
    lost: list[str] = []
    text = encode(value, lost=lost)
    if not lost:
        return text
    what = lost[0] if lost[0] == _named(value) else f"{_named(value)} that holds {lost[0]}"
    raise ResultRejected(
        f"task {node.name!r} returned {what}, which JSON cannot hold: return plain data, or write it to a file and "
        "return its path"
    )


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = "None" if value is None else type(value).__name__
    return name if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _put_into(path: str, text: str) -> bool:
    """Write a result that is too large for a message, atomically."""
    data = text.encode()
    if len(data) <= LARGEST or not path:
        return False
    scratch = scratch_beside(path)
    try:
        make_directory(os.path.dirname(path))
        with open(open_new(scratch), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return True


def _failed(node: Node, job: TaskJob, error: BaseException, seconds: float) -> TaskOutcome:
    try:
        outcome = _described(node, job, error, seconds)
        return _redacted(outcome, node, job) if job.redact else outcome
    except BaseException as raised:  # no memory even for this, or an error that cannot be inspected
        if ENDING.is_requested and isinstance(raised, TaskTimeout):
            raise
        with contextlib.suppress(Exception):
            traceback.clear_frames(error.__traceback__)
        kind = type(error).__name__
        verdict = Verdict(Kind.AMBIGUOUS, f"{kind}, which could not be looked into", "task")
        return TaskOutcome(
            ticket=job.ticket, ended=AttemptEnd.RAISED, seconds=seconds, verdict=verdict, error=kind, fingerprint=kind
        )


def _described(node: Node, job: TaskJob, error: BaseException, seconds: float) -> TaskOutcome:
    """Return the outcome of an attempt that raised; every text of it is masked here, whoever wrote it."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # the frames may hold what filled the memory
    secrets = secrets_of(error)
    message, cause, verdict, has_trace = _explained(node, error, secrets)
    detail = None if verdict.detail is None else masked_line(verdict.detail, secrets)
    return TaskOutcome(
        ticket=job.ticket,
        ended=AttemptEnd.RAISED,
        seconds=seconds,
        verdict=replace(verdict, reason=masked_line(verdict.reason, secrets), detail=detail),
        error=masked_line(message, secrets),
        fingerprint=storable(cause),
        trace=trace_of(error, secrets, skip=_HERE) if has_trace else None,
    )


def _explained(node: Node, error: BaseException, secrets: Sequence[str]) -> tuple[str, str, Verdict, bool]:
    """Return the message for an exception of a task, its fingerprint and verdict, and whether to show a traceback."""
    cause = fingerprint(error, skip=_HERE, home=getattr(node.function, "__module__", None))
    has_trace = True
    if isinstance(error, ResultRejected):
        message, cause, has_trace = str(error), f"result@{node.name}", False
        verdict = Verdict(Kind.PERMANENT, "its result cannot be kept", "task result")
    elif isinstance(error, InputUnreadable):
        message, cause, has_trace = str(error), f"argument@{node.name}", False
        verdict = Verdict(Kind.PERMANENT, "what it needs cannot be read", "task argument")
    elif isinstance(error, TaskTimeout):
        message = f"the task itself raised {one_line(error, secrets)}"
        verdict = Verdict(Kind.TRANSIENT, "the task itself raised TaskTimeout", "task")
    elif is_stop_signal(error):
        message = _ended_itself(node, error)
        verdict = Verdict(Kind.AMBIGUOUS, "the task tried to end its program", "task")
    else:
        message = one_line(error, secrets)
        verdict = (node.classifier or _CLASSIFIER).classify(error, "task")
        cause = with_status(cause, verdict.status)
        if verdict.kind in REPEATABLE and _may_have_acted(node, error):
            message = f"{message}; it may have taken effect: check that before the task is retried"
            verdict = replace(verdict, kind=Kind.PERMANENT, reason="it may have taken effect", retry_after=None)
    return message, cause, verdict, has_trace


def _redacted(outcome: TaskOutcome, node: Node, job: TaskJob) -> TaskOutcome:
    """Return a failure without the values of redacted fields: its texts are stored, sent in alerts and printed."""
    from redrive.dlq.redact import Redactor

    redactor, arguments, records = Redactor(job.redact), {}, []
    with contextlib.suppress(InputUnreadable, ValueError):  # the task was not called: its error shows no value
        # Decoded once more: the task may have changed what it was given.
        arguments = _decoded(node, job)
    for value in arguments.values():  # a path begins at the top of each record
        records += value if isinstance(value, list) else [value]
    records = [record for record in records if isinstance(record, Mapping | list)]

    def hide(text: str) -> str:
        return redactor.text(text, arguments, rows=records)

    verdict = outcome.verdict
    if verdict is not None:
        detail = None if verdict.detail is None else hide(verdict.detail)
        verdict = replace(verdict, reason=hide(verdict.reason), detail=detail)
    return replace(
        outcome,
        verdict=verdict,
        error=None if outcome.error is None else hide(outcome.error),
        trace=None if outcome.trace is None else hide(outcome.trace),
    )


def _may_have_acted(node: Node, error: BaseException) -> bool:
    """Return whether a service has refused to send again what the task would send again.

    A task that takes an idempotency key can be retried; a sensor polls again in any case.
    """
    story = attached_failure(error)
    return story is not None and story.effect_unknown and not node.binding.wants_key and node.sensing is None


def _ended_itself(node: Node, error: BaseException) -> str:
    if isinstance(error, SystemExit):
        code = "" if error.code is None else str(error.code)
        did = f"called sys.exit({masked_line(code, length=200)})"
    else:
        did = f"raised {type(error).__name__}, which is a signal to stop"
    return f"task {node.name!r} {did}: let it return, or raise an exception that describes the fault"
