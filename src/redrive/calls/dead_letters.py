"""Calls that fail for good become dead letters, with their arguments; and the way back: a target for replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from redrive.calls.announce import EVENTS
from redrive.calls.blame import story_of
from redrive.calls.steps import Outcome, Raised
from redrive.calls.target import Target, endpoint_of, is_async
from redrive.classify.responses import attribute
from redrive.classify.signals import is_interrupt
from redrive.errors import CallError, CircuitOpen
from redrive.letters import ErrorType, NewLetter
from redrive.masking import mask
from redrive.model import Failure, Kind, Verdict

if TYPE_CHECKING:
    from redrive.calls.service import Service


# A call that fails so has failed by itself: the next one may succeed.
_OF_THE_CALL = {Kind.PERMANENT, Kind.AMBIGUOUS, Kind.ROW, Kind.DISCARD}


class TargetStopped(Exception):
    """A target of a replay cannot continue, for a reason that is not a record's.

    `error` is what stopped it, `verdict` what that is, and `outcomes` are those of the records before.
    """

    def __init__(self, error: Exception, verdict: Verdict, outcomes: Sequence[BaseException | None]) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.verdict = verdict
        self.outcomes = outcomes


class Queue(Protocol):
    """What letters are put into: `store.dlq`."""

    def put_many(self, letters: Iterable[NewLetter], *, pipeline: str) -> Any:
        """Quarantine records."""


class KeepsLetters(Protocol):
    """What has a queue of dead letters: `redrive.connect(…)`."""

    @property
    def dlq(self) -> Any:
        """The queue."""


class LetterBox:
    """Where the failed calls of one service go."""

    def __init__(self, queue: Queue, pipeline: str) -> None:
        self._queue = queue
        self._pipeline = pipeline

    def wants(self, outcome: Outcome) -> bool:
        """Whether a call came to nothing: it raised, or ended in an answer that says so."""
        carrier = outcome.error if isinstance(outcome, Raised) else outcome.value
        story = attribute(carrier, "redrive")
        if isinstance(story, Failure):
            return story.verdict.kind is not Kind.DISCARD
        return isinstance(outcome, Raised)

    def keep(self, target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any], outcome: Outcome) -> None:
        """Quarantine a call. Where that cannot be done, the call still ends with its own error."""
        carrier = outcome.error if isinstance(outcome, Raised) else outcome.value
        story = story_of(carrier)
        letter = NewLetter(
            record=_request(args[0]) if target.returns_responses else _call(target, args, kwargs),
            error=carrier if isinstance(outcome, Raised) else _said(target.endpoint, story),
            source=target.endpoint,
            error_type=ErrorType.CALL,
            attempts=max(1, len(story.attempts)) if story is not None else 1,
        )
        try:
            self._queue.put_many([letter], pipeline=self._pipeline)
        except Exception as error:
            if is_interrupt(error):
                raise
            told = mask(f"{type(error).__name__}: {error}")
            EVENTS.error("cannot store the dead letter of a call of %s: %s", target.endpoint, told)


def _call(target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"function": target.endpoint, "args": list(args), "kwargs": dict(kwargs)}


def _request(request: Any) -> dict[str, Any]:
    """A request of httpx or requests, without headers and the secrets in its URL; a body only where it is in memory."""
    body = attribute(request, "content") if hasattr(request, "stream") else attribute(request, "body")
    if isinstance(body, bytes):
        with suppress(UnicodeDecodeError):  # it is stored as bytes
            body = body.decode()
    headers = attribute(request, "headers")
    return {
        "method": str(attribute(request, "method")),
        "url": mask(str(attribute(request, "url"))),
        "content_type": None if headers is None else headers.get("content-type"),
        "body": body if isinstance(body, str | bytes | None) else None,
    }


def _said(endpoint: str, story: Failure | None) -> str:
    if story is None:
        return f"{endpoint} failed"
    detail = f": {story.verdict.detail}" if story.verdict.detail else ""
    return f"{endpoint}: {story.verdict.reason}{detail}"


def _verdict(error: Exception) -> Verdict | None:
    """Return what the service made of an error; None where it has not seen it."""
    story = story_of(error)
    if story is None:
        return None
    if isinstance(error, CircuitOpen) and story.verdict.kind in _OF_THE_CALL:
        return replace(story.verdict, kind=Kind.TRANSIENT)  # of the call that opened it
    return story.verdict


class CallTarget:
    """Makes the calls of dead letters again, through the service; what fails again does not become another letter."""

    def __init__(self, service: Service, function: Callable[..., Any], pipeline: str | None) -> None:
        self._service = service
        self._function = function
        self._name = endpoint_of(function)
        self.letters_pipeline = pipeline

    def reprocess(self, records: Sequence[Any]) -> list[BaseException | None]:
        """Call the function with the arguments of each record; the errors of those that failed, None for the others.

        Raises:
            TargetStopped: the service is down or lets no call through; the record is not to blame, and the next call
                would fail, too.
        """
        outcomes: list[BaseException | None] = []
        for record in records:
            error = self._again(record)
            verdict = None if error is None else _verdict(error)
            if error is not None and verdict is not None and verdict.kind not in _OF_THE_CALL:
                raise TargetStopped(error, verdict, outcomes) from error
            outcomes.append(error)
        return outcomes

    def _again(self, record: Any) -> Exception | None:
        if not isinstance(record, Mapping) or record.get("function") != self._name:
            was = record.get("function") if isinstance(record, Mapping) else None
            return ValueError(f"it is a call of {was or 'another kind'}, not of {self._name}")
        args, kwargs = record.get("args", ()), record.get("kwargs", {})
        try:
            if is_async(self._function):
                import asyncio

                value = asyncio.run(self._service.acall(self._function, *args, **kwargs))
            else:
                value = self._service.call(self._function, *args, **kwargs)
        except Exception as error:
            if is_interrupt(error):
                raise
            return error
        story = attribute(value, "redrive")
        if isinstance(story, Failure) and story.verdict.kind is not Kind.DISCARD:
            return CallError(_said(self._name, story), redrive=story)  # a response that is a failure, such as a 422
        return None
