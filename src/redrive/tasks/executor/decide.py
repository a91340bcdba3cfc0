"""The decision after an attempt: success, retry, failure, or a dead letter for the operator. Pure.

The executor calls `decide` for every attempt that has ended, and stores the `Transition` it returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from redrive.calls.testmode import TestMode
from redrive.classify.builtin import SKIP
from redrive.clock import Random
from redrive.model.calls import Decision, Kind, Repeat, Stop, Verdict, format_duration
from redrive.model.tasks import State
from redrive.policy.retry import DEFAULT_WITHIN, CallProgress, attempts_used
from redrive.tasks.graph import Node
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome

RECOVERS = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED})
"""Kinds of failures that pass by themselves: resuming the run retries such tasks."""
LOST = "lost"
LOST_IN_A_ROW = 10
"""Executors that may die in a row while running a task before the task is the suspect."""
LONGEST_WAIT = 86_400.0
"""Maximum of a server's Retry-After in seconds, before jitter. Daily quotas ask for at most a day, and some servers
send a date instead of seconds. Calls need no such limit: their `within` is one."""
SUSPECT = frozenset({Kind.AMBIGUOUS, Kind.RESOURCE})
"""Kinds that may be poison: it is unknown whether a retry would help."""
_NO_TESTING = TestMode()


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """The earlier attempts of a task when the next one starts."""

    failures: int = 0
    same: int = 0
    """How many of the last failures in a row had the same fingerprint."""
    fingerprint: str | None = None
    """The fingerprint of the last failure."""
    wait: float | None = None
    elapsed: float = 0.0
    """Seconds since the first attempt started; for a sensor, since the first poll."""
    lost: int = 0
    """How many executors in a row died while running the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The next state of a task, and what is stored about the attempt."""

    state: State
    cause: str | None = None
    wait: float | None = None
    """Seconds until the next attempt or the next poll of a sensor; None if there is none."""
    failures: int = 0
    same: int = 0
    fingerprint: str | None = None
    error: str | None = None
    kind: Kind | None = None
    lost: int = 0
    capped: float | None = None
    """Seconds that the server asked to wait, if more than `LONGEST_WAIT`."""


def decide(
    node: Node, past: AttemptHistory, outcome: TaskOutcome, random: Random, testing: TestMode = _NO_TESTING
) -> Transition:
    """Return the next state of a task; test mode caps the wait."""
    transition = _decide(node, past, outcome, random, testing.attempts)
    if transition.wait is None or testing.longest_wait is None:
        return transition
    return replace(transition, wait=min(transition.wait, testing.longest_wait))


def _decide(
    node: Node, past: AttemptHistory, outcome: TaskOutcome, random: Random, most_attempts: int | None
) -> Transition:
    if outcome.ended is AttemptEnd.STOPPED:  # the executor stopped: the task did not fail
        state = State.SENSING if node.sensing else State.READY
        return Transition(
            state=state,
            cause="its executor stopped",
            wait=0.0,
            failures=past.failures,
            same=past.same,
            fingerprint=past.fingerprint,
            lost=past.lost,
        )
    if outcome.ended is AttemptEnd.LOST:
        return _after_loss(node, past, outcome)
    if outcome.verdict is None or outcome.verdict.kind is Kind.DISCARD:
        return _after_return(node, past, outcome)
    return _after_failure(node, past, outcome, random, most_attempts)


def _after_loss(node: Node, past: AttemptHistory, outcome: TaskOutcome) -> Transition:
    """Return the transition of a task whose executor died.

    A loss costs no retry, since the attempt may not even have started. After many losses in a row the task is suspected
    of killing its executors.
    """
    lost = past.lost + 1
    if lost >= LOST_IN_A_ROW:
        cause = f"{lost} executors in a row died while they had it"
        transition = Transition(
            state=State.DEAD_LETTER, cause=cause, fingerprint=LOST, error=outcome.error, kind=Kind.AMBIGUOUS
        )
        return replace(transition, failures=past.failures, same=1, lost=lost)
    return Transition(
        state=State.SENSING if node.sensing else State.READY,
        cause=outcome.error,
        wait=0.0,
        failures=past.failures,
        same=past.same,  # earlier failures still count, or the task would never be poisoned
        fingerprint=past.fingerprint,
        error=outcome.error,
        kind=Kind.AMBIGUOUS,
        lost=lost,
    )


def _after_return(node: Node, past: AttemptHistory, outcome: TaskOutcome) -> Transition:
    if outcome.verdict is not None and outcome.verdict.rule == SKIP:
        cause = f"skipped itself: {outcome.error}"
        if node.each is not None:  # as if an operator skipped it: the list of results leaves it out
            return Transition(state=State.SUCCESS, cause=cause, kind=Kind.DISCARD)
        return Transition(state=State.SKIPPED, cause=cause)
    if outcome.verdict is not None:
        return Transition(state=State.SUCCESS, cause=f"discarded on purpose: {outcome.error}")
    if node.sensing is None or outcome.truth:
        return Transition(state=State.SUCCESS)
    left = node.sensing.timeout - past.elapsed - outcome.seconds
    if left <= 0:
        error = f"was not true within {format_duration(node.sensing.timeout)}"
        return Transition(state=State.FAILED, cause=error, error=error, fingerprint="sensor", kind=Kind.TRANSIENT)
    return Transition(state=State.SENSING, wait=min(node.sensing.every, left))  # the last poll is at the timeout


def _after_failure(
    node: Node, past: AttemptHistory, outcome: TaskOutcome, random: Random, most_attempts: int | None
) -> Transition:
    verdict = outcome.verdict
    assert verdict is not None
    fingerprint = outcome.fingerprint or outcome.ended
    same = past.same + 1 if fingerprint == past.fingerprint else 1
    failures = past.failures + 1
    error = outcome.error or verdict.reason

    def move_to(state: State, cause: str, wait: float | None = None, capped: float | None = None) -> Transition:
        return Transition(
            state=state,
            cause=cause,
            wait=wait,
            failures=failures,
            same=same,
            fingerprint=fingerprint,
            error=error,
            kind=verdict.kind,
            capped=capped,
        )

    if verdict.kind not in RECOVERS | SUSPECT:
        return move_to(State.DEAD_LETTER, f"{verdict.kind}: {error}")
    if verdict.kind in SUSPECT and same >= node.poison:
        times = "" if same == 1 else f", {same} times in a row at the same place"
        return move_to(State.DEAD_LETTER, f"poison{times}: {error}")
    decision: Decision
    if most_attempts is not None and failures >= most_attempts:
        decision = Stop(attempts_used(most_attempts), spent=True)
    else:
        decision = node.retry.decide(
            _cap_retry_after(_as_retryable(verdict)), _call_progress(node, past, failures), random
        )
    if isinstance(decision, Repeat):
        wait = decision.wait
        if node.sensing is not None:
            left = node.sensing.timeout - past.elapsed - outcome.seconds
            if left <= 0:
                return move_to(State.FAILED, f"was not true within {format_duration(node.sensing.timeout)}: {error}")
            wait = min(wait, left)
        retry_state = State.SENSING if node.sensing else State.RETRYING
        asked_wait = verdict.retry_after or 0.0
        return move_to(
            retry_state, f"{verdict.kind}: {error}", wait, asked_wait if asked_wait > max(LONGEST_WAIT, wait) else None
        )
    if verdict.kind in SUSPECT:  # it is unknown whether a retry would help: an operator decides
        return move_to(State.DEAD_LETTER, f"{decision.why}: {error}")
    return move_to(State.FAILED, f"{decision.why}: {error}")


def _as_retryable(verdict: Verdict) -> Verdict:
    """Present a resource failure as ambiguous: the retry policy may retry a worker that ran out of memory."""
    if verdict.kind is not Kind.RESOURCE:
        return verdict
    return Verdict(Kind.AMBIGUOUS, verdict.reason, verdict.rule)


def _cap_retry_after(verdict: Verdict) -> Verdict:
    """Cap a Retry-After at `LONGEST_WAIT`."""
    if verdict.retry_after is None or verdict.retry_after <= LONGEST_WAIT:
        return verdict
    return replace(verdict, retry_after=LONGEST_WAIT)


def _call_progress(node: Node, past: AttemptHistory, failures: int) -> CallProgress:
    """Return the progress of a task in the terms of the retry policy.

    The default of `within` is meant for calls, whose caller waits. It does not apply here: the wait of a task is a
    stored time and blocks nothing. Ambiguous errors are limited by their fingerprints here, not by their number.
    """
    elapsed = -math.inf if node.retry.within is DEFAULT_WITHIN else past.elapsed
    return CallProgress(attempts=failures, elapsed=elapsed, previous_wait=past.wait)
