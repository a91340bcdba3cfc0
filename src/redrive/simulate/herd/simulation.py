"""Many clients of one service that goes away and comes back, and what they do to it when it does.

Discrete events in virtual time: the events are the requests, and all else follows from them. The same scenario and the
same seed make the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from random import Random
from typing import get_args

from redrive._internal.garbage import without_collection
from redrive.policy import option_checks
from redrive.policy.backoff import ceiling
from redrive.policy.retry import Retry
from redrive.simulate.herd.buckets import BucketCounts
from redrive.simulate.herd.clients import Caller, Guarded, Life, Policy, stubborn
from redrive.simulate.herd.server import OutageKind, SimulatedServer

MOST_CLIENTS = 1_000_000
_MOST_REQUESTS = 100_000_000
_MOST_BUCKETS = 100_000
_LONGEST = 86_400.0
_SPARE = 2.0  # capacity by the normal rate
_QUEUED = 5.0  # seconds that a full queue takes
_BETWEEN_WORDS = 5_000  # requests, after which it is said how far it has come


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens; times are in seconds.

    clients      each is a process of its own: no circuit and no budget is shared
    every        how often a client makes a call, on average, the time that the call takes included
    latency      how long the service takes to answer
    capacity     requests that it can take up in a second; by default twice the normal rate
    queue        requests that may wait to be taken up, more are refused with a 503; by default five seconds' worth
    timeout      how long a client waits for an answer, where its policy does not say
    outage       how long the service is away
    kind         how that shows: connections are "refused", there is a "503", or requests "hang"
    retry_after  what a 503 asks for
    again        a client whose call failed makes it again when its error says so, else after this, on average
    fixed        between two requests of clients that ask until they are answered, to compare with
    warmup       how long all is well before
    watch        how long is looked on after
    bucket       in which requests are counted
    """

    clients: int = 5_000
    every: float = 30.0
    latency: float = 20.0
    capacity: float | None = None
    queue: int | None = None
    timeout: float = 60.0
    outage: float = 120.0
    kind: OutageKind = "refused"
    retry_after: int | None = None
    again: float = 5.0
    fixed: float = 30.0
    warmup: float = 60.0
    watch: float = 180.0
    bucket: float = 1.0

    def __post_init__(self) -> None:
        option_checks.count("clients", self.clients, least=1)
        for name in ("every", "latency", "timeout", "outage", "again", "fixed", "warmup", "watch", "bucket"):
            if option_checks.seconds(name, getattr(self, name), above=0) > _LONGEST:
                raise ValueError(f"{name} must be a day or less, {_LONGEST:,.0f} seconds, not {getattr(self, name):g}")
        if self.queue is not None and option_checks.count("queue", self.queue, least=0) > _MOST_REQUESTS:
            raise ValueError(f"queue must be {_MOST_REQUESTS:,} or fewer, not {option_checks.shown(self.queue)}")
        if self.retry_after is not None and option_checks.count("Retry-After", self.retry_after, least=1) > _LONGEST:
            raise ValueError(f"Retry-After must be a day or less, {_LONGEST:,.0f} seconds, not {self.retry_after}")
        if self.kind not in get_args(OutageKind):
            raise ValueError(f"the kind of outage must be one of {', '.join(get_args(OutageKind))}, not {self.kind!r}")
        self._check_together()

    def _check_together(self) -> None:
        if self.clients > MOST_CLIENTS:
            raise ValueError(f"clients must be {MOST_CLIENTS:,} or fewer, not {self.clients:,}")
        if self.latency >= self.every:
            raise ValueError(f"latency must be below every, {self.every:g} seconds, not {self.latency:g}")
        if self.latency >= self.timeout:
            raise ValueError(f"latency must be below timeout, {self.timeout:g} seconds, not {self.latency:g}")
        if self.warmup < self.latency:
            raise ValueError(f"warmup must be no less than latency, {self.latency:g} seconds, not {self.warmup:g}")
        if self.capacity is not None and not (option_checks.finite(self.capacity) and self.capacity > self.normal):
            raise ValueError(
                f"capacity must be above the normal rate of {self.normal:,.1f} requests a second, "
                f"not {option_checks.shown(self.capacity)}: such a service never keeps up"
            )
        if self.capacity is not None and self.capacity > _MOST_REQUESTS:
            raise ValueError(f"capacity must be {_MOST_REQUESTS:,} or less, not {self.capacity:g}")
        if self.bucket > (shortest := min(self.outage, self.watch)):
            raise ValueError(
                f"bucket must be no longer than outage and watch, {shortest:g} seconds, not {self.bucket:g}: what "
                "comes in one moment would not be seen"
            )
        if (buckets := (self.until / self.bucket)) > _MOST_BUCKETS:
            raise ValueError(f"bucket of {self.bucket:g} seconds makes {buckets:,.0f} of them; make it longer")
        often = min(self.every, self.again, self.fixed)
        if (most := self.clients * self.until / often) > _MOST_REQUESTS:
            raise ValueError(
                f"that may be {most:,.0f} requests, and {_MOST_REQUESTS:,} take an hour: take fewer clients, or let "
                "them ask less often (every, again, fixed)"
            )

    @property
    def normal(self) -> float:
        """Requests per second while all is well."""
        return self.clients / self.every

    @property
    def takes_up(self) -> float:
        """Requests that the service can take up in a second."""
        return _SPARE * self.normal if self.capacity is None else self.capacity

    @property
    def places(self) -> int:
        """Requests that may wait to be taken up."""
        return round(_QUEUED * self.takes_up) if self.queue is None else self.queue

    @property
    def back(self) -> float:
        """When the service is back."""
        return self.warmup + self.outage

    @property
    def until(self) -> float:
        """When all ends."""
        return self.back + self.watch


