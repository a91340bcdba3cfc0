"""Dead letters of calls that fail for good, with their arguments; and the target that replays them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

from redrive._internal.masking import mask
from redrive.calls.arguments import Arguments, NotCopied, is_read_once
from redrive.calls.bound_values import NotIdentifiedError, bound_values, identity_of, module_of
from redrive.calls.context import new_key
from redrive.calls.drivers import Outcome, Raised
from redrive.calls.effects.in_flight import members
from redrive.calls.effects.request import BodyMissing, body_of, idempotency_key, with_fixed_boundary
from redrive.calls.failures import attached_failure
from redrive.calls.function import CalledFunction, endpoint_of, innermost, is_async
from redrive.classify.responses import attribute
from redrive.classify.signals import is_interrupt
from redrive.errors import CallError, CircuitOpen, QuotaExhausted
from redrive.events.bus import EVENTS
from redrive.model.calls import Failure, Kind, Verdict
from redrive.model.letters import (
    ARGUMENT_MISSING,
    ARGUMENT_TYPES,
    BODY_MISSING,
    BOUND,
    CODE,
    DIGEST,
    GENERATED_KEY,
    ErrorType,
    NewLetter,
)
from redrive.store.encoding import encode

if TYPE_CHECKING:
    from redrive.calls.service import Service


# Kinds that are about the call: the next one may succeed.
_OF_THE_CALL = {Kind.PERMANENT, Kind.AMBIGUOUS, Kind.ROW, Kind.DISCARD}
# Kinds that may be about the call, such as a request on which the service fails each time: the next calls show it.
_OF_EITHER = {Kind.TRANSIENT, Kind.RETRY_NOW}
_MOST_DOWN = 5  # failures in a row without a response: the service is down, also where it has no breaker


# Headers of the client, the connection, the body and the moment; of credentials and cookies, which are renewed.
_OF_ONE_SENDING = re.compile(
    r"""(?x)
    accept | accept-(?:charset|encoding|language) | user-agent | host | via | forwarded | x-forwarded-.* | x-real-ip
    | connection | keep-alive | te | trailer | transfer-encoding | upgrade | proxy-.* | expect
    | content-.* | idempotency-key | digest | cache-control | pragma | if-.*
    | authorization | cookie | .*-token | .*signature.* | .*(?:date|time|timestamp|nonce)
    | baggage | b3 | x-b3-.* | .*trace.* | .*span.* | .*(?:request|correlation|transaction)-?id
    """
)
_SALT = os.urandom(16)  # where what letters are put into is no store


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
    """The queue that stores letters: `store.dlq`."""

    def put_many(self, letters: Iterable[NewLetter], *, pipeline: str) -> Any:
        """Quarantine records."""


class HasDeadLetters(Protocol):
    """A store with a queue of dead letters: `redrive.connect(…)`."""

    @property
    def dlq(self) -> Any:
        """The queue."""


class DeadLetterWriter:
    """Stores the failed calls of one service."""

    def __init__(self, queue: Queue, pipeline: str) -> None:
        self._queue = queue
        self._pipeline = pipeline
        self._has_warned = False

    def is_failure(self, outcome: Outcome) -> bool:
        """Return whether a call failed: it raised, or returned a response that is a failure."""
        carrier = outcome.error if isinstance(outcome, Raised) else outcome.value
        failure = attribute(carrier, "redrive")
        if isinstance(failure, Failure):
            return failure.verdict.kind is not Kind.DISCARD
        return isinstance(outcome, Raised)

    def store(
        self,
        target: CalledFunction,
        function: Callable[..., Any],
        given: Arguments,
        outcome: Outcome,
        *,
        key: str | None,
        generated_key: str | None,
    ) -> None:
        """Quarantine a call. Where that fails, the call still ends with its own error.

        Args:
            given: the arguments, as they were before the first attempt.
            key: the idempotency key that the caller chose: calls with two keys are two calls.
            generated_key: the key that redrive made, which a replay sends again; equal calls still are one letter.
        """
        carrier = outcome.error if isinstance(outcome, Raised) else outcome.value
        failure = attached_failure(carrier)
        try:
            if target.returns_responses:
                record = _request(given.args[0], key, self._digest)
            else:
                record = _call(target, function, given, key, self._digest)
            if generated_key is not None and "idempotency_key" not in record:
                record[GENERATED_KEY] = generated_key
            letter = NewLetter(
                record=record,
                error=self._message(target.endpoint, outcome, failure, record),
                source=target.endpoint,
                error_type=ErrorType.CALL,
                attempts=_attempts(carrier, failure),
            )
            self._queue.put_many([letter], pipeline=self._pipeline)
        except Exception as error:
            if is_interrupt(error):
                raise
            reason = mask(f"{type(error).__name__}: {error}")
            EVENTS.error("cannot store the dead letter of a call of %s: %s", target.endpoint, reason)
            return
        missing = record.get(BODY_MISSING) or record.get(ARGUMENT_MISSING)
        if missing and not self._has_warned:
            self._has_warned = True
            EVENTS.warning(
                "the dead letter of a call of %s is not complete: %s. A replay rejects it; pass all that the call "
                "needs as arguments, and what can be read again, such as bytes",
                target.endpoint,
                missing,
            )

    @property
    def redacts(self) -> bool:
        """Return whether the store masks fields."""
        return bool(attribute(attribute(self._queue, "redactor"), "fields"))

    def _digest(self, text: str) -> str:
        """Return what stands for a text that is not shown in a record."""
        digest = attribute(self._queue, "digest")
        return str(digest(text)) if callable(digest) else blake2b(text.encode(), digest_size=6, key=_SALT).hexdigest()

    def _message(
        self, endpoint: str, outcome: Outcome, failure: Failure | None, record: Mapping[str, Any]
    ) -> str | BaseException:
        """Return the error, unless it may contain fields of a record that cannot be masked by field."""
        error = outcome.error if isinstance(outcome, Raised) else None
        if self.redacts and not self._is_readable(record):
            name = endpoint if error is None else type(error).__name__
            return f"{name}: {failure.verdict.reason}" if failure is not None else f"{name}: the call failed"
        return _describe(endpoint, failure) if error is None else error

    def _is_readable(self, record: Mapping[str, Any]) -> bool:
        redactor = attribute(self._queue, "redactor")
        return BODY_MISSING not in record and ARGUMENT_MISSING not in record and redactor.can_read(record)


def _attempts(carrier: Any, failure: Failure | None) -> int:
    """Return how often a call was sent: not at all where the circuit was open, or no key left, from the start."""
    made = 0 if failure is None else len(failure.attempts)
    return made if isinstance(carrier, CircuitOpen | QuotaExhausted) else max(1, made)


def _call(
    target: CalledFunction,
    function: Callable[..., Any],
    given: Arguments,
    key: str | None,
    digest: Callable[[str], str],
) -> dict[str, Any]:
    # Sorted: equal calls are one letter, in whatever order their keywords are written.
    call: dict[str, Any] = {
        "function": target.endpoint,
        "module": module_of(function),
        "args": list(given.args),
        "kwargs": dict(sorted(given.kwargs.items())),
    }
    bound = bound_values(function, given)
    if bound.code is not None:
        call[CODE] = bound.code
    if bound.data:
        call[BOUND] = bound.shown
    missing = _why_missing(*given)
    types = dict(bound.types)
    try:
        held = [identity_of(given.args, "args", types), identity_of(dict(given.kwargs), "kwargs", types)]
        is_known = bound.is_known and missing is None
    except NotIdentifiedError:
        is_known = False
    if types:
        call[ARGUMENT_TYPES] = types
    if not is_known:
        call["call_id"] = new_key()  # two such calls cannot be proved to be equal
    elif types or bound.identity:
        call[DIGEST] = digest(encode([bound.identity, held]))
    if bound.missing:
        missing = f"the function has values that are not among its arguments ({', '.join(bound.missing)})"
    if missing is not None:
        call[ARGUMENT_MISSING] = missing
    return call if key is None else {**call, "idempotency_key": key}


def _why_missing(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return why a call cannot be made again from its record; None where it can."""
    if (changed := next((each for each in members([args, kwargs]) if isinstance(each, NotCopied)), None)) is not None:
        return f"an argument ({changed.kind}) could not be copied before the call, which may have changed it"
    if (read_once := next(filter(is_read_once, members([args, kwargs])), None)) is not None:
        return f"an argument ({type(read_once).__name__}) can be read only once"
    lost: list[str] = []
    encode([args, dict(kwargs)], lost=lost)
    return f"an argument is or holds {lost[0]}, of which the record has only the text" if lost else None


