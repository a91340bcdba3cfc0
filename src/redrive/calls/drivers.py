"""The steps that the retry loop asks for, and the two drivers that perform them: in a thread, and in a coroutine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, cast

from redrive.calls import testmode
from redrive.classify.signals import is_interrupt
from redrive.clock import Clock

if TYPE_CHECKING:
    from redrive.calls.credentials import Grant
    from redrive.calls.tokens import TokenKeeper


@dataclass(frozen=True, slots=True)
class Returned:
    """Outcome: the function returned this."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Raised:
    """Outcome: the function raised this."""

    error: Exception
    since: int = -1
    """The instruction of the error's outermost frame at which a block of `attempts()` began; -1 for a function."""


Outcome = Returned | Raised


@dataclass(frozen=True, slots=True)
class Invoke:
    """Step: make one attempt; reply with its outcome."""

    number: int
    grant: Grant | None
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Step: sleep."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Refresh:
    """Step: refresh a token, unless that has happened since generation `seen`; reply with Raised where it failed."""

    keeper: TokenKeeper
    seen: int
    timeout: float
    """Seconds to wait for another caller's fetch."""


@dataclass(frozen=True, slots=True)
class DiscardResponse:
    """Step: close a response that is not used."""

    response: Any


@dataclass(frozen=True, slots=True)
class CallFallback:
    """Step: call the user's fallback in place of the function; reply with its outcome."""

    error: Exception


Step = Invoke | Wait | Refresh | DiscardResponse | CallFallback
Steps = Generator[Step, Any, Outcome]


@dataclass(frozen=True, slots=True)
class Driver:
    """What a driver calls to perform the steps."""

    attempt: Callable[[Invoke], Any]
    """Calls the user's function; the async driver is given one that returns an awaitable."""
    fallback: Callable[[Exception], Any]
    clock: Clock


def drive(steps: Steps, work: Driver) -> Outcome:
    """Perform the steps in this thread."""
    reply: Any = None
    step: Step | None = None
    try:
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return cast("Outcome", end.value)
            reply = perform(step, work)
    finally:
        steps.close()  # an interrupt in the middle returns the permit of the attempt
        del reply, step  # the error's traceback holds this frame: it must not hold the error


def perform(step: Step, work: Driver) -> Outcome | None:
    """Perform one step in this thread."""
    try:
        match step:
            case Invoke():
                return Returned(work.attempt(step))
            case Wait(seconds):
                if (shortened := testmode.capped(seconds)) > 0:
                    work.clock.sleep(shortened)
            case Refresh(keeper, seen, timeout):
                keeper.refresh(seen, timeout)
            case DiscardResponse(response):
                response.close()
            case CallFallback(error):
                return Returned(_value(work.fallback(error)))
    except Exception as error:
        return _failed(step, error)
    return None


async def adrive(steps: Steps, work: Driver) -> Outcome:
    """Perform the steps in this coroutine."""
    reply: Any = None
    step: Step | None = None
    try:
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                return cast("Outcome", end.value)
            reply = await aperform(step, work)
    finally:
        steps.close()
        del reply, step


async def aperform(step: Step, work: Driver) -> Outcome | None:
    """Perform one step in this coroutine."""
    try:
        match step:
            case Invoke():
                return Returned(await work.attempt(step))
            case Wait(seconds):
                if (shortened := testmode.capped(seconds)) > 0:
                    await work.clock.asleep(shortened)
            case Refresh(keeper, seen, timeout):
                await keeper.arefresh(seen, timeout)
            case DiscardResponse(response):
                closing = response.aclose() if hasattr(response, "aclose") else response.close()
                if isawaitable(closing):
                    await closing
            case CallFallback(error):
                substitute = work.fallback(error)
                return Returned(await substitute if isawaitable(substitute) else substitute)
    except Exception as error:
        return _failed(step, error)
    return None


def _value(substitute: Any) -> Any:
    """Return the value of a fallback, unless it is still to be awaited."""
    if not isawaitable(substitute):
        return substitute
    if hasattr(substitute, "close"):
        substitute.close()  # a coroutine that is dropped unawaited warns at a random later moment
    raise TypeError("the fallback is async and the call is not: pass a sync fallback, or call with `await acall(…)`")


def _failed(step: Step, error: Exception) -> Outcome | None:
    if isinstance(step, Wait) or is_interrupt(error):
        raise error  # no code of the user runs in a wait: a signal handler raised the error for the caller
    if isinstance(step, DiscardResponse):
        return None  # a response that cannot even be closed is not worth a call
    if isinstance(step, CallFallback) and error.__cause__ is None and error is not step.error:
        error.__cause__ = step.error  # a fallback that fails does not hide the error that it replaces
    return Raised(error)


def unwrap(outcome: Outcome) -> Any:
    """Return the value of the outcome, or raise its error."""
    if isinstance(outcome, Returned):
        return outcome.value
    try:
        raise outcome.error
    finally:
        del outcome  # no cycle through this frame
