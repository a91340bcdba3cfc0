"""The retry loop of a call that left the fast path, as a generator of steps.

    attempt → classify → report to breaker and credentials → decide → publish the event → wait → attempt …

It performs nothing itself: a driver invokes, sleeps, refreshes and closes, in a thread or in a coroutine. Order of the
limits, outermost first: total time, retry, breaker, time of one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

from redrive.calls import testmode
from redrive.calls.arguments import PASS_AGAIN
from redrive.calls.core import ServiceCore
from redrive.calls.credentials import Credentials, Grant
from redrive.calls.drivers import (
    CallFallback,
    DiscardResponse,
    Invoke,
    Outcome,
    Raised,
    Refresh,
    Returned,
    Step,
    Steps,
    Wait,
)
from redrive.calls.effects.idempotency import BODY_GONE, SentKeys, why_not_retried
from redrive.calls.failures import (
    BUDGET_SPENT,
    CIRCUIT_OPEN,
    EFFECT_UNKNOWN,
    NO_KEY_LEFT,
    NoKeyLeft,
    advise,
    attach,
    attached_failure,
    circuit_open,
    is_a_fault,
    verdict_on_unsent,
)
from redrive.calls.tokens import TokenKeeper
from redrive.classify.responses import is_response, response_status
from redrive.errors import CircuitOpen, QuotaExhausted, RetriesExhausted
from redrive.model.calls import Attempt, CallFailed, Decision, Failure, FallbackUsed, Kind, Repeat, Stop, Verdict
from redrive.policy.breaker import Permit
from redrive.policy.retry import LIMITED_STATUS, REPEATABLE, CallProgress, attempts_used

# Responses 4xx that do not mean that the request is wrong, by their status or by their kind.
_NO_REFUSAL = frozenset({401, 408, 425, 429})
# The requested resource does not exist, or not any more.
_NOT_THERE = frozenset({404, 410})
_NO_MISTAKE = frozenset({Kind.RATE_LIMITED, Kind.QUOTA, Kind.DISCARD})


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The outcome of one attempt, its latency, and the permit and credential that it used."""

    outcome: Outcome
    latency: float
    permit: Permit | None = None
    grant: Grant | None = None

    @property
    def failure(self) -> Any:
        """Return the exception or response to classify."""
        return self.outcome.error if isinstance(self.outcome, Raised) else self.outcome.value

    def belongs_elsewhere(self, service: str) -> bool:
        """Return whether the error or its cause is a failure of another service, called inside this attempt."""
        attached = attached_failure(self.failure)
        return attached is not None and attached.service != service


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt and its verdict."""

    result: AttemptResult
    verdict: Verdict


class RetryLoop:
    """The state of one logical call from its first failure on."""

    def __init__(
        self,
        core: ServiceCore,
        endpoint: str,
        *,
        began: float,
        timeout: float | None,
        returns_responses: bool,
        idempotent: bool,
        has_fallback: bool,
        counted: bool = False,
        request: str | None = None,
        server: str | None = None,
        keys: SentKeys | None = None,
        beside: Callable[[], Iterable[Any]] = tuple,
        why_read: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._core = core
        self._endpoint = endpoint
        self._request = request
        self._server = server
        self._keys = keys
        self._beside = beside
        self._why_read = why_read
        self._began = began
        self._timeout = timeout
        self._returns_responses = returns_responses
        self._idempotent = idempotent
        self._counted = counted
        self._has_fallback = has_fallback
        self._retry = core.retry
        self._most_attempts = testmode.active().attempts or core.retry.attempts
        self._attempts: list[Attempt] = []
        self._free = 0  # retries with another key or a new token, which have limits of their own
        self._rotations = 0
        self._ambiguous = 0
        self._previous_wait: float | None = None
        self._refreshed: set[int] = set()
        self._tried: set[int] = set()  # keys that were rejected or limited
        self._rejected: set[int] = set()  # keys that are not used again in this call
        self._expired: set[int] = set()  # tokens that had expired when they were fetched: they are used all the same
        self._renewal: Refresh | None = None
        self._effect_unknown = False  # of the last attempt

    def run(self, first: AttemptResult | None) -> Steps:
        """Continue after the first attempt, or start before it; the generator's value is the call's outcome."""
        if not self._counted:
            self._core.began()
        last: FailedAttempt | None = None
        ready: AttemptResult | None = first
        while True:
            result = ready or (yield from self._attempt(last))
            if isinstance(result, Stop):
                return (yield from self._end(result, last))
            verdict = self._classify(result.outcome)
            fault = verdict is not None and self._is_fault(result, verdict)
            self._report(result, verdict, fault)
            if verdict is None:
                return self._succeed(result)
            decision = self._decide(result, verdict)
            self._record(result, verdict.kind, verdict.status, decision, fault=fault)
            last = FailedAttempt(result, verdict)
            if isinstance(decision, Stop):
                if self._renewal is not None:
                    yield self._renewal  # so that the next call does not get the same 401
                return (yield from self._end(decision, last))
            ready = yield from self._prepare(decision)

    # ── one attempt ──────────────────────────────────────────────────────────────────────────────────────────────

    def _attempt(self, last: FailedAttempt | None) -> Generator[Step, Any, AttemptResult | Stop]:
        """Get a credential and a permit, then invoke; return a Stop where there is none.

        The response of the attempt before is closed at the last moment: without another attempt, it is the result.
        """
        circuit = self._core.circuit
        if circuit is not None and (retry_in := circuit.retry_in()) > 0:
            return self._never_sent(circuit_open(retry_in), "circuit_open")
        grant = yield from self._credential()
        if isinstance(grant, AttemptResult | Stop):
            return grant
        permit = None
        if circuit is not None and (permit := circuit.admit()) is None:
            return self._never_sent(circuit_open(circuit.retry_in()), "circuit_open")
        try:
            if last is not None and isinstance(last.result.outcome, Returned):
                yield DiscardResponse(last.result.outcome.value)
            began = self._core.clock.monotonic()
            outcome = yield Invoke(len(self._attempts) + 1, grant, self._attempt_timeout())
        except BaseException:  # the driver was cancelled or interrupted: the attempt is no evidence
            if circuit is not None and permit is not None:
                circuit.released(permit)
            raise
        return AttemptResult(outcome, self._core.clock.monotonic() - began, permit, grant)

    def _credential(self) -> Generator[Step, Any, Grant | AttemptResult | Stop | None]:
        credentials = self._core.credentials
        if credentials is None:
            return None
        waited = False
        while True:
            # After a wait the key counts as usable, also where a test has shortened the wait.
            picked = credentials.pick(avoid=self._tried, expired=self._expired) if self._tried else None
            if not isinstance(picked, Grant | TokenKeeper):
                pausing = waited and testmode.active().longest_wait is not None
                picked = credentials.pick(pausing=pausing, avoid=self._rejected, expired=self._expired)
            if isinstance(picked, Grant):
                return picked
            if isinstance(picked, TokenKeeper):
                failed = yield from self._fetch(Refresh(picked, picked.state.generation, self._left()))
                if failed is not None:
                    return failed
            elif picked < self._left():
                yield Wait(picked)  # all keys pause for a moment: not worth an error
                waited = True
            else:
                return self._never_sent(self._no_key_left(credentials), "no_key_left")

    def _fetch(self, refresh: Refresh) -> Generator[Step, Any, AttemptResult | None]:
        """Fetch a token; a failure replaces the attempt that it prevented, unless another account can take over."""
        began = self._core.clock.monotonic()
        failed = yield refresh
        took = self._core.clock.monotonic() - began
        if failed is None and self._left() <= 0:
            failed = Raised(TimeoutError(f"the token took {took:.1f} s to fetch, and the call's time is over"))
        if failed is None or self._core.credentials is None:
            if refresh.keeper.state.renew_at <= self._core.clock.monotonic():
                # The clock of the server may differ. Another fetch would return the same, again and again.
                self._expired.add(refresh.keeper.slot)
            return None
        self._core.credentials.rejected(refresh.keeper.slot)
        self._refreshed.discard(refresh.keeper.slot)  # nothing was refreshed: the next 401 may refresh
        self._rotations += 1
        other = self._core.credentials.pick()
        taken_over = isinstance(other, Grant) and other.slot != refresh.keeper.slot
        taken_over = taken_over or (isinstance(other, TokenKeeper) and other is not refresh.keeper)
        if taken_over and self._left() > 0 and self._rotations <= self._core.credentials.size:
            return None
        return AttemptResult(failed, took)

    def _attempt_timeout(self) -> float | None:
        return None if self._timeout is None else max(0.001, min(self._timeout, self._left()))

    # ── classify, report, decide ─────────────────────────────────────────────────────────────────────────────────

    def _classify(self, outcome: Outcome) -> Verdict | None:
        classifier, now = self._core.classifier, self._core.clock.now()
        if isinstance(outcome, Raised):
            return classifier.classify(outcome.error, "call", now=now)
        return classifier.judge(outcome.value, now=now)

    def _is_fault(self, result: AttemptResult, verdict: Verdict) -> bool:
        return is_a_fault(verdict) and not result.belongs_elsewhere(self._core.name)

    def _report(self, result: AttemptResult, verdict: Verdict | None, fault: bool) -> None:
        circuit, permit = self._core.circuit, result.permit
        if circuit is None or permit is None:
            return
        if verdict is None:
            circuit.succeeded(permit, result.latency)
        elif fault:
            self._core.counters.fold(self._core.clock.monotonic())  # a failure rate needs the successes so far
            circuit.failed(permit)
        else:
            circuit.released(permit)

    def _decide(self, result: AttemptResult, verdict: Verdict) -> Decision:
        if verdict.kind is Kind.AMBIGUOUS:
            self._ambiguous += 1
        free = self._credential_decision(result, verdict)
        decision = free or self._retry_decision(verdict)
        if isinstance(decision, Stop) and verdict.kind not in REPEATABLE:
            return decision
        refusal = why_not_retried(
            result.failure,
            verdict,
            keys=self._keys,
            idempotent=self._idempotent,
            since=result.outcome.since if isinstance(result.outcome, Raised) else -1,
            beside=self._beside,
        )
        self._effect_unknown = refusal is not None and refusal is not BODY_GONE
        if isinstance(decision, Stop):
            return decision
        if refusal is not None:
            return Stop(refusal, retry_in=verdict.retry_after, advice=EFFECT_UNKNOWN)
        if (read := self._why_read()) is not None:
            return Stop(read, retry_in=verdict.retry_after, advice=PASS_AGAIN, falls_back=True)
        if free is None and not self._core.may_retry():
            why = "the service's retry budget is exhausted"
            return Stop(why, spent=True, retry_in=verdict.retry_after, advice=BUDGET_SPENT, cut_short=True)
        return decision

    def _credential_decision(self, result: AttemptResult, verdict: Verdict) -> Decision | None:
        """Rotate, refresh or pause the key in use; return None where the error is not about the key."""
        credentials, grant = self._core.credentials, result.grant
        if credentials is None or grant is None or result.belongs_elsewhere(self._core.name):
            return None
        if verdict.kind is Kind.RATE_LIMITED and (verdict.status or 429) in LIMITED_STATUS:
            if (pause := self._retry.floor(verdict)) is not None:
                credentials.paused(grant, pause)
            # A server that names no time probably limits the key; one that does may limit the address.
            if verdict.retry_after is None and verdict.kind in self._retry.on and self._has_other(grant):
                return self._retry_free(f"key …{grant.key_id} is rate limited, another takes over")
        if verdict.kind is Kind.QUOTA:
            credentials.drained(grant, verdict.retry_after)
            picked = credentials.pick(avoid=self._rejected)
            none_in_time = isinstance(picked, float) and picked >= self._left()
            self._rotations += 1
            if none_in_time or self._rotations > credentials.size:  # a reset in the past would rotate without end
                return self._no_key_left(credentials)
            return self._retry_free(f"key …{grant.key_id} is exhausted, another takes over")
        if verdict.kind is Kind.AUTH:
            keeper = credentials.keeper(grant)
            if keeper is None or grant.slot in self._refreshed:
                credentials.rejected(grant.slot)
                self._rejected.add(grant.slot)
                if self._has_other(grant):
                    return self._retry_free(f"key …{grant.key_id} was rejected, another takes over")
                return Stop("the key was rejected" if keeper is None else "the fresh token was rejected, too")
            self._refreshed.add(grant.slot)
            self._renewal = Refresh(keeper, grant.generation, self._left())
            return self._retry_free("the token is refreshed")
        return None

    def _has_other(self, grant: Grant) -> bool:
        """Return whether a key that this call has not tried yet can take over."""
        credentials = self._core.credentials
        self._tried.add(grant.slot)
        return credentials is not None and isinstance(credentials.pick(avoid=self._tried), Grant | TokenKeeper)

    def _retry_free(self, why: str) -> Decision:
        """Return a retry that is not charged to attempts or budget, but is bound by the call's time."""
        if self._left() <= 0:
            return Stop(f"the {self._retry.within:g} s of the call are used", spent=True)
        self._free += 1
        return Repeat(0.0, why)

    def _retry_decision(self, verdict: Verdict) -> Decision:
        made = len(self._attempts) + 1 - self._free
        progress = CallProgress(made, self._elapsed(), self._ambiguous, self._previous_wait)
        decision = self._retry.decide(verdict, progress, self._core.random)
        if isinstance(decision, Stop):
            return decision
        if made >= self._most_attempts:
            return Stop(attempts_used(self._most_attempts), spent=True, retry_in=verdict.retry_after)
        circuit = self._core.circuit
        if circuit is not None and (retry_in := circuit.retry_in()) > decision.wait:
            return Stop("the circuit opened", spent=True, retry_in=retry_in, advice=CIRCUIT_OPEN, cut_short=True)
        return decision

    def _prepare(self, decision: Repeat) -> Generator[Step, Any, AttemptResult | None]:
        """Do what comes between two attempts; a failed refresh replaces the attempt that it prevented."""
        if self._renewal is not None:
            renewal, self._renewal = self._renewal, None
            return (yield from self._fetch(renewal))
        if decision.wait > 0:
            self._previous_wait = decision.wait
            yield Wait(decision.wait)
        return None

    # ── endings ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _succeed(self, result: AttemptResult) -> Outcome:
        if self._core.credentials is not None and result.grant is not None and self._core.credentials.blamed:
            self._core.credentials.succeeded(result.grant)
        value = result.failure
        status = response_status(value) if is_response(value) else None
        self._record(result, "success", status, None, fault=False)
        return result.outcome

    def _never_sent(self, stop: Stop, outcome: str) -> Stop:
        """Count and publish a call that ends before its first attempt."""
        if not self._attempts:
            self._core.counters.rejected(outcome, endpoint=self._endpoint)
            rejected = Attempt(
                service=self._core.name,
                endpoint=self._endpoint,
                attempt=1,
                outcome=outcome,
                latency_ms=0.0,
                wait_s=stop.retry_in,
                request=self._request,
                server=self._server,
            )
            self._core.announcer.attempt(rejected)
        return stop

    def _no_key_left(self, credentials: Credentials) -> NoKeyLeft:
        resets_at = credentials.next_reset(self._rejected)
        retry_in = max(0.0, (resets_at - self._core.clock.now()).total_seconds())
        why = f"no key is left before {resets_at:%Y-%m-%d %H:%M:%S %Z}"
        return NoKeyLeft(why, spent=True, retry_in=retry_in, advice=NO_KEY_LEFT, resets_at=resets_at)

    def _end(self, stop: Stop, last: FailedAttempt | None) -> Steps:
        """Return the call's outcome where there is no further attempt, or the user's fallback in its place."""
        verdict = last.verdict if last else verdict_on_unsent(stop)
        if verdict.kind is Kind.DISCARD and self._core.discards:
            return Returned(None)
        if verdict.kind is Kind.AMBIGUOUS and stop.spent:
            verdict = replace(verdict, kind=Kind.PERMANENT)  # its retries are exhausted
        failure = Failure(
            service=self._core.name,
            endpoint=self._endpoint,
            attempts=tuple(self._attempts),
            elapsed=self._elapsed(),
            verdict=verdict,
            why=stop.why,
            advice=advise(last.verdict if last else verdict, stop),
            retry_in=stop.retry_in,
            cut_short=stop.cut_short,
            effect_unknown=self._effect_unknown,
        )
        exhausted = stop.spent and bool(self._attempts) and not self._has_fallback
        self._core.announcer.event(CallFailed(self._shown(failure), exhausted))
        outcome, how = self._final(stop, failure, last), self._how_it_failed(last)
        attach(failure, outcome.error if isinstance(outcome, Raised) else outcome.value)
        if isinstance(outcome, Raised) and (stop.spent or stop.falls_back) and self._has_fallback:
            self._core.counters.fell_back(self._endpoint)
            self._core.announcer.event(FallbackUsed(failure))
            substitute: Outcome = yield CallFallback(outcome.error)
            outcome = substitute
            if isinstance(substitute, Returned):
                return substitute
        self._core.counters.ended(*how, endpoint=self._endpoint, status=last.verdict.status if last else None)
        return outcome

    def _how_it_failed(self, last: FailedAttempt | None) -> list[str]:
        """Return the names under which metrics count it. A failure of another service is counted there."""
        how = ["calls_failed"]
        if last is None or last.result.belongs_elsewhere(self._core.name):
            return how
        kind, status = last.verdict.kind, last.verdict.status or 0
        if kind is Kind.AUTH:
            how.append("failed_auth")
        elif 400 <= status < 500 and status not in _NO_REFUSAL and kind not in _NO_MISTAKE:
            how.append("failed_404" if status in _NOT_THERE else "failed_4xx")
        return how

    def _shown(self, failure: Failure) -> Failure:
        """Return a failure as events and log lines show it: the text of a server may contain redacted fields."""
        letters = self._core.letters
        if letters is None or not letters.redacts:
            return failure
        return replace(failure, verdict=replace(failure.verdict, detail=None))

    def _final(self, stop: Stop, failure: Failure, last: FailedAttempt | None) -> Outcome:
        """Return what the caller gets: the user's own exception or response where there is one, else redrive's."""
        if isinstance(stop, NoKeyLeft):
            empty = QuotaExhausted(redrive=failure, resets_at=stop.resets_at)
            empty.__cause__ = last.result.outcome.error if last and isinstance(last.result.outcome, Raised) else None
            return Raised(empty)
        if last is None:
            return Raised(CircuitOpen(redrive=failure, retry_in=stop.retry_in or 0.0))
        outcome = last.result.outcome
        is_final = last.verdict.kind not in REPEATABLE
        if isinstance(outcome, Raised) or self._returns_responses or is_final:
            return outcome
        return Raised(RetriesExhausted(redrive=failure, response=outcome.value))

    # ── bookkeeping ──────────────────────────────────────────────────────────────────────────────────────────────

    def _record(
        self, result: AttemptResult, outcome: str, status: int | None, decision: Decision | None, *, fault: bool
    ) -> None:
        raised = isinstance(result.outcome, Raised)
        attempt = Attempt(
            service=self._core.name,
            endpoint=self._endpoint,
            attempt=len(self._attempts) + 1,
            outcome=str(outcome),
            latency_ms=result.latency * 1000,
            status=status,
            error=type(result.failure).__name__ if raised else None,
            key_id=result.grant.key_id if result.grant else None,
            wait_s=testmode.capped(decision.wait) if isinstance(decision, Repeat) else None,
            elapsed_s=self._elapsed(),
            request=self._request,
            server=self._server,
        )
        self._attempts.append(attempt)
        counters, retry = self._core.counters, attempt.attempt > 1
        counters.attempted(attempt.outcome, result.latency, retry=retry, fault=fault, endpoint=self._endpoint)
        self._core.announcer.attempt(attempt)

    def _elapsed(self) -> float:
        return self._core.clock.monotonic() - self._began

    def _left(self) -> float:
        return self._retry.within - self._elapsed()
