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
class Policy:
    """What stands between a program and one system it calls."""

    name: str
    retry: Retry
    breaker: Breaker | None = None
    budget: RetryBudget | None = None
    keys: KeyPool | None = None
    classifier: Classifier = field(default_factory=Classifier)
    timeout: float | None = None
    idempotent: Idempotent = False
    is_part: bool = False
    """Whether only the part that gave it its name was asked about; the rest is the default, or nothing."""

    @classmethod
    def of(cls, found: Any) -> Policy | None:
        """The policy that an object is, or is made of; None for anything else."""
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
    def _of_service(cls, service: Service) -> Policy:
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


DEFAULT = Policy._of_service(Service("a service"))
"""What a service has where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryCall:
    """How such a call goes."""

    attempts: int
    """The most that there can be."""
    ends: str
    """Why there is no further attempt."""
    advice: str
    faults: int
    """How many attempts count against the breaker."""
    opened: bool
    """Whether this one call opens a circuit that was closed and had nothing to count."""
    refreshed: int
    """How often a token is fetched anew."""
    keys: int
    """How many keys are used."""


def rehearse(policy: Policy, failure: object, *, inside: float = 0.0) -> DryCall:
    """Let a call fail in this way for as long as the policy goes on; each attempt takes `inside` seconds.

    Chance makes the waits, and those decide what still fits into the call's time. The call is let fail with chance in
    the middle, at its lowest and at its highest; the answer is about the most attempts that there can be.
    """
    usual = _rehearse(policy, failure, inside, At(0.5))
    if usual.attempts >= policy.retry.attempts:
        return usual
    extremes = [_rehearse(policy, failure, inside, At(share)) for share in (0.0, 1.0)]
    most = max(usual, *extremes, key=lambda one: one.attempts)
    return most if most is usual else replace(most, ends=f"{most.ends}, or {usual.ends}")


def _rehearse(policy: Policy, failure: object, inside: float, chance: At) -> DryCall:
    clock, news, faults = _Clock(), _EventCollector(), _Faults()
    core = _core(policy, clock, chance, news)
    core.counters.recorder = faults
    call = RetryLoop(
        core,
        policy.name,
        began=clock.monotonic(),
        timeout=policy.timeout,
        returns_responses=True,  # as an HTTP adapter has it: nothing stands before the answer itself
        idempotent=policy.idempotent is not False,
        has_fallback=False,
    )
    outcome = Raised(failure) if isinstance(failure, Exception) else Returned(failure)
    with _untouched(failure):
        _perform(call, outcome, clock, inside)
    failed = news.failure
    grants = {attempt.key_id for attempt in failed.attempts if attempt.key_id is not None}
    return DryCall(
        attempts=len(failed.attempts),
        ends=failed.why,
        advice=failed.advice,
        faults=faults.counted,
        opened=any(isinstance(one, BreakerChanged) and one.after == CircuitState.OPEN for one in news.events),
        refreshed=max(0, sum(isinstance(one, TokenRefreshed) for one in news.events) - _tokens(policy.keys)),
        keys=len(grants),
    )


def _core(policy: Policy, clock: _Clock, random: At, news: _EventCollector) -> ServiceCore:
    """A service of the same policies that has not seen anything yet."""
    name, told = policy.name, news.event
    pool = None if policy.keys is None else _pool(policy.keys)
    return ServiceCore(
        name=name,
        retry=policy.retry,
        classifier=policy.classifier,
        circuit=Circuit(policy.breaker, service=name, clock=clock, random=random, announce=told)
        if policy.breaker
        else None,
        ledger=BudgetLedger(policy.budget) if policy.budget else None,
        credentials=Credentials(pool, name, clock, told) if pool else None,
        announcer=news,
        clock=clock,
        random=random,
        idempotent=policy.idempotent,
        slice_seconds=1.0,
    )


def _pool(keys: KeyPool) -> KeyPool:
    """As many keys and tokens, none of them the real one."""
    made = [
        Token(_fetching(place)) if isinstance(key, Token) else f"rehearsed-key-{place:04}"
        for place, key in enumerate(keys.keys)
    ]
    return KeyPool(made, resets=keys.resets)


def _fetching(place: int) -> Any:
    return lambda: f"rehearsed-token-{place:04}"


def _tokens(keys: KeyPool | None) -> int:
    """Tokens that are fetched because they are used for the first time."""
    return 1 if keys is not None and isinstance(keys.keys[0], Token) else 0


def _perform(call: RetryLoop, outcome: Raised | Returned, clock: _Clock, inside: float) -> None:
    steps, reply = call.run(None), None
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
    """A call leaves its story on what it hands on; the next one would take it for another service's."""
    own: dict[str, Any] = getattr(failure, "__dict__", {})
    before = dict(own)
    try:
        yield
    finally:
        own.clear()
        own.update(before)


class _Clock:
    """Time that passes where it is told to."""

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
    """Keeps what would be announced to itself."""

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
        return next(one.failure for one in self.events if isinstance(one, CallFailed))


@dataclass(slots=True)
class _Faults:
    """Counts what is laid at the service's door."""

    counted: int = field(default=0)

    def succeeded(self, latencies: Sequence[float], by_endpoint: Mapping[str, Sequence[float]]) -> float:
        return 1.0

    def attempted(self, outcome: str, seconds: float, *, retry: bool, fault: bool, endpoint: str) -> None:
        self.counted += fault

    def rejected(self, outcome: str, *, endpoint: str) -> None:
        """Nothing was sent, and nobody is to blame."""

    def ended(self, *how: str, endpoint: str) -> None:
        """How the call ended is known otherwise."""
