"""`Service`: the policies between a pipeline and one system that it calls; and `retry`, a retry policy alone."""

from __future__ import annotations

import copy
import functools
import random as chance
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never, ParamSpec, TypeVar, Unpack, cast, overload

from redrive.calls.attempts import BLOCK, Attempts
from redrive.calls.circuit import EndpointCircuits, circuits_of
from redrive.calls.core import ServiceCore
from redrive.calls.credentials import Credentials
from redrive.calls.dead_letters import CallTarget, DeadLetterWriter, HasDeadLetters
from redrive.calls.fast_path import ServiceRunner
from redrive.calls.function import (
    CalledFunction,
    endpoint_of,
    is_async,
    reject_generator,
    require_callable,
    target_of,
)
from redrive.calls.metrics.counters import CallCounters, CallStats
from redrive.calls.service_options import (
    MISSING,
    Idempotent,
    ServiceOptions,
    check_letters,
    check_types,
    reject_mistaken,
    warn_of_early_circuit,
)
from redrive.classify.classifier import Classifier
from redrive.clock import Clock, Random, SystemClock
from redrive.events.bus import EVENTS, EventBus, Hook
from redrive.policy import option_checks
from redrive.policy.breaker import Breaker, CircuitState
from redrive.policy.keys import KeyPool, Token
from redrive.policy.retry import BudgetLedger, Retry, RetryBudget, RetryOptions, Timeout, timeout_of
from redrive.policy.window import RollingWindow

if TYPE_CHECKING:
    from redrive.calls.adapters.httpx import ServiceTransport
    from redrive.calls.adapters.requests import ServiceAdapter
    from redrive.calls.shared_state import HasSharedState


P = ParamSpec("P")
R = TypeVar("R")


# The defaults, distinguished by identity from equal options that the user has set.
_RETRY, _BREAKER = Retry(), Breaker()


