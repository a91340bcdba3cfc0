"""The states that the tasks of a flow must be in, from how each attempt ended and what an operator decided.

A plain state machine: it knows the rules of docs/tasks.md and nothing of the executor, which the suite of
tests/unit/tasks/test_model.py compares with it over random graphs, outcomes and kills.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from redrive.model.tasks import State
from redrive.tasks.executor.decide import LOST_IN_A_ROW

CAUSES = {
    "transient": "down@a:1",
    "timed out": "timeout",
    "one bug": "ValueError@a:1",
    "other bug": "ValueError@b:2",
    "died": "SIGSEGV",
    "permanent": "Permanent@a:1",
    "discard": "Discard@a:1",
    "skip": "Skip@a:1",
    "lost": "lost",
}
"""The ways in which an attempt fails, each with its cause. "lost": its executor was killed."""
SUSPECTS = {"one bug", "other bug", "died"}
"""Ambiguous failures: a task that fails twice in a row with the same one is poisoned."""
ACCEPTED_ITEMS = 2
"""How many items an operator gives as the result of a task that they accept."""

Place = tuple[int, int]
"""A task by its number in the graph and its number among the children of a fan-out; -1 for the task itself."""


@dataclass
class Drawn:
    """One task of a random graph, and how its attempts end."""

    kind: str
    after: list[int]
    items: int
    attempts: int
    scripts: list[list[str]]
    run_when: str = "all_succeeded"

    def outcome(self, child: int, attempt: int) -> str:
        """Return how an attempt ends: "returns", "not yet" (a sensor), or one of `CAUSES`."""
        script = self.scripts[max(child, 0) % len(self.scripts)]
        outcome = script[attempt - 1] if attempt <= len(script) else "returns"
        of_others = {"not yet": self.kind != "sensor", "skip": self.kind == "fan-out"}
        return "returns" if of_others.get(outcome) else outcome


@dataclass
class Model:
    """The tasks of one run."""

    graph: list[Drawn]
    outcomes: dict[Place, list[str]] = field(default_factory=lambda: defaultdict(list))
    """How the attempts of each task ended, in order."""
    forgiven: Counter[Place] = field(default_factory=Counter)
    """How many attempts an operator's retry, or the next start after a failure, has reset: they count no more."""
    decided: dict[Place, State] = field(default_factory=dict)
    """The states that an operator has set."""
    resets: Counter[int] = field(default_factory=Counter)
    """How often a fan-out may have got other children."""

    def states(self) -> dict[Place, State]:
        """Return the state of every task when nothing is left to run."""
        states: dict[Place, State] = {}
        for number, drawn in enumerate(self.graph):
            idle = self._idle(drawn, states)
            if (number, -1) in self.decided:  # whatever has become of the tasks that it waited for
                states[number, -1] = self.decided[number, -1]
            elif idle is not None:
                states[number, -1] = idle
            elif drawn.kind == "fan-out":
                children = [self._state(number, child) for child in range(self._items(drawn.after[0], states))]
                states |= {(number, child): state for child, state in enumerate(children)}
                worst = (State.DEAD_LETTER, State.FAILED)
                states[number, -1] = next((state for state in worst if state in children), State.SUCCESS)
            else:
                states[number, -1] = self._state(number, -1)
        return states

    def _idle(self, drawn: Drawn, states: dict[Place, State]) -> State | None:
        """Return the state of a task that does not run, by its trigger rule; None where it does."""
        upstream = {states[upper, -1] for upper in drawn.after}
        failed = upstream & {State.FAILED, State.UPSTREAM_FAILED}
        blocked = upstream & {State.DEAD_LETTER, State.PENDING}
        match drawn.run_when:
            case "all_succeeded" | "none_failed" if failed:
                return State.UPSTREAM_FAILED
            case "all_succeeded" | "none_failed" if blocked:
                return State.PENDING
            case "all_succeeded" if State.SKIPPED in upstream:
                return State.SKIPPED
            case "none_failed" if upstream == {State.SKIPPED}:
                return State.SKIPPED
            case "any_failed" if not failed | blocked:
                return State.SKIPPED
        without_items = drawn.kind == "fan-out" and states[drawn.after[0], -1] is not State.SUCCESS
        return State.SKIPPED if without_items else None

    def below(self, number: int) -> set[int]:
        """Return the tasks that come after one, directly or not."""
        found = {number}
        for lower, drawn in enumerate(self.graph):
            if found & set(drawn.after):
                found.add(lower)
        return found - {number}

    def reset_below(self, number: int, attempts: dict[Place, int]) -> None:
        """Let what comes after a task that runs again start over: its attempts so far count no more."""
        below = self.below(number)
        self.resets.update(below)
        for place in [*attempts]:
            failed_for_good = place[1] < 0 and self.decided.get(place) is State.FAILED
            if place[0] in below and not failed_for_good:
                self.decided.pop(place, None)
                # The children of a fan-out are others the next time.
                self.forgiven[place] = attempts[place] if place[1] < 0 else 0

    def _items(self, source: int, states: dict[Place, State]) -> int:
        """Return how many items a task that succeeded gives to a fan-out."""
        if (source, -1) in self.decided:
            return ACCEPTED_ITEMS
        if self.graph[source].kind == "fan-out":
            return sum(1 for number, child in states if number == source and child >= 0)
        return 0 if self.outcomes[source, -1][-1] == "discard" else self.graph[source].items

    def check_attempts(self) -> None:
        """No task that is done runs again, unless an operator or a task before it has asked for that."""
        for place, outcomes in self.outcomes.items():
            for outcome in outcomes[self.forgiven[place] : -1]:
                assert outcome not in ("returns", "discard", "skip"), f"{place} ran again: {outcomes}"

    def _state(self, number: int, child: int) -> State:
        """Return the state of a task that its own attempts decide."""
        if (number, child) in self.decided:
            return self.decided[number, child]
        failures, same, last_cause, lost = 0, 0, None, 0
        for outcome in self.outcomes[number, child][self.forgiven[number, child] :]:
            if outcome in ("returns", "discard"):
                return State.SUCCESS
            if outcome == "skip":
                return State.SKIPPED
            lost = lost + 1 if outcome == "lost" else 0
            if outcome == "lost":  # costs no retry, but a task that loses many executors in a row is poisoned
                if lost == LOST_IN_A_ROW:
                    return State.DEAD_LETTER
                continue
            if outcome == "not yet":
                failures, same, last_cause = 0, 0, None
                continue
            if outcome == "permanent":
                return State.DEAD_LETTER
            cause = CAUSES[outcome]
            same, last_cause = (same + 1 if cause == last_cause else 1), cause
            failures += 1
            if outcome in SUSPECTS and same == 2:
                return State.DEAD_LETTER
            if failures == self.graph[number].attempts:
                return State.DEAD_LETTER if outcome in SUSPECTS else State.FAILED
        return State.RUNNING  # not over: no task may be so when nothing is left to run
