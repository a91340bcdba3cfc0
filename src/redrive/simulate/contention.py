"""Simulate clients that each must commit one version-checked write to the same row, with different backoffs.

It is the model of the well-known study of exponential backoff and jitter. A client reads the row's version and writes
with the version it has seen; if another was faster it fails, waits by its strategy, and reads again. Every message
takes a hop on the network, and no two hops take the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heapreplace
from random import Random
from statistics import fmean, stdev
from typing import Any

from redrive.policy import option_checks
from redrive.policy.backoff import Jitter, wait
from redrive.simulate.figure import Figure, Series

# The waits are those of `redrive.policy.backoff`; to retry at once is to wait from a base of 0.
_JITTER: dict[str, Jitter] = {
    "none": "none",
    "exponential": "none",
    "equal": "equal",
    "full": "full",
    "decorrelated": "decorrelated",
}
STRATEGIES = tuple(_JITTER)
UNJITTERED = "exponential"
"""The strategy that others are compared with."""

_SHIPPED = "full"
"""The default jitter of `Retry`."""

_WIDE = 100  # if the numbers of clients differ by this factor, their axis is logarithmic
MOST_CLIENTS = 1_000_000
_LONGEST = 86_400.0
_MULTIPLIER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkModel:
    """Network and backoff of all clients, in seconds; a message takes |normal(hop, deviation)|."""

    base: float = 0.005
    cap: float = 2.0
    hop: float = 0.010
    deviation: float = 0.002

    def __post_init__(self) -> None:
        option_checks.seconds("base", self.base, above=0)
        option_checks.seconds("cap", self.cap, above=0)
        option_checks.seconds("hop", self.hop, above=0)
        option_checks.seconds("deviation", self.deviation, least=0)
        for name in ("cap", "hop", "deviation"):
            if getattr(self, name) > _LONGEST:
                raise ValueError(f"{name} must be a day or less, {_LONGEST:g} seconds, not {getattr(self, name):g}")
        if self.cap < self.base:
            raise ValueError(f"cap must be no less than base, {self.base:g} seconds, not {self.cap:g}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One contest: when the last client learned that it was done, in seconds, and the writes at the server."""

    time: float
    writes: int


def contend(
    network: NetworkModel,
    strategy: str,
    clients: int,
    random: Random,
    committed: Callable[[int], None] = lambda client: None,
) -> Outcome:
    """Simulate one contest until every client has committed.

    Only what reaches the server is an event, and of a round that is the write alone: whether its version is stale
    depends on nothing but whether a commit came after its read. Of a read and a commit at the same moment, the read
    comes after.

    Args:
        committed: called with each client that commits, at once.
    """
    hop, deviation, normal = network.hop, network.deviation, random.gauss
    base = 0.0 if strategy == "none" else network.base
    cap, jitter = network.cap, _JITTER[strategy]

    def delay() -> float:
        return abs(normal(hop, deviation))

    writes, changed, done = 0, 0.0, 0.0
    queue: list[tuple[float, int, float, int, float | None]] = []
    for client in range(clients):
        read = delay()
        queue.append((read + delay() + delay(), client, read, 0, None))
    heapify(queue)
    while queue:
        at, client, read, repeats, waited = queue[0]
        writes += 1
        if read >= changed:
            heappop(queue)
            changed = at
            done = max(done, at + delay())
            committed(client)
        else:
            repeats += 1
            waited = wait(
                repeats, base=base, multiplier=_MULTIPLIER, cap=cap, jitter=jitter, previous=waited, random=random
            )
            read = at + delay() + waited + delay()
            heapreplace(queue, (read + delay() + delay(), client, read, repeats, waited))
    return Outcome(done, writes)