@dataclass(frozen=True, slots=True)
class Strategy:
    """How clients deal with an outage; `live` begins the life of one, whose first call begins at a given time."""

    name: str
    live: Callable[[Caller, Random, float], Life]


def strategies(name: str, policy: Policy, *, fixed: float) -> list[Strategy]:
    """The policy, and what it is held against."""

    def guarded(policy: Policy) -> Callable[[Caller, Random, float], Life]:
        return lambda caller, chance, first: Guarded(policy, caller, chance).life(first)

    ramp = Retry()

    def doubling(repeat: int) -> float:
        return ceiling(repeat, base=ramp.base, multiplier=ramp.multiplier, cap=ramp.cap)

    found = [Strategy(name, guarded(policy))]
    if policy.breaker is not None and policy.breaker.jitter > 0:
        found.append(Strategy("its cool-down not jittered", guarded(policy.without_jittered_cooldown())))
    return [
        *found,
        Strategy("exponential, not jittered", lambda caller, _, first: stubborn(doubling, caller, first)),
        Strategy(f"fixed {fixed:g} s", lambda caller, _, first: stubborn(lambda repeat: fixed, caller, first)),
    ]


def check_fit(name: str, policy: Policy, scenario: Scenario) -> None:
    """Refuse a policy by which the service would be down on its best day."""
    if policy.timeout is not None and policy.timeout <= scenario.latency:
        raise ValueError(
            f"{name} gives an attempt up after {policy.timeout:g} seconds, and the service takes {scenario.latency:g}: "
            "take a shorter latency"
        )
    if policy.slow <= scenario.latency:
        raise ValueError(
            f"{name} takes an answer after {policy.slow:g} seconds for a failure, and the service takes "
            f"{scenario.latency:g}: take a shorter latency"
        )


def simulate(
    scenario: Scenario, strategy: Strategy, *, seed: int, tell: Callable[[float], None] = lambda share: None
) -> BucketCounts:
    """Let it happen, and count. `tell` is told now and then which share of it is over.

    Until the outage begins, all strategies see the very same requests.
    """
    # The clients' own pace and the policies' chance are two: a policy that draws more often changes no pause.
    pace, chance = Random(f"{seed} pace"), Random(f"{seed} chance")
    books = BucketCounts(
        away=scenario.warmup, back=scenario.back, until=scenario.until, width=scenario.bucket, clients=scenario.clients
    )
    caller = Caller(
        think=scenario.every - scenario.latency,
        again=scenario.again,
        timeout=scenario.timeout,
        failed=books.call_failed,
        pace=pace,
    )
    with without_collection():  # lives refer to nothing that refers to them
        lives = [strategy.live(caller, chance, _first(scenario, caller)) for _ in range(scenario.clients)]
        _let_happen(scenario, lives, books, tell)
    return books


def _first(scenario: Scenario, caller: Caller) -> float:
    """When a client makes its first call: some are in the middle of one when we begin to look."""
    pace = caller.pace
    under_way = pace.random() < scenario.latency / scenario.every
    return (pace.uniform(0, scenario.latency) if under_way else 0.0) + caller.pause(caller.think)


def _let_happen(scenario: Scenario, lives: list[Life], books: BucketCounts, tell: Callable[[float], None]) -> None:
    server = SimulatedServer(
        capacity=scenario.takes_up,
        queue=scenario.places,
        latency=scenario.latency,
        away=scenario.warmup,
        back=scenario.back,
        kind=scenario.kind,
    )
    queue = [(request.at, number, request) for number, request in enumerate(map(next, lives))]
    heapify(queue)
    until, made = scenario.until, 0
    while queue and queue[0][0] <= until:
        at, number, request = queue[0]
        fate, when = server.ask(at, request.patience)
        books.request(number, request, fate, when)
        if when > until:
            heappop(queue)
        else:
            request = lives[number].send((fate, when))
            heapreplace(queue, (request.at, number, request))
        made += 1
        if made % _BETWEEN_WORDS == 0:
            tell(at / until)