def _request(request: Any, key: str | None, digest: Callable[[str], str]) -> dict[str, Any]:
    """Return the record of a request of httpx or requests: without headers and secrets, with its body if possible.

    A digest stands for what is left out.
    """
    body: str | bytes | None = None
    headers = attribute(request, "headers")
    content_type = None if headers is None else headers.get("content-type")
    missing = {}
    try:
        if (content := body_of(request)) is not None:
            content, content_type = with_fixed_boundary(request, content)
            body = content
            with suppress(UnicodeDecodeError):  # it is stored as bytes
                body = content.decode()
    except BodyMissing as error:
        # It is not known whether two such requests are equal: each is a letter of its own.
        missing = {BODY_MISSING: str(error), "call_id": new_key()}
    key = idempotency_key(request) or key
    url, counted = str(attribute(request, "url")), _headers_that_count(headers)
    shown = mask(url)
    if counted or shown != url:
        missing[DIGEST] = digest(encode([url, counted]))
    record = {
        "method": str(attribute(request, "method")),
        "url": shown,
        "content_type": content_type,
        "body": body,
        **missing,
    }
    return record if key is None else {**record, "idempotency_key": key}


def _headers_that_count(headers: Any) -> list[list[str]]:
    """Return the headers that distinguish requests; not those that differ from one sending of a request to the next."""
    pairs = ((str(name).lower(), str(value)) for name, value in dict(headers or {}).items())
    return sorted([name, value] for name, value in pairs if not _OF_ONE_SENDING.fullmatch(name))


