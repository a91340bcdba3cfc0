"""Siblings: a fan-out begins with a few children, and is stopped when they die of one cause. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

PATIENCE = 60.0
"""Seconds for which children that will be tried again hold their siblings up."""
_PER_SUCCESSES = 20


@dataclass(slots=True)
class _Cause:
    """One way in which children of a fan-out fail."""

    failing: set[Hashable] = field(default_factory=set)
    """Children that failed so and will be tried again,"""
    dead: int = 0
    """and those that will not."""
    survived: int = 0
    """Children that succeeded since the first one failed so."""
    announced: bool = False
    alone: bool = False
    """It is about the input of each child, and says nothing about the others."""

    @property
    def toll(self) -> int:
        return len(self.failing) + self.dead


@dataclass(frozen=True, slots=True)
class CauseCount:
    """What the store knows of one cause."""

    dead: int = 0
    failing: Collection[Hashable] = ()
    survived: int = 0
    alone: bool = False


class SiblingLimiter:
    """What one executor knows of a fan-out's children.

    It begins with as many children as may die of one cause, and lets as many run as have succeeded. Where children fail
    of one cause and more of them fail than succeed, it lets only so many run that no more than the limit can be hit;
    when those have died, it is a storm, and the rest is not tried. The limit grows with the successes before: bad items
    come in clusters. Where those that failed are long in coming back, one child is tried now and then meanwhile.
    """

    def __init__(self, limit: int) -> None:
        self._least = limit
        self._causes: dict[str, _Cause] = {}
        self._successes = 0
        self._held_since: float | None = None

    @property
    def _limit(self) -> int:
        return self._least + self._successes // _PER_SUCCESSES

    def may_run(self, now: float = 0.0) -> int:
        """How many children that were not tried yet may be under way at once."""
        window = self._window()
        if window > 0 or not self._may_yet_be_well():
            self._held_since = None
            return window
        if self._held_since is None:
            self._held_since = now
        return 1 if now - self._held_since >= PATIENCE else 0

    def tried(self, now: float) -> None:
        """A child was let through although its siblings are held."""
        if self._held_since is not None:
            self._held_since = now

    def _may_yet_be_well(self) -> bool:
        return any(cause.failing for cause in self._causes.values())

    def _window(self) -> int:
        most = window = max(self._limit, self._successes + 1)
        failing = sum(len(cause.failing) for cause in self._causes.values())  # each may yet die of any cause
        for cause in self._causes.values():
            if cause.toll and not cause.alone:
                bound = self._limit if cause.toll > cause.survived else most
                window = min(window, bound - cause.dead - failing)
        return max(0, window)

    def succeeded(self, child: Hashable) -> None:
        """A child is done."""
        self._successes += 1
        for cause in self._causes.values():
            cause.survived += 1
            cause.failing.discard(child)

    def retries(self, child: Hashable, fingerprint: str, *, suspect: bool) -> None:
        """A child failed and will be tried again; a suspect failed in a way that may be its siblings' way, too."""
        for cause in self._causes.values():
            cause.failing.discard(child)
        if suspect:
            self._causes.setdefault(fingerprint, _Cause()).failing.add(child)

    def ended(self, child: Hashable) -> None:
        """A child will not be tried again, for a reason that says nothing about the others."""
        for cause in self._causes.values():
            cause.failing.discard(child)

    def died(self, child: Hashable, fingerprint: str, *, alone: bool = False) -> bool:
        """A child became a dead letter; whether that makes it a storm.

        alone  its input is bad, which says nothing about its siblings
        """
        self.ended(child)
        cause = self._causes.setdefault(fingerprint, _Cause(alone=alone))
        cause.dead += 1
        return self._is_storm(cause)

    def to_announce(self, *, final: bool = False) -> list[str]:
        """Causes that people are to be told of now: each once, and not before it is known whether it is a storm."""
        found = []
        for fingerprint, cause in self._causes.items():
            settled = final or (not cause.failing and cause.toll <= cause.survived)
            if cause.dead and not cause.announced and settled:
                cause.announced = True
                found.append(fingerprint)
        return found

    def stormed(self, fingerprint: str) -> bool:
        """Whether this storm is news."""
        cause = self._causes[fingerprint]
        news, cause.announced = not cause.announced, True
        return news

    def recount(self, successes: int, counted: Mapping[str, CauseCount]) -> list[str]:
        """Know what the store knows, children of other executors included; causes that are a storm by now."""
        self._successes = successes
        for fingerprint in counted.keys() | self._causes.keys():
            cause = self._causes.setdefault(fingerprint, _Cause())
            found = counted.get(fingerprint, CauseCount())
            cause.failing, cause.dead, cause.survived = set(found.failing), found.dead, found.survived
            cause.alone = found.alone
        return [fingerprint for fingerprint, cause in self._causes.items() if self._is_storm(cause)]

    def _is_storm(self, cause: _Cause) -> bool:
        return not cause.alone and cause.dead >= self._limit and cause.dead > cause.survived

    def dead_of(self, fingerprint: str) -> int:
        """How many died of this cause."""
        return self._causes[fingerprint].dead
