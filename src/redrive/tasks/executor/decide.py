"""What becomes of a task after an attempt: done, tried again, given up, or left to a person. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from redrive.calls.testmode import TestMode
from redrive.classify.redrive_errors import SKIP
from redrive.clock import Random
from redrive.model.calls import Decision, Kind, Repeat, Stop, Verdict, format_duration
from redrive.model.tasks import State
from redrive.policy.retry import DEFAULT_WITHIN, CallProgress, attempts_used
from redrive.tasks.graph import Node
from redrive.tasks.workers.messages import AttemptEnd, TaskOutcome

RECOVERS = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED})
"""Kinds that pass by themselves: a task that failed so is tried again by the next start of its run."""
LOST = "lost"
LOST_IN_A_ROW = 10
"""Executors that may die one after another while they have a task, before it is taken for the cause."""
LONGEST_WAIT = 86_400.0
"""The most that a server's Retry-After counts for, before jitter. Daily quotas ask for no more than a day, and some
servers send a date where seconds are due. Calls need no such limit: their `within` is one."""
SUSPECT = frozenset({Kind.AMBIGUOUS, Kind.RESOURCE})
"""Kinds that may be poison: nobody can tell whether they would heal."""
_EARNEST = TestMode()


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """What a task has behind it when an attempt begins."""

    failures: int = 0
    same: int = 0
    """How many of the last failures had one cause,"""
    fingerprint: str | None = None
    """which is this one."""
    wait: float | None = None
    elapsed: float = 0.0
    """Seconds since its first attempt began; of a sensor, since it was first asked."""
    lost: int = 0
    """How many executors in a row died while they had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What a task is to be, and what is kept of the attempt."""

    state: State
    cause: str | None = None
    wait: float | None = None
    """Seconds until the next attempt, or the next time a sensor is asked; None where there is none."""
    failures: int = 0
    same: int = 0
    fingerprint: str | None = None
    error: str | None = None
    kind: Kind | None = None
    lost: int = 0
    capped: float | None = None
    """Seconds that the server asked to wait, where that was more than `LONGEST_WAIT`."""


def decide(
    node: Node, past: AttemptHistory, outcome: TaskOutcome, random: Random, testing: TestMode = _EARNEST
) -> Transition:
    """The next state of a task; where waits are capped for a test, with a wait no longer than that."""
    following = _decide(node, past, outcome, random, testing.attempts)
    if following.wait is None or testing.longest_wait is None:
        return following
    return replace(following, wait=min(following.wait, testing.longest_wait))


def _decide(
    node: Node, past: AttemptHistory, outcome: TaskOutcome, random: Random, most_attempts: int | None
) -> Transition:
    if outcome.ended is AttemptEnd.STOPPED:  # the executor's doing, and not held against the task
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
        return _lost(node, past, outcome)
    if outcome.verdict is None or outcome.verdict.kind is Kind.DISCARD:
        return _returned(node, past, outcome)
    return _failed(node, past, outcome, random, most_attempts)


def _lost(node: Node, past: AttemptHistory, outcome: TaskOutcome) -> Transition:
    """Its executor died. That costs it no retry, since it may not even have begun; but it may be what kills them."""
    lost = past.lost + 1
    if lost >= LOST_IN_A_ROW:
        cause = f"{lost} executors in a row died while they had it"
        failed = Transition(
            state=State.DEAD_LETTER, cause=cause, fingerprint=LOST, error=outcome.error, kind=Kind.AMBIGUOUS
        )
        return replace(failed, failures=past.failures, same=1, lost=lost)
    return Transition(
        state=State.SENSING if node.sensing else State.READY,
        cause=outcome.error,
        wait=0.0,
        failures=past.failures,
        same=past.same,  # what it failed of before is not forgotten, or it would never be poison
        fingerprint=past.fingerprint,
        error=outcome.error,
        kind=Kind.AMBIGUOUS,
        lost=lost,
    )


def _returned(node: Node, past: AttemptHistory, outcome: TaskOutcome) -> Transition:
    if outcome.verdict is not None and outcome.verdict.rule == SKIP:
        cause = f"skipped itself: {outcome.error}"
        if node.each is not None:  # as where an operator skips it: the list of results is without it
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
    return Transition(state=State.SENSING, wait=min(node.sensing.every, left))  # the last time when its time is over


def _failed(
    node: Node, past: AttemptHistory, outcome: TaskOutcome, random: Random, most_attempts: int | None
) -> Transition:
    verdict = outcome.verdict
    assert verdict is not None
    fingerprint = outcome.fingerprint or outcome.ended
    same = past.same + 1 if fingerprint == past.fingerprint else 1
    failures = past.failures + 1
    error = outcome.error or verdict.reason

    def becomes(state: State, cause: str, wait: float | None = None, capped: float | None = None) -> Transition:
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
        return becomes(State.DEAD_LETTER, f"{verdict.kind}: {error}")
    if verdict.kind in SUSPECT and same >= node.poison:
        times = "" if same == 1 else f", {same} times in a row at the same place"
        return becomes(State.DEAD_LETTER, f"poison{times}: {error}")
    decision: Decision
    if most_attempts is not None and failures >= most_attempts:
        decision = Stop(attempts_used(most_attempts), spent=True)
    else:
        decision = node.retry.decide(_bounded(_repeatable(verdict)), _progress(node, past, failures), random)
    if isinstance(decision, Repeat):
        wait = decision.wait
        if node.sensing is not None:
            left = node.sensing.timeout - past.elapsed - outcome.seconds
            if left <= 0:
                return becomes(State.FAILED, f"was not true within {format_duration(node.sensing.timeout)}: {error}")
            wait = min(wait, left)
        again = State.SENSING if node.sensing else State.RETRYING
        asked = verdict.retry_after or 0.0
        return becomes(again, f"{verdict.kind}: {error}", wait, asked if asked > max(LONGEST_WAIT, wait) else None)
    if verdict.kind in SUSPECT:  # nobody knows whether it would heal: a person should look
        return becomes(State.DEAD_LETTER, f"{decision.why}: {error}")
    return becomes(State.FAILED, f"{decision.why}: {error}")


def _repeatable(verdict: Verdict) -> Verdict:
    """A worker that ran out of memory is worth another try, as far as the retry policy is concerned."""
    if verdict.kind is not Kind.RESOURCE:
        return verdict
    return Verdict(Kind.AMBIGUOUS, verdict.reason, verdict.rule)


def _bounded(verdict: Verdict) -> Verdict:
    """Take a Retry-After of years for one of a day."""
    if verdict.retry_after is None or verdict.retry_after <= LONGEST_WAIT:
        return verdict
    return replace(verdict, retry_after=LONGEST_WAIT)


def _progress(node: Node, past: AttemptHistory, failures: int) -> CallProgress:
    """As the policy sees it.

    Its `within` is meant for calls that somebody waits for, and is heeded here only where it is not the default: the
    wait of a task is a stored time and holds nobody up. How often ambiguous errors are repeated is a matter of their
    fingerprints here, not of their number.
    """
    elapsed = -math.inf if node.retry.within is DEFAULT_WITHIN else past.elapsed
    return CallProgress(attempts=failures, elapsed=elapsed, previous_wait=past.wait)
