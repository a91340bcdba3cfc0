"""What may become of a task: ten states, and one table of the ways between them."""

from __future__ import annotations

from redrive.errors import RedriveError
from redrive.model.tasks import State

_ = State

TRANSITIONS: dict[State, frozenset[State]] = {
    # Waits for the tasks above it; held there while one of them is a dead letter.
    _.PENDING: frozenset({_.READY, _.SENSING, _.RUNNING, _.UPSTREAM_FAILED, _.SKIPPED, _.FAILED}),
    # May be claimed. Goes to the dead letters untried where its siblings died of one cause, fails untried where its
    # service is down and that is what was asked for.
    _.READY: frozenset({_.RUNNING, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    # In an executor's hands; back to READY where the executor stopped before it was done. A fan-out is RUNNING for as
    # long as its children are.
    _.RUNNING: frozenset({_.SUCCESS, _.SKIPPED, _.FAILED, _.RETRYING, _.DEAD_LETTER, _.READY, _.PENDING}),
    # Waits for the time of its next attempt; READY where an operator does not wait for it.
    _.RETRYING: frozenset({_.RUNNING, _.READY, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    # A sensor that is asked from time to time; asking does not change its state.
    _.SENSING: frozenset({_.SUCCESS, _.SKIPPED, _.FAILED, _.DEAD_LETTER, _.PENDING}),
    # The ends. An operator may retry what went wrong, rerun what succeeded, or fail for good what the next start would
    # retry. Whatever comes after a task that runs again waits for it again, as PENDING.
    _.SUCCESS: frozenset({_.READY, _.SENSING, _.RUNNING, _.PENDING, _.DEAD_LETTER}),
    _.FAILED: frozenset({_.READY, _.SENSING, _.RUNNING, _.SUCCESS, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    _.DEAD_LETTER: frozenset({_.READY, _.SENSING, _.RUNNING, _.SUCCESS, _.FAILED, _.PENDING}),
    _.UPSTREAM_FAILED: frozenset({_.PENDING}),
    _.SKIPPED: frozenset({_.READY, _.SENSING, _.PENDING}),
}


class WrongTransition(RedriveError):
    """A change that the table does not know: a bug of ours, stopped before it is stored."""


def checked(before: State, after: State) -> State:
    """The state after, where that change is allowed."""
    if after not in TRANSITIONS[before]:
        raise WrongTransition(f"a task cannot go from {before} to {after}")
    return after
