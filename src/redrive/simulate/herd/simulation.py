"""Simulate many clients of one service that goes down and recovers, and the load that they put on it.

Discrete events in virtual time: the events are the requests, and all else follows from them. The same scenario and the
same seed give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from random import Random
from typing import get_args

from redrive._internal.garbage import without_collection
from redrive.policy import option_checks
from redrive.policy.backoff import ceiling
from redrive.policy.retry import Retry
from redrive.simulate.herd.clients import Caller, Guarded, Life, Policy, Request, retry_forever
from redrive.simulate.herd.server import OutageKind, RequestOutcome, SimulatedServer

MOST_CLIENTS = 1_000_000
_MOST_REQUESTS = 100_000_000
_MOST_BUCKETS = 100_000
_LONGEST = 86_400.0
_SPARE = 2.0  # capacity by the normal rate
_QUEUED = 5.0  # seconds that a full queue takes
_REPORTING_STEP = 5_000  # requests between two reports of progress


class BucketCounts:
    """Counts by bucket. One bucket begins at the very moment of the recovery, and the others are aligned to it.

    A request counts when it is sent, its outcome when the client learns of it. A client is troubled from a request that
    failed until one that is answered.
    """

    def __init__(self, *, away: float, back: float, until: float, width: float, clients: int) -> None:
        self.width = width
        self.before = math.ceil(back / width)
        """Number of buckets before the recovery."""
        self.first = self.before - math.ceil((back - away) / width)
        """The bucket in which the service goes down."""
        number = self.before + math.ceil((until - back) / width)
        self.requests = [0] * number
        self.probes = [0] * number
        self.fates = tuple([0] * number for _ in RequestOutcome)
        self.calls_failed = [0] * number
        self.in_flight = 0
        """Requests without an outcome when the simulation ended."""
        self.recovered_at = -math.inf
        """When the last troubled client was answered."""
        self._back = back
        self._until = until
        self._troubled = bytearray(clients)

    def request(self, client: int, request: Request, outcome: RequestOutcome, when: float) -> None:
        """Count a request and its outcome."""
        sent = self._bucket(request.at)
        self.requests[sent] += 1
        if request.probe:
            self.probes[sent] += 1
        if when > self._until:
            self.in_flight += 1
            return
        self.fates[outcome][self._bucket(when)] += 1
        if outcome is not RequestOutcome.ANSWERED:
            self._troubled[client] = True
        elif self._troubled[client]:
            self._troubled[client] = False
            self.recovered_at = max(self.recovered_at, when)

    def call_failed(self, at: float) -> None:
        """Count a call that ended in an error for its caller, whether anything was sent or not."""
        if at <= self._until:
            self.calls_failed[self._bucket(at)] += 1

    @property
    def troubled(self) -> int:
        """The number of clients whose last request failed."""
        return sum(self._troubled)

    def begins(self, bucket: int) -> float:
        """Return when a bucket begins, in seconds after the recovery."""
        return (bucket - self.before) * self.width

    def _bucket(self, at: float) -> int:
        # The very end belongs to the last bucket.
        return min(self.before + math.floor((at - self._back) / self.width), len(self.requests) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens; times are in seconds.

    clients      number of clients; each is a process of its own: no circuit and no budget is shared
    every        average time between two calls of a client, including the call itself
    latency      time that the service takes to answer
    capacity     requests per second that it can start to process; by default twice the normal rate
    queue        requests that may wait to be processed, more are rejected with a 503; by default five seconds' worth
    timeout      how long a client waits for an answer; the `timeout` of its policy comes first
    outage       how long the service is down
    kind         how the outage shows: connections are "refused", there is a "503", or requests "hang"
    retry_after  the Retry-After of a 503
    again        average time after which a client makes a failed call again, unless its error has a `retry_in`
    fixed        time between two requests of clients that retry until they are answered, for comparison
    warmup       how long the service is up before the outage
    watch        how long the simulation continues after the outage
    bucket       length of the periods in which requests are counted
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
                f"bucket must be no longer than outage and watch, {shortest:g} seconds, not {self.bucket:g}: a longer "
                "one would hide a peak"
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
        """The normal rate: requests per second without an outage."""
        return self.clients / self.every

    @property
    def takes_up(self) -> float:
        """Requests per second that the service can start to process."""
        return _SPARE * self.normal if self.capacity is None else self.capacity

    @property
    def places(self) -> int:
        """Requests that may wait to be processed."""
        return round(_QUEUED * self.takes_up) if self.queue is None else self.queue

    @property
    def back(self) -> float:
        """Return when the outage of the service ends."""
        return self.warmup + self.outage

    @property
    def until(self) -> float:
        """Return when the simulation ends."""
        return self.back + self.watch


@dataclass(frozen=True, slots=True)
class Strategy:
    """How clients deal with an outage; `live` starts the generator of one client, given the time of its first call."""

    name: str
    live: Callable[[Caller, Random, float], Life]


def strategies(name: str, policy: Policy, *, fixed: float) -> list[Strategy]:
    """Return the policy as a strategy, and the strategies to compare it with."""

    def follow_policy(policy: Policy) -> Callable[[Caller, Random, float], Life]:
        return lambda caller, chance, first: Guarded(policy, caller, chance).life(first)

    default = Retry()

    def exponential_wait(retry: int) -> float:
        return ceiling(retry, base=default.base, multiplier=default.multiplier, cap=default.cap)

    compared = [Strategy(name, follow_policy(policy))]
    if policy.breaker is not None and policy.breaker.jitter > 0:
        compared.append(Strategy("its cool-down not jittered", follow_policy(policy.without_jittered_cooldown())))
    return [
        *compared,
        Strategy("exponential, not jittered", lambda caller, _, first: retry_forever(exponential_wait, caller, first)),
        Strategy(f"fixed {fixed:g} s", lambda caller, _, first: retry_forever(lambda retry: fixed, caller, first)),
    ]


def check_fit(name: str, policy: Policy, scenario: Scenario) -> None:
    """Check that the service can answer within the limits of the policy.

    Raises:
        ValueError: every answer would be too late, even without an outage.
    """
    if policy.timeout is not None and policy.timeout <= scenario.latency:
        raise ValueError(
            f"{name} ends an attempt after {policy.timeout:g} seconds, and the service takes {scenario.latency:g}: "
            "use a shorter latency"
        )
    if policy.slow <= scenario.latency:
        raise ValueError(
            f"{name} counts an answer after {policy.slow:g} seconds as a failure, and the service takes "
            f"{scenario.latency:g}: use a shorter latency"
        )


def simulate(
    scenario: Scenario, strategy: Strategy, *, seed: int, progress: Callable[[float], None] = lambda share: None
) -> BucketCounts:
    """Simulate a strategy in a scenario, and return the counts.

    Until the outage begins, all strategies see the very same requests.

    Args:
        progress: called from time to time with the share that is done.
    """
    # Pauses and policies have separate random sources, so that a policy that draws more often changes no pause.
    pauses, chance = Random(f"{seed} pace"), Random(f"{seed} chance")
    counts = BucketCounts(
        away=scenario.warmup, back=scenario.back, until=scenario.until, width=scenario.bucket, clients=scenario.clients
    )
    caller = Caller(
        think=scenario.every - scenario.latency,
        again=scenario.again,
        timeout=scenario.timeout,
        failed=counts.call_failed,
        pace=pauses,
    )
    with without_collection():  # the generators are in no reference cycle
        lives = [strategy.live(caller, chance, _first(scenario, caller)) for _ in range(scenario.clients)]
        _run(scenario, lives, counts, progress)
    return counts


def _first(scenario: Scenario, caller: Caller) -> float:
    """Return when a client makes its first call; some are in the middle of a call when the simulation starts."""
    pauses = caller.pace
    under_way = pauses.random() < scenario.latency / scenario.every
    return (pauses.uniform(0, scenario.latency) if under_way else 0.0) + caller.pause(caller.think)


def _run(scenario: Scenario, lives: list[Life], counts: BucketCounts, progress: Callable[[float], None]) -> None:
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
        outcome, when = server.ask(at, request.timeout)
        counts.request(number, request, outcome, when)
        if when > until:
            heappop(queue)
        else:
            request = lives[number].send((outcome, when))
            heapreplace(queue, (request.at, number, request))
        made += 1
        if made % _REPORTING_STEP == 0:
            progress(at / until)
