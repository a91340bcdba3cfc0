"""The progress of a run, passed to the `watch` callback a few times a second."""

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

_SHOW_EVERY = 0.25
_TASKS_SHOWN = 20
_COUNT_EVERY = 0.5


class ProgressCollector:
    """Collects the progress of a run if there is a callback."""

    def __init__(self, watch: Callable[[FlowProgress], None] | None) -> None:
        self._watch = watch
        self._began = time.monotonic()
        self._counts: Mapping[State, int] = {}
        self._count_at = 0.0
        self.retries: tuple[tuple[str, float], ...] = ()
        self.show_at = math.inf if watch is None else 0.0
        """When to call `show` next."""

    @property
    def wants_counts(self) -> bool:
        """Whether the counts of tasks by state are outdated."""
        return self._watch is not None and time.monotonic() >= self._count_at

    def record_counts(
        self, counts: Mapping[State, int], retries: tuple[tuple[str, float], ...], seconds: float
    ) -> None:
        """Store new counts. A slow count is made less often."""
        self._counts = counts
        self.retries = retries
        self._count_at = time.monotonic() + max(_COUNT_EVERY, 20 * seconds)

    def show(
        self,
        jobs: Mapping[int, ClaimedJob],
        pool: WorkerPool | None,
        threads: TaskThreads | None,
        blocked: Mapping[str, str],
    ) -> None:
        """Call the callback if it is time to."""
        now = time.monotonic()
        if self._watch is None or now < self.show_at:
            return
        self.show_at = now + _SHOW_EVERY
        in_progress: list[tuple[int, float, bool]] = [] if pool is None else list(pool.running())
        if threads is not None:
            in_progress += [(ticket, seconds, False) for ticket, seconds in threads.running()]
        running = [
            RunningTask(
                task=jobs[ticket].name,
                seconds=seconds,
                attempt=jobs[ticket].claim.attempt,
                timeout=jobs[ticket].node.timeout,
                dying=dying,
            )
            for ticket, seconds, dying in sorted(in_progress, key=lambda entry: -entry[1])[:_TASKS_SHOWN]
            if ticket in jobs
        ]
        progress = FlowProgress(
            counts=self._counts,
            running=tuple(running),
            retries=self.retries,
            held=tuple(sorted(blocked.items())),
            seconds=now - self._began,
        )
        try:
            self._watch(progress)
        except Exception:  # a failing callback must not end the run
            EVENTS.error("the watch of a run failed, and is not called any more\n%s", mask(format_exc()))
            self._watch, self.show_at = None, math.inf
