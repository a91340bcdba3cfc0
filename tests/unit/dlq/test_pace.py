"""The rate limit of a replay, with a clock of its own."""

from hypothesis import given
from hypothesis import strategies as st

from redrive.dlq.replay.schedule import RateLimit


class Clock:
    def __init__(self):
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds


@given(
    rate=st.floats(0.1, 1_000),
    batches=st.lists(st.tuples(st.integers(1, 500), st.floats(0, 5)), min_size=1, max_size=30),
)
def test_no_window_has_more_letters_than_the_rate_allows(rate, batches):
    clock = Clock()
    pace = RateLimit(rate, clock=lambda: clock.now, sleep=clock.sleep)
    sent = []
    for wanted, seconds in batches:
        size = pace.allow(wanted)
        assert 1 <= size <= max(1, min(wanted, rate))
        pace.sent(size)
        sent.append((clock.now, size))
        clock.now += seconds  # how long the target takes
    for first in range(len(sent)):
        for last in range(first + 1, len(sent)):
            before = sum(size for _, size in sent[first:last])
            assert before <= rate * (sent[last][0] - sent[first][0]) * (1 + 1e-9) + 1e-6


@given(rate=st.integers(1, 200), batches=st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_no_second_has_more_letters_than_the_rate(rate, batches):
    """A canary is a small batch before large ones."""
    clock = Clock()
    pace = RateLimit(rate, clock=lambda: clock.now, sleep=clock.sleep)
    sent = []
    for wanted in batches:
        size = pace.allow(wanted)
        pace.sent(size)
        sent.append((clock.now, size))
    for start, _ in sent:
        assert sum(size for at, size in sent if start <= at < start + 1 - 1e-6) <= rate


def test_canary_does_not_slow_the_replay():
    clock = Clock()
    pace = RateLimit(50, clock=lambda: clock.now, sleep=clock.sleep)
    sent = 0
    while sent < 510:
        size = pace.allow(10 if sent < 10 else 500)
        pace.sent(size)
        sent += size
    assert clock.now <= 510 / 50


@given(wanted=st.integers(0, 10_000))
def test_replay_without_a_rate_does_not_wait(wanted):
    pace = RateLimit(None, sleep=lambda seconds: None)
    pace.sent(wanted)
    assert pace.allow(wanted) == wanted