# ── studies of many contests ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A series of contests: each strategy with each number of clients, `repetitions` times.

    The seed of a contest is derived from its own parameters, so its result does not depend on the other contests.
    """

    network: NetworkModel = NetworkModel()
    strategies: Sequence[str] = STRATEGIES
    clients: Sequence[int] = (10, 50, 100)
    repetitions: int = 100
    seed: int = 1

    def __post_init__(self) -> None:
        for strategy in self.strategies:
            if strategy not in _JITTER:
                raise ValueError(f"there is no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
        for clients in self.clients:
            option_checks.count("clients", clients, least=1)
            if clients > MOST_CLIENTS:
                raise ValueError(f"clients must be {MOST_CLIENTS:,} or fewer, not {clients:,}")
        option_checks.count("repetitions", self.repetitions, least=1)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((clients, strategy) for clients in self.clients for strategy in self.strategies)

    def chance(self, strategy: str, clients: int, repetition: int) -> Random:
        """Return the random source of one contest."""
        return Random(f"{self.seed} {strategy} {clients} {repetition}")


@dataclass(frozen=True, slots=True)
class Result:
    """The outcomes of one strategy with one number of clients, over all repetitions."""

    strategy: str
    clients: int
    times: Sequence[float]
    """Seconds, sorted."""
    writes: Sequence[int]
    """Numbers of writes, sorted."""

    @property
    def time(self) -> float:
        """Return the mean completion time."""
        return fmean(self.times)

    @property
    def write_count(self) -> float:
        """Return the mean number of writes."""
        return fmean(self.writes)


def run_study(study: Study, progress: Callable[[float], None] = lambda share: None) -> list[Result]:
    """Simulate all contests of a study; `progress` is called with the share of the work that is done."""
    expected = estimate_writes(study)
    counter = _Progress(sum(expected.values()), progress)
    results = []
    for clients, strategy in study:
        outcomes = []
        for repetition in range(study.repetitions):
            counter.begin(clients, expected[clients, strategy] / study.repetitions)
            chance = study.chance(strategy, clients, repetition)
            outcomes.append(contend(study.network, strategy, clients, chance, counter.committed))
        times, writes = sorted(outcome.time for outcome in outcomes), sorted(outcome.writes for outcome in outcomes)
        results.append(Result(strategy, clients, times, writes))
    return results


class _Progress:
    """Reports the share of the work that is done, at each thousandth of it."""

    _STEP = 0.001

    def __init__(self, whole: float, report: Callable[[float], None]) -> None:
        self._whole, self._report, self._reported = whole, report, 0.0
        self._before = self._writes = 0.0
        self._clients = self._left = 0

    def begin(self, clients: int, writes: float) -> None:
        """Begin the next contest, with the writes that it is expected to take."""
        self._before += self._writes
        self._clients = self._left = clients
        self._writes = writes

    def committed(self, client: int) -> None:
        """Count one client as done. Every other client writes again, so the remaining work shrinks with the square."""
        self._left -= 1
        share = (self._before + self._writes * (1 - (self._left / self._clients) ** 2)) / self._whole
        if share - self._reported >= self._STEP:
            self._reported = share
            self._report(share)


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def unjittered(result: Result, results: Sequence[Result]) -> Result | None:
    """Return the result to compare with: as many clients with exponential backoff alone; None where it is missing."""
    return next((other for other in results if (other.strategy, other.clients) == (UNJITTERED, result.clients)), None)


def spread(name: str, values: Sequence[float], *, digits: int) -> dict[str, Any]:
    """Return sorted numbers as their mean, error and quantiles; a single number has no error."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {
        name: round(fmean(values), digits),
        f"{name}_error": None if error is None else round(error, digits),
        f"{name}_least": round(values[0], digits),
        f"{name}_p95": round(values[math.ceil(0.95 * len(values)) - 1], digits),
        f"{name}_most": round(values[-1], digits),
    }


def figures(study: Study, results: Sequence[Result]) -> list[Figure]:
    """Return the figures: completion time and writes by the number of clients."""

    def lines(value: Callable[[Result], float]) -> list[Series]:
        return [
            Series(
                strategy,
                sorted((result.clients, value(result)) for result in results if result.strategy == strategy),
                emphasis=strategy == _SHIPPED,
            )
            for strategy in study.strategies
        ]

    wide = max(study.clients) >= _WIDE * min(study.clients)
    writes = "those that reached the server, mean"
    # Backoff without jitter takes ten times as long as the others: on a linear axis these would all be near zero.
    return [
        Figure(
            "completion time", "clients", "seconds, mean", lines(lambda result: result.time), log_y=True, log_x=wide
        ),
        Figure("writes", "clients", writes, lines(lambda result: result.write_count), log_y=wide, log_x=wide),
    ]


# ── estimates of the work ─────────────────────────────────────────────────────────────────────────────────────────────

_CLIENTS_OF_TRIAL = 100
_WRITES_OF_TRIAL = 20_000  # writes of a trial: some hundredths of a second


def estimate_writes(study: Study) -> dict[tuple[int, str], float]:
    """Estimate the writes of each part of a study, to a factor of two or three."""
    return {
        (clients, strategy): study.repetitions * _writes_of_contest(study.network, strategy, clients)
        for clients, strategy in study
    }


def _writes_of_contest(network: NetworkModel, strategy: str, clients: int) -> float:
    """Estimate the writes of one contest, from trials with growing numbers of clients.

    The writes grow with the clients, in the end with their square; the trials show how close to the square they are.
    """
    size, power = min(_CLIENTS_OF_TRIAL, clients), 2.0
    while (writes := _trial(network, strategy, size)) < _WRITES_OF_TRIAL and size * 3 <= clients:
        size *= 3
        power = math.log(_trial(network, strategy, size) / writes) / math.log(3)
    return writes * math.pow(clients / size, (power + 2) / 2)


@cache
def _trial(network: NetworkModel, strategy: str, clients: int) -> int:
    return contend(network, strategy, clients, Random(clients)).writes
