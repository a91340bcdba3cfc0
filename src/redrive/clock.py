"""Time and chance as things that are passed in, so that every rule can be tested without waiting."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Monotonic time for durations, wall time for what is stored or said by others."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; only differences mean anything."""

    def now(self) -> datetime:
        """The wall clock, in UTC with zone."""

    def sleep(self, seconds: float) -> None:
        """Block this thread."""

    async def asleep(self, seconds: float) -> None:
        """Suspend this coroutine."""


class Random(Protocol):
    """The one thing a policy asks of chance; `random.Random` fits."""

    def uniform(self, low: float, high: float, /) -> float:
        """A number between low and high."""


class SystemClock:
    """The machine's clocks."""

    # The C function itself, not a method around it: it is read twice in every call.
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def asleep(self, seconds: float) -> None:
        import asyncio  # 30 ms that a synchronous program need not pay

        await asyncio.sleep(seconds)
