"""A limiter for the children of a fan-out: it starts a few, and stops all when they die of one cause. Pure.

Without it, a fan-out of 100,000 children with one bug makes 100,000 dead letters. The planner of an executor asks it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

PROBE_EVERY = 60.0
"""Seconds between probes: one child is started this often while retrying siblings block the rest."""
_SUCCESSES_PER_DEATH = 20


@dataclass(slots=True)
class _Cause:
    """Children of a fan-out that failed with one fingerprint."""

    failing: set[Hashable] = field(default_factory=set)
    """Children that failed of this cause and will be retried."""
    dead: int = 0
    """Children that died of this cause."""
    survived: int = 0
    """Children that succeeded since the first failure of this cause."""
    announced: bool = False
    alone: bool = False
    """The cause is the input of each child, and does not concern its siblings."""

    @property
    def affected(self) -> int:
        return len(self.failing) + self.dead


@dataclass(frozen=True, slots=True)
class CauseCount:
    """The counts of one cause in the store."""

    dead: int = 0
    failing: Collection[Hashable] = ()
    survived: int = 0
    alone: bool = False


class SiblingLimiter:
    """Limits the children of one fan-out in one executor.

    It starts with as many children as may die of one cause, and then allows one more than have succeeded. If more
    children fail of one cause than succeed, it allows only as many as keep deaths within the limit. When that many have
    died, the fan-out is stopped and the rest is not tried. The limit grows with successes, since bad items come in
    clusters. While failed children wait for a long retry, one new child is started now and then as a probe.
    """

    def __init__(self, limit: int) -> None:
        self._min_limit = limit
        self._causes: dict[str, _Cause] = {}
        self._successes = 0
        self._blocked_since: float | None = None

    @property
    def _limit(self) -> int:
        return self._min_limit + self._successes // _SUCCESSES_PER_DEATH

    def max_new(self, now: float = 0.0) -> int:
        """Return how many new children, not tried yet, may run at once."""
        window = self._window()
        if window > 0 or not self._has_retrying():
            self._blocked_since = None
            return window
        if self._blocked_since is None:
            self._blocked_since = now
        return 1 if now - self._blocked_since >= PROBE_EVERY else 0

    def record_probe(self, now: float) -> None:
        """Record that a new child started, so that the next probe waits its time."""
        if self._blocked_since is not None:
            self._blocked_since = now

    def _has_retrying(self) -> bool:
        return any(cause.failing for cause in self._causes.values())

    def _window(self) -> int:
        max_window = window = max(self._limit, self._successes + 1)
        failing = sum(len(cause.failing) for cause in self._causes.values())  # each of them may still die of any cause
        for cause in self._causes.values():
            if cause.affected and not cause.alone:
                bound = self._limit if cause.affected > cause.survived else max_window
                window = min(window, bound - cause.dead - failing)
        return max(0, window)

    def record_success(self, child: Hashable) -> None:
        """Record a success."""
        self._successes += 1
        for cause in self._causes.values():
            cause.survived += 1
            cause.failing.discard(child)

    def record_retry(self, child: Hashable, fingerprint: str, *, suspect: bool) -> None:
        """Record a failure that will be retried; a suspect failure may affect siblings, too."""
        for cause in self._causes.values():
            cause.failing.discard(child)
        if suspect:
            self._causes.setdefault(fingerprint, _Cause()).failing.add(child)

    def record_end(self, child: Hashable) -> None:
        """Record that a child will not be retried, for a reason that does not concern its siblings."""
        for cause in self._causes.values():
            cause.failing.discard(child)

    def record_death(self, child: Hashable, fingerprint: str, *, alone: bool = False) -> bool:
        """Record a dead letter, and return whether the fan-out must be stopped.

        Args:
            alone: The cause is the input of this child, which does not concern its siblings.
        """
        self.record_end(child)
        cause = self._causes.setdefault(fingerprint, _Cause(alone=alone))
        cause.dead += 1
        return self._must_stop(cause)

    def take_unannounced(self, *, final: bool = False) -> list[str]:
        """Return causes to announce: each once, and only when it is known whether the cause stops the fan-out."""
        fingerprints = []
        for fingerprint, cause in self._causes.items():
            is_decided = final or (not cause.failing and cause.affected <= cause.survived)
            if cause.dead and not cause.announced and is_decided:
                cause.announced = True
                fingerprints.append(fingerprint)
        return fingerprints

    def mark_announced(self, fingerprint: str) -> bool:
        """Mark a cause as announced, and return whether it was not yet."""
        cause = self._causes[fingerprint]
        is_new, cause.announced = not cause.announced, True
        return is_new

    def recount(self, successes: int, counted: Mapping[str, CauseCount]) -> list[str]:
        """Take over the counts of the store, with children of other executors; return causes that stop the fan-out."""
        self._successes = successes
        for fingerprint in counted.keys() | self._causes.keys():
            cause = self._causes.setdefault(fingerprint, _Cause())
            count = counted.get(fingerprint, CauseCount())
            cause.failing, cause.dead, cause.survived = set(count.failing), count.dead, count.survived
            cause.alone = count.alone
        return [fingerprint for fingerprint, cause in self._causes.items() if self._must_stop(cause)]

    def _must_stop(self, cause: _Cause) -> bool:
        return not cause.alone and cause.dead >= self._limit and cause.dead > cause.survived

    def count_dead(self, fingerprint: str) -> int:
        """Return how many children died of a cause."""
        return self._causes[fingerprint].dead
