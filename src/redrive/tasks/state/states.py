"""The states of a task: one table of the transitions between them, checked before each change."""

from __future__ import annotations

from redrive.errors import RedriveError
from redrive.model.tasks import State

_ = State

TRANSITIONS: dict[State, frozenset[State]] = {
    # Waits for its upstream tasks; blocked while one of them is a dead letter.
    _.PENDING: frozenset({_.READY, _.SENSING, _.RUNNING, _.UPSTREAM_FAILED, _.SKIPPED, _.FAILED}),
    # May be claimed. Becomes a dead letter untried if its siblings died of one cause; fails untried if its service is
    # down and `when_open` is "fail".
    _.READY: frozenset({_.RUNNING, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    # Claimed by an executor; READY again if the executor stopped before the attempt ended. A fan-out is RUNNING as
    # long as its children are.
    _.RUNNING: frozenset({_.SUCCESS, _.SKIPPED, _.FAILED, _.RETRYING, _.DEAD_LETTER, _.READY, _.PENDING}),
    # Waits for the time of its next attempt; READY if an operator retries it earlier.
    _.RETRYING: frozenset({_.RUNNING, _.READY, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    # A sensor that is polled from time to time; a poll does not change its state.
    _.SENSING: frozenset({_.SUCCESS, _.SKIPPED, _.FAILED, _.DEAD_LETTER, _.PENDING}),
    # End states. An operator may retry failed tasks, rerun successful ones, or fail tasks for good that a resume would
    # retry. The tasks below a task that runs again become PENDING.
    _.SUCCESS: frozenset({_.READY, _.SENSING, _.RUNNING, _.PENDING, _.DEAD_LETTER}),
    _.FAILED: frozenset({_.READY, _.SENSING, _.RUNNING, _.SUCCESS, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    _.DEAD_LETTER: frozenset({_.READY, _.SENSING, _.RUNNING, _.SUCCESS, _.FAILED, _.PENDING}),
    _.UPSTREAM_FAILED: frozenset({_.PENDING}),
    _.SKIPPED: frozenset({_.READY, _.SENSING, _.PENDING}),
}


class WrongTransition(RedriveError):
    """A transition that is not in the table: a bug in redrive, stopped before it is stored."""


def checked(before: State, after: State) -> State:
    """Return the new state; raises WrongTransition if the transition is not allowed."""
    if after not in TRANSITIONS[before]:
        raise WrongTransition(f"a task cannot go from {before} to {after}")
    return after
