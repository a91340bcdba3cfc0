"""FakeClock: time without waiting."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from redrive.clock import Clock
from redrive.testing import FakeClock

START = datetime(2025, 3, 1, 12, tzinfo=UTC)


def test_fake_clock_satisfies_the_clock_protocol():
    def wait_a_minute(clock: Clock) -> float:
        began = clock.monotonic()
        clock.sleep(60)
        return clock.monotonic() - began

    assert wait_a_minute(FakeClock()) == 60


def test_sleeping_moves_both_clocks_and_is_recorded():
    clock = FakeClock(START)
    clock.sleep(1.5)
    clock.sleep(30)
    assert clock.monotonic() == 31.5
    assert clock.now() == START + timedelta(seconds=31.5)
    assert clock.sleeps == [1.5, 30]


def test_advancing_moves_both_clocks_and_is_no_sleep():
    clock = FakeClock(START)
    clock.advance(10)
    assert (clock.monotonic(), clock.now(), clock.sleeps) == (10, START + timedelta(seconds=10), [])


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_jump_moves_the_wall_clock_only(seconds):
    clock = FakeClock(START)
    clock.jump(seconds)
    assert clock.monotonic() == 0
    assert clock.now() == START + timedelta(seconds=seconds)
    assert clock.sleeps == []


def test_start_in_another_zone_is_returned_in_utc():
    clock = FakeClock(datetime(2025, 3, 1, 17, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))))
    assert clock.now() == START
    assert clock.now().tzinfo is UTC


def test_two_clocks_without_a_start_agree():
    assert FakeClock().now() == FakeClock().now()


async def test_async_sleep_lets_other_tasks_run():
    clock = FakeClock()
    order = []

    async def worker(name):
        for turn in range(2):
            order.append((name, turn))
            await clock.asleep(1)

    await asyncio.gather(worker("a"), worker("b"))
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert clock.sleeps == [1, 1, 1, 1]
    assert clock.monotonic() == 4


class Interrupted(float):
    """A number that lets another thread run in the middle of being added."""

    def __radd__(self, other):
        time.sleep(0.0001)
        return other + float(self)


def test_no_sleep_of_many_threads_is_lost():
    clock = FakeClock()

    def sleep_often():
        for _ in range(20):
            clock.sleep(Interrupted(1))

    threads = [threading.Thread(target=sleep_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == len(clock.sleeps) == 160


@pytest.mark.parametrize("seconds", [-0.001, math.nan, math.inf])
def test_time_moves_only_forward_by_a_finite_amount(seconds):
    clock = FakeClock()
    for move in (clock.sleep, clock.advance, lambda s: asyncio.run(clock.asleep(s))):
        with pytest.raises(ValueError, match="from 0 up"):
            move(seconds)
    assert (clock.monotonic(), clock.sleeps) == (0, [])


def test_jump_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        FakeClock().jump(math.nan)


def test_start_without_zone_is_rejected():
    with pytest.raises(ValueError, match="time zone"):
        FakeClock(datetime(2025, 1, 1))
