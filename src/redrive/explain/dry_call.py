"""What a call does that fails the same way in each attempt: the real retry loop, on a clock that does not wait.

Nothing is sent, no token is fetched, nothing is logged and no event is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.calls.circuit import Circuit
from redrive.calls.core import ServiceCore
from redrive.calls.credentials import Credentials
from redrive.calls.drivers import Invoke, Raised, Refresh, Returned, Wait
from redrive.calls.retry_loop import RetryLoop
from redrive.calls.service import Service
from redrive.calls.service_options import Idempotent
from redrive.classify.classifier import Classifier
from redrive.events.bus import EventBus
from redrive.explain.schedule import At
from redrive.model.calls import Attempt, BreakerChanged, CallFailed, Event, Failure, TokenRefreshed
from redrive.policy.breaker import Breaker, CircuitState
from redrive.policy.keys import KeyPool, Token
from redrive.policy.retry import BudgetLedger, Retry, RetryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePolicy:
    """The policies between a program and one system that it calls."""

    name: str
    retry: Retry
    breaker: Breaker | None = None
    budget: RetryBudget | None = None
    keys: KeyPool | None = None
    classifier: Classifier = field(default_factory=Classifier)
    timeout: float | None = None
    idempotent: Idempotent = False
    is_part: bool = False
    """Whether only one part, which gave it its name, is explained; the rest is the default, or nothing."""

    @classmethod
    def of(cls, found: Any) -> ServicePolicy | None:
        """Return the policy that an object is, or belongs to; None for anything else."""
        if isinstance(found, Service):
            return cls._of_service(found)
        if isinstance(found, Retry):
            return cls(name="Retry", retry=found, is_part=True)
        part = replace(DEFAULT, name=type(found).__name__, is_part=True)
        if isinstance(found, Classifier):
            return replace(part, classifier=found)
        if isinstance(found, Breaker):
            return replace(part, breaker=found)
        if isinstance(found, RetryBudget):
            return replace(part, budget=found)
        if isinstance(found, KeyPool | Token):
            return replace(part, keys=KeyPool([found]) if isinstance(found, Token) else found)
        return None

    @classmethod
    def _of_service(cls, service: Service) -> ServicePolicy:
        core = service.core
        return cls(
            name=service.name,
            retry=service.retry,
            breaker=service.breaker,
            budget=service.budget,
            keys=None if core.credentials is None else core.credentials.options,
            classifier=core.classifier,
            timeout=service.options.timeout,
            idempotent=core.idempotent,
        )


DEFAULT = ServicePolicy._of_service(Service("a service"))
"""The policies that a service has by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryCall:
    """The result of a dry call."""

    attempts: int
    """Maximum number of attempts."""
    ends: str
    """Why there is no further attempt."""
    advice: str
    faults: int
    """How many attempts count against the breaker."""
    opened: bool
    """Whether this one call opens a circuit that was closed and had nothing to count."""
    refreshed: int
    """How often a token is refreshed."""
    keys: int
    """How many keys are used."""


def run_dry_call(policy: ServicePolicy, failure: object, *, inside: float = 0.0) -> DryCall:
    """Let a call fail in this way until the policy stops; each attempt takes `inside` seconds.

    The waits are random, and decide how many attempts fit into the call's time. So the call is made with the random
    numbers in the middle, at their lowest and at their highest; the result is the one with the most attempts.
    """
    usual = _run_dry_call(policy, failure, inside, At(0.5))
    if usual.attempts >= policy.retry.attempts:
        return usual
    extremes = [_run_dry_call(policy, failure, inside, At(share)) for share in (0.0, 1.0)]
    most = max(usual, *extremes, key=lambda call: call.attempts)
    return most if most is usual else replace(most, ends=f"{most.ends}, or {usual.ends}")


