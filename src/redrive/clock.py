"""`Clock` and `Random` as arguments, so that every rule can be tested without waiting; and sleeping in async code."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Clock(Protocol):
    """Monotonic time for durations; wall time for what is stored, or compared with the times of others."""

    def monotonic(self) -> float:
        """Return seconds that only increase; only differences have a meaning."""

    def now(self) -> datetime:
        """Return the wall clock, in UTC with zone."""

    def sleep(self, seconds: float) -> None:
        """Block this thread."""

    async def asleep(self, seconds: float) -> None:
        """Suspend this coroutine."""


class Random(Protocol):
    """The randomness that a policy needs; `random.Random` fits."""

    def uniform(self, low: float, high: float, /) -> float:
        """Return a number between low and high."""


class SystemClock:
    """The machine's clocks."""

    # The C function itself, without a method around it: it is called twice in every call.
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def asleep(self, seconds: float) -> None:
        await sleep(seconds)


def running_trio() -> ModuleType | None:
    """Return trio where the current task runs under it, else None: then it runs under asyncio."""
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio


async def sleep(seconds: float) -> None:
    """Suspend the current task, under asyncio or trio."""
    if (trio := running_trio()) is not None:
        await trio.sleep(seconds)
        return
    import asyncio  # 30 ms that a synchronous program need not pay

    await asyncio.sleep(seconds)


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Call a blocking function in another thread, under asyncio or trio."""
    if (trio := running_trio()) is not None:
        result: T = await trio.to_thread.run_sync(function, *args)
        return result
    import asyncio

    return await asyncio.to_thread(function, *args)


@asynccontextmanager
async def time_limit(seconds: float | None, before: Callable[[object], None] | None = None) -> AsyncIterator[None]:
    """Cancel the block after `seconds`, under asyncio or trio.

    Args:
        seconds: the limit; None for none.
            before: called when the time is over and nothing is cancelled yet, with the future that the block waits for;
              under asyncio only.

    Raises:
        TimeoutError: the block did not end in time. Its cause is the cancellation, with the frames that it ended.
    """
    if seconds is None:
        yield
    elif (trio := running_trio()) is not None:
        cancellation: BaseException | None = None
        with trio.move_on_after(seconds) as scope:
            try:
                yield
            except BaseException as error:
                cancellation = error
                raise
        if scope.cancelled_caught:
            try:
                raise TimeoutError(_too_slow(seconds)) from cancellation
            finally:
                del cancellation  # this frame must not be part of a reference cycle
    else:
        import asyncio

        try:
            async with asyncio.timeout(None if before else seconds) as limit:
                if before is None:
                    yield
                else:
                    with _call_on_timeout(before, seconds, limit):
                        yield
        except TimeoutError as error:
            if limit.expired() and not error.args:
                raise TimeoutError(_too_slow(seconds)) from error.__cause__ or error.__context__
            raise


@contextmanager
def _call_on_timeout(before: Callable[[object], None], seconds: float, limit: asyncio.Timeout) -> Iterator[None]:
    """Call a function when the time is over, and only then let the limit expire."""
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def expire() -> None:
        try:
            before(getattr(task, "_fut_waiter", None))
        finally:
            limit.reschedule(loop.time())

    handle = loop.call_later(seconds, expire)
    try:
        yield
    finally:
        handle.cancel()


def _too_slow(seconds: float) -> str:
    return f"not finished within {seconds:g} s"