class Service:
    """One system that is called, with the policies that make calls to it survive production.

    Use it as a decorator, as `call`/`acall`, as `for attempt in service.attempts()`, or below an HTTP client.

    retry         attempts and waits; None for a single attempt
    breaker       when to stop calling; None for never. By default after five failures, or as many as `retry` makes
    breaker_per   "service", or "endpoint": each function, and each route of an HTTP client, has a circuit of its own,
                  which is not shared with other processes
    budget        the share of retries; None for no limit
    credentials   a KeyPool or a Token; a function that takes the keyword `credential` is given the one in use
    classifier    rules beyond the built-in table
    timeout       seconds of one attempt, or a Timeout with those of its phases: enforced by the HTTP adapters and for
                  async functions, and given to a sync function that takes the keyword `timeout`; where the caller sets
                  a limit, too, the shorter one holds
    idempotent    False: a POST or PATCH is not retried once it may have reached the server, unless it carries an
                  Idempotency-Key, nor is a commit or mail that may have taken effect; "key": the HTTP adapters send one
                  per logical call; True: everything may be retried
    fallback      a value, or a function of the same arguments, for when the circuit is open or retries are exhausted;
                  HTTP adapters and `attempts()` have no use for it
    on_event      called with every event of this service
    round_trip    seconds a call usually takes: policies are checked against it
    sla           seconds the whole call may take: policies are checked against it
    store         share the circuit and exhausted keys with all processes that name the same store and service, and
                  keep there the metrics of the service by quarter of an hour
    dead_letters  the store in which a call that fails for good, or exhausts its retries, becomes a dead letter with its
                  arguments; blocks of `attempts()` have none, and do not
    pipeline      the name that its letters are filed under; by default the service's
    on_discard    "raise", or "none": a call that ends in `redrive.Discard` returns None
    """

    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = _RETRY,
        breaker: Breaker | None = _BREAKER,
        breaker_per: Literal["service", "endpoint"] = "service",
        budget: RetryBudget | None = RetryBudget(),  # noqa: B008
        credentials: KeyPool | Token | None = None,
        classifier: Classifier | None = None,
        timeout: float | Timeout | None = None,
        idempotent: Idempotent = False,
        fallback: Any = MISSING,
        on_event: Hook | None = None,
        round_trip: float | None = None,
        sla: float | None = None,
        store: HasSharedState | None = None,
        dead_letters: HasDeadLetters | None = None,
        pipeline: str | None = None,
        on_discard: Literal["raise", "none"] = "raise",
        clock: Clock | None = None,
        random: Random | None = None,
        **mistaken: Never,
    ) -> None:
        reject_mistaken(mistaken)
        check_types(
            name,
            idempotent,
            clock,
            random,
            store,
            retry=retry,
            breaker=breaker,
            budget=budget,
            credentials=credentials,
            classifier=classifier,
        )
        check_letters(dead_letters, pipeline, on_discard)
        if breaker_per not in ("service", "endpoint"):
            raise ValueError(f'breaker_per must be "service" or "endpoint", not {breaker_per!r}')
        limits = timeout_of(timeout)
        total = None if limits is None else limits.total
        for option, value in {"round_trip": round_trip, "sla": sla}.items():
            if value is not None:
                option_checks.seconds(option, value, above=0)
        if breaker is _BREAKER and retry is not None and retry.attempts > breaker.failures:
            breaker = replace(breaker, failures=retry.attempts)  # one call alone does not open the circuit early
        elif breaker is not None and retry is not None and retry is not _RETRY:
            warn_of_early_circuit(name, retry, breaker)
        given = {
            "name": name,
            "retry": retry,
            "breaker": breaker,
            "breaker_per": breaker_per,
            "budget": budget,
            "credentials": credentials,
            "classifier": classifier,
            "timeout": timeout,
            "idempotent": idempotent,
            "fallback": fallback,
            "on_event": on_event,
            "on_discard": on_discard,
            "clock": clock,
            "random": random,
        }
        self.name = name
        self.retry = retry or _single_attempt(total)
        self.breaker = breaker
        self.budget = budget
        for concern in self.retry.concerns(timeout=total, round_trip=round_trip, sla=sla):
            option_checks.warn(f"service {name!r}: {concern}")
        clock = SystemClock() if clock is None else clock
        # The module's own generator: it is reseeded after a fork, so that workers do not wait in step.
        random = chance if random is None else random
        announcer = EventBus(on_event)
        announce = announcer.event
        pool = KeyPool([credentials]) if isinstance(credentials, Token) else credentials
        make_circuit = None if breaker is None else circuits_of(breaker, clock=clock, random=random, announce=announce)
        core = ServiceCore(
            name=name,
            retry=self.retry,
            classifier=classifier or Classifier(),
            circuit=make_circuit(name) if make_circuit is not None and breaker_per == "service" else None,
            ledger=BudgetLedger(budget) if budget else None,
            credentials=Credentials(pool, name, clock, announce) if pool else None,
            announcer=announcer,
            clock=clock,
            random=random,
            idempotent=idempotent,
            slice_seconds=_slice(breaker, budget),
            remake=(_core_of, given),
            has_store=store is not None or dead_letters is not None,
            letters=None if dead_letters is None else DeadLetterWriter(dead_letters.dlq, pipeline or name),
            discards=on_discard == "none",
        )
        self._letters_pipeline = pipeline or name
        if make_circuit is not None and breaker_per == "endpoint":
            core.circuits = EndpointCircuits(core, make_circuit)
        self._use(core, ServiceOptions(timeout=total, limits=limits, fallback=fallback))
        if store is not None:
            from redrive.calls import shared_state
            from redrive.calls.metrics import publisher

            if (rollups := getattr(store, "services", None)) is not None:
                publisher.attach(core, rollups)
            shared_state.attach(core, store.shared)

    def _use(self, core: ServiceCore, options: ServiceOptions) -> None:
        self.core = core
        self.options = options
        self._runner = ServiceRunner(core, options)
        self._last = self._alast = _LastCall(_LastCall, _LastCall)
        self._seen: tuple[weakref.ref[Any], CalledFunction] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the policy; where it is unpickled, the service starts with a closed circuit and empty counts."""
        return _view_of, (self.core, self.options)

    def __copy__(self) -> Service:
        view = object.__new__(Service)
        view.__dict__.update(self.__dict__)
        return view

    def __repr__(self) -> str:
        # The last attempt of a call ends with the time of the call.
        worst = min(self.retry.worst_case(timeout=self.options.timeout), self.retry.within)
        limit = f"waits of at most {worst:.1f} s" if self.options.timeout is None else f"at worst {worst:.1f} s"
        return f"<Service {self.name!r}: {self.retry.attempts} attempts, {limit}, circuit {self.circuit}>"

    def with_options(
        self,
        *,
        timeout: float | Timeout | None = None,
        endpoint: str | None = None,
        idempotency_key: str | None = None,
        fallback: Any = MISSING,
    ) -> Service:
        """The same service, sharing all its state, with other settings for some of its calls.

        timeout          seconds of one attempt, or a Timeout
        endpoint         the name in logs and errors
        idempotency_key  the key of one logical call; a view kept for another call would send the same
        fallback         a value, or a function of the same arguments, for when the call fails
        """
        changes: dict[str, Any] = {}
        for name, text in {"endpoint": endpoint, "idempotency_key": idempotency_key}.items():
            if text is not None:
                if not isinstance(text, str) or not text.strip():
                    raise ValueError(f"{name} must be a non-empty string, not {text!r}")
                changes[name] = text
        if (limits := timeout_of(timeout)) is not None:
            changes.update(timeout=limits.total, limits=limits)
            for concern in self.retry.concerns(timeout=limits.total):
                option_checks.warn(f"service {self.name!r}: {concern}")
        if fallback is not MISSING:
            changes["fallback"] = fallback
        view = copy.copy(self)
        view._use(self.core, replace(self.options, **changes))
        return view

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, `def` or `async def`."""
        require_callable(function)
        if isinstance(function, type):
            raise TypeError(f"a service guards a function, not the class {function.__name__}; decorate its methods")
        reject_generator(function)
        target = target_of(function)
        self._warn_of_timeout(target, function)
        runner = self._runner.at(target.endpoint)
        guard = runner.aguard if is_async(function) else runner.guard
        guarded = functools.wraps(function)(guard(target, function))
        return cast("Callable[P, R]", guarded)

    def call(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Call a function through the service.

        function  what is called; the other arguments are its own
        """
        last = self._last
        if last.function is function:  # a loop calls the same function many times
            guarded = last.guarded
        else:
            require_callable(function)
            target = self._target_of(function)
            self._warn_of_timeout(target, function)
            guarded = self._runner.at(target.endpoint).guard(target, function)
            if _holds_nothing(function):
                self._last = _LastCall(function, guarded)
        result: R = guarded(*args, **kwargs)
        return result

    def acall(self, function: Callable[..., Awaitable[R]], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        """Call an async function through the service; await the result.

        function  what is called; the other arguments are its own
        """
        last = self._alast
        if last.function is function:
            guarded = last.guarded
        else:
            require_callable(function)
            target = self._target_of(function)
            guarded = self._runner.at(target.endpoint).aguard(target, function)
            if _holds_nothing(function):
                self._alast = _LastCall(function, guarded)
        coroutine: Coroutine[Any, Any, R] = guarded(*args, **kwargs)
        return coroutine

    def _warn_of_timeout(self, target: CalledFunction, function: Callable[..., Any]) -> None:
        """Warn once where a function does not take its timeout: a thread cannot be ended from outside."""
        if self._runner.timeout is None or self.core.warned:
            return
        if any(name == "timeout" for name, _ in target.fills) or is_async(function):
            return
        self.core.warned = True
        EVENTS.warning(
            "service %r: the timeout of %g s does not hold for %s, which runs in a thread; "
            "let it take the keyword timeout, make it async, or call it by redrive.run_with_timeout",
            self.name,
            self._runner.timeout,
            target.endpoint,
        )

    def _target_of(self, function: Callable[..., Any]) -> CalledFunction:
        """Return what is known of a function; the last one that is not plain is cached by a weak reference."""
        if isinstance(function, FunctionType | MethodType):
            return target_of(function)
        seen = self._seen
        if seen is not None and seen[0]() is function:
            return seen[1]
        target = target_of(function)
        with suppress(TypeError):  # its class takes no weak references
            self._seen = weakref.ref(function), target
        return target

    def attempts(self) -> Attempts:
        """For a block of code: `for attempt in service.attempts(): with attempt: …`; `async for` likewise."""
        return Attempts(self._runner.at(BLOCK))

    def httpx_transport(
        self, transport: Any = None, *, apply: str = "bearer", stream: bool = False
    ) -> ServiceTransport:
        """A transport for `httpx.Client` and `httpx.AsyncClient` alike, around `transport` or httpx's own.

        apply   how the credential is sent: "bearer", a header's name, or "query:NAME"
        stream  leave bodies unread, for large downloads: a connection that breaks in mid-body is then the caller's
        """
        from redrive.calls.adapters.httpx import ServiceTransport

        return ServiceTransport(self._runner, transport, apply=apply, stream=stream)

    def requests_adapter(self, adapter: Any = None, *, apply: str = "bearer") -> ServiceAdapter:
        """An adapter to mount on a `requests.Session`, around `adapter` or requests' own; `apply` as for httpx."""
        from redrive.calls.adapters.requests import ServiceAdapter

        return ServiceAdapter(self._runner, adapter, apply=apply)

    def replay_target(self, function: Callable[..., Any]) -> CallTarget:
        """Return what `store.dlq.replay` sends the letters of failed calls to: each is made again, through the service.

        function  the function that the letters are calls of
        """
        require_callable(function)
        view = copy.copy(self)
        # A fallback's value is no call: the letter would be closed without one.
        view._use(self.core, replace(self.options, keeps_letters=False, fallback=MISSING))
        inner = getattr(
            function, "__wrapped__", function
        )  # a function that this service has decorated is guarded by the view
        return CallTarget(view, inner, self._letters_pipeline)

    @property
    def circuit(self) -> CircuitState:
        """The state of the circuit; where each endpoint has one, the worst of them."""
        if self.core.circuits is not None:
            return self.core.circuits.state
        return CircuitState.CLOSED if self.core.circuit is None else self.core.circuit.state

    def reset(self) -> None:
        """Close the circuit and end the pauses of keys, after the cause was fixed."""
        for circuit in (self.core.circuit, self.core.circuits):
            if circuit is not None:
                circuit.reset()
        if self.core.credentials is not None:
            self.core.credentials.resume()

    def stats(self) -> CallStats:
        """Return calls, attempts, successes, failures by outcome, retries and fallbacks since the program began."""
        return self.core.counters.stats()


def _single_attempt(timeout: float | None) -> Retry:
    once = Retry(attempts=1)
    return once if timeout is None or timeout <= once.within else replace(once, within=timeout)


def _core_of(options: dict[str, Any]) -> ServiceCore:
    return Service(**options).core


def _view_of(core: ServiceCore, options: ServiceOptions) -> Service:
    view = object.__new__(Service)
    given = core.remake[1] if core.remake is not None else {}
    view.name, view.retry, view.breaker, view.budget = core.name, core.retry, given["breaker"], given["budget"]
    view._letters_pipeline = core.name
    view._use(core, options)
    return view


class _LastCall(NamedTuple):
    """The function that was last called, and its guard."""

    function: Any
    guarded: Callable[..., Any]


def _holds_nothing(function: object) -> bool:
    """Return whether a function may be cached for the next call: a closure or a default may refer to large objects."""
    return (
        type(function) is FunctionType
        and function.__closure__ is None
        and function.__defaults__ is None
        and function.__kwdefaults__ is None
    )


def _slice(breaker: Breaker | None, budget: RetryBudget | None) -> float:
    """Return how often successes must be counted so that the shortest window is exact to one of its slices."""
    spans = [options.window for options in (breaker, budget) if options is not None]
    return min([CallCounters.SLICE, *(span / RollingWindow.SLICES for span in spans)])


@overload
def retry(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def retry(
    *, classifier: Classifier | None = None, **options: Unpack[RetryOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def retry(
    function: Callable[..., Any] | None = None,
    /,
    *,
    classifier: Classifier | None = None,
    **options: Unpack[RetryOptions],
) -> Callable[..., Any]:
    """Retry a function after transient errors; the options are those of `Retry`.

    Each decorated function is a service of its own, without breaker or budget: use a `Service` where several
    functions call the same system.
    """
    if function is not None and (not callable(function) or isinstance(function, type)):
        raise TypeError(
            f"@redrive.retry takes keyword options only, not {function!r}; write @redrive.retry(attempts=3), and name "
            'your own errors with classifier=Classifier().rule(YourError, kind="transient")'
        )
    policy = Retry(**options)

    def decorate(wrapped: Callable[P, R]) -> Callable[P, R]:
        service = Service(endpoint_of(wrapped), retry=policy, breaker=None, budget=None, classifier=classifier)
        return service(wrapped)

    return decorate if function is None else decorate(function)
