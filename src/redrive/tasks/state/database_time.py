"""A clock of the database that ignores jumps, so that setting the clock neither fires nor delays retries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

_log = logging.getLogger("redrive.events")
_JUMP = timedelta(seconds=1)


class DatabaseClock:
    """Follows the wall clock of the database, and the monotonic clock once the wall clock has jumped."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wall: datetime | None = None
        self._wall_read_at = 0.0
        self._jump_reported = False

    def read(self, read_wall: Callable[[], datetime]) -> tuple[datetime, datetime]:
        """Return the wall time, and the time to use for due times."""
        earliest = self._monotonic()
        wall_time = read_wall()
        latest = self._monotonic()
        if self._wall is not None and not self._expect(earliest) - _JUMP < wall_time < self._expect(latest) + _JUMP:
            steady_time = self._expect(latest)
            self._report_jump(wall_time - steady_time)
            return wall_time, steady_time
        self._wall, self._wall_read_at = wall_time, latest
        self._jump_reported = False
        return wall_time, wall_time

    def _expect(self, moment: float) -> datetime:
        assert self._wall is not None
        return self._wall + timedelta(seconds=moment - self._wall_read_at)

    def _report_jump(self, jump: timedelta) -> None:
        if not self._jump_reported:
            self._jump_reported = True
            _log.warning(
                "the clock of the store has jumped by %+.0f s; tasks that wait are tried as if it had not",
                jump.total_seconds(),
            )
