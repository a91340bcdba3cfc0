"""The database's time without its jumps: so that a clock that is set neither fires retries early nor starves them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

_log = logging.getLogger("redrive.events")
_JUMP = timedelta(seconds=1)


class DatabaseClock:
    """Goes with the wall clock while that goes as time does, and by the monotonic clock alone once it has jumped."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wall: datetime | None = None
        self._at = 0.0
        self._told = False

    def read(self, wall: Callable[[], datetime]) -> tuple[datetime, datetime]:
        """The time by the wall clock, and the time that is to be gone by."""
        earliest = self._monotonic()
        real = wall()
        latest = self._monotonic()
        if self._wall is not None and not self._expected(earliest) - _JUMP < real < self._expected(latest) + _JUMP:
            steady = self._expected(latest)
            self._tell(real - steady)
            return real, steady
        self._wall, self._at = real, latest
        self._told = False
        return real, real

    def _expected(self, moment: float) -> datetime:
        assert self._wall is not None
        return self._wall + timedelta(seconds=moment - self._at)

    def _tell(self, jump: timedelta) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "the clock of the store has jumped by %+.0f s; tasks that wait are tried as if it had not",
                jump.total_seconds(),
            )
