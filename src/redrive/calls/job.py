"""One logical call: the user's function with its arguments, attempted as often as the flow asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redrive.calls.context import Inside, enclosing, inside, new_key
from redrive.calls.core import MISSING
from redrive.calls.flow import Call, Steps, Trial
from redrive.calls.results import Nature, nature_of
from redrive.calls.steps import Invoke
from redrive.calls.target import Target, refuse_generator

if TYPE_CHECKING:
    from redrive.calls.runner import Runner

Function = Callable[..., Any]


class TurnedOutAsync(BaseException):
    """A function called synchronously gave an awaitable; no Exception, so that no attempt counts it as a failure."""

    def __init__(self, awaitable: Any) -> None:
        self.awaitable = awaitable


class Job:
    """What is attempted, and what all its attempts share: one idempotency key, one beginning."""

    def __init__(
        self,
        runner: Runner,
        target: Target,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        began: float | None = None,
    ) -> None:
        self._runner = runner
        self._target = target
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._outer = inside.get()
        self._under_way: Any = None
        self._began = runner.core.clock.monotonic() if began is None else began
        self.nested = enclosing(runner.core.name) if self._outer is not None else None
        self._key = self._make_key()

    def _make_key(self) -> str | None:
        options, core = self._runner.options, self._runner.core
        if options.idempotency_key is not None:
            return options.idempotency_key
        if self.nested is not None:
            return self.nested.next_key(self._target.endpoint)
        wanted = core.idempotent == "key" or self._target.takes_key
        return new_key() if wanted else None

    def steps(self, first: Trial | None) -> Steps:
        """The flow of this call."""
        options = self._runner.options
        call = Call(
            self._runner.core,
            options.endpoint or self._target.endpoint,
            began=self._began,
            timeout=options.timeout,
            returns_responses=self._target.returns_responses,
            has_fallback=options.fallback is not MISSING,
        )
        return call.run(first)

    def attempt(self, step: Invoke | None) -> Any:
        """Call the function once; without a step, as part of an attempt of the same service around us."""
        before = inside.get()
        inside.set(self._mark())
        try:
            result = self._function(*self._args, **self._filled(step))
        finally:
            inside.set(before)
        self.expect_value(result)
        return result

    async def aattempt(self, step: Invoke | None) -> Any:
        """The same in a coroutine, with the attempt's time enforced."""
        before = inside.get()
        inside.set(self._mark())
        try:
            under_way, self._under_way = self._under_way, None
            result = under_way if under_way is not None else self._function(*self._args, **self._filled(step))
            timeout = self._runner.options.timeout if step is None else step.timeout
            return await settle(result, None if self._target.limits_itself else timeout)
        finally:
            inside.set(before)

    def expect_value(self, result: Any) -> None:
        """Make sure that a result is no promise of one."""
        nature = nature_of(result.__class__)
        if nature is Nature.AWAITABLE and self.nested is None:
            raise TurnedOutAsync(result)
        if nature is Nature.GENERATOR:
            refuse_generator(self._function)

    def taking_over(self, awaitable: Any) -> Job:
        """The same job with its first attempt already under way."""
        self._under_way = awaitable
        return self

    def fall_back(self, error: Exception) -> Any:
        """The user's substitute: a value, or a function of the same arguments (and `error`, where it takes that)."""
        fallback = self._runner.options.fallback
        if not callable(fallback):
            return fallback
        if _takes_error(fallback):
            return fallback(*self._args, **self._kwargs, error=error)
        return fallback(*self._args, **self._kwargs)

    def _mark(self) -> Inside:
        return Inside(self._runner.core.name, self._outer, self._key)

    def _filled(self, step: Invoke | None) -> dict[str, Any]:
        if not self._target.fills:
            return self._kwargs
        if step is None:
            credentials = self._runner.core.credentials
            grant = None if credentials is None else credentials.current
            return self._target.fill(self._args, self._kwargs, grant, self._runner.options.timeout, self._key)
        return self._target.fill(self._args, self._kwargs, step.grant, step.timeout, self._key)


async def settle(result: Any, timeout: float | None) -> Any:
    """Await what an attempt gave, for at most `timeout` seconds; a plain value passes."""
    if not inspect.isawaitable(result):
        return result
    if timeout is None:
        return await result
    import asyncio

    async with asyncio.timeout(timeout):
        return await result


def _takes_error(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "error" in parameters
