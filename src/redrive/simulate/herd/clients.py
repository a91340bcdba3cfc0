"""The clients of a herd: how each comes to its next request.

A client's life is a generator: it yields the request it makes next, is told what became of it and when, and lives on
from there. Only in the service do clients meet, so only requests are events; what a client does between two of them is
its own affair.

It is a closed loop, as a worker of a pipeline is: a client asks, waits, works on the answer, asks again. It does not
ask for the next thing while it waits for the last, so that work which an outage holds up is late, and does not pile up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from random import Random
from typing import NamedTuple
from urllib.error import HTTPError

from redrive.calls.retry_loop import is_a_fault
from redrive.calls.service import Service
from redrive.model.calls import Decision, Kind, Stop, Verdict
from redrive.policy.breaker import Breaker, CircuitMachine, CircuitState, Permit
from redrive.policy.budget import BudgetLedger, RetryBudget
from redrive.policy.retry import CallProgress, Retry
from redrive.simulate.herd.server import RequestOutcome


class Request(NamedTuple):
    """What a client sends next, and when."""

    at: float
    patience: float
    """Seconds that it waits for an answer."""
    probe: bool = False
    """Whether a circuit sends it to find out if the service is back."""


Told = tuple[RequestOutcome, float]
Life = Generator[Request, Told, None]


class CallEnd(NamedTuple):
    """How a call ended for its caller: when, answered or not, and when its error says that a new one makes sense."""

    at: float
    answered: bool
    retry_in: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What clients do around their calls, whatever their policy. Work whose call failed is kept, and asked for again.

    think    seconds to work on an answer, on average
    again    seconds until a call that failed is made again, on average, where its error does not say when
    timeout  seconds to wait for an answer, where the policy does not say
    failed   told when a call failed
    pace     the chance of pauses
    """

    think: float
    again: float
    timeout: float
    failed: Callable[[float], None]
    pace: Random

    def after(self, ended: CallEnd) -> float:
        """When the next call begins."""
        if ended.answered:
            return ended.at + self.pause(self.think)
        self.failed(ended.at)
        return ended.at + (ended.retry_in or self.pause(self.again))

    def pause(self, mean: float) -> float:
        """A pause without memory, as of workers that have nothing to do with each other."""
        return self.pace.expovariate(1 / mean)


# ── by a policy ──────────────────────────────────────────────────────────────────────────────────────────────────────


