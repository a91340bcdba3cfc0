"""The time of the store without its jumps."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.tasks.state.run_handle import DatabaseClock

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)


class Clocks:
    """A wall clock and a monotonic one, set by hand."""

    def __init__(self):
        self.wall, self.steady = NOON, 1_000.0
        self.time = DatabaseClock(lambda: self.steady)

    def read(self):
        return self.time.read(lambda: self.wall)

    def pass_by(self, seconds, *, jump=0.0):
        self.steady += seconds
        self.wall += timedelta(seconds=seconds + jump)


@pytest.fixture
def clocks():
    found = Clocks()
    found.read()
    return found


def test_wall_clock_is_used_while_both_clocks_agree(clocks):
    for _ in range(100):
        clocks.pass_by(60, jump=0.5)  # it runs fast, within the tolerance
        assert clocks.read() == (clocks.wall, clocks.wall)


@pytest.mark.parametrize("jump", [-86_400, -1.5, 1.5, 3_600])
def test_39_time_continues_after_a_jump_as_without_one(clocks, jump):
    clocks.pass_by(10, jump=jump)
    assert clocks.read() == (clocks.wall, NOON + timedelta(seconds=10))
    clocks.pass_by(10)
    assert clocks.read() == (clocks.wall, NOON + timedelta(seconds=20))


def test_39_jump_is_reported_once(clocks, caplog):
    with caplog.at_level(logging.WARNING, "redrive.events"):
        for _ in range(3):
            clocks.pass_by(1, jump=3_600)
            clocks.read()
    assert [record.getMessage() for record in caplog.records] == [
        "the clock of the store has jumped by +3600 s; tasks that wait are tried as if it had not"
    ]


def test_39_corrected_clock_is_used_again(clocks):
    clocks.pass_by(10, jump=3_600)
    clocks.read()
    clocks.pass_by(10, jump=-3_600)
    assert clocks.read() == (clocks.wall, clocks.wall)


def test_slow_store_is_not_a_clock_jump(clocks):
    def slowly():
        clocks.steady += 20
        return NOON + timedelta(seconds=3)

    assert clocks.time.read(slowly) == (NOON + timedelta(seconds=3),) * 2


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([0, 0, 0, -5_000, 7, 90_000])), max_size=20))
def test_39_time_never_passes_faster_than_real_time(steps):
    clocks = Clocks()
    _, begun = clocks.read()
    passed = 0.0
    for seconds, jump in steps:
        clocks.pass_by(seconds, jump=jump)
        passed += seconds
        _, now = clocks.read()
        assert abs((now - begun).total_seconds() - passed) < 1 + len(steps)
