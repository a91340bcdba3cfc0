"""What somebody who watches a run is shown, a few times a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from traceback import format_exc
from typing import TYPE_CHECKING

from redrive._internal.masking import mask
from redrive.events.bus import EVENTS
from redrive.model.tasks import FlowProgress, RunningTask, State

if TYPE_CHECKING:
    from redrive.tasks.executor.in_thread import TaskThreads
    from redrive.tasks.executor.store_cycle import ClaimedJob
    from redrive.tasks.workers.pool import WorkerPool

_EVERY = 0.25
_SHOWN = 20
_COUNT_EVERY = 0.5


class ProgressCollector:
    """Gathers how far a run has come, where somebody watches."""

    def __init__(self, watch: Callable[[FlowProgress], None] | None) -> None:
        self._watch = watch
        self._began = time.monotonic()
        self._counts: Mapping[State, int] = {}
        self._count_at = 0.0
        self.retries: tuple[tuple[str, float], ...] = ()
        self.show_at = math.inf if watch is None else 0.0
        """When to be called again."""

    @property
    def wants_counts(self) -> bool:
        """Whether the tasks should be counted anew."""
        return self._watch is not None and time.monotonic() >= self._count_at

    def counted(self, counts: Mapping[State, int], retries: tuple[tuple[str, float], ...], took: float) -> None:
        """The tasks were counted. What takes long is done more seldom."""
        self._counts = counts
        self.retries = retries
        self._count_at = time.monotonic() + max(_COUNT_EVERY, 20 * took)

    def show(
        self,
        hands: Mapping[int, ClaimedJob],
        pool: WorkerPool | None,
        threads: TaskThreads | None,
        held: Mapping[str, str],
    ) -> None:
        """Show it, where it is time to."""
        now = time.monotonic()
        if self._watch is None or now < self.show_at:
            return
        self.show_at = now + _EVERY
        under_way: list[tuple[int, float, bool]] = [] if pool is None else list(pool.running())
        if threads is not None:
            under_way += [(ticket, seconds, False) for ticket, seconds in threads.running()]
        running = [
            RunningTask(
                task=hands[ticket].name,
                seconds=seconds,
                attempt=hands[ticket].claim.attempt,
                timeout=hands[ticket].node.timeout,
                dying=dying,
            )
            for ticket, seconds, dying in sorted(under_way, key=lambda one: -one[1])[:_SHOWN]
            if ticket in hands
        ]
        progress = FlowProgress(
            counts=self._counts,
            running=tuple(running),
            retries=self.retries,
            held=tuple(sorted(held.items())),
            seconds=now - self._began,
        )
        try:
            self._watch(progress)
        except Exception:  # who watches must not end what is watched
            EVENTS.error("the watch of a run failed, and is not called any more\n%s", mask(format_exc()))
            self._watch, self.show_at = None, math.inf
