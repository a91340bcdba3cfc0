"""The clients of a herd simulation: how each client gets to its next request.

A client is a generator: it yields its next request, and is sent the outcome and its time. Clients meet only in the
service, so only requests are events; what a client does between two requests is computed within its generator.

It is a closed loop, as a worker of a pipeline is: a client sends a request, waits, processes the answer, and sends the
next. It does not send the next request while it waits, so that work which an outage holds up is late, and does not pile
up.
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

from redrive.calls.failures import is_a_fault
from redrive.calls.service import Service
from redrive.model.calls import Decision, Kind, Stop, Verdict
from redrive.policy.breaker import Breaker, CircuitMachine, CircuitState, Permit
from redrive.policy.retry import BudgetLedger, CallProgress, Retry, RetryBudget
from redrive.simulate.herd.server import RequestOutcome


class Request(NamedTuple):
    """What a client sends next, and when."""

    at: float
    timeout: float
    """Seconds that it waits for an answer."""
    probe: bool = False
    """Whether a circuit sends it to find out if the service has recovered."""


Response = tuple[RequestOutcome, float]
Life = Generator[Request, Response, None]


class CallEnd(NamedTuple):
    """How a call ended for its caller: when, answered or not, and the `retry_in` of its error."""

    at: float
    answered: bool
    retry_in: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What clients do around their calls, whatever their policy. Work whose call failed is kept, and called for again.

    think    seconds to process an answer, on average
    again    seconds until a failed call is made again, on average, unless its error has a `retry_in`
    timeout  seconds to wait for an answer, unless the policy has one
    failed   called with the time when a call failed
    pace     the random source of pauses
    """

    think: float
    again: float
    timeout: float
    failed: Callable[[float], None]
    pace: Random

    def after(self, ended: CallEnd) -> float:
        """Return when the next call begins."""
        if ended.answered:
            return ended.at + self.pause(self.think)
        self.failed(ended.at)
        return ended.at + (ended.retry_in or self.pause(self.again))

    def pause(self, mean: float) -> float:
        """Return a random pause with this mean, exponentially distributed as for independent workers."""
        return self.pace.expovariate(1 / mean)


# ── clients with a policy ────────────────────────────────────────────────────────────────────────────────────────


def errors(retry_after: int | None) -> dict[RequestOutcome, Exception]:
    """Return the errors that a program gets where a request fails; a 503 may have a Retry-After."""
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
    """The part of a service's policy that matters for the load."""

    retry: Retry
    breaker: Breaker | None
    budget: RetryBudget | None
    timeout: float | None
    verdicts: Mapping[RequestOutcome, Verdict]
    slice_seconds: float

    @property
    def slow(self) -> float:
        """Seconds from which an answer counts as a failure."""
        return math.inf if self.breaker is None or self.breaker.slow is None else self.breaker.slow

    @classmethod
    def of(cls, service: Service, *, retry_after: int | None = None) -> Policy:
        """Return the policy of a service; its own classifier judges the errors, such as a 503 with Retry-After."""
        core, now = service.core, datetime.now(UTC)
        return cls(
            retry=service.retry,
            breaker=service.breaker,
            budget=service.budget,
            timeout=service.options.timeout,
            verdicts={
                outcome: core.classifier.classify(error, "call", now=now)
                for outcome, error in errors(retry_after).items()
            },
            slice_seconds=core.slice_seconds,
        )

    def without_jittered_cooldown(self) -> Policy:
        """Return the same policy, with circuits that all stay open for the very same time."""
        return self if self.breaker is None else replace(self, breaker=replace(self.breaker, jitter=0.0))


