"""Trigger rules: when a task runs, given what has become of those it comes after. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from redrive.model.tasks import State


class RunWhen(StrEnum):
    """When a task runs. All but the first wait until everything that the task comes after has ended."""

    ALL_SUCCEEDED = "all_succeeded"
    """All succeeded: the default."""
    NONE_FAILED = "none_failed"
    """None failed, and at least one succeeded; the others were skipped. For the task that joins branches."""
    ALL_DONE = "all_done"
    """In any case: for cleanup."""
    ANY_FAILED = "any_failed"
    """At least one failed: for notifications."""


HEEDS_FAILURE = (RunWhen.ALL_DONE, RunWhen.ANY_FAILED)
"""Rules of tasks that run after a failure."""


class TaskContext(Protocol):
    """What the rules need to know of a task of the graph."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def after(self) -> tuple[int, ...]: ...
    @property
    def run_when(self) -> RunWhen: ...


# A dead letter counts as a failure, and so does what waits for one: without an operator neither continues, and cleanup
# must not wait for an operator.
_BLOCKED = "blocked"
_FAILED = "failed"
_OPEN = "open"
_SKIPPED = "skipped"
_SUCCEEDED = "succeeded"
_SEEN_AS = {
    State.SUCCESS: _SUCCEEDED,
    State.SKIPPED: _SKIPPED,
    State.FAILED: _FAILED,
    State.UPSTREAM_FAILED: _FAILED,
    State.DEAD_LETTER: _BLOCKED,
}
_AFTER = {State.READY: _OPEN, State.SKIPPED: _SKIPPED, State.UPSTREAM_FAILED: _FAILED}

Branches = Mapping[int, Collection[str]]
"""By the number of a task that chose among its followers: the names of those it chose."""


def consequences(places: Sequence[TaskContext], states: Sequence[State], branches: Branches) -> dict[int, State]:
    """Return what pending tasks become: READY, SKIPPED or UPSTREAM_FAILED. The others keep waiting."""
    seen: dict[int, str] = {}
    found: dict[int, State] = {}
    for number in in_order(places):
        place = places[number]
        if states[number] is not State.PENDING:
            seen[number] = _SEEN_AS.get(states[number], _OPEN)
            continue
        above = [
            _SKIPPED if upper in branches and place.name not in branches[upper] else seen[upper]
            for upper in place.after
        ]
        state = _decide(place.run_when, above)
        if state is State.READY and place.kind == "fan-out" and above[0] != _SUCCEEDED:
            state = State.SKIPPED  # there are no items to run for
        if state is None:
            seen[number] = _OPEN if _OPEN in above else _BLOCKED
        else:
            found[number] = state
            seen[number] = _AFTER[state]
    return found


def _decide(rule: RunWhen, above: Sequence[str]) -> State | None:
    if rule in (RunWhen.ALL_SUCCEEDED, RunWhen.NONE_FAILED) and _FAILED in above:
        return State.UPSTREAM_FAILED
    if _OPEN in above:
        return None  # also beside a skipped task: whether it is skipped or failed must not depend on who ends first
    if rule is RunWhen.ALL_DONE:
        return State.READY
    if rule is RunWhen.ANY_FAILED:
        return State.READY if _FAILED in above or _BLOCKED in above else State.SKIPPED
    if _BLOCKED in above:
        return None
    if rule is RunWhen.ALL_SUCCEEDED and _SKIPPED in above:
        return State.SKIPPED
    return State.READY if _SUCCEEDED in above or not above else State.SKIPPED


def in_order(places: Sequence[TaskContext]) -> list[int]:
    """Return the numbers of all tasks, each behind those that it comes after."""
    waiting = [len(set(place.after)) for place in places]
    below: list[list[int]] = [[] for _ in places]
    for number, place in enumerate(places):
        for upper in set(place.after):
            below[upper].append(number)
    order = [number for number, count in enumerate(waiting) if not count]
    for number in order:
        for lower in below[number]:
            waiting[lower] -= 1
            if not waiting[lower]:
                order.append(lower)
    return order