def errors(retry_after: int | None) -> dict[RequestOutcome, Exception]:
    """What a program meets where a request has come to no good; a 503 may ask for time."""
    headers = Message()
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return {
        RequestOutcome.REFUSED: ConnectionRefusedError("connection refused"),
        RequestOutcome.RESET: ConnectionResetError("connection reset by peer"),
        RequestOutcome.UNAVAILABLE: HTTPError("http://service/", 503, "Service Unavailable", headers, None),
        RequestOutcome.TIMED_OUT: TimeoutError("timed out"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a service's clients go by, as far as it concerns the load they make."""

    retry: Retry
    breaker: Breaker | None
    budget: RetryBudget | None
    timeout: float | None
    verdicts: Mapping[RequestOutcome, Verdict]
    slice_seconds: float

    @property
    def slow(self) -> float:
        """From when on an answer is as bad as none."""
        return math.inf if self.breaker is None or self.breaker.slow is None else self.breaker.slow

    @classmethod
    def of(cls, service: Service, *, retry_after: int | None = None) -> Policy:
        """The policy of a service; its own classifier judges what can happen, a 503 with this Retry-After included."""
        core, now = service._core, datetime.now(UTC)
        return cls(
            retry=service.retry,
            breaker=service.breaker,
            budget=service.budget,
            timeout=service._options.timeout,
            verdicts={
                fate: core.classifier.classify(error, "call", now=now) for fate, error in errors(retry_after).items()
            },
            slice_seconds=core.slice_seconds,
        )

    def without_jittered_cooldown(self) -> Policy:
        """The same, but for circuits that all stay open for the very same time."""
        return self if self.breaker is None else replace(self, breaker=replace(self.breaker, jitter=0.0))


class Guarded:
    """One client with a policy: a process with a circuit and a retry budget of its own.

    It takes the steps of `redrive.calls.retry_loop` with the same machine, ledger and retry in the same order, and none
    of those that a simulation has no use for: locks, logs, events, exceptions, keys. A test holds the two together.
    """

    __slots__ = (
        "_ambiguous",
        "_attempts",
        "_began",
        "_caller",
        "_chance",
        "_fold_at",
        "_fresh",
        "_ledger",
        "_machine",
        "_policy",
        "_since",
        "_troubled",
        "_waited",
    )

    def __init__(self, policy: Policy, caller: Caller, chance: Random) -> None:
        self._policy = policy
        self._caller = caller
        self._chance = chance
        self._machine = None if policy.breaker is None else CircuitMachine(policy.breaker, chance)
        self._ledger = None if policy.budget is None else BudgetLedger(policy.budget)
        self._fresh = 0  # successes that neither has been told of
        self._since = 0.0
        self._fold_at = policy.slice_seconds
        self._waited: float | None = None
        self._begin(0.0)

    def life(self, first: float) -> Life:
        """One call after another, the first of them then."""
        now = first
        while True:
            ended = yield from self.call(now)
            now = self._caller.after(ended)

    def call(self, now: float) -> Generator[Request, Told, CallEnd]:
        """One call, with the attempts that the policy grants it."""
        machine, permit, probe = self._machine, None, False
        self._begin(now)
        while True:
            if machine is not None:
                probe = machine.state is not CircuitState.CLOSED
                if probe and (retry_in := machine.retry_in(now)) > 0:
                    return CallEnd(now, answered=False, retry_in=retry_in)
                permit = machine.admit(now)
            asked = now
            fate, now = yield Request(asked, self._patience(asked), probe)
            if fate is RequestOutcome.ANSWERED:
                self._succeed(permit, now, now - asked)
                return CallEnd(now, answered=True)
            decision = self._decide(fate, permit, now)
            if isinstance(decision, Stop):
                return CallEnd(now, answered=False, retry_in=decision.retry_in)
            if decision.wait > 0:
                self._waited = decision.wait
                now += decision.wait

    def _begin(self, now: float) -> None:
        self._began = now
        self._attempts = self._ambiguous = 0
        self._waited = None
        self._troubled = False  # a call that goes well at once is counted later, with others
        if self._machine is not None and self._machine.state is not CircuitState.CLOSED:
            self._trouble(now)

    def _patience(self, now: float) -> float:
        timeout = self._policy.timeout
        if timeout is None:
            return self._caller.timeout
        return max(0.001, min(timeout, self._policy.retry.within - (now - self._began)))

    def _succeed(self, permit: Permit | None, now: float, latency: float) -> None:
        slow = latency >= self._policy.slow
        if not self._troubled and not slow:
            if now >= self._fold_at:
                self._fold(now)
            self._fresh += 1
            return
        self._trouble(now)
        if self._machine is not None and permit is not None:
            (self._machine.failed if slow else self._machine.succeeded)(permit, now)

    def _decide(self, fate: RequestOutcome, permit: Permit | None, now: float) -> Decision:
        self._trouble(now)
        verdict, machine = self._policy.verdicts[fate], self._machine
        if machine is not None and permit is not None:
            if is_a_fault(verdict):
                self._fold(now)
                machine.failed(permit, now)
            else:
                machine.released(permit)
        self._attempts += 1
        self._ambiguous += verdict.kind is Kind.AMBIGUOUS
        progress = CallProgress(self._attempts, now - self._began, self._ambiguous, self._waited)
        decision = self._policy.retry.decide(verdict, progress, self._chance)
        if isinstance(decision, Stop):
            return decision
        if machine is not None and (retry_in := machine.retry_in(now)) > decision.wait:
            return Stop("the circuit opened", retry_in=retry_in)
        if self._ledger is not None:
            self._fold(now)
            if not self._ledger.spend(now):
                return Stop("the retry budget is spent", retry_in=verdict.retry_after)
        return decision

    def _trouble(self, now: float) -> None:
        """The call is not one that goes well at once: it is counted now."""
        if not self._troubled:
            self._troubled = True
            if self._ledger is not None:
                self._ledger.earn(now)

    def _fold(self, now: float) -> None:
        """Tell of the successes since the last time, as `redrive.calls.metrics.counters` does."""
        if self._fresh:
            if self._machine is not None:
                self._machine.count_successes(self._fresh, self._since)
            if self._ledger is not None:
                self._ledger.earn(self._since, self._fresh)
            self._fresh = 0
        self._since = now
        self._fold_at = now + self._policy.slice_seconds


# ── as many programs have it ─────────────────────────────────────────────────────────────────────────────────────────


def stubborn(wait: Callable[[int], float], caller: Caller, first: float) -> Life:
    """`while True: try … except: sleep`: a client that asks until it is answered, and waits `wait(n)` before the n-th
    repeat.
    """
    now = first
    while True:
        repeats = 0
        while True:
            fate, now = yield Request(now, caller.timeout)
            if fate is RequestOutcome.ANSWERED:
                break
            repeats += 1
            now += wait(repeats)
        now = caller.after(CallEnd(now, answered=True))
