"""One logical call: the user's function with its arguments, attempted as often as the retry loop asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum, auto
from types import AsyncGeneratorType, GeneratorType, NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redrive.calls.arguments import Arguments, merged, why_read
from redrive.calls.context import EnclosingAttempt, attempt_of, enclosing, innermost, inside, new_key
from redrive.calls.drivers import Invoke, Outcome, Raised, Steps
from redrive.calls.effects.idempotency import SentKeys, has_acted, mark_unprotected
from redrive.calls.effects.in_flight import in_flight, left_in_flight
from redrive.calls.effects.request import KnownRequest, carry
from redrive.calls.function import CalledFunction, reject_generator
from redrive.calls.retry_loop import AttemptResult, RetryLoop
from redrive.calls.service_options import MISSING
from redrive.classify.responses import has_status, is_response
from redrive.clock import time_limit

if TYPE_CHECKING:
    from redrive.calls.fast_path import ServiceRunner


class ResultKind(Enum):
    """The kinds of results, each handled in its own way."""

    PLAIN = auto()
    AWAITABLE = auto()
    RESPONSE = auto()
    GENERATOR = auto()


# Types that need no second look; read in every call. Bounded, since programs can make types without end.
plain_types: set[type] = {NoneType, bool, int, float, str, bytes, tuple, list, dict, set}
_MOST_TYPES = 2_000


def result_kind(value: object) -> ResultKind:
    """Return the kind of a result; types of plain values are remembered."""
    cls = value.__class__
    if issubclass(cls, GeneratorType | AsyncGeneratorType):
        return ResultKind.GENERATOR
    if hasattr(cls, "__await__"):
        return ResultKind.AWAITABLE
    if is_response(value):
        return ResultKind.RESPONSE
    # The next object of a class with a status may hold a 503 where this one holds None.
    if len(plain_types) < _MOST_TYPES and not has_status(value):
        plain_types.add(cls)
    return ResultKind.PLAIN


Function = Callable[..., Any]


class AwaitableReturned(BaseException):
    """A function called synchronously returned an awaitable. No Exception, so that no attempt counts as failed."""

    def __init__(self, awaitable: Any) -> None:
        self.awaitable = awaitable


class Invocation:
    """What is attempted, and what all its attempts share: one idempotency key, one start."""

    def __init__(
        self,
        runner: ServiceRunner,
        target: CalledFunction,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        began: float | None = None,
        attempt: EnclosingAttempt | None = None,
        received: Arguments | None = None,
    ) -> None:
        self._runner = runner
        self._target = target
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._received = received  # as they were before the first attempt
        self._outer = innermost()
        self._running: Any = None
        self._attempt = attempt  # the last one
        self._began = runner.core.clock.monotonic() if began is None else began
        self._counted = False
        self.nested = enclosing(runner.core) if self._outer is not None else None
        self._key = self._make_key()
        self._keys = self._keys_of_call()

    def _keys_of_call(self) -> SentKeys | None:
        if self.nested is not None:
            return self.nested.keys
        return None if self._key is None else SentKeys()

    def _make_key(self) -> str | None:
        options, core = self._runner.options, self._runner.core
        if options.idempotency_key is not None:
            return options.idempotency_key
        if self.nested is not None and core.idempotent == "key":
            return self._derived_key(self.nested)
        wanted = core.idempotent == "key" or self._target.takes_key
        return new_key() if wanted else None

    def _derived_key(self, nested: EnclosingAttempt) -> str | None:
        """Return the key of what is sent inside an attempt: the same in every attempt that sends the same."""
        content = self._target.content
        if content == "":  # a function
            if not self._target.takes_key:
                return None
            if not plain((self._args, self._kwargs)):
                raise TypeError(
                    f"no idempotency key can be derived for {self._target.endpoint} inside an attempt of its service: "
                    "its arguments are not plain values; pass idempotency_key yourself"
                )
            content = f"{self._target.endpoint} {self._args!r} {self._kwargs!r}"
        return None if content is None else nested.next_key(content)

    def steps(self, first: AttemptResult | None) -> Steps:
        """Return the steps of this call."""
        options, core = self._runner.options, self._runner.core
        loop = RetryLoop(
            core,
            options.endpoint or self._target.endpoint,
            began=self._began,
            timeout=self._runner.timeout,
            returns_responses=self._target.returns_responses,
            # An HTTP adapter sends the key; a function may do with it what it likes.
            idempotent=core.idempotent is True or (self._target.returns_responses and self._key is not None),
            counted=self._counted,
            request=self._target.request,
            server=self._target.server,
            has_fallback=options.fallback is not MISSING and not self._target.returns_responses,
            keys=self._keys,
            beside=self._beside,
            why_read=self._why_read,
        )
        self._counted = True
        return loop.run(first)

    def attempt(self, step: Invoke | None) -> Any:
        """Call the function once; without a step, as part of an enclosing attempt of the same service."""
        mark = self._mark(step)
        entered = inside.set(mark)
        try:
            result = self._function(*self._args, **self._filled(mark, step))
        except BaseException as error:
            self._note_end(mark, error)
            raise
        finally:
            mark.over = True
            inside.reset(entered)
        self._note_end(mark, result)
        self.expect_value(result)
        return result

    async def aattempt(self, step: Invoke | None) -> Any:
        """Do the same in a coroutine, with the attempt's timeout enforced."""
        mark = self._mark(step)
        entered = inside.set(mark)
        try:
            running, self._running = self._running, None
            result = running if running is not None else self._function(*self._args, **self._filled(mark, step))
            timeout = self._runner.timeout if step is None else step.timeout
            result = await settle(result, None if self._target.limits_itself else timeout)
        except BaseException as error:
            self._note_end(mark, error)
            raise
        finally:
            mark.over = True
            with suppress(ValueError):  # the coroutine was closed in another context than it started in
                inside.reset(entered)
        self._note_end(mark, result)
        self.reject_generator(result)
        return result

    def expect_value(self, result: Any) -> None:
        """Raise AwaitableReturned where a result is still to be awaited."""
        if self.nested is None and result_kind(result) is ResultKind.AWAITABLE:
            raise AwaitableReturned(result)
        self.reject_generator(result)

    def reject_generator(self, result: Any) -> None:
        """Raise TypeError for a generator function; a generator that a plain function returns is its result."""
        if result_kind(result) is ResultKind.GENERATOR:
            reject_generator(self._function)

    def taking_over(self, awaitable: Any) -> Invocation:
        """Return the same call with its first attempt already running."""
        self._running = awaitable
        return self

    def fall_back(self, error: Exception) -> Any:
        """Return the user's substitute: a value, or what a function of the same arguments (and `error`) returns."""
        fallback = self._runner.options.fallback
        if not callable(fallback):
            return fallback
        if _takes_error(fallback):
            return fallback(*self._args, **self._kwargs, error=error)
        return fallback(*self._args, **self._kwargs)

    def should_store(self, outcome: Outcome) -> bool:
        """Return whether the call becomes a dead letter."""
        letters = self._runner.core.letters
        return letters is not None and self._runner.options.keeps_letters and letters.is_failure(outcome)

    def store_letter(self, outcome: Outcome) -> None:
        """Store a dead letter of the call."""
        letters = self._runner.core.letters
        assert letters is not None
        chosen = self._runner.options.idempotency_key
        made = self._key if chosen is None else None
        received = self._received or merged(self._function, self._args, self._kwargs)
        letters.store(self._target, self._function, received, outcome, key=chosen, generated_key=made)

    def _mark(self, step: Invoke | None) -> EnclosingAttempt:
        grant = step.grant if step is not None else self.nested.grant if self.nested is not None else None
        mark = attempt_of(self._runner.core, grant, self._outer, self._key, self._keys)
        self._attempt = mark
        if self._keys is None:
            return mark
        if self.nested is None:
            if self._running is None:
                self._keys.begin()
        elif self._key is not None and not self._target.returns_responses:  # adapters know what they send
            mark.send(self._key, self._target.endpoint)
        return mark

    def _beside(self) -> list[Any]:
        """Return the requests that the last attempt has left in flight."""
        return [] if self._attempt is None else left_in_flight(self._attempt)

    def _why_read(self) -> str | None:
        """Return why the function cannot be called with its arguments again; an adapter knows what it may resend."""
        if self._attempt is None or self._target.returns_responses:
            return None
        return why_read(self._function, self._args, self._kwargs)

    def mark_unprotected(self, outcome: Outcome) -> None:
        """Mark the keys made for this call as unprotected for outer calls: their next attempt has other keys."""
        made = self._key if self._runner.options.idempotency_key is None else None
        if made is not None and isinstance(outcome, Raised) and not self._target.returns_responses:
            mark_unprotected(outcome.error, made, self._keys)

    def _note_end(self, mark: EnclosingAttempt, ended: Any) -> None:
        """Note the outcome of a request that was sent inside an attempt of the same service."""
        if self.nested is None:
            return
        if self._keys is None or mark.sent is None:
            if isinstance(ended, Exception):
                self.mark_unprotected(Raised(ended))
            return
        acted = None if result_kind(ended) is ResultKind.AWAITABLE else has_acted(ended)
        # A function may have sent more than the request that the server did not act on.
        self._keys.ended(mark.sent, acted=acted, give_back=self._target.returns_responses and not self.nested.over)

    def _filled(self, mark: EnclosingAttempt, step: Invoke | None) -> dict[str, Any]:
        if not self._target.fills:
            return self._kwargs
        timeout = self._runner.timeout if step is None else step.timeout
        return self._target.fill(self._args, self._kwargs, mark.grant, timeout, self._key)


async def settle(result: Any, timeout: float | None) -> Any:
    """Await the result of an attempt, for at most `timeout` seconds; return a plain value as it is."""
    if not inspect.isawaitable(result):
        return result
    if timeout is None:
        return await result
    requests: list[KnownRequest] = []

    def before(future: object) -> None:
        requests.extend(in_flight(result, future))

    try:
        async with time_limit(timeout, before):
            return await result
    except TimeoutError as error:
        carry(error, requests)
        raise


def plain(value: object) -> bool:
    """Return whether equal values surely have equal texts."""
    if isinstance(value, list | tuple):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(plain(inner) for pair in value.items() for inner in pair)
    return value is None or isinstance(value, str | bytes | int | float | Decimal | date | time | timedelta | UUID)


def _takes_error(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "error" in parameters