def _run_dry_call(policy: ServicePolicy, failure: object, inside: float, chance: At) -> DryCall:
    clock, news, faults = _Clock(), _EventCollector(), _FaultCounter()
    core = _core(policy, clock, chance, news)
    core.counters.recorder = faults
    loop = RetryLoop(
        core,
        policy.name,
        began=clock.monotonic(),
        timeout=policy.timeout,
        returns_responses=True,  # as for an HTTP adapter: the response itself is the result
        idempotent=policy.idempotent is not False,
        has_fallback=False,
    )
    outcome = Raised(failure) if isinstance(failure, Exception) else Returned(failure)
    with _untouched(failure):
        _perform(loop, outcome, clock, inside)
    failed = news.failure
    grants = {attempt.key_id for attempt in failed.attempts if attempt.key_id is not None}
    return DryCall(
        attempts=len(failed.attempts),
        ends=failed.why,
        advice=failed.advice,
        faults=faults.counted,
        opened=any(isinstance(event, BreakerChanged) and event.after == CircuitState.OPEN for event in news.events),
        refreshed=max(0, sum(isinstance(event, TokenRefreshed) for event in news.events) - _tokens(policy.keys)),
        keys=len(grants),
    )


def _core(policy: ServicePolicy, clock: _Clock, random: At, news: _EventCollector) -> ServiceCore:
    """Return the core of a new service with the same policies."""
    name, announce = policy.name, news.event
    pool = None if policy.keys is None else _pool(policy.keys)
    return ServiceCore(
        name=name,
        retry=policy.retry,
        classifier=policy.classifier,
        circuit=Circuit(policy.breaker, service=name, clock=clock, random=random, announce=announce)
        if policy.breaker
        else None,
        ledger=BudgetLedger(policy.budget) if policy.budget else None,
        credentials=Credentials(pool, name, clock, announce) if pool else None,
        announcer=news,
        clock=clock,
        random=random,
        idempotent=policy.idempotent,
        slice_seconds=1.0,
    )


def _pool(keys: KeyPool) -> KeyPool:
    """Return as many keys and tokens, none of them the real one."""
    made = [
        Token(_fetching(place)) if isinstance(key, Token) else f"dry-run-key-{place:04}"
        for place, key in enumerate(keys.keys)
    ]
    return KeyPool(made, resets=keys.resets)


def _fetching(place: int) -> Any:
    return lambda: f"dry-run-token-{place:04}"


def _tokens(keys: KeyPool | None) -> int:
    """Return the number of tokens that are fetched because they are used for the first time."""
    return 1 if keys is not None and isinstance(keys.keys[0], Token) else 0


def _perform(loop: RetryLoop, outcome: Raised | Returned, clock: _Clock, inside: float) -> None:
    steps, reply = loop.run(None), None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        reply = None
        if isinstance(step, Invoke):
            clock.seconds += inside
            reply = outcome
        elif isinstance(step, Wait):
            clock.seconds += step.seconds
        elif isinstance(step, Refresh):
            step.keeper.refresh(step.seen, step.timeout)


@contextmanager
def _untouched(failure: object) -> Iterator[None]:
    """Restore the attributes of the failure: a call attaches its failure, which the next call would find there."""
    own: dict[str, Any] = getattr(failure, "__dict__", {})
    before = dict(own)
    try:
        yield
    finally:
        own.clear()
        own.update(before)


class _Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = datetime.now(UTC)

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    async def asleep(self, seconds: float) -> None:
        self.seconds += seconds


class _EventCollector(EventBus):
    """Collects the events that would be published."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def attempt(self, attempt: Attempt) -> None:
        self.events.append(attempt)

    @property
    def failure(self) -> Failure:
        return next(event.failure for event in self.events if isinstance(event, CallFailed))


@dataclass(slots=True)
class _FaultCounter:
    """Counts the attempts for whose failure the service is to blame."""

    counted: int = field(default=0)

    def succeeded(self, latencies: Sequence[float], by_endpoint: Mapping[str, Sequence[float]]) -> float:
        return 1.0

    def attempted(self, outcome: str, seconds: float, *, retry: bool, fault: bool, endpoint: str) -> None:
        self.counted += fault

    def rejected(self, outcome: str, *, endpoint: str) -> None:
        """Ignore a call of which nothing was sent."""

    def ended(self, *how: str, endpoint: str) -> None:
        """Ignore the end of the call, which its outcome shows."""