def _describe(endpoint: str, failure: Failure | None) -> str:
    if failure is None:
        return f"{endpoint} failed"
    detail = f": {failure.verdict.detail}" if failure.verdict.detail else ""
    return f"{endpoint}: {failure.verdict.reason}{detail}"


def _verdict(error: Exception) -> Verdict | None:
    """Return the verdict of the service on an error; None where the error did not pass through a service."""
    failure = attached_failure(error)
    if failure is None:
        return None
    if isinstance(error, CircuitOpen) and failure.verdict.kind in _OF_THE_CALL:
        return replace(failure.verdict, kind=Kind.TRANSIENT)  # the verdict is of the call that opened the circuit
    return failure.verdict


def _is_outage(error: Exception, verdict: Verdict) -> bool:
    """Return whether the next call would fail, too: the circuit rejects all calls, or the service the key."""
    return isinstance(error, CircuitOpen) or verdict.kind not in _OF_EITHER


class CallTarget:
    """Makes the calls of dead letters again, through the service; a call that fails again is no new letter."""

    def __init__(self, service: Service, function: Callable[..., Any], pipeline: str | None) -> None:
        self._service = service
        self._function = innermost(function)  # records have the arguments of a partial
        self._name = endpoint_of(function)
        self._module = module_of(function)
        self.letters_pipeline = pipeline
        self._answered = False  # whether a call got a response since the last outage

    def reprocess(self, records: Sequence[Any]) -> list[BaseException | None]:
        """Call the function with the arguments of each record; return the errors, None for calls that succeeded.

        A transient error is about its record where the service answers other calls.

        Raises:
            TargetStopped: the service is down or lets no call through; the record is not to blame, and the next
                call would fail, too.
        """
        outcomes: list[BaseException | None] = []
        failures: list[tuple[Exception, Verdict]] = []  # transient ones in a row
        certain = 0  # outcomes that no outage has caused
        for record in records:
            error = self._call_again(record)
            verdict = None if error is None else _verdict(error)
            if error is not None and verdict is not None and verdict.kind not in _OF_THE_CALL:
                failures.append((error, verdict))
                if _is_outage(error, verdict) or len(failures) == _MOST_DOWN:
                    raise self._stopped(error, verdict, outcomes[:certain]) from error
            elif error is None or (verdict is not None and verdict.status is not None):
                self._answered = True
                failures.clear()
            outcomes.append(error)
            if not failures:
                certain = len(outcomes)
        if failures and not self._answered:
            error, verdict = failures[-1]
            raise self._stopped(error, verdict, outcomes[:certain]) from error
        return outcomes

    def _stopped(self, error: Exception, verdict: Verdict, outcomes: Sequence[BaseException | None]) -> TargetStopped:
        self._answered = False
        return TargetStopped(error, verdict, outcomes)

    def _call_again(self, record: Any) -> Exception | None:
        if not isinstance(record, Mapping) or record.get("function") != self._name:
            was = record.get("function") if isinstance(record, Mapping) else None
            return ValueError(f"it is a call of {was or 'another kind'}, not of {self._name}")
        # A program that is run has another name than when it is imported.
        if (was := record.get("module")) != self._module and not {was, self._module} & {None, "__main__"}:
            return ValueError(f"it is a call of {self._name} in the module {was}, not in {self._module}")
        args, kwargs = record.get("args", ()), record.get("kwargs", {})
        try:
            self._reject_other_values(record, Arguments(tuple(args), kwargs))
            key = record.get("idempotency_key") or record.get(GENERATED_KEY)
            service = self._service.with_options(idempotency_key=key)
            if is_async(self._function):
                import asyncio

                value = asyncio.run(service.acall(self._function, *args, **kwargs))
            else:
                value = service.call(self._function, *args, **kwargs)
        except Exception as error:
            if is_interrupt(error):
                raise
            return error
        failure = attribute(value, "redrive")
        if isinstance(failure, Failure) and failure.verdict.kind is not Kind.DISCARD:
            return CallError(
                _describe(self._name, failure), redrive=failure
            )  # a response that is a failure, such as a 422
        return None

    def _reject_other_values(self, record: Mapping[str, Any], given: Arguments) -> None:
        """Raise where the function of the target works on other values than that of the record did."""
        bound = bound_values(self._function, given)
        if (was := record.get(BOUND, {})) != bound.shown:
            raise ValueError(
                f"it is a call of {self._name} with the bound values {was}, and that of this target has {bound.shown}"
            )
        were = {name: kind for name, kind in record.get(ARGUMENT_TYPES, {}).items() if name in bound.data}
        types = {name: kind for name, kind in bound.types.items() if name in bound.data}
        if ARGUMENT_TYPES in record and were != types:
            raise ValueError(f"it is a call of {self._name} with values of {were}, and that of this target has {types}")
        if CODE in record and record[CODE] != bound.code:
            raise ValueError(f"it is a call of another lambda than the {self._name} of this target")
