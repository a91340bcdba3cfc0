"""Runs a function for a service: by the fast path while nothing is wrong, by the retry loop once something is.

The fast path takes no lock and writes no log: it reads the circuit's state and the current key, sets the context, calls
the function, and appends one number to the counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from logging import INFO
from types import CoroutineType
from typing import Any, NamedTuple

from redrive.calls import arguments, context, invocation
from redrive.calls.circuit import Circuit
from redrive.calls.context import EnclosingAttempt, inside
from redrive.calls.core import ServiceCore
from redrive.calls.credentials import Grant
from redrive.calls.drivers import Driver, Outcome, Raised, Returned, adrive, drive, unwrap
from redrive.calls.function import CalledFunction
from redrive.calls.invocation import AwaitableReturned, Function, Invocation, ResultKind, result_kind, settle
from redrive.calls.retry_loop import AttemptResult
from redrive.calls.service_options import ServiceOptions
from redrive.classify.responses import response_status
from redrive.classify.signals import is_interrupt
from redrive.clock import in_thread
from redrive.events import bus
from redrive.events.bus import ATTEMPTS
from redrive.model.calls import Attempt
from redrive.policy.breaker import Permit

# Of asyncio and trio; neither is imported for it.
_CANCELLED = frozenset({"CancelledError", "Cancelled"})


class _NoCircuit:
    """Replaces the circuit where a service has no breaker."""

    closed = True
    generation = 0
    slow = None


Guard = Callable[[CalledFunction, Function], Function]


class ServiceRunner:
    """One view of a service, ready to run functions.

    `guard(target, function)` returns the function as the service runs it, in a thread; `aguard` does so for coroutines.
    """

    def __init__(self, core: ServiceCore, options: ServiceOptions) -> None:
        self.core = core
        self.options = options
        self.gate: Circuit | _NoCircuit = core.circuit or _NoCircuit()
        self.slow = self.gate.slow or math.inf
        # No attempt may outlast the whole call.
        self.timeout = None if options.timeout is None else min(options.timeout, core.retry.within)
        self.keyed = core.idempotent == "key" or options.idempotency_key is not None
        self.keeps_letters = core.letters is not None and options.keeps_letters
        self._endpoints: dict[int, ServiceRunner] = {}
        self.guard: Guard = _sync_guard(self)
        self.aguard: Guard = _async_guard(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ServiceRunner, (self.core, self.options)

    def at(self, endpoint: str) -> ServiceRunner:
        """Return the runner for calls of an endpoint: this one, unless each endpoint has a circuit of its own."""
        core = self.core.at(self.options.endpoint or endpoint)
        if core is self.core:
            return self
        known = self._endpoints.get(id(core))  # cores of endpoints live as long as their service
        return known or self._endpoints.setdefault(id(core), ServiceRunner(core, self.options))

    def fast_path(self) -> FastPathContext | None:
        """Return the context of the fast path; None where a call needs the retry loop."""
        credentials = self.core.credentials
        grant = None if credentials is None else credentials.current
        if credentials is not None and credentials.renew_at <= self.core.clock.monotonic():
            grant = None
        if not self.gate.closed or inside.get() is not None or self.keyed or (credentials and not grant):
            return None
        return FastPathContext(self.core.clock.monotonic(), self.gate.generation, grant)

    def record_success(self, target: CalledFunction, result: Any, path: FastPathContext) -> bool:
        """Record a success of the fast path; return False where the retry loop must look at the result."""
        core, ended = self.core, self.core.clock.monotonic()
        latency = ended - path.began
        if result.__class__ not in invocation.plain_types and not self._is_success(result):
            return False
        if latency >= self.slow or path.generation != self.gate.generation:
            return False
        if ended >= core.counters.fold_at:
            core.counters.fold(ended)
        core.counters.latencies_of(self.options.endpoint or target.endpoint).append(latency)
        if path.grant is not None and core.credentials is not None and core.credentials.blamed:
            core.credentials.succeeded(path.grant)
        if core.announcer.hooks or bus.everywhere or ATTEMPTS.isEnabledFor(INFO):
            self._announce_success(target, result, latency, path.grant)
        return True

    def _is_success(self, result: Any) -> bool:
        kind = result_kind(result)
        if kind is ResultKind.RESPONSE:
            status = response_status(result)
            return status is not None and 200 <= status < 300 and not self.core.classifier.rules
        return kind is ResultKind.PLAIN

    def _announce_success(self, target: CalledFunction, result: Any, latency: float, grant: Grant | None) -> None:
        attempt = Attempt(
            service=self.core.name,
            endpoint=self.options.endpoint or target.endpoint,
            attempt=1,
            outcome="success",
            latency_ms=latency * 1000,
            status=response_status(result),
            key_id=None if grant is None else grant.key_id,
            elapsed_s=latency,
            request=target.request,
            server=target.server,
        )
        self.core.announcer.attempt(attempt)

    def cancelled(self, error: BaseException, target: CalledFunction, began: float) -> None:
        """Count an attempt that its caller has cancelled, so that a service that hangs shows in the counts."""
        if type(error).__name__ in _CANCELLED:
            seconds = self.core.clock.monotonic() - began
            self.core.counters.cancelled(seconds, self.options.endpoint or target.endpoint)

    def result_of(self, outcome: Outcome, path: FastPathContext) -> AttemptResult:
        """Return the failed attempt of the fast path, with which the retry loop continues."""
        if isinstance(outcome, Raised) and is_interrupt(outcome.error):
            raise outcome.error
        latency = self.core.clock.monotonic() - path.began
        return AttemptResult(outcome, latency, Permit(path.generation), path.grant)

    def recover(self, call: Invocation, first: AttemptResult | None) -> Any:
        """Enter the retry loop: continue after the first attempt, or start where there is none."""
        outcome: Outcome | None
        if call.nested is not None:
            return call.attempt(None)
        try:
            if first is not None and isinstance(first.outcome, Returned):
                call.expect_value(first.outcome.value)
            outcome = drive(call.steps(first), Driver(call.attempt, call.fall_back, self.core.clock))
            call.mark_unprotected(outcome)
            if call.should_store(outcome):
                call.store_letter(outcome)
            return unwrap(outcome)
        except AwaitableReturned as turned:
            # Only the result shows that it is async: the attempt already runs, and is awaited as the first one.
            return self.arecover(call.taking_over(turned.awaitable), None)
        finally:
            del first
            outcome = None  # no cycle through this frame

    async def arecover(self, call: Invocation, first: AttemptResult | None) -> Any:
        """Do the same in a coroutine."""
        outcome: Outcome | None
        if call.nested is not None:
            return await call.aattempt(None)
        try:
            if first is not None and isinstance(first.outcome, Returned):
                call.reject_generator(first.outcome.value)
            outcome = await adrive(call.steps(first), Driver(call.aattempt, call.fall_back, self.core.clock))
            call.mark_unprotected(outcome)
            if call.should_store(outcome):
                await in_thread(call.store_letter, outcome)
            return unwrap(outcome)
        finally:
            del first
            outcome = None  # no cycle through this frame


class FastPathContext(NamedTuple):
    """What the fast path knew when it called the function."""

    began: float
    generation: int
    grant: Grant | None


def _sync_guard(runner: ServiceRunner) -> Guard:
    """Return the fast path in a thread.

    Closures, since this is most of what redrive costs: a local name is read in a tenth of the time of an attribute
    of an attribute. What a service's functions share is bound in the outer one, so that the inner is cheap to make.

    What is neither a part of the service nor a class is reached by its module: the function may be pickled by value.
    """
    gate, counters, credentials = runner.gate, runner.core.counters, runner.core.credentials
    monotonic, slow, endpoint = runner.core.clock.monotonic, runner.slow, runner.options.endpoint
    core, timeout, keyed = runner.core, runner.timeout, runner.keyed
    hooks, logged = runner.core.announcer.hooks, ATTEMPTS.isEnabledFor
    expires = credentials is not None and credentials.expires

    def guard(target: CalledFunction, function: Function) -> Function:
        needs_loop, fills, position = keyed or target.takes_key, target.fills, target.credential_position
        keeps = runner.keeps_letters and not target.returns_responses
        count = counters.latencies_of(endpoint or target.endpoint).append

        def guarded(*args: Any, **kwargs: Any) -> Any:
            grant = credentials.current if credentials else None
            received = arguments.copied(function, args, kwargs) if keeps else None
            if (
                not gate.closed
                or context.current() is not None
                or needs_loop
                or (credentials and not grant)
                or (expires and credentials.renew_at <= monotonic())  # type: ignore[union-attr]  # implied
            ):
                return runner.recover(Invocation(runner, target, function, args, kwargs, received=received), None)
            generation = gate.generation
            if not fills:
                filled = kwargs
            elif grant and position >= len(args):
                filled = {"credential": grant.value, **kwargs}
            else:
                filled = target.fill(args, kwargs, grant, timeout)
            mark = EnclosingAttempt()
            mark.core, mark.grant = core, grant
            began = monotonic()
            entered = context.enter(mark)
            try:
                result = function(*args, **filled)
            except Exception as error:
                first = runner.result_of(Raised(error), FastPathContext(began, generation, grant))
            else:
                ended = monotonic()
                if (
                    result.__class__ in invocation.plain_types
                    and ended - began < slow
                    and ended < counters.fold_at
                    and gate.generation == generation
                    and not (credentials and credentials.blamed)
                    and not (hooks or bus.everywhere or logged(INFO))
                ):
                    count(ended - began)
                    return result
                path = FastPathContext(began, generation, grant)
                if runner.record_success(target, result, path):
                    return result
                first = runner.result_of(Returned(result), path)
            finally:
                mark.over = True
                context.leave(entered)
            try:
                return runner.recover(
                    Invocation(runner, target, function, args, kwargs, began=began, attempt=mark, received=received),
                    first,
                )
            finally:
                del first  # its error refers to this frame: no cycle

        return guarded

    return guard


def _async_guard(runner: ServiceRunner) -> Guard:  # noqa: PLR0915  # as the other one, and what coroutines need
    """Return the fast path in a coroutine."""
    gate, counters, credentials = runner.gate, runner.core.counters, runner.core.credentials
    monotonic, slow, endpoint = runner.core.clock.monotonic, runner.slow, runner.options.endpoint
    core, timeout, keyed = runner.core, runner.timeout, runner.keyed
    hooks, logged = runner.core.announcer.hooks, ATTEMPTS.isEnabledFor
    expires = credentials is not None and credentials.expires

    def guard(target: CalledFunction, function: Function) -> Function:
        needs_loop, fills, position = keyed or target.takes_key, target.fills, target.credential_position
        keeps = runner.keeps_letters and not target.returns_responses
        count = counters.latencies_of(endpoint or target.endpoint).append

        async def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: PLR0912
            grant = credentials.current if credentials else None
            received = arguments.copied(function, args, kwargs) if keeps else None
            if (
                not gate.closed
                or context.current() is not None
                or needs_loop
                or (credentials and not grant)
                or (expires and credentials.renew_at <= monotonic())  # type: ignore[union-attr]  # implied
            ):
                return await runner.arecover(
                    Invocation(runner, target, function, args, kwargs, received=received), None
                )
            generation = gate.generation
            if not fills:
                filled = kwargs
            elif grant and position >= len(args):
                filled = {"credential": grant.value, **kwargs}
            else:
                filled = target.fill(args, kwargs, grant, timeout)
            mark = EnclosingAttempt()
            mark.core, mark.grant = core, grant
            began = monotonic()
            entered = context.enter(mark)
            try:
                result = function(*args, **filled)
                if result.__class__ is not CoroutineType or timeout is not None:
                    result = settle(result, None if target.limits_itself else timeout)
                result = await result
            except Exception as error:
                first = runner.result_of(Raised(error), FastPathContext(began, generation, grant))
            except BaseException as error:
                runner.cancelled(error, target, began)
                raise
            else:
                ended = monotonic()
                if (
                    result.__class__ in invocation.plain_types
                    and ended - began < slow
                    and ended < counters.fold_at
                    and gate.generation == generation
                    and not (credentials and credentials.blamed)
                    and not (hooks or bus.everywhere or logged(INFO))
                ):
                    count(ended - began)
                    return result
                path = FastPathContext(began, generation, grant)
                if runner.record_success(target, result, path):
                    return result
                first = runner.result_of(Returned(result), path)
            finally:
                mark.over = True
                try:  # noqa: SIM105  # suppress() would cost half as much as all the rest
                    context.leave(entered)
                except ValueError:
                    pass  # the coroutine was closed in another context than it started in
            try:
                return await runner.arecover(
                    Invocation(runner, target, function, args, kwargs, began=began, attempt=mark, received=received),
                    first,
                )
            finally:
                del first

        return guarded

    return guard