class Guarded:
    """One client with a policy: a process with a circuit and a retry budget of its own.

    It takes the steps of `redrive.calls.retry_loop` with the same machine, ledger and retry in the same order, and none
    of those that a simulation has no use for: locks, logs, events, exceptions, keys. A test compares the two.
    """

    __slots__ = (
        "_ambiguous",
        "_attempts",
        "_began",
        "_caller",
        "_count_at",
        "_fresh",
        "_is_counted",
        "_ledger",
        "_machine",
        "_policy",
        "_random",
        "_since",
        "_waited",
    )

    def __init__(self, policy: Policy, caller: Caller, random: Random) -> None:
        self._policy = policy
        self._caller = caller
        self._random = random
        self._machine = None if policy.breaker is None else CircuitMachine(policy.breaker, random)
        self._ledger = None if policy.budget is None else BudgetLedger(policy.budget)
        self._fresh = 0  # successes that neither the circuit nor the budget has counted yet
        self._since = 0.0
        self._count_at = policy.slice_seconds
        self._waited: float | None = None
        self._begin(0.0)

    def life(self, first: float) -> Life:
        """Make one call after another, the first at `first`."""
        now = first
        while True:
            ended = yield from self.call(now)
            now = self._caller.after(ended)

    def call(self, now: float) -> Generator[Request, Response, CallEnd]:
        """Make one call, with the attempts that the policy allows."""
        machine, permit, probe = self._machine, None, False
        self._begin(now)
        while True:
            if machine is not None:
                probe = machine.state is not CircuitState.CLOSED
                if probe and (retry_in := machine.retry_in(now)) > 0:
                    return CallEnd(now, answered=False, retry_in=retry_in)
                permit = machine.admit(now)
            sent_at = now
            outcome, now = yield Request(sent_at, self._timeout_of_attempt(sent_at), probe)
            if outcome is RequestOutcome.ANSWERED:
                self._succeed(permit, now, now - sent_at)
                return CallEnd(now, answered=True)
            decision = self._decide(outcome, permit, now)
            if isinstance(decision, Stop):
                return CallEnd(now, answered=False, retry_in=decision.retry_in)
            if decision.wait > 0:
                self._waited = decision.wait
                now += decision.wait

    def _begin(self, now: float) -> None:
        self._began = now
        self._attempts = self._ambiguous = 0
        self._waited = None
        self._is_counted = False  # a call that succeeds at once is counted later, with others
        if self._machine is not None and self._machine.state is not CircuitState.CLOSED:
            self._count_call(now)

    def _timeout_of_attempt(self, now: float) -> float:
        timeout = self._policy.timeout
        if timeout is None:
            return self._caller.timeout
        return max(0.001, min(timeout, self._policy.retry.within - (now - self._began)))

    def _succeed(self, permit: Permit | None, now: float, latency: float) -> None:
        slow = latency >= self._policy.slow
        if not self._is_counted and not slow:
            if now >= self._count_at:
                self._count_successes(now)
            self._fresh += 1
            return
        self._count_call(now)
        if self._machine is not None and permit is not None:
            (self._machine.failed if slow else self._machine.succeeded)(permit, now)

    def _decide(self, outcome: RequestOutcome, permit: Permit | None, now: float) -> Decision:
        self._count_call(now)
        verdict, machine = self._policy.verdicts[outcome], self._machine
        if machine is not None and permit is not None:
            if is_a_fault(verdict):
                self._count_successes(now)
                machine.failed(permit, now)
            else:
                machine.released(permit)
        self._attempts += 1
        self._ambiguous += verdict.kind is Kind.AMBIGUOUS
        progress = CallProgress(self._attempts, now - self._began, self._ambiguous, self._waited)
        decision = self._policy.retry.decide(verdict, progress, self._random)
        if isinstance(decision, Stop):
            return decision
        if machine is not None and (retry_in := machine.retry_in(now)) > decision.wait:
            return Stop("the circuit opened", retry_in=retry_in)
        if self._ledger is not None:
            self._count_successes(now)
            if not self._ledger.spend(now):
                return Stop("the retry budget is exhausted", retry_in=verdict.retry_after)
        return decision

    def _count_call(self, now: float) -> None:
        """Count the call now, since it does not succeed at once."""
        if not self._is_counted:
            self._is_counted = True
            if self._ledger is not None:
                self._ledger.earn(now)

    def _count_successes(self, now: float) -> None:
        """Count the successes since the last time, as `redrive.calls.metrics.counters` does."""
        if self._fresh:
            if self._machine is not None:
                self._machine.count_successes(self._fresh, self._since)
            if self._ledger is not None:
                self._ledger.earn(self._since, self._fresh)
            self._fresh = 0
        self._since = now
        self._count_at = now + self._policy.slice_seconds


# ── clients without a policy ─────────────────────────────────────────────────────────────────────────────────────────


def retry_forever(wait: Callable[[int], float], caller: Caller, first: float) -> Life:
    """Retry until answered, and wait `wait(n)` before the n-th retry: `while True: try … except: sleep`."""
    now = first
    while True:
        retries = 0
        while True:
            outcome, now = yield Request(now, caller.timeout)
            if outcome is RequestOutcome.ANSWERED:
                break
            retries += 1
            now += wait(retries)
        now = caller.after(CallEnd(now, answered=True))
